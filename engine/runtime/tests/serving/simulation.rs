//! Thousands of requests at random against small engines: whatever shares a step, however a prompt is cut, and
//! whoever is preempted, each request gets what it would get alone.
//!
//! Apart because expectations come from a model (the toy's rule applied to the request alone), not from hand.

use std::collections::BTreeMap;

use pitot_runtime::testing::toy_next;
use pitot_runtime::{Command, Engine, EngineOptions, Finish, Refusal, Request, Sampling, SequenceId, Usage};

use crate::drive::{Answer, Clock, engine, finish, gather, options, request};

/// SplitMix64, as a source of test cases that the seed alone decides.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (bits ^ (bits >> 31)) % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// A request of up to `prompt_max` prompt tokens: letters, or something to say, greedy or drawn.
fn any_request(id: u64, prompt_max: u64, dice: &mut Dice) -> Request {
    let length = match dice.below(5) {
        0 | 1 => 1 + dice.below(prompt_max - 4),
        _ => 1 + dice.below(8),
    };
    // Half of the prompts begin like others, up to some point.
    let theme = dice.below(8);
    let shared = if theme < 4 { dice.below(length + 1) } else { 0 };
    let letter = |place: u64| char::from(b'a' + (place * (theme + 1) % 26) as u8);
    let own = |_| char::from(b'a' + dice.below(26) as u8);
    let letters: String = (0..shared).map(letter).chain((shared..length).map(own)).collect();
    let prompt = if dice.one_in(3) { format!("<|say|>{letters}<|end|>") } else { letters };
    let sampling = Sampling {
        temperature: [0.0, 0.0, 0.7, 1.5][dice.below(4) as usize],
        top_k: dice.one_in(3).then(|| 1 + dice.below(10) as u32),
        top_p: [1.0, 0.8][dice.below(2) as usize],
        seed: dice.one_in(2).then(|| dice.below(1000)),
        typical_p: [1.0, 1.0, 0.9][dice.below(3) as usize],
        repetition_penalty: [1.0, 1.0, 1.2][dice.below(3) as usize],
        presence_penalty: [0.0, 0.0, 0.5][dice.below(3) as usize],
        frequency_penalty: [0.0, 0.0, 0.25][dice.below(3) as usize],
        logit_bias: if dice.one_in(6) { vec![(97, 1.5), (98, -1.0)] } else { Vec::new() },
        prompt_logprobs: dice.one_in(8).then_some(1),
        stop: if dice.one_in(3) { vec!["ab".to_owned(), "x".to_owned()] } else { Vec::new() },
        max_tokens: 1 + dice.below(24) as u32,
        ..Sampling::default()
    };
    Request {
        priority: [0, 0, 0, -1, 3][dice.below(5) as usize],
        cache_salt: dice.one_in(8).then(|| "salt".to_owned()),
        ..request(id, &prompt, sampling)
    }
}

/// What the request gets from an engine with room for all, and for itself.
fn alone(request: &Request) -> Answer {
    let mut engine = engine(EngineOptions { seed: SEED, ..options() });
    let (mut clock, mut answers) = (Clock::default(), BTreeMap::new());
    engine.apply(Command::Add(request.clone()), clock.read()).unwrap();
    finish(&mut engine, &mut clock, &mut answers);
    answers.remove(&request.id).unwrap()
}

/// Seed of the draws of requests without one, the same in every engine of this file.
const SEED: u64 = 99;

#[derive(Default, Debug)]
struct Tally {
    finished: usize,
    aborted: usize,
    refused: usize,
    preempted: usize,
    shared_steps: usize,
    cached: u64,
}

struct Simulation {
    engine: Engine,
    clock: Clock,
    alive: BTreeMap<SequenceId, Request>,
    answers: BTreeMap<SequenceId, Answer>,
    tally: Tally,
}

impl Simulation {
    fn add(&mut self, request: Request) {
        match self.engine.apply(Command::Add(request.clone()), self.clock.read()) {
            Ok(()) => {
                self.alive.insert(request.id, request);
            }
            Err(Refusal::QueueFull { .. }) => self.tally.refused += 1,
            Err(other) => panic!("{other}"),
        }
    }

    fn abort_one(&mut self, dice: &mut Dice) {
        let choice = dice.below(self.alive.len().max(1) as u64) as usize;
        if let Some(id) = self.alive.keys().nth(choice) {
            self.engine.apply(Command::Abort(*id), self.clock.read()).unwrap();
        }
    }

    fn step(&mut self) {
        self.tally.shared_steps += usize::from(self.engine.state().running > 1);
        gather(self.engine.step(&mut || self.clock.read()), &mut self.answers);
        self.engine.check_integrity();
        let state = self.engine.state();
        assert!(state.blocks_used <= state.blocks_total);
        let ended: Vec<SequenceId> =
            self.answers.iter().filter(|(_, answer)| answer.end.is_some()).map(|(id, _)| *id).collect();
        for id in ended {
            let answer = self.answers.remove(&id).unwrap();
            let request = self.alive.remove(&id).expect("what ends was alive, and ends once");
            self.judge(&request, &answer);
        }
    }

