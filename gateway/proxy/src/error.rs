//! Refusals and failures → status and error body in the caller's dialect.
//!
//! Apart so that there is one mapping from what went wrong to what the caller reads. Each failure has a public
//! message (for the caller) and a private one (for the log). Must not know: sessions, sockets.

use http::StatusCode;
use pitot_measure::{Deadline, Ending, Endpoint, RefusalReason, UpstreamFailure};
use serde_json::{Value, json};

/// Why a request does not get the upstream's own answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The gateway would not take it; the message says what was wrong.
    Refused(RefusalReason, String),
    /// One of the gateway's deadlines passed.
    Deadline(Deadline),
    /// The upstream could not be reached or did not end well; the text is for the log.
    Upstream(UpstreamFailure, String),
    /// The time for finishing running requests was over, or a second signal came.
    DrainOver,
}

/// An error as the caller gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: StatusCode,
    /// Seconds for `Retry-After`.
    pub retry_after: Option<u32>,
    /// Methods for `Allow`.
    pub allow: Option<&'static str>,
    pub body: String,
}

impl Failure {
    /// How the request ended, for its record.
    pub fn ending(&self) -> Ending {
        match self {
            Failure::Refused(reason, _) => Ending::Refused(*reason),
            Failure::Deadline(deadline) => Ending::Deadline(*deadline),
            Failure::Upstream(failure, _) => Ending::UpstreamFailed(*failure),
            Failure::DrainOver => Ending::DrainOver,
        }
    }

    /// The message for the log.
    pub fn private_message(&self) -> String {
        match self {
            Failure::Refused(_, message) => message.clone(),
            Failure::Deadline(deadline) => format!("the {} deadline passed", deadline_name(*deadline)),
            Failure::Upstream(_, message) => message.clone(),
            Failure::DrainOver => "the gateway ended before the request had".to_owned(),
        }
    }

    fn public_message(&self) -> String {
        match self {
            Failure::Refused(_, message) => message.clone(),
            Failure::Deadline(deadline) => {
                format!(
                    "the request took too long: the gateway's {} deadline passed",
                    deadline_name(*deadline)
                )
            }
            Failure::Upstream(UpstreamFailure::Unreachable, _) => {
                "the inference engine cannot be reached; it may be starting, try again shortly".to_owned()
            }
            Failure::Upstream(
                UpstreamFailure::Reset | UpstreamFailure::Truncated | UpstreamFailure::Protocol,
                _,
            ) => "the inference engine ended the connection before its answer was complete".to_owned(),
            Failure::DrainOver => "the gateway is shutting down and could not wait any longer".to_owned(),
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Failure::Refused(reason, _) => refusal_status(*reason),
            Failure::Deadline(_) => StatusCode::GATEWAY_TIMEOUT,
            Failure::Upstream(UpstreamFailure::Unreachable, _) => StatusCode::SERVICE_UNAVAILABLE,
            Failure::Upstream(
                UpstreamFailure::Reset | UpstreamFailure::Truncated | UpstreamFailure::Protocol,
                _,
            ) => StatusCode::BAD_GATEWAY,
            Failure::DrainOver => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// A word for programs, which does not change with the message.
    fn code(&self) -> &'static str {
        match self {
            Failure::Refused(reason, _) => match reason {
                RefusalReason::BadRequest => "bad_request",
                RefusalReason::Unauthorized => "unauthorized",
                RefusalReason::UnknownPath => "unknown_path",
                RefusalReason::MethodNotAllowed => "method_not_allowed",
                RefusalReason::TooLarge => "too_large",
                RefusalReason::TooManyRequests => "too_many_requests",
                RefusalReason::Draining => "draining",
                RefusalReason::UpstreamUnreachable => "upstream_unreachable",
            },
            Failure::Deadline(Deadline::Connect) => "deadline_connect",
            Failure::Deadline(Deadline::FirstToken) => "deadline_first_token",
            Failure::Deadline(Deadline::Idle) => "deadline_idle",
            Failure::Deadline(Deadline::Total) => "deadline_total",
            Failure::Upstream(UpstreamFailure::Unreachable, _) => "upstream_unreachable",
            Failure::Upstream(UpstreamFailure::Reset, _) => "upstream_reset",
            Failure::Upstream(UpstreamFailure::Truncated, _) => "upstream_truncated",
            Failure::Upstream(UpstreamFailure::Protocol, _) => "upstream_protocol",
            Failure::DrainOver => "drained_cut",
        }
    }

    /// The whole answer, before any byte of a reply has gone out.
    pub fn reply(&self, endpoint: Endpoint) -> Reply {
        let status = self.status();
        let retry_after = match status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => Some(1),
            _ => None,
        };
        let allow = match self {
            Failure::Refused(RefusalReason::MethodNotAllowed, _) => Some("POST"),
            Failure::Refused(..) | Failure::Deadline(_) | Failure::Upstream(..) | Failure::DrainOver => None,
        };
        Reply { status, retry_after, allow, body: self.body(endpoint).to_string() }
    }

