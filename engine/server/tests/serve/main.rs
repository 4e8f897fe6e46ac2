//! The whole engine with a toy model behind a Unix socket.
//!
//! Apart from the units: what callers and gateways see. Must not know: how the server is built.

#![allow(clippy::unwrap_used, reason = "in a test a failed unwrap is a failed test")]

mod api;
mod control;
mod endings;
mod harness;
mod metrics;
