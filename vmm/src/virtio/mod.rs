//! Virtio devices (virtio 1.2): what they share, and a folder per device.
//!
//! - [`device`]: the contract between a device and its transport;
//! - [`transport`]: virtio-mmio, the registers that the guest sees;
//! - [`io_thread`]: the threads on which devices work;
//! - [`serve`]: how a device takes buffers from a queue and returns them;
//! - [`chain`]: from a chain of descriptors to slices of guest RAM;
//! - [`fault_log`]: complaints about the guest, bounded.
//!
//! In each device's folder, `request.rs` (`packet.rs` for sockets) is the only file that reads what the guest wrote.

pub mod blk;
pub mod chain;
pub mod console;
pub mod device;
pub mod fault_log;
pub mod io_thread;
#[cfg(test)]
mod mock_driver;
pub mod rng;
pub mod serve;
pub mod transport;
pub mod vsock;
