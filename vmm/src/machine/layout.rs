//! Which addresses and interrupts virtio devices get.

use crate::arch::memory_map::{FIRST_GSI, LAST_GSI, VIRTIO_MMIO, VIRTIO_MMIO_STRIDE};

/// Most devices: each has an interrupt line of its own.
pub const MAX_DEVICES: usize = (LAST_GSI - FIRST_GSI + 1) as usize;

/// Registers of one device; the 4K on the command line.
pub const SLOT_BYTES: u64 = 0x1000;

/// Where a device lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// First register.
    pub address: u64,
    /// Interrupt line.
    pub gsi: u32,
}

impl Slot {
    /// The device's entry on the kernel's command line (kernel: `drivers/virtio/virtio_mmio.c`).
    #[must_use]
    pub fn command_line(&self) -> String {
        format!("virtio_mmio.device=4K@{:#x}:{}", self.address, self.gsi)
    }
}

/// The place of device number `index`, if there is one.
#[must_use]
pub fn slot(index: usize) -> Option<Slot> {
    let number = u32::try_from(index).ok().filter(|_| index < MAX_DEVICES)?;
    Some(Slot {
        address: VIRTIO_MMIO + u64::from(number) * VIRTIO_MMIO_STRIDE,
        gsi: FIRST_GSI + number,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::memory_map::{HOLE, HOLE_END, IO_APIC};

    #[test]
    fn slots_are_distinct_and_in_the_hole() {
        let slots: Vec<Slot> = (0..).map_while(slot).collect();
        assert_eq!(slots.len(), MAX_DEVICES);
        assert_eq!(slots[0].command_line(), "virtio_mmio.device=4K@0xd0000000:5");
        for pair in slots.windows(2) {
            assert_eq!(pair[1].address - pair[0].address, VIRTIO_MMIO_STRIDE);
            assert_eq!(pair[1].gsi - pair[0].gsi, 1);
        }
        for slot in slots {
            assert!((HOLE..HOLE_END).contains(&slot.address) && slot.address < u64::from(IO_APIC));
            assert!(slot.gsi <= LAST_GSI);
        }
    }
}
