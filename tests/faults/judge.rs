//! One exchange judged: the reply, what the upstream saw, and the record.
//!
//! Apart from running so that every complaint is a sentence made in one place. Must not know: sockets.

use std::time::Duration;

use serde_json::Value;

use super::caller::{Ended, Reply};
use super::case::{End, Exchange, Leaves, Protocol, Sent, Version};
use super::check::Check;
use super::dialect::{ASKED, Mode};
use super::gateway::Profile;
use super::judge_body::{self, Due};
use super::laws;
use super::player::{Arrival, asks_usage};
use super::wire::Delimited;

/// The flag of every reply that has tokens and no engine of ours behind it.
const NO_ENGINE: &str = "engine_times_missing";

/// All that was seen of one exchange.
pub struct Seen<'s> {
    pub exchange: &'s Exchange,
    pub profile: Profile,
    pub protocol: Protocol,
    pub id: &'s str,
    /// The request's body as the caller sent it.
    pub sent: &'s [u8],
    pub reply: &'s Reply,
    pub arrivals: &'s [Arrival],
    /// What the machine itself was late by meanwhile.
    pub lag: Duration,
    /// Absent for a gateway that is no Pitot.
    pub record: Option<Result<Value, String>>,
    pub pitot: bool,
}

/// Everything that is wrong, each in words.
pub fn complaints(seen: &Seen<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    reply(seen, &mut wrong);
    upstream(seen, &mut wrong);
    match &seen.record {
        Some(Ok(record)) => {
            judge_record(seen, record, &mut wrong);
        }
        Some(Err(why)) => wrong.push(format!("record: {why}")),
        None => {}
    }
    wrong
}

fn usage_shown(seen: &Seen<'_>) -> bool {
    let stream = seen.exchange.mode == Mode::Stream && ASKED.contains(&seen.exchange.dialect);
    seen.exchange.request.asks || stream && seen.pitot && seen.profile.shows_usage()
}

fn reply(seen: &Seen<'_>, wrong: &mut Vec<String>) {
    let Seen { exchange, reply, .. } = seen;
    let lenient = matches!(exchange.sees.body, super::case::Body::OwnError) && !seen.pitot;
    match (exchange.sees.status, reply.status) {
        (Some(_), Some(found)) if lenient && found >= 400 => {}
        (expected, None) if lenient && expected.is_some() => {}
        (expected, found) if expected == found => {}
        (None, Some(_)) if !matches!(exchange.leaves, Leaves::Never) => {}
        (expected, found) => {
            let words = |status: Option<u16>| status.map_or("none".to_owned(), |status| status.to_string());
            let body = String::from_utf8_lossy(&reply.body).chars().take(200).collect::<String>();
            let (expected, found) = (words(expected), words(found));
            wrong.push(format!("status {expected} is due, {found} came ({:?}): {body:?}", reply.ended));
        }
    }
    if reply.status.is_none() {
        return;
    }
    framing(seen, wrong);
    let last = seen.arrivals.len().saturating_sub(1);
    let play = exchange.plays.get(last).or(exchange.plays.last());
    let due = Due {
        expected: &exchange.sees.body,
        sent: play.map(|play| play.body(usage_shown(seen))).unwrap_or_default(),
        dialect: exchange.dialect,
        pitot: seen.pitot,
    };
    wrong.extend(judge_body::wrong(&due, reply));
    match (exchange.sees.end, &reply.ended) {
        (End::Any, _)
        | (_, Ended::Left)
        | (End::Complete, Ended::Complete)
        | (End::Broken, Ended::Broken(_)) => {}
        (End::Complete, Ended::Broken(why)) => wrong.push(format!("the reply is not complete: {why}")),
        (End::Broken, Ended::Complete) => wrong.push("the reply ends as if it were whole".to_owned()),
    }
    for (name, value) in &exchange.sees.headers {
        match reply.header(name) {
            Some(found) if value.is_empty() || found == *value => {}
            found => wrong.push(format!("the header {name} is {found:?}, {value:?} is due")),
        }
    }
    arrivals_in_time(seen, wrong);
    if seen.pitot && reply.header("x-request-id") != Some(seen.id) {
        wrong.push(format!("x-request-id is {:?}, {} is due", reply.header("x-request-id"), seen.id));
    }
}

