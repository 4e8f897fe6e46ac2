//! The CPU backend: an oracle in plain loops, and one fast path on all cores.
//!
//! Apart from the trait so that a device can be chosen without knowing the others. Must not know: models.

mod attention;
mod bytes;
mod cache;
mod fast;
pub mod naive;
mod panel;
mod path;
mod pool;
mod tile;
mod vector;

pub use fast::Cpu;
pub use path::Path;
