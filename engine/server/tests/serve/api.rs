//! Routes, errors, bodies and streams.
//!
//! Apart from endings: here every request runs to its end. Must not know: the control channel.

use pitot_runtime::testing::{ToyRunner, toy_next, toy_tokenizer};
use serde_json::{Value, json};

use crate::harness::{Started, start};

const METRICS: [&str; 5] =
    ["time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second"];

fn toy() -> Started {
    start(ToyRunner::new(256), &["metrics.per_request=true", "listen.request_body_bytes=4096"])
}

/// What the toy says greedily after a prompt, computed beside the engine.
fn greedy(prompt: &str, tokens: usize) -> String {
    let tokenizer = toy_tokenizer();
    let mut context = tokenizer.encode(prompt).unwrap();
    let start = context.len();
    for _ in 0..tokens {
        context.push(toy_next(&context));
    }
    tokenizer.decode(&context[start..]).unwrap()
}

fn endless() -> Started {
    start(ToyRunner::new(256), &["metrics.per_request=true"])
}

#[test]
fn a_chat_is_answered_whole() {
    let toy = endless();
    let answer = toy.ask(
        "POST",
        "/v1/chat/completions",
        "x-request-id: mine\r\n",
        &crate::harness::chat_body(json!({ "temperature": 0, "max_tokens": 5, "n": null })),
    );
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.head.contains("x-request-id: mine"));
    let body = answer.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "toy");
    let message = json!({ "role": "assistant", "content": greedy("hello>", 5) });
    assert_eq!(body["choices"][0]["message"], message);
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    let usage = json!({
        "prompt_tokens": 6, "total_tokens": 11, "completion_tokens": 5,
        "prompt_tokens_details": { "cached_tokens": 0 },
    });
    assert_eq!(body["usage"], usage);
    let metrics = answer.body.split_once(",\"metrics\":").expect("metrics are there").1;
    assert!(metrics.ends_with("}}") && metrics.matches('{').count() == 1, "metrics come last: {metrics}");
    let places: Vec<usize> = METRICS.iter().map(|key| metrics.find(key).unwrap()).collect();
    assert!(places.is_sorted(), "{metrics}");
    assert!(body["metrics"]["tokens_per_second"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_chat_is_streamed() {
    let toy = endless();
    let asked = json!({ "temperature": 0, "max_tokens": 5, "stream": true });
    let mut with_usage = asked.clone();
    with_usage["stream_options"] = json!({ "include_usage": true });
    let answer = toy.chat(with_usage);
    assert!(answer.head.contains("content-type: text/event-stream"));
    let events = answer.events();
    let delta = |event: &Value| event["choices"][0]["delta"].clone();
    assert_eq!(delta(&events[0]), json!({ "role": "assistant", "content": "" }));
    let text: String =
        events.iter().filter_map(|event| Some(delta(event)["content"].as_str()?.to_owned())).collect();
    assert_eq!(text, greedy("hello>", 5));
    let [.., finish, usage, done] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((delta(finish), &finish["choices"][0]["finish_reason"]), (json!({}), &json!("length")));
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 5);
    assert!(METRICS.iter().all(|key| usage["metrics"].get(key).is_some()), "{usage}");
    assert_eq!(done, "[DONE]");
    assert!(
        events
            .iter()
            .rev()
            .skip(2)
            .all(|event| event.get("usage").is_none() && event.get("metrics").is_none())
    );

    let plain = toy.chat(asked).events();
    assert_eq!(plain.len(), events.len() - 1, "no usage chunk unless asked for");
    let forced = start(ToyRunner::new(256), &["metrics.force_include_usage=true"]);
    let forced = forced.chat(json!({ "max_tokens": 2, "stream": true, "ignore_eos": true })).events();
    check_continuous(&forced, 2);
    assert!(forced[forced.len() - 2].get("metrics").is_none(), "off by default");

    let options = json!({ "include_usage": true, "continuous_usage_stats": true });
    let asked = json!({ "max_tokens": 5, "stream": true, "temperature": 0, "stream_options": options });
    let continuous = toy.chat(asked).events();
    check_continuous(&continuous, 5);
    let with_metrics = continuous.iter().filter(|event| event.get("metrics").is_some()).count();
    assert_eq!(with_metrics, 1, "only where the counts are final");
    // Asked for alone, it is none.
    let alone =
        json!({ "max_tokens": 5, "stream": true, "stream_options": { "continuous_usage_stats": true } });
    assert!(toy.chat(alone).events().iter().all(|event| event.get("usage").is_none()));
}

/// Usage on every chunk: none before the first token, one more with each token's text, the same at the end.
#[track_caller]
fn check_continuous(events: &[Value], tokens: u64) {
    let [chunks @ .., done] = events else { panic!("no events") };
    assert_eq!(done, "[DONE]");
    let counts: Vec<u64> =
        chunks.iter().map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    let expected: Vec<u64> = (0..=tokens).chain([tokens, tokens]).collect();
    assert_eq!(counts, expected, "role, texts, finish, usage alone");
    for chunk in chunks {
        let usage = |name: &str| chunk["usage"][name].as_u64().unwrap();
        assert_eq!(usage("total_tokens"), usage("prompt_tokens") + usage("completion_tokens"), "{chunk}");
    }
}

#[test]
fn completions_join_choices_and_prompts() {
    let toy = endless();
    let body =
        toy.complete(json!({ "prompt": ["abc", "de"], "n": 2, "max_tokens": 3, "temperature": 0 })).json();
    let texts: Vec<&str> = (0..4).map(|index| body["choices"][index]["text"].as_str().unwrap()).collect();
    let (first, second) = (greedy("abc", 3), greedy("de", 3));
    assert_eq!(texts, [&first, &first, &second, &second]);
    assert_eq!(body["usage"]["prompt_tokens"], 5, "a prompt counts once");
    assert_eq!(body["usage"]["completion_tokens"], 12);
    assert!(body.get("metrics").is_none(), "not for several sequences");
    let one = toy.complete(json!({ "prompt": ["abc"], "temperature": 0 })).json();
    assert_eq!(one["choices"][0]["text"], greedy("abc", 16), "16 tokens unless said");
    assert!(one.get("metrics").is_some(), "one prompt in a list is not several");
    let ids = toy.complete(json!({ "prompt": [97, 98, 99], "temperature": 0, "max_tokens": 3 })).json();
    assert_eq!(ids["choices"][0]["text"], first);
    let stream = toy.complete(json!({ "n": 2, "max_tokens": 3, "stream": true, "temperature": 0 })).events();
    let of = |index: usize| -> String {
        let choices = stream.iter().map(|event| &event["choices"][0]);
        choices
            .filter(|choice| choice["index"] == index)
            .filter_map(|choice| choice["text"].as_str())
            .collect()
    };
    assert_eq!([of(0), of(1)], [first.clone(), first]);
}

#[test]
fn stops_and_log_probabilities() {
    let toy = endless();
    let whole = greedy("abc", 8);
    let stop = &whole[4..6];
    let body = toy.complete(json!({ "temperature": 0, "stop": stop })).json();
    let choice = &body["choices"][0];
    assert_eq!(choice["text"], whole[..whole.find(stop).unwrap()]);
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(stop)));
    let body =
        toy.chat(json!({ "temperature": 0, "max_tokens": 2, "logprobs": true, "top_logprobs": 3 })).json();
    let content = &body["choices"][0]["logprobs"]["content"];
    assert_eq!(content.as_array().unwrap().len(), 2);
    assert_eq!(content[0]["token"], greedy("hello>", 1));
    assert_eq!(content[0]["top_logprobs"].as_array().unwrap().len(), 3);
    assert_eq!(content[0]["top_logprobs"][0]["logprob"], content[0]["logprob"], "greedy takes the likeliest");
    let body = toy.complete(json!({ "temperature": 0, "max_tokens": 3, "logprobs": 0 })).json();
    assert_eq!(body["choices"][0]["logprobs"]["text_offset"], json!([0, 1, 2]));
}

