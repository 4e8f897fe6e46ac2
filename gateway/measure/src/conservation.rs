//! Laws that the numbers of one request must keep, and those that it broke.
//!
//! Apart so that a broken law is a finding with a name, counted and shown, and never an error. Must not know: how
//! the numbers came about.

use crate::event::{At, EngineTimes};
use crate::named::named;
use crate::record::Timeline;
use crate::tokens::Tokens;

named! {
    /// A law that a request broke.
    pub enum Violation {
        StampsOutOfOrder = "stamps_out_of_order":
            "request_sent ≤ head ≤ first_frame ≤ first_token ≤ last_token ≤ upstream_eof does not hold",
        EngineStampsOutOfOrder = "engine_stamps_out_of_order":
            "queued ≤ scheduled ≤ first ≤ last does not hold in the engine",
        EngineBeforeRequest = "engine_before_request": "the engine took the request in before it was sent",
        TokenBeforeEngine = "token_before_engine": "a token was read before the engine had made one",
        FirstTokenFasterThanEngine = "first_token_faster_than_engine": "first_token_time < engine queue + prefill",
        EngineSplitSum = "engine_split_sum": "the engine's output is not reasoning + content + unclassified",
        OutputDiffersFromEngine = "output_differs_from_engine": "the reply's output count is not the engine's",
        InputDiffersFromEngine = "input_differs_from_engine": "the reply's input count is not the engine's",
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
    if tokens.output.certain().is_some_and(|output| output != engine.tokens_output) {
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
