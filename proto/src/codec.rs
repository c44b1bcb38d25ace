//! One encoding for all structured messages: CBOR maps with named fields.
//!
//! # Trust
//! [`decode`] is given bytes from guests and from anyone who can open a socket. It never panics, allocates only as
//! bytes arrive, and limits nesting.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use serde::{Serialize, de::DeserializeOwned};

/// Deepest nesting accepted by [`decode`]; our own messages use less than ten levels.
const MAX_DEPTH: usize = 32;

/// A message that cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not CBOR, or not of the expected shape.
    #[error("malformed message: {0}")]
    Malformed(String),
    /// Bytes are left over after the message.
    #[error("{0} bytes follow the message")]
    Trailing(usize),
    /// The frame's kind is not known.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// The frame's payload has the wrong length for its kind.
    #[error("frame of kind {kind} has {len} bytes of payload")]
    PayloadLength {
        /// Kind of the frame.
        kind: u8,
        /// Length found.
        len: usize,
    },
    /// The frame announces more than [`crate::frame::MAX_PAYLOAD_BYTES`].
    #[error("frame announces {0} bytes")]
    TooLong(u32),
}

/// Encodes a message.
///
/// # Panics
/// Never for this crate's types: writing to a vector cannot fail and all of them are representable in CBOR.
#[must_use]
#[expect(clippy::expect_used, reason = "what is encoded is ours, and cannot fail to be")]
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    ciborium::into_writer(message, &mut bytes).expect("protocol types are representable in CBOR");
    bytes
}

/// Decodes a message that fills `bytes` exactly.
///
/// # Errors
/// [`DecodeError`] if the bytes are not such a message.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut rest = bytes;
    let value = ciborium::de::from_reader_with_recursion_limit(&mut rest, MAX_DEPTH)
        .map_err(|error| DecodeError::Malformed(error.to_string()))?;
    if rest.is_empty() { Ok(value) } else { Err(DecodeError::Trailing(rest.len())) }
}
