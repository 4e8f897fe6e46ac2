//! Events of a Responses stream → the response that its last one holds.
//!
//! Apart because nothing has to be built: the bytes of the response go out as they came. Must not know: frames.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Unassembled, error_event};

/// The response, once it has come.
#[derive(Debug, Default)]
pub struct Response(Option<Bytes>);

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, rename = "type", default)]
    kind: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    response: Option<&'a RawValue>,
}

impl Response {
    /// Takes the data of one event.
    pub fn event(&mut self, data: &[u8]) -> Result<(), Unassembled> {
        let malformed = |error: serde_json::Error| Unassembled::Malformed(error.to_string());
        if data == b"[DONE]" {
            return Ok(());
        }
        let event: Event<'_> = serde_json::from_slice(data).map_err(malformed)?;
        match (event.kind.as_ref(), event.response) {
            ("response.completed" | "response.incomplete" | "response.failed", Some(response)) => {
                self.0 = Some(Bytes::copy_from_slice(response.get().as_bytes()));
                Ok(())
            }
            (kind, None) if kind == "error" || kind.is_empty() => {
                let object = serde_json::from_slice(data).map_err(malformed)?;
                error_event(&object).map_or(Ok(()), Err)
            }
            (_, _) => Ok(()),
        }
    }

    pub fn finish(self) -> Option<Bytes> {
        self.0
    }
}
