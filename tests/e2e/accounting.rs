//! The identities: what callers saw, the journal and the Prometheus counters agree, and times add up.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::client::{Open, chat, get, post, post_bytes};
use crate::pitot::{MODEL, Pitot, SOON, eventually, shared};

/// Requests of the mixed load.
const REQUESTS: usize = 200;
/// Callers at once.
const CALLERS: usize = 8;

/// What callers saw, added up.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Seen {
    outcomes: BTreeMap<String, u64>,
    input_tokens: u64,
    output_tokens: u64,
}

impl Seen {
    fn add(&mut self, other: &Seen) {
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(outcome.clone()).or_default() += count;
        }
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
    }
}

/// One request of a kind that follows from its number, and what its caller saw.
fn request(pitot: &Pitot, number: usize) -> Seen {
    let address = &pitot.address;
    let message = format!("Say something about the number {number}.");
    let messages = json!([{"role": "user", "content": message}]);
    let tokens = 1 + number % 9;
    let plain = json!({"model": MODEL, "messages": messages, "max_tokens": tokens, "seed": number});
    let mut streamed = plain.clone();
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let (outcome, usage) = match number % 8 {
        0 => ("other", Open::send(address, &post_bytes("/v1/chat/completions", "", b"{")).unwrap().reply().map(|_| Value::Null)),
        1 => {
            let unknown = json!({"model": "nobody", "messages": messages});
            ("http_error", Ok(chat(address, &unknown).json()["usage"].clone()))
        }
        2 | 3 => ("success", Ok(chat(address, &plain).json()["usage"].clone())),
        4 => {
            let completion = json!({"model": MODEL, "prompt": message, "max_tokens": tokens});
            ("success", Ok(post(address, "/v1/completions", &completion).json()["usage"].clone()))
        }
        _ => {
            let events = chat(address, &streamed).events();
            ("success", Ok(events.last().unwrap()["usage"].clone()))
        }
    };
    let usage = usage.unwrap();
    Seen {
        outcomes: BTreeMap::from([(outcome.to_owned(), 1)]),
        input_tokens: usage["prompt_tokens"].as_u64().unwrap_or(0),
        output_tokens: usage["completion_tokens"].as_u64().unwrap_or(0),
    }
}

fn journal(pitot: &Pitot) -> Option<Seen> {
    let records = pitot.journal();
    (records.len() == REQUESTS).then(|| {
        let mut seen = Seen::default();
        for record in &records {
            *seen.outcomes.entry(record["outcome"].as_str().unwrap().to_owned()).or_default() += 1;
            seen.input_tokens += record["input_tokens"]["value"].as_u64().unwrap_or(0);
            seen.output_tokens += record["output_tokens"]["value"].as_u64().unwrap_or(0);
        }
        seen
    })
}

/// Sums of a counter by one label, over all other labels.
fn counter(text: &str, name: &str, label: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with(&format!("{name}{{"))) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let start = series.find(&format!("{label}=\"")).unwrap() + label.len() + 2;
        let key = series[start..].split('"').next().unwrap();
        let value = value.parse::<f64>().unwrap() as u64;
        if value > 0 {
            *sums.entry(key.to_owned()).or_default() += value;
        }
    }
    sums
}

#[test]
fn counters_journal_and_callers_agree_over_mixed_requests() {
    let pitot = Pitot::up(&[]);
    let seen = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let pitot = &pitot;
                scope.spawn(move || {
                    let mut seen = Seen::default();
                    for number in (caller..REQUESTS).step_by(CALLERS) {
                        seen.add(&request(pitot, number));
                    }
                    seen
                })
            })
            .collect();
        let mut all = Seen::default();
        callers.into_iter().for_each(|caller| all.add(&caller.join().unwrap()));
        all
    });
    let expected = BTreeMap::from([("other".to_owned(), 25), ("http_error".to_owned(), 25), ("success".to_owned(), 150)]);
    assert_eq!(seen.outcomes, expected);
    let written = eventually("the journal has every request", SOON, || journal(&pitot));
    assert_eq!(written, seen);
    let metrics = get(&pitot.admin, "/metrics").unwrap().text();
    assert_eq!(counter(&metrics, "pitot_requests_total", "outcome"), expected);
    let sum = |name| counter(&metrics, name, "model").values().sum::<u64>();
    assert_eq!(sum("pitot_input_tokens_total"), seen.input_tokens);
    assert_eq!(sum("pitot_output_tokens_total"), seen.output_tokens);
    let rates = get(&pitot.admin, "/rates").unwrap().json();
    assert!(rates.to_string().contains("success"), "{rates}");
    let models = counter(&metrics, "pitot_requests_total", "model");
    assert!(!models.contains_key("nobody"), "a name that only a caller said is no label: {models:?}");
}

#[test]
fn the_two_views_of_a_request_fit_together() {
    for number in 0..8 {
        let body = json!({
            "model": MODEL, "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 40,
            "ignore_eos": true, "seed": number,
            "messages": [{"role": "user", "content": format!("Write about the number {number}.")}],
        });
        let reply = chat(&shared().address, &body);
        let events = reply.events();
        let metrics = events.last().unwrap()["metrics"].clone();
        let record = shared().record(reply.id());
        let ms = |key: &str| metrics[key].as_f64().unwrap();
        let record_ms = |key: &str| record[key]["value"].as_f64().unwrap_or_else(|| panic!("{key}: {record}")) / 1e6;
        let (first, full) = (record_ms("first_token_time_ns"), record_ms("full_response_time_ns"));
        let engine = ms("queue_time_ms") + ms("time_to_first_token_ms");
        assert!(first >= engine, "first token after {first} ms, before the engine's {engine} ms: {record}");
        // Both ends of the generation are seen through the same hop, so only its jitter remains; the machine is
        // shared, hence the wide bound.
        let jitter = ((full - first) - ms("generation_time_ms")).abs();
        assert!(jitter < 50.0 + 0.1 * full, "{jitter} ms between the two views: {record}");
        assert_eq!(record["output_tokens"]["value"], 40, "{record}");
        assert_eq!(record["engine"]["tokens_output"], 40, "{record}");
        assert_eq!(record["violations"], json!([]), "{record}");
        let segments = record["segments"].as_object().unwrap_or_else(|| panic!("{record}"));
        let sum: u64 = segments.values().filter_map(Value::as_u64).sum();
        let done = record["timeline"]["downstream_done_ns"].as_u64().unwrap_or_else(|| panic!("{record}"));
        assert_eq!(sum, done, "every nanosecond belongs to one segment: {record}");
    }
}
