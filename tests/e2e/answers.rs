//! Replies as applications get them: the text, usage, the metrics object, headers, errors.

use std::process::Command;

use serde_json::{Value, json};

use crate::client::{self, Open, chat, post, post_bytes};
use crate::pitot::{MODEL, Pitot, SOON, eventually, run, shared};

const KEYS: [&str; 5] =
    ["time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second"];

fn question(more: Value) -> Value {
    let mut body = json!({
        "model": MODEL, "temperature": 0, "max_tokens": 32,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    });
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    body
}

#[track_caller]
fn check_metrics(metrics: &Value) {
    let object = metrics.as_object().unwrap_or_else(|| panic!("no metrics object: {metrics}"));
    assert_eq!(object.len(), KEYS.len(), "{metrics}");
    for key in KEYS {
        assert!(object[key].as_f64().is_some_and(|value| value >= 0.0), "{key}: {metrics}");
    }
}

#[test]
fn a_whole_reply_carries_metrics_last_and_server_timing() {
    let pitot = shared();
    let reply = chat(&pitot.address, &question(json!({})));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let body = reply.json();
    assert!(body["choices"][0]["message"]["content"].as_str().unwrap().contains("Paris"), "{body}");
    check_metrics(&body["metrics"]);
    let text = reply.text();
    let metrics = text.rfind("\"metrics\":").unwrap();
    assert!(text[metrics..].trim_end().ends_with("}}") && !text[metrics..].contains("\"usage\""), "{text}");
    let timing = reply.header("server-timing").expect("Server-Timing on a reply that does not stream");
    for part in ["queue;dur=", "prefill;dur=", "decode;dur=", "gateway;dur="] {
        assert!(timing.contains(part), "{timing}");
    }
    assert!(reply.header("transfer-encoding").is_none(), "one length, never two: {}", reply.head);
    // The reference of tests/data: 37 prompt tokens, 8 generated ones, the end-of-text token included.
    assert_eq!(body["usage"]["prompt_tokens"], 37);
    assert_eq!(body["usage"]["completion_tokens"], 8);
    assert_eq!(body["usage"]["total_tokens"], 45);
}

#[test]
fn a_stream_carries_metrics_on_the_usage_chunk_only() {
    let pitot = shared();
    let asked = question(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let reply = chat(&pitot.address, &asked);
    let events = reply.events();
    let (usage, others): (Vec<_>, Vec<_>) = events.iter().partition(|event| event["usage"].is_object());
    assert_eq!(usage.len(), 1, "{events:?}");
    check_metrics(&usage[0]["metrics"]);
    assert_eq!(usage[0]["choices"], json!([]));
    assert!(others.iter().all(|event| event.get("metrics").is_none()));
    assert!(reply.text().ends_with("data: [DONE]\n\n"), "{}", reply.text());
    let text: String =
        others.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "The capital of France is Paris.");

    let unasked = chat(&pitot.address, &question(json!({"stream": true})));
    assert!(unasked.events().iter().all(|event| event["choices"][0].is_object()), "{}", unasked.text());
    assert!(!unasked.text().contains("metrics"), "{}", unasked.text());
    let record = pitot.record(unasked.id());
    assert_eq!(record["outcome"], "success", "{record}");
    assert_eq!(record["output_tokens"], 8, "usage was asked for all the same: {record}");
}

#[test]
fn forced_usage_is_shown_unasked() {
    let pitot = Pitot::up(&["--enable-per-request-metrics", "--enable-force-include-usage"]);
    let reply = chat(&pitot.address, &question(json!({"stream": true})));
    let events = reply.events();
    let usage: Vec<_> = events.iter().filter(|event| event["usage"].is_object()).collect();
    assert!(!usage.is_empty(), "{}", reply.text());
    let with_metrics = events.iter().filter(|event| event.get("metrics").is_some()).count();
    assert_eq!(with_metrics, 1, "{}", reply.text());
    check_metrics(&usage.last().unwrap()["metrics"]);
}

#[test]
fn several_sequences_carry_no_metrics() {
    let pitot = shared();
    let two = chat(&pitot.address, &question(json!({"n": 2, "max_tokens": 4})));
    assert_eq!(two.json()["choices"].as_array().unwrap().len(), 2, "{}", two.text());
    let prompts = json!({"model": MODEL, "prompt": ["One", "Two"], "max_tokens": 2});
    let prompts = post(&pitot.address, "/v1/completions", &prompts);
    assert_eq!(prompts.json()["choices"].as_array().unwrap().len(), 2, "{}", prompts.text());
    for reply in [two, prompts] {
        assert!(reply.json().get("metrics").is_none_or(Value::is_null), "{}", reply.text());
    }
    let one = json!({"model": MODEL, "prompt": ["One"], "max_tokens": 2});
    check_metrics(&post(&pitot.address, "/v1/completions", &one).json()["metrics"]);
}

