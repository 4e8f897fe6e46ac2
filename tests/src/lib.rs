//! Tests of the whole: end to end (`e2e/`) and of the house rules (`tidy.rs`).
//!
//! Apart as a crate that may look at everything and that nothing may import; the library itself is empty, since a
//! package needs one. Must not know: anything.
