//! Every nanosecond from `accepted` to `downstream_done`, in exactly one segment.
//!
//! Apart because it is a law, not a metric: the segments sum to the whole by construction, and the residual is
//! what no pair of stamps claims. Must not know: how stamps were taken, tokens.
//!
//! | segment | from | to |
//! |---|---|---|
//! | gateway_in | accepted | request_sent |
//! | local_hop | request_sent | engine queued |
//! | engine_queue | engine queued | engine scheduled |
//! | prefill | engine scheduled | engine first |
//! | decode | engine first | engine last |
//! | client_backpressure | inside writes to the caller, where none of the above has the time | |
//! | local_hop, the way back | engine last | the finish read (else the last token, else a body's last byte) |
//! | gateway_out | terminal read (else the last read) | downstream_done |
//! | residual | what is left | |
//!
//! Where two claim the same time the upper line has it.

use crate::blocked::Blocked;
use crate::event::{At, EngineTimes};

/// The stamps between which segments lie.
#[derive(Debug, Clone, Default)]
pub struct Stamps<'a> {
    pub request_sent: Option<At>,
    pub engine: Option<&'a EngineTimes>,
    /// The read that brought the end of the answer: finish, else the last token, else a body's last byte.
    pub answer_end: Option<At>,
    /// The read behind which only the gateway is at work: the terminal event, else the last read.
    pub upstream_end: Option<At>,
    pub downstream_done: At,
}

/// How long each part took, in nanoseconds. A segment whose stamps are not both there is absent, not 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waterfall {
    pub gateway_in_ns: u64,
    pub local_hop_ns: Option<u64>,
    pub engine_queue_ns: Option<u64>,
    pub prefill_ns: Option<u64>,
    pub decode_ns: Option<u64>,
    pub gateway_out_ns: Option<u64>,
    pub client_backpressure_ns: u64,
    pub residual_ns: u64,
    /// From accepted to downstream_done; the sum of the others.
    pub total_ns: u64,
}

impl Waterfall {
    /// The segments in the order of the page, with the names they go by.
    pub fn segments(&self) -> [(&'static str, Option<u64>); 8] {
        [
            ("gateway_in", Some(self.gateway_in_ns)),
            ("local_hop", self.local_hop_ns),
            ("engine_queue", self.engine_queue_ns),
            ("prefill", self.prefill_ns),
            ("decode", self.decode_ns),
            ("gateway_out", self.gateway_out_ns),
            ("client_backpressure", Some(self.client_backpressure_ns)),
            ("residual", Some(self.residual_ns)),
        ]
    }

    /// The most that the residual may be on an idle machine: 1 ms and 1 % of the whole.
    pub fn residual_ns_max(&self) -> u64 {
        1_000_000 + self.total_ns / 100
    }
}

/// Where a claim lies in [`Waterfall::segments`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Segment {
    GatewayIn,
    LocalHop,
    EngineQueue,
    Prefill,
    Decode,
    GatewayOut,
}

/// Whether back-pressure gives way to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rank {
    AboveBackpressure,
    BelowBackpressure,
}

struct Claim {
    segment: Segment,
    rank: Rank,
    from: u64,
    to: u64,
}

/// Divides the time of a request.
pub fn waterfall(stamps: &Stamps<'_>, blocked: &Blocked) -> Waterfall {
    let total = stamps.downstream_done.0;
    let claims = claims(stamps);
    let mut waterfall = Waterfall { total_ns: total, ..Waterfall::default() };
    for claim in &claims {
        waterfall.add(claim.segment, 0);
    }
    let mut edges: Vec<u64> =
        claims.iter().flat_map(|claim| [claim.from, claim.to]).chain([0, total]).collect();
    edges.iter_mut().for_each(|edge| *edge = (*edge).min(total));
    edges.sort_unstable();
    edges.dedup();
    for pair in edges.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let claim = claims.iter().find(|claim| claim.from <= from && to <= claim.to);
        let mut length = to - from;
        if !claim.is_some_and(|claim| claim.rank == Rank::AboveBackpressure) {
            let inside = blocked.up_to(At(to)).saturating_sub(blocked.up_to(At(from))).min(length);
            waterfall.client_backpressure_ns += inside;
            length -= inside;
        }
        match claim {
            Some(claim) => waterfall.add(claim.segment, length),
            None => waterfall.residual_ns += length,
        }
    }
    waterfall
}

impl Waterfall {
    fn add(&mut self, segment: Segment, ns: u64) {
        let place = match segment {
            Segment::GatewayIn => {
                self.gateway_in_ns += ns;
                return;
            }
            Segment::LocalHop => &mut self.local_hop_ns,
            Segment::EngineQueue => &mut self.engine_queue_ns,
            Segment::Prefill => &mut self.prefill_ns,
            Segment::Decode => &mut self.decode_ns,
            Segment::GatewayOut => &mut self.gateway_out_ns,
        };
        *place.get_or_insert(0) += ns;
    }
}

/// The claims, highest first.
fn claims(stamps: &Stamps<'_>) -> Vec<Claim> {
    let engine = stamps.engine;
    let [queued, scheduled, first, last] = match engine {
        Some(engine) => [engine.queued, engine.scheduled, engine.first, engine.last],
        None => [None; 4],
    };
    // A request that was never sent spent all its time in the gateway.
    let sent = stamps.request_sent.unwrap_or(stamps.downstream_done);
    let done = stamps.request_sent.map(|_| stamps.downstream_done);
    let above = [
        (Segment::GatewayIn, Some(At(0)), Some(sent)),
        (Segment::LocalHop, stamps.request_sent, queued),
        (Segment::EngineQueue, queued, scheduled),
        (Segment::Prefill, scheduled, first),
        (Segment::Decode, first, last),
    ];
    let below =
        [(Segment::LocalHop, last, stamps.answer_end), (Segment::GatewayOut, stamps.upstream_end, done)];
    let ranked = |rank| {
        move |(segment, from, to): (Segment, Option<At>, Option<At>)| {
            let (from, to) = (from?, to?);
            Some(Claim { segment, rank, from: from.0, to: to.0.max(from.0) })
        }
    };
    let above = above.into_iter().filter_map(ranked(Rank::AboveBackpressure));
    above.chain(below.into_iter().filter_map(ranked(Rank::BelowBackpressure))).collect()
}
