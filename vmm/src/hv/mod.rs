//! The hypervisor in our own words: what a machine needs from it, and no more.
//!
//! Three traits, a dozen methods. A backend is chosen at compile time ([`Native`]); [`fake`] plays scripted exits in
//! tests. They are shaped so that a hypervisor fits that ties a vCPU to the thread that made it and has neither
//! irqfd nor ioeventfd (macOS): vCPUs are made on their threads, and [`Vm::doorbell`] may answer that there is none.

use crate::arch::{Registers, VcpuSetup};
use crate::virtio::device::{GuestMemory, IrqLine};
use std::io;
use std::sync::Arc;
use vmm_sys_util::eventfd::EventFd;

pub mod fake;
#[cfg(target_os = "linux")]
pub mod kvm;

/// The hypervisor of this build.
#[cfg(target_os = "linux")]
pub type Native = kvm::Kvm;

/// A call to the hypervisor that failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation}")]
pub struct Error {
    /// What was being done.
    pub operation: &'static str,
    /// What the hypervisor said.
    #[source]
    pub source: io::Error,
}

impl Error {
    /// An error that came with an `errno`.
    pub fn new(operation: &'static str, source: impl Into<io::Error>) -> Self {
        Self { operation, source: source.into() }
    }
}

/// Result of a call to the hypervisor.
pub type Result<T> = std::result::Result<T, Error>;

/// Makes virtual machines.
pub trait Hypervisor {
    /// Its machines.
    type Vm: Vm;

    /// Makes an empty machine: interrupt controllers, no memory, no vCPU.
    ///
    /// # Errors
    /// The hypervisor's error.
    fn create_vm(&self) -> Result<Self::Vm>;

    /// Most vCPUs it can give one machine.
    fn max_vcpus(&self) -> usize;

    /// What the processor can do, before our filter.
    ///
    /// # Errors
    /// The hypervisor's error.
    #[cfg(target_arch = "x86_64")]
    fn supported_cpuid(&self) -> Result<Vec<crate::arch::x86_64::cpuid::Leaf>>;
}

/// A virtual machine. Shared by the threads of its vCPUs.
pub trait Vm: Send + Sync + 'static {
    /// Its vCPUs.
    type Vcpu: Vcpu;

    /// Gives the guest its RAM, every region at its guest address. Called once. The machine and each of its vCPUs
    /// keep the memory alive: as long as one exists, a guest could still reach it.
    ///
    /// # Errors
    /// The hypervisor's error.
    fn map(&self, memory: &Arc<GuestMemory>) -> Result<()>;

    /// An edge-triggered line into the interrupt controller.
    ///
    /// # Errors
    /// The hypervisor's error.
    fn irq_line(&self, gsi: u32) -> Result<Arc<dyn IrqLine>>;

    /// An event that the guest rings by a 32-bit write of `index` to `address`, without an exit. `None` where the
    /// hypervisor cannot: the write is then an [`Exit::MmioWrite`] and the device's transport rings the bell.
    ///
    /// # Errors
    /// The hypervisor's error.
    fn doorbell(&self, address: u64, index: u32) -> Result<Option<EventFd>>;

    /// Makes a vCPU. Must be called on the thread that will run it.
    ///
    /// # Errors
    /// The hypervisor's error.
    fn create_vcpu(&self, id: u8) -> Result<Self::Vcpu>;
}

/// A virtual processor. Lives and dies on one thread.
pub trait Vcpu {
    /// Gives the processor its features.
    ///
    /// # Errors
    /// The hypervisor's error.
    fn set_up(&mut self, setup: &VcpuSetup) -> Result<()>;

    /// Makes this the processor that boots, with these registers. The others wait until the guest starts them.
    ///
    /// # Errors
    /// The hypervisor's error.
    fn set_entry(&mut self, registers: &Registers) -> Result<()>;

    /// A handle with which any thread takes this processor out of the guest.
    fn kicker(&self) -> Arc<dyn Kick>;

    /// Runs the guest until something needs the machine's attention. The answer to a read is written into the exit;
    /// the guest sees it at the next `run`.
    ///
    /// # Errors
    /// When the processor cannot run at all.
    fn run(&mut self) -> Result<Exit<'_>>;
}

/// Takes a processor out of the guest.
pub trait Kick: Send + Sync {
    /// Makes a `run` that is under way, or the next one, return [`Exit::Interrupted`]. Harmless when the processor's
    /// thread has ended.
    fn kick(&self);
}

/// Why a processor left the guest.
#[derive(Debug, PartialEq, Eq)]
pub enum Exit<'a> {
    /// The guest reads an address where there is no RAM.
    MmioRead {
        /// The guest's physical address.
        address: u64,
        /// To be filled with what it reads.
        data: &'a mut [u8],
    },
    /// The guest writes to an address where there is no RAM.
    MmioWrite {
        /// The guest's physical address.
        address: u64,
        /// What it writes.
        data: &'a [u8],
    },
    /// The guest reads a port.
    IoIn {
        /// The port.
        port: u16,
        /// To be filled with what it reads.
        data: &'a mut [u8],
    },
    /// The guest writes to a port.
    IoOut {
        /// The port.
        port: u16,
        /// What it writes.
        data: &'a [u8],
    },
    /// The processor is halted for good (only where the interrupt controller is not the hypervisor's).
    Halt,
    /// The guest reset or powered off the machine, on purpose or by a triple fault.
    Shutdown,
    /// The processor was kicked, or a signal arrived.
    Interrupted,
    /// The hypervisor cannot go on with this guest.
    Failed(String),
}
