//! One request at a time: how it ends, what its text is, what is counted and stamped.
//!
//! Apart from the simulation because each expectation here is worked out by hand from the toy's rules.

use std::collections::BTreeMap;

use pitot_runtime::testing::{TOY_END, TOY_THINK_END};
use pitot_runtime::{
    Command, EngineOptions, Finish, OutputSplit, Part, Refusal, Sampling, SequenceId, Stamps, StopCause,
    StopText,
};

use crate::drive::{Answer, Clock, TICK, engine, finish, greedy, options, request};

fn answer(prompt: &str, sampling: Sampling, options: EngineOptions) -> Answer {
    let (mut engine, mut clock, mut answers) = (engine(options), Clock::default(), BTreeMap::new());
    let now = clock.read();
    engine.apply(Command::Add(request(1, prompt, sampling)), now).unwrap();
    finish(&mut engine, &mut clock, &mut answers);
    assert_eq!(engine.state().blocks_used, 0, "an engine without work holds no block");
    answers.remove(&SequenceId(1)).unwrap()
}

fn text_stop(stop: &str) -> Finish {
    Finish::Stop { stop: Some(StopCause::Text(stop.to_owned())) }
}

const END_TOKEN: Finish = Finish::Stop { stop: None };

/// What is said, and how; then the text, the number of tokens, and why it ended.
#[track_caller]
fn check(said: &str, sampling: Sampling, content: &str, tokens: u32, finish: Finish) {
    let answer = answer(&format!("<|say|>{said}<|end|>"), sampling, options());
    let end = answer.end();
    assert_eq!((answer.content.as_str(), end.usage.tokens_output, &end.finish), (content, tokens, &finish));
    assert_eq!(answer.tokens.len() as u32, tokens);
    let OutputSplit { reasoning, content, tokens_unclassified } = end.split;
    assert_eq!(reasoning.tokens + content.tokens + tokens_unclassified, tokens, "the split adds up");
}

#[test]
fn a_sequence_ends_for_its_reason() {
    check("hello", greedy(), "hello", 6, END_TOKEN);
    check("", greedy(), "", 1, END_TOKEN);
    check("hello", Sampling { max_tokens: 3, ..greedy() }, "hel", 3, Finish::Length);
    let stop_token = Sampling { stop_token_ids: vec![u32::from(b'l')], ..greedy() };
    let by_token = Finish::Stop { stop: Some(StopCause::TokenId(u32::from(b'l'))) };
    check("hello", stop_token, "he", 3, by_token);
    check("hello", Sampling { ignore_eos: true, max_tokens: 8, ..greedy() }, "hellohe", 8, Finish::Length);
    let end_as_stop = Sampling { ignore_eos: true, stop_token_ids: vec![TOY_END], ..greedy() };
    check("hello", end_as_stop, "hello", 6, Finish::Stop { stop: Some(StopCause::TokenId(TOY_END)) });
}

#[test]
fn stop_strings_cut_the_text_and_their_tokens_count() {
    let stop =
        |stops: &[&str]| Sampling { stop: stops.iter().map(|s| (*s).to_owned()).collect(), ..greedy() };
    check("one, two, three", stop(&[", t"]), "one", 6, text_stop(", t"));
    check("one, two", stop(&["x", "wo"]), "one, t", 8, text_stop("wo"));
    check("naïve café", stop(&["é"]), "naïve caf", 12, text_stop("é"));
    check("wait STO", stop(&["STOP"]), "wait STO", 9, END_TOKEN);
    check("wait STO", Sampling { max_tokens: 8, ..stop(&["STOP"]) }, "wait STO", 8, Finish::Length);
}

