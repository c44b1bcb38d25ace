//! A KVM virtual machine.

use super::{KvmVcpu, vcpu};
use crate::hv::{Error, Result, Vm};
use crate::virtio::device::{GuestMemory, IrqLine};
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{IoEventAddress, VmFd};
use std::io;
use std::sync::{Arc, OnceLock};
use vm_memory::{Address, GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Three pages below 4 GiB that KVM needs for real-mode emulation on Intel processors; no device or RAM is there.
#[cfg(target_arch = "x86_64")]
const TSS_ADDRESS: usize = 0xfffb_d000;

/// A virtual machine.
pub struct KvmVm {
    shared: Arc<Shared>,
}

/// What the machine and its vCPUs have in common. Fields are dropped in order: first the descriptor, then the memory
/// that the guest could reach through it.
pub(super) struct Shared {
    pub(super) fd: VmFd,
    memory: OnceLock<Arc<GuestMemory>>,
}

impl KvmVm {
    pub(super) fn new(kvm: &kvm_ioctls::Kvm) -> Result<Self> {
        let fd = loop {
            match kvm.create_vm() {
                Ok(fd) => break fd,
                // Making a VM waits for other work in the kernel and gives up when a signal arrives.
                Err(error) if error.errno() == libc::EINTR => {}
                Err(error) => return Err(Error::new("create a virtual machine", error)),
            }
        };
        #[cfg(target_arch = "x86_64")]
        {
            fd.set_tss_address(TSS_ADDRESS)
                .map_err(|error| Error::new("set the TSS address", error))?;
            fd.create_irq_chip()
                .map_err(|error| Error::new("create the interrupt controllers", error))?;
        }
        Ok(Self { shared: Arc::new(Shared { fd, memory: OnceLock::new() }) })
    }
}

impl Vm for KvmVm {
    type Vcpu = KvmVcpu;

    fn map(&self, memory: &Arc<GuestMemory>) -> Result<()> {
        if self.shared.memory.set(Arc::clone(memory)).is_err() {
            return Err(Error::new("map guest RAM", io::Error::from(io::ErrorKind::AlreadyExists)));
        }
        for (slot, region) in (0_u32..).zip(memory.iter()) {
            let host = region
                .get_host_address(MemoryRegionAddress(0))
                .map_err(|error| Error::new("find guest RAM", io::Error::other(error)))?;
            let description = kvm_userspace_memory_region {
                slot,
                flags: 0,
                guest_phys_addr: region.start_addr().raw_value(),
                memory_size: region.len(),
                userspace_addr: host.expose_provenance() as u64,
            };
            // SAFETY: the range is a mapping of this process that belongs to `memory`; `Shared` keeps that alive
            // until the VM's descriptor is closed, and every vCPU keeps `Shared`. Slots are distinct and regions of
            // a `GuestMemory` do not overlap.
            unsafe { self.shared.fd.set_user_memory_region(description) }
                .map_err(|error| Error::new("map guest RAM", error))?;
        }
        Ok(())
    }

    fn irq_line(&self, gsi: u32) -> Result<Arc<dyn IrqLine>> {
        let event = EventFd::new(EFD_NONBLOCK)
            .map_err(|error| Error::new("make an interrupt event", error))?;
        self.shared
            .fd
            .register_irqfd(&event, gsi)
            .map_err(|error| Error::new("register an interrupt", error))?;
        Ok(Arc::new(IrqFd(event)))
    }

    fn doorbell(&self, address: u64, index: u32) -> Result<Option<EventFd>> {
        let event =
            EventFd::new(EFD_NONBLOCK).map_err(|error| Error::new("make a doorbell", error))?;
        self.shared
            .fd
            .register_ioevent(&event, &IoEventAddress::Mmio(address), index)
            .map_err(|error| Error::new("register a doorbell", error))?;
        Ok(Some(event))
    }

    fn create_vcpu(&self, id: u8) -> Result<KvmVcpu> {
        vcpu::create(&self.shared, id)
    }
}

/// An interrupt line that the kernel raises when its event is written.
struct IrqFd(EventFd);

impl IrqLine for IrqFd {
    fn raise(&self) -> io::Result<()> {
        match self.0.write(1) {
            // The counter is full: interrupts that the kernel has not taken yet; one more makes no difference.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            result => result,
        }
    }
}
