//! What other servers say of their own times: it passes unchanged, and is kept in one form.
//!
//! Apart from the gateway's own times, with which these are never mixed. Samples are as the servers' documents show
//! them, with numbers that tell one phase from another. Must not know: other sections.

use crate::faults::case::{Case, Section, case};
use crate::faults::check::{Check, all, counts, is, null, success};
use crate::faults::dialect::{Dialect, Finish, Mode, Usage, chat_chunk, frame};
use crate::faults::script::Play;

use Dialect::Chat;

const COUNTS: Usage = Usage { input: 7, output: 5, reasoning: None, cached: None };
const MS: u64 = 1_000_000;

/// Members of the reply (each with a leading comma), further members of its usage, and what is due.
struct Sample {
    name: &'static str,
    members: &'static str,
    in_usage: &'static str,
    due: Vec<Check>,
}

pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> =
        engines().iter().chain(&others()).flat_map(|sample| [whole(sample), stream(sample)]).collect();
    cases.extend([headers(), nothing(Mode::Stream), nothing(Mode::Whole)]);
    cases
}

fn of(name: &str, mode: Mode) -> Case {
    case(Section::OtherTimings, name, Chat, mode).record(all([success(), counts(7, 5)]))
}

fn usage_with(more: &str) -> String {
    let usage = COUNTS.json(Chat);
    [&usage[..usage.len() - 1], more, "}"].concat()
}

