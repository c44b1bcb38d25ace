//! The connection on which the guest tells its VMM what becomes of it.

use crate::vsock;
use proto::agent::{LIFECYCLE_PORT, Lifecycle, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::io;

/// How long the VMM may take to acknowledge the last message by closing the connection. Until it is acknowledged the
/// message may still lie in a queue that a reboot would throw away.
const LAST_WORDS: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// The connection; none where the host listens elsewhere.
#[derive(Debug, Default)]
pub struct LifecycleConnection(Option<OwnedFd>);

impl LifecycleConnection {
    /// Connects to the VMM.
    ///
    /// # Errors
    /// If nobody listens there.
    pub fn open() -> io::Result<Self> {
        vsock::connect_to_host(LIFECYCLE_PORT).map(|connection| Self(Some(connection)))
    }

    /// Tells the VMM an event.
    ///
    /// # Errors
    /// If it no longer listens.
    pub fn tell(&self, event: Lifecycle) -> io::Result<()> {
        let Some(connection) = &self.0 else { return Ok(()) };
        let bytes = Message::Lifecycle(event).encode().map_err(io::Error::other)?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let sent = rustix::net::send(connection, rest, SendFlags::NOSIGNAL)?;
            rest = rest.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    /// Tells the VMM the last event, and waits until it has heard.
    ///
    /// # Errors
    /// If it no longer listens.
    pub fn tell_last(self, event: Lifecycle) -> io::Result<()> {
        self.tell(event)?;
        let Some(connection) = self.0 else { return Ok(()) };
        rustix::net::shutdown(&connection, Shutdown::Write)?;
        let mut end = [PollFd::new(&connection, PollFlags::IN)];
        poll(&mut end, Some(&LAST_WORDS))?;
        let mut byte = [0];
        rustix::net::recv(&connection, &mut byte, RecvFlags::DONTWAIT)?;
        Ok(())
    }
}
