//! The five-key object: the published table of test cases, and its JSON.
//!
//! Apart because its contract is public. Must not know: where it goes in a response.

use pitot_measure::metrics_object::{self, MetricsObject, Suppression};
use pitot_measure::{At, BodyKind, EngineTimes, Event, Observer, Options};
use serde_json::{Value, json};

use crate::play::{Play, at, content, end_of, engine};

/// Stamps in tenths of a second, as (queued, scheduled, first, last).
fn stamps(tenths: [Option<u64>; 4]) -> EngineTimes {
    let [queued, scheduled, first, last] = tenths.map(|tenth| tenth.map(|tenth| At(tenth * 100_000_000)));
    EngineTimes { queued, scheduled, first, last, ..EngineTimes::default() }
}

#[track_caller]
fn check(name: &str, times: EngineTimes, tokens: u64, expected: [Option<f64>; 5]) {
    let object = MetricsObject::of(&times, tokens);
    let found = [
        object.time_to_first_token_ms,
        object.generation_time_ms,
        object.queue_time_ms,
        object.mean_itl_ms,
        object.tokens_per_second,
    ];
    let close = |(found, expected): (&Option<f64>, &Option<f64>)| match (found, expected) {
        (Some(found), Some(expected)) => (found - expected).abs() < 1e-9,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    };
    assert!(found.iter().zip(&expected).all(close), "{name}: {found:?}, not {expected:?}");
}

#[test]
fn the_published_table() {
    let standard = stamps([Some(10), Some(15), Some(20), Some(30)]);
    let f = Some;
    check("nothing", EngineTimes::default(), 10, [None; 5]);
    check("4", standard, 10, [f(500.0), f(1000.0), f(500.0), f(1000.0 / 9.0), f(10.0 / 1.5)]);
    let one = stamps([Some(10), Some(15), Some(20), Some(20)]);
    check("5", one, 1, [f(500.0), f(0.0), f(500.0), None, f(2.0)]);
    check("6", standard, 1, [f(500.0), f(1000.0), f(500.0), None, f(1.0 / 1.5)]);
    check("7", standard, 0, [f(500.0), f(1000.0), f(500.0), None, f(0.0)]);
    check("8", stamps([Some(10), Some(20), None, None]), 5, [None, None, f(1000.0), None, None]);
    let unqueued = stamps([None, Some(15), Some(20), Some(30)]);
    check("9", unqueued, 5, [f(500.0), f(1000.0), None, f(250.0), f(5.0 / 1.5)]);
    let another = stamps([Some(100), Some(102), Some(105), Some(110)]);
    check("10", another, 6, [f(300.0), f(500.0), f(200.0), f(100.0), f(7.5)]);
    check(
        "an interval of 0",
        stamps([None, Some(15), Some(15), Some(15)]),
        2,
        [f(0.0), f(0.0), None, f(0.0), None],
    );
    check("stamps that go back", stamps([Some(30), Some(20), Some(10), Some(5)]), 2, [None; 5]);
}

#[test]
fn a_law_of_the_formulas() {
    // ttft + generation = N / tps · 1000, both being last − scheduled.
    let object = MetricsObject::of(&engine(3, 7, 31, 179, 5, 11), 11);
    let sum = object.time_to_first_token_ms.unwrap() + object.generation_time_ms.unwrap();
    assert!((sum - 11.0 / object.tokens_per_second.unwrap() * 1000.0).abs() < 1e-9);
    assert!((sum - 172.0).abs() < 1e-9);
}

#[test]
fn json_has_five_keys_in_order() {
    assert_eq!(
        metrics_object::json(Some(&engine(1000, 1500, 2000, 3000, 5, 5))),
        "{\"time_to_first_token_ms\":500.0,\"generation_time_ms\":1000.0,\"queue_time_ms\":500.0,\
         \"mean_itl_ms\":250.0,\"tokens_per_second\":3.3333333333333335}"
    );
    assert_eq!(
        metrics_object::json(None),
        "{\"time_to_first_token_ms\":null,\"generation_time_ms\":null,\"queue_time_ms\":null,\
         \"mean_itl_ms\":null,\"tokens_per_second\":null}"
    );
}

#[test]
fn several_sequences_suppress_it() {
    for (choices, prompts, expected) in [
        (1, 1, Suppression::Shown),
        (0, 0, Suppression::Shown),
        (2, 1, Suppression::Suppressed),
        (1, 2, Suppression::Suppressed),
    ] {
        assert_eq!(Suppression::of(choices, prompts), expected, "n = {choices}, {prompts} prompts");
    }
}

#[test]
fn output_and_server_timing() {
    let mut times = engine(10, 20, 50, 100, 5, 4);
    times.reasoning.tokens = 1;
    times.reasoning.first = Some(at(50));
    times.reasoning.last = Some(at(50));
    times.content.tokens = 2;
    times.content.first = Some(at(70));
    times.tokens_unclassified = 1;
    assert_eq!(
        metrics_object::output_json(&times),
        "{\"reasoning\":{\"token_count\":1,\"time_to_first_token_ms\":30.0,\"generation_time_ms\":0.0},\
         \"content\":{\"token_count\":2,\"time_to_first_token_ms\":50.0,\"generation_time_ms\":30.0},\
         \"unclassified_token_count\":1}"
    );
    assert_eq!(
        metrics_object::server_timing(&times, at(120)).as_deref(),
        Some("queue;dur=10.000, prefill;dur=30.000, decode;dur=50.000, gateway;dur=30.000")
    );
    assert_eq!(metrics_object::server_timing(&EngineTimes::default(), at(120)), None);
}

#[test]
fn what_the_gateway_saw_so_far() {
    let facts = Play::chat().facts;
    let mut observer = Observer::new(facts, Options::default());
    let json = |observer: &Observer| -> Value {
        serde_json::from_str(&metrics_object::client_json(&observer.so_far())).unwrap()
    };
    assert_eq!(json(&observer)["first_token_time_ms"], Value::Null);
    observer.observe(at(10), Event::AttemptStarted);
    observer.observe(at(10), Event::RequestSent);
    observer.observe(at(15), Event::Head { status: 200, body: BodyKind::EventStream });
    observer.observe(at(110), Event::UpstreamBytes(content("a").as_bytes()));
    observer.observe(at(210), Event::UpstreamBytes(content("b").as_bytes()));
    let seen = json(&observer);
    assert_eq!(
        (&seen["first_token_time_ms"], &seen["full_response_time_ms"]),
        (&json!(100.0), &json!(200.0))
    );
    assert_eq!((&seen["content_time_ms"], &seen["time_per_token_ms"]), (&json!(100.0), &Value::Null));
    observer.observe(at(220), Event::UpstreamBytes(end_of("stop", 18, 2).as_bytes()));
    let seen = json(&observer);
    assert_eq!((&seen["time_per_token_ms"], &seen["average_speed"]), (&json!(100.0), &json!(100)));
    assert_eq!(seen.as_object().unwrap().len(), 9);
}