    fn judge(&mut self, request: &Request, answer: &Answer) {
        let expected = alone(request);
        let end = answer.end();
        if end.finish == Finish::Abort {
            self.tally.aborted += 1;
            assert!(expected.tokens.starts_with(&answer.tokens), "{request:?}");
            assert!(
                expected.content.starts_with(&answer.content) || request.sampling.stop.is_empty().eq(&false)
            );
        } else {
            self.tally.finished += 1;
            assert_eq!(answer.tokens, expected.tokens, "{request:?}");
            assert_eq!(answer.content, expected.content, "{request:?}");
            assert_eq!(end.finish, expected.end().finish, "{request:?}");
            // Alone it finds nothing in the cache, and gets the same.
            assert_eq!(Usage { tokens_cached: 0, ..end.usage }, expected.end().usage);
            assert!(end.usage.tokens_cached < end.usage.tokens_prompt);
            self.tally.cached += u64::from(end.usage.tokens_cached);
            assert!(end.stamps.queued < end.stamps.scheduled);
            assert!(end.stamps.scheduled < end.stamps.first && end.stamps.first <= end.stamps.last);
        }
        assert!(expected.prompt_logprobs.starts_with(&answer.prompt_logprobs), "{request:?}");
        let scored = expected.prompt_logprobs.len();
        assert_eq!(scored, request.sampling.prompt_logprobs.map_or(0, |_| request.prompt.len() - 1));
        assert!(answer.tokens.is_empty() || answer.prompt_logprobs.len() == scored);
        let changed = Sampling { temperature: 0.0, ..request.sampling.clone() };
        let plain = changed.repetition_penalty == 1.0
            && changed.presence_penalty == 0.0
            && changed.frequency_penalty == 0.0
            && changed.logit_bias.is_empty();
        if request.sampling.temperature == 0.0 && plain {
            let mut context = request.prompt.clone();
            for token in &answer.tokens {
                assert_eq!(*token, toy_next(&context), "{request:?}");
                context.push(*token);
            }
        }
        self.tally.preempted += end.preemptions as usize;
    }
}

/// Runs `requests` requests; the last steps are without new ones, so that all end.
fn simulate(seed: u64, requests: u64, options: EngineOptions) -> Tally {
    let mut dice = Dice(seed);
    let prompt_max = options.kv_bytes.min(200) as u64 - 1;
    let mut simulation = Simulation {
        engine: engine(EngineOptions { seed: SEED, ..options }),
        clock: Clock::default(),
        alive: BTreeMap::new(),
        answers: BTreeMap::new(),
        tally: Tally::default(),
    };
    let mut id = 0;
    let mut steps = 0;
    while id < requests || simulation.engine.has_work() {
        while id < requests && dice.one_in(3) {
            simulation.add(any_request(id, prompt_max, &mut dice));
            id += 1;
        }
        if dice.one_in(25) {
            simulation.abort_one(&mut dice);
        }
        simulation.step();
        steps += 1;
        assert!(steps < requests * 1000, "the engine goes on for ever");
    }
    assert!(simulation.alive.is_empty(), "each request has ended");
    let state = simulation.engine.state();
    assert_eq!(state.blocks_used, 0, "no reference is lost");
    assert!(state.blocks_kept <= state.blocks_total);
    let Tally { finished, aborted, refused, .. } = simulation.tally;
    assert_eq!((finished + aborted + refused) as u64, requests, "each request ended or was refused, once");
    simulation.tally
}

#[test]
fn in_a_tiny_cache_each_gets_what_it_gets_alone() {
    // 240 tokens of cache for up to 12 sequences of up to 223 tokens. Prompts leave room for all output, so that
    // no sequence meets the end of the context, which is nearer here than alone.
    let options = EngineOptions {
        kv_bytes: 240,
        block_tokens: 4,
        batch_tokens_max: 16,
        sequences_max: 12,
        waiting_max: 8,
        context_max: Some(240),
        ..options()
    };
    let tally = simulate(1, 5000, options);
    assert!(tally.preempted > 30 && tally.aborted > 50 && tally.refused > 10, "{tally:?}");
    assert!(tally.shared_steps > 500 && tally.cached > 500, "{tally:?}");
}

#[test]
fn sizes_of_blocks_and_steps_do_not_matter() {
    for (seed, block_tokens, batch_tokens_max, kv_bytes) in
        [(2, 1, 1, 260), (3, 16, 7, 272), (4, 3, 512, 4000), (5, 64, 33, 1024), (6, 5, 2, 250)]
    {
        let options = EngineOptions { block_tokens, batch_tokens_max, kv_bytes, ..options() };
        simulate(seed, 300, options);
    }
}
