//! Real clients of every wire format, unaware of the gateway: openai and anthropic for Python and Node, and the AI
//! SDK.
//!
//! Apart from `answers`, which looks at our own client's bytes. Replies that our engine does not speak are played.
//! The recordings are of the shapes that the formats' public references give.

use std::path::PathBuf;
use std::process::Command;

use pitot_tests::faults::player::Player;
use pitot_tests::faults::script::Play;
use serde_json::{Value, json};

use crate::pitot::{MODEL, Pitot, shared};

/// More than any client asks for one model.
const REPEATS: usize = 8;

#[track_caller]
fn check(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn clients(file: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/clients")).join(file)
}

/// The script beside the installed packages, where Node finds them.
fn node(arguments: &[&str]) -> Command {
    let folder = std::env::var_os("PITOT_TEST_NODE")
        .expect("PITOT_TEST_NODE must name a folder with the packages of tests/clients; tests/run sets it");
    let script = PathBuf::from(folder).join("formats.mjs");
    std::fs::copy(clients("formats.mjs"), &script).unwrap();
    let mut command = Command::new("node");
    command.arg(script).args(arguments);
    command
}

fn events(named: bool, events: &[Value], end: &str) -> Play {
    let name = |event: &Value| match named {
        true => format!("event: {}\n", event["type"].as_str().unwrap()),
        false => String::new(),
    };
    events
        .iter()
        .fold(Play::sse(), |play, event| play.send(format!("{}data: {event}\n\n", name(event))))
        .send(end)
        .end()
}

fn chat() -> [(&'static str, Play); 2] {
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "wave", "arguments": "{\"hand\":\"left\"}"}});
    let message =
        json!({"role": "assistant", "content": "Hello world", "reasoning": "Hm.", "tool_calls": [call]});
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8});
    let whole = json!({
        "id": "c1", "object": "chat.completion", "created": 1, "model": "chat-whole",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": null}], "usage": usage,
    });
    let chunk = |delta: Value, finish: Value| {
        json!({
            "id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "chat-stream",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": null}],
        })
    };
    let begun = json!({"index": 0, "id": "call_1", "type": "function", "function": {"name": "wave", "arguments": ""}});
    let rest = json!({"index": 0, "function": {"arguments": "{\"hand\":\"left\"}"}});
    let chunks = [
        chunk(json!({"role": "assistant", "content": ""}), Value::Null),
        chunk(json!({"reasoning": "Hm."}), Value::Null),
        chunk(json!({"content": "Hello"}), Value::Null),
        chunk(json!({"content": " world"}), Value::Null),
        chunk(json!({"tool_calls": [begun]}), Value::Null),
        chunk(json!({"tool_calls": [rest]}), Value::Null),
        chunk(json!({}), json!("tool_calls")),
    ];
    let last = json!({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "chat-stream", "choices": [], "usage": usage});
    let stream = chunks.iter().fold(Play::sse(), |play, chunk| play.send(format!("data: {chunk}\n\n")));
    let stream = stream.if_asked(format!("data: {last}\n\n")).send("data: [DONE]\n\n").end();
    [("chat-whole", Play::json(200, whole.to_string())), ("chat-stream", stream)]
}

fn completions() -> [(&'static str, Play); 2] {
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3});
    let chunk = |text: &str, finish: Value| {
        json!({
            "id": "t1", "object": "text_completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "text": text, "finish_reason": finish, "logprobs": null}],
        })
    };
    let mut whole = chunk(" world", json!("stop"));
    whole["usage"] = usage.clone();
    let last = json!({"id": "t1", "object": "text_completion", "created": 1, "model": "m", "choices": [], "usage": usage});
    let chunks = [chunk(" wor", Value::Null), chunk("ld", json!("stop")), last];
    [
        ("completions-whole", Play::json(200, whole.to_string())),
        ("completions-stream", events(false, &chunks, "data: [DONE]\n\n")),
    ]
}