#[test]
fn every_refusal_is_json_in_the_callers_dialect() {
    let pitot = shared();
    let address = &pitot.address;
    let check = |reply: client::Reply, status: u16, words: &str| {
        assert_eq!(reply.status, status, "{}", reply.text());
        let error = reply.json()["error"].clone();
        assert!(error["message"].as_str().is_some_and(|message| message.contains(words)), "{error}");
        assert!(error["type"].is_string(), "{error}");
        assert!(!reply.id().is_empty());
    };
    let raw = |body: &[u8]| {
        Open::send(address, &post_bytes("/v1/chat/completions", "", body)).unwrap().reply().unwrap()
    };
    check(raw(b"{\"model\":"), 400, "JSON");
    check(raw(b"[]"), 400, "object");
    check(raw(b""), 400, "JSON");
    let chunked =
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n";
    check(Open::send(address, chunked).unwrap().reply().unwrap(), 400, "body");
    check(client::get(address, "/nothing").unwrap(), 404, "/nothing");
    check(client::get(address, "/v1/chat/completions").unwrap(), 405, "POST");
    let unknown = question(json!({"model": "no-such-model"}));
    check(chat(address, &unknown), 404, "no-such-model");
    check(chat(address, &question(json!({"temperature": -1}))), 400, "temperature");
    check(chat(address, &question(json!({"stream_options": {"include_usage": true}}))), 400, "stream");
}

#[test]
fn a_body_over_the_limit_gets_a_413_that_can_be_read() {
    let pitot = Pitot::serve("http://127.0.0.1:9", &["--set", "limits.request_body_bytes=100000"]);
    let body = vec![b' '; 3_000_000];
    let declared = post_bytes("/v1/chat/completions", "", &body);
    let mut chunked =
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for piece in body.chunks(50_000) {
        chunked.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        chunked.extend_from_slice(piece);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    for request in [declared, chunked] {
        let reply = Open::send(&pitot.address, &request).unwrap().reply().unwrap();
        assert_eq!(reply.status, 413, "{}", reply.text());
        assert!(reply.json()["error"]["message"].as_str().unwrap().contains("100000"));
    }
}

#[test]
fn request_ids_are_the_callers_or_ours() {
    let pitot = shared();
    let with = |headers: &str| {
        let body = question(json!({"max_tokens": 1})).to_string();
        Open::send(&pitot.address, &post_bytes("/v1/chat/completions", headers, body.as_bytes()))
            .unwrap()
            .reply()
            .unwrap()
    };
    let own = with("");
    let record = pitot.record(own.id());
    assert_eq!(record["id"], own.id());
    let named = with("x-request-id: my-request-7\r\n");
    assert_eq!(named.id(), "my-request-7");
    assert_eq!(pitot.record("my-request-7")["client_request_id"], "my-request-7");
}

#[test]
fn a_caller_that_leaves_stops_the_engines_work() {
    let pitot = Pitot::up(&[]);
    let long = json!({
        "model": MODEL, "temperature": 0, "max_tokens": 2000, "ignore_eos": true,
        "messages": [{"role": "user", "content": "Count to one thousand."}],
    });
    for stream in [true, false] {
        let mut body = long.clone();
        body["stream"] = json!(stream);
        let request =
            post_bytes("/v1/chat/completions", "x-request-id: left\r\n", body.to_string().as_bytes());
        let mut open = Open::send(&pitot.address, &request).unwrap();
        if stream {
            open.read_until("\"content\":\"");
        } else {
            let running = || pitot.engine().filter(|engine| engine["state"]["requests_running"] == 1);
            eventually("the engine works on it", SOON, running);
        }
        open.leave();
        let record = pitot.record("left");
        assert_eq!(record["outcome"], "cancelled", "{record}");
        eventually("the engine's work ends", SOON, || {
            let state = pitot.engine()?["state"].clone();
            (state["requests_running"] == 0 && state["kv_blocks_used"] == 0).then_some(())
        });
    }
    // With a caller that left, the proxy once span for ever when told to stop.
    pitot.stop();
}

#[test]
fn the_openai_client_finds_the_metrics() {
    let python = std::env::var("PITOT_TEST_PYTHON")
        .expect("PITOT_TEST_PYTHON must name a Python with openai; tests/run sets it");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/openai_client.py");
    let pitot = shared();
    let url = format!("http://{}/v1", pitot.address);
    let output = Command::new(python).args([script, &url, MODEL]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["text"], "The capital of France is Paris.");
    let models = said["models"].as_array().unwrap();
    assert!(models.contains(&json!(MODEL)) && models.contains(&json!("alias")), "{said}");
}

#[test]
fn plain_curl_gets_an_answer_under_an_alias() {
    let pitot = shared();
    let url = format!("http://{}/v1/chat/completions", pitot.address);
    let body = question(json!({"model": "alias"})).to_string();
    let output = Command::new("curl")
        .args(["-sS", "-f", &url, "-H", "content-type: application/json", "-d", &body])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(reply["choices"][0]["message"]["content"].as_str().unwrap().contains("Paris"), "{reply}");
    check_metrics(&reply["metrics"]);
}

#[test]
fn one_question_shows_its_answer_and_its_measurement() {
    let model = crate::pitot::model();
    let folder = tempfile::tempdir().unwrap();
    let journal = format!("journal.directory={}", folder.path().display());
    let question = "What is the capital of France?";
    let arguments = ["up", "--model", model.to_str().unwrap(), "--once", question, "--set", &journal];
    let output = run("pitot", &arguments, &[]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    for part in [
        "Paris",
        "first_token_time",
        "full_response_time",
        "engine_queue",
        "prefill",
        "decode",
        "no_reasoning",
    ] {
        assert!(said.contains(part), "{part} is missing:\n{said}");
    }
    let missing =
        run("pitot", &["up", "--model", "/no/such/folder", "--once", question, "--set", &journal], &[]);
    assert!(!missing.status.success());
    let why = String::from_utf8_lossy(&missing.stderr);
    assert!(why.contains("/no/such/folder"), "{why}");
}