/// Text and log-probabilities of a completion of "abc", with these fields.
#[track_caller]
fn completed(toy: &Started, more: Value) -> (String, Value, Value) {
    let body = toy.complete(more).json();
    let choice = &body["choices"][0];
    let text = choice["text"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned();
    (text, choice["logprobs"].clone(), body["usage"]["completion_tokens"].clone())
}

#[test]
fn a_prompt_is_echoed_with_its_log_probabilities() {
    let toy = endless();
    let said = greedy("abc", 2);
    let plain = json!({ "temperature": 0, "max_tokens": 2, "echo": true });
    assert_eq!(completed(&toy, plain.clone()), (format!("abc{said}"), Value::Null, json!(2)));
    let mut scored = plain.clone();
    scored["logprobs"] = json!(1);
    let (text, logprobs, _) = completed(&toy, scored.clone());
    let letters: Vec<String> = text.chars().map(String::from).collect();
    assert_eq!(logprobs["tokens"], json!(letters));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3, 4]));
    assert_eq!((&logprobs["token_logprobs"][0], &logprobs["top_logprobs"][0]), (&Value::Null, &Value::Null));
    // After "a" the toy finds t likeliest, 8 letters before b; after "ab" h, 21 before c.
    let sum: f64 = (0..26).map(|k| (-0.25 * f64::from(k)).exp()).sum();
    for (place, behind) in [(1, 8.0), (2, 21.0), (3, 0.0), (4, 0.0)] {
        let found = logprobs["token_logprobs"][place].as_f64().unwrap();
        assert!((found + 0.25 * behind + sum.ln()).abs() < 1e-4, "token {place}: {logprobs}");
    }
    assert!(logprobs["top_logprobs"][1].get("t").is_some(), "{logprobs}");
    // Nothing but the prompt: one token is drawn for it, and not shown.
    scored["max_tokens"] = json!(0);
    let (text, logprobs, tokens) = completed(&toy, scored);
    assert_eq!((text.as_str(), logprobs["tokens"].as_array().unwrap().len(), tokens), ("abc", 3, json!(1)));
    let ids = json!({ "prompt": [97, 98, 99], "temperature": 0, "max_tokens": 2, "echo": true, "n": 2 });
    let body = toy.complete(ids).json();
    assert_eq!(body["choices"][1]["text"], format!("abc{said}"));
    let mut stream = plain;
    stream["stream"] = json!(true);
    let events = toy.complete(stream).events();
    let texts: Vec<&str> = events
        .iter()
        .filter_map(|event| event["choices"][0]["text"].as_str())
        .filter(|t| !t.is_empty())
        .collect();
    assert_eq!(texts, [&format!("abc{}", &said[..1]), &said[1..]]);
}

