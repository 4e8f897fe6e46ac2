//! The table of cases, a file for each section.
//!
//! Apart from all machinery. Every expectation is worked out by hand from the definitions of what is measured, and
//! times are those of the script. Must not know: how cases are run.

mod first_token;

use super::case::Case;

/// Every case. Names are unique, since they are the models' names.
pub fn all() -> Vec<Case> {
    [first_token::cases()].concat()
}
