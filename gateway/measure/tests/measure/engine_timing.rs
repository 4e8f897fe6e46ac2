//! Timings of other servers: where each stands, and what is to be known about it.
//!
//! Apart as one table of shapes. Must not know: the readers.

use pitot_measure::families::{self, Family, Label};
use pitot_measure::{BodyKind, Endpoint, Event, Observer, Options, TimingSource, TtftOrigin, UpstreamTiming};

use crate::play::{DONE, Play, at, content, finish, usage};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

fn nothing(source: TimingSource) -> UpstreamTiming {
    UpstreamTiming {
        source,
        queue_ns: None,
        prefill_ns: None,
        ttft: None,
        decode_ns: None,
        total_ns: None,
        tokens_input: None,
        tokens_cached: None,
        tokens_output: None,
        tokens_reasoning: None,
        tokens_content: None,
        tokens_unclassified: None,
    }
}

const PLAIN: &str = "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7}";

/// The same members on the last chunk of a stream and in a whole reply.
#[track_caller]
fn check(name: &str, members: &str, expected: Option<UpstreamTiming>) {
    let last = format!("data: {{\"choices\":[],{members}}}\n\n");
    let streamed =
        Play::chat().read(50, &content("a")).read(70, &[finish("stop"), last, DONE.into()].concat());
    let record = streamed.ended(80).run();
    assert_eq!(record.upstream_timing, expected, "{name}, streamed");
    let body = format!(
        "{{\"choices\":[{{\"message\":{{\"content\":\"a\"}},\"finish_reason\":\"stop\"}}],{members}}}"
    );
    let record = Play::whole().read(90, &body).ended(95).run();
    assert_eq!(record.upstream_timing, expected, "{name}, whole");
}

#[test]
fn vllm_and_its_kin() {
    check("none", PLAIN, None);
    let five = "\"metrics\":{\"time_to_first_token_ms\":85.2,\"generation_time_ms\":1240.5,\"queue_time_ms\":12.3,\
                \"mean_itl_ms\":9.1,\"tokens_per_second\":103.2";
    let vllm = UpstreamTiming {
        queue_ns: Some(12_300 * US),
        prefill_ns: Some(85_200 * US),
        ttft: Some((85_200 * US, TtftOrigin::Scheduled)),
        decode_ns: Some(1_240_500 * US),
        ..nothing(TimingSource::Vllm)
    };
    check("vLLM", &format!("{PLAIN},{five}}}"), Some(vllm));
    let parts = ",\"output_token_metrics\":{\"reasoning\":{\"token_count\":9,\"time_to_first_token_ms\":85.2},\
                 \"content\":{\"token_count\":0},\"unclassified_token_count\":2}}";
    let counted = UpstreamTiming {
        tokens_reasoning: Some(9),
        tokens_content: Some(0),
        tokens_unclassified: Some(2),
        ..vllm
    };
    check("vLLM, classified", &format!("{PLAIN},{five}{parts}"), Some(counted));
    let nulls =
        "\"metrics\":{\"time_to_first_token_ms\":null,\"generation_time_ms\":null,\"queue_time_ms\":null}";
    check("vLLM without stamps", &format!("{PLAIN},{nulls}"), None);
}

#[test]
fn llama_cpp() {
    let timings = "\"timings\":{\"cache_n\":236,\"prompt_n\":1,\"prompt_ms\":30.958,\"predicted_n\":35,\
                   \"predicted_ms\":661.064,\"predicted_per_token_ms\":18.8875}";
    let llama = UpstreamTiming {
        prefill_ns: Some(30_958 * US),
        ttft: Some((30_958 * US, TtftOrigin::Scheduled)),
        decode_ns: Some(661_064 * US),
        tokens_input: Some(237), // 1 evaluated + 236 reused
        tokens_cached: Some(236),
        tokens_output: Some(35),
        ..nothing(TimingSource::LlamaCpp)
    };
    check("llama.cpp", &format!("{PLAIN},{timings}"), Some(llama));
    let older = "\"timings\":{\"prompt_n\":0,\"prompt_ms\":3.5,\"predicted_n\":4,\"predicted_ms\":8}";
    let dropped =
        UpstreamTiming { decode_ns: Some(8 * MS), tokens_output: Some(4), ..nothing(TimingSource::LlamaCpp) };
    check("llama.cpp, a prefill of no tokens", &format!("{PLAIN},{older}"), Some(dropped));
}

