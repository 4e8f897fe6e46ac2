//! Replies that the gateway puts together from a stream, against the engine's own.
//!
//! Apart because two gateways stand before one engine here: one passes its replies on, the other asks it to stream
//! (`measure.stream_upstream`). With a fixed seed, or greedily, both have to say the same.

use serde_json::{Value, json};

use crate::client::{Reply, post};
use crate::pitot::{MODEL, Pitot, shared};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// What differs from call to call: ids, times, and what the engine had in its cache.
fn comparable(reply: &Reply) -> Value {
    let mut body = reply.json();
    let object = body.as_object_mut().unwrap();
    for name in ["id", "created"] {
        assert!(object.remove(name).is_some_and(|value| !value.is_null()), "{name} is missing");
    }
    if let Some(metrics) = object.get_mut("metrics") {
        let keys: Vec<String> = metrics.as_object().unwrap().keys().cloned().collect();
        *metrics = json!(keys);
    }
    if let Some(details) = body["usage"].get_mut("prompt_tokens_details") {
        *details = Value::Null;
    }
    body
}

#[track_caller]
fn check((passing, assembling): (&Pitot, &Pitot), path: &str, more: Value) {
    let mut body = match path {
        CHAT => json!({"messages": [{"role": "user", "content": "Name three colours."}]}),
        _ => json!({"prompt": "The capital of France is"}),
    };
    let object = body.as_object_mut().unwrap();
    object.extend(json!({"model": MODEL, "max_tokens": 12, "temperature": 0}).as_object().unwrap().clone());
    object.extend(more.as_object().unwrap().clone());
    let whole = post(&passing.address, path, &body);
    let assembled = post(&assembling.address, path, &body);
    assert_eq!(whole.status, 200, "{}", whole.text());
    assert_eq!(assembled.status, 200, "{}", assembled.text());
    assert_eq!(comparable(&assembled), comparable(&whole), "{body}");
    assert_eq!(assembled.header("content-type"), whole.header("content-type"));
    assert!(assembled.complete && assembled.header("transfer-encoding").is_none(), "{}", assembled.head);

    let record = assembling.record(assembled.id());
    assert_eq!(record["outcome"], "success", "{record}");
    assert_eq!((&record["stream"], &record["transfer"]), (&json!(false), &json!("streamed")), "{record}");
    assert!(record["first_token_time_ns"].is_u64() && record["content_time_ns"].is_u64(), "{record}");
    assert!(record["client_full_response_time_ns"].is_u64(), "{record}");
    assert!(record["client_first_token_time_ns"].is_null(), "{record}");
}

#[test]
fn an_assembled_reply_is_the_engines_own() {
    let passing = shared();
    let engine = format!("unix:{}", passing.folder().join("engine.sock").display());
    let arguments = [
        "--enable-per-request-metrics",
        "--set",
        "upstream.control_socket=none",
        "--set",
        "measure.stream_upstream=true",
    ];
    let assembling = Pitot::serve(&engine, &arguments);
    let gateways = (passing.as_ref(), &assembling);
    for feature in [
        json!({}),
        json!({"stream": false}),
        json!({"stream": null, "stream_options": null}),
        json!({"max_tokens": 1}),
        json!({"stop": ["green", "blue"]}),
        json!({"logprobs": true, "top_logprobs": 2}),
        json!({"n": 2}),
        json!({"seed": 7, "temperature": 0.8, "top_p": 0.9}),
        json!({"seed": 7, "temperature": 0.8, "n": 2, "logprobs": true}),
    ] {
        check(gateways, CHAT, feature);
    }
    for feature in [
        json!({}),
        json!({"logprobs": 2}),
        json!({"prompt": ["The capital of France is", "Two and two is"]}),
        json!({"seed": 3, "temperature": 1.0, "n": 2}),
    ] {
        check(gateways, COMPLETIONS, feature);
    }
    // A refusal passes as it came.
    let refused = json!({"model": MODEL, "messages": [], "temperature": -1});
    let (own, passed) = (post(&passing.address, CHAT, &refused), post(&assembling.address, CHAT, &refused));
    assert_eq!((own.status, own.json()), (passed.status, passed.json()));
}
