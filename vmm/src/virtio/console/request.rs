//! What the guest writes to its console.
//!
//! # Trust
//! The only file that reads this device's descriptors.

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

/// Most bytes taken from one chain; Linux sends 32 KiB at most. Without it one chain could occupy the thread, which the
/// sockets share, with 4 GiB of output.
pub const MAX_OUTPUT_BYTES: u64 = 64 << 10;

const LIMITS: Limits = Limits { descriptors: 64, bytes: MAX_OUTPUT_BYTES };

/// The unit in which output is copied.
const COPY_BYTES: usize = 4 << 10;

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The chain itself.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The device is given something to write to.
    #[error("console output has room for an answer")]
    Writable,
}

/// Output of the guest.
#[derive(Debug)]
pub struct Output<'s, 'm> {
    from: &'s [VolatileSlice<'m>],
}

impl Output<'_, '_> {
    /// Hands the bytes to `sink`, piece by piece.
    pub fn copy_to(&self, mut sink: impl FnMut(&[u8])) {
        let mut buffer = [0; COPY_BYTES];
        for slice in self.from {
            let mut rest = *slice;
            while !rest.is_empty() {
                let count = chain::copy_out(&[rest], &mut buffer);
                sink(buffer.get(..count).unwrap_or_default());
                match rest.offset(count) {
                    Ok(shorter) => rest = shorter,
                    Err(_) => break,
                }
            }
        }
    }
}

/// Reads one chain of output.
///
/// # Errors
/// [`Malformed`].
pub fn parse<'s, 'm>(
    chain: DescriptorChain<&'m GuestMemory>,
    memory: &'m GuestMemory,
    buffers: &'s mut Buffers<'m>,
) -> Result<Output<'s, 'm>, Malformed> {
    buffers.collect(chain, memory, LIMITS)?;
    if buffers.writable.is_empty() {
        Ok(Output { from: &buffers.readable })
    } else {
        Err(Malformed::Writable)
    }
}
