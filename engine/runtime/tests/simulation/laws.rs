//! Laws over lives: how a sequence is scheduled never changes what it says.
//!
//! Apart from the random lives to keep each file one idea. Must not know: schedulers, pools.

use super::*;

/// Twelve different requests, greedy and sampled, with stop strings and stop tokens among them.
fn requests() -> Vec<Request> {
    (0..12u64)
        .map(|index| {
            let sampling = Sampling {
                temperature: (index % 3) as f32,
                seed: (index % 2 == 0).then_some(index),
                stop: if index % 4 == 1 { vec!["e".to_owned(), "zz".to_owned()] } else { Vec::new() },
                stop_token_ids: if index % 4 == 2 { vec![u32::from(b'q')] } else { Vec::new() },
                min_tokens: index as u32 % 5,
                top_p: 0.9,
                ..greedy(10 + 3 * index as u32)
            };
            request(index, &format!("prompt {}", "x".repeat(index as usize * 2)), sampling)
        })
        .collect()
}

fn lives(requests: Vec<Request>, options: EngineOptions) -> BTreeMap<u64, Life> {
    let mut engine = engine(ToyRunner::new(128), options);
    for request in requests {
        engine.apply(Command::Add(request), 0).expect("there is room");
    }
    run_out(&mut engine, &mut 0)
}

/// Each request run in an engine of its own.
fn alone() -> BTreeMap<u64, Life> {
    requests().into_iter().flat_map(|request| lives(vec![request], options())).collect()
}

#[track_caller]
fn check_same(found: BTreeMap<u64, Life>) {
    let without_preemptions = |lives: BTreeMap<u64, Life>| -> BTreeMap<u64, Life> {
        lives.into_iter().map(|(id, life)| (id, Life { preemptions: 0, ..life })).collect()
    };
    assert_eq!(without_preemptions(found), alone());
}

#[test]
fn batched_is_as_alone() {
    check_same(lives(requests(), options()));
}

#[test]
fn chunked_is_as_unchunked() {
    for batch_tokens_max in [1, 2, 3, 7] {
        check_same(lives(requests(), EngineOptions { batch_tokens_max, ..options() }));
    }
}

#[test]
fn preempted_is_as_undisturbed() {
    let found = lives(requests(), EngineOptions { kv_bytes: 96, ..options() });
    assert!(found.values().any(|life| life.preemptions > 0), "the pool is small enough to preempt");
    check_same(found);
}

#[test]
fn the_oldest_sequence_is_never_preempted() {
    let found = lives(requests(), EngineOptions { kv_bytes: 96, ..options() });
    assert_eq!(found[&0].preemptions, 0);
}

#[test]
fn a_preempted_sequence_goes_on_before_those_that_wait() {
    // 24 tokens of cache: two sequences of up to 22 tokens start together, and the newer one has to give way. The
    // third would fit into the blocks given up, but has to wait until the first is done.
    let small = EngineOptions { kv_bytes: 24, sequences_max: 2, ..options() };
    let mut engine = engine(ToyRunner::new(128), small);
    for id in 1..=3 {
        engine.apply(Command::Add(request(id, "ab", greedy(20))), 0).expect("there is room");
    }
    let mut done = BTreeMap::new();
    while engine.has_work() {
        for output in engine.step(&mut || 0) {
            match output {
                Output::Token { id, .. } => {
                    assert!(id.0 < 3 || done.contains_key(&1), "the third overtook the preempted one");
                }
                Output::Prompt { .. } => {}
                Output::Finished { id, preemptions, .. } => {
                    done.insert(id.0, preemptions);
                }
            }
        }
    }
    assert!(done[&2] > 0, "the second was preempted");
    assert_eq!(done.len(), 3);
}
