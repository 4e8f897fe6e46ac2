//! The whole engine with a toy model behind a Unix socket.
//!
//! Apart from the units: what callers and gateways see. Must not know: how the server is built.

mod api;
mod control;
mod endings;
mod harness;
