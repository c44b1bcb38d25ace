//! System calls that rustix and nix do not offer in the form PID 1 needs them.

#![expect(
    unsafe_code,
    reason = "UNSAFETY: raw system calls; every block is one call with arguments made here"
)]

use rustix::fd::{AsFd, AsRawFd};
use std::io;
use std::mem::MaybeUninit;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It exited with this code.
    Exited(i32),
    /// This signal ended it.
    Killed(i32),
}

/// Waits until some child has ended and returns its process id without reaping it.
///
/// rustix does not tell the process id, and nix fails for children that a real-time signal ended.
///
/// # Errors
/// `ECHILD` if there is no child at all.
pub fn peek_ended_child() -> io::Result<i32> {
    waitid(libc::P_ALL, 0, libc::WEXITED | libc::WNOWAIT).map(|(pid, _)| pid)
}

/// Reaps the child `pid` if it has ended.
///
/// # Errors
/// `ECHILD` if there is no such child.
pub fn reap(pid: i32) -> io::Result<Option<Ended>> {
    let id = libc::id_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ECHILD))?;
    let (found, ended) = waitid(libc::P_PID, id, libc::WEXITED | libc::WNOHANG)?;
    Ok((found == pid).then_some(ended))
}

fn waitid(kind: libc::idtype_t, id: libc::id_t, options: i32) -> io::Result<(i32, Ended)> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    loop {
        // SAFETY: `info` is valid for writes of a `siginfo_t` for the duration of the call.
        let result = unsafe { libc::waitid(kind, id, info.as_mut_ptr(), options) };
        if result == 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: all-zero bytes are a valid `siginfo_t`, and the kernel only wrote valid fields over them.
    let info = unsafe { info.assume_init() };
    // SAFETY: after a successful `waitid` the union holds the fields of SIGCHLD, or zeros if nothing was found.
    let pid = unsafe { info.si_pid() };
    // SAFETY: as for `si_pid`.
    let status = unsafe { info.si_status() };
    let ended = if info.si_code == libc::CLD_EXITED {
        Ended::Exited(status)
    } else {
        Ended::Killed(status)
    };
    Ok((pid, ended))
}

/// Sends a signal: to a process (`target > 0`), to a process group (`target < -1`) or to everything else (`-1`).
///
/// rustix has neither -1 nor real-time signals.
///
/// # Errors
/// As `kill(2)`.
pub fn kill(target: i32, signal: i32) -> io::Result<()> {
    // SAFETY: `kill` takes two integers and touches no memory of ours.
    let result = unsafe { libc::kill(target, signal) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The ioctl of the kernel's `fs/ext4/ext4.h`: `_IOW('f', 16, __u64)`.
const EXT4_IOC_RESIZE_FS: libc::Ioctl = libc::_IOW::<u64>(b'f' as u32, 16);

/// Grows a mounted ext4 file system to this many blocks.
///
/// # Errors
/// As the ioctl: no such ioctl on another file system, no space for descriptors, I/O.
pub fn ext4_resize(directory: impl AsFd, blocks: u64) -> io::Result<()> {
    let fd = directory.as_fd().as_raw_fd();
    // SAFETY: the ioctl reads one `u64` through the pointer, which lives for the duration of the call.
    let result = unsafe { libc::ioctl(fd, EXT4_IOC_RESIZE_FS, &raw const blocks) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Keeps the allocator to one arena: with one per thread, every connection would leave memory behind.
pub fn use_one_arena() {
    // SAFETY: `mallopt` takes two integers; called before other threads exist.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resize_request_has_the_number_of_the_kernel_header() {
        assert_eq!(EXT4_IOC_RESIZE_FS, 0x4008_6610);
    }

    #[test]
    fn signals_to_nobody_are_errors() {
        let error = kill(i32::MAX, libc::SIGTERM).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
