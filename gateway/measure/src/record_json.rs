//! The record as one flat JSON object: the journal's line.
//!
//! Apart from the record so that its fields can be shaped for code and its keys for readers. Times end in `_ns`
//! and count from `accepted`; null is null. Must not know: what the numbers mean.

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::definitions::{self, DEFINITIONS};
use crate::engine_timing::UpstreamTiming;
use crate::event::EngineTimes;
use crate::record::{Record, Timeline};

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        about(self, &mut map)?;
        stamps(&self.timeline, &mut map)?;
        for definition in &DEFINITIONS {
            let quantity = definitions::quantity(self, definition.metric);
            map.serialize_entry(&definition.key(), &quantity.value())?;
            map.serialize_entry(&definition.mark_key(), quantity.mark())?;
        }
        map.serialize_entry("total_tokens_reported", &self.tokens.total_reported)?;
        map.serialize_entry("reasoning_active_ns", &self.active.map(|active| active.reasoning_ns))?;
        map.serialize_entry("content_active_ns", &self.active.map(|active| active.content_ns))?;
        map.serialize_entry("gaps_ns", &self.active.map(|active| active.gaps_ns))?;
        map.serialize_entry("client_backpressure_ns", &self.client_backpressure_ns)?;
        map.serialize_entry("own_request_ns", &self.own.map(|own| own.request_ns))?;
        map.serialize_entry("own_chunks", &self.own.map(|own| own.chunks))?;
        map.serialize_entry("own_chunks_ns", &self.own.map(|own| own.chunks_ns))?;
        engine(self.engine.as_ref(), &mut map)?;
        upstream_timing(self.upstream_timing.as_ref(), &mut map)?;
        for (name, ns) in self.waterfall.segments() {
            map.serialize_entry(&format!("segment_{name}_ns"), &ns)?;
        }
        map.serialize_entry("segment_total_ns", &self.waterfall.total_ns)?;
        map.end()
    }
}

fn about<M: SerializeMap>(record: &Record, map: &mut M) -> Result<(), M::Error> {
    map.serialize_entry("id", &record.id)?;
    map.serialize_entry("endpoint", &record.endpoint)?;
    map.serialize_entry("model", &record.model)?;
    map.serialize_entry("upstream", &record.upstream)?;
    map.serialize_entry("key_alias", &record.key_alias)?;
    map.serialize_entry("stream", &record.stream)?;
    map.serialize_entry("upstream_stream", &record.upstream_stream)?;
    map.serialize_entry("transfer", &record.transfer)?;
    map.serialize_entry("choices", &record.choices)?;
    map.serialize_entry("prompts", &record.prompts)?;
    map.serialize_entry("usage_asked", &record.usage_asked)?;
    map.serialize_entry("request_bytes", &record.request_bytes)?;
    map.serialize_entry("response_bytes", &record.response_bytes)?;
    map.serialize_entry("attempts", &record.attempts)?;
    map.serialize_entry("outcome", &record.outcome)?;
    map.serialize_entry("reason", &record.reason)?;
    map.serialize_entry("phase", &record.phase)?;
    map.serialize_entry("client_status", &record.client_status)?;
    map.serialize_entry("upstream_status", &record.upstream_status)?;
    map.serialize_entry("finish", &record.finish)?;
    map.serialize_entry("literal_http_error", &record.literal.http_error)?;
    map.serialize_entry("literal_timeout", &record.literal.timeout)?;
    map.serialize_entry("literal_interruption", &record.literal.interruption)?;
    map.serialize_entry("flags", &record.flags)?;
    map.serialize_entry("violations", &record.violations)
}