#[test]
fn penalties_and_bias_reach_the_model() {
    let toy = endless();
    let letters = |more: Value| {
        let mut asked = json!({ "prompt": "ab", "temperature": 0, "max_tokens": 2 });
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        completed(&toy, asked).0
    };
    // After "ab" and after "abh" the toy finds h likeliest, then i, a quarter of a logit behind.
    assert_eq!(letters(json!({})), "hh");
    assert_eq!(letters(json!({ "presence_penalty": 0.375 })), "hi");
    assert_eq!(letters(json!({ "frequency_penalty": 0.375 })), "hi");
    assert_eq!(letters(json!({ "repetition_penalty": 1.5 })), "hh", "a logit of 0 stays 0");
    assert_eq!(letters(json!({ "logit_bias": { "104": -1 }, "max_tokens": 1 })), "i");
    assert_eq!(letters(json!({ "typical_p": 0.5, "stop": "hh", "include_stop_str_in_output": true })), "hh");
    assert_eq!(letters(json!({ "stop": "hh" })), "");
    assert_eq!(letters(json!({ "stop_token_ids": [104] })), "");
}

#[test]
fn models_and_health() {
    let toy = toy();
    let models = toy.ask("GET", "/v1/models", "", "").json();
    let names: Vec<&str> =
        models["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["toy", "other"]);
    assert_eq!(toy.ask("GET", "/health", "", "").status, 200);
    for asked in ["other", "toy"] {
        assert_eq!(toy.chat(json!({ "model": asked, "max_tokens": 1 })).json()["model"], "toy");
    }
    assert_eq!(toy.chat(json!({ "model": null, "max_tokens": 1 })).json()["model"], "toy", "the default");
}

#[track_caller]
fn check(toy: &Started, method: &str, path: &str, body: &str, status: u16, param: Value, code: Value) {
    let answer = toy.ask(method, path, "", body);
    assert_eq!(answer.status, status, "{body} {answer:?}");
    let error = &answer.json()["error"];
    assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
    assert_eq!((&error["param"], &error["code"]), (&param, &code), "{body}");
}

#[test]
fn errors_say_what_is_wrong() {
    let toy = toy();
    let (chat, text) = ("/v1/chat/completions", "/v1/completions");
    let none = Value::Null;
    check(&toy, "POST", chat, "{", 400, none.clone(), none.clone());
    check(&toy, "POST", chat, "[1]", 400, none.clone(), none.clone());
    check(&toy, "GET", chat, "", 405, none.clone(), json!("method_not_allowed"));
    check(&toy, "POST", "/v1/models", "", 405, none.clone(), json!("method_not_allowed"));
    check(&toy, "POST", "/v1/nothing", "", 404, none.clone(), json!("unknown_path"));
    check(&toy, "POST", text, &"x".repeat(4097), 413, none.clone(), json!("request_too_large"));
    let bodies = [
        (json!({ "model": "gone" }), 404, "model", json!("model_not_found")),
        (json!({ "tools": [{ "type": "function" }] }), 400, "tools", none.clone()),
        (json!({ "chat_template_kwargs": { "tools": [1] } }), 400, "tools", none.clone()),
        (json!({ "min_tokens": 9, "max_tokens": 8 }), 400, "min_tokens", none.clone()),
        (json!({ "messages": [] }), 400, "messages", none.clone()),
        (json!({ "messages": [{ "content": "x" }] }), 400, "messages", none.clone()),
        (json!({ "messages": [{ "role": "system", "content": "x" }] }), 400, "messages", none.clone()),
        (json!({ "temperature": 3 }), 400, "temperature", none.clone()),
        (json!({ "temperature": "hot" }), 400, "temperature", none.clone()),
        (json!({ "top_p": 0 }), 400, "top_p", none.clone()),
        (json!({ "n": 0 }), 400, "n", none.clone()),
        (json!({ "max_tokens": 0 }), 400, "max_tokens", none.clone()),
        (json!({ "stop": [""] }), 400, "stop", none.clone()),
        (json!({ "stream": "yes" }), 400, "stream", none.clone()),
        (json!({ "stream_options": {} }), 400, "stream_options", none.clone()),
        (json!({ "logit_bias": { "1": 101 } }), 400, "logit_bias", none.clone()),
        (json!({ "logit_bias": { "a": 1 } }), 400, "logit_bias", none.clone()),
        (json!({ "logit_bias": { "261": 1 } }), 400, "logit_bias", none.clone()),
        (json!({ "logit_bias": [] }), 400, "logit_bias", none.clone()),
        (json!({ "presence_penalty": 2.5 }), 400, "presence_penalty", none.clone()),
        (json!({ "frequency_penalty": "no" }), 400, "frequency_penalty", none.clone()),
        (json!({ "repetition_penalty": 0 }), 400, "repetition_penalty", none.clone()),
        (json!({ "typical_p": 0 }), 400, "typical_p", none.clone()),
        (json!({ "include_stop_str_in_output": 1 }), 400, "include_stop_str_in_output", none.clone()),
        (json!({ "guided_json": {} }), 400, "guided_json", none.clone()),
        (json!({ "use_beam_search": true }), 400, "use_beam_search", none.clone()),
        (json!({ "response_format": { "type": "json_object" } }), 400, "response_format", none.clone()),
        (json!({ "top_logprobs": 2 }), 400, "top_logprobs", none.clone()),
        (json!({ "priority": "high" }), 400, "priority", none.clone()),
        (json!({ "priority": 1.5 }), 400, "priority", none.clone()),
        (json!({ "cache_salt": "" }), 400, "cache_salt", none.clone()),
        (json!({ "cache_salt": 7 }), 400, "cache_salt", none.clone()),
    ];
    for (more, status, param, code) in bodies {
        check(&toy, "POST", chat, &crate::harness::chat_body(more), status, json!(param), code);
    }
    let prompt = |prompt: Value| json!({ "model": "toy", "prompt": prompt }).to_string();
    let long = prompt(json!("x".repeat(300)));
    check(&toy, "POST", text, &long, 400, json!("prompt"), json!("context_length_exceeded"));
    for wrong in [json!(""), json!([]), json!(1), json!([1, "a"]), json!([99_999]), json!([-1]), json!([{}])]
    {
        check(&toy, "POST", text, &prompt(wrong), 400, json!("prompt"), none.clone());
    }
}

#[test]
fn a_text_that_cannot_fit_is_refused_before_it_is_tokenised() {
    // A context of 8 tokens stands for 4096 bytes at most.
    let toy = start(ToyRunner::new(8), &[]);
    for (bytes, part) in [(4097, "4097 bytes"), (4096, "4096 tokens")] {
        let answer = toy.complete(json!({ "prompt": "x".repeat(bytes) }));
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (400, &json!("context_length_exceeded")));
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
    }
    let messages = json!([{ "role": "user", "content": "x".repeat(4096) }]);
    let error = toy.chat(json!({ "messages": messages })).json()["error"].clone();
    assert!(error["message"].as_str().unwrap().contains("4097 bytes"), "the template adds one: {error}");
}

