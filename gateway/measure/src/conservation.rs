//! Laws that the numbers of one request must keep, and those that it broke.
//!
//! Apart so that a broken law is a finding with a name, counted and shown, and never an error. Must not know: how
//! the numbers came about.

use std::fmt;

use serde::Serialize;

use crate::event::{At, EngineTimes};
use crate::record::Timeline;
use crate::tokens::Tokens;

/// A law that a request broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Violation {
    /// request_sent ≤ head ≤ first_frame ≤ first_token ≤ last_token ≤ upstream_eof does not hold.
    StampsOutOfOrder,
    /// queued ≤ scheduled ≤ first ≤ last does not hold in the engine.
    EngineStampsOutOfOrder,
    /// The engine took the request in before the gateway sent it.
    EngineBeforeRequest,
    /// The gateway read a token before the engine had made one.
    TokenBeforeEngine,
    /// first_token_time < engine queue + prefill.
    FirstTokenFasterThanEngine,
    /// The engine's output is not reasoning + content + unclassified.
    EngineSplitSum,
    /// The reply's output count is not the engine's.
    OutputDiffersFromEngine,
    /// The reply's input count is not the engine's.
    InputDiffersFromEngine,
}

impl Violation {
    pub fn name(self) -> &'static str {
        match self {
            Violation::StampsOutOfOrder => "stamps_out_of_order",
            Violation::EngineStampsOutOfOrder => "engine_stamps_out_of_order",
            Violation::EngineBeforeRequest => "engine_before_request",
            Violation::TokenBeforeEngine => "token_before_engine",
            Violation::FirstTokenFasterThanEngine => "first_token_faster_than_engine",
            Violation::EngineSplitSum => "engine_split_sum",
            Violation::OutputDiffersFromEngine => "output_differs_from_engine",
            Violation::InputDiffersFromEngine => "input_differs_from_engine",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Finds the laws that a request broke, each at most once.
///
/// Counts are compared with the engine's for one sequence only, since the engine counts each for itself.
pub fn violations(
    timeline: &Timeline,
    engine: Option<&EngineTimes>,
    tokens: &Tokens,
    sequences: u64,
) -> Vec<Violation> {
    let mut broken = Vec::new();
    let read = [
        timeline.request_sent,
        timeline.head,
        timeline.first_frame,
        timeline.first_token,
        timeline.last_token,
        timeline.upstream_eof,
    ];
    if !in_order(&read) {
        broken.push(Violation::StampsOutOfOrder);
    }
    if let Some(engine) = engine {
        stamps_with_engine(timeline, engine, &mut broken);
        counts_with_engine(engine, tokens, sequences, &mut broken);
    }
    broken
}

fn stamps_with_engine(timeline: &Timeline, engine: &EngineTimes, broken: &mut Vec<Violation>) {
    if !in_order(&[engine.queued, engine.scheduled, engine.first, engine.last]) {
        broken.push(Violation::EngineStampsOutOfOrder);
    }
    if !in_order(&[timeline.request_sent, engine.queued]) {
        broken.push(Violation::EngineBeforeRequest);
    }
    if !in_order(&[engine.first, timeline.first_token]) {
        broken.push(Violation::TokenBeforeEngine);
    }
    let seen = timeline.first_token.zip(timeline.request_sent).and_then(|(token, sent)| token.since(sent));
    let made = engine.first.zip(engine.queued).and_then(|(first, queued)| first.since(queued));
    if seen.zip(made).is_some_and(|(seen, made)| seen < made) {
        broken.push(Violation::FirstTokenFasterThanEngine);
    }
}

fn counts_with_engine(engine: &EngineTimes, tokens: &Tokens, sequences: u64, broken: &mut Vec<Violation>) {
    let parts = [engine.reasoning.tokens, engine.content.tokens, engine.tokens_unclassified];
    if parts.iter().fold(0_u64, |sum, part| sum.saturating_add(*part)) != engine.tokens_output {
        broken.push(Violation::EngineSplitSum);
    }
    if sequences > 1 {
        return;
    }
    if tokens.output.value().is_some_and(|output| output != engine.tokens_output) {
        broken.push(Violation::OutputDiffersFromEngine);
    }
    if tokens.input.value().is_some_and(|input| input != engine.tokens_prompt) {
        broken.push(Violation::InputDiffersFromEngine);
    }
}

/// Whether the stamps that are there do not go backwards.
fn in_order(stamps: &[Option<At>]) -> bool {
    stamps.iter().flatten().is_sorted()
}
