//! `gateway/METRICS.md`, printed from the lists that the code itself uses.
//!
//! Apart so that the page cannot say anything else than the code; a test compares the two. Must not know: files.

use std::fmt::Write;

use crate::conservation::Violation;
use crate::definitions::DEFINITIONS;
use crate::engine_timing::TimingSource;
use crate::families::{BUCKETS_SECONDS, Family, FamilyKind, OWN_BUCKETS_SECONDS};
use crate::first_times::FirstTime;
use crate::outcome::{OutcomeKind, Phase, Reason};
use crate::quantity::{Absent, Source};
use crate::rates;
use crate::record::Flag;

const OPENING: &str = "\
# What Pitot measures

Printed from the code (`cargo run -p pitot-measure --example metrics`); a test compares it, so change the code.

Every number of one request stands in its journal line and in `/requests/{id}`; Prometheus, `/rates` and the
`metrics` object of a response are made of the same numbers. Null is never 0: beside each quantity stands its mark,
which is the source of a number that is there and the reason for one that is not.

## The timeline

Stamps are monotonic nanoseconds since the request was accepted. One is taken when the read that brought the bytes
has completed, so events of one read share it. Keys end in `_ns`.
";

const TIMELINE: [(&str, &str); 15] = [
    ("request_read", "last byte of the request read from the caller"),
    (
        "request_sent",
        "**S**, immediately before the write that hands the last byte of the request to the upstream",
    ),
    ("head", "head of the upstream's reply read"),
    ("first_frame", "first event with data read (first body byte of a reply that does not stream)"),
    ("first_choice", "first chunk with a choice, even an empty one; typed events have none"),
    (
        "first_token",
        "**V1**, first event with a payload: content, reasoning, tool name or argument, refusal, audio",
    ),
    ("reasoning_first", "**R1**, first reasoning payload"),
    ("reasoning_last", "**Rn**, last reasoning payload"),
    ("content_first", "**C1**, first body payload (text, tool call, refusal, audio)"),
    ("content_last", "**Cn**, last body payload"),
    ("last_token", "**Vn**, last event with a payload"),
    ("finish", "the last choice's finish reason read"),
    ("terminal", "the event that ends the protocol: finish and usage, or `[DONE]`; a whole body's last byte"),
    ("upstream_eof", "end of the upstream's body"),
    ("downstream_done", "the last write to the caller returned, or the request ended without one"),
];

/// Keys of a record that are defined nowhere else on the page.
const RECORD: [(&str, &str); 30] = [
    ("id", "the gateway's own id of the request; the reply's `x-request-id` unless the caller sent one"),
    ("client_request_id", "the caller's own `x-request-id`"),
    ("accepted_unix_ms", "wall time at which the request was accepted, in milliseconds since 1970"),
    ("endpoint", "which wire format; `other` is counted apart from everything else"),
    ("model", "the model that the caller named"),
    ("upstream", "the name of the upstream"),
    ("key_alias", "the name of the caller's key, if it has one here"),
    ("stream", "whether the caller asked for a stream"),
    ("upstream_stream", "whether the gateway asked the upstream for one"),
    ("transfer", "how the upstream's reply came: `streamed` or `whole`"),
    ("choices", "choices asked for (`n`)"),
    ("prompts", "prompts of a completions request"),
    ("usage_asked", "who asked for usage: `by_client`, `by_gateway` (and hid it again), `forced`, `not`"),
    ("request_bytes", "length of the request's body"),
    ("response_bytes", "bytes of the upstream's body that were read"),
    ("attempts", "attempts at the upstream; times are those of the last"),
    ("client_status", "status that went to the caller"),
    ("upstream_status", "status of the upstream's reply"),
    ("finish", "why the first choice ended; `length` if any was cut"),
    (
        "literal_http_error",
        "the standard's own overlapping rule; so too `literal_timeout`, `literal_interruption`",
    ),
    ("total_tokens_reported", "the total as the upstream said it"),
    ("reasoning_active_ns", "sum of the stretches in which reasoning was arriving"),
    ("content_active_ns", "the same for content; with `gaps_ns` all three are last token − first token"),
    ("client_backpressure_ns", "time inside writes to the caller"),
    (
        "own_request_ns",
        "time that the gateway itself spent; `own_chunks_ns` on `own_chunks` chunks of the reply",
    ),
    ("engine_queued_ns", "the engine's stamp: the scheduler took the request in"),
    ("engine_scheduled_ns", "top of the first step that admitted it"),
    ("engine_first_ns", "end of the step that made the first token; `engine_last_ns` of the last"),
    (
        "engine_output_tokens",
        "the engine's own counts: also `engine_prompt_tokens`, `engine_cached_tokens`, and of the output \
         `engine_reasoning_tokens`, `engine_content_tokens`, `engine_unclassified_tokens` (markers, end of text)",
    ),
    ("engine_preemptions", "how often the engine took the request's memory away and computed it again"),
];

