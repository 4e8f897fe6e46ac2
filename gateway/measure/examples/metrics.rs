//! Prints `gateway/METRICS.md` to the standard output.
//!
//! Apart from the crate, which writes no files. Must not know: where the page lies.

fn main() {
    print!("{}", pitot_measure::definitions::print());
}