fn responses() -> [(&'static str, Play); 2] {
    let part = json!({"type": "output_text", "text": "Hello world", "annotations": []});
    let item =
        json!({"id": "m1", "type": "message", "role": "assistant", "status": "completed", "content": [part]});
    let response = |status: &str, output: Value, usage: Value| {
        json!({
            "id": "r1", "object": "response", "created_at": 1, "status": status, "model": "responses", "output": output,
            "error": null, "incomplete_details": null, "instructions": null, "metadata": {}, "parallel_tool_calls": true,
            "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0, "usage": usage,
        })
    };
    let usage = json!({
        "input_tokens": 3, "output_tokens": 5, "total_tokens": 8,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    });
    let whole = response("completed", json!([item]), usage);
    let begun = response("in_progress", json!([]), Value::Null);
    let place = json!({"output_index": 0, "item_id": "m1", "content_index": 0});
    let with = |kind: &str, more: Value| {
        let mut event = place.clone();
        event["type"] = kind.into();
        for (name, value) in more.as_object().unwrap() {
            event[name] = value.clone();
        }
        event
    };
    let mut empty = item.clone();
    (empty["content"], empty["status"]) = (json!([]), json!("in_progress"));
    let no_text = json!({"type": "output_text", "text": "", "annotations": []});
    let mut all = vec![
        json!({"type": "response.created", "response": begun}),
        with("response.output_item.added", json!({"item": empty})),
        with("response.content_part.added", json!({"part": no_text})),
        with("response.output_text.delta", json!({"delta": "Hello", "logprobs": []})),
        with("response.output_text.delta", json!({"delta": " world", "logprobs": []})),
        with("response.output_text.done", json!({"text": "Hello world", "logprobs": []})),
        with("response.content_part.done", json!({"part": part})),
        with("response.output_item.done", json!({"item": item})),
        json!({"type": "response.completed", "response": whole}),
    ];
    for (number, event) in all.iter_mut().enumerate() {
        event["sequence_number"] = number.into();
    }
    [("responses-whole", Play::json(200, whole.to_string())), ("responses-stream", events(true, &all, ""))]
}

fn messages() -> [(&'static str, Play); 2] {
    let message = |content: Value, stop: Value, output: u32| {
        json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": "messages", "content": content,
            "stop_reason": stop, "stop_sequence": null, "usage": {"input_tokens": 3, "output_tokens": output},
        })
    };
    let thought = json!({"type": "thinking", "thinking": "Hm.", "signature": "c2ln"});
    let whole = message(json!([thought, {"type": "text", "text": "Hello world"}]), json!("end_turn"), 5);
    let delta =
        |index: u32, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let start = |index: u32, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let stop = |index: u32| json!({"type": "content_block_stop", "index": index});
    let all = [
        json!({"type": "message_start", "message": message(json!([]), Value::Null, 1)}),
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "Hm."})),
        delta(0, json!({"type": "signature_delta", "signature": "c2ln"})),
        stop(0),
        json!({"type": "ping"}),
        start(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "Hello"})),
        delta(1, json!({"type": "text_delta", "text": " world"})),
        stop(1),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null}, "usage": {"output_tokens": 5}}),
        json!({"type": "message_stop"}),
    ];
    [("messages-whole", Play::json(200, whole.to_string())), ("messages-stream", events(true, &all, ""))]
}

/// A gateway before an upstream that plays every format.
fn played(arguments: &[&str]) -> (Pitot, Player) {
    let player = Player::listen("127.0.0.1:0").unwrap();
    for (model, play) in [chat(), completions(), responses(), messages()].into_iter().flatten() {
        player.expect(model, vec![play; REPEATS]);
    }
    let pitot = Pitot::serve(&format!("http://{}", player.address), arguments);
    (pitot, player)
}

/// Every request of a client ended well, and each stream has a first token.
#[track_caller]
fn check_records(pitot: &Pitot, at_least: usize) {
    let list = crate::client::get(&pitot.admin, "/requests").unwrap().json();
    let records = list["requests"].as_array().or(list.as_array()).unwrap();
    assert!(records.len() >= at_least, "{list}");
    for listed in records {
        let record = pitot.record(listed["id"].as_str().unwrap());
        assert_eq!(record["outcome"], "success", "{record}");
        let streamed = record["stream"].as_bool().unwrap();
        assert_eq!(record["first_token_time_ns"].is_u64(), streamed, "{record}");
        assert!(record["output_tokens"].is_u64(), "{record}");
    }
}

#[test]
fn python_clients_speak_every_format_through_the_gateway() {
    let python = std::env::var("PITOT_TEST_PYTHON")
        .expect("PITOT_TEST_PYTHON must name a Python with openai and anthropic; tests/run sets it");
    let (pitot, player) = played(&["--enable-per-request-metrics"]);
    check(Command::new(python).arg(clients("formats.py")).arg(format!("http://{}", pitot.address)));
    check_records(&pitot, 8);
    assert_eq!(player.strays(), [""; 0]);
}

#[test]
fn node_clients_speak_every_format_through_the_gateway() {
    let (pitot, player) = played(&["--enable-per-request-metrics"]);
    check(&mut node(&[&format!("http://{}", pitot.address), "played", ""]));
    check_records(&pitot, 10);
    assert_eq!(player.strays(), [""; 0]);
}

#[test]
fn node_clients_get_the_engines_answer() {
    let url = format!("http://{}", shared().address);
    check(&mut node(&[&url, "engine", MODEL]));
}
