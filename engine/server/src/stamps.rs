//! What the ends of a request's sequences add up to, as the control channel tells it.
//!
//! Apart from the thread that hands outputs out. Must not know: where it is sent, when.

use pitot_control::{FinishReason, OutputPart, RequestStamps};
use pitot_runtime::{Finish, Output, OutputSplit, Part, Stamps};

/// Those of a request of which nothing has ended.
pub fn empty_stamps(request_id: String, tokens_prompt: u32) -> RequestStamps {
    RequestStamps {
        request_id,
        queued_ns: None,
        scheduled_ns: None,
        first_ns: None,
        last_ns: None,
        tokens_prompt,
        tokens_cached: Some(0),
        tokens_output: 0,
        output: pitot_control::OutputSplit::default(),
        preemptions: 0,
        finish: FinishReason::Stop,
    }
}

/// Adds the end of one sequence: the earliest begin, the latest end, sums, and the gravest reason. `choice` is its
/// place among the choices of its prompt.
pub fn gather(into: &mut RequestStamps, output: &Output, choice: usize) {
    let Output::Finished { finish, stamps, usage, split, preemptions, .. } = output else { return };
    let Stamps { queued, scheduled, first, last } = *stamps;
    into.queued_ns = earliest(into.queued_ns, queued);
    into.scheduled_ns = earliest(into.scheduled_ns, scheduled);
    into.first_ns = earliest(into.first_ns, first);
    into.last_ns = into.last_ns.max(last);
    into.tokens_output += usage.tokens_output;
    if choice == 0 {
        into.tokens_cached = into.tokens_cached.map(|cached| cached.saturating_add(usage.tokens_cached));
    }
    into.preemptions += preemptions;
    let OutputSplit { reasoning, content, tokens_unclassified } = *split;
    gather_part(&mut into.output.reasoning, reasoning);
    gather_part(&mut into.output.content, content);
    into.output.tokens_unclassified += tokens_unclassified;
    let finish = match finish {
        Finish::Stop { .. } => FinishReason::Stop,
        Finish::Length => FinishReason::Length,
        Finish::Abort => FinishReason::Abort,
        Finish::Error(_) => FinishReason::Error,
    };
    if gravity(finish) > gravity(into.finish) {
        into.finish = finish;
    }
}

fn gather_part(into: &mut OutputPart, part: Part) {
    into.tokens += part.tokens;
    into.first_ns = earliest(into.first_ns, part.first);
    into.last_ns = into.last_ns.max(part.last);
}

fn earliest(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

fn gravity(finish: FinishReason) -> u8 {
    match finish {
        FinishReason::Stop => 0,
        FinishReason::Length => 1,
        FinishReason::Abort => 2,
        FinishReason::Error => 3,
    }
}
