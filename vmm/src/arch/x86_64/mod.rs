//! x86-64: a 64-bit Linux entered at its ELF entry point with paging on (kernel:
//! `Documentation/arch/x86/boot.rst`, "64-bit boot protocol").

pub mod cpuid;
pub mod memory_map;
pub mod mptable;
pub mod msr;
pub mod registers;
pub mod zero_page;

use cpuid::Leaf;
use registers::Registers;
use std::sync::Arc;

/// What one vCPU is given before it runs.
#[derive(Debug, Clone)]
pub struct VcpuSetup {
    /// CPUID of this vCPU.
    pub cpuid: Vec<Leaf>,
    /// Model-specific registers: index and value.
    pub msrs: Arc<[(u32, u64)]>,
    /// Registers of the processor that boots; the others wait for its INIT and SIPI.
    pub boot: Option<Registers>,
}
