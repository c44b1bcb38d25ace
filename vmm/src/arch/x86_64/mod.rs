//! x86-64: a 64-bit Linux entered at its ELF entry point with paging on (kernel:
//! `Documentation/arch/x86/boot.rst`, "64-bit boot protocol").

pub mod cpuid;
pub mod memory_map;
pub mod mptable;
pub mod msr;
pub mod registers;
pub mod zero_page;

pub use registers::Registers;

use cpuid::Leaf;
use std::sync::Arc;

/// What every vCPU is given before it runs.
#[derive(Debug, Clone)]
pub struct VcpuSetup {
    /// CPUID of this vCPU.
    pub cpuid: Vec<Leaf>,
    /// Model-specific registers: index and value.
    pub msrs: Arc<[(u32, u64)]>,
}
