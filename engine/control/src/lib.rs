//! The words spoken on the control channel between engine and gateway, and their framing.
//!
//! Apart because both processes depend on it and on nothing else of each other. Control only: tokens go by
//! HTTP. Losing the channel never fails a request. Must not know: tokio, sockets, clocks, anything of gateway
//! or engine.
//!
//! # Protocol, version 1
//! A stream socket (Unix). Each message is a 4-byte big-endian length and that many bytes of JSON. The engine
//! speaks first with [`FromEngine::Hello`]; the gateway answers with [`FromGateway::Hello`]; the version in use
//! is the highest both know, and without one the engine sends [`FromEngine::Refused`] and closes. After that
//! the engine sends its state on change and every second, and each request's stamps *before* it writes that
//! request's terminal bytes. All stamps are CLOCK_MONOTONIC nanoseconds of the engine's host.

mod codec;
mod message;

pub use codec::{CodecError, Decoder, FRAME_BYTES_MAX, encode};
pub use message::{
    FinishReason, FromEngine, FromGateway, OutputPart, OutputSplit, RequestStamps, State, VERSIONS,
    VersionRange,
};

/// Header by which the gateway names a request to the engine; the engine's stamps carry the same id.
///
/// An id of the gateway's own making: a client's `x-request-id` may repeat, this may not.
pub const REQUEST_ID_HEADER: &str = "x-pitot-request-id";

/// Longest request id that is accepted, in bytes.
pub const REQUEST_ID_BYTES_MAX: usize = 128;