const UPSTREAM_TIMING: [(&str, &str); 7] = [
    ("upstream_queue_ns", "time in the upstream's queue"),
    ("upstream_prefill_ns", "scheduled to first token"),
    ("upstream_ttft_ns", "time to the first token, from `upstream_ttft_origin` on"),
    ("upstream_ttft_origin", "`arrival` (the queue is included) or `scheduled`"),
    ("upstream_decode_ns", "first token to last"),
    ("upstream_total_ns", "all of it, as the upstream says"),
    (
        "upstream_*_tokens",
        "counts of the same source: input, cached, output, reasoning, content, unclassified",
    ),
];

const SEGMENTS: [(&str, &str); 8] = [
    ("gateway_in", "accepted → request_sent"),
    ("local_hop", "request_sent → engine queued, and engine last → finish"),
    ("engine_queue", "engine queued → engine scheduled"),
    ("prefill", "engine scheduled → engine first"),
    ("decode", "engine first → engine last"),
    ("gateway_out", "upstream_eof (else terminal, else the last read) → downstream_done"),
    (
        "client_backpressure",
        "inside writes to the caller, where no segment of the engine or before it has the time",
    ),
    ("residual", "what no pair of stamps claims; under 1 ms + 1 % of the whole on an idle machine"),
];

const METRICS_OBJECT: [(&str, &str, &str); 5] = [
    ("time_to_first_token_ms", "first − scheduled", "a stamp is missing"),
    ("generation_time_ms", "last − first", "a stamp is missing"),
    ("queue_time_ms", "scheduled − queued", "a stamp is missing"),
    ("mean_itl_ms", "(last − first) / (N − 1)", "a stamp is missing, or N ≤ 1"),
    ("tokens_per_second", "N / (last − scheduled)", "a stamp is missing, or the interval is not positive"),
];

/// Prints the page.
pub fn print() -> String {
    let mut page = OPENING.to_owned();
    table(&mut page, &["stamp", "meaning"], TIMELINE.map(|(name, meaning)| vec![code(name), meaning.into()]));
    quantities(&mut page);
    first_times(&mut page);
    record(&mut page);
    upstream_timing(&mut page);
    outcomes(&mut page);
    rates_of_many(&mut page);
    prometheus(&mut page);
    metrics_object(&mut page);
    conservation(&mut page);
    page
}

fn heading(page: &mut String, title: &str, text: &str) {
    // Writing to a String cannot fail.
    let _ = write!(page, "\n## {title}\n\n{text}\n");
}