fn stamps<M: SerializeMap>(timeline: &Timeline, map: &mut M) -> Result<(), M::Error> {
    let Timeline {
        request_read,
        request_sent,
        head,
        first_frame,
        first_choice,
        first_token,
        reasoning_first,
        reasoning_last,
        content_first,
        content_last,
        last_token,
        finish,
        terminal,
        upstream_eof,
        downstream_done,
    } = timeline;
    map.serialize_entry("request_read_ns", request_read)?;
    map.serialize_entry("request_sent_ns", request_sent)?;
    map.serialize_entry("head_ns", head)?;
    map.serialize_entry("first_frame_ns", first_frame)?;
    map.serialize_entry("first_choice_ns", first_choice)?;
    map.serialize_entry("first_token_ns", first_token)?;
    map.serialize_entry("reasoning_first_ns", reasoning_first)?;
    map.serialize_entry("reasoning_last_ns", reasoning_last)?;
    map.serialize_entry("content_first_ns", content_first)?;
    map.serialize_entry("content_last_ns", content_last)?;
    map.serialize_entry("last_token_ns", last_token)?;
    map.serialize_entry("finish_ns", finish)?;
    map.serialize_entry("terminal_ns", terminal)?;
    map.serialize_entry("upstream_eof_ns", upstream_eof)?;
    map.serialize_entry("downstream_done_ns", downstream_done)
}

/// What the reply says of the upstream's work; all null if it says nothing.
fn upstream_timing<M: SerializeMap>(timing: Option<&UpstreamTiming>, map: &mut M) -> Result<(), M::Error> {
    map.serialize_entry("upstream_timing_source", &timing.map(|timing| timing.source))?;
    map.serialize_entry("upstream_queue_ns", &timing.and_then(|timing| timing.queue_ns))?;
    map.serialize_entry("upstream_prefill_ns", &timing.and_then(|timing| timing.prefill_ns))?;
    map.serialize_entry("upstream_ttft_ns", &timing.and_then(|timing| timing.ttft).map(|ttft| ttft.0))?;
    map.serialize_entry("upstream_ttft_origin", &timing.and_then(|timing| timing.ttft).map(|ttft| ttft.1))?;
    map.serialize_entry("upstream_decode_ns", &timing.and_then(|timing| timing.decode_ns))?;
    map.serialize_entry("upstream_total_ns", &timing.and_then(|timing| timing.total_ns))?;
    map.serialize_entry("upstream_input_tokens", &timing.and_then(|timing| timing.tokens_input))?;
    map.serialize_entry("upstream_cached_tokens", &timing.and_then(|timing| timing.tokens_cached))?;
    map.serialize_entry("upstream_output_tokens", &timing.and_then(|timing| timing.tokens_output))?;
    map.serialize_entry("upstream_reasoning_tokens", &timing.and_then(|timing| timing.tokens_reasoning))?;
    map.serialize_entry("upstream_content_tokens", &timing.and_then(|timing| timing.tokens_content))?;
    map.serialize_entry("upstream_unclassified_tokens", &timing.and_then(|timing| timing.tokens_unclassified))
}

/// The engine's own stamps and counts; all null if it reported nothing.
fn engine<M: SerializeMap>(engine: Option<&EngineTimes>, map: &mut M) -> Result<(), M::Error> {
    map.serialize_entry("engine_queued_ns", &engine.and_then(|engine| engine.queued))?;
    map.serialize_entry("engine_scheduled_ns", &engine.and_then(|engine| engine.scheduled))?;
    map.serialize_entry("engine_first_ns", &engine.and_then(|engine| engine.first))?;
    map.serialize_entry("engine_last_ns", &engine.and_then(|engine| engine.last))?;
    map.serialize_entry("engine_prompt_tokens", &engine.map(|engine| engine.tokens_prompt))?;
    map.serialize_entry("engine_cached_tokens", &engine.and_then(|engine| engine.tokens_cached))?;
    map.serialize_entry("engine_output_tokens", &engine.map(|engine| engine.tokens_output))?;
    map.serialize_entry("engine_reasoning_tokens", &engine.map(|engine| engine.reasoning.tokens))?;
    map.serialize_entry("engine_reasoning_first_ns", &engine.and_then(|engine| engine.reasoning.first))?;
    map.serialize_entry("engine_reasoning_last_ns", &engine.and_then(|engine| engine.reasoning.last))?;
    map.serialize_entry("engine_content_tokens", &engine.map(|engine| engine.content.tokens))?;
    map.serialize_entry("engine_content_first_ns", &engine.and_then(|engine| engine.content.first))?;
    map.serialize_entry("engine_content_last_ns", &engine.and_then(|engine| engine.content.last))?;
    map.serialize_entry("engine_unclassified_tokens", &engine.map(|engine| engine.tokens_unclassified))?;
    map.serialize_entry("engine_preemptions", &engine.map(|engine| engine.preemptions))
}
