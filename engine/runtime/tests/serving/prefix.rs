//! What the prefix cache hands out: whole blocks, never a prompt's last token, never across salts.
//!
//! Apart from the simulation, which shows that what it hands out is right: here the counts are worked out by hand.
//! Blocks have 4 tokens throughout.

use std::collections::BTreeMap;

use pitot_runtime::{
    Command, Engine, EngineOptions, PrefixCache, PrefixCounts, Request, Sampling, SequenceId,
};

use crate::drive::{Answer, Clock, engine, finish, gather, greedy, options, request};

/// Runs requests one after the other; the answers in order.
fn one_by_one(engine: &mut Engine, requests: &[Request]) -> Vec<Answer> {
    let mut clock = Clock::default();
    let mut run = |request: &Request| {
        let mut answers = BTreeMap::new();
        engine.apply(Command::Add(request.clone()), clock.read()).unwrap();
        finish(engine, &mut clock, &mut answers);
        answers.remove(&request.id).unwrap()
    };
    requests.iter().map(&mut run).collect()
}

fn short() -> Sampling {
    Sampling { max_tokens: 1, ..greedy() }
}

/// Cached tokens of each prompt, run one after the other with one token of output.
#[track_caller]
fn check(prompts: &[&str], expected: &[u32]) {
    let requests: Vec<Request> =
        prompts.iter().zip(1..).map(|(prompt, id)| request(id, prompt, short())).collect();
    let answers = one_by_one(&mut engine(options()), &requests);
    let cached: Vec<u32> = answers.iter().map(|answer| answer.end().usage.tokens_cached).collect();
    assert_eq!(cached, expected, "{prompts:?}");
}

#[test]
fn whole_blocks_are_shared_and_never_the_last_token() {
    // Two full blocks of ten tokens.
    check(&["abcdefghij", "abcdefghij"], &[0, 8]);
    // The second block is full too, but its last token is the prompt's last.
    check(&["abcdefgh", "abcdefgh"], &[0, 4]);
    check(&["abcdefgh", "abcdefghi"], &[0, 8]);
    // Less than a block, and a block that differs in its last token.
    check(&["abc", "abc"], &[0, 0]);
    check(&["abcdefghij", "abcdefgXij", "abcXefghij"], &[0, 4, 0]);
    // The same tokens elsewhere are another context.
    check(&["abcdefgh", "efghabcdx"], &[0, 0]);
}

#[test]
fn an_answer_is_found_again_as_part_of_the_next_prompt() {
    let mut engine = engine(options());
    let first = request(1, "abcd", Sampling { max_tokens: 6, ..greedy() });
    let answer = one_by_one(&mut engine, std::slice::from_ref(&first)).remove(0);
    // The last of the 6 output tokens was never run: 9 tokens are in the cache, two full blocks.
    let prompt = [first.prompt, answer.tokens].concat();
    let second = Request::new(SequenceId(2), prompt, short());
    assert_eq!(one_by_one(&mut engine, &[second])[0].end().usage.tokens_cached, 8);
}

#[test]
fn what_a_step_computes_is_shared_within_it() {
    let (mut engine, mut clock, mut answers) = (engine(options()), Clock::default(), BTreeMap::new());
    for (id, prompt) in [(1, "abcdefghij"), (2, "abcdefghij"), (3, "abcdefgXij")] {
        engine.apply(Command::Add(request(id, prompt, short())), clock.read()).unwrap();
    }
    // All in one step: 10 tokens of the first, 2 of the second, 6 of the third.
    gather(engine.step(&mut || clock.read()), &mut answers);
    assert_eq!(engine.state().step_tokens, 18);
    finish(&mut engine, &mut clock, &mut answers);
    let cached = |id| answers[&SequenceId(id)].end().usage.tokens_cached;
    assert_eq!([cached(1), cached(2), cached(3)], [0, 8, 4]);
    assert_eq!(answers[&SequenceId(1)].tokens, answers[&SequenceId(2)].tokens);
}

