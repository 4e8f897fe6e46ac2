//! Bytes that no well-behaved caller sends: two lengths, broken chunks, requests ahead of their turn, callers that
//! never read. The gateway stays in step with its upstream and within its memory.
//!
//! Apart from the cases, whose requests are proper. Must not know: cases.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use pitot_tests::faults::admin;
use pitot_tests::faults::dialect::{Dialect, Finish, Mode, Usage, answer};
use pitot_tests::faults::gateway::{Gateway, Profile};
use pitot_tests::faults::player::Player;
use pitot_tests::faults::script::Play;

const COUNTS: Usage = Usage { input: 7, output: 5, reasoning: None, cached: None };

fn started(player: &Player, more: &[&str]) -> Gateway {
    Gateway::start(&format!("http://{}", player.address), Profile::Default, more).unwrap()
}

/// Sends these bytes, shuts nothing, and gives all that comes within a while.
fn say(gateway: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(gateway).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(1200))).unwrap();
    // A gateway that has heard enough may close before all is said.
    let _ = stream.write_all(bytes);
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        said.extend_from_slice(&buffer[..read]);
    }
    String::from_utf8_lossy(&said).into_owned()
}

fn post(lines: &str, body: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n{lines}\r\n{body}"
    )
}

/// Ways to frame a request twice: what each is, its header lines, and its bytes with a second request in them.
fn smuggling(good: &str) -> Vec<(&'static str, String, String)> {
    let inner = r#"{"model":"inner"}"#;
    let smuggled = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: {}\r\n\r\n{inner}",
        inner.len()
    );
    let length = good.len();
    let chunk = format!("{length:x}\r\n{good}\r\n0\r\n\r\n");
    vec![
        (
            "length and chunks",
            format!("content-length: {}\r\ntransfer-encoding: chunked\r\n", 5),
            format!("0\r\n\r\n{smuggled}"),
        ),
        (
            "chunks and length",
            "transfer-encoding: chunked\r\ncontent-length: 4\r\n".to_owned(),
            format!("{chunk}{smuggled}"),
        ),
        (
            "two lengths",
            format!("content-length: {length}\r\ncontent-length: {}\r\n", length + smuggled.len()),
            format!("{good}{smuggled}"),
        ),
        ("a signed length", format!("content-length: +{length}\r\n"), format!("{good}{smuggled}")),
        ("a negative length", "content-length: -1\r\n".to_owned(), format!("{good}{smuggled}")),
        ("a length of words", "content-length: many\r\n".to_owned(), format!("{good}{smuggled}")),
        ("an unknown coding", "transfer-encoding: xchunked\r\n".to_owned(), format!("{chunk}{smuggled}")),
        (
            "a hidden coding",
            "transfer-encoding:\tchunked\r\ncontent-length: 3\r\n".to_owned(),
            format!("{chunk}{smuggled}"),
        ),
        ("a spaced name", format!("content-length : {length}\r\n"), format!("{good}{smuggled}")),
        (
            "a broken chunk",
            "transfer-encoding: chunked\r\n".to_owned(),
            format!("zz\r\n{good}\r\n0\r\n\r\n{smuggled}"),
        ),
        (
            "an endless chunk",
            "transfer-encoding: chunked\r\n".to_owned(),
            format!("ffffffffffffffffff\r\n{good}{smuggled}"),
        ),
    ]
}

