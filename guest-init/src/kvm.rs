//! Keeps the machine's kernel from patching its own code while other CPUs run it.
//!
//! KVM counts its guests in static keys: branches that Linux patches in its code, the scheduler's included, each time
//! such a count leaves or reaches zero. QEMU before 8.1 can run an emulated CPU into half a patch, which crashes the
//! machine. So PID 1 keeps one guest of each kind that is counted, none of which ever runs: the counts stay above zero
//! and the code stays as it is. Done before the second CPU is online, when nothing can run into the patches.
//!
//! - any guest at all (`preempt_notifier_key`; virtualisation stays enabled on all CPUs as well);
//! - a vCPU without an interrupt controller in the kernel (`kvm_has_noapic_vcpu`);
//! - a vCPU whose local APIC is not enabled by software (`apic_sw_disabled`): every new one;
//! - a vCPU whose local APIC is disabled by hardware (`apic_hw_disabled`).
//!
//! `kvm_xen_enabled`, the last key of this kind in Linux 6.12, is not built into our kernel.

#![expect(
    unsafe_code,
    reason = "UNSAFETY: ioctls of KVM; every block is one call with arguments made here"
)]

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::io;

const DEVICE: &str = "/dev/kvm";

/// `_IO(KVMIO, 0x01)`.
const KVM_CREATE_VM: libc::Ioctl = 0xae01;
/// `_IO(KVMIO, 0x60)`.
const KVM_CREATE_IRQCHIP: libc::Ioctl = 0xae60;
/// `_IO(KVMIO, 0x41)`.
const KVM_CREATE_VCPU: libc::Ioctl = 0xae41;
/// `_IOR(KVMIO, 0x83, struct kvm_sregs)`.
const KVM_GET_SREGS: libc::Ioctl = 0x8138_ae83;
/// `_IOW(KVMIO, 0x84, struct kvm_sregs)`.
const KVM_SET_SREGS: libc::Ioctl = 0x4138_ae84;

/// The bit of `apic_base` that turns the local APIC on.
const APIC_BASE_ENABLE: u64 = 1 << 11;

/// `struct kvm_sregs` of x86, of which only one field matters here.
#[repr(C)]
#[derive(Clone, Copy)]
struct SpecialRegisters {
    segments_and_control: [u64; 34],
    apic_base: u64,
    interrupt_bitmap: [u64; 4],
}

/// Guests that never run, kept until dropped.
#[derive(Debug)]
pub struct IdleGuests {
    _descriptors: [OwnedFd; 4],
}

/// Makes the guests. `None` if this machine has no KVM.
///
/// # Errors
/// If the device cannot be opened, or KVM refuses a request.
pub fn hold() -> io::Result<Option<IdleGuests>> {
    let device = match openat(CWD, DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) => device,
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let with_apic = create(&device, KVM_CREATE_VM)?;
    request(&with_apic, KVM_CREATE_IRQCHIP)?;
    let disabled = create(&with_apic, KVM_CREATE_VCPU)?;
    let mut registers = special_registers(&disabled)?;
    registers.apic_base &= !APIC_BASE_ENABLE;
    set_special_registers(&disabled, &registers)?;
    let without_apic = create(&device, KVM_CREATE_VM)?;
    let bare = create(&without_apic, KVM_CREATE_VCPU)?;
    Ok(Some(IdleGuests { _descriptors: [disabled, with_apic, bare, without_apic] }))
}

/// An ioctl without an argument: the first machine type, the first vCPU.
fn request(fd: impl AsFd, number: libc::Ioctl) -> io::Result<i32> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the ioctls that are asked for here take an integer and touch no memory of ours.
    let result = unsafe { libc::ioctl(fd, number, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// An ioctl that returns a descriptor, which KVM opens with `O_CLOEXEC`.
fn create(fd: impl AsFd, number: libc::Ioctl) -> io::Result<OwnedFd> {
    let descriptor = request(fd, number)?;
    // SAFETY: the kernel has just opened the descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn special_registers(vcpu: impl AsFd) -> io::Result<SpecialRegisters> {
    let mut registers =
        SpecialRegisters { segments_and_control: [0; 34], apic_base: 0, interrupt_bitmap: [0; 4] };
    let fd = vcpu.as_fd().as_raw_fd();
    // SAFETY: the ioctl writes one `kvm_sregs` through the pointer, which is as large and lives for the call.
    let result = unsafe { libc::ioctl(fd, KVM_GET_SREGS, &raw mut registers) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(registers) }
}

fn set_special_registers(vcpu: impl AsFd, registers: &SpecialRegisters) -> io::Result<()> {
    let fd = vcpu.as_fd().as_raw_fd();
    // SAFETY: the ioctl reads one `kvm_sregs` through the pointer, which is as large and lives for the call.
    let result = unsafe { libc::ioctl(fd, KVM_SET_SREGS, std::ptr::from_ref(registers)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn the_registers_are_as_large_as_the_requests_say() {
        // Bits 16 to 29 of a request are the size of what it points to.
        assert_eq!(KVM_GET_SREGS >> 16 & 0x3fff, size_of::<SpecialRegisters>() as libc::Ioctl);
        assert_eq!(KVM_SET_SREGS >> 16 & 0x3fff, size_of::<SpecialRegisters>() as libc::Ioctl);
        // Eight segments of 24 bytes, two tables of 16, six control registers.
        assert_eq!(offset_of!(SpecialRegisters, apic_base), 8 * 24 + 2 * 16 + 6 * 8);
    }
}