#[test]
fn neither_end_nor_stop_comes_before_the_least_number_of_tokens() {
    // The stop string within the first five tokens is not looked for; the second one is.
    let sampling = Sampling { min_tokens: 5, stop: vec!["ab".to_owned()], ..greedy() };
    check("ababcdab", sampling, "ababcd", 8, text_stop("ab"));
    // The end token is banned at first; no other token has a logit there.
    let answer = answer("<|say|>a<|end|>", Sampling { min_tokens: 3, ..greedy() }, options());
    assert!(matches!(&answer.end().finish, Finish::Error(error) if error.contains("no finite logit")));
}

#[test]
fn the_context_ends_a_sequence() {
    // 20 tokens of cache: 3 of prompt and 17 of output.
    let answer = answer("abc", greedy(), EngineOptions { kv_bytes: 20, ..options() });
    assert_eq!((answer.tokens.len(), &answer.end().finish), (17, &Finish::Length));
}

#[test]
fn reasoning_is_told_from_content_by_its_markers() {
    let answer = answer("<|say|><think>hmm</think>so<|end|>", greedy(), options());
    assert_eq!((answer.reasoning.as_str(), answer.content.as_str()), ("hmm", "so"));
    // The clock: 10 the request, then each step reads its top and its end. Token n (from 1) ends at 10 + 20 n.
    let at = |token: u64| Some(TICK + 2 * TICK * token);
    let expected = OutputSplit {
        reasoning: Part { tokens: 3, first: at(2), last: at(4) },
        content: Part { tokens: 2, first: at(6), last: at(7) },
        tokens_unclassified: 3,
    };
    assert_eq!(answer.end().split, expected);
    let stamps = Stamps { queued: Some(TICK), scheduled: Some(2 * TICK), first: at(1), last: at(8) };
    assert_eq!(answer.end().stamps, stamps);
}

#[test]
fn text_held_back_stays_in_its_channel() {
    let stop = |stop: &str| Sampling { stop: vec![stop.to_owned()], ..greedy() };
    // "m" may begin "mo", and is let go at the marker.
    let held = answer("<|say|><think>hm</think>o<|end|>", stop("mo"), options());
    assert_eq!((held.reasoning.as_str(), held.content.as_str()), ("hm", "o"));
    let marker = answer("<|say|><think>hm</think>o<|end|>", stop("</think>"), options());
    assert_eq!((marker.reasoning.as_str(), marker.content.as_str()), ("hm", ""));
    assert_eq!(marker.end().finish, text_stop("</think>"));
    assert_eq!(marker.tokens.last(), Some(&TOY_THINK_END));
}

#[test]
fn log_probabilities_are_of_the_whole_vocabulary() {
    let answer = answer("ab", Sampling { logprobs: Some(2), max_tokens: 1, ..greedy() }, options());
    // Weights e^(-k/4), k = 0 to 25: the likeliest has 1 / their sum.
    let sum: f32 = (0..26).map(|k| (-0.25 * k as f32).exp()).sum();
    let found = &answer.logprobs[0];
    assert!((found.logprob + sum.ln()).abs() < 1e-5, "{found:?}");
    assert_eq!(
        found.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(),
        [u32::from(b'h'), u32::from(b'i')]
    );
    assert!((found.top[1].1 + 0.25 + sum.ln()).abs() < 1e-5, "{found:?}");
}

#[test]
fn a_stop_string_is_kept_when_it_is_asked_for() {
    let stop = |stop: &str, stop_text| Sampling { stop: vec![stop.to_owned()], stop_text, ..greedy() };
    check("one, two", stop("wo", StopText::Cut), "one, t", 8, text_stop("wo"));
    check("one, two", stop("wo", StopText::Kept), "one, two", 8, text_stop("wo"));
    check("hello", stop("x", StopText::Kept), "hello", 6, END_TOKEN);
}