fn whole(sample: &Sample) -> Case {
    let body =
        Chat.whole_chat(r#"{"role":"assistant","content":"x"}"#, Finish::Stop, &usage_with(sample.in_usage));
    let body = [&body[..body.len() - 1], sample.members, "}"].concat();
    of(sample.name, Mode::Whole).plays(Play::json(200, body)).record(sample.due.clone())
}

/// On the chunk with the usage, for a caller that asked for it.
fn stream(sample: &Sample) -> Case {
    let more = format!(r#","usage":{}{}"#, usage_with(sample.in_usage), sample.members);
    let play =
        Play::sse().text(Chat, "x").send(Chat.finish(Finish::Stop)).if_asked(frame(&chat_chunk("", &more)));
    of(sample.name, Mode::Stream)
        .asking_usage()
        .plays(play.send(frame("[DONE]")).end())
        .record(sample.due.clone())
}

fn phases(source: &str, queue: Option<u64>, prefill: Option<u64>, decode: Option<u64>) -> Vec<Check> {
    let phase = |field, ms: Option<u64>| ms.map_or(null(field), |ms| is(field, ms * MS));
    vec![
        is("upstream_timing_source", source),
        phase("upstream_queue_ns", queue),
        phase("upstream_prefill_ns", prefill),
        phase("upstream_decode_ns", decode),
    ]
}

fn ttft(ms: u64, origin: &str) -> Vec<Check> {
    vec![is("upstream_ttft_ns", ms * MS), is("upstream_ttft_origin", origin)]
}

fn sample(name: &'static str, members: &'static str, in_usage: &'static str, due: Vec<Check>) -> Sample {
    Sample { name, members, in_usage, due }
}

/// Servers that one runs oneself, in objects of their own.
fn engines() -> Vec<Sample> {
    vec![
        sample(
            "t06.vllm",
            r#","metrics":{"time_to_first_token_ms":300,"generation_time_ms":500,"queue_time_ms":200,"mean_itl_ms":125,"tokens_per_second":6.25}"#,
            "",
            all([phases("vllm", Some(200), Some(300), Some(500)), ttft(300, "scheduled")]),
        ),
        sample(
            "t06.vllm_of_nulls",
            r#","metrics":{"time_to_first_token_ms":null,"generation_time_ms":500,"queue_time_ms":null,"mean_itl_ms":null,"tokens_per_second":null}"#,
            "",
            phases("vllm", None, None, Some(500)),
        ),
        sample(
            "t06.llama_cpp",
            r#","timings":{"cache_n":3,"prompt_n":4,"prompt_ms":40.0,"prompt_per_token_ms":10.0,"prompt_per_second":100.0,"predicted_n":5,"predicted_ms":100.0,"predicted_per_token_ms":20.0,"predicted_per_second":50.0}"#,
            "",
            all([
                phases("llama_cpp", None, Some(40), Some(100)),
                // What was taken from the cache is input too.
                vec![
                    is("upstream_input_tokens", 7),
                    is("upstream_cached_tokens", 3),
                    is("upstream_output_tokens", 5),
                ],
            ]),
        ),
        sample(
            "t06.dynamo",
            r#","nvext":{"timing":{"request_received_ms":1700000000000,"prefill_wait_time_ms":10.0,"prefill_time_ms":40.0,"ttft_ms":50.0,"total_time_ms":200.0,"kv_hit_rate":0.5}}"#,
            "",
            all([
                phases("dynamo", Some(10), Some(40), None)[..3].to_vec(),
                ttft(50, "arrival"),
                vec![is("upstream_total_ns", 200 * MS)],
            ]),
        ),
        sample(
            "t06.nim",
            r#","stats":{"type":"NIM LLM Model Stats","version":"1","llm_input_token_length":7,"llm_output_token_length":5,"generation_time_in_ms":100.0,"time_in_queue_in_ms":10.0,"response_tokens":{"response_token_length":5,"time_to_first_token_in_ms":50.0,"token_to_token_time_in_ms":25.0,"tokens_per_second":50.0}}"#,
            "",
            all([
                vec![is("upstream_timing_source", "nim"), is("upstream_queue_ns", 10 * MS)],
                ttft(50, "arrival"),
            ]),
        ),
    ]
}

/// Servers that put their times beside the counts, and replies with more than one source.
fn others() -> Vec<Sample> {
    vec![
        sample(
            "t06.groq",
            r#","x_groq":{"id":"q-1","usage":{"queue_time":0.01,"prompt_tokens":7,"prompt_time":0.02,"completion_tokens":5,"completion_time":0.1,"total_tokens":12,"total_time":0.12}}"#,
            "",
            all([phases("groq", Some(10), Some(20), Some(100)), vec![is("upstream_total_ns", 120 * MS)]]),
        ),
        sample(
            "t06.groq_in_usage",
            "",
            r#","queue_time":0.01,"prompt_time":0.02,"completion_time":0.1,"total_time":0.12"#,
            phases("groq", Some(10), Some(20), Some(100)),
        ),
        sample(
            "t06.mistral_rs",
            "",
            r#","avg_tok_per_sec":85.7,"avg_prompt_tok_per_sec":175.0,"avg_compl_tok_per_sec":50.0,"total_time_sec":0.14,"total_prompt_time_sec":0.04,"total_completion_time_sec":0.1"#,
            phases("mistral_rs", None, Some(40), Some(100)),
        ),
        sample(
            "t06.ollama",
            r#","total_duration":160000000,"load_duration":10000000,"prompt_eval_count":7,"prompt_eval_duration":40000000,"eval_count":5,"eval_duration":100000000"#,
            "",
            all([phases("ollama", None, Some(40), Some(100)), vec![is("upstream_total_ns", 160 * MS)]]),
        ),
        sample(
            "t06.lm_studio",
            r#","stats":{"tokens_per_second":50.0,"time_to_first_token":0.05,"generation_time":0.15,"stop_reason":"eosFound"}"#,
            "",
            vec![
                is("upstream_timing_source", "lm_studio"),
                is("upstream_ttft_ns", 50 * MS),
                null("upstream_queue_ns"),
            ],
        ),
        // The first source that is there is taken, and no two are mixed.
        sample(
            "t06.two_sources",
            r#","timings":{"prompt_n":7,"prompt_ms":40.0,"predicted_n":5,"predicted_ms":100.0},"metrics":{"time_to_first_token_ms":300,"generation_time_ms":500,"queue_time_ms":200,"mean_itl_ms":125,"tokens_per_second":6.25}"#,
            "",
            phases("vllm", Some(200), Some(300), Some(500)),
        ),
    ]
}

/// TGI says it in the head of a reply, in whole milliseconds, and does not tell prefill from decode.
fn headers() -> Case {
    let lines = "content-type: application/json\r\nx-compute-time: 0.162\r\nx-validation-time: 2\r\nx-queue-time: 10\r\nx-inference-time: 150\r\nx-time-per-token: 30\r\n";
    let body = Chat.whole("x", Finish::Stop, &COUNTS);
    of("t06.tgi", Mode::Whole)
        .plays(Play::reply(200, lines, body))
        .header("x-inference-time", "150")
        .record(phases("tgi", Some(10), None, None))
}

fn nothing(mode: Mode) -> Case {
    let play = crate::faults::dialect::answer(Chat, mode, &COUNTS);
    of("t06.nothing_said", mode).plays(play).record(
        [
            "upstream_timing_source",
            "upstream_queue_ns",
            "upstream_prefill_ns",
            "upstream_ttft_ns",
            "upstream_decode_ns",
            "upstream_total_ns",
        ]
        .map(null),
    )
}
