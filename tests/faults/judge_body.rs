//! Whether the bytes that a caller got are the ones that it had to get.
//!
//! Apart from the rest of judging because this is where "byte for byte" is held. Must not know: records, the
//! upstream's connection.

use serde_json::Value;

use super::caller::{Ended, Reply, find};
use super::case::Body;
use super::dialect::Dialect;

/// Characters of context around a difference.
const CONTEXT: usize = 60;

/// The bytes that a case speaks of.
pub struct Due<'d> {
    pub expected: &'d Body,
    /// What the upstream sent, without what is not the caller's.
    pub sent: Vec<u8>,
    pub dialect: Dialect,
    /// Whether the gateway is a Pitot; of others an error may look different.
    pub pitot: bool,
}

/// What is wrong with the body, or None.
pub fn wrong(due: &Due<'_>, reply: &Reply) -> Option<String> {
    match due.expected {
        Body::AsSent => differs(&due.sent, &reply.body),
        Body::Exactly(bytes) => differs(bytes, &reply.body),
        Body::Replacing(from, to) => match find(&due.sent, from) {
            Some(at) => {
                let expected = [&due.sent[..at], to, &due.sent[at + from.len()..]].concat();
                differs(&expected, &reply.body)
            }
            None => Some("the case replaces what the upstream does not send".to_owned()),
        },
        Body::MetricsOnce => metrics_once(&reply.body),
        Body::OwnError => own_error(due, reply),
        Body::BrokenOff => broken_off(due, reply),
        Body::CutShort => {
            let beginning = cut_at_a_frame(&due.sent, &reply.body);
            broken_off(&Due { sent: beginning, ..*due }, reply)
        }
        Body::BrokenSomehow => match &reply.ended {
            Ended::Broken(_) if reply.body == due.sent => None,
            Ended::Broken(_) | Ended::Complete | Ended::Left => broken_off(due, reply),
        },
        Body::AsSentOrBrokenOff if reply.body == due.sent => None,
        Body::AsSentOrBrokenOff => broken_off(due, reply),
        Body::Beginning => beginning(&due.sent, &reply.body),
        Body::Holding(expected) => match serde_json::from_slice::<Value>(&reply.body) {
            Ok(found) => missing(expected, &found, ""),
            Err(error) => Some(format!("the body is no JSON: {error}: {}", excerpt(&reply.body, 0))),
        },
        Body::Any => None,
    }
}

/// The first difference in words.
pub fn differs(expected: &[u8], found: &[u8]) -> Option<String> {
    let same = expected.iter().zip(found).take_while(|(expected, found)| expected == found).count();
    if same == expected.len() && same == found.len() {
        return None;
    }
    Some(format!(
        "the body differs at byte {same} ({} expected, {} came): {} is due, {} came",
        expected.len(),
        found.len(),
        excerpt(expected, same),
        excerpt(found, same),
    ))
}

fn excerpt(bytes: &[u8], at: usize) -> String {
    let start = at.saturating_sub(CONTEXT / 3).min(bytes.len());
    let end = (at + CONTEXT).min(bytes.len());
    let text = String::from_utf8_lossy(&bytes[start..end]).into_owned();
    if at >= bytes.len() { format!("{text:?} and the end") } else { format!("{text:?}") }
}

fn beginning(sent: &[u8], found: &[u8]) -> Option<String> {
    if sent.starts_with(found) { None } else { differs(sent, found) }
}

/// A JSON error of the gateway's own; of other gateways any error status will do.
fn own_error(due: &Due<'_>, reply: &Reply) -> Option<String> {
    if !due.pitot {
        return None;
    }
    let Ok(error) = serde_json::from_slice::<Value>(&reply.body) else {
        return Some(format!("the error is no JSON: {}", excerpt(&reply.body, 0)));
    };
    let message = error["error"]["message"].as_str().unwrap_or_default();
    if message.is_empty() {
        return Some(format!("the error has no error.message: {error}"));
    }
    if due.dialect == Dialect::Messages && error["type"] != "error" {
        return Some(format!("the error is not in the caller's dialect (no type \"error\"): {error}"));
    }
    None
}

