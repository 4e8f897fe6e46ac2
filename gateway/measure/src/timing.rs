//! Every formula over times: from which instant to which, in what unit, when absent.
//!
//! Apart so that each definition is one small function that a table test can hold. Must not know: how stamps were
//! taken, how counts were found.
//!
//! Source of the definitions: a model-service monitoring standard ("Model Quality Monitoring Metrics"), to the
//! letter. Divisions are made on integer nanoseconds; rounding up is (tokens·10⁹ + d − 1) div d, so that float
//! noise never makes 51 of 50.

use serde::Serialize;

use crate::event::At;
use crate::quantity::{Absent, Quantity, Source};
use crate::tokens::Tokens;

const NS_PER_SECOND: u128 = 1_000_000_000;

/// The stamps of one leg that the formulas need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leg {
    /// Where the leg's times begin: **S** upstream, the last byte of the request on the leg to the caller.
    pub origin: Result<At, Absent>,
    pub first_token: Option<At>,
    pub reasoning_last: Option<At>,
    pub content_first: Option<At>,
    pub content_last: Option<At>,
    /// **Vn** of a stream, the last byte of a body.
    pub last: Result<At, Absent>,
}

/// What the reply was like; the same for both legs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub transfer: Transfer,
    pub reasoning_payloads: u64,
    pub content_payloads: u64,
    pub sequences: u64,
    /// Why a token's stamp is missing where it is.
    pub missing: Absent,
}

/// How the upstream's reply came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transfer {
    Streamed,
    Whole,
}

/// The times of one leg. In nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    pub first_token_ns: Quantity<u64>,
    pub reasoning_ns: Quantity<u64>,
    pub content_ns: Quantity<u64>,
    pub full_response_ns: Quantity<u64>,
    pub time_per_token_ns: Quantity<f64>,
}

/// Speeds of the upstream leg, in tokens per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speeds {
    pub reasoning: Quantity<Speed>,
    pub content: Quantity<Speed>,
    /// Of all tokens, input included.
    pub average: Quantity<Speed>,
    /// Of the output, not rounded.
    pub average_output: Quantity<f64>,
}

/// A speed rounded up, with the number before rounding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    pub rounded_up: u64,
    pub exact: f64,
}

/// Makes the times of one leg.
pub fn times(leg: &Leg, shape: &Shape, tokens: &Tokens) -> Times {
    let first_token_ns = first_token(leg, shape);
    let full_response_ns = full_response(leg);
    Times {
        first_token_ns,
        reasoning_ns: reasoning(leg, shape, tokens),
        content_ns: content(leg, shape, tokens),
        full_response_ns,
        time_per_token_ns: per_token(first_token_ns, full_response_ns, shape, tokens),
    }
}

/// All times absent for one reason.
pub fn no_times(reason: Absent) -> Times {
    Times {
        first_token_ns: Quantity::Absent(reason),
        reasoning_ns: Quantity::Absent(reason),
        content_ns: Quantity::Absent(reason),
        full_response_ns: Quantity::Absent(reason),
        time_per_token_ns: Quantity::Absent(reason),
    }
}

/// V1 − S.
fn first_token(leg: &Leg, shape: &Shape) -> Quantity<u64> {
    match (shape.transfer, leg.origin, leg.first_token) {
        (Transfer::Whole, _, _) => Quantity::Absent(Absent::NotStreamed),
        (_, Err(reason), _) => Quantity::Absent(reason),
        (_, Ok(_), None) => Quantity::Absent(shape.missing),
        (_, Ok(origin), Some(first)) => between(origin, first),
    }
}

/// Vn − S; for a reply that did not stream, last body byte − S.
fn full_response(leg: &Leg) -> Quantity<u64> {
    match (leg.origin, leg.last) {
        (Err(reason), _) | (Ok(_), Err(reason)) => Quantity::Absent(reason),
        (Ok(origin), Ok(last)) => between(origin, last),
    }
}

/// Rn − V1; one reasoning token takes 0.
fn reasoning(leg: &Leg, shape: &Shape, tokens: &Tokens) -> Quantity<u64> {
    if shape.transfer == Transfer::Whole {
        return Quantity::Absent(Absent::NotStreamed);
    }
    if shape.reasoning_payloads == 0 {
        return Quantity::Absent(Absent::NoReasoning);
    }
    stage(leg.first_token, leg.reasoning_last, tokens.reasoning, shape.reasoning_payloads, shape)
}