#[test]
fn what_a_failed_step_was_to_compute_is_not_found() {
    let mut engine = engine(options());
    let failing = request(1, "abcdefghijkl<|fail|>", short());
    let answers = one_by_one(&mut engine, &[failing, request(2, "abcdefghijkl", short())]);
    assert_eq!(answers[1].end().usage.tokens_cached, 0);
    // What was computed before the step that failed is.
    let mut engine =
        crate::drive::engine(EngineOptions { batch_tokens_max: 8, sequences_max: 8, ..options() });
    let failing = request(1, "abcdefghijkl<|fail|>", short());
    let answers = one_by_one(&mut engine, &[failing, request(2, "abcdefghijkl", short())]);
    assert_eq!(answers[1].end().usage.tokens_cached, 8);
}

#[test]
fn salts_keep_callers_apart() {
    let salted = |id, salt: Option<&str>| Request {
        cache_salt: salt.map(str::to_owned),
        ..request(id, "abcdefghij", short())
    };
    let requests =
        [salted(1, None), salted(2, Some("a")), salted(3, Some("b")), salted(4, Some("a")), salted(5, None)];
    let answers = one_by_one(&mut engine(options()), &requests);
    let cached: Vec<u32> = answers.iter().map(|answer| answer.end().usage.tokens_cached).collect();
    assert_eq!(cached, [0, 0, 0, 8, 8]);
}

#[test]
fn a_cache_that_is_off_hands_out_nothing() {
    let mut engine = engine(EngineOptions { prefix_cache: PrefixCache::Off, ..options() });
    let answers =
        one_by_one(&mut engine, &[request(1, "abcdefghij", short()), request(2, "abcdefghij", short())]);
    assert_eq!(answers[1].end().usage.tokens_cached, 0);
    let state = engine.state();
    assert_eq!((state.blocks_kept, state.prefix_counts), (0, PrefixCounts { queried: 20, found: 0 }));
}

#[test]
fn what_was_used_longest_ago_is_given_away() {
    // 6 blocks. A prompt of 10 tokens holds 3 and leaves 2 full ones behind.
    let mut engine = engine(EngineOptions { kv_bytes: 24, ..options() });
    let prompts = ["aaaaaaaaaa", "bbbbbbbbbb", "aaaaaaaaaa", "cccccccccc", "aaaaaaaaaa", "bbbbbbbbbb"];
    let requests: Vec<Request> =
        prompts.iter().zip(1..).map(|(prompt, id)| request(id, prompt, short())).collect();
    let answers = one_by_one(&mut engine, &requests);
    let cached: Vec<u32> = answers.iter().map(|answer| answer.end().usage.tokens_cached).collect();
    // a and b fill 4 blocks. c takes the 2 that are free and, since a was used after b, b's second block. a is
    // whole then; b has its first block, and takes one that is free and c's second.
    assert_eq!(cached, [0, 0, 8, 0, 8, 4]);
    let state = engine.state();
    assert_eq!((state.blocks_evicted, state.blocks_used), (2, 0));
    assert_eq!(state.prefix_counts, PrefixCounts { queried: 60, found: 20 });
}

#[test]
fn a_preempted_sequence_keeps_its_first_count_and_is_counted_once() {
    // 24 tokens of cache for two sequences of up to 22 tokens with nothing in common: one has to give way.
    let small = EngineOptions { kv_bytes: 24, sequences_max: 2, ..options() };
    let mut engine = engine(small);
    let (mut clock, mut answers) = (Clock::default(), BTreeMap::new());
    for (id, prompt) in [(1, "ab"), (2, "cd")] {
        let sampling = Sampling { max_tokens: 20, ..greedy() };
        engine.apply(Command::Add(request(id, prompt, sampling)), clock.read()).unwrap();
    }
    finish(&mut engine, &mut clock, &mut answers);
    let second = answers[&SequenceId(2)].end();
    assert!(second.preemptions > 0);
    assert_eq!(second.usage.tokens_cached, 0, "what it finds of its own does not count");
    assert_eq!(engine.state().prefix_counts, PrefixCounts { queried: 4, found: 0 });
}
