//! The house rules that a compiler does not hold, as tests.
//!
//! Apart from every crate because it reads them all as text. Must not know: what the code does.
