//! Forward, or refuse and why: a pure function of the head and of what the gateway knows of itself.
//!
//! Apart so that the policy can be tested as a table. Must not know: sockets, time, bodies.

use http::Method;
use pitot_measure::{Endpoint, RefusalReason};

use crate::error::Failure;
use crate::request::endpoint_of;

/// What the gateway knows when a head has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Situation {
    pub draining: bool,
    /// Requests in flight, this one left out.
    pub in_flight: usize,
    pub in_flight_max: usize,
    pub body_bytes_max: usize,
}

/// The parts of a head on which the decision rests.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    pub method: &'a Method,
    pub path: &'a str,
    pub content_length: Option<u64>,
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Read the body, measure, forward.
    Forward(Endpoint),
    Refuse(Endpoint, Failure),
}

/// Paths outside `/v1/` that servers of this kind answer; they are passed on as they are.
const PASSED_PATHS: [&str; 6] = ["/health", "/ping", "/version", "/load", "/tokenize", "/detokenize"];

/// Generating endpoints take POST and nothing else.
const POST_PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"];

/// Decides about a request whose body has not been read.
pub fn decide(head: Head<'_>, situation: Situation) -> Decision {
    let endpoint = endpoint_of(head.method, head.path);
    let refuse = |reason, message: String| Decision::Refuse(endpoint, Failure::Refused(reason, message));
    if POST_PATHS.contains(&head.path) && *head.method != Method::POST {
        return refuse(
            RefusalReason::MethodNotAllowed,
            format!("{} takes POST, not {}", head.path, head.method),
        );
    }
    if !head.path.starts_with("/v1/") && !PASSED_PATHS.contains(&head.path) {
        let message =
            format!("there is nothing at {}; this endpoint speaks the OpenAI API under /v1/", head.path);
        return refuse(RefusalReason::UnknownPath, message);
    }
    if situation.draining {
        return refuse(
            RefusalReason::Draining,
            "the gateway is shutting down and takes no new requests".into(),
        );
    }
    if situation.in_flight >= situation.in_flight_max {
        let message = format!("the gateway already serves {} requests, its limit", situation.in_flight_max);
        return refuse(RefusalReason::TooManyRequests, message);
    }
    let body_bytes_max = situation.body_bytes_max;
    match head.content_length {
        Some(bytes) if usize::try_from(bytes).map_or(true, |bytes| bytes > body_bytes_max) => {
            Decision::Refuse(endpoint, too_large(body_bytes_max))
        }
        Some(_) | None => Decision::Forward(endpoint),
    }
}

/// The refusal of a body over the limit, also used once a body without a declared length has passed it.
pub fn too_large(body_bytes_max: usize) -> Failure {
    Failure::Refused(
        RefusalReason::TooLarge,
        format!("the request body is over the limit of {body_bytes_max} bytes"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Situation =
        Situation { draining: false, in_flight: 0, in_flight_max: 2, body_bytes_max: 100 };

    #[track_caller]
    fn check(
        method: Method,
        path: &str,
        length: Option<u64>,
        situation: Situation,
        expected: Option<RefusalReason>,
    ) {
        let decision = decide(Head { method: &method, path, content_length: length }, situation);
        let reason = match decision {
            Decision::Forward(_) => None,
            Decision::Refuse(_, Failure::Refused(reason, _)) => Some(reason),
            Decision::Refuse(_, failure) => panic!("{failure:?}"),
        };
        assert_eq!(reason, expected, "{method} {path}");
    }

    #[test]
    fn table() {
        let chat = "/v1/chat/completions";
        check(Method::POST, chat, Some(100), IDLE, None);
        check(Method::POST, chat, None, IDLE, None);
        check(Method::GET, "/v1/models", None, IDLE, None);
        check(Method::GET, "/health", None, IDLE, None);
        check(Method::POST, chat, Some(101), IDLE, Some(RefusalReason::TooLarge));
        check(Method::POST, chat, Some(u64::MAX), IDLE, Some(RefusalReason::TooLarge));
        check(Method::GET, chat, None, IDLE, Some(RefusalReason::MethodNotAllowed));
        check(Method::GET, "/", None, IDLE, Some(RefusalReason::UnknownPath));
        check(Method::POST, "/v2/chat", None, IDLE, Some(RefusalReason::UnknownPath));
        check(Method::POST, chat, None, Situation { draining: true, ..IDLE }, Some(RefusalReason::Draining));
        let full = Situation { in_flight: 2, ..IDLE };
        check(Method::POST, chat, None, full, Some(RefusalReason::TooManyRequests));
    }
}