/// What the upstream sent, then one error event and nothing that ends the protocol. Another gateway may break the
/// framing in place of an event.
fn broken_off(due: &Due<'_>, reply: &Reply) -> Option<String> {
    let whole = due.sent.windows(2).rposition(|two| two == b"\n\n").map_or(0, |at| at + 2);
    let (frames, cut) = due.sent.split_at(whole);
    let Some(rest) = reply.body.strip_prefix(frames) else { return differs(&due.sent, &reply.body) };
    // A frame that was cut is either kept back, or passed on and closed by a blank line.
    let kept_back = not_told(due, reply, rest)?;
    match rest.strip_prefix(cut).filter(|_| !cut.is_empty()) {
        None => Some(kept_back),
        Some([]) => not_told(due, reply, &[]),
        Some(passed_on) => match passed_on.strip_prefix(b"\n\n") {
            Some(rest) => not_told(due, reply, rest),
            None => Some("what follows a cut frame is glued to it, and cannot be read".to_owned()),
        },
    }
}

/// Why these bytes behind the last frame do not tell the caller, and tell nothing else.
fn not_told(due: &Due<'_>, reply: &Reply, rest: &[u8]) -> Option<String> {
    let rest = String::from_utf8_lossy(rest).into_owned();
    for terminal in ["[DONE]", "message_stop", "response.completed", "finish_reason\":\"stop"] {
        if rest.contains(terminal) {
            return Some(format!("an end was invented: {rest:?}"));
        }
    }
    if rest.is_empty() {
        let visibly = matches!(reply.ended, Ended::Broken(_)) && !due.pitot;
        return (!visibly).then(|| "the caller is not told that the reply broke off".to_owned());
    }
    let lines: Vec<&str> = rest.lines().filter(|line| !line.is_empty() && *line != "event: error").collect();
    let [line] = lines[..] else { return Some(format!("not one error event at the end: {rest:?}")) };
    let event = line.strip_prefix("data: ").and_then(|data| serde_json::from_str::<Value>(data).ok());
    let Some(event) = event else { return Some(format!("the event at the end is no JSON: {rest:?}")) };
    let named = rest.starts_with("event: error\n");
    let says = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let right = match due.dialect {
        Dialect::Messages => named && event["type"] == "error" && says(&event["error"]["message"]),
        Dialect::Responses => {
            event["type"] == "error" && (says(&event["message"]) || says(&event["error"]["message"]))
        }
        Dialect::Chat | Dialect::Completions | Dialect::Embeddings | Dialect::Plain => {
            says(&event["error"]["message"])
        }
    };
    let wrong = || format!("the event at the end is no error in the caller's dialect: {rest:?}");
    (due.pitot && !(right && rest.ends_with("\n\n"))).then(wrong)
}

/// The whole frames of what was sent that stand at the beginning of what came.
fn cut_at_a_frame(sent: &[u8], found: &[u8]) -> Vec<u8> {
    let same = sent.iter().zip(found).take_while(|(sent, found)| sent == found).count();
    let end = sent[..same].windows(2).rposition(|two| two == b"\n\n").map_or(0, |at| at + 2);
    sent[..end].to_vec()
}

/// Exactly one member `metrics`, with its five keys, as the last one of the body.
fn metrics_once(found: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(found).into_owned();
    let count = text.matches("\"metrics\"").count();
    if count != 1 {
        return Some(format!("the key metrics stands there {count} times: {text:?}"));
    }
    let Ok(Value::Object(members)) = serde_json::from_str::<Value>(&text) else {
        return Some(format!("the body is no JSON object: {text:?}"));
    };
    let keys = members.get("metrics").and_then(Value::as_object).map(|metrics| metrics.len());
    let last = members.keys().next_back().is_some_and(|key| key == "metrics");
    (keys != Some(5) || !last).then(|| format!("not five keys of metrics at the end: {text:?}"))
}

