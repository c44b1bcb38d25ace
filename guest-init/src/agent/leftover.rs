//! Output of programs that outlive their exec.
//!
//! A server that was started in the background goes on writing to the pipe that its exec's client has long left.
//! Closing our end would end it with SIGPIPE at the next line it logs, so the output is read and thrown away.

use crate::threads;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Streams kept open at most; what is beyond is closed, so that a guest cannot use up PID 1's descriptors.
const MAX_STREAMS: usize = 1024;

/// The streams, and the thread that reads them once there are any.
#[derive(Debug, Default)]
pub struct Leftovers {
    shared: Mutex<Option<Arc<Shared>>>,
}

#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    arrived: Mutex<Vec<Arc<OwnedFd>>>,
}

impl Leftovers {
    /// Takes over streams, which must not block.
    pub fn adopt(&self, streams: impl IntoIterator<Item = Arc<OwnedFd>>) {
        let streams: Vec<_> = streams.into_iter().collect();
        if streams.is_empty() {
            return;
        }
        // Without a thread the streams are closed: worse for their writers, but all that can be done.
        if let Ok(shared) = self.shared() {
            shared.arrived.lock().unwrap_or_else(PoisonError::into_inner).extend(streams);
            let _ = rustix::io::write(&shared.wake, &1_u64.to_ne_bytes());
        }
    }

    fn shared(&self) -> io::Result<Arc<Shared>> {
        let mut slot = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = slot.as_ref() {
            return Ok(Arc::clone(shared));
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { wake, arrived: Mutex::default() });
        let reader = Arc::clone(&shared);
        threads::spawn("leftover", move || reader.run())?;
        Ok(Arc::clone(slot.insert(shared)))
    }
}

impl Shared {
    fn run(&self) {
        let mut streams: Vec<Arc<OwnedFd>> = Vec::new();
        let mut buffer = vec![0; 16 << 10];
        loop {
            let readable = self.wait(&streams);
            let mut index = 0_usize;
            streams.retain(|stream| {
                let is_readable = readable.get(index).copied().unwrap_or_default();
                index = index.saturating_add(1);
                !is_readable || is_open_after_read(stream, &mut buffer)
            });
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            streams.append(&mut self.arrived.lock().unwrap_or_else(PoisonError::into_inner));
            streams.truncate(MAX_STREAMS);
        }
    }

    /// Waits until streams can be read or new ones have arrived; tells which of them can.
    fn wait(&self, streams: &[Arc<OwnedFd>]) -> Vec<bool> {
        let mut fds: Vec<PollFd<'_>> = streams
            .iter()
            .map(|stream| PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN))
            .collect();
        fds.push(PollFd::new(&self.wake, PollFlags::IN));
        match poll(&mut fds, None) {
            Ok(_) => fds.iter().map(|fd| !fd.revents().is_empty()).collect(),
            Err(_) => Vec::new(),
        }
    }
}

fn is_open_after_read(stream: &OwnedFd, buffer: &mut [u8]) -> bool {
    match rustix::io::read(stream, buffer) {
        Ok(length) => length > 0,
        Err(errno) => matches!(errno, rustix::io::Errno::AGAIN | rustix::io::Errno::INTR),
    }
}
