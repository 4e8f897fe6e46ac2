//! What the counts of a request are, from what was reported and what was seen.
//!
//! Apart because vendors disagree about what their counts hold. Must not know: time, wire formats.

use crate::dialect::Usage;
use crate::event::EngineTimes;
use crate::quantity::{Absent, Quantity};
use crate::record::Flag;

/// The counts of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tokens {
    pub input: Quantity<u64>,
    pub output: Quantity<u64>,
    /// Input + output.
    pub total: Quantity<u64>,
    /// The total as reported, whatever it is.
    pub total_reported: Option<u64>,
    pub reasoning: Quantity<u64>,
    /// Output − reasoning.
    pub content: Quantity<u64>,
    pub cached: Quantity<u64>,
}

/// Whether a reasoning payload was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningSeen {
    Yes,
    No,
    /// The reply was not read, so nothing follows from not having seen any.
    NotRead,
}

/// Events with a payload in a complete stream, each taken for one token where nothing better is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    pub output: u64,
    pub reasoning: u64,
}

/// Makes the counts, and flags what does not fit together.
///
/// `usage` is the terminal usage. The engine's own counts fill in the cached part and the reasoning part where the
/// reply is silent; input and output are taken from the reply alone, so that they are what the caller sees too.
pub fn tokens(
    usage: Option<Usage>,
    engine: Option<&EngineTimes>,
    seen: ReasoningSeen,
    estimate: Option<Estimate>,
    flags: &mut Vec<Flag>,
) -> Tokens {
    let said = usage.unwrap_or_default();
    if said.absurd {
        flags.push(Flag::CountOverCap);
    }
    let input = reported(said.input());
    let said_output = reported(output(&said));
    // Only where the count is missing altogether.
    let estimate = estimate.filter(|_| said_output.value().is_none());
    let output = estimate.map_or(said_output, |estimate| Quantity::estimated(estimate.output));
    if estimate.is_some() {
        flags.push(Flag::TokensEstimated);
    }
    let total = both(input, output, u64::saturating_add);
    if let (Some(total), Some(said)) = (total.value(), said.tokens_total)
        && total != said
    {
        flags.push(Flag::TotalMismatch);
    }
    let mut reasoning = reasoning(usage.is_some(), said.tokens_reasoning, engine, seen);
    if let (Quantity::Absent(_), Some(estimate)) = (reasoning, estimate) {
        reasoning = Quantity::estimated(estimate.reasoning);
    }
    if let (Quantity::Known { value, source }, Some(output)) = (reasoning, output.value())
        && value > output
    {
        flags.push(Flag::ReasoningOverOutput);
        reasoning = Quantity::Known { value: output, source };
    }
    let content = both(output, reasoning, u64::saturating_sub);
    let mut cached = reported(said.tokens_cached.or_else(|| engine.and_then(|engine| engine.tokens_cached)));
    if let (Some(value), Some(input)) = (cached.value(), input.value())
        && value > input
    {
        flags.push(Flag::CachedOverInput);
        cached = Quantity::reported(input);
    }
    Tokens { input, output, total, total_reported: said.tokens_total, reasoning, content, cached }
}

fn reported(count: Option<u64>) -> Quantity<u64> {
    count.map_or(Quantity::Absent(Absent::NotReported), Quantity::reported)
}

/// Output with reasoning in it. Some vendors leave reasoning out of the completion, which shows in the total.
fn output(said: &Usage) -> Option<u64> {
    let output = said.tokens_output?;
    let (Some(input), Some(total), Some(reasoning)) =
        (said.input(), said.tokens_total, said.tokens_reasoning)
    else {
        return Some(output);
    };
    let apart = input.checked_add(output).and_then(|sum| sum.checked_add(reasoning)) == Some(total);
    Some(if apart && reasoning > 0 { output.saturating_add(reasoning) } else { output })
}

fn reasoning(
    has_usage: bool,
    said: Option<u64>,
    engine: Option<&EngineTimes>,
    seen: ReasoningSeen,
) -> Quantity<u64> {
    if let Some(count) = said.filter(|count| *count > 0) {
        return Quantity::reported(count);
    }
    match seen {
        // Reported 0 although reasoning was seen is no report. The engine's split may know.
        ReasoningSeen::Yes => match engine.map(|engine| engine.reasoning.tokens).filter(|count| *count > 0) {
            Some(count) => Quantity::reported(count),
            None => Quantity::Absent(Absent::ReasoningUnknown),
        },
        ReasoningSeen::No => match said {
            Some(none) => Quantity::reported(none),
            None if has_usage => Quantity::inferred(0),
            None => Quantity::Absent(Absent::NotReported),
        },
        ReasoningSeen::NotRead => reported(said),
    }
}

fn both(a: Quantity<u64>, b: Quantity<u64>, make: impl Fn(u64, u64) -> u64) -> Quantity<u64> {
    match (a, b) {
        (Quantity::Known { value: a, source }, Quantity::Known { value: b, source: other }) => {
            Quantity::Known { value: make(a, b), source: source.weaker(other) }
        }
        (Quantity::Absent(reason), _) | (_, Quantity::Absent(reason)) => Quantity::Absent(reason),
    }
}
