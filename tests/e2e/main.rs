//! End to end: the real binaries, the real model, real clients.
//!
//! One binary, so that it links once. `tests/run` builds the programs, pulls the model and sets PITOT_TEST_MODEL
//! and PITOT_TEST_PYTHON; without them these tests fail and say so. Must not know: the insides of any crate.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod accounting;
mod answers;
mod assembled;
mod client;
mod clients;
mod configuration;
mod faults;
mod pitot;
mod upstream;
