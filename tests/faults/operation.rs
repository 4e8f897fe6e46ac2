//! What the gateway shows of itself while it works: probes, families of metrics, limits, the journal, draining.
//!
//! Apart from the cases, which are one request each: here it is the gateway as a whole that is looked at. Must not
//! know: cases.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use pitot_tests::faults::admin;
use pitot_tests::faults::dialect::{Dialect, Finish, GENERATING, Mode, Usage, answer, usage};
use pitot_tests::faults::gateway::{Gateway, Profile};
use pitot_tests::faults::player::Player;
use pitot_tests::faults::script::Play;

const COUNTS: Usage = Usage { input: 7, output: 5, reasoning: None, cached: None };
/// Nobody listens there.
const NOBODY: &str = "http://127.0.0.1:9";

fn started(player: &Player, more: &[&str]) -> Gateway {
    Gateway::start(&format!("http://{}", player.address), Profile::Default, more).unwrap()
}

/// Sends a request and gives its connection.
fn open(gateway: SocketAddr, dialect: Dialect, mode: Mode, model: &str) -> TcpStream {
    let body = dialect.request(mode, "").replace("@MODEL@", model);
    let path = dialect.path();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: g\r\nx-request-id: {model}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    let mut stream = TcpStream::connect(gateway).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    stream
}

fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    // A connection that breaks has said what it had to say.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads until this text has come.
fn until(stream: &mut TcpStream, text: &str) -> String {
    let (mut seen, mut byte) = (Vec::new(), [0]);
    while !seen.ends_with(text.as_bytes()) {
        assert_eq!(
            stream.read(&mut byte).unwrap(),
            1,
            "{:?} and no {text:?}",
            String::from_utf8_lossy(&seen)
        );
        seen.push(byte[0]);
    }
    String::from_utf8_lossy(&seen).into_owned()
}

fn page(admin: SocketAddr, path: &str) -> (u16, String) {
    let reply = admin::page(admin, path).unwrap();
    (reply.status.unwrap(), String::from_utf8_lossy(&reply.body).into_owned())
}

