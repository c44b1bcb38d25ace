//! The trial run: a few bytes of 64-bit guest code on a virtual machine of their own.
//!
//! The code uses what ordinary kernels use and what some KVMs cannot do (`cmpxchg16b`, `xsave`, `xrstor`), then leaves
//! through an I/O port with the value that only a right `cmpxchg16b` leaves in memory. Any other way out of the guest,
//! and none at all within the time given, means that this KVM cannot run ordinary kernels.
#![expect(unsafe_code, reason = "UNSAFETY: KVM is told the address of guest memory")]

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

/// How long the guest code may take. It is done in microseconds; a KVM that emulates it in software needs a few
/// milliseconds. Anything near this limit would be unusable for its slowness alone.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(2);

/// What [`CODE`] moves to memory with `cmpxchg16b` and then writes to [`PORT`].
const ANSWER: u8 = 42;
const PORT: u8 = 0xee;

/// The guest code, at [`CODE_ADDRESS`]. `rdi` points at 16 zero bytes, `rsi` at a zeroed XSAVE area, `rbx` is
/// [`ANSWER`], `rax`, `rcx` and `rdx` are zero.
pub(super) const CODE: &[u8] = &[
    0xf0, 0x48, 0x0f, 0xc7, 0x0f, // lock cmpxchg16b [rdi]
    0xb8, 0x03, 0x00, 0x00, 0x00, // mov eax, 3 (x87 and SSE state)
    0x31, 0xd2, // xor edx, edx
    0x48, 0x0f, 0xae, 0x26, // xsave64 [rsi]
    0x48, 0x0f, 0xae, 0x2e, // xrstor64 [rsi]
    0x8a, 0x07, // mov al, [rdi]
    0xe6, PORT, // out PORT, al
    0xf4, // hlt
];

/// Guest memory: one page each for three levels of page tables, code, data and the XSAVE area.
const MEMORY_BYTES: usize = 0x1_0000;
const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const PAGE_DIRECTORY: u64 = 0x3000;
const CODE_ADDRESS: u64 = 0x4000;
const DATA_ADDRESS: u64 = 0x5000;
const XSAVE_ADDRESS: u64 = 0x6000;

const PRESENT_WRITABLE: u64 = 0b11;
const HUGE_PAGE: u64 = 1 << 7;

const CR0_PE_MP_ET_NE_PG: u64 = 1 | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 31;
const CR4_PAE_OSFXSR_OSXMMEXCPT_OSXSAVE: u64 = 1 << 5 | 1 << 9 | 1 << 10 | 1 << 18;
const EFER_LME_LMA: u64 = 1 << 8 | 1 << 10;

/// Runs `code` on `kvm`; the error says what this KVM did instead of giving the right answer.
pub(super) fn run(kvm: &Kvm, code: &[u8], limit: Duration) -> Result<(), String> {
    let machine = Machine::build(kvm, code)?;
    // The vCPU gets a thread because nothing but a signal brings back a KVM_RUN that does not return.
    register_signal_handler(SIGRTMIN(), ignore_signal)
        .map_err(|error| format!("cannot handle a signal: {error}"))?;
    let (sender, outcome) = mpsc::channel();
    let thread = thread::Builder::new()
        .name("kvm-probe".into())
        .spawn(move || {
            let mut machine = machine;
            let _ = sender.send(judge(&mut machine.vcpu));
        })
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    let verdict = match outcome.recv_timeout(limit) {
        Ok(verdict) => verdict,
        Err(RecvTimeoutError::Disconnected) => Err("the probe's thread crashed".into()),
        Err(RecvTimeoutError::Timeout) => {
            // KVM_RUN fails with EINTR then. A KVM that does not even do that keeps its thread until the process
            // ends: waiting for it would hang us as well.
            let _ = thread.kill(SIGRTMIN());
            let _ = outcome.recv_timeout(limit);
            return Err(format!("guest code did not end within {} ms", limit.as_millis()));
        }
    };
    let _ = thread.join();
    verdict
}

extern "C" fn ignore_signal(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

/// Runs the vCPU once and says whether it left as it should.
fn judge(vcpu: &mut VcpuFd) -> Result<(), String> {
    match vcpu.run() {
        Ok(VcpuExit::IoOut(port, &[ANSWER])) if port == u16::from(PORT) => Ok(()),
        Ok(VcpuExit::IoOut(port, data)) => {
            Err(format!("guest code wrote {data:x?} to port {port:#x} instead of the right answer"))
        }
        Ok(VcpuExit::InternalError) => {
            Err("it cannot emulate instructions that kernels use".into())
        }
        Ok(VcpuExit::FailEntry(reason, _)) => {
            Err(format!("it refuses to enter the guest ({reason:#x})"))
        }
        Ok(VcpuExit::Shutdown) => Err("the guest crashed where it should not".into()),
        Ok(exit) => Err(format!("the guest stopped where it should not ({exit:?})")),
        Err(error) => Err(format!("it cannot run a vCPU: {error}")),
    }
}

/// A virtual machine in 64-bit mode, about to run the code. The fields keep each other alive.
struct Machine {
    vcpu: VcpuFd,
    _vm: VmFd,
    _memory: GuestMemoryMmap,
}

impl Machine {
    fn build(kvm: &Kvm, code: &[u8]) -> Result<Self, String> {
        let vm = kvm
            .create_vm()
            .map_err(|error| format!("it cannot make a virtual machine: {error}"))?;
        let memory = guest_memory(code)?;
        let host_address = memory
            .get_host_address(GuestAddress(0))
            .map_err(|error| format!("cannot find guest memory: {error}"))?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: MEMORY_BYTES as u64,
            userspace_addr: host_address.addr() as u64,
        };
        // SAFETY: the region is one mapping of MEMORY_BYTES bytes that lives as long as the VM: both are fields of
        // the same value, and nothing else uses slot 0.
        unsafe { vm.set_user_memory_region(region) }
            .map_err(|error| format!("it cannot map guest memory: {error}"))?;
        let vcpu = vm.create_vcpu(0).map_err(|error| format!("it cannot make a vCPU: {error}"))?;
        enter_long_mode(kvm, &vcpu)?;
        Ok(Self { vcpu, _vm: vm, _memory: memory })
    }
}

