//! What other threads tell the main thread, which alone changes the machine's state.

use super::run::Outcome;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// A message to the main thread.
#[derive(Debug)]
pub enum Notice {
    /// A processor's thread has ended.
    ProcessorEnded {
        /// Which.
        id: u8,
        /// How.
        outcome: Outcome,
    },
    /// The guest has connected to the lifecycle port.
    GuestCalls(UnixStream),
}

/// The end that other threads hold.
#[derive(Debug, Clone)]
pub struct Notifier {
    sender: Sender<Notice>,
    wake: Arc<EventFd>,
}

/// The end that the main thread holds: readable when there is a notice.
#[derive(Debug)]
pub struct Notices {
    receiver: Receiver<Notice>,
    wake: Arc<EventFd>,
}

/// Makes both ends.
///
/// # Errors
/// The kernel's error.
pub fn channel() -> io::Result<(Notifier, Notices)> {
    let wake = Arc::new(EventFd::new(EFD_NONBLOCK)?);
    let (sender, receiver) = mpsc::channel();
    Ok((Notifier { sender, wake: Arc::clone(&wake) }, Notices { receiver, wake }))
}

impl Notifier {
    /// Sends a notice; lost if the main thread has stopped listening, because then the process ends.
    pub fn send(&self, notice: Notice) {
        if self.sender.send(notice).is_ok()
            && let Err(error) = self.wake.write(1)
            && error.kind() != io::ErrorKind::WouldBlock
        {
            log::error!("cannot wake the main thread: {error}");
        }
    }
}

impl Notices {
    /// Takes all notices that have come.
    pub fn take(&self) -> Vec<Notice> {
        // Nothing to read means a notice whose wake-up was consumed by an earlier call.
        if let Err(error) = self.wake.read()
            && error.kind() != io::ErrorKind::WouldBlock
        {
            log::error!("cannot read the main thread's wake-up: {error}");
        }
        self.receiver.try_iter().collect()
    }
}

impl AsFd for Notices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let raw = self.wake.as_raw_fd();
        #[expect(
            unsafe_code,
            reason = "UNSAFETY: `EventFd` does not lend its descriptor in the safe way"
        )]
        // SAFETY: the descriptor is open as long as `self.wake`, which outlives the borrow.
        unsafe {
            BorrowedFd::borrow_raw(raw)
        }
    }
}