fn table(page: &mut String, head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let _ = write!(page, "\n| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    for row in rows {
        let _ = writeln!(page, "| {} |", row.join(" | "));
    }
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

fn quantities(page: &mut String) {
    heading(
        page,
        "Quantities of one request",
        "The upstream leg is the gateway as the client of the upstream, from request_sent on. Its twins with the \
         prefix `client_`\nare of the leg to the caller: from request_read, all attempts and waiting included, to \
         the write that handed the bytes over.\nThe mark's key is the name with `_mark`.",
    );
    let rows = DEFINITIONS.iter().map(|definition| {
        vec![
            code(&definition.key()),
            definition.unit.to_owned(),
            definition.formula.to_owned(),
            definition.absent_when.to_owned(),
        ]
    });
    table(page, &["key", "unit", "formula", "null when"], rows);
    let _ = write!(
        page,
        "\nBeside them, without marks: `total_tokens_reported` (the total as the upstream gave it); \
         `reasoning_active_ns`, `content_active_ns`\nand `gaps_ns` (the stretches in which that kind was arriving, \
         and those between kinds: they sum to last_token − first_token);\n`client_backpressure_ns` (all time inside \
         writes to the caller); `own_request_ns` (time that the gateway itself spent),\nof which `own_chunks_ns` on \
         `own_chunks` chunks of the reply; `engine_*` (the engine's own stamps and counts).\n"
    );
    let names = Source::ALL.iter().map(|source| vec![code(source.name()), source.meaning().into()]);
    table(page, &["mark of a number", "meaning"], names);
    let names = Absent::ALL.iter().map(|reason| vec![code(reason.name()), reason.meaning().into()]);
    table(page, &["mark of a null", "meaning"], names);
}

fn first_times(page: &mut String) {
    heading(
        page,
        "Times to something first",
        "What others publish as time to first token, each from request_sent to the read that brought what it waits \
         for. All can be\nmade of the timeline above: they are the differences of its stamps.",
    );
    let names = FirstTime::ALL.iter().map(|first| vec![code(first.name()), first.meaning().into()]);
    table(page, &["name", "waits for"], names);
}

fn upstream_timing(page: &mut String) {
    heading(
        page,
        "The upstream's own timing",
        "Many servers say in a reply how long they took. What they say passes unchanged and is kept in one form; the \
         first source of\nthe second table that is there is taken. A phase whose time or count is 0 is dropped. All \
         are null if nothing was said.",
    );
    table(page, &["key", "meaning"], UPSTREAM_TIMING.map(|(key, meaning)| vec![code(key), meaning.into()]));
    let names = TimingSource::ALL.iter().map(|source| vec![code(source.name()), source.meaning().into()]);
    table(page, &["`upstream_timing_source`", "found in"], names);
}

fn outcomes(page: &mut String) {
    heading(
        page,
        "Outcomes",
        "Each request has one; cancelled goes before timeout, then http_error, interrupted, other, success. The \
         status of the reply is kept apart.\nEmbeddings take part in success, HTTP error and timeout only.",
    );
    let names = OutcomeKind::ALL.iter().map(|kind| vec![code(kind.name()), kind.meaning().into()]);
    table(page, &["`outcome`", "when"], names);
    let names = Reason::ALL.iter().map(|reason| vec![code(reason.name()), reason.meaning().into()]);
    table(page, &["`reason`", "meaning"], names);
    let names = Phase::ALL.iter().map(|phase| vec![code(phase.name()), phase.meaning().into()]);
    table(page, &["`phase`", "meaning"], names);
    let names = Flag::ALL.iter().map(|flag| vec![code(flag.name()), flag.meaning().into()]);
    table(page, &["`flags`", "meaning"], names);
}

fn rates_of_many(page: &mut String) {
    heading(
        page,
        "Rates",
        "Over rolling 1m, 5m, 15m, 1h and 24h, and from any instant of the last day to any other, by the time a request \
         ended;\nof all, and by model, upstream and key. The denominator is every request to a \
         generating or embedding\nendpoint, refused ones included; other paths are `requests_apart`. The six outcome \
         rates sum to 1; those under `literal.` are\nby the standard's own words and overlap. Null where there was \
         no request. Aggregates are quotients of sums.",
    );
    let names = rates::DEFINITIONS.iter().map(|(key, formula)| vec![code(key), (*formula).to_owned()]);
    table(page, &["key", "formula"], names);
    let _ = write!(
        page,
        "\nQuantiles are of a DDSketch: each is within {} % of the true value. `times` holds one entry for each of \
         the times above.\n",
        rates::RELATIVE_ERROR * 100.0
    );
}

fn prometheus(page: &mut String) {
    heading(
        page,
        "Prometheus",
        "An absent quantity adds nothing. Requests outside the denominator are counted in the first family and in no \
         other. Models\nbeyond the configured number share the label `other`.",
    );
    let rows = Family::ALL.iter().map(|family| {
        let about = family.about();
        let labels: Vec<&str> = about.labels.iter().map(|label| label.name()).collect();
        vec![code(about.name), about.kind.name().to_owned(), labels.join(", "), about.help.to_owned()]
    });
    table(page, &["name", "type", "labels", "meaning"], rows);
    let bounds = |bounds: &[f64]| bounds.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
    let _ = write!(
        page,
        "\nUpper bounds of every {}, in seconds: {}.\nThose of the gateway's own cost: {}.\n",
        FamilyKind::Histogram.name(),
        bounds(&BUCKETS_SECONDS),
        bounds(&OWN_BUCKETS_SECONDS),
    );
}

fn metrics_object(page: &mut String) {
    heading(
        page,
        "The `metrics` object of a response",
        "The engine's view, always with these five keys in this order, unrounded. N is the completion count of the \
         usage. Left out for\nseveral choices or prompts. Its time to first token begins at *scheduling*, unlike \
         first_token_time.",
    );
    let rows = METRICS_OBJECT.map(|(key, formula, absent)| vec![code(key), formula.into(), absent.into()]);
    table(page, &["key", "formula", "null when"], rows);
}

fn record(page: &mut String) {
    heading(
        page,
        "The rest of a record",
        "Keys beside the quantities, stamps and segments (`segment_…_ns`). What is not known is null.",
    );
    table(page, &["key", "meaning"], RECORD.map(|(key, meaning)| vec![code(key), meaning.to_owned()]));
}

fn conservation(page: &mut String) {
    heading(
        page,
        "Conservation",
        "Every nanosecond from accepted to downstream_done belongs to one segment (`segment_*_ns`), so that they sum \
         to `segment_total_ns`.\nWhere two claim the same time the one further up has it, but client_backpressure \
         goes before the way back and gateway_out.",
    );
    table(page, &["segment", "between"], SEGMENTS.map(|(name, between)| vec![code(name), between.into()]));
    let names = Violation::ALL.iter().map(|law| vec![code(law.name()), law.meaning().into()]);
    table(page, &["`violations`", "meaning"], names);
}
