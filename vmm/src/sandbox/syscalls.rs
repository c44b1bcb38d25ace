//! Which system calls each kind of thread may make, and why. Any other kills the process with SIGSYS, which its parent
//! sees as the reason of its end.

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A kind of thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The main thread: control socket, signals, state.
    Main,
    /// A processor.
    Vcpu,
    /// Devices.
    Io,
}

/// A list that cannot be compiled or installed.
#[derive(Debug, thiserror::Error)]
#[error("{role:?} thread")]
pub struct SyscallFilterError {
    role: Role,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// What the arguments must be.
#[derive(Debug, Clone, Copy)]
enum When {
    /// Anything.
    Always,
    /// This argument, as 32 bits, is this.
    Is(u8, u32),
    /// This argument has none of these bits.
    HasNot(u8, u32),
    /// The first argument is this process: a thread may only signal its own.
    OwnProcess,
}

/// A system call that is allowed.
struct Allowed {
    number: c_long,
    when: When,
    /// Read by people.
    #[expect(dead_code, reason = "the reason is part of the table")]
    why: &'static str,
}

const fn allow(number: c_long, why: &'static str) -> Allowed {
    Allowed { number, when: When::Always, why }
}

const fn allow_when(number: c_long, when: When, why: &'static str) -> Allowed {
    Allowed { number, when, why }
}

const PROT_EXEC: u32 = libc::PROT_EXEC.cast_unsigned();

/// `KVM_RUN`: `_IO(0xae, 0x80)`.
const KVM_RUN: u32 = 0xae80;
const FIONBIO: u32 = 0x5421;

/// What any thread does.
const COMMON: &[Allowed] = &[
    allow(libc::SYS_read, "event counters, sockets"),
    allow(libc::SYS_write, "event counters, sockets, the log on standard error"),
    allow(libc::SYS_close, "descriptors are dropped"),
    allow(libc::SYS_futex, "locks, channels, the end of threads"),
    allow(libc::SYS_brk, "the allocator"),
    allow_when(
        libc::SYS_mmap,
        When::HasNot(2, PROT_EXEC),
        "the allocator; never executable memory",
    ),
    allow_when(
        libc::SYS_mprotect,
        When::HasNot(2, PROT_EXEC),
        "the allocator's arenas; never executable memory",
    ),
    allow(libc::SYS_mremap, "the allocator grows large blocks"),
    allow(libc::SYS_munmap, "the allocator, a vCPU's shared page, a thread's signal stack"),
    allow(libc::SYS_madvise, "the allocator, the stack of a thread that has ended"),
    allow(libc::SYS_sigaltstack, "a thread that ends gives up its signal stack"),
    allow(libc::SYS_rt_sigprocmask, "a thread that ends or aborts blocks signals"),
    allow(libc::SYS_rt_sigreturn, "the kick signal's handler returns"),
    allow(libc::SYS_restart_syscall, "a wait that a stopped process resumes"),
    allow(libc::SYS_sched_yield, "locks and channels under contention"),
    allow(libc::SYS_clock_gettime, "deadlines, where the vDSO has no clock"),
    allow(libc::SYS_getrandom, "hash keys, virtio-rng"),
    allow(libc::SYS_getpid, "abort"),
    allow(libc::SYS_gettid, "abort"),
    allow_when(libc::SYS_tgkill, When::OwnProcess, "kicks of vCPUs; abort"),
    allow(libc::SYS_exit, "the end of a thread"),
    allow(libc::SYS_exit_group, "the end of the process"),
    allow(libc::SYS_epoll_ctl, "devices start and stop watching queues and sockets"),
    allow(libc::SYS_eventfd2, "devices start"),
    allow(libc::SYS_fcntl, "duplicates of doorbells, non-blocking sockets"),
];

/// What processors do besides.
const VCPU: &[Allowed] = &[
    allow_when(libc::SYS_ioctl, When::Is(1, KVM_RUN), "the guest runs; no other request to KVM"),
    allow(libc::SYS_pwrite64, "the serial port writes to the console log"),
    allow(libc::SYS_pread64, "the console log is moved when it is full"),
    allow(libc::SYS_ftruncate, "the console log is moved when it is full"),
    allow(libc::SYS_shutdown, "a reset of vsock ends its connections"),
];

/// What devices do besides.
const IO: &[Allowed] = &[
    allow(libc::SYS_epoll_wait, "the event loop"),
    allow(libc::SYS_epoll_pwait, "the event loop"),
    allow(libc::SYS_pread64, "disks, console log"),
    allow(libc::SYS_preadv, "disks"),
    allow(libc::SYS_pwrite64, "disks, console log"),
    allow(libc::SYS_pwritev, "disks"),
    allow(libc::SYS_fdatasync, "a disk's flush"),
    allow(libc::SYS_fallocate, "a disk's discard and write-zeroes"),
    allow(libc::SYS_ftruncate, "the console log is moved when it is full"),
    allow(libc::SYS_accept4, "the agent socket"),
    allow(libc::SYS_recvfrom, "vsock"),
    allow(libc::SYS_sendto, "vsock"),
    allow(libc::SYS_shutdown, "vsock's half-close"),
    allow(libc::SYS_timerfd_settime, "vsock's handshake limit"),
    allow_when(libc::SYS_ioctl, When::Is(1, FIONBIO), "non-blocking sockets"),
    allow_when(
        libc::SYS_socketpair,
        When::Is(0, AF_UNIX),
        "the guest's connection to the main thread",
    ),
];

const AF_UNIX: u32 = libc::AF_UNIX.cast_unsigned();

/// What the main thread does besides.
const MAIN: &[Allowed] = &[
    allow(libc::SYS_poll, "waits for events"),
    allow(libc::SYS_ppoll, "waits for events"),
    allow(libc::SYS_accept4, "the control socket"),
    allow(libc::SYS_recvfrom, "control, lifecycle"),
    allow(libc::SYS_sendto, "control, lifecycle, the launch channel's reply"),
    allow(libc::SYS_shutdown, "the end of vsock's connections"),
    allow_when(libc::SYS_ioctl, When::Is(1, FIONBIO), "non-blocking sockets"),
    allow_when(libc::SYS_socketpair, When::Is(0, AF_UNIX), "a connection to the guest's agent"),
    allow(libc::SYS_pread64, "the console's last lines"),
    allow(libc::SYS_alarm, "the end of the process must not hang"),
    allow(libc::SYS_timerfd_settime, "a connection to the guest's agent has a limit"),
];

/// A compiled list.
#[derive(Debug, Clone)]
pub struct Filter {
    role: Role,
    program: Arc<BpfProgram>,
}

impl Filter {
    /// Installs the list on the calling thread, for good.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn install(&self) -> Result<(), SyscallFilterError> {
        let role = self.role;
        seccompiler::apply_filter(&self.program)
            .map_err(|source| SyscallFilterError { role, source: source.into() })
    }
}

