//! Refusals and failures → status and error body in the caller's dialect.
//!
//! Apart so that there is one mapping from what went wrong to what the caller reads. Each failure has a public
//! message (for the caller) and a private one (for the log). Must not know: sessions, sockets.

use http::StatusCode;
use pitot_measure::{Deadline, Ending, RefusalReason, UpstreamFailure};
use serde_json::json;

/// Why a request does not get the upstream's own answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The gateway would not take it; the message says what was wrong.
    Refused(RefusalReason, String),
    /// One of the gateway's deadlines passed.
    Deadline(Deadline),
    /// The upstream could not be reached or did not end well; the text is for the log.
    Upstream(UpstreamFailure, String),
}

/// An error as the caller gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: StatusCode,
    /// Seconds for `Retry-After`.
    pub retry_after: Option<u32>,
    pub body: String,
}

impl Failure {
    /// How the request ended, for its record.
    pub fn ending(&self) -> Ending {
        match self {
            Failure::Refused(reason, _) => Ending::Refused(*reason),
            Failure::Deadline(deadline) => Ending::Deadline(*deadline),
            Failure::Upstream(failure, _) => Ending::UpstreamFailed(*failure),
        }
    }

    /// The message for the log.
    pub fn private_message(&self) -> String {
        match self {
            Failure::Refused(_, message) => message.clone(),
            Failure::Deadline(deadline) => format!("the {} deadline passed", deadline_name(*deadline)),
            Failure::Upstream(_, message) => message.clone(),
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
        }
    }

    /// The whole answer, before any byte of a reply has gone out.
    pub fn reply(&self) -> Reply {
        let status = self.status();
        let retry_after = match status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => Some(1),
            _ => None,
        };
        Reply { status, retry_after, body: self.body(status) }
    }

    /// The event that tells a caller whose stream has begun. No `[DONE]` follows it: the stream did not end well.
    pub fn event(&self) -> String {
        format!("data: {}\n\n", self.body(self.status()))
    }

    fn body(&self, status: StatusCode) -> String {
        json!({
            "error": {
                "message": self.public_message(),
                "type": type_of(status),
                "param": null,
                "code": status.as_u16(),
            }
        })
        .to_string()
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

    #[track_caller]
    fn check(failure: Failure, status: u16, kind: &str, retry: bool) {
        let reply = failure.reply();
        let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(reply.status.as_u16(), status);
        assert_eq!(body["error"]["code"], status);
        assert_eq!(body["error"]["type"], kind);
        assert!(body["error"]["message"].as_str().is_some_and(|message| !message.is_empty()));
        assert_eq!(reply.retry_after.is_some(), retry);
    }

    #[test]
    fn each_failure_has_its_status_and_type() {
        let refused = |reason| Failure::Refused(reason, "why".into());
        check(refused(RefusalReason::BadRequest), 400, "invalid_request_error", false);
        check(refused(RefusalReason::UnknownPath), 404, "not_found_error", false);
        check(refused(RefusalReason::TooLarge), 413, "invalid_request_error", false);
        check(refused(RefusalReason::TooManyRequests), 429, "rate_limit_error", true);
        check(refused(RefusalReason::Draining), 503, "service_unavailable_error", true);
        check(Failure::Deadline(Deadline::FirstToken), 504, "timeout_error", false);
        check(
            Failure::Upstream(UpstreamFailure::Unreachable, "refused".into()),
            503,
            "service_unavailable_error",
            true,
        );
        check(Failure::Upstream(UpstreamFailure::Reset, "reset".into()), 502, "upstream_error", false);
    }

    #[test]
    fn an_event_never_ends_the_protocol() {
        let event = Failure::Deadline(Deadline::Idle).event();
        assert!(
            event.starts_with("data: {\"error\":") && event.ends_with("}\n\n") && !event.contains("[DONE]")
        );
    }

    #[test]
    fn the_private_message_stays_private() {
        let failure = Failure::Upstream(UpstreamFailure::Reset, "/secret/engine.sock".into());
        assert!(!failure.reply().body.contains("secret"));
        assert!(failure.private_message().contains("secret"));
    }
}