#[test]
fn nim_lm_studio_and_dynamo() {
    let nim = "\"stats\":{\"type\":\"NIM LLM Model Stats\",\"version\":\"0.1.0\",\"llm_input_token_length\":512,\
               \"llm_output_token_length\":64,\"generation_time_in_ms\":800.0,\"time_in_queue_in_ms\":10.0,\
               \"response_tokens\":{\"response_token_length\":64,\"time_to_first_token_in_ms\":110.0}}";
    let expected = UpstreamTiming {
        queue_ns: Some(10 * MS),
        ttft: Some((110 * MS, TtftOrigin::Arrival)),
        decode_ns: Some(800 * MS),
        tokens_input: Some(512),
        tokens_output: Some(64),
        ..nothing(TimingSource::Nim)
    };
    check("NIM", &format!("{PLAIN},{nim}"), Some(expected));
    let studio = "\"stats\":{\"tokens_per_second\":51.43,\"time_to_first_token\":0.111,\"generation_time\":0.954,\
                  \"stop_reason\":\"eosFound\"}";
    let expected = UpstreamTiming {
        ttft: Some((111 * MS, TtftOrigin::Arrival)),
        decode_ns: Some(954 * MS),
        ..nothing(TimingSource::LmStudio)
    };
    check("LM Studio", &format!("{PLAIN},{studio}"), Some(expected));

    let dynamo = "\"nvext\":{\"worker_id\":{\"prefill\":1},\"timing\":{\"request_received_ms\":1777312800000,\
                  \"prefill_wait_time_ms\":12.25,\"prefill_time_ms\":70,\"ttft_ms\":82.25,\"total_time_ms\":1000.5,\
                  \"kv_hit_rate\":0.875}}";
    let expected = UpstreamTiming {
        queue_ns: Some(12_250 * US),
        prefill_ns: Some(70 * MS),
        ttft: Some((82_250 * US, TtftOrigin::Arrival)),
        total_ns: Some(1_000_500 * US),
        ..nothing(TimingSource::Dynamo)
    };
    check("Dynamo", &format!("{PLAIN},{dynamo}"), Some(expected));
}

#[test]
fn groq_mistral_rs_ollama_and_sglang() {
    let counts = "\"prompt_tokens\":18,\"completion_tokens\":96,\"total_tokens\":114";
    let seconds = format!(
        "{counts},\"queue_time\":0.001,\"prompt_time\":0.002,\"completion_time\":0.25,\"total_time\":0.252"
    );
    let groq = UpstreamTiming {
        queue_ns: Some(MS),
        prefill_ns: Some(2 * MS),
        decode_ns: Some(250 * MS),
        total_ns: Some(252 * MS),
        tokens_input: Some(18),
        tokens_output: Some(96),
        ..nothing(TimingSource::Groq)
    };
    check("Groq, usage", &format!("\"usage\":{{{seconds}}}"), Some(groq));
    check(
        "Groq, x_groq",
        &format!("{PLAIN},\"x_groq\":{{\"id\":\"r\",\"usage\":{{{seconds}}}}}"),
        Some(groq),
    );

    let sums = "\"total_time_sec\":0.5,\"total_prompt_time_sec\":0.1,\"total_completion_time_sec\":0.4";
    let mistral = UpstreamTiming {
        prefill_ns: Some(100 * MS),
        decode_ns: Some(400 * MS),
        total_ns: Some(500 * MS),
        tokens_input: Some(18),
        tokens_output: Some(96),
        ..nothing(TimingSource::MistralRs)
    };
    check("mistral.rs", &format!("\"usage\":{{{counts},{sums}}}"), Some(mistral));
    let zeros = "\"total_time_sec\":0.0,\"total_prompt_time_sec\":0.0,\"total_completion_time_sec\":0.0";
    let only_counts = UpstreamTiming {
        tokens_input: Some(18),
        tokens_output: Some(96),
        ..nothing(TimingSource::MistralRs)
    };
    check("mistral.rs, unknown", &format!("\"usage\":{{{counts},{zeros}}}"), Some(only_counts));

    let ollama = "\"total_duration\":174560334,\"load_duration\":101397084,\"prompt_eval_count\":11,\
                  \"prompt_eval_duration\":13074791,\"eval_count\":18,\"eval_duration\":52479709";
    let expected = UpstreamTiming {
        prefill_ns: Some(13_074_791),
        decode_ns: Some(52_479_709),
        total_ns: Some(174_560_334),
        tokens_input: Some(11),
        tokens_output: Some(18),
        ..nothing(TimingSource::Ollama)
    };
    check("Ollama", &format!("{PLAIN},{ollama}"), Some(expected));

    let sglang =
        "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":9,\"total_tokens\":14,\"reasoning_tokens\":4}";
    check("SGLang has none", sglang, None);
}

#[test]
fn absurd_times_are_none() {
    for value in ["-1", "1e300", "\"12\"", "null", "{}", "0", "0.0", "1e-9"] {
        check(value, &format!("{PLAIN},\"metrics\":{{\"generation_time_ms\":{value}}}"), None);
    }
}

