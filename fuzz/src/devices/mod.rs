//! A hostile driver in front of each virtio device. Every run ends with a reset and a friendly driver, who must be
//! served: whatever was done to the device, it was only done to the guest itself.

pub mod blk;
pub mod console;
pub mod rng;
pub mod transport;
pub mod vsock;
