//! Errors as OpenAI writes them.
//!
//! Apart so that status, type and code of each are in one place. Must not know: where an error comes from.

use http::StatusCode;
use pitot_runtime::{ChatError, Refusal, TokenizerError};
use serde::Serialize;

use crate::engine_thread::JobError;

/// Seconds after which a caller that was refused for load may try again.
pub const RETRY_AFTER_SECONDS: u32 = 1;

/// An error with its HTTP status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// The field at fault.
    pub param: Option<String>,
    pub code: Option<&'static str>,
}

#[derive(Serialize)]
struct Body<'a> {
    error: Inside<'a>,
}

#[derive(Serialize)]
struct Inside<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>, code: Option<&'static str>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code }
    }

    /// The body could not be understood.
    pub fn malformed(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message, None)
    }

    /// A field holds what it must not.
    pub fn field(param: &str, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.to_owned()), ..ApiError::malformed(message) }
    }

    pub fn unknown_model(model: &str) -> ApiError {
        let message = format!("the model `{model}` does not exist");
        let error = ApiError::new(StatusCode::NOT_FOUND, message, Some("model_not_found"));
        ApiError { param: Some("model".to_owned()), ..error }
    }

    pub fn unknown_path(path: &str) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, format!("there is no {path} here"), Some("unknown_path"))
    }

    pub fn wrong_method(method: &str, path: &str) -> ApiError {
        let message = format!("{path} does not take {method}");
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message, Some("method_not_allowed"))
    }

    pub fn too_large(limit: usize) -> ApiError {
        let message = format!("the body is larger than {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message, Some("request_too_large"))
    }

    pub fn body_timeout() -> ApiError {
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time", Some("request_timeout"))
    }

    pub fn busy() -> ApiError {
        let message = "too many requests are waiting; try again later";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message, Some("queue_full"))
    }

    pub fn draining() -> ApiError {
        let message = "the engine finishes what runs and takes no more";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message, Some("draining"))
    }

    /// The engine's thread is gone.
    pub fn stopped() -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the engine has stopped", Some("stopped"))
    }

    /// A text has more bytes than a context's tokens could have.
    pub fn text_too_long(param: &str, bytes: usize, limit: usize) -> ApiError {
        let message =
            format!("the prompt has {bytes} bytes, of which the context holds no more than {limit}");
        ApiError { code: Some("context_length_exceeded"), ..ApiError::field(param, message) }
    }

    /// The engine failed.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message, None)
    }

    /// A job was not taken in; `prompt` is the field that holds its prompt.
    pub fn of_job(error: JobError, prompt: &str) -> ApiError {
        let refusal = match error {
            JobError::Busy => return ApiError::busy(),
            JobError::Stopped => return ApiError::stopped(),
            JobError::Refused(refusal) => refusal,
        };
        let message = refusal.to_string();
        match refusal {
            Refusal::QueueFull { .. } => ApiError::busy(),
            Refusal::Draining => ApiError::draining(),
            Refusal::PromptTooLong { .. } => {
                let code = Some("context_length_exceeded");
                ApiError { code, ..ApiError::field(prompt, message) }
            }
            Refusal::EmptyPrompt | Refusal::UnknownToken { .. } => ApiError::field(prompt, message),
            Refusal::Sampling(error) => ApiError::field(error.parameter, message),
            Refusal::DuplicateId { .. } => ApiError::internal(message),
        }
    }

    /// A chat could not be written as a prompt.
    pub fn of_chat(error: &ChatError) -> ApiError {
        match error {
            ChatError::Refused(message) => ApiError::field("messages", message.clone()),
            ChatError::Absent => ApiError::malformed(error.to_string()),
            ChatError::Parse(_) | ChatError::Render(_) => ApiError::field("messages", error.to_string()),
        }
    }

    /// A text could not be tokenised.
    pub fn of_tokenizer(error: &TokenizerError, prompt: &str) -> ApiError {
        ApiError::field(prompt, error.to_string())
    }

    /// `{"error": …}`.
    pub fn body(&self) -> String {
        let r#type = match self.status {
            StatusCode::INTERNAL_SERVER_ERROR => "server_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable",
            _ => "invalid_request_error",
        };
        let inside = Inside { message: &self.message, r#type, param: self.param.as_deref(), code: self.code };
        serde_json::to_string(&Body { error: inside }).expect("strings are always JSON")
    }
}
