//! Fork and exec: the child's side reports on a pipe at which step, and why, it failed.

#![expect(
    unsafe_code,
    reason = "UNSAFETY: between fork and exec only system calls are allowed, and what they need was made before"
)]

use super::command::Command;
use crate::reap::{Child, Children};
use proto::code::Code;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::pipe::{PipeFlags, pipe_with};
use std::ffi::{CStr, CString, c_char};
use std::io;
use std::ptr;

/// Why a program does not run.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// There is no such program.
    #[error("{program}: not found in the guest")]
    NotFound {
        /// Its name.
        program: String,
    },
    /// There is, but it cannot be run.
    #[error("{program}: cannot be run in the guest")]
    NotRunnable {
        /// Its name.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The working directory cannot be entered.
    #[error("cannot enter the working directory {path}")]
    Workdir {
        /// The directory.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A limit cannot be set.
    #[error("cannot set the resource limits")]
    Limits(#[source] io::Error),
    /// The user or groups cannot be assumed.
    #[error("cannot become the user")]
    Identity(#[source] io::Error),
    /// Session, terminal or standard streams cannot be set up.
    #[error("cannot prepare the process")]
    Prepare(#[source] io::Error),
    /// There is no process, descriptor or memory left.
    #[error("cannot make a process in the guest")]
    Fork(#[from] io::Error),
}

impl SpawnError {
    /// Its code word.
    pub fn code(&self) -> Code {
        match self {
            Self::NotFound { .. } => Code::CommandNotFound,
            Self::NotRunnable { .. } => Code::CommandNotRunnable,
            Self::Workdir { .. } => Code::WorkdirInvalid,
            Self::Limits(_) => Code::InvalidValue,
            Self::Identity(_) | Self::Prepare(_) | Self::Fork(_) => Code::Io,
        }
    }
}

/// Where the child failed; the number travels through the pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Step {
    Prepare = 1,
    Limits = 2,
    Identity = 3,
    Workdir = 4,
    Exec = 5,
}

type ChildError = (Step, i32);

/// Everything the child touches, as the kernel takes it. Built before the fork.
struct Prepared<'a> {
    command: &'a Command,
    argv: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    streams: [i32; 3],
    is_terminal: bool,
    changes_identity: bool,
    report: i32,
}

/// Runs a command as the leader of a session of its own, with these standard streams. With `is_terminal` they are a
/// terminal, which becomes the session's.
///
/// # Errors
/// [`SpawnError`] if the program did not get as far as to run.
pub fn spawn(
    children: &Children,
    command: &Command,
    streams: [BorrowedFd<'_>; 3],
    is_terminal: bool,
) -> Result<Child, SpawnError> {
    let (report, child_end) = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
    let prepared = Prepared {
        command,
        argv: pointers(&command.argv),
        environment: pointers(&command.environment),
        streams: streams.map(|stream| stream.as_raw_fd()),
        is_terminal,
        changes_identity: changes_identity(command),
        report: child_end.as_raw_fd(),
    };
    let child = children.start(|| fork(&prepared))?;
    drop(child_end);
    match read_report(&report) {
        None => Ok(child),
        Some(error) => Err(explain(error, command)),
    }
}

/// An agent without privileges (in tests) can run programs as who it is, but not even set the groups it has.
fn changes_identity(command: &Command) -> bool {
    let uid = rustix::process::geteuid();
    let is_same = uid.as_raw() == command.identity.uid
        && rustix::process::getegid().as_raw() == command.identity.gid;
    uid.is_root() || !is_same
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

fn fork(prepared: &Prepared<'_>) -> Result<i32, SpawnError> {
    // SAFETY: other threads exist, so the child may only make system calls; `run_child` does nothing else, and never
    // returns.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error().into()),
        0 => run_child(prepared),
        pid => Ok(pid),
    }
}

/// Waits until the pipe closes, which a successful exec does, or says why not.
fn read_report(report: &OwnedFd) -> Option<(u32, i32)> {
    let mut bytes = [0; 8];
    let length = rustix::io::retry_on_intr(|| rustix::io::read(report, &mut bytes)).ok()?;
    let [a, b, c, d, e, f, g, h] = bytes;
    (length == bytes.len())
        .then(|| (u32::from_ne_bytes([a, b, c, d]), i32::from_ne_bytes([e, f, g, h])))
}

fn explain((step, errno): (u32, i32), command: &Command) -> SpawnError {
    let source = io::Error::from_raw_os_error(errno);
    let program =
        || command.argv.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match step {
        step if step == Step::Limits as u32 => SpawnError::Limits(source),
        step if step == Step::Identity as u32 => SpawnError::Identity(source),
        step if step == Step::Workdir as u32 => {
            SpawnError::Workdir { path: command.workdir.to_string_lossy().into_owned(), source }
        }
        step if step == Step::Exec as u32 && matches!(errno, libc::ENOENT | libc::ENOTDIR) => {
            SpawnError::NotFound { program: program() }
        }
        step if step == Step::Exec as u32 => SpawnError::NotRunnable { program: program(), source },
        _ => SpawnError::Prepare(source),
    }
}

/// The child. No allocation, no lock, no panic: only system calls on what `prepared` holds.
fn run_child(prepared: &Prepared<'_>) -> ! {
    let (step, errno) = become_program(prepared);
    let [a, b, c, d] = (step as u32).to_ne_bytes();
    let [e, f, g, h] = errno.to_ne_bytes();
    let bytes = [a, b, c, d, e, f, g, h];
    // SAFETY: the buffer is valid for reads of its length.
    let _ = unsafe { libc::write(prepared.report, bytes.as_ptr().cast(), bytes.len()) };
    // SAFETY: ends the child without running the parent's exit handlers.
    unsafe { libc::_exit(127) }
}

/// Returns only if a step failed.
fn become_program(prepared: &Prepared<'_>) -> ChildError {
    let steps = [prepare, set_limits, assume_identity, enter_workdir];
    for step in steps {
        if let Err(error) = step(prepared) {
            return error;
        }
    }
    execute(prepared)
}

fn prepare(prepared: &Prepared<'_>) -> Result<(), ChildError> {
    reset_signals()?;
    // SAFETY: takes nothing. The child leads no group yet, so it may lead a session.
    check(Step::Prepare, unsafe { libc::setsid() })?;
    for (target, stream) in (0..).zip(prepared.streams) {
        // SAFETY: takes two descriptors. The streams are none of 0, 1, 2: those are always open in the parent.
        check(Step::Prepare, unsafe { libc::dup2(stream, target) })?;
    }
    if prepared.is_terminal {
        // SAFETY: the ioctl takes an integer.
        check(Step::Prepare, unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) })?;
    }
    // Every descriptor here is made to close on exec already; this holds for libraries and for the future too.
    // SAFETY: takes three integers.
    let closed =
        unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if closed == -1 && errno() != libc::ENOSYS { Err((Step::Prepare, errno())) } else { Ok(()) }
}

/// The parent blocks some signals and ignores SIGPIPE, and started by `nohup` (in tests) others; that would survive
/// exec, and a shell cannot trap what it finds ignored.
fn reset_signals() -> Result<(), ChildError> {
    for signal in 1..=libc::SIGSYS {
        // SAFETY: sets a disposition to a constant. SIGKILL and SIGSTOP are refused, and are as they must be.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let mut none = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `none` is valid for writes.
    check(Step::Prepare, unsafe { libc::sigemptyset(none.as_mut_ptr()) })?;
    // SAFETY: `none` is initialised, and the old mask is not asked for.
    check(Step::Prepare, unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut())
    })
}

fn set_limits(prepared: &Prepared<'_>) -> Result<(), ChildError> {
    for (resource, soft, hard) in &prepared.command.rlimits {
        let limit = libc::rlimit64 { rlim_cur: *soft, rlim_max: *hard };
        // SAFETY: `limit` is valid for reads, the old limit is not asked for.
        let result = unsafe { libc::prlimit64(0, *resource, &raw const limit, ptr::null_mut()) };
        check(Step::Limits, result)?;
    }
    Ok(())
}

/// By raw system calls: the C library's functions would first make all other threads of the process agree, and wait
/// for threads that this child does not have.
fn assume_identity(prepared: &Prepared<'_>) -> Result<(), ChildError> {
    if !prepared.changes_identity {
        return Ok(());
    }
    let identity = &prepared.command.identity;
    let groups = identity.groups.as_slice();
    // SAFETY: pointer and length describe the vector.
    check_long(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    // SAFETY: takes three ids.
    check_long(unsafe {
        libc::syscall(libc::SYS_setresgid, identity.gid, identity.gid, identity.gid)
    })?;
    // SAFETY: takes three ids.
    check_long(unsafe {
        libc::syscall(libc::SYS_setresuid, identity.uid, identity.uid, identity.uid)
    })
}

/// As the user, whose permissions decide.
fn enter_workdir(prepared: &Prepared<'_>) -> Result<(), ChildError> {
    // SAFETY: the path ends with a zero byte and lives in the prepared command.
    check(Step::Workdir, unsafe { libc::chdir(prepared.command.workdir.as_ptr()) })
}

/// As `execvp(3)`, but a file that is no program is not given to a shell: the caller is told.
fn execute(prepared: &Prepared<'_>) -> ChildError {
    let mut worst = libc::ENOENT;
    for candidate in &prepared.command.candidates {
        match execute_one(candidate, prepared) {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => worst = libc::EACCES,
            errno => return (Step::Exec, errno),
        }
    }
    (Step::Exec, worst)
}

fn execute_one(candidate: &CStr, prepared: &Prepared<'_>) -> i32 {
    // SAFETY: all three are texts that end with a zero byte, and arrays of such that end with a null pointer; they
    // live in `prepared`.
    unsafe {
        libc::execve(candidate.as_ptr(), prepared.argv.as_ptr(), prepared.environment.as_ptr())
    };
    errno()
}

fn check(step: Step, result: i32) -> Result<(), ChildError> {
    if result == -1 { Err((step, errno())) } else { Ok(()) }
}

fn check_long(result: libc::c_long) -> Result<(), ChildError> {
    if result == -1 { Err((Step::Identity, errno())) } else { Ok(()) }
}

fn errno() -> i32 {
    // SAFETY: the location is this thread's own and valid as long as the thread.
    unsafe { *libc::__errno_location() }
}
