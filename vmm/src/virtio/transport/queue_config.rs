//! What the driver has written about one queue, before anything believes it.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use super::super::device::GuestMemory;
use virtio_queue::{Queue, QueueT as _};
use vm_memory::{GuestAddress, GuestMemoryBackend as _};

/// Bytes of one descriptor (virtio 1.2 §2.7.5).
const DESCRIPTOR_BYTES: u64 = 16;
/// Bytes of an entry of the available ring, and of what surrounds its entries: flags, index, event (§2.7.6).
const AVAILABLE_BYTES: (u64, u64) = (2, 6);
/// The same of the used ring (§2.7.8).
const USED_BYTES: (u64, u64) = (8, 6);

/// A queue that cannot be used as configured.
#[derive(Debug, thiserror::Error)]
pub enum QueueConfigError {
    /// The driver has not set it up.
    #[error("not ready")]
    NotReady,
    /// Size or alignment is against the rules.
    #[error("{0}")]
    Refused(virtio_queue::Error),
    /// A ring is not wholly in RAM.
    #[error("ring at {address:#x} of {bytes} bytes is not in RAM")]
    NotInRam {
        /// Where it begins.
        address: u64,
        /// Its length.
        bytes: u64,
    },
}

/// A queue's registers.
#[derive(Debug)]
pub struct QueueConfig {
    max_size: u16,
    pub size: u32,
    pub ready: bool,
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
}

impl QueueConfig {
    pub fn new(max_size: u16) -> Self {
        Self {
            max_size,
            size: u32::from(max_size),
            ready: false,
            descriptors: 0,
            available: 0,
            used: 0,
        }
    }

    pub fn max_size(&self) -> u16 {
        self.max_size
    }

    pub fn reset(&mut self) {
        *self = Self::new(self.max_size);
    }

    /// Validates the registers and makes a queue of them.
    pub fn build(&self, memory: &GuestMemory, event_idx: bool) -> Result<Queue, QueueConfigError> {
        if !self.ready {
            return Err(QueueConfigError::NotReady);
        }
        let mut queue = Queue::new(self.max_size).map_err(QueueConfigError::Refused)?;
        let size = u16::try_from(self.size)
            .map_err(|_| QueueConfigError::Refused(virtio_queue::Error::InvalidSize))?;
        queue.try_set_size(size).map_err(QueueConfigError::Refused)?;
        // Checked here and not only by `is_valid`, which logs each time; guests decide how often that is.
        self.check_in_ram(memory, self.descriptors, (DESCRIPTOR_BYTES, 0))?;
        self.check_in_ram(memory, self.available, AVAILABLE_BYTES)?;
        self.check_in_ram(memory, self.used, USED_BYTES)?;
        queue
            .try_set_desc_table_address(GuestAddress(self.descriptors))
            .map_err(QueueConfigError::Refused)?;
        queue
            .try_set_avail_ring_address(GuestAddress(self.available))
            .map_err(QueueConfigError::Refused)?;
        queue
            .try_set_used_ring_address(GuestAddress(self.used))
            .map_err(QueueConfigError::Refused)?;
        queue.set_event_idx(event_idx);
        queue.set_ready(true);
        if queue.is_valid(memory) { Ok(queue) } else { Err(QueueConfigError::NotReady) }
    }

    fn check_in_ram(
        &self,
        memory: &GuestMemory,
        address: u64,
        (entry, around): (u64, u64),
    ) -> Result<(), QueueConfigError> {
        let bytes = entry.saturating_mul(u64::from(self.size)).saturating_add(around);
        let fits = usize::try_from(bytes)
            .is_ok_and(|bytes| memory.check_range(GuestAddress(address), bytes));
        if fits { Ok(()) } else { Err(QueueConfigError::NotInRam { address, bytes }) }
    }
}
