//! Length-framed JSON: messages to bytes and back.
//!
//! Apart from the messages so that the framing can be tested with any cut of the stream. Holds no socket; the
//! caller feeds bytes. Bounded: a frame over [`FRAME_BYTES_MAX`] is an error, after which the peer is closed.

use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;

/// Longest message, in bytes. The largest real one is a State or Hello of well under 4 KiB.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;

/// Why a message could not be written or read. After any of these the connection is of no further use.
#[derive(Debug, Error)]
pub enum CodecError {
    #[error("a control message of {bytes} bytes is over the limit of {FRAME_BYTES_MAX}")]
    TooLarge { bytes: usize },
    #[error("a control message could not be understood: {0}")]
    Json(#[from] serde_json::Error),
}

/// Encodes one message with its length in front.
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, CodecError> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let bytes = frame.len() - 4;
    if bytes > FRAME_BYTES_MAX {
        return Err(CodecError::TooLarge { bytes });
    }
    let length = u32::try_from(bytes).expect("FRAME_BYTES_MAX fits in 32 bits");
    frame[..4].copy_from_slice(&length.to_be_bytes());
    Ok(frame)
}

/// Collects bytes and gives whole messages. Any cut of the stream gives the same messages.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
}

impl Decoder {
    /// Takes what one read brought.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 && self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Gives the next whole message, or None until more bytes come.
    pub fn next_message<M: DeserializeOwned>(&mut self) -> Result<Option<M>, CodecError> {
        let waiting = &self.buffer[self.start..];
        let Some((prefix, rest)) = waiting.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let bytes = u32::from_be_bytes(*prefix) as usize;
        if bytes > FRAME_BYTES_MAX {
            return Err(CodecError::TooLarge { bytes });
        }
        let Some(body) = rest.get(..bytes) else {
            self.compact();
            return Ok(None);
        };
        let message = serde_json::from_slice(body)?;
        self.start += 4 + bytes;
        Ok(Some(message))
    }

    fn compact(&mut self) {
        self.buffer.drain(..self.start);
        self.start = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FromEngine, FromGateway, State, VERSIONS, VersionRange};

    fn messages() -> Vec<FromEngine> {
        vec![
            FromEngine::Hello {
                versions: VERSIONS,
                engine_version: "0.1.0".into(),
                process_id: 7,
                boot_id: Some("b".into()),
                models: vec!["m".into()],
            },
            FromEngine::State(State { at_ns: u64::MAX, ..State::default() }),
            FromEngine::Pong { nonce: 3 },
        ]
    }

    #[test]
    fn any_cut_gives_the_same_messages() {
        let stream: Vec<u8> = messages().iter().flat_map(|m| encode(m).unwrap()).collect();
        for cut in 1..=stream.len() {
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for piece in stream.chunks(cut) {
                decoder.push(piece);
                while let Some(message) = decoder.next_message::<FromEngine>().unwrap() {
                    seen.push(message);
                }
            }
            assert_eq!(seen, messages(), "cut every {cut} bytes");
        }
    }

    #[test]
    fn an_absurd_length_is_refused_before_it_is_awaited() {
        let mut decoder = Decoder::default();
        decoder.push(&u32::MAX.to_be_bytes());
        assert!(matches!(decoder.next_message::<FromGateway>(), Err(CodecError::TooLarge { .. })));
    }

    #[test]
    fn nonsense_is_an_error_not_a_panic() {
        let mut decoder = Decoder::default();
        decoder.push(&[0, 0, 0, 3, b'x', b'y', b'z']);
        assert!(matches!(decoder.next_message::<FromGateway>(), Err(CodecError::Json(_))));
    }

    #[test]
    fn versions_meet_at_the_highest_common_one() {
        let range = |lowest, highest| VersionRange { lowest, highest };
        assert_eq!(range(1, 3).common(range(2, 5)), Some(3));
        assert_eq!(range(1, 1).common(range(2, 5)), None);
        assert_eq!(range(4, 5).common(range(1, 4)), Some(4));
    }
}
