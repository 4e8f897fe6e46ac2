//! What happened in one request, and what that means.
//!
//! Apart as a core: pure functions and state machines that are handed every stamp and byte, so that each
//! definition of a published number can be held by a table test. Must not know: any clock, socket, file,
//! environment, runtime or log; any library for HTTP or metrics.
//!
//! The way through: a shell makes an [`Observer`] from [`RequestFacts`], feeds it [`Event`]s with their [`At`], and
//! [`Observer::finish`] gives the [`Record`]. Everything published is a field of that record, or is made from many
//! records by [`rates`]. `gateway/METRICS.md` is printed from [`definitions`].

mod answer;
mod blocked;
mod conservation;
pub mod definitions;
mod dialect;
mod engine_timing;
mod event;
pub mod families;
pub mod first_times;
mod json;
pub mod metrics_object;
mod named;
mod observer;
mod outcome;
pub mod own_cost;
mod page;
mod quantity;
pub mod rates;
mod record;
mod record_json;
mod request;
pub mod sse;
mod stages;
mod summary;
mod think;
pub mod timing;
mod tokens;
pub mod waterfall;

pub use conservation::Violation;
pub use dialect::Finish;
pub use engine_timing::{HEAD_FIELDS, TimingSource, TtftOrigin, UpstreamTiming};
pub use event::{
    At, BodyKind, Deadline, Ending, EngineTimes, Event, OutputPart, RefusalReason, UpstreamFailure,
};
pub use observer::Observer;
pub use outcome::{Literal, OutcomeKind, Phase, Reason};
pub use quantity::{Absent, Quantity, Source};
pub use record::{Active, Flag, Record, Timeline};
pub use request::{
    Case2, Echo, Endpoint, InlineThink, Options, RequestFacts, UsageAsked, UsageCapability, Work,
};
pub use timing::{Speed, Speeds, Times, Transfer};
pub use tokens::Tokens;
pub use waterfall::Waterfall;
