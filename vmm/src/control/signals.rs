//! Signals as a descriptor: SIGTERM is a request to stop; SIGINT and SIGHUP, which a terminal sends to whole process
//! groups, are taken and forgotten.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// The signals of this process.
pub struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Takes the signals. To be called before any thread is started: threads inherit that they are blocked.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn take() -> io::Result<Self> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
        }
        set.thread_block()?;
        Ok(Self { fd: SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)? })
    }

    /// Whether SIGTERM has arrived since the last call.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn terminated(&self) -> io::Result<bool> {
        let mut terminated = false;
        while let Some(signal) = self.fd.read_signal()? {
            terminated |= i32::try_from(signal.ssi_signo) == Ok(libc::SIGTERM);
        }
        Ok(terminated)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