/// The first thing that is expected and not found, in words.
fn missing(expected: &Value, found: &Value, at: &str) -> Option<String> {
    match (expected, found) {
        (Value::Object(expected), Value::Object(members)) => expected.iter().find_map(|(key, value)| {
            let at = format!("{at}/{key}");
            match members.get(key) {
                Some(member) => missing(value, member, &at),
                None => Some(format!("{at} is missing in {found}")),
            }
        }),
        (Value::Array(expected), Value::Array(items)) if expected.len() == items.len() => {
            let pairs = expected.iter().zip(items).enumerate();
            pairs
                .into_iter()
                .find_map(|(index, (expected, item))| missing(expected, item, &format!("{at}/{index}")))
        }
        (expected, found) => (expected != found).then(|| format!("{at} is {found}, and {expected} is due")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::dialect::frame;

    fn reply(body: &str, ended: Ended) -> Reply {
        Reply { body: body.as_bytes().to_vec(), ended, status: Some(200), ..Reply::nothing() }
    }

    fn due(expected: &Body, dialect: Dialect) -> Due<'_> {
        Due { expected, sent: b"data: a\n\n".to_vec(), dialect, pitot: true }
    }

    #[test]
    fn every_difference_is_found() {
        for (body, right) in [
            ("data: a\n\n", true),
            ("data: a\n", false),
            ("data: a\n\n\n", false),
            ("data: b\n\n", false),
            ("", false),
        ] {
            let reply = reply(body, Ended::Complete);
            assert_eq!(wrong(&due(&Body::AsSent, Dialect::Chat), &reply).is_none(), right, "{body:?}");
        }
    }

    #[test]
    fn a_broken_reply_has_an_error_event_and_no_end() {
        let error = frame(r#"{"error":{"message":"gone"}}"#);
        for (rest, right) in [
            (error.clone(), true),
            (String::new(), false),
            (frame("[DONE]"), false),
            (format!("{error}{}", frame("[DONE]")), false),
            (format!("{error}{error}"), false),
            (frame("{}"), false),
        ] {
            let reply = reply(&format!("data: a\n\n{rest}"), Ended::Complete);
            let found = wrong(&due(&Body::BrokenOff, Dialect::Chat), &reply);
            assert_eq!(found.is_none(), right, "{rest:?}: {found:?}");
            // The same event is none in the words of Messages.
            assert!(wrong(&due(&Body::BrokenOff, Dialect::Messages), &reply).is_some());
        }
    }

    #[test]
    fn a_cut_frame_is_kept_back_or_closed() {
        let error = frame(r#"{"error":{"message":"gone"}}"#);
        for (rest, right) in [
            (error.clone(), true),
            (format!("data: {{\n\n{error}"), true),
            (format!("data: {{{error}"), false),
            (format!("data: {{\n{error}"), false),
            ("data: {".to_owned(), false),
        ] {
            let sent = b"data: a\n\ndata: {".to_vec();
            let due = Due { sent, ..due(&Body::BrokenOff, Dialect::Chat) };
            let found = wrong(&due, &reply(&format!("data: a\n\n{rest}"), Ended::Complete));
            assert_eq!(found.is_none(), right, "{rest:?}: {found:?}");
        }
    }

    #[test]
    fn metrics_stand_there_once_and_last() {
        let five = r#"{"a":1,"b":2,"c":3,"d":4,"e":5}"#;
        for (body, right) in [
            (format!(r#"{{"x":1,"metrics":{five}}}"#), true),
            (format!(r#"{{"metrics":{five},"x":1}}"#), false),
            (format!(r#"{{"metrics":null,"metrics":{five}}}"#), false),
            (r#"{"metrics":{}}"#.to_owned(), false),
        ] {
            assert_eq!(metrics_once(body.as_bytes()).is_none(), right, "{body}");
        }
    }
}
