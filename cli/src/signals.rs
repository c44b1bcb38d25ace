//! Signals, delivered to a descriptor that can be waited for together with others.

use crate::error::{CliError, Result};
use signal_hook::consts::signal::{
    SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Signals that end a command. While a value with them exists they do not end this process.
const ENDING: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// Signals that mean something to a command in a guest, or to its terminal.
const FORWARDED: [i32; 8] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT];

/// Signals that are caught for as long as this exists.
pub struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
}

impl Signals {
    /// Catches what ends a command, so that it can undo what it has begun.
    pub fn ending() -> Result<Self> {
        Self::catch(&ENDING)
    }

    /// Catches what a command in a guest is to get.
    pub fn forwarded() -> Result<Self> {
        Self::catch(&FORWARDED)
    }

    fn catch(signals: &[i32]) -> Result<Self> {
        let catch = || {
            let (read, write) = UnixStream::pair()?;
            SignalDelivery::with_pipe(read, write, SignalOnly, signals)
        };
        Ok(Self { delivery: catch().map_err(CliError::io("catch signals"))? })
    }

    /// Becomes readable when a signal has arrived.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }

    /// Takes the signals that have arrived; never waits.
    pub fn take(&mut self) -> Vec<u8> {
        self.delivery.pending().filter_map(|signal| u8::try_from(signal).ok()).collect()
    }

    /// Replaces the error of something that was interrupted by which signal did it.
    pub fn explain(&mut self, error: boxes::Error) -> CliError {
        match (error, self.take().first()) {
            (boxes::Error::Interrupted, Some(signal)) => CliError::Signal(*signal),
            (error, _) => error.into(),
        }
    }
}