fn framing(seen: &Seen<'_>, wrong: &mut Vec<String>) {
    let Seen { reply, exchange, .. } = seen;
    if !reply.stray.is_empty() {
        wrong.push(format!("bytes behind the reply: {:?}", String::from_utf8_lossy(&reply.stray)));
    }
    if seen.protocol == Protocol::H2c {
        return;
    }
    match (reply.delimited, exchange.request.version) {
        (Some(Delimited::Contradicting), _) => wrong.push("the reply has more than one length".to_owned()),
        (Some(Delimited::Chunked), Version::Http10) => {
            wrong.push("chunks are sent to an HTTP/1.0 caller, which does not know them".to_owned());
        }
        (Some(Delimited::UntilClose), Version::Http11) => {
            wrong.push("the reply has neither a length nor chunks".to_owned());
        }
        (
            Some(Delimited::Length(_) | Delimited::Chunked | Delimited::UntilClose | Delimited::Nothing)
            | None,
            _,
        ) => {}
    }
}

fn arrivals_in_time(seen: &Seen<'_>, wrong: &mut Vec<String>) {
    let late = lateness(seen).as_millis() as u64;
    for (text, milliseconds) in &seen.exchange.sees.arrives {
        let Some(found) = seen.reply.arrival(text) else {
            wrong.push(format!("{text:?} did not arrive"));
            continue;
        };
        let found = found.as_millis() as u64;
        if found < *milliseconds.start() || found > *milliseconds.end() + late {
            wrong.push(format!("{text:?} arrived after {found} ms, {milliseconds:?} are due"));
        }
    }
}

fn lateness(seen: &Seen<'_>) -> Duration {
    seen.lag + seen.arrivals.iter().map(|arrival| arrival.late).max().unwrap_or_default()
}

fn upstream(seen: &Seen<'_>, wrong: &mut Vec<String>) {
    let Seen { exchange, arrivals, .. } = seen;
    let expected = &exchange.upstream;
    if !expected.arrivals.contains(&arrivals.len()) {
        wrong.push(format!(
            "the upstream got the request {} times, {:?} are due",
            arrivals.len(),
            expected.arrivals
        ));
    }
    for (index, arrival) in arrivals.iter().enumerate() {
        if let Some(why) = body_sent(seen, index, &arrival.body) {
            wrong.push(format!("request {} at the upstream: {why}", index + 1));
        }
        let headers = super::wire::headers(&arrival.head);
        let forbidden = |name: &&&str| super::wire::header(&headers, name).is_some();
        for name in expected.without.iter().filter(forbidden).filter(|_| seen.pitot) {
            wrong.push(format!("request {} at the upstream has the header {name}", index + 1));
        }
    }
    for arrival in arrivals.iter() {
        let headers = super::wire::headers(&arrival.head);
        let absent = |(name, value): &&(&str, &str)| super::wire::header(&headers, name) != Some(value);
        for (name, value) in expected.with.iter().filter(absent) {
            wrong.push(format!("the request at the upstream lacks {name}: {value}"));
        }
    }
    let Some(limit) = expected.closed_within else { return };
    let from = seen.reply.left_at.or(seen.reply.reads.last().map(|(at, _)| *at)).or(seen.reply.head_at);
    let Some(arrival) = arrivals.last() else { return };
    match (arrival.closed, from) {
        (None, _) => wrong.push("the connection to the upstream was not closed".to_owned()),
        (Some((at, _)), Some(from)) if at.saturating_duration_since(from) > limit + seen.lag => {
            let took = at.saturating_duration_since(from).as_millis();
            wrong.push(format!("the connection to the upstream was closed after {took} ms"));
        }
        (Some(_), _) => {}
    }
}

/// What is wrong with a request's body as it reached the upstream.
fn body_sent(seen: &Seen<'_>, index: usize, found: &[u8]) -> Option<String> {
    let Seen { exchange, profile, sent, .. } = seen;
    let stream = exchange.mode == Mode::Stream && ASKED.contains(&exchange.dialect);
    let asking_due = stream && !exchange.request.asks && profile.asks_usage();
    let unchanged = || judge_body::differs(sent, found);
    match &exchange.upstream.bodies {
        Sent::Any => None,
        Sent::Unchanged => unchanged(),
        Sent::Streaming => {
            let body: Value = serde_json::from_slice(found).unwrap_or_default();
            (body["stream"] != true).then(|| format!("no stream is asked for: {body}"))
        }
        Sent::FirstAsking if index == 0 => asks(sent, found),
        Sent::FirstAsking => unchanged(),
        // A gateway that is no Pitot may leave the request alone.
        Sent::Due if asking_due && !seen.pitot => unchanged().and_then(|_| asks(sent, found)),
        Sent::Due if asking_due => asks(sent, found),
        Sent::Due => unchanged(),
    }
}

