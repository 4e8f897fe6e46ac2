//! The OpenAI wire format: requests into jobs, outputs into bodies and chunks.
//!
//! Apart from HTTP so that it is functions of values. Must not know: sockets, threads, time.

pub mod chat;
pub mod common;
pub mod completions;
pub mod error;
pub mod fields;
pub mod refused;
pub mod sampling;
