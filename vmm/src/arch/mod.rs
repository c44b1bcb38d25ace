//! What a processor must look like when the guest's kernel begins, per architecture.

#[cfg(target_arch = "x86_64")]
pub mod x86_64;

#[cfg(target_arch = "x86_64")]
pub use x86_64::{Registers, VcpuSetup, memory_map};
