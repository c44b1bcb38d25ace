//! The threads on which devices work: one event loop each, serving any number of descriptors.
//!
//! A handler runs only on its loop's thread, with its mutex held. So whoever holds that mutex knows that the handler
//! is not running, and a [`Registration`] dropped under it is the last that the handler ever hears of that source.
//! Devices rest their `stop` on this.
//!
//! Lock order: a handler's mutex, then the loop's table.

use std::collections::HashMap;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub use vmm_sys_util::epoll::EventSet;

/// Enough for the deepest device; the default of 2 MiB would only be address space, but is counted by some.
const STACK_BYTES: usize = 192 << 10;

/// Events taken from the kernel at a time.
const EVENTS_PER_TURN: usize = 32;

/// Identity of the loop's own wake-up descriptor; registrations are numbered from 1.
const WAKE_ID: u64 = 0;

/// Something that handles readiness of descriptors.
pub trait EventHandler: Send {
    /// Reacts to the source that was registered with `token`.
    ///
    /// May be called without need (another handler of the same turn has already drained the source), so reads and
    /// writes must be non-blocking. `HANG_UP` and `ERROR` are reported whether asked for or not; a handler that does
    /// not drop the registration then is called again at once.
    fn ready(&mut self, token: u64, readiness: EventSet);
}

/// A handler as the loop knows it.
pub type SharedHandler = Arc<Mutex<dyn EventHandler>>;

/// Something with a descriptor that can be polled.
pub trait Source: AsRawFd + Send + Sync {}

impl<T: AsRawFd + Send + Sync> Source for T {}

struct Entry {
    source: Arc<dyn Source>,
    handler: SharedHandler,
    token: u64,
    /// Changed under the handler's mutex by a careful owner; read under it before each call.
    live: AtomicBool,
}

struct Shared {
    epoll: Epoll,
    wake: EventFd,
    stopping: AtomicBool,
    /// Live registrations. Numbers are never used twice, so an event fetched before its source was unregistered finds
    /// nothing, instead of a successor that got the same descriptor number.
    table: Mutex<Table>,
}

struct Table {
    next_id: u64,
    entries: HashMap<u64, Arc<Entry>>,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing that runs under this lock can panic half-way through a change.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to be told about one source. Dropping it unregisters.
///
/// Drop it while holding the handler's mutex, or from within the handler, and no call for this source comes after.
/// Dropped elsewhere, a call that has begun may still be under way.
#[must_use = "dropping a registration unregisters the source"]
pub struct Registration {
    id: u64,
    entry: Arc<Entry>,
    shared: Arc<Shared>,
}

impl Registration {
    /// Changes what the source is watched for. With `EDGE_TRIGGERED`, a condition that already holds is reported once
    /// more: no wake-up is lost between the check and this call.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn modify(&self, interest: EventSet) -> io::Result<()> {
        let event = EpollEvent::new(interest, self.id);
        self.shared.epoll.ctl(ControlOperation::Modify, self.entry.source.as_raw_fd(), event)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.entry.live.store(false, Ordering::SeqCst);
        let entry = self.shared.table().entries.remove(&self.id);
        if entry.is_none() {
            // The loop has ended and forgotten all its sources.
            return;
        }
        let event = EpollEvent::new(EventSet::empty(), self.id);
        if let Err(error) =
            self.shared.epoll.ctl(ControlOperation::Delete, self.entry.source.as_raw_fd(), event)
        {
            log::warn!("cannot stop watching a descriptor: {error}");
        }
    }
}

/// Access to an event loop, from any thread. Cheap to clone.
#[derive(Clone)]
pub struct IoHandle {
    shared: Arc<Shared>,
}

impl IoHandle {
    /// Watches `source` and calls `handler` with `token` whenever a condition of `interest` holds. The source is kept
    /// open until the registration is dropped.
    ///
    /// # Errors
    /// The kernel's error: a descriptor that cannot be polled or is registered already, or the limit on watches.
    pub fn register(
        &self,
        source: Arc<dyn Source>,
        interest: EventSet,
        handler: SharedHandler,
        token: u64,
    ) -> io::Result<Registration> {
        let fd = source.as_raw_fd();
        let entry = Arc::new(Entry { source, handler, token, live: AtomicBool::new(true) });
        let mut table = self.shared.table();
        if self.shared.stopping.load(Ordering::SeqCst) {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the event loop has ended"));
        }
        let id = table.next_id;
        // In the table before the kernel knows it, so that its first event finds it; the lock spans both.
        self.shared.epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(interest, id))?;
        table.next_id += 1;
        table.entries.insert(id, Arc::clone(&entry));
        drop(table);
        Ok(Registration { id, entry, shared: Arc::clone(&self.shared) })
    }

    /// Number of sources watched.
    #[must_use]
    pub fn source_count(&self) -> usize {
        self.shared.table().entries.len()
    }

    fn wake(&self) {
        // Fails only if the counter is full, and then the loop is awake.
        let _full = self.shared.wake.write(1);
    }
}

