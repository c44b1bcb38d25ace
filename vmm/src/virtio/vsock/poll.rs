//! What the device waits for: one epoll set of its own, which is what the I/O thread watches.
//!
//! A set inside the thread's set, rather than each socket in the thread's own: then whatever became ready at the same
//! time is handled in one turn, with one interrupt at its end, and the whole device leaves the thread by removing one
//! descriptor.
//!
//! Everything is edge-triggered. An event only says that something changed; the owner remembers readiness until an
//! operation answers `WouldBlock`. So no descriptor is ever modified, and none that is ignored for now (a listener
//! before the guest is up, a socket whose peer has no credit) keeps the thread awake. Doorbells and timers need not be read.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A queue's doorbell.
    Doorbell,
    /// The agent socket.
    Listener,
    /// The program has work for the device.
    Wake,
    /// The timer of [`Handshakes`](super::handshakes::Handshakes).
    Timer,
    /// The socket of the link with this number.
    Link(u64),
}

/// Numbers below are not links.
const FIRST_LINK: u64 = 4;

impl Source {
    fn token(self) -> u64 {
        match self {
            Self::Doorbell => 0,
            Self::Listener => 1,
            Self::Wake => 2,
            Self::Timer => 3,
            Self::Link(id) => id.saturating_add(FIRST_LINK),
        }
    }

    fn from_token(token: u64) -> Self {
        match token {
            0 => Self::Doorbell,
            1 => Self::Listener,
            2 => Self::Wake,
            3 => Self::Timer,
            link => Self::Link(link.saturating_sub(FIRST_LINK)),
        }
    }
}

/// Something changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) source: Source,
    /// There may be something to read, the end included.
    pub(super) readable: bool,
    /// There may be room to write.
    pub(super) writable: bool,
    /// The peer is gone: closed in both directions, or failed.
    pub(super) gone: bool,
}

/// The epoll set, with its wake-up.
pub(super) struct Poll {
    epoll: Epoll,
    wake: EventFd,
}

impl Poll {
    /// An empty set.
    ///
    /// # Errors
    /// When descriptors run out.
    pub(super) fn new() -> io::Result<Self> {
        let poll = Self { epoll: Epoll::new()?, wake: EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)? };
        poll.add(&poll.wake, Source::Wake)?;
        Ok(poll)
    }

    /// Watches a descriptor. If it is ready already, there is an event at once.
    ///
    /// # Errors
    /// When memory or the user's limit of watches runs out.
    pub(super) fn add(&self, fd: &impl AsRawFd, source: Source) -> io::Result<()> {
        let mut interest = EventSet::IN | EventSet::EDGE_TRIGGERED;
        if matches!(source, Source::Link(_)) {
            interest |= EventSet::OUT | EventSet::READ_HANG_UP;
        }
        self.epoll.ctl(
            ControlOperation::Add,
            fd.as_raw_fd(),
            EpollEvent::new(interest, source.token()),
        )
    }

    /// Watches a descriptor no more. Closing it would do, were it never duplicated.
    pub(super) fn remove(&self, fd: &impl AsRawFd) {
        if let Err(error) =
            self.epoll.ctl(ControlOperation::Delete, fd.as_raw_fd(), EpollEvent::default())
        {
            log::warn!("vsock: stop watching a descriptor: {error}");
        }
    }

    /// Appends what changed, without waiting. A bounded number; more are kept for the next call.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn changes(&self, events: &mut Vec<Event>) -> io::Result<()> {
        const BATCH: usize = 64;
        const GONE: EventSet = EventSet::HANG_UP.union(EventSet::ERROR);
        const READABLE: EventSet = EventSet::IN.union(EventSet::READ_HANG_UP).union(GONE);
        let mut raw = [EpollEvent::default(); BATCH];
        let count = match self.epoll.wait(0, &mut raw) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            count => count?,
        };
        events.extend(raw.iter().take(count).map(|event| {
            let set = event.event_set();
            Event {
                source: Source::from_token(event.data()),
                readable: set.intersects(READABLE),
                writable: set.intersects(EventSet::OUT),
                gone: set.intersects(GONE),
            }
        }));
        Ok(())
    }

    /// Makes a [`Source::Wake`] event.
    pub(super) fn wake(&self) {
        // Refused only when the counter is full, and then it was rung already.
        if let Err(error) = self.wake.write(1) {
            log::debug!("vsock: wake up: {error}");
        }
    }
}

impl AsRawFd for Poll {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}
