//! A KVM vCPU, and how a thread in the guest is called back.
//!
//! A vCPU is kicked by a signal. Its handler sets `immediate_exit` in the vCPU's shared page, so a signal that
//! arrives just before `KVM_RUN` is not lost (kernel: `Documentation/virt/kvm/vcpu-requests.rst`).

use super::vm::Shared;
use crate::arch::{Registers, VcpuSetup};
use crate::hv::{Error, Exit, Kick, Result, Vcpu};
use kvm_bindings::{
    KVM_INTERNAL_ERROR_DELIVERY_EV, KVM_INTERNAL_ERROR_EMULATION, KVM_INTERNAL_ERROR_SIMUL_EX,
    KVM_INTERNAL_ERROR_UNEXPECTED_EXIT_REASON, kvm_run,
};
use kvm_ioctls::{VcpuExit, VcpuFd};
use std::cell::Cell;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

thread_local! {
    /// `immediate_exit` of the vCPU that lives on this thread. Constant initialisation and no destructor make it
    /// fit for a signal handler.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

/// Installs the handler of the kick signal.
pub(super) fn install_kick_signal() -> Result<()> {
    extern "C" fn on_kick(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
        let flag = IMMEDIATE_EXIT.get();
        if !flag.is_null() {
            // SAFETY: the pointer is set by `create` to a byte of a page that stays mapped until the vCPU's `drop`,
            // which clears the pointer first. Both run on this thread, as does this handler.
            unsafe { flag.write_volatile(1) };
        }
    }
    register_signal_handler(SIGRTMIN(), on_kick)
        .map_err(|error| Error::new("install the kick signal", error))
}

/// A vCPU. Not `Send`: its kick finds it through the thread that made it.
pub struct KvmVcpu {
    fd: VcpuFd,
    /// The page shared with the kernel; mapped as long as `fd` lives.
    page: NonNull<kvm_run>,
    /// Keeps guest RAM mapped while this vCPU could run; dropped after `fd`.
    _machine: Arc<Shared>,
}

pub(super) fn create(machine: &Arc<Shared>, id: u8) -> Result<KvmVcpu> {
    let mut fd = machine
        .fd
        .create_vcpu(u64::from(id))
        .map_err(|error| Error::new("create a vCPU", error))?;
    let page = NonNull::from(fd.get_kvm_run());
    // SAFETY: `page` points to the mapped, aligned `kvm_run` of `fd`.
    IMMEDIATE_EXIT.set(unsafe { &raw mut (*page.as_ptr()).immediate_exit });
    Ok(KvmVcpu { fd, page, _machine: Arc::clone(machine) })
}

impl Drop for KvmVcpu {
    fn drop(&mut self) {
        IMMEDIATE_EXIT.set(ptr::null_mut());
    }
}

/// `page` belongs to the vCPU of this thread.
fn clear_immediate_exit(page: NonNull<kvm_run>) {
    // SAFETY: the page is mapped as long as the vCPU's descriptor is open; it is in bounds.
    let flag = unsafe { &raw mut (*page.as_ptr()).immediate_exit };
    // SAFETY: as above; the only other writer is the handler, on this same thread.
    unsafe { flag.write_volatile(0) };
}

impl Vcpu for KvmVcpu {
    fn set_up(&mut self, setup: &VcpuSetup) -> Result<()> {
        #[cfg(target_arch = "x86_64")]
        super::x86_64::set_up(&self.fd, setup)
    }

    fn set_entry(&mut self, registers: &Registers) -> Result<()> {
        #[cfg(target_arch = "x86_64")]
        super::x86_64::set_registers(&self.fd, registers)
    }

    fn kicker(&self) -> Arc<dyn Kick> {
        // SAFETY: no preconditions.
        let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
        Arc::new(Kicker { process, thread })
    }

    fn run(&mut self) -> Result<Exit<'_>> {
        let page = self.page;
        match self.fd.run() {
            Ok(VcpuExit::MmioRead(address, data)) => Ok(Exit::MmioRead { address, data }),
            Ok(VcpuExit::MmioWrite(address, data)) => Ok(Exit::MmioWrite { address, data }),
            Ok(VcpuExit::IoIn(port, data)) => Ok(Exit::IoIn { port, data }),
            Ok(VcpuExit::IoOut(port, data)) => Ok(Exit::IoOut { port, data }),
            Ok(VcpuExit::Hlt) => Ok(Exit::Halt),
            Ok(VcpuExit::Shutdown) => Ok(Exit::Shutdown),
            Ok(VcpuExit::Intr) => Ok(Exit::Interrupted),
            Ok(VcpuExit::InternalError) => {
                // SAFETY: the exit reason says that this member of the union was written; it is plain data.
                let suberror = unsafe { (*page.as_ptr()).__bindgen_anon_1.internal.suberror };
                Ok(Exit::Failed(describe_internal_error(suberror)))
            }
            Ok(VcpuExit::FailEntry(reason, cpu)) => Ok(Exit::Failed(format!(
                "the processor refused to enter the guest (reason {reason:#x}, CPU {cpu})"
            ))),
            Ok(other) => Ok(Exit::Failed(format!("unexpected exit {other:?}"))),
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {
                clear_immediate_exit(page);
                Ok(Exit::Interrupted)
            }
            Err(error) => Err(Error::new("run a vCPU", error)),
        }
    }
}

fn describe_internal_error(suberror: u32) -> String {
    let what = match suberror {
        KVM_INTERNAL_ERROR_EMULATION => "emulation failure",
        KVM_INTERNAL_ERROR_SIMUL_EX => "simultaneous exceptions",
        KVM_INTERNAL_ERROR_DELIVERY_EV => "exit while delivering an event",
        KVM_INTERNAL_ERROR_UNEXPECTED_EXIT_REASON => "unexpected exit reason",
        _ => "unknown error",
    };
    format!("KVM internal error {suberror}: {what}")
}

/// The thread of a vCPU.
struct Kicker {
    process: libc::pid_t,
    thread: libc::pid_t,
}

impl Kick for Kicker {
    fn kick(&self) {
        // SAFETY: no memory is passed. If the thread has ended, the call fails, or another thread of this process
        // has its number and the handler finds no vCPU there, or a vCPU that runs its loop once more.
        let result =
            unsafe { libc::syscall(libc::SYS_tgkill, self.process, self.thread, SIGRTMIN()) };
        if result != 0 {
            log::debug!(
                "a vCPU's thread was gone when it was kicked: {}",
                io::Error::last_os_error()
            );
        }
    }
}