/// The sum of a family's samples whose line holds all of these texts.
fn sum(metrics: &str, name: &str, labels: &[&str]) -> f64 {
    let lines = metrics.lines().filter(|line| {
        line.split(['{', ' ']).next() == Some(name) && labels.iter().all(|label| line.contains(label))
    });
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[test]
fn a_gateway_without_an_engine_is_alive_and_not_ready() {
    let gateway = Gateway::start(NOBODY, Profile::Default, &[]).unwrap();
    assert_eq!(page(gateway.admin, "/livez").0, 200);
    assert_eq!(page(gateway.admin, "/readyz").0, 503);
    let began = Instant::now();
    let reply = rest(open(gateway.address, Dialect::Chat, Mode::Stream, "nobody"));
    assert!(reply.starts_with("HTTP/1.1 503"), "{reply}");
    assert!(reply.to_ascii_lowercase().contains("\r\nretry-after: "), "{reply}");
    assert!(began.elapsed() < Duration::from_secs(2), "it took {:?}", began.elapsed());
}

/// A total of a whole reply and a first-token time of a stream are never in one histogram; every request that ended
/// is counted once; and a long one falls into a finite bucket.
#[test]
fn families_are_apart_and_finite() {
    let player = Player::listen("127.0.0.1:0").unwrap();
    let gateway = started(&player, &[]);
    for (mode, times) in [(Mode::Stream, 2), (Mode::Whole, 3)] {
        for dialect in GENERATING {
            for time in 0..times {
                let model = format!("{}-{}-{time}", dialect.name(), mode.name());
                let _run = player.expect(&model, vec![answer(dialect, mode, &COUNTS)]);
                let reply = rest(open(gateway.address, dialect, mode, &model));
                assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
                admin::record(gateway.admin, &model).unwrap();
            }
        }
    }
    let began = Instant::now();
    let (status, metrics) = page(gateway.admin, "/metrics");
    assert_eq!(status, 200);
    assert!(began.elapsed() < Duration::from_millis(500), "a scrape took {:?}", began.elapsed());
    let count = |name: &str, labels: &[&str]| sum(&metrics, name, labels);
    assert_eq!(count("pitot_requests_total", &["outcome=\"success\""]), 20.0);
    assert_eq!(count("pitot_requests_total", &[]), 20.0);
    assert_eq!(count("pitot_first_token_seconds_count", &[]), 8.0);
    assert_eq!(count("pitot_full_response_seconds_count", &["streaming=\"true\""]), 8.0);
    assert_eq!(count("pitot_full_response_seconds_count", &["streaming=\"false\""]), 12.0);
    assert_eq!(count("pitot_time_per_token_seconds_count", &[]), 8.0);
    assert_eq!(count("pitot_input_tokens_total", &[]), 7.0 * 20.0);
    assert_eq!(count("pitot_output_tokens_total", &[]), 5.0 * 20.0);
    let bounds = metrics.lines().filter(|line| line.starts_with("pitot_full_response_seconds_bucket"));
    let bounds = bounds.filter_map(|line| line.split("le=\"").nth(1)?.split('"').next()?.parse::<f64>().ok());
    let largest = bounds.filter(|bound| bound.is_finite()).fold(0.0, f64::max);
    assert!(largest >= 3600.0, "the largest finite bucket ends at {largest} s");
}

/// Each request has one outcome, so the six rates are a whole; a 400 is in the denominator, other paths are not.
#[test]
fn rates_sum_to_one() {
    let player = Player::listen("127.0.0.1:0").unwrap();
    let gateway = started(&player, &[]);
    let chat = Dialect::Chat;
    for (model, play) in [
        ("good", answer(chat, Mode::Stream, &COUNTS)),
        ("bad-request", Play::json(400, chat.error_body())),
        ("error", Play::json(500, chat.error_body())),
        ("died", Play::sse().text(chat, "x").close()),
    ] {
        let _run = player.expect(model, vec![play]);
        rest(open(gateway.address, chat, Mode::Stream, model));
        admin::record(gateway.admin, model).unwrap();
    }
    let reply = admin::page(gateway.address, "/v9/nothing").unwrap();
    assert_eq!(reply.status, Some(404));
    let (_, text) = page(gateway.admin, "/rates");
    let rates: serde_json::Value = serde_json::from_str(&text).unwrap();
    let window = find(&rates, "requests").unwrap_or_else(|| panic!("no rates: {text}"));
    assert_eq!(window["requests"], 4, "{window}");
    let rate = |name: &str| window[name].as_f64().unwrap_or_else(|| panic!("no {name}: {window}"));
    let names = [
        "success_rate",
        "cancelled_rate",
        "timeout_rate",
        "http_error_rate",
        "interruption_rate",
        "other_rate",
    ];
    let rates = names.map(rate);
    assert_eq!(rates, [0.25, 0.0, 0.0, 0.25, 0.25, 0.25]);
    assert!((rates.iter().sum::<f64>() - 1.0).abs() < 1e-12);
}

/// The first object within that has this key.
fn find<'v>(value: &'v serde_json::Value, key: &str) -> Option<&'v serde_json::Value> {
    if value.get(key).is_some_and(serde_json::Value::is_number) {
        return Some(value);
    }
    let inside: Vec<&serde_json::Value> = match value {
        serde_json::Value::Object(members) => members.values().collect(),
        serde_json::Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    };
    inside.into_iter().find_map(|value| find(value, key))
}

/// One more than the limit is refused with a 429 that says when to try again, and is counted.
#[test]
fn one_request_too_many_is_told_so() {
    let player = Player::listen("127.0.0.1:0").unwrap();
    let gateway = started(&player, &["limits.requests_in_flight_max=1"]);
    let play =
        Play::sse().text(Dialect::Chat, "first").pause(400).close_with(Dialect::Chat, Finish::Stop, &COUNTS);
    let _run = player.expect("holder", vec![play]);
    let mut holder = open(gateway.address, Dialect::Chat, Mode::Stream, "holder");
    until(&mut holder, "first");
    let reply = rest(open(gateway.address, Dialect::Chat, Mode::Stream, "refused"));
    assert!(reply.starts_with("HTTP/1.1 429"), "{reply}");
    assert!(reply.to_ascii_lowercase().contains("\r\nretry-after: "), "{reply}");
    assert!(rest(holder).contains("[DONE]"));
    let record = admin::record(gateway.admin, "refused").unwrap();
    assert_eq!((&record["outcome"], &record["reason"]), (&"http_error".into(), &"too_many_requests".into()));
    assert_eq!(record["attempts"], 0);
    let (_, rates) = page(gateway.admin, "/rates");
    let rates: serde_json::Value = serde_json::from_str(&rates).unwrap();
    let text = rates.to_string();
    assert!(text.contains("\"requests\":2"), "a refused request is in the denominator: {text}");
}