    /// The event that tells a caller whose stream has begun. Nothing that ends the protocol follows it: the stream
    /// did not end well.
    pub fn event(&self, endpoint: Endpoint) -> String {
        match endpoint {
            Endpoint::Messages => format!("event: error\ndata: {}\n\n", self.body(endpoint)),
            Endpoint::Responses => {
                // The format's own event has its words at the top; clients that look for `error` find that too.
                let event = json!({
                    "type": "error",
                    "code": self.code(),
                    "message": self.public_message(),
                    "param": null,
                    "error": self.body(endpoint)["error"],
                });
                format!("event: error\ndata: {event}\n\n")
            }
            Endpoint::ChatCompletions | Endpoint::Completions | Endpoint::Embeddings | Endpoint::Other => {
                format!("data: {}\n\n", self.body(endpoint))
            }
        }
    }

    /// The error in the words of the caller's wire format.
    fn body(&self, endpoint: Endpoint) -> Value {
        let status = self.status();
        match endpoint {
            Endpoint::Messages => json!({
                "type": "error",
                "error": {"type": anthropic_type_of(status), "message": self.public_message()},
            }),
            Endpoint::ChatCompletions
            | Endpoint::Completions
            | Endpoint::Responses
            | Endpoint::Embeddings
            | Endpoint::Other => json!({
                "error": {
                    "message": self.public_message(),
                    "type": type_of(status),
                    "param": null,
                    "code": self.code(),
                }
            }),
        }
    }
}

fn refusal_status(reason: RefusalReason) -> StatusCode {
    match reason {
        RefusalReason::BadRequest => StatusCode::BAD_REQUEST,
        RefusalReason::Unauthorized => StatusCode::UNAUTHORIZED,
        RefusalReason::UnknownPath => StatusCode::NOT_FOUND,
        RefusalReason::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        RefusalReason::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        RefusalReason::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
        RefusalReason::Draining | RefusalReason::UpstreamUnreachable => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn type_of(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 | 405 | 413 => "invalid_request_error",
        401 => "authentication_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        503 => "service_unavailable_error",
        504 => "timeout_error",
        _ => "upstream_error",
    }
}

/// The words of the Messages format (Anthropic API, "Errors").
fn anthropic_type_of(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 | 405 => "invalid_request_error",
        401 => "authentication_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        _ => "api_error",
    }
}

fn deadline_name(deadline: Deadline) -> &'static str {
    match deadline {
        Deadline::Connect => "connect",
        Deadline::FirstToken => "first-token",
        Deadline::Idle => "idle",
        Deadline::Total => "total",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAT: Endpoint = Endpoint::ChatCompletions;

    #[track_caller]
    fn check(failure: Failure, status: u16, kind: &str, code: &str, retry: bool) {
        let reply = failure.reply(CHAT);
        let body: Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(reply.status.as_u16(), status);
        assert_eq!(body["error"]["code"], code);
        assert_eq!(body["error"]["type"], kind);
        assert!(body["error"]["message"].as_str().is_some_and(|message| !message.is_empty()));
        assert_eq!(reply.retry_after.is_some(), retry);
        assert_eq!(reply.allow.is_some(), status == 405);
    }

    #[test]
    fn each_failure_has_its_status_and_type() {
        let refused = |reason| Failure::Refused(reason, "why".into());
        check(refused(RefusalReason::BadRequest), 400, "invalid_request_error", "bad_request", false);
        check(refused(RefusalReason::UnknownPath), 404, "not_found_error", "unknown_path", false);
        check(refused(RefusalReason::TooLarge), 413, "invalid_request_error", "too_large", false);
        check(refused(RefusalReason::TooManyRequests), 429, "rate_limit_error", "too_many_requests", true);
        check(refused(RefusalReason::Draining), 503, "service_unavailable_error", "draining", true);
        check(Failure::Deadline(Deadline::FirstToken), 504, "timeout_error", "deadline_first_token", false);
        check(
            Failure::Upstream(UpstreamFailure::Unreachable, "refused".into()),
            503,
            "service_unavailable_error",
            "upstream_unreachable",
            true,
        );
        let reset = Failure::Upstream(UpstreamFailure::Reset, "reset".into());
        check(reset, 502, "upstream_error", "upstream_reset", false);
        check(
            refused(RefusalReason::MethodNotAllowed),
            405,
            "invalid_request_error",
            "method_not_allowed",
            false,
        );
        check(Failure::DrainOver, 503, "service_unavailable_error", "drained_cut", true);
    }

    #[test]
    fn an_event_never_ends_the_protocol() {
        let event = |endpoint| Failure::Deadline(Deadline::Idle).event(endpoint);
        let chat = event(CHAT);
        assert!(chat.starts_with("data: {\"error\":") && chat.ends_with("}\n\n") && !chat.contains("[DONE]"));
        for endpoint in [Endpoint::Responses, Endpoint::Messages] {
            let event = event(endpoint);
            let data = event.strip_prefix("event: error\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(data["type"], "error");
            assert_eq!(data["error"]["type"], "timeout_error");
            assert!(!event.contains("completed") && !event.contains("message_stop"));
        }
    }

    #[test]
    fn the_private_message_stays_private() {
        let failure = Failure::Upstream(UpstreamFailure::Reset, "/secret/engine.sock".into());
        assert!(!failure.reply(CHAT).body.contains("secret"));
        assert!(failure.private_message().contains("secret"));
    }
}
