//! The engine's shell: HTTP, the control channel, the clock, files and threads around the runtime.
//!
//! Apart from the runtime, which has none of these. Must not know: how a token is computed, and the gateway.

pub mod arguments;
pub mod clock;
pub mod config_show;
mod connections;
pub mod control_socket;
pub mod engine_thread;
pub mod exposition;
pub mod http;
pub mod hub;
mod mapped;
pub mod model;
pub mod openai;
pub mod pull;
pub mod serve;
pub mod sockets;
mod stamps;
pub mod statistics;
mod stream;