/// Usage is asked for, in one place, and nothing else is changed.
fn asks(sent: &[u8], found: &[u8]) -> Option<String> {
    if !asks_usage(found) {
        let found = &found[..found.len().min(400)];
        return Some(format!("usage is not asked for: {:?}", String::from_utf8_lossy(found)));
    }
    let same = sent.iter().zip(found).take_while(|(sent, found)| sent == found).count();
    let behind = sent.iter().rev().zip(found.iter().rev()).take_while(|(sent, found)| sent == found).count();
    // What may be replaced is `false` or `null`.
    let replaced = sent.len().saturating_sub(same + behind);
    (replaced > 5 || found.len() > sent.len() + 64).then(|| {
        format!(
            "more than one place was changed: {:?}",
            String::from_utf8_lossy(&found[..found.len().min(400)])
        )
    })
}

fn judge_record(seen: &Seen<'_>, record: &Value, wrong: &mut Vec<String>) {
    let late = lateness(seen).as_millis() as u64;
    let checks = seen.exchange.record.iter().flatten();
    wrong.extend(checks.filter_map(|check| failed(check, record, late)));
    let flags: Vec<&str> =
        record["flags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let marked = seen.exchange.record.iter().flatten().any(|check| matches!(check, Check::Marked));
    let may = |flag: &str| {
        let Exchange { flags, flags_allowed, .. } = seen.exchange;
        flag == NO_ENGINE || flags.contains(&flag) || flags_allowed.contains(&flag)
    };
    let unexpected: Vec<_> = flags.iter().filter(|flag| !may(flag)).collect();
    if !unexpected.is_empty() && !marked {
        wrong.push(format!("record: unexpected flags {unexpected:?}"));
    }
    for flag in seen.exchange.flags.iter().filter(|flag| !flags.contains(*flag)) {
        wrong.push(format!("record: the flag {flag} is missing"));
    }
    wrong.extend(laws::broken(record).into_iter().map(|law| format!("record, a law: {law}")));
}

fn failed(check: &Check, record: &Value, late: u64) -> Option<String> {
    match check {
        Check::Is(field, value) => {
            let found = &record[*field];
            let same = found == value || found.as_f64().is_some() && found.as_f64() == value.as_f64();
            (!same).then(|| format!("record: {field} is {found}, {value} is due"))
        }
        Check::OneOf(field, values) => {
            let found = &record[*field];
            (!values.contains(found)).then(|| format!("record: {field} is {found}, one of {values:?} is due"))
        }
        Check::Null(field) => {
            let found = &record[*field];
            (!found.is_null()).then(|| format!("record: {field} is {found}, null is due"))
        }
        Check::Known(field) => {
            record[*field].is_null().then(|| format!("record: {field} is null, a value is due"))
        }
        Check::Between(field, low, high) => {
            let high = high + late;
            match record[*field].as_f64().map(|ns| ns / 1e6) {
                Some(ms) if ms >= *low as f64 && ms <= high as f64 => None,
                Some(ms) => Some(format!("record: {field} is {ms:.1} ms, {low} to {high} ms are due")),
                None => Some(format!("record: {field} is {}, {low} to {high} ms are due", record[*field])),
            }
        }
        Check::Behind(earlier, later, gap) => {
            let stamps = record[*earlier].as_u64().zip(record[*later].as_u64());
            let Some((before, after)) = stamps else {
                return Some(format!("record: {earlier} or {later} is null"));
            };
            let found = after as f64 / 1e6 - before as f64 / 1e6;
            (found < *gap as f64).then(|| {
                format!("record: {later} is {found:.1} ms behind {earlier}, at least {gap} ms are due")
            })
        }
        Check::Marked => {
            let marks = ["compress", "encod", "unread", "not_read", "opaque"];
            let flags = record["flags"].to_string();
            (!marks.iter().any(|mark| flags.contains(mark)))
                .then(|| format!("record: no flag says that the body was not read: {flags}"))
        }
    }
}
