//! The fault corpus: an upstream that plays a case byte for byte, a caller that checks what arrives, and the record
//! that must come out.
//!
//! Apart from the end-to-end tests because it is also a program that runs against any gateway. Cases are data
//! (`cases/`), worked out from the definitions and never from a gateway's output. Must not know: how a gateway works.

pub mod admin;
pub mod board;
pub mod caller;
mod caller_h2;
pub mod case;
pub mod cases;
pub mod check;
pub mod dialect;
pub mod gateway;
pub mod judge;
mod judge_body;
pub mod lag;
pub mod laws;
pub mod player;
pub mod run;
pub mod script;
mod wire;
