//! From a chain of descriptors to slices of guest RAM.
//!
//! # Trust
//! Descriptors are the guest's: addresses, lengths, order, links and indirect tables. Each is read once. What comes
//! out are slices that lie in RAM, at most as many and as long as the device allows, and the knowledge whether the
//! chain had an end at all. What is *in* the slices can still change at any time.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use super::device::GuestMemory;
use virtio_queue::DescriptorChain;
use vm_memory::{GuestMemoryBackend as _, VolatileSlice};

/// What a device accepts. The attack behind each: a chain that keeps the device's thread busy for as long as the guest
/// likes (an indirect table may have 65535 entries of 4 GiB each).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Descriptors of one chain.
    pub descriptors: usize,
    /// Bytes of one chain, both directions together.
    pub bytes: u64,
}

/// What is wrong with a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// It has no end: it loops, leads out of its table, or its table is not in RAM.
    #[error("a chain of descriptors has no end")]
    Endless,
    /// It has more descriptors than the device accepts.
    #[error("a chain has too many descriptors")]
    TooManyDescriptors,
    /// It is longer than the device accepts.
    #[error("a chain has too many bytes")]
    TooManyBytes,
    /// A descriptor's bytes are not in RAM.
    #[error("a descriptor points out of RAM")]
    NotInRam,
    /// A readable descriptor follows a writable one (virtio 1.2 §2.7.4.2).
    #[error("a readable descriptor follows a writable one")]
    Order,
}

/// A chain's slices. Reused from chain to chain, so that a request costs no allocation.
#[derive(Debug, Default)]
pub struct Buffers<'m> {
    /// What the device may read, in order; no slice is empty.
    pub readable: Vec<VolatileSlice<'m>>,
    /// What the device may write, in order; no slice is empty.
    pub writable: Vec<VolatileSlice<'m>>,
}

impl<'m> Buffers<'m> {
    /// Replaces the slices with those of a chain.
    ///
    /// # Errors
    /// [`ChainError`]. Unless that says that the chain's end was not found, `writable` still ends with the chain's last
    /// writable bytes, so that a device can tell the driver.
    pub fn collect(
        &mut self,
        chain: DescriptorChain<&'m GuestMemory>,
        memory: &'m GuestMemory,
        limits: Limits,
    ) -> Result<(), ChainError> {
        self.readable.clear();
        self.writable.clear();
        let mut fault = None;
        let mut bytes = 0_u64;
        let mut descriptors = 0_usize;
        let mut ended = false;
        for descriptor in chain {
            descriptors = descriptors.saturating_add(1);
            if descriptors > limits.descriptors {
                self.writable.clear();
                return Err(ChainError::TooManyDescriptors);
            }
            ended = !descriptor.has_next();
            bytes = bytes.saturating_add(u64::from(descriptor.len()));
            if bytes > limits.bytes {
                fault = fault.or(Some(ChainError::TooManyBytes));
            }
            let Ok(len) = usize::try_from(descriptor.len()) else {
                fault = fault.or(Some(ChainError::TooManyBytes));
                continue;
            };
            let list = if descriptor.is_write_only() {
                &mut self.writable
            } else {
                if !self.writable.is_empty() {
                    fault = fault.or(Some(ChainError::Order));
                }
                &mut self.readable
            };
            for slice in memory.get_slices(descriptor.addr(), len) {
                match slice {
                    Ok(slice) if !slice.is_empty() => list.push(slice),
                    Ok(_) => {}
                    Err(_) => fault = fault.or(Some(ChainError::NotInRam)),
                }
            }
        }
        if !ended {
            self.writable.clear();
            return Err(ChainError::Endless);
        }
        fault.map_or(Ok(()), Err)
    }

    /// Bytes that the device may write.
    #[must_use]
    pub fn writable_bytes(&self) -> u64 {
        total(&self.writable)
    }
}

/// Bytes that the slices hold together.
#[must_use]
pub fn total(slices: &[VolatileSlice<'_>]) -> u64 {
    slices.iter().fold(0, |sum, slice| sum.saturating_add(slice.len() as u64))
}

/// Copies out of the slices; returns how many bytes there were, at most `into.len()`.
#[must_use]
pub fn copy_out(slices: &[VolatileSlice<'_>], mut into: &mut [u8]) -> usize {
    let mut copied = 0_usize;
    for slice in slices {
        let count = slice.copy_to(into);
        copied = copied.saturating_add(count);
        into = into.get_mut(count..).unwrap_or_default();
        if into.is_empty() {
            break;
        }
    }
    copied
}

/// Copies into the slices; returns how many bytes found room.
#[must_use]
pub fn copy_in(slices: &[VolatileSlice<'_>], mut from: &[u8]) -> usize {
    let mut copied = 0_usize;
    for slice in slices {
        let Some((head, rest)) = from.split_at_checked(slice.len().min(from.len())) else { break };
        slice.copy_from(head);
        copied = copied.saturating_add(head.len());
        from = rest;
        if from.is_empty() {
            break;
        }
    }
    copied
}

/// Drops the first `count` bytes and returns what is left; the slice in which they end is shortened in place.
#[must_use]
pub fn skip<'s, 'm>(
    slices: &'s mut [VolatileSlice<'m>],
    mut count: usize,
) -> &'s [VolatileSlice<'m>] {
    let mut whole = 0_usize;
    for slice in slices.iter_mut() {
        if count < slice.len() {
            if let Ok(shorter) = slice.offset(count) {
                *slice = shorter;
            }
            break;
        }
        count = count.saturating_sub(slice.len());
        whole = whole.saturating_add(1);
    }
    slices.get(whole..).unwrap_or_default()
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "the numbers here are ours")]
mod tests;
