//! `/metrics` after requests whose numbers can be worked out.
//!
//! Apart from the API: what a scraper sees. Must not know: how families are kept.

use pitot_runtime::testing::ToyRunner;
use serde_json::{Value, json};

use crate::harness::{Answer, Started, start};

fn scrape(toy: &Started) -> Answer {
    toy.ask("GET", "/metrics", "", "")
}

/// The value of one series; its labels beside model and engine in braces.
#[track_caller]
fn value(text: &str, name: &str, labels: &str) -> f64 {
    let start = format!("{name}{{");
    let mut lines = text.lines().filter(|line| line.starts_with(&start) && line.contains(labels));
    let line = lines.next().unwrap_or_else(|| panic!("{name} with {labels} is not in\n{text}"));
    assert!(line.contains("model_name=\"toy\"") && line.contains("engine=\"0\""), "{line}");
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn complete(toy: &Started, more: Value) -> Answer {
    let mut body = json!({ "prompt": "x".repeat(40), "max_tokens": 3, "temperature": 0 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = toy.complete(body);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer
}

#[test]
fn counts_and_times_are_those_of_the_requests() {
    let toy = start(ToyRunner::new(256), &["metrics.per_request=true", "memory.block_tokens=16"]);
    let metrics = complete(&toy, json!({})).json()["metrics"].clone();
    let answer = scrape(&toy);
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{}", answer.head);
    // One request: the sums are its own times, under both names.
    for prefix in ["vllm", "aphrodite"] {
        for (name, key) in [
            ("request_queue_time_seconds", "queue_time_ms"),
            ("request_prefill_time_seconds", "time_to_first_token_ms"),
            ("request_decode_time_seconds", "generation_time_ms"),
            ("request_time_per_output_token_seconds", "mean_itl_ms"),
        ] {
            let found = value(&answer.body, &format!("{prefix}:{name}_sum"), "");
            assert!((found * 1e3 - metrics[key].as_f64().unwrap()).abs() < 1e-6, "{name}: {metrics}");
        }
    }
    // The same prompt twice again, two choices each: of 40 tokens 32 are cached each time, both choices ask.
    complete(&toy, json!({ "n": 2 }));
    complete(&toy, json!({ "n": 2, "stop": "never" }));
    let text = scrape(&toy).body;
    for (name, expected) in [
        ("vllm:prompt_tokens_total", 200.0),
        ("vllm:prompt_tokens_cached_total", 128.0),
        ("vllm:prefix_cache_queries_total", 200.0),
        ("vllm:prefix_cache_hits_total", 128.0),
        ("vllm:generation_tokens_total", 15.0),
        ("vllm:num_preemptions_total", 0.0),
        ("vllm:num_requests_running", 0.0),
        ("vllm:num_requests_waiting", 0.0),
        ("vllm:kv_cache_usage_perc", 0.0),
        ("vllm:time_to_first_token_seconds_count", 5.0),
        ("vllm:inter_token_latency_seconds_count", 10.0),
        ("vllm:e2e_request_latency_seconds_count", 5.0),
        ("vllm:request_prompt_tokens_sum", 200.0),
        ("vllm:request_params_max_tokens_sum", 15.0),
        ("vllm:request_prefill_kv_computed_tokens_sum", 72.0),
        ("vllm:request_params_n_sum", 5.0),
        ("vllm:request_params_n_count", 3.0),
        ("vllm:request_max_num_generation_tokens_sum", 9.0),
        // Prompts less what was cached, and two outputs each that were computed in turn.
        ("vllm:iteration_tokens_total_sum", 72.0 + 10.0),
    ] {
        assert_eq!(value(&text, name, ""), expected, "{name}");
    }
    assert_eq!(value(&text, "vllm:request_success_total", "finished_reason=\"length\""), 5.0);
    assert_eq!(value(&text, "aphrodite:request_success_total", "finished_reason=\"stop\""), 0.0);
    assert!(text.contains("\n# TYPE vllm:e2e_request_latency_seconds histogram"), "{text}");
    assert!(text.contains("le=\"7680\""), "{text}");
    // Each family once for each prefix.
    let types =
        |prefix: &str| text.lines().filter(|line| line.starts_with(&format!("# TYPE {prefix}"))).count();
    assert_eq!((types("vllm:"), types("aphrodite:"), types("")), (27, 27, 54));
}

#[test]
fn an_aborted_request_has_no_times() {
    let toy = start(ToyRunner::new(100_000), &[]);
    let caller = toy.send(
        "POST",
        "/v1/completions",
        "",
        &json!({ "prompt": "abc", "ignore_eos": true, "max_tokens": 90_000 }).to_string(),
    );
    toy.wait_for(|state| state.running == 1);
    drop(caller);
    toy.wait_for(|state| state.running == 0 && state.prefix_counts.queried > 0);
    // The end is handed out after the state.
    let text = loop {
        let text = scrape(&toy).body;
        if value(&text, "vllm:request_success_total", "finished_reason=\"abort\"") == 1.0 {
            break text;
        }
        std::thread::yield_now();
    };
    assert_eq!(value(&text, "vllm:e2e_request_latency_seconds_count", ""), 0.0);
    assert_eq!(value(&text, "vllm:request_params_n_count", ""), 0.0);
}

#[test]
fn names_can_be_turned_off() {
    for (set, vllm, aphrodite) in
        [("metrics.vllm_names=false", false, true), ("metrics.aphrodite_names=false", true, false)]
    {
        let text = scrape(&start(ToyRunner::new(64), &[set])).body;
        assert_eq!((text.contains("vllm:"), text.contains("aphrodite:")), (vllm, aphrodite), "{set}");
    }
    for sets in
        [&["metrics.vllm_names=false", "metrics.aphrodite_names=false"][..], &["metrics.log_stats=false"]]
    {
        let answer = scrape(&start(ToyRunner::new(64), sets));
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("unknown_path")));
    }
    let off = start(ToyRunner::new(64), &["memory.prefix_cache=false"]);
    let text = scrape(&off).body;
    assert!(text.contains("enable_prefix_caching=\"False\""), "{text}");
}
