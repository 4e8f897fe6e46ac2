//! Heads of requests and replies as they are passed on.
//!
//! Apart so that the list of headers that end at a hop, and of those that the gateway adds, is in one place.
//! Must not know: sessions.

use http::Version;
use http::header::{self, HeaderName};
use pingora::Result;
use pingora::http::{RequestHeader, ResponseHeader};

use super::{Ids, is_bodiless};
use crate::error::Reply;

/// Headers that concern one connection only (RFC 9110, section 7.6.1), `Expect` answered here, and the ones that
/// are set anew.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];
const KEEP_ALIVE: &str = "keep-alive";
const REQUEST_ID: &str = "x-request-id";

/// The head for the upstream. Compression is not asked for: the observer reads the reply.
pub fn to_upstream(from: &RequestHeader, ids: &Ids, host: &str, body_bytes: usize) -> Result<RequestHeader> {
    let target = from.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut head = RequestHeader::build(from.method.clone(), target.as_bytes(), None)?;
    let named = named_by_connection(from.headers.get_all(header::CONNECTION));
    for (name, value) in &from.headers {
        let drop = HOP_BY_HOP.contains(name)
            || name == KEEP_ALIVE
            || name == REQUEST_ID
            || name == pitot_control::REQUEST_ID_HEADER
            || [header::HOST, header::CONTENT_LENGTH, header::ACCEPT_ENCODING].contains(name)
            || named.iter().any(|dropped| name.as_str().eq_ignore_ascii_case(dropped));
        if !drop {
            head.append_header(name.clone(), value.clone())?;
        }
    }
    head.insert_header(header::HOST, host)?;
    if body_bytes > 0 || !is_bodiless(&from.method) {
        head.insert_header(header::CONTENT_LENGTH, body_bytes)?;
    }
    head.insert_header(REQUEST_ID, ids.reply())?;
    head.insert_header(pitot_control::REQUEST_ID_HEADER, ids.own.as_str())?;
    Ok(head)
}

/// How the length of a reply's body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// As the upstream said it, or in chunks where it said none.
    AsReceived,
    /// In chunks: the body is edited as it passes.
    Chunked,
    Known(usize),
}

/// The head for the caller.
pub fn to_caller(
    from: &ResponseHeader,
    reply_id: &str,
    length: Length,
    version: Version,
) -> Result<ResponseHeader> {
    let mut head = ResponseHeader::build(from.status, Some(from.headers.len() + 2))?;
    let named = named_by_connection(from.headers.get_all(header::CONNECTION));
    for (name, value) in &from.headers {
        let drop = HOP_BY_HOP.contains(name)
            || name == KEEP_ALIVE
            || name == REQUEST_ID
            || (name == header::CONTENT_LENGTH && length != Length::AsReceived)
            || named.iter().any(|dropped| name.as_str().eq_ignore_ascii_case(dropped));
        if !drop {
            head.append_header(name.clone(), value.clone())?;
        }
    }
    match length {
        Length::Known(bytes) => head.insert_header(header::CONTENT_LENGTH, bytes)?,
        Length::AsReceived if head.headers.contains_key(header::CONTENT_LENGTH) => {}
        // These have no body, and a 204 must not speak of one (RFC 9112, section 6.1).
        Length::AsReceived if matches!(from.status.as_u16(), 204 | 304) => {}
        // Before HTTP/1.1 there are no chunks: the body ends with the connection.
        Length::AsReceived | Length::Chunked if version < Version::HTTP_11 => {}
        Length::AsReceived | Length::Chunked => head.insert_header(header::TRANSFER_ENCODING, "chunked")?,
    }
    head.insert_header(REQUEST_ID, reply_id)?;
    Ok(head)
}

/// The head of an error of our own.
pub fn error_head(reply: &Reply, reply_id: &str) -> Result<ResponseHeader> {
    let mut head = ResponseHeader::build(reply.status, Some(5))?;
    head.insert_header(header::CONTENT_TYPE, "application/json")?;
    head.insert_header(header::CONTENT_LENGTH, reply.body.len())?;
    head.insert_header(REQUEST_ID, reply_id)?;
    if let Some(seconds) = reply.retry_after {
        head.insert_header(header::RETRY_AFTER, seconds)?;
    }
    if let Some(methods) = reply.allow {
        head.insert_header(header::ALLOW, methods)?;
    }
    Ok(head)
}

/// Further headers that a `Connection` header binds to its hop.
fn named_by_connection(values: http::header::GetAll<'_, http::HeaderValue>) -> Vec<String> {
    let texts = values.iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).map(|name| name.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> Ids {
        Ids { own: "own".into(), callers: None }
    }

    #[test]
    fn what_belongs_to_a_hop_stays_behind() {
        let mut from = RequestHeader::build("POST", b"/v1/chat/completions?x=1", None).unwrap();
        for (name, value) in [
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("accept-encoding", "gzip"),
            ("content-length", "7"),
            ("authorization", "Bearer k"),
            ("traceparent", "00-a-b-01"),
            ("x-pitot-request-id", "forged"),
        ] {
            from.append_header(name, value).unwrap();
        }
        let head = to_upstream(&from, &ids(), "localhost", 9).unwrap();
        let get = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap());
        assert_eq!(head.uri, "/v1/chat/completions?x=1");
        for gone in ["connection", "x-hop", "te", "accept-encoding"] {
            assert_eq!(get(gone), None, "{gone}");
        }
        assert_eq!(get("content-length"), Some("9"));
        assert_eq!(get("authorization"), Some("Bearer k"));
        assert_eq!(get("traceparent"), Some("00-a-b-01"));
        assert_eq!(get("x-pitot-request-id"), Some("own"));
        assert_eq!(get("x-request-id"), Some("own"));
    }

    #[test]
    fn a_reply_has_one_length() {
        let mut from = ResponseHeader::build(200, None).unwrap();
        from.insert_header("content-length", "5").unwrap();
        from.insert_header("transfer-encoding", "chunked").unwrap();
        let check = |length, version, bytes: Option<&str>, chunked: bool| {
            let head = to_caller(&from, "id", length, version).unwrap();
            let content_length =
                head.headers.get("content-length").map(|value| value.to_str().unwrap().to_owned());
            assert_eq!(content_length.as_deref(), bytes);
            assert_eq!(head.headers.contains_key("transfer-encoding"), chunked);
        };
        check(Length::AsReceived, Version::HTTP_11, Some("5"), false);
        check(Length::Chunked, Version::HTTP_11, None, true);
        check(Length::Chunked, Version::HTTP_10, None, false);
        check(Length::Known(9), Version::HTTP_10, Some("9"), false);
    }
}
