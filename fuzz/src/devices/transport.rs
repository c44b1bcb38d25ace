//! The registers, with a device behind them that does nothing.

use crate::guest::Guest;
use crate::input::Input;
use std::io;
use virtio_queue::{Queue, QueueT as _};
use vm_memory::{GuestAddress, GuestMemoryBackend as _};
use vmm::virtio::device::{Activation, VirtioDevice};

const MAX_SIZES: [u16; 3] = [256, 64, 16];

/// A device that checks what its transport promises.
#[derive(Default)]
struct Witness {
    running: bool,
}

impl VirtioDevice for Witness {
    fn id(&self) -> u32 {
        63
    }

    fn features(&self) -> u64 {
        0b1011
    }

    fn queue_max_sizes(&self) -> &[u16] {
        &MAX_SIZES
    }

    fn read_config(&self, _offset: u64, _data: &mut [u8]) {}

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    fn start(&mut self, activation: Activation) -> io::Result<()> {
        assert!(!self.running, "never started twice");
        self.running = true;
        assert_eq!(activation.features >> 32 & 1, 1, "only for a modern driver");
        assert_eq!(activation.queues.len(), MAX_SIZES.len(), "all queues are there");
        for (active, max_size) in activation.queues.iter().zip(MAX_SIZES) {
            let queue = &active.queue;
            let size = queue.size();
            assert!(size.is_power_of_two() && size <= max_size);
            assert_eq!(queue.event_idx_enabled(), activation.features >> 29 & 1 == 1);
            let entries = usize::from(size);
            for (address, bytes, alignment) in [
                (queue.desc_table(), 16 * entries, 16),
                (queue.avail_ring(), 6 + 2 * entries, 2),
                (queue.used_ring(), 6 + 8 * entries, 4),
            ] {
                assert_eq!(address % alignment, 0);
                assert!(
                    activation.memory.check_range(GuestAddress(address), bytes),
                    "rings are in RAM"
                );
            }
        }
        Ok(())
    }

    fn stop(&mut self) -> Vec<Queue> {
        assert!(self.running, "only what runs is stopped");
        self.running = false;
        Vec::new()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        assert!(!self.running, "stopped before it goes");
    }
}

/// Attacks the registers.
///
/// # Panics
/// When the transport breaks a promise to its device, or a reset does not bring it back.
pub fn run(data: &[u8]) {
    let mut guest = Guest::new(|_| Box::new(Witness::default()));
    guest.attack(&mut Input::new(data), |guest, input| match input.below(4) {
        // One queue's registers, with values that are almost right.
        0 => {
            guest.write(0x30, u32::from(input.below(4)));
            let register =
                [0x38, 0x44, 0x80, 0x84, 0x90, 0x94, 0xa0, 0xa4][usize::from(input.below(8))];
            let address = guest.address(input);
            guest.write(register, u32::try_from(address & 0xffff_ffff).unwrap_or(0));
        }
        1 => guest.write(0x44, u32::from(input.below(2))),
        // The steps of initialisation, in any order.
        2 => guest.write(0x70, [0, 1, 3, 11, 15, 4, 8, 0x80][usize::from(input.below(8))]),
        _ => {
            guest.read(u64::from(input.u8()));
        }
    });
    guest.reform();
}
