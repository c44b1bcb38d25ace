//! A program's output on its way to the client.

use super::channel::Channel;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;

/// More than a terminal holds on its way from the program to us. Unlike a pipe's, its content cannot be counted.
const TERMINAL_HOLDS_BYTES: u64 = 1 << 20;

/// One stream of output.
#[derive(Debug)]
pub struct Output {
    /// `None` at its end.
    source: Option<Arc<OwnedFd>>,
    kind: u8,
    is_terminal: bool,
    /// After the program has ended: what it may have written itself and we have not read yet. Others may hold the
    /// other end and write on for ever.
    owed: Option<u64>,
}

impl Output {
    /// Output that becomes frames of this kind.
    pub fn new(source: Arc<OwnedFd>, kind: u8, is_terminal: bool) -> Self {
        Self { source: Some(source), kind, is_terminal, owed: None }
    }

    /// The descriptor, if there may be more to read for the client.
    pub fn open(&self) -> Option<BorrowedFd<'_>> {
        self.source.as_ref().filter(|_| self.owed != Some(0)).map(|source| source.as_fd())
    }

    /// Whether nothing that the ended program wrote is left to read.
    pub fn is_drained(&self) -> bool {
        self.source.is_none() || self.owed == Some(0)
    }

    /// Notes that the program has ended: what it wrote lies in the pipe now.
    pub fn program_ended(&mut self) {
        let Some(source) = &self.source else { return };
        let held = if self.is_terminal {
            Ok(TERMINAL_HOLDS_BYTES)
        } else {
            rustix::io::ioctl_fionread(source)
        };
        self.owed = Some(held.unwrap_or_default());
    }

    /// Reads what is there and the channel has room for. Without a client it is thrown away.
    pub fn pump(&mut self, channel: &mut Channel, client_listens: bool) {
        while let Some(source) = self.source.clone().filter(|_| self.owed != Some(0)) {
            if client_listens && !channel.has_room() {
                return;
            }
            let limit = self.owed.and_then(|owed| usize::try_from(owed).ok()).unwrap_or(usize::MAX);
            match channel.queue_output(source.as_fd(), client_listens.then_some(self.kind), limit) {
                Ok(0) => self.source = None,
                Ok(length) => {
                    self.owed = self
                        .owed
                        .map(|owed| owed.saturating_sub(u64::try_from(length).unwrap_or(owed)))
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.owed = self.owed.map(|_| 0);
                    return;
                }
                // A terminal that nobody has open any more answers EIO.
                Err(_) => self.source = None,
            }
            // Without an end in sight, other work comes in between.
            if self.owed.is_none() {
                return;
            }
        }
    }

    /// Gives up the descriptor, if others may still write to it.
    pub fn into_source(self) -> Option<Arc<OwnedFd>> {
        self.source
    }
}
