//! Frames of the agent protocol: `length: u32 LE`, `kind: u8`, then `length` bytes of payload.
//!
//! The decoder does no I/O: feed it whatever arrived, take out whole frames.
//!
//! # Trust
//! Both sides read frames from a peer that may be hostile. The length is capped, and memory grows only with bytes
//! that really arrived.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use crate::codec::DecodeError;

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 5;

/// Largest payload. A request carries a whole argument list and environment; Linux allows about 2 MiB
/// of those (`execve(2)`), so anything above 4 MiB is an attempt to make the reader hold memory.
pub const MAX_PAYLOAD_BYTES: u32 = 4 << 20;

/// Largest data payload that our own senders put in one frame: small enough that a signal or a resize never waits
/// long behind data, large enough that framing costs nothing.
pub const DATA_CHUNK_BYTES: usize = 64 << 10;

/// A whole frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What the payload is; see [`crate::agent`].
    pub kind: u8,
    /// The payload.
    pub payload: Vec<u8>,
}

/// The header of a frame with `payload_len` bytes of payload, or `None` if that is over [`MAX_PAYLOAD_BYTES`].
#[must_use]
pub fn header(kind: u8, payload_len: usize) -> Option<[u8; HEADER_BYTES]> {
    let len = u32::try_from(payload_len).ok().filter(|len| *len <= MAX_PAYLOAD_BYTES)?;
    let [a, b, c, d] = len.to_le_bytes();
    Some([a, b, c, d, kind])
}

/// Splits a byte stream into frames.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were handed out already.
    consumed: usize,
}

impl FrameDecoder {
    /// A decoder at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes that arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.consumed > 0 {
            self.buffer.drain(..self.consumed.min(self.buffer.len()));
            self.consumed = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Takes out the next whole frame, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`DecodeError::TooLong`] if the peer announces too long a frame; the stream is then unusable.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, DecodeError> {
        let pending = self.buffer.get(self.consumed..).unwrap_or_default();
        let Some((&[a, b, c, d, kind], rest)) = pending.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes([a, b, c, d]);
        if len > MAX_PAYLOAD_BYTES {
            return Err(DecodeError::TooLong(len));
        }
        let Some(payload) = usize::try_from(len).ok().and_then(|len| rest.get(..len)) else {
            return Ok(None);
        };
        let payload = payload.to_vec();
        self.consumed = self.consumed.saturating_add(HEADER_BYTES).saturating_add(payload.len());
        Ok(Some(Frame { kind, payload }))
    }

    /// Bytes that arrived and belong to no frame yet. After the last frame of a request whose connection then
    /// turns into a raw stream (port forwarding), these are the stream's first bytes.
    #[must_use]
    pub fn into_rest(mut self) -> Vec<u8> {
        self.buffer.drain(..self.consumed.min(self.buffer.len()));
        self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = header(kind, payload.len()).unwrap().to_vec();
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn frames_survive_any_split_of_the_stream() {
        let stream = [frame(1, b"hello"), frame(2, b""), frame(3, &[7; 300])].concat();
        for step in [1, 2, 3, 5, 7, 64, stream.len()] {
            let mut decoder = FrameDecoder::new();
            let mut kinds = Vec::new();
            for chunk in stream.chunks(step) {
                decoder.push(chunk);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    kinds.push((frame.kind, frame.payload.len()));
                }
            }
            assert_eq!(kinds, [(1, 5), (2, 0), (3, 300)]);
            assert!(decoder.into_rest().is_empty());
        }
    }

    #[test]
    fn a_huge_announced_length_is_refused_at_once() {
        let mut decoder = FrameDecoder::new();
        decoder.push(&[0xff, 0xff, 0xff, 0xff, 1]);
        assert!(matches!(decoder.next_frame(), Err(DecodeError::TooLong(u32::MAX))));
        assert!(header(1, 5 << 20).is_none());
    }

    #[test]
    fn bytes_after_the_last_frame_are_kept_for_the_raw_stream() {
        let mut decoder = FrameDecoder::new();
        decoder.push(&[frame(1, b"x"), b"raw".to_vec()].concat());
        assert!(decoder.next_frame().unwrap().is_some());
        assert_eq!(decoder.into_rest(), b"raw");
    }
}
