//! The engine as its callers see it, on the toy runner.
//!
//! Apart from the unit tests because only the public door is used: commands in, steps, outputs out. Must not know:
//! real models (`golden.rs` has one).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

mod behaviour;
mod drive;
mod fairness;
mod prefix;
mod simulation;
