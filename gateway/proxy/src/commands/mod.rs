//! What a person can type, one file each.
//!
//! Apart from `main.rs`, which only chooses. Must not know: each other, but for `up`, which serves too.

pub mod config_show;
mod once;
mod report;
pub mod serve;
pub mod up;