/// Lengths that contradict each other or are none. Whatever the gateway answers, the upstream gets no request that
/// was smuggled in, and no stray byte.
#[test]
fn nothing_is_smuggled() {
    let player = Player::listen("127.0.0.1:0").unwrap();
    let gateway = started(&player, &[]);
    let good = r#"{"model":"outer","messages":[]}"#;
    let length = good.len();
    let (mut wrong, mut strays) = (Vec::new(), 0);
    for (name, lines, body) in smuggling(good) {
        let outer = player.expect("outer", vec![answer(Dialect::Chat, Mode::Whole, &COUNTS)]);
        let inner = player.expect("inner", vec![answer(Dialect::Chat, Mode::Whole, &COUNTS)]);
        let reply = say(gateway.address, post(&lines, &body).as_bytes());
        let mut complain = |why: String| wrong.push(format!("{name}: {why}"));
        if outer.arrivals().len() > 1 {
            complain(format!("the request came {} times", outer.arrivals().len()));
        }
        for arrival in outer.arrivals().iter().filter(|arrival| arrival.body != good) {
            complain(format!("its body became {:?}", String::from_utf8_lossy(&arrival.body)));
        }
        // RFC 9112, section 6.1: whatever is made of the one request, its connection is closed behind it.
        if !inner.arrivals().is_empty() {
            complain(format!("a request was smuggled in, and answered: {reply:?}"));
        }
        wrong.extend(player.strays().into_iter().skip(strays).map(|stray| format!("{name}: {stray}")));
        strays = player.strays().len();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // It still works.
    let _run = player.expect("outer", vec![answer(Dialect::Chat, Mode::Whole, &COUNTS)]);
    let reply = say(
        gateway.address,
        post(&format!("connection: close\r\ncontent-length: {length}\r\n"), good).as_bytes(),
    );
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
}

/// Two requests in one write are answered in their order, and a stream is not cut by the one behind it.
#[test]
fn requests_ahead_of_their_turn_wait_for_it() {
    let player = Player::listen("127.0.0.1:0").unwrap();
    let gateway = started(&player, &[]);
    let slow = Play::sse().text(Dialect::Chat, "one").pause(200).text(Dialect::Chat, "two");
    let _first = player.expect("first", vec![slow.close_with(Dialect::Chat, Finish::Stop, &COUNTS)]);
    let _second = player.expect("second", vec![answer(Dialect::Chat, Mode::Whole, &COUNTS)]);
    let request = |model: &str, more: &str| {
        let body = format!(r#"{{"model":"{model}","messages":[]{more}}}"#);
        post(&format!("x-request-id: {model}\r\ncontent-length: {}\r\n", body.len()), &body)
    };
    let both = [request("first", r#","stream":true"#), request("second", "")].concat();
    let said = say(gateway.address, both.as_bytes());
    let done = said.find("[DONE]").unwrap_or_else(|| panic!("the stream was cut: {said}"));
    let second = said.find("hello there.").unwrap_or_else(|| panic!("the second was not answered: {said}"));
    assert!(done < second, "{said}");
    for model in ["first", "second"] {
        assert_eq!(admin::record(gateway.admin, model).unwrap()["outcome"], "success", "{model}");
    }
}

/// An id that a caller did not send, or that does not fit, is made; the record is found by it.
#[test]
fn every_reply_has_an_id() {
    let player = Player::listen("127.0.0.1:0").unwrap();
    let gateway = started(&player, &[]);
    let body = r#"{"model":"id","messages":[]}"#;
    let mut seen = Vec::new();
    let long = "x".repeat(4000);
    for line in [String::new(), "x-request-id: \r\n".to_owned(), format!("x-request-id: {long}\r\n")] {
        let _run = player.expect("id", vec![answer(Dialect::Chat, Mode::Whole, &COUNTS)]);
        let lines = format!("connection: close\r\n{line}content-length: {}\r\n", body.len());
        let said = say(gateway.address, post(&lines, body).as_bytes());
        let id = said
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("x-request-id: ").map(str::to_owned))
            .unwrap_or_else(|| panic!("no id: {said}"));
        assert!((8..=128).contains(&id.len()), "{id:?}");
        assert_eq!(admin::record(gateway.admin, &id).unwrap()["outcome"], "success", "{id}");
        seen.push(id);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 3, "ids are unique: {seen:?}");
}

/// Resident memory of a process, in mebibytes.
fn resident_mib(process: u32) -> u64 {
    let pages = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4 / 1024
}

/// Callers that ask and never read: what the upstream sends for them is not piled up.
#[test]
fn callers_that_never_read_cost_little() {
    let player = Player::listen("127.0.0.1:0").unwrap();
    let gateway = started(&player, &[]);
    let before = resident_mib(gateway.process());
    let large = bytes::Bytes::from(Dialect::Chat.text(&"long ".repeat(50_000)));
    let play = (0..200).fold(Play::sse(), |play, _| play.send_large(large.clone()));
    let mut callers = Vec::new();
    for index in 0..8 {
        let model = format!("silent-{index}");
        let _run = player.expect(&model, vec![play.clone().end()]);
        let body = format!(r#"{{"model":"{model}","messages":[],"stream":true}}"#);
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        stream.write_all(post(&format!("content-length: {}\r\n", body.len()), &body).as_bytes()).unwrap();
        callers.push(stream);
    }
    // 50 MB are due to each of eight callers.
    let until = Instant::now() + Duration::from_millis(2500);
    let mut most = 0;
    while Instant::now() < until {
        most = most.max(resident_mib(gateway.process()));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(most < before + 128, "from {before} MiB to {most} MiB for eight callers");
}

/// A connection that is never accepted ends at the connect deadline, with a 504 that says so.
#[test]
#[cfg(target_os = "linux")]
fn a_connection_that_does_not_come_about_is_a_timeout() {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
    let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&listener, 0).unwrap();
    let address = SocketAddr::try_from(getsockname(&listener).unwrap()).unwrap();
    // A full queue: further connections get no answer at all.
    let filled: Vec<_> = (0..2)
        .filter_map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok())
        .collect();
    assert!(
        TcpStream::connect_timeout(&address, Duration::from_millis(300)).is_err(),
        "the queue is not full"
    );
    let upstream = format!("http://{address}");
    let gateway = Gateway::start(&upstream, Profile::Default, &["limits.connect_timeout_ms=300"]).unwrap();
    let body = r#"{"model":"m","messages":[]}"#;
    let lines = format!("x-request-id: stuck\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    let began = Instant::now();
    let reply = say(gateway.address, post(&lines, body).as_bytes());
    assert!(reply.starts_with("HTTP/1.1 504"), "{reply}");
    assert!(began.elapsed() < Duration::from_secs(2), "it took {:?}", began.elapsed());
    let record = admin::record(gateway.admin, "stuck").unwrap();
    assert_eq!((&record["outcome"], &record["reason"]), (&"timeout".into(), &"deadline_connect".into()));
    assert_eq!(record["phase"], "before_head");
    drop(filled);
}
