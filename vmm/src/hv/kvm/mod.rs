//! KVM, with its own interrupt controllers (PIC, I/O APIC, local APICs) and without a PIT: a kernel that reads the TSC's
//! frequency from KVM's clock and has TSC deadlines for its timers never asks for one.

#![expect(unsafe_code, reason = "UNSAFETY: ioctls that hand over descriptors and guest memory")]

mod vcpu;
mod vm;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use vcpu::KvmVcpu;
pub use vm::KvmVm;

use super::{Error, Hypervisor, Result};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

/// The only version of the interface there has ever been (kernel: `Documentation/virt/kvm/api.rst`, 4.1).
const API_VERSION: i32 = 12;

/// An open `/dev/kvm`.
#[derive(Debug)]
pub struct Kvm {
    fd: kvm_ioctls::Kvm,
}

impl Kvm {
    /// Takes over a descriptor of `/dev/kvm` and readies this process to run vCPUs.
    ///
    /// # Errors
    /// If it is something else, or the kick signal cannot be installed.
    pub fn new(fd: OwnedFd) -> Result<Self> {
        // SAFETY: `into_raw_fd` gives up the only owner of an open descriptor; `Kvm` becomes the next.
        let fd = unsafe { kvm_ioctls::Kvm::from_raw_fd(fd.into_raw_fd()) };
        match fd.get_api_version() {
            API_VERSION => {}
            -1 => {
                return Err(Error::new("ask KVM for its version", std::io::Error::last_os_error()));
            }
            other => {
                let odd = std::io::Error::other(format!("version {other}, expected {API_VERSION}"));
                return Err(Error::new("ask KVM for its version", odd));
            }
        }
        vcpu::install_kick_signal()?;
        Ok(Self { fd })
    }
}

impl Hypervisor for Kvm {
    type Vm = KvmVm;

    fn create_vm(&self) -> Result<KvmVm> {
        KvmVm::new(&self.fd)
    }

    fn max_vcpus(&self) -> usize {
        self.fd.get_max_vcpus()
    }

    #[cfg(target_arch = "x86_64")]
    fn supported_cpuid(&self) -> Result<Vec<crate::arch::x86_64::cpuid::Leaf>> {
        x86_64::supported_cpuid(&self.fd)
    }
}
