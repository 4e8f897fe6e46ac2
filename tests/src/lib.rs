//! Tests of the whole: end to end (`e2e/`), of faults (`faults/`) and of the house rules (`tidy.rs`).
//!
//! Apart as a crate that may look at everything and that nothing may import; the library itself holds the fault
//! corpus, which is both a program and a test. Must not know: how anything under test works.

#[path = "../faults/mod.rs"]
pub mod faults;
