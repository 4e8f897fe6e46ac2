//! The engine on a toy: seeded random lives, and the laws that batching, chunking and preemption change nothing.
//!
//! Apart from the unit tests because it uses the public door only. Must not know: schedulers, pools.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pitot_runtime::testing::{TOY_END, TOY_THINK, TOY_VOCABULARY, ToyRunner, toy_next, toy_tokenizer};
use pitot_runtime::{
    Channel, Command, Engine, EngineOptions, Finish, Output, Refusal, Request, Sampling, SequenceId,
    StopCause, Tokenizer,
};

mod ends;
mod laws;

/// xorshift64*, so that a run is its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }
}

fn options() -> EngineOptions {
    EngineOptions {
        block_tokens: 4,
        kv_bytes: 1 << 16,
        batch_tokens_max: 256,
        sequences_max: 16,
        waiting_max: 64,
        eos_token_ids: vec![TOY_END],
        ..EngineOptions::default()
    }
}

fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(toy_tokenizer())
}

fn engine(runner: ToyRunner, options: EngineOptions) -> Engine {
    Engine::new(Box::new(runner), tokenizer(), options).expect("the options are sound")
}

fn request(id: u64, prompt: &str, sampling: Sampling) -> Request {
    Request::new(SequenceId(id), toy_tokenizer().encode(prompt).expect("text encodes"), sampling)
}

fn greedy(max_tokens: u32) -> Sampling {
    Sampling { temperature: 0.0, max_tokens, ..Sampling::default() }
}

/// All that one sequence gave.
#[derive(Debug, Clone, Default, PartialEq)]
struct Life {
    tokens: Vec<u32>,
    text: String,
    finish: Option<Finish>,
    preemptions: u32,
}

/// Adds outputs to lives; each life ends exactly once and nothing follows its end.
#[track_caller]
fn record(lives: &mut BTreeMap<u64, Life>, outputs: Vec<Output>) {
    for output in outputs {
        match output {
            Output::Token { id, token, text, .. } => {
                let life = lives.entry(id.0).or_default();
                assert_eq!(life.finish, None, "sequence {} went on after its end", id.0);
                life.tokens.push(token);
                life.text.push_str(&text);
            }
            Output::Prompt { id, .. } => panic!("sequence {} did not ask for its prompt's scores", id.0),
            Output::Finished { id, text, finish, stamps, usage, split, preemptions, channel: _ } => {
                let life = lives.entry(id.0).or_default();
                assert_eq!(life.finish, None, "sequence {} ended twice", id.0);
                life.text.push_str(&text);
                life.preemptions = preemptions;
                assert_eq!(usage.tokens_output as usize, life.tokens.len());
                let counted = split.reasoning.tokens + split.content.tokens + split.tokens_unclassified;
                assert_eq!(counted, usage.tokens_output);
                let order = [stamps.queued, stamps.scheduled, stamps.first, stamps.last];
                let known: Vec<u64> = order.into_iter().flatten().collect();
                assert!(known.is_sorted(), "stamps are out of order: {stamps:?}");
                assert_eq!(stamps.first.is_some(), usage.tokens_output > 0);
                life.finish = Some(finish);
            }
        }
    }
}

/// Steps until there is no work.
fn run_out(engine: &mut Engine, now: &mut u64) -> BTreeMap<u64, Life> {
    let mut lives = BTreeMap::new();
    run_out_into(engine, now, &mut lives);
    lives
}

/// As [`run_out`], over lives that have begun; at most 100 000 steps.
fn run_out_into(engine: &mut Engine, now: &mut u64, lives: &mut BTreeMap<u64, Life>) {
    for _ in 0..100_000 {
        if !engine.has_work() {
            return;
        }
        let outputs = engine.step(&mut || {
            *now += 1;
            *now
        });
        engine.check_integrity();
        record(lives, outputs);
    }
    panic!("the engine never ran out of work");
}

#[test]
fn random_lives_end_exactly_once_and_no_block_is_lost() {
    for seed in 1..=12 {
        random_lives(seed);
    }
}

fn random_lives(seed: u64) {
    let mut random = Random(seed * 0x9E37_79B9);
    let block_tokens = 1 + random.below(5) as usize;
    let small = EngineOptions {
        block_tokens,
        kv_bytes: 24 + random.below(80) as usize,
        batch_tokens_max: 2 + random.below(30) as usize,
        sequences_max: 1 + random.below(8) as usize,
        waiting_max: 1 + random.below(6) as usize,
        ..options()
    };
    let mut engine = engine(ToyRunner::new(40), small);
    let (mut now, mut next) = (0, 0u64);
    let (mut lives, mut taken) = (BTreeMap::new(), BTreeSet::new());
    for _ in 0..3000 {
        now += 1;
        match random.below(10) {
            0..=2 => {
                let prompt = "p".repeat(1 + random.below(30) as usize);
                let stop = if random.below(4) == 0 { vec!["a".to_owned()] } else { Vec::new() };
                let temperature = random.below(2) as f32;
                let sampling = Sampling { temperature, stop, ..greedy(1 + random.below(20) as u32) };
                next += 1;
                match engine.apply(Command::Add(request(next, &prompt, sampling)), now) {
                    Ok(()) => assert!(taken.insert(next)),
                    Err(Refusal::QueueFull { .. } | Refusal::PromptTooLong { .. }) => {}
                    Err(other) => panic!("an unexpected refusal: {other}"),
                }
            }
            3 => {
                let id = SequenceId(1 + random.below(next + 1));
                engine.apply(Command::Abort(id), now).expect("an abort is never refused");
            }
            _ => {
                let outputs = engine.step(&mut || {
                    now += 1;
                    now
                });
                record(&mut lives, outputs);
            }
        }
        engine.check_integrity();
    }
    run_out_into(&mut engine, &mut now, &mut lives);
    let ended: BTreeSet<u64> =
        lives.iter().filter(|(_, life)| life.finish.is_some()).map(|(id, _)| *id).collect();
    assert_eq!(ended, taken, "seed {seed}");
    let state = engine.state();
    assert_eq!((state.running, state.waiting, state.blocks_used), (0, 0, 0));
}