/// The lists of all roles.
#[derive(Debug)]
pub struct Filters {
    main: Filter,
    vcpu: Filter,
    io: Filter,
}

impl Filters {
    /// Compiles all lists.
    ///
    /// # Errors
    /// If a list makes no sense to the compiler.
    pub fn compile() -> Result<Self, SyscallFilterError> {
        Ok(Self { main: compile(Role::Main)?, vcpu: compile(Role::Vcpu)?, io: compile(Role::Io)? })
    }

    /// The list of a role.
    #[must_use]
    pub fn of(&self, role: Role) -> Filter {
        match role {
            Role::Main => self.main.clone(),
            Role::Vcpu => self.vcpu.clone(),
            Role::Io => self.io.clone(),
        }
    }
}

fn compile(role: Role) -> Result<Filter, SyscallFilterError> {
    let own = match role {
        Role::Main => MAIN,
        Role::Vcpu => VCPU,
        Role::Io => IO,
    };
    let fail =
        |source: seccompiler::BackendError| SyscallFilterError { role, source: source.into() };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for allowed in COMMON.iter().chain(own) {
        let conditions = rules.entry(allowed.number).or_default();
        conditions.extend(rule(allowed.when).map_err(fail)?);
    }
    let arch = std::env::consts::ARCH.try_into().map_err(fail)?;
    let filter = SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch)
        .map_err(fail)?;
    let program = Arc::new(filter.try_into().map_err(fail)?);
    Ok(Filter { role, program })
}

/// No rule at all means that the call is always allowed.
fn rule(when: When) -> Result<Option<SeccompRule>, seccompiler::BackendError> {
    let (index, operator, value) = match when {
        When::Always => return Ok(None),
        When::Is(index, value) => (index, SeccompCmpOp::Eq, value),
        When::HasNot(index, bits) => (index, SeccompCmpOp::MaskedEq(bits.into()), 0),
        When::OwnProcess => (0, SeccompCmpOp::Eq, std::process::id()),
    };
    let condition = SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value.into())?;
    Ok(Some(SeccompRule::new(vec![condition])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_compile_and_name_no_call_twice() {
        Filters::compile().unwrap();
        for own in [MAIN, VCPU, IO] {
            let mut numbers: Vec<c_long> =
                COMMON.iter().chain(own).map(|allowed| allowed.number).collect();
            let count = numbers.len();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), count, "a call stands in a list twice");
        }
    }

    #[test]
    fn no_list_lets_a_thread_open_files_start_programs_or_touch_other_processes() {
        for forbidden in [
            libc::SYS_open,
            libc::SYS_openat,
            libc::SYS_execve,
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_fork,
            libc::SYS_ptrace,
            libc::SYS_kill,
            libc::SYS_connect,
            libc::SYS_socket,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_unlink,
            libc::SYS_mount,
            libc::SYS_bpf,
            libc::SYS_io_uring_setup,
        ] {
            assert!(
                [COMMON, MAIN, VCPU, IO]
                    .iter()
                    .all(|list| list.iter().all(|allowed| allowed.number != forbidden))
            );
        }
    }
}
