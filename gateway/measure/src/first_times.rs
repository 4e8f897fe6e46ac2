//! Every "time to first token" that others publish, by its name, from one record.
//!
//! Apart because they differ in what counts as first, and a number without its definition cannot be compared. All
//! begin when the request was sent and end with the read that brought what they wait for. Must not know: how stamps
//! were taken.
//!
//! Sources: AIPerf, `ttft_metric.py` and `time_to_first_output_token_metric.py`; vLLM,
//! `vllm/benchmarks/lib/endpoint_request_func.py`; OpenTelemetry semantic conventions for generative AI, "GenAI
//! metrics".

use crate::named::named;
use crate::quantity::{Absent, Quantity};
use crate::record::Record;
use crate::timing::Transfer;

named! {
    /// A time to something first.
    pub enum FirstTime {
        Headers = "time_to_headers": "the head of the reply; some gateways call this ttft",
        OpenTelemetryFirstChunk = "gen_ai.client.operation.time_to_first_chunk":
            "OpenTelemetry: the first event of the stream, whatever it holds",
        VllmBenchTtft = "vllm_bench.ttft":
            "vLLM's benchmark: the first chunk with a choice, be it one that only names the role",
        AiperfTtft = "aiperf.time_to_first_token":
            "AIPerf: the first content that is not empty, reasoning included; first_token_time here",
        AiperfTtfo = "aiperf.time_to_first_output_token":
            "AIPerf: the first output that is no reasoning: text or a tool call",
        AnswerToken = "time_to_first_answer_token":
            "the first body payload: what a reader of the answer waits for",
    }
}

/// Gives one of them, in nanoseconds of the upstream leg. Only the head has a time where the reply did not stream.
pub fn first_time(record: &Record, which: FirstTime) -> Quantity<u64> {
    let timeline = &record.timeline;
    let (stamp, missing) = match which {
        FirstTime::Headers => (timeline.head, Absent::NotComplete),
        FirstTime::OpenTelemetryFirstChunk => (timeline.first_frame, Absent::NotComplete),
        FirstTime::VllmBenchTtft => (timeline.first_choice, Absent::NoValidToken),
        FirstTime::AiperfTtft => (timeline.first_token, Absent::NoValidToken),
        FirstTime::AiperfTtfo | FirstTime::AnswerToken => (timeline.content_first, Absent::NoBody),
    };
    let streamed = record.transfer == Transfer::Streamed;
    match (timeline.request_sent, stamp) {
        (None, _) => Quantity::Absent(Absent::NotSent),
        (Some(_), _) if !streamed && which != FirstTime::Headers => Quantity::Absent(Absent::NotStreamed),
        (Some(_), None) => Quantity::Absent(missing),
        (Some(sent), Some(stamp)) => {
            stamp.since(sent).map_or(Quantity::Absent(Absent::StampsContradict), Quantity::measured)
        }
    }
}
