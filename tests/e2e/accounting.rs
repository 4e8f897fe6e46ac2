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
    let answered = |reply: &Value, text: String| {
        // A model that stops at once has answered nothing, which is an interruption by the contract.
        let outcome = if text.is_empty() { "interrupted" } else { "success" };
        (outcome, reply["usage"].clone())
    };
    let (outcome, usage) = match number % 8 {
        0 => {
            let broken = post_bytes("/v1/chat/completions", "", b"{");
            assert_eq!(Open::send(address, &broken).unwrap().reply().unwrap().status, 400);
            ("other", Value::Null)
        }
        1 => {
            let unknown = chat(address, &json!({"model": "nobody", "messages": messages}));
            assert_eq!(unknown.status, 404);
            ("http_error", Value::Null)
        }
        2 | 3 => {
            let reply = chat(address, &plain).json();
            answered(&reply, reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned())
        }
        4 => {
            let completion = json!({"model": MODEL, "prompt": message, "max_tokens": tokens});
            let reply = post(address, "/v1/completions", &completion).json();
            answered(&reply, reply["choices"][0]["text"].as_str().unwrap().to_owned())
        }
        _ => {
            let events = chat(address, &streamed).events();
            let deltas = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
            answered(events.last().unwrap(), deltas.collect())
        }
    };
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
            seen.input_tokens += record["input_tokens"].as_u64().unwrap_or(0);
            seen.output_tokens += record["output_tokens"].as_u64().unwrap_or(0);
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
    let count = |outcome: &str| seen.outcomes.get(outcome).copied().unwrap_or(0);
    assert_eq!((count("other"), count("http_error")), (25, 25), "{seen:?}");
    assert_eq!(count("success") + count("interrupted"), 150, "{seen:?}");
    assert!(count("success") > 100, "{seen:?}");
    let written = eventually("the journal has every request", SOON, || journal(&pitot));
    assert_eq!(written, seen);
    let metrics = get(&pitot.admin, "/metrics").unwrap().text();
    assert_eq!(counter(&metrics, "pitot_requests_total", "outcome"), seen.outcomes);
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
    let pitot = shared();
    for number in 0..8 {
        let body = json!({
            "model": MODEL, "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 40,
            "ignore_eos": true, "seed": number,
            "messages": [{"role": "user", "content": format!("Write about the number {number}.")}],
        });
        let reply = chat(&pitot.address, &body);
        let events = reply.events();
        let metrics = events.last().unwrap()["metrics"].clone();
        let record = pitot.record(reply.id());
        let ms = |key: &str| metrics[key].as_f64().unwrap();
        let record_ms = |key: &str| record[key].as_f64().unwrap_or_else(|| panic!("{key}: {record}")) / 1e6;
        let (first, full) = (record_ms("first_token_time_ns"), record_ms("full_response_time_ns"));
        let engine = ms("queue_time_ms") + ms("time_to_first_token_ms");
        assert!(first >= engine, "first token after {first} ms, before the engine's {engine} ms: {record}");
        // Both ends of the generation are seen through the same hop, so only its jitter remains; the machine is
        // shared, hence the wide bound.
        let jitter = ((full - first) - ms("generation_time_ms")).abs();
        assert!(jitter < 50.0 + 0.1 * full, "{jitter} ms between the two views: {record}");
        assert_eq!(record["output_tokens"], 40, "{record}");
        assert_eq!(record["engine_output_tokens"], 40, "{record}");
        assert_eq!(record["violations"], json!([]), "{record}");
        let fields = record.as_object().unwrap();
        let segments =
            fields.iter().filter(|(key, _)| key.starts_with("segment_") && *key != "segment_total_ns");
        let sum: u64 = segments.filter_map(|(_, ns)| ns.as_u64()).sum();
        let done = record["downstream_done_ns"].as_u64().unwrap_or_else(|| panic!("{record}"));
        assert_eq!(sum, done, "every nanosecond belongs to one segment: {record}");
    }
}