#[test]
fn penalties_and_bias_change_what_is_likeliest() {
    // After "ab" comes h, then (293 + 3·104) mod 26 = 7, an h again; each later letter loses a quarter of a logit.
    check_letters(greedy(), "hh");
    // One h in the output costs 0.375: i at -0.25 is likelier.
    check_letters(Sampling { presence_penalty: 0.375, ..greedy() }, "hi");
    check_letters(Sampling { frequency_penalty: 0.375, ..greedy() }, "hi");
    // j is at -0.5 first; after "abj", (293 + 3·106) mod 26 = 13, it is too far behind the n.
    check_letters(Sampling { logit_bias: vec![(u32::from(b'j'), 0.75)], ..greedy() }, "jn");
    // The likeliest logit is 0, which no repetition penalty changes.
    check_letters(Sampling { repetition_penalty: 2.0, ..greedy() }, "hh");
}

/// The first two letters after "ab".
#[track_caller]
fn check_letters(sampling: Sampling, expected: &str) {
    assert_eq!(answer("ab", Sampling { max_tokens: 2, ..sampling }, options()).content, expected);
}

#[test]
fn a_prompt_is_scored_from_its_second_token() {
    // After "a" comes t, after "ab" h: the b is 8 letters behind t (round the alphabet), the h the likeliest.
    let sampling = Sampling { prompt_logprobs: Some(1), max_tokens: 1, ..greedy() };
    let sum: f32 = (0..26).map(|k| (-0.25 * k as f32).exp()).sum();
    for batch_tokens_max in [512, 2, 1] {
        let options = EngineOptions { batch_tokens_max, sequences_max: 1, ..options() };
        let answer = answer("abh", sampling.clone(), options);
        let found: Vec<f32> = answer.prompt_logprobs.iter().map(|scored| scored.logprob + sum.ln()).collect();
        assert!(found.len() == 2 && (found[0] + 2.0).abs() < 1e-5 && found[1].abs() < 1e-5, "{found:?}");
        let top: Vec<u32> = answer.prompt_logprobs.iter().map(|scored| scored.top[0].0).collect();
        assert_eq!(top, [u32::from(b't'), u32::from(b'h')]);
        assert_eq!(answer.tokens.len(), 1);
    }
}

#[test]
fn a_scored_prompt_takes_nothing_from_the_cache_and_little_of_a_step() {
    let (mut engine, mut clock, mut answers) = (engine(options()), Clock::default(), BTreeMap::new());
    let prompt = "x".repeat(200);
    for (id, prompt_logprobs) in [(1, None), (2, Some(0)), (3, None)] {
        let sampling = Sampling { prompt_logprobs, max_tokens: 1, ..greedy() };
        engine.apply(Command::Add(request(id, &prompt, sampling)), clock.read()).unwrap();
        let before = clock.read();
        finish(&mut engine, &mut clock, &mut answers);
        // A step reads the clock twice, the last one's end being the last reading; 64 rows a step are scored.
        let steps = (clock.read() - before) / (2 * TICK);
        let end = answers[&SequenceId(id)].end();
        let expected = if id == 2 { (4, 0) } else { (1, if id == 1 { 0 } else { 196 }) };
        assert_eq!((steps, end.usage.tokens_cached), expected, "sequence {id}");
    }
    assert_eq!(answers[&SequenceId(2)].prompt_logprobs.len(), 199);
}

#[test]
fn a_prompt_in_chunks_keeps_its_first_schedule() {
    // 10 tokens of prompt in steps of 4: the first token comes with the third step.
    let answer = answer(
        "abcdefghij",
        Sampling { max_tokens: 1, ..greedy() },
        EngineOptions { batch_tokens_max: 4, ..options() },
    );
    let Stamps { scheduled, first, .. } = answer.end().stamps;
    // Each step reads the clock twice; the third one ends at the seventh reading.
    assert_eq!((scheduled, first), (Some(2 * TICK), Some(7 * TICK)));
}

