//! The CPU backend: an oracle in plain loops, and one fast path on all cores.
//!
//! Apart from the trait so that a device can be chosen without knowing the others. Must not know: models.

mod bytes;
mod fast;
pub mod naive;
mod panel;
mod pool;
mod vector;

pub use fast::Cpu;
pub use vector::Path;
