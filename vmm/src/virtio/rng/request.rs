//! What the guest asks the entropy device for.
//!
//! # Trust
//! The only file that reads this device's descriptors. However much is asked for, the answer is capped: an allocation
//! of the guest's choice took down other monitors.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use crate::virtio::chain::{self, Buffers, ChainError, Limits};
use crate::virtio::device::GuestMemory;
use virtio_queue::DescriptorChain;
use vm_memory::VolatileSlice;

/// Most bytes given per request; a driver has to cope with less than it asked for (virtio 1.2 §5.4.6.1). Lives on the
/// stack, and bounds what a chain costs the host's generator.
pub const MAX_ANSWER_BYTES: usize = 4 << 10;

/// Drivers use one descriptor; no request is too long, only its answer shorter.
const LIMITS: Limits = Limits { descriptors: 64, bytes: u32::MAX as u64 };

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The chain itself.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The device is given something to read.
    #[error("a request for entropy has something to read")]
    Readable,
}

/// A request for random bytes.
#[derive(Debug)]
pub struct Request<'s, 'm> {
    into: &'s [VolatileSlice<'m>],
    len: usize,
}

impl Request<'_, '_> {
    /// Bytes to give, at most [`MAX_ANSWER_BYTES`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is to be given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Stores the answer; returns how many bytes found room.
    #[must_use]
    pub fn answer(&self, bytes: &[u8]) -> u32 {
        u32::try_from(chain::copy_in(self.into, bytes)).unwrap_or(u32::MAX)
    }
}

/// Reads one request.
///
/// # Errors
/// [`Malformed`].
pub fn parse<'s, 'm>(
    chain: DescriptorChain<&'m GuestMemory>,
    memory: &'m GuestMemory,
    buffers: &'s mut Buffers<'m>,
) -> Result<Request<'s, 'm>, Malformed> {
    buffers.collect(chain, memory, LIMITS)?;
    if !buffers.readable.is_empty() {
        return Err(Malformed::Readable);
    }
    let len = usize::try_from(buffers.writable_bytes())
        .map_or(MAX_ANSWER_BYTES, |asked| asked.min(MAX_ANSWER_BYTES));
    Ok(Request { into: &buffers.writable, len })
}