#[test]
fn a_failing_step_ends_its_sequences_and_the_engine_goes_on() {
    let (mut engine, mut clock, mut answers) = (engine(options()), Clock::default(), BTreeMap::new());
    for (id, prompt) in [(1, "abc"), (2, "x<|fail|>")] {
        engine.apply(Command::Add(request(id, prompt, greedy())), clock.read()).unwrap();
    }
    finish(&mut engine, &mut clock, &mut answers);
    for answer in answers.values() {
        assert!(matches!(&answer.end().finish, Finish::Error(error) if error.contains("told to fail")));
        assert_eq!((answer.end().stamps.first, answer.end().usage.tokens_output), (None, 0));
    }
    engine.apply(Command::Add(request(3, "<|say|>ok<|end|>", greedy())), clock.read()).unwrap();
    finish(&mut engine, &mut clock, &mut answers);
    assert_eq!(answers[&SequenceId(3)].content, "ok");
}

#[test]
fn an_abort_ends_a_sequence_wherever_it_is() {
    let mut engine = engine(EngineOptions { sequences_max: 1, ..options() });
    let (mut clock, mut answers) = (Clock::default(), BTreeMap::new());
    for id in [1, 2] {
        engine.apply(Command::Add(request(id, "abc", greedy())), clock.read()).unwrap();
    }
    crate::drive::gather(engine.step(&mut || clock.read()), &mut answers);
    assert_eq!((engine.state().running, engine.state().waiting), (1, 1));
    for id in [1, 2, 1, 77] {
        engine.apply(Command::Abort(SequenceId(id)), clock.read()).unwrap();
    }
    assert!(engine.has_work(), "the ends are still to come");
    finish(&mut engine, &mut clock, &mut answers);
    let (running, waiting) = (answers[&SequenceId(1)].end(), answers[&SequenceId(2)].end());
    assert_eq!((&running.finish, running.usage.tokens_output), (&Finish::Abort, 1));
    assert_eq!((&waiting.finish, waiting.usage.tokens_output), (&Finish::Abort, 0));
    assert_eq!(waiting.stamps, Stamps { queued: Some(2 * TICK), ..Stamps::default() });
    assert_eq!(answers.len(), 2);
}

#[test]
fn what_cannot_run_is_refused() {
    let mut engine = engine(EngineOptions { waiting_max: 2, kv_bytes: 20, ..options() });
    let mut refuse = |command| engine.apply(command, 0).unwrap_err();
    let add = |id, prompt: &str, sampling| Command::Add(request(id, prompt, sampling));
    assert_eq!(refuse(add(1, "", greedy())), Refusal::EmptyPrompt);
    assert_eq!(refuse(add(1, &"a".repeat(20), greedy())), Refusal::PromptTooLong { tokens: 20, max: 19 });
    let mut unknown = request(1, "a", greedy());
    unknown.prompt.push(261);
    assert_eq!(refuse(Command::Add(unknown)), Refusal::UnknownToken { token: 261, vocabulary: 261 });
    let none = Sampling { max_tokens: 0, ..greedy() };
    assert_eq!(refuse(add(1, "a", none)).to_string(), "max_tokens must be at least 1, got 0");
    let biased = Sampling { logit_bias: vec![(261, 1.0)], ..greedy() };
    let message = "logit_bias must be of tokens in the vocabulary, got 261";
    assert_eq!(refuse(add(1, "a", biased)).to_string(), message);
    engine.apply(add(1, "a", greedy()), 0).unwrap();
    assert_eq!(engine.apply(add(1, "a", greedy()), 0), Err(Refusal::DuplicateId { id: SequenceId(1) }));
    engine.apply(add(2, "a", greedy()), 0).unwrap();
    assert_eq!(engine.apply(add(3, "a", greedy()), 0), Err(Refusal::QueueFull { waiting: 2 }));
    engine.apply(Command::Drain, 0).unwrap();
    assert_eq!(engine.apply(add(3, "a", greedy()), 0), Err(Refusal::Draining));
    let mut answers = BTreeMap::new();
    finish(&mut engine, &mut Clock::default(), &mut answers);
    assert_eq!(answers.len(), 2, "what was taken in before the drain is finished");
}
