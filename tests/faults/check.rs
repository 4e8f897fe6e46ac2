//! What one field of a record must be, and terse ways to say the usual ones.
//!
//! Apart from judging so that a case reads as a table. The names of fields and words are the public ones of the
//! records. Must not know: how a record is fetched.

use serde_json::{Value, json};

/// One thing that must hold for a record.
#[derive(Debug, Clone)]
pub enum Check {
    Is(&'static str, Value),
    OneOf(&'static str, Vec<Value>),
    Null(&'static str),
    Known(&'static str),
    /// A time in nanoseconds that must be at least and at most so many milliseconds. The bound above is stretched by
    /// how late the script itself ran.
    Between(&'static str, u64, u64),
    /// The second stamp is so many milliseconds behind the first, at least.
    Behind(&'static str, &'static str, u64),
    /// Some flag says that the body was not read.
    Marked,
}

use Check::{Behind, Between, Is, Known, Null};

pub fn is(field: &'static str, value: impl Into<Value>) -> Check {
    Is(field, value.into())
}

pub fn null(field: &'static str) -> Check {
    Null(field)
}

pub fn known(field: &'static str) -> Check {
    Known(field)
}

/// Slack above a gap of a script, on a machine that is shared.
const SLACK_MS: u64 = 400;

/// A time that begins with the request: it cannot be shorter than the script's pauses.
pub fn at_least(field: &'static str, milliseconds: u64) -> Check {
    Between(field, milliseconds, milliseconds + SLACK_MS)
}

/// A time between two reads: the first of them may have been late.
pub fn about(field: &'static str, milliseconds: u64) -> Check {
    Between(field, milliseconds / 2, milliseconds + SLACK_MS)
}

pub fn behind(later: &'static str, earlier: &'static str, milliseconds: u64) -> Check {
    Behind(earlier, later, milliseconds)
}

/// A complete success.
pub fn success() -> Vec<Check> {
    vec![
        is("outcome", "success"),
        Null("reason"),
        is("phase", "complete"),
        is("client_status", 200),
        is("upstream_status", 200),
        is("literal_http_error", false),
        is("literal_timeout", false),
        is("literal_interruption", false),
    ]
}

pub fn interrupted(reason: &str, phase: &str) -> Vec<Check> {
    let mut checks = ended("interrupted", reason, phase);
    checks.extend([
        is("client_status", 200),
        is("literal_interruption", true),
        is("literal_http_error", false),
    ]);
    checks
}

pub fn cancelled(phase: &str) -> Vec<Check> {
    ended("cancelled", "client_left", phase)
}

pub fn timeout(reason: &str, phase: &str) -> Vec<Check> {
    let mut checks = ended("timeout", reason, phase);
    checks.push(is("literal_timeout", true));
    checks
}

/// An error that the caller got as a status.
pub fn http_error(status: u16, reason: &str) -> Vec<Check> {
    vec![
        is("outcome", "http_error"),
        is("reason", reason),
        is("client_status", status),
        is("literal_http_error", status > 400),
        is("literal_interruption", false),
        Null("output_tokens"),
        Null("first_token_time_ns"),
    ]
}

pub fn ended(outcome: &str, reason: &str, phase: &str) -> Vec<Check> {
    vec![is("outcome", outcome), is("reason", reason), is("phase", phase)]
}

/// Input, output and their sum, as reported.
pub fn counts(input: u64, output: u64) -> Vec<Check> {
    vec![
        is("input_tokens", input),
        is("input_tokens_mark", "reported"),
        is("output_tokens", output),
        is("output_tokens_mark", "reported"),
        is("total_tokens", input + output),
    ]
}

/// No usage, of an answer of one text: its output is not known, or estimated as the one that came.
pub fn no_counts() -> Vec<Check> {
    vec![
        Null("input_tokens"),
        is("input_tokens_mark", "not_reported"),
        Check::OneOf("output_tokens", vec![Value::Null, json!(1)]),
        one_of("output_tokens_mark", &["not_reported", "estimated"]),
        Null("total_tokens"),
        Null("time_per_token_ns"),
        Null("average_speed_tokens_per_second"),
    ]
}

/// Reasoning and content, with the source of the former.
pub fn split(reasoning: u64, content: u64, mark: &str) -> Vec<Check> {
    vec![is("reasoning_tokens", reasoning), is("reasoning_tokens_mark", mark), is("content_tokens", content)]
}

/// Reasoning came and was not counted.
pub fn split_unknown() -> Vec<Check> {
    vec![Null("reasoning_tokens"), is("reasoning_tokens_mark", "reasoning_unknown"), Null("content_tokens")]
}

/// No token was seen.
pub fn no_token() -> Vec<Check> {
    ["first_token_ns", "last_token_ns", "first_token_time_ns", "full_response_time_ns", "content_time_ns"]
        .map(Null)
        .to_vec()
}

/// Nothing of the stream's inside is known of a reply that came whole.
pub fn not_streamed() -> Vec<Check> {
    vec![
        is("transfer", "whole"),
        Null("first_token_time_ns"),
        is("first_token_time_mark", "not_streamed"),
        Null("reasoning_time_ns"),
        Null("content_time_ns"),
        is("content_time_mark", "not_streamed"),
        Null("time_per_token_ns"),
        is("time_per_token_mark", "not_streamed"),
    ]
}

pub fn nothing_cached() -> Vec<Check> {
    vec![Null("cached_tokens"), is("cached_tokens_mark", "not_reported")]
}

/// Several lists as one.
pub fn all<const N: usize>(lists: [Vec<Check>; N]) -> Vec<Check> {
    lists.into_iter().flatten().collect()
}

/// One of these words.
pub fn one_of(field: &'static str, words: &[&str]) -> Check {
    Check::OneOf(field, words.iter().map(|word| json!(word)).collect())
}