/// Told to stop, a gateway is not ready any more, takes nothing new, and lets a stream finish.
#[test]
fn a_stream_finishes_while_the_gateway_stops() {
    let player = Player::listen("127.0.0.1:0").unwrap();
    let mut gateway = started(&player, &[]);
    let play = Play::sse().text(Dialect::Chat, "first").pause(1500).text(Dialect::Chat, "last");
    let _run = player.expect("long", vec![play.close_with(Dialect::Chat, Finish::Stop, &COUNTS)]);
    let mut stream = open(gateway.address, Dialect::Chat, Mode::Stream, "long");
    until(&mut stream, "first");
    gateway.terminate();
    let told = Instant::now();
    let ready = loop {
        let status = admin::page(gateway.admin, "/readyz").ok().and_then(|reply| reply.status);
        if status == Some(503) || told.elapsed() > Duration::from_millis(700) {
            break status;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(ready, Some(503), "readiness while a stream drains");
    let reply = rest(stream);
    assert!(reply.contains("last") && reply.contains("[DONE]"), "{reply}");
    assert!(gateway.ended().is_some_and(|status| status.success()), "it ends by itself, and well");
    let journal = std::fs::read_to_string(gateway.folder().join("journal/requests.jsonl")).unwrap();
    let record: serde_json::Value = serde_json::from_str(journal.lines().next().unwrap()).unwrap();
    assert_eq!(record["outcome"], "success", "{record}");
}

/// A stream that outlasts the time for draining is cut, told so by an error event, and in the journal.
#[test]
fn a_stream_that_outlasts_the_drain_is_cut_and_counted() {
    let player = Player::listen("127.0.0.1:0").unwrap();
    let mut gateway = started(&player, &["limits.drain_timeout_ms=300"]);
    let play = Play::sse().text(Dialect::Chat, "first").await_close();
    let _run = player.expect("endless", vec![play]);
    let mut stream = open(gateway.address, Dialect::Chat, Mode::Stream, "endless");
    until(&mut stream, "first");
    gateway.terminate();
    let reply = rest(stream);
    assert!(!reply.contains("[DONE]"), "an end was invented: {reply}");
    assert!(gateway.ended().is_some(), "it ends by itself");
    let journal =
        std::fs::read_to_string(gateway.folder().join("journal/requests.jsonl")).unwrap_or_default();
    let record: serde_json::Value =
        journal.lines().next().map(|line| serde_json::from_str(line).unwrap()).unwrap_or_default();
    assert_eq!(record["outcome"], "interrupted", "the cut stream is in the journal: {journal:?}");
}

/// The terminal outcome is written once for each request of a caller, whatever became of it.
#[test]
fn every_request_is_in_the_journal_once() {
    let player = Player::listen("127.0.0.1:0").unwrap();
    let gateway = started(&player, &[]);
    let chat = Dialect::Chat;
    let plays = [
        ("good", answer(chat, Mode::Stream, &COUNTS)),
        ("error", Play::json(500, chat.error_body())),
        ("died", Play::sse().text(chat, "x").close()),
        ("empty", Play::sse().close_with(chat, Finish::Stop, &usage(3, 0))),
    ];
    for (model, play) in plays.clone() {
        let _run = player.expect(model, vec![play]);
        rest(open(gateway.address, chat, Mode::Stream, model));
        admin::record(gateway.admin, model).unwrap();
    }
    drop(open(gateway.address, chat, Mode::Stream, "left"));
    let path = gateway.folder().join("journal/requests.jsonl");
    let until = Instant::now() + Duration::from_secs(5);
    let lines = loop {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<serde_json::Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if lines.len() >= 5 || Instant::now() > until {
            break lines;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut ids: Vec<_> = lines.iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!((lines.len(), ids.len()), (5, 5), "{lines:?}");
}
