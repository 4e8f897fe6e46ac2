//! Runs an engine over requests and gathers what came out of each.
//!
//! Apart because both kinds of test need it. Must not know: what is right.

use std::collections::BTreeMap;
use std::sync::Arc;

use pitot_runtime::testing::{TOY_END, ToyRunner, toy_tokenizer};
use pitot_runtime::{
    Channel, Engine, EngineOptions, Finish, Output, OutputSplit, Request, Sampling, SequenceId, Stamps,
    TokenLogprobs, Usage,
};

/// Nanoseconds between two readings of the test's clock.
pub const TICK: u64 = 10;

/// A clock that moves by one tick with each reading.
#[derive(Default)]
pub struct Clock(u64);

impl Clock {
    pub fn read(&mut self) -> u64 {
        self.0 += TICK;
        self.0
    }
}

/// All that came out of one sequence.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    pub tokens: Vec<u32>,
    pub prompt_logprobs: Vec<TokenLogprobs>,
    pub logprobs: Vec<TokenLogprobs>,
    pub reasoning: String,
    pub content: String,
    pub end: Option<End>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct End {
    pub finish: Finish,
    pub stamps: Stamps,
    pub usage: Usage,
    pub split: OutputSplit,
    pub preemptions: u32,
}

impl Answer {
    pub fn end(&self) -> &End {
        self.end.as_ref().expect("the sequence has ended")
    }

    fn write(&mut self, channel: Channel, text: &str) {
        match channel {
            Channel::Reasoning => self.reasoning.push_str(text),
            Channel::Content => self.content.push_str(text),
        }
    }
}

pub fn options() -> EngineOptions {
    EngineOptions {
        block_tokens: 4,
        kv_bytes: 4096,
        eos_token_ids: vec![TOY_END],
        ..EngineOptions::default()
    }
}

/// An engine on a toy of 512 tokens of context, whose cache holds `kv_bytes` tokens.
pub fn engine(options: EngineOptions) -> Engine {
    Engine::new(Box::new(ToyRunner::new(512)), Arc::new(toy_tokenizer()), options).unwrap()
}

pub fn greedy() -> Sampling {
    Sampling { temperature: 0.0, max_tokens: 200, ..Sampling::default() }
}

pub fn request(id: u64, prompt: &str, sampling: Sampling) -> Request {
    Request::new(SequenceId(id), toy_tokenizer().encode(prompt).unwrap(), sampling)
}

/// Files outputs under their sequences. A sequence that goes on after its end is a failure.
pub fn gather(outputs: Vec<Output>, answers: &mut BTreeMap<SequenceId, Answer>) {
    for output in outputs {
        match output {
            Output::Token { id, token, at: _, text, channel, logprobs } => {
                let answer = answers.entry(id).or_default();
                assert_eq!(answer.end, None, "{id:?} goes on after its end");
                answer.tokens.push(token);
                answer.logprobs.extend(logprobs);
                answer.write(channel, &text);
            }
            Output::Prompt { id, logprobs } => {
                let answer = answers.entry(id).or_default();
                assert!(answer.tokens.is_empty() && answer.end.is_none(), "{id:?}: the prompt comes first");
                answer.prompt_logprobs.extend(logprobs);
            }
            Output::Finished { id, text, channel, finish, stamps, usage, split, preemptions } => {
                let answer = answers.entry(id).or_default();
                assert_eq!(answer.end, None, "{id:?} ends twice");
                answer.write(channel, &text);
                answer.end = Some(End { finish, stamps, usage, split, preemptions });
            }
        }
    }
}

/// Steps until nothing is left to do, checking the engine after each.
pub fn finish(engine: &mut Engine, clock: &mut Clock, answers: &mut BTreeMap<SequenceId, Answer>) {
    let mut steps = 0;
    while engine.has_work() {
        gather(engine.step(&mut || clock.read()), answers);
        engine.check_integrity();
        steps += 1;
        assert!(steps < 100_000, "the engine goes on for ever");
    }
}
