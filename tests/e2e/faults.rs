//! What goes wrong behind the gateway, and what the caller and the record say of it.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Open, Reply, chat, post_bytes};
use crate::pitot::{MODEL, Pitot, SOON, eventually};
use crate::upstream::{Act, Upstream, begin_event_stream, event_stream, json_reply};

const DELTA: &str = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"},\"finish_reason\":null}]}\n\n";
const FINISH: &str =
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn request(more: &Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn ask(upstream: &Upstream, more: &Value, arguments: &[&str]) -> (Reply, Value) {
    let pitot = Pitot::serve(&upstream.address, arguments);
    let reply = chat(&pitot.address, &request(more));
    let record = pitot.record(reply.id());
    (reply, record)
}

#[test]
fn bytes_pass_unchanged_and_exactly_our_usage_chunk_is_cut() {
    let odd = ": OPENROUTER PROCESSING\n\n";
    let crlf = "data:{\"choices\":[{\"delta\":{\"content\":\"\\u65e5 日\"}}],\"big\":123456789012345678901234567890}\r\n\r\n";
    let upstream = Upstream::play(event_stream(&[odd, crlf, DELTA, FINISH, USAGE, DONE]));
    let (reply, record) = ask(&upstream, &json!({"stream": true}), &[]);
    assert_eq!(reply.text(), [odd, crlf, DELTA, FINISH, DONE].concat());
    assert!(reply.complete);
    assert_eq!(record["outcome"], "success", "{record}");
    assert_eq!(record["output_tokens"], 2, "{record}");
    let sent: Value = serde_json::from_slice(&upstream.body()).unwrap();
    assert_eq!(sent["stream_options"]["include_usage"], true);

    let asked = json!({"stream": true, "stream_options": {"include_usage": true}});
    let (reply, _) = ask(&upstream, &asked, &[]);
    assert_eq!(reply.text(), [odd, crlf, DELTA, FINISH, USAGE, DONE].concat());
}

#[test]
fn a_whole_reply_passes_unchanged() {
    let body = "{\"b\":1,  \"a\":123456789012345678901234567890,\n\"choices\":[{\"message\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1,\"total_tokens\":2}} \n";
    let upstream = Upstream::play(json_reply("200 OK", body));
    let (reply, record) = ask(&upstream, &json!({}), &[]);
    assert_eq!(reply.text(), body);
    assert_eq!(record["outcome"], "success", "{record}");
    assert_eq!(record["first_token_time_ns"], Value::Null);
    assert_eq!(record["first_token_time_mark"], "not_streamed", "{record}");
}

#[test]
fn an_error_of_the_upstream_passes_with_its_status() {
    let body = "{\"error\":{\"message\":\"too hot\",\"type\":\"x\",\"code\":429}}";
    let upstream = Upstream::play(json_reply("429 Too Many Requests", body));
    let (reply, record) = ask(&upstream, &json!({}), &[]);
    assert_eq!((reply.status, reply.text().as_str()), (429, body));
    assert_eq!(record["outcome"], "http_error", "{record}");
}

#[test]
fn a_stream_that_dies_gets_an_error_event_and_no_end() {
    let mut acts = begin_event_stream(&[DELTA]);
    acts.push(Act::Close);
    let (reply, record) = ask(&Upstream::play(acts), &json!({"stream": true}), &[]);
    assert_eq!(reply.status, 200);
    let text = reply.text();
    assert!(text.starts_with(DELTA) && text.contains("{\"error\":{") && !text.contains("[DONE]"), "{text}");
    assert_eq!(record["outcome"], "interrupted", "{record}");
}

#[test]
fn an_error_event_inside_a_stream_is_an_interruption() {
    let error = "data: {\"error\":{\"message\":\"gone\"}}\n\n";
    let (reply, record) =
        ask(&Upstream::play(event_stream(&[DELTA, error, DONE])), &json!({"stream": true}), &[]);
    assert_eq!(reply.text(), [DELTA, error, DONE].concat());
    assert_eq!(record["outcome"], "interrupted", "{record}");
}

#[test]
fn nobody_behind_is_a_503_to_try_again() {
    let pitot =
        Pitot::serve("unix:/tmp/pitot-test-no-such-engine.sock", &["--set", "upstream.control_socket=none"]);
    let reply = chat(&pitot.address, &request(&json!({"stream": true})));
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert!(reply.header("retry-after").is_some(), "{}", reply.head);
    assert_eq!(reply.json()["error"]["code"], "upstream_unreachable");
    let record = pitot.record(reply.id());
    assert_eq!(record["outcome"], "http_error", "{record}");
    assert_eq!(record["reason"], "upstream_unreachable", "{record}");
    assert_eq!(crate::client::get(&pitot.admin, "/readyz").unwrap().status, 503);
    assert_eq!(crate::client::get(&pitot.admin, "/livez").unwrap().status, 200);
}

#[test]
fn silence_before_the_first_token_is_a_timeout() {
    let upstream = Upstream::play(vec![Act::AwaitClose]);
    let (reply, record) = ask(&upstream, &json!({}), &["--set", "limits.first_token_timeout_ms=200"]);
    assert_eq!(reply.status, 504, "{}", reply.text());
    assert_eq!(record["outcome"], "timeout", "{record}");
    assert_eq!(record["reason"], "deadline_first_token", "{record}");
    upstream.closed();
}

#[test]
fn silence_within_a_stream_is_a_timeout_told_by_an_event() {
    let mut acts = begin_event_stream(&[DELTA]);
    acts.push(Act::AwaitClose);
    let upstream = Upstream::play(acts);
    let (reply, record) = ask(&upstream, &json!({"stream": true}), &["--set", "limits.idle_timeout_ms=200"]);
    assert!(reply.text().contains("{\"error\":{") && !reply.text().contains("[DONE]"), "{}", reply.text());
    assert_eq!(record["outcome"], "timeout", "{record}");
    assert_eq!(record["reason"], "deadline_idle", "{record}");
    upstream.closed();
}

#[test]
fn a_request_on_a_connection_that_died_is_sent_again() {
    // The upstream answers one request on a connection and closes it when the next one comes.
    let mut acts = json_reply(
        "200 OK",
        "{\"choices\":[{\"message\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1,\"total_tokens\":2}}",
    );
    acts.push(Act::Pause(Duration::from_millis(50)));
    acts.push(Act::Close);
    let upstream = Upstream::play(acts);
    let pitot = Pitot::serve(&upstream.address, &[]);
    for _ in 0..5 {
        let reply = chat(&pitot.address, &request(&json!({})));
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
}

#[test]
fn an_engine_killed_within_a_stream_is_an_interruption_and_comes_back() {
    let pitot = Pitot::up(&[]);
    let body = json!({
        "model": MODEL, "stream": true, "max_tokens": 2000, "ignore_eos": true, "temperature": 0,
        "messages": [{"role": "user", "content": "Tell me a long story."}],
    });
    let request = post_bytes("/v1/chat/completions", "x-request-id: killed\r\n", body.to_string().as_bytes());
    let mut open = Open::send(&pitot.address, &request).unwrap();
    open.read_until("\"content\":\"");
    let engine = pitot.engine().expect("the engine reports its state");
    let process = engine["process_id"].as_u64().unwrap();
    assert!(Command::new("kill").args(["-9", &process.to_string()]).status().unwrap().success());
    let rest = open.read_until("{\"error\":{");
    assert!(!rest.contains("[DONE]"), "{rest}");
    let record = pitot.record("killed");
    assert_eq!(record["outcome"], "interrupted", "{record}");

    let short = json!({"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]});
    let reply = eventually("the next request succeeds", SOON, || {
        let reply = chat(&pitot.address, &short);
        (reply.status == 200).then_some(reply)
    });
    assert_eq!(pitot.record(reply.id())["outcome"], "success");
    let again = eventually("the engine reports again", SOON, || pitot.engine());
    assert_ne!(again["process_id"].as_u64(), Some(process));
}

#[test]
fn statistics_turned_off_leave_records_and_journal() {
    let upstream = Upstream::play(event_stream(&[DELTA, FINISH, USAGE, DONE]));
    let pitot = Pitot::serve(&upstream.address, &["--disable-log-stats"]);
    let reply = chat(&pitot.address, &request(&json!({"stream": true})));
    assert_eq!(pitot.record(reply.id())["outcome"], "success");
    let metrics = crate::client::get(&pitot.admin, "/metrics").unwrap().text();
    assert!(!metrics.contains("pitot_requests_total{"), "{metrics}");
    eventually("the journal has the request", SOON, || (pitot.journal().len() == 1).then_some(()));
}

#[test]
fn a_compressed_reply_passes_as_it_is() {
    // The gateway asks for no compression; an upstream that compresses all the same gets its bytes passed on.
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 6\r\n\r\n";
    let upstream = Upstream::play(vec![Act::Send([head.as_bytes(), b"\x1f\x8b{a:}"].concat())]);
    let (reply, _) = ask(&upstream, &json!({}), &["--enable-per-request-metrics"]);
    assert_eq!(reply.body, b"\x1f\x8b{a:}");
    assert_eq!(reply.header("content-encoding"), Some("gzip"));
}

#[test]
fn broken_framing_within_a_stream_is_told() {
    let mut acts = begin_event_stream(&[DELTA]);
    acts.push(Act::Send(b"zz\r\nfoo\r\n".to_vec()));
    acts.push(Act::Close);
    let (reply, record) = ask(&Upstream::play(acts), &json!({"stream": true}), &[]);
    assert!(reply.text().contains("{\"error\":{") && !reply.text().contains("[DONE]"), "{}", reply.text());
    assert_eq!(record["outcome"], "interrupted", "{record}");
}

#[test]
fn rates_are_told_apart_by_key_and_stretch() {
    // The digest of "abc" (FIPS 180-2, appendix B.1).
    let alias = "measure.key_aliases=team-a=ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let upstream = Upstream::play(event_stream(&[DELTA, FINISH, USAGE, DONE]));
    let pitot = Pitot::serve(&upstream.address, &["--set", alias]);
    let body = request(&json!({"stream": true})).to_string();
    let headers = "authorization: Bearer abc\r\n";
    let sent = post_bytes("/v1/chat/completions", headers, body.as_bytes());
    let reply = Open::send(&pitot.address, &sent).unwrap().reply().unwrap();
    let record = pitot.record(reply.id());
    assert_eq!(record["key_alias"], "team-a", "{record}");
    let rates = |question: &str| crate::client::get(&pitot.admin, &format!("/rates?{question}")).unwrap();
    let seconds = record["accepted_unix_ms"].as_u64().unwrap() / 1000;
    let around = rates(&format!("from={}&to={}&by=key_alias", seconds - 60, seconds + 60)).json();
    assert_eq!(around["range"]["all"]["requests"], 1, "{around}");
    assert_eq!(
        (&around["groups"][0]["name"], &around["groups"][0]["success_rate"]),
        (&json!("team-a"), &json!(1.0))
    );
    let before = rates(&format!("from={}&to={}", seconds - 7200, seconds - 3600)).json();
    assert_eq!(before["range"]["all"]["requests"], 0, "{before}");
    for wrong in ["from=soon", "by=anyone", "from=2&to=1", "form=1"] {
        assert_eq!(rates(wrong).status, 400, "{wrong}");
    }
    let journal = std::fs::read_to_string(pitot.folder().join("journal/requests.jsonl")).unwrap_or_default();
    assert!(!journal.contains("abc"), "a key never leaves the gateway");
}