/// Cn − C1; one content token takes 0.
fn content(leg: &Leg, shape: &Shape, tokens: &Tokens) -> Quantity<u64> {
    if shape.transfer == Transfer::Whole {
        return Quantity::Absent(Absent::NotStreamed);
    }
    if shape.content_payloads == 0 {
        return Quantity::Absent(Absent::NoBody);
    }
    stage(leg.content_first, leg.content_last, tokens.content, shape.content_payloads, shape)
}

fn stage(
    from: Option<At>,
    to: Option<At>,
    count: Quantity<u64>,
    payloads: u64,
    shape: &Shape,
) -> Quantity<u64> {
    let (Some(from), Some(to)) = (from, to) else { return Quantity::Absent(shape.missing) };
    match count.certain() {
        Some(1) => Quantity::measured(0),
        // The count is not known, but one payload has no inside to measure.
        None if payloads == 1 => Quantity::inferred(0),
        Some(_) | None => between(from, to),
    }
}

/// (full_response_time − first_token_time) / (output_tokens − 1).
fn per_token(first: Quantity<u64>, full: Quantity<u64>, shape: &Shape, tokens: &Tokens) -> Quantity<f64> {
    if shape.transfer == Transfer::Whole {
        return Quantity::Absent(Absent::NotStreamed);
    }
    if shape.sequences > 1 {
        return Quantity::Absent(Absent::SeveralSequences);
    }
    let (output, counted) = match tokens.output {
        Quantity::Absent(_) => return Quantity::Absent(Absent::TokensUnknown),
        Quantity::Known { value: 0 | 1, .. } => return Quantity::Absent(Absent::OneToken),
        Quantity::Known { value, source } => (value, source),
    };
    match (first, full) {
        (Quantity::Absent(reason), _) | (_, Quantity::Absent(reason)) => Quantity::Absent(reason),
        (Quantity::Known { value: first, .. }, Quantity::Known { value: full, .. }) => {
            match full.checked_sub(first) {
                Some(decode) => Quantity::Known {
                    value: decode as f64 / (output - 1) as f64,
                    source: Source::Measured.or_estimated(counted),
                },
                None => Quantity::Absent(Absent::StampsContradict),
            }
        }
    }
}

fn between(from: At, to: At) -> Quantity<u64> {
    to.since(from).map_or(Quantity::Absent(Absent::StampsContradict), Quantity::measured)
}

/// Makes the speeds from the times of the upstream leg.
pub fn speeds(times: &Times, tokens: &Tokens) -> Speeds {
    let average = speed(tokens.output, times.full_response_ns);
    Speeds {
        reasoning: speed(tokens.reasoning, times.reasoning_ns),
        content: speed(tokens.content, times.content_ns),
        average: speed(tokens.total, times.full_response_ns),
        average_output: match average {
            Quantity::Known { value, source } => Quantity::Known { value: value.exact, source },
            Quantity::Absent(reason) => Quantity::Absent(reason),
        },
    }
}

fn speed(tokens: Quantity<u64>, time_ns: Quantity<u64>) -> Quantity<Speed> {
    let Quantity::Known { value: tokens, source: counted } = tokens else {
        return Quantity::Absent(Absent::TokensUnknown);
    };
    // Why there is no time is why there is no speed.
    let (ns, source) = match time_ns {
        Quantity::Known { value, source } => (value, source),
        Quantity::Absent(reason) => return Quantity::Absent(reason),
    };
    let source = source.or_estimated(counted);
    match rounded_up(tokens, ns) {
        None => Quantity::Absent(Absent::TimeZero),
        Some(rounded_up) => {
            let exact = tokens as f64 / (ns as f64 / NS_PER_SECOND as f64);
            Quantity::Known { value: Speed { rounded_up, exact }, source }
        }
    }
}

/// ⌈tokens / time⌉ in tokens per second. None for a time of 0.
pub fn rounded_up(tokens: u64, ns: u64) -> Option<u64> {
    if ns == 0 {
        return None;
    }
    let per_second = (u128::from(tokens) * NS_PER_SECOND).div_ceil(u128::from(ns));
    Some(u64::try_from(per_second).unwrap_or(u64::MAX))
}
