//! The upstream's own timings, as its replies carry them.
//!
//! Apart because every server has its own words for them. Must not know: the record, the gateway's own stamps.

/// Fields of a reply's head that carry timings, in lower case; a shell hands over those and no others.
pub const HEAD_FIELDS: [&str; 6] = [
    "x-compute-time",
    "x-inference-time",
    "x-queue-time",
    "x-time-per-token",
    "x-total-time",
    "x-validation-time",
];
