//! The control channel as a gateway sees it.
//!
//! Apart from HTTP, with which it shares only the requests' names. Must not know: bodies.

use pitot_control::{FinishReason, FromEngine, FromGateway, REQUEST_ID_HEADER, RequestStamps, VersionRange};
use pitot_runtime::testing::ToyRunner;
use serde_json::json;

use crate::harness::{Gateway, chat_body, read_answer, start};

fn stamps(message: FromEngine) -> Option<RequestStamps> {
    match message {
        FromEngine::Stamps(stamps) => Some(stamps),
        _ => None,
    }
}

#[test]
fn the_handshake_names_the_engine() {
    let toy = start(ToyRunner::new(256), &[]);
    let (mut gateway, hello) = Gateway::greet(&toy);
    let FromEngine::Hello { models, process_id, .. } = hello else { panic!("{hello:?}") };
    assert_eq!((models, process_id), (vec!["toy".to_owned(), "other".to_owned()], std::process::id()));
    let Some(FromEngine::State(state)) = gateway.hear() else { panic!("the state comes first") };
    assert_eq!((state.context_tokens_max, state.requests_running, state.draining), (256, 0, false));
    assert!(state.at_ns > 0);
    gateway.say(&FromGateway::Ping { nonce: 7 });
    let pong = |message| match message {
        FromEngine::Pong { nonce } => Some(nonce),
        _ => None,
    };
    assert_eq!(gateway.await_message(pong), 7);
}

#[test]
fn versions_that_do_not_meet_are_refused() {
    let toy = start(ToyRunner::new(256), &[]);
    let mut gateway = Gateway::connect(&toy);
    assert!(matches!(gateway.hear(), Some(FromEngine::Hello { .. })));
    let versions = VersionRange { lowest: 90, highest: 99 };
    gateway.say(&FromGateway::Hello { versions, gateway_version: "9".to_owned() });
    assert!(matches!(gateway.hear(), Some(FromEngine::Refused { reason }) if reason.contains("90 to 99")));
    assert_eq!(gateway.hear(), None);
    let mut rude = Gateway::connect(&toy);
    rude.say(&FromGateway::Drain);
    assert!(matches!(rude.hear(), Some(FromEngine::Hello { .. })));
    assert!(matches!(rude.hear(), Some(FromEngine::Refused { .. })));
    assert!(!toy.engine.is_draining(), "nothing is done before the handshake");
}

#[test]
fn stamps_are_there_before_the_end_of_the_answer() {
    let toy = start(ToyRunner::new(256), &[]);
    let (mut gateway, _) = Gateway::greet(&toy);
    assert!(matches!(gateway.hear(), Some(FromEngine::State(_))));
    for round in 0..20 {
        let name = format!("r{round}");
        let header = format!("{REQUEST_ID_HEADER}: {name}\r\n");
        let body =
            chat_body(json!({ "max_tokens": 4, "n": 2, "ignore_eos": true, "stream": round % 2 == 0 }));
        assert_eq!(toy.ask("POST", "/v1/chat/completions", &header, &body).status, 200);
        let arrived: Vec<RequestStamps> = gateway.arrived().into_iter().filter_map(stamps).collect();
        let [stamps] = arrived.as_slice() else { panic!("one a request, at once: {arrived:?}") };
        assert_eq!(stamps.request_id, name);
        assert_eq!((stamps.tokens_prompt, stamps.tokens_output, stamps.finish), (6, 8, FinishReason::Length));
        assert_eq!(stamps.tokens_cached, Some(0), "nothing came before it");
        let instants = [stamps.queued_ns, stamps.scheduled_ns, stamps.first_ns, stamps.last_ns];
        assert!(instants.is_sorted() && instants.iter().all(Option::is_some), "{stamps:?}");
        let output = &stamps.output;
        assert_eq!(output.content.tokens + output.reasoning.tokens + output.tokens_unclassified, 8);
    }
}

#[test]
fn the_cached_part_of_a_prompt_is_told_to_callers_and_gateways() {
    let toy = start(ToyRunner::new(256), &["memory.block_tokens=16"]);
    let (mut gateway, _) = Gateway::greet(&toy);
    assert!(matches!(gateway.hear(), Some(FromEngine::State(_))), "it has joined");
    let header = format!("{REQUEST_ID_HEADER}: r\r\n");
    let ask = |more: serde_json::Value| {
        let mut body = json!({ "prompt": "x".repeat(40), "max_tokens": 1, "temperature": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = toy.ask("POST", "/v1/completions", &header, &body.to_string()).json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    // Of 40 tokens two blocks of 16 are full. A prompt with several choices counts once.
    for (more, cached) in [
        (json!({}), 0),
        (json!({}), 32),
        (json!({ "n": 3 }), 32),
        (json!({ "cache_salt": "mine", "priority": -2 }), 0),
        (json!({ "cache_salt": "mine" }), 32),
    ] {
        assert_eq!(ask(more.clone()), cached, "{more}");
        assert_eq!(gateway.await_message(stamps).tokens_cached, Some(cached), "{more}");
    }
}

#[test]
fn a_gateway_aborts_a_request() {
    let toy = start(ToyRunner::new(100_000), &[]);
    let (mut gateway, _) = Gateway::greet(&toy);
    let header = format!("{REQUEST_ID_HEADER}: long\r\n");
    let stream = toy.send("POST", "/v1/chat/completions", &header, &chat_body(json!({ "ignore_eos": true })));
    toy.wait_for(|state| state.running == 1);
    gateway.say(&FromGateway::Abort { request_id: "unknown".to_owned() });
    gateway.say(&FromGateway::Abort { request_id: "long".to_owned() });
    let answer = read_answer(stream);
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "abort");
    assert_eq!(gateway.await_message(stamps).finish, FinishReason::Abort);
}

#[test]
fn stamps_are_sent_without_a_line_of_statistics() {
    let toy = start(ToyRunner::new(256), &["metrics.log_stats=false"]);
    let (mut gateway, _) = Gateway::greet(&toy);
    assert!(matches!(gateway.hear(), Some(FromEngine::State(_))), "it has joined");
    let header = format!("{REQUEST_ID_HEADER}: r\r\n");
    toy.ask("POST", "/v1/chat/completions", &header, &chat_body(json!({ "max_tokens": 2 })));
    assert_eq!(gateway.await_message(stamps).tokens_output, 2);
}
