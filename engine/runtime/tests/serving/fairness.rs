//! Who goes first: decodes before prompts, the earlier before the later, the lower priority number before the
//! higher.
//!
//! Apart because these are promises about order and time, not about what is generated.

use std::collections::BTreeMap;

use pitot_runtime::{Command, Engine, EngineOptions, Output, Request, Sampling, SequenceId};

use crate::drive::{Answer, Clock, engine, finish, gather, greedy, options, request};

fn add(engine: &mut Engine, clock: &mut Clock, request: Request) {
    engine.apply(Command::Add(request), clock.read()).unwrap();
}

fn limited(max_tokens: u32) -> Sampling {
    Sampling { max_tokens, ..greedy() }
}

/// Ids of the sequences that got a token in a step.
fn step(engine: &mut Engine, clock: &mut Clock) -> Vec<u64> {
    let outputs = engine.step(&mut || clock.read());
    engine.check_integrity();
    let token = |output: &Output| match output {
        Output::Token { id, .. } => Some(id.0),
        Output::Prompt { .. } | Output::Finished { .. } => None,
    };
    outputs.iter().filter_map(token).collect()
}

/// Ids in the order of their first admission.
fn admitted(answers: &BTreeMap<SequenceId, Answer>) -> Vec<u64> {
    let mut stamps: Vec<(u64, u64)> =
        answers.iter().map(|(id, answer)| (answer.end().stamps.scheduled.unwrap(), id.0)).collect();
    stamps.sort_unstable();
    stamps.into_iter().map(|(_, id)| id).collect()
}

#[test]
fn a_long_prompt_takes_no_token_from_those_that_run() {
    let mut engine = engine(EngineOptions { batch_tokens_max: 8, sequences_max: 8, ..options() });
    let mut clock = Clock::default();
    add(&mut engine, &mut clock, request(1, "ab", limited(100)));
    add(&mut engine, &mut clock, request(2, "cd", limited(100)));
    assert_eq!(step(&mut engine, &mut clock), [1, 2]);
    // 300 tokens, of which a step takes the 6 that the two decodes leave: 50 steps.
    add(&mut engine, &mut clock, request(3, &"x".repeat(300), limited(1)));
    for nth in 1..50 {
        assert_eq!(step(&mut engine, &mut clock), [1, 2], "step {nth} of the prompt");
    }
    assert_eq!(step(&mut engine, &mut clock), [1, 2, 3]);
}

#[test]
fn nobody_overtakes_an_earlier_one_of_equal_priority() {
    // 10 blocks of 4. The first holds 5 at its end; the second wants 9 and has to wait, and the small third, which
    // would fit at once, waits behind it.
    let mut engine = engine(EngineOptions { kv_bytes: 40, ..options() });
    let (mut clock, mut answers) = (Clock::default(), BTreeMap::new());
    add(&mut engine, &mut clock, request(1, "abcdefgh", limited(12)));
    gather(engine.step(&mut || clock.read()), &mut answers);
    add(&mut engine, &mut clock, request(2, &"x".repeat(36), limited(2)));
    for id in 3..20 {
        add(&mut engine, &mut clock, request(id, "y", limited(3)));
    }
    finish(&mut engine, &mut clock, &mut answers);
    let order = admitted(&answers);
    assert_eq!(order, (1..20).collect::<Vec<u64>>());
}

#[test]
fn a_waiting_one_is_reached_while_others_keep_coming() {
    // Two places; whenever one is free another request has come that would like it too.
    let mut engine = engine(EngineOptions { sequences_max: 2, ..options() });
    let (mut clock, mut answers) = (Clock::default(), BTreeMap::new());
    for id in 0..200 {
        add(&mut engine, &mut clock, request(id, "ab", limited(2)));
        gather(engine.step(&mut || clock.read()), &mut answers);
    }
    finish(&mut engine, &mut clock, &mut answers);
    assert_eq!(admitted(&answers), (0..200).collect::<Vec<u64>>());
}

#[test]
fn the_lower_number_is_admitted_first() {
    let mut engine = engine(EngineOptions { sequences_max: 1, ..options() });
    let (mut clock, mut answers) = (Clock::default(), BTreeMap::new());
    for (id, priority) in [(1, 0), (2, 5), (3, 0), (4, -1), (5, 5), (6, -1)] {
        let request = Request { priority, ..request(id, "ab", limited(2)) };
        add(&mut engine, &mut clock, request);
    }
    finish(&mut engine, &mut clock, &mut answers);
    assert_eq!(admitted(&answers), [4, 6, 1, 3, 2, 5]);
}

#[test]
fn the_higher_number_gives_its_blocks_up() {
    // 24 tokens of cache, two sequences that grow to 22: the urgent one came later and is not preempted.
    let mut engine = engine(EngineOptions { kv_bytes: 24, ..options() });
    let (mut clock, mut answers) = (Clock::default(), BTreeMap::new());
    add(&mut engine, &mut clock, request(1, "ab", limited(20)));
    gather(engine.step(&mut || clock.read()), &mut answers);
    add(&mut engine, &mut clock, Request { priority: -1, ..request(2, "cd", limited(20)) });
    finish(&mut engine, &mut clock, &mut answers);
    let preemptions = |id| answers[&SequenceId(id)].end().preemptions;
    assert!(preemptions(1) > 0 && preemptions(2) == 0, "{} and {}", preemptions(1), preemptions(2));
    assert_eq!(answers[&SequenceId(1)].tokens.len(), 20);
}

#[test]
fn stamps_survive_a_preemption() {
    let mut engine = engine(EngineOptions { kv_bytes: 24, sequences_max: 2, ..options() });
    let (mut clock, mut answers) = (Clock::default(), BTreeMap::new());
    for (id, prompt) in [(1, "ab"), (2, "cd")] {
        add(&mut engine, &mut clock, request(id, prompt, limited(20)));
    }
    finish(&mut engine, &mut clock, &mut answers);
    let (first, second) = (answers[&SequenceId(1)].end(), answers[&SequenceId(2)].end());
    assert!(second.preemptions > 0);
    assert_eq!(second.stamps.scheduled, first.stamps.scheduled, "of the first admission");
    assert_eq!(second.stamps.first, first.stamps.first, "the first token came before the preemption");
    assert!(second.stamps.last > first.stamps.last, "the time lost lies between its first and last token");
}