/// Memory with page tables (the first 2 MiB, one to one), code, and zeroes.
fn guest_memory(code: &[u8]) -> Result<GuestMemoryMmap, String> {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)])
        .map_err(|error| format!("cannot allocate guest memory: {error}"))?;
    let entries = [
        (PML4, PDPT | PRESENT_WRITABLE),
        (PDPT, PAGE_DIRECTORY | PRESENT_WRITABLE),
        (PAGE_DIRECTORY, PRESENT_WRITABLE | HUGE_PAGE),
    ];
    for (address, entry) in entries {
        memory
            .write_obj(entry, GuestAddress(address))
            .map_err(|error| format!("cannot write page tables: {error}"))?;
    }
    memory
        .write_slice(code, GuestAddress(CODE_ADDRESS))
        .map_err(|error| format!("cannot write guest code: {error}"))?;
    Ok(memory)
}

/// Puts the vCPU in front of the code. CPUID comes first: KVM accepts CR4.OSXSAVE only if CPUID has XSAVE.
fn enter_long_mode(kvm: &Kvm, vcpu: &VcpuFd) -> Result<(), String> {
    let cpuid = kvm
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(|error| format!("it does not tell its CPU's features: {error}"))?;
    vcpu.set_cpuid2(&cpuid).map_err(|error| format!("it refuses its own CPU features: {error}"))?;

    let mut sregs =
        vcpu.get_sregs().map_err(|error| format!("it hides the vCPU's registers: {error}"))?;
    let code = kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector: 0x8,
        type_: 11, // execute, read, accessed
        present: 1,
        dpl: 0,
        db: 0,
        s: 1,
        l: 1,
        g: 1,
        ..kvm_segment::default()
    };
    let data = kvm_segment { selector: 0x10, type_: 3, db: 1, l: 0, ..code };
    sregs.cs = code;
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.cr3 = PML4;
    sregs.cr4 = CR4_PAE_OSFXSR_OSXMMEXCPT_OSXSAVE;
    sregs.cr0 = CR0_PE_MP_ET_NE_PG;
    sregs.efer = EFER_LME_LMA;
    vcpu.set_sregs(&sregs).map_err(|error| format!("it cannot enter 64-bit mode: {error}"))?;

    let mut xcrs = vcpu.get_xcrs().map_err(|error| format!("it has no XSAVE state: {error}"))?;
    xcrs.nr_xcrs = 1;
    xcrs.xcrs[0].xcr = 0;
    xcrs.xcrs[0].value = 0b11; // x87 and SSE: what every x86-64 CPU with XSAVE has
    vcpu.set_xcrs(&xcrs).map_err(|error| format!("it cannot set XCR0: {error}"))?;

    let regs = kvm_regs {
        rip: CODE_ADDRESS,
        rflags: 2, // the bit that is always set
        rbx: u64::from(ANSWER),
        rdi: DATA_ADDRESS,
        rsi: XSAVE_ADDRESS,
        ..kvm_regs::default()
    };
    vcpu.set_regs(&regs).map_err(|error| format!("it cannot set the vCPU's registers: {error}"))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests take a setting from the environment")]
mod tests {
    use super::*;

    /// Needs a `/dev/kvm` that runs guest code at all, which even the ones that cannot run kernels do.
    fn kvm() -> Option<Kvm> {
        match Kvm::new() {
            Ok(kvm) => Some(kvm),
            Err(error) if std::env::var_os("LILBOX_REQUIRE_KVM").is_some() => {
                panic!("LILBOX_REQUIRE_KVM is set and /dev/kvm cannot be opened: {error}")
            }
            Err(error) => {
                println!("skipped: /dev/kvm cannot be opened: {error}");
                None
            }
        }
    }

    #[test]
    fn the_answer_alone_passes() {
        let Some(kvm) = kvm() else { return };
        let wrong_answer = [0xb0, ANSWER - 1, 0xe6, PORT, 0xf4];
        assert!(run(&kvm, &wrong_answer, TIME_LIMIT).unwrap_err().contains("right answer"));
        let right_answer = [0xb0, ANSWER, 0xe6, PORT, 0xf4];
        assert_eq!(run(&kvm, &right_answer, TIME_LIMIT), Ok(()));
        let halt = [0xf4];
        assert!(run(&kvm, &halt, TIME_LIMIT).is_err());
        let undefined_without_handler = [0x0f, 0x0b];
        assert!(run(&kvm, &undefined_without_handler, TIME_LIMIT).is_err());
    }

    #[test]
    fn code_that_never_leaves_the_guest_is_stopped() {
        let Some(kvm) = kvm() else { return };
        let jump_to_itself = [0xeb, 0xfe];
        let error = run(&kvm, &jump_to_itself, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error, "guest code did not end within 50 ms");
        let right_answer = [0xb0, ANSWER, 0xe6, PORT, 0xf4];
        assert_eq!(run(&kvm, &right_answer, TIME_LIMIT), Ok(()), "the next trial is not disturbed");
    }
}