#[test]
fn the_first_source_wins_and_the_latest_of_it() {
    let both = format!(
        "{PLAIN},\"timings\":{{\"predicted_n\":2,\"predicted_ms\":9}},\"metrics\":{{\"generation_time_ms\":7}}"
    );
    let expected = UpstreamTiming { decode_ns: Some(7 * MS), ..nothing(TimingSource::Vllm) };
    check("two sources", &both, Some(expected));
    // llama.cpp writes running timings on each chunk if it is asked to.
    let chunk = |n: u64| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a\"}}}}],\"timings\":{{\"predicted_n\":{n},\"predicted_ms\":{n}}}}}\n\n"
        )
    };
    let play = Play::chat()
        .read(50, &[chunk(1), chunk(2), chunk(3)].concat())
        .read(60, &[finish("stop"), usage(5, 3), DONE.into()].concat())
        .ended(70);
    let timing = play.run().upstream_timing.unwrap();
    assert_eq!((timing.decode_ns, timing.tokens_output), (Some(3 * MS), Some(3)));
}

fn with_head(fields: &[(&str, &str)], members: &str) -> pitot_measure::Record {
    let mut observer = Observer::new(Play::new(Endpoint::ChatCompletions, false).facts, Options::default());
    observer.observe(at(10), Event::AttemptStarted);
    observer.observe(at(10), Event::RequestSent);
    observer.observe(at(15), Event::Head { status: 200, body: BodyKind::Json });
    for (name, value) in fields {
        observer.observe(at(15), Event::HeadField { name, value });
    }
    let body = format!(
        "{{\"choices\":[{{\"message\":{{\"content\":\"a\"}},\"finish_reason\":\"stop\"}}],{members}}}"
    );
    observer.observe(at(20), Event::UpstreamBytes(body.as_bytes()));
    observer.observe(at(21), Event::UpstreamEof);
    observer.finish(at(22), pitot_measure::Ending::UpstreamEnded, Some(200))
}

#[test]
fn the_head_of_tgi() {
    let fields = [
        ("x-compute-type", "1-a10g"),
        ("X-Compute-Time", "0.4512"),
        ("x-total-time", "451"),
        ("x-validation-time", "0"),
        ("x-queue-time", "3"),
        ("x-inference-time", "447"),
        ("x-time-per-token", "22"),
        ("x-prompt-tokens", "11"),
        ("x-generated-tokens", "20"),
    ];
    let expected = UpstreamTiming {
        queue_ns: Some(3 * MS),
        total_ns: Some(451_200 * US),
        tokens_input: Some(11),
        tokens_output: Some(20),
        ..nothing(TimingSource::Tgi)
    };
    let record = with_head(&fields, PLAIN);
    assert_eq!(record.upstream_timing, Some(expected));
    for (name, _) in fields {
        let known = pitot_measure::HEAD_FIELDS.contains(&name.to_ascii_lowercase().as_str());
        assert_eq!(known, name != "x-compute-type", "{name}");
    }
    // A queue under a millisecond is cut off to 0, which is unknown here.
    let short = with_head(&[("x-queue-time", "0"), ("x-total-time", "5")], PLAIN).upstream_timing.unwrap();
    assert_eq!((short.queue_ns, short.total_ns), (None, Some(5 * MS)));
    assert_eq!(
        with_head(&[("x-queue-time", "soon"), ("x-prompt-tokens", "-4")], PLAIN).upstream_timing,
        None
    );
    let body = format!("{PLAIN},\"metrics\":{{\"generation_time_ms\":7}}");
    assert_eq!(with_head(&fields, &body).upstream_timing.unwrap().source, TimingSource::Vllm);
}

#[test]
fn a_response_of_the_responses_format_has_it_at_its_top() {
    let end = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\
         \"usage\":{\"input_tokens\":5,\"output_tokens\":2},\"metrics\":{\"queue_time_ms\":4}}}\n\n";
    let delta = "data: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n";
    let play = Play::new(Endpoint::Responses, true)
        .sent(10)
        .head(15, 200, BodyKind::EventStream)
        .read(50, delta)
        .read(60, end)
        .ended(70);
    let record = play.run();
    assert_eq!(record.upstream_timing.unwrap().queue_ns, Some(4 * MS));
    let line = serde_json::to_value(&record).unwrap();
    assert_eq!(
        (&line["upstream_timing_source"], &line["upstream_queue_ns"]),
        (&"vllm".into(), &4_000_000.into())
    );
    let sample = families::samples(&record).into_iter().find(|sample| sample.family == Family::UpstreamQueue);
    assert_eq!(sample.map(|sample| sample.value), Some(0.004));
    assert_eq!(families::label_value(&record, Label::Source), Some("vllm"));
}
