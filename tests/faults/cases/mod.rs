//! The table of cases, a file for each section.
//!
//! Apart from all machinery. Every expectation is worked out by hand from the definitions of what is measured, and
//! times are those of the script. Must not know: how cases are run.

mod arithmetic;
mod assembled;
mod deadlines;
mod deaths;
mod first_token;
mod framing;
mod leaving;
mod metrics_object;
mod other_timings;
mod outcome;
mod tokens;
mod transport;

use super::case::Case;

/// Every case. Names are unique, since they are the models' names.
pub fn all() -> Vec<Case> {
    [
        first_token::cases(),
        arithmetic::cases(),
        framing::cases(),
        tokens::cases(),
        outcome::cases(),
        deaths::cases(),
        leaving::cases(),
        deadlines::cases(),
        transport::cases(),
        metrics_object::cases(),
        other_timings::cases(),
        assembled::cases(),
    ]
    .concat()
}
