//! The measuring core through its door: events in, a record out.
//!
//! Apart as one binary. Times are arguments, so requests are played as data. Must not know: the core's insides.

mod cases;
mod definitions;
mod dialects;
mod engine_timing;
mod events;
mod first_times;
mod framing;
mod fuzz;
mod legs;
mod metrics_object;
mod outcomes;
mod page;
mod play;
mod properties;
mod rates;
mod recordings;
mod waterfall;