/// An event loop that somebody drives: an [`IoThread`], or a test, turn by turn.
pub struct EventLoop {
    handle: IoHandle,
}

impl EventLoop {
    /// A loop without sources.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new() -> io::Result<Self> {
        let epoll = Epoll::new()?;
        let wake = EventFd::new(EFD_NONBLOCK)?;
        epoll.ctl(
            ControlOperation::Add,
            wake.as_raw_fd(),
            EpollEvent::new(EventSet::IN, WAKE_ID),
        )?;
        let table = Mutex::new(Table { next_id: WAKE_ID + 1, entries: HashMap::new() });
        let shared = Shared { epoll, wake, stopping: AtomicBool::new(false), table };
        Ok(Self { handle: IoHandle { shared: Arc::new(shared) } })
    }

    /// Access to this loop.
    #[must_use]
    pub fn handle(&self) -> &IoHandle {
        &self.handle
    }

    /// Waits for events, for ever if `timeout` is `None`, and handles them. Returns how many there were.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn turn(&self, timeout: Option<Duration>) -> io::Result<usize> {
        let timeout_ms =
            timeout.map_or(-1, |time| i32::try_from(time.as_millis()).unwrap_or(i32::MAX));
        let mut events = [EpollEvent::default(); EVENTS_PER_TURN];
        let count = match self.handle.shared.epoll.wait(timeout_ms, &mut events) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        for event in events.iter().take(count) {
            match event.data() {
                WAKE_ID => {
                    // Level-triggered: left unread it would be reported for ever.
                    let _already_read = self.handle.shared.wake.read();
                }
                id => self.dispatch(id, event.event_set()),
            }
        }
        Ok(count)
    }

    fn dispatch(&self, id: u64, readiness: EventSet) {
        let entry = self.handle.shared.table().entries.get(&id).cloned();
        let Some(entry) = entry else { return };
        // A handler that panicked has ended its thread; in a build that unwinds, others may still ask it to stop.
        let mut handler = entry.handler.lock().unwrap_or_else(PoisonError::into_inner);
        if entry.live.load(Ordering::SeqCst) {
            handler.ready(entry.token, readiness);
        }
    }

    fn run(&self) {
        while !self.handle.shared.stopping.load(Ordering::SeqCst) {
            if let Err(error) = self.turn(None) {
                log::error!("waiting for events failed, devices stop: {error}");
                return;
            }
        }
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        let mut table = self.handle.shared.table();
        self.handle.shared.stopping.store(true, Ordering::SeqCst);
        let entries = std::mem::take(&mut table.entries);
        // Outside the lock: the last reference to a handler may drop further registrations.
        drop(table);
        drop(entries);
    }
}

/// A named thread that runs an [`EventLoop`]. Dropping it ends the thread and waits for it.
pub struct IoThread {
    handle: IoHandle,
    thread: Option<JoinHandle<()>>,
}

impl IoThread {
    /// Starts a thread, runs `on_start` on it (system call filters are per thread), and returns when that is done.
    ///
    /// # Errors
    /// The kernel's error, or that of `on_start`.
    pub fn spawn(
        name: &str,
        on_start: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let event_loop = EventLoop::new()?;
        let handle = event_loop.handle().clone();
        let (started, start) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let result = on_start();
                let failed = result.is_err();
                // The receiver waits until it has this.
                let _received = started.send(result);
                drop(started);
                if !failed {
                    event_loop.run();
                }
            })?;
        match start.recv() {
            Ok(Ok(())) => Ok(Self { handle, thread: Some(thread) }),
            Ok(Err(error)) => Err(error),
            Err(mpsc::RecvError) => Err(io::Error::other("the thread ended while it was starting")),
        }
    }

    /// Access to this thread's loop.
    #[must_use]
    pub fn handle(&self) -> &IoHandle {
        &self.handle
    }
}

/// A thread is registered with as its loop is.
impl Deref for IoThread {
    type Target = IoHandle;

    fn deref(&self) -> &IoHandle {
        &self.handle
    }
}

impl Drop for IoThread {
    fn drop(&mut self) {
        self.handle.shared.stopping.store(true, Ordering::SeqCst);
        self.handle.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("a device thread has panicked");
        }
    }
}

#[cfg(test)]
mod tests;