#[test]
fn reasoning_is_apart_in_a_chat_and_as_written_in_a_completion() {
    let toy = start(ToyRunner::new(256), &[]);
    let said = "<|say|><think>hm</think>so<|end|>";
    // The template's last character stands for the first token that the toy is to say.
    let messages = json!([{ "role": "user", "content": said.replace("<think>", ".<think>") }]);
    let body = toy.chat(json!({ "messages": messages, "temperature": 0 })).json();
    let message = json!({ "role": "assistant", "reasoning_content": "hm", "content": "so" });
    assert_eq!(body["choices"][0]["message"], message);
    let text = |more: Value| {
        let mut asked = json!({ "prompt": said, "temperature": 0 });
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        toy.complete(asked).json()["choices"][0]["text"].clone()
    };
    assert_eq!(text(json!({})), "<think>hm</think>so");
    assert_eq!(text(json!({ "max_tokens": 4 })), "<think>hm</think>", "a marker may come last");
    assert_eq!(text(json!({ "stop": "</think>" })), "<think>hm", "a stop string may be a marker");
}

#[test]
fn an_engine_that_fails_says_so() {
    let failing = start(ToyRunner::new(256).failing_from(3), &[]);
    let events = failing
        .chat(json!({ "max_tokens": 9, "ignore_eos": true, "stream": true, "stream_options": { "include_usage": true } }))
        .events();
    let last = events.last().unwrap();
    assert_eq!(last["error"]["type"], "server_error", "the stream ends with the error, not with [DONE]");
    assert!(events.iter().all(|event| event.get("usage").is_none()));
    let answer = failing.chat(json!({ "max_tokens": 9, "ignore_eos": true }));
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (500, &json!("server_error")));
}
