//! The sinks of records, each the only importer of its library.
//!
//! Apart from `emit.rs`, which decides who gets what. Must not know: each other.

pub mod journal;
pub mod live;
pub mod prometheus;
