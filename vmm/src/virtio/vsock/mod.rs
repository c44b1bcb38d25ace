//! The socket device (virtio 1.2 §5.10): stream connections between the guest and Unix sockets of this process, in
//! user space, so that neither `vhost-vsock` nor privileges are needed.
//!
//! ```text
//!   guest port 1024 ◀── each connection accepted from the agent socket
//!   any guest port  ◀── VsockHandle::connect
//!   guest           ──▶ host ports that are listed; all others answer with a reset
//! ```
//!
//! Before the driver is up, clients of the agent socket wait in the socket's own backlog. A guest port on which nobody
//! listens shows itself to the client as end of file.
//!
//! Layers: `packet` reads descriptors; `connection` is the protocol, pure; `link` joins a connection to a socket
//! (`outbox` is what the socket did not take); `muxer` is all links; `queues` moves packets; `poll` and `handshakes` are
//! what the device waits for.

mod connection;
mod handshakes;
mod link;
mod muxer;
mod outbox;
mod packet;
mod poll;
mod queues;

use super::device::{Activation, VirtioDevice};
use super::fault_log::FaultLog;
use super::io_thread::{EventHandler, EventSet, IoHandle, Registration, SharedHandler, Source};
use muxer::Muxer;
use poll::Poll;
use proto::agent::AGENT_PORT;
use queues::Queues;
use std::collections::HashMap;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use virtio_bindings::virtio_ids::VIRTIO_ID_VSOCK;
use virtio_queue::Queue;

/// Context id of the host (virtio 1.2 §5.10.4).
pub const HOST_CID: u64 = 2;

/// The guest's context id in every box: it means something only between a guest and its own VMM.
pub const GUEST_CID: u64 = 3;

/// Sizes of the rx, tx and event queues. Linux fills the whole rx queue with buffers of a page: 512 KiB of the guest.
const QUEUE_SIZES: [u16; 3] = [128, 128, 16];

/// `VIRTIO_VSOCK_F_STREAM`.
const FEATURE_STREAM: u64 = 1;

/// Linux answers a request before any program of it is scheduled, so this only ends the wait for a guest that hangs.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(20);

/// Makes the host's end of a connection that the guest asked for. Called on the I/O thread with the device locked: it
/// must not block, nor call a [`VsockHandle`].
pub type Connector = Box<dyn FnMut() -> io::Result<UnixStream> + Send>;

/// The host ports that a guest can reach.
pub type HostPorts = HashMap<u32, Connector>;

/// What the device is joined to.
pub struct VsockConfig {
    /// Context id of the guest; see [`GUEST_CID`].
    pub guest_cid: u64,
    /// Each connection accepted here is joined to [`AGENT_PORT`] of the guest, without any handshake of its own.
    pub agent_listener: UnixListener,
    /// What listens on the host.
    pub host_ports: HostPorts,
}

/// A socket device.
pub struct Vsock {
    guest_cid: u64,
    io: IoHandle,
    poll: Arc<Poll>,
    worker: Arc<Mutex<Worker>>,
}

/// What works on the I/O thread. The mutex guards all of the device; it is held for a turn at most, and a turn never
/// blocks.
struct Worker {
    listener: UnixListener,
    /// Accepting may give something; edge-triggered.
    acceptable: bool,
    poll: Arc<Poll>,
    muxer: Muxer,
    queues: Option<Queues>,
    registration: Option<Registration>,
    events: Vec<poll::Event>,
    faults: FaultLog,
}

impl Vsock {
    /// A device that works on `io`.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new(config: VsockConfig, io: &IoHandle) -> io::Result<Self> {
        let VsockConfig { guest_cid, agent_listener, host_ports } = config;
        let poll = Arc::new(Poll::new()?);
        agent_listener.set_nonblocking(true)?;
        poll.add(&agent_listener, poll::Source::Listener)?;
        let worker = Worker {
            listener: agent_listener,
            acceptable: true,
            poll: Arc::clone(&poll),
            muxer: Muxer::new(guest_cid, host_ports, HANDSHAKE_LIMIT, Arc::clone(&poll))?,
            queues: None,
            registration: None,
            events: Vec::new(),
            faults: FaultLog::new("virtio-vsock"),
        };
        Ok(Self { guest_cid, io: io.clone(), poll, worker: Arc::new(Mutex::new(worker)) })
    }

    /// A way to the guest for the rest of the program.
    #[must_use]
    pub fn handle(&self) -> VsockHandle {
        VsockHandle { poll: Arc::clone(&self.poll), worker: Arc::clone(&self.worker) }
    }
}

/// A way to the guest for the rest of the program. Cheap to clone; outlives the device, and then reaches nobody.
#[derive(Clone)]
pub struct VsockHandle {
    poll: Arc<Poll>,
    worker: Arc<Mutex<Worker>>,
}

impl VsockHandle {
    /// Opens a connection to a port of the guest. The stream can be used at once; what is written before the guest has
    /// answered is kept by the socket. If nobody listens there, or the guest does not answer, it ends.
    ///
    /// # Errors
    /// When there are too many connections, descriptors run out, or the guest has corrupted its queues.
    pub fn connect(&self, port: u32) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        lock(&self.worker).muxer.connect(port, ours, Instant::now())?;
        self.poll.wake();
        Ok(theirs)
    }

    /// Number of connections, those included that are being opened, or drained by a slow program.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        lock(&self.worker).muxer.link_count()
    }
}

fn lock(worker: &Mutex<Worker>) -> MutexGuard<'_, Worker> {
    // A panic ends the program; where it is caught, in tests, the state is as good as it was before.
    worker.lock().unwrap_or_else(PoisonError::into_inner)
}

impl VirtioDevice for Vsock {
    fn id(&self) -> u32 {
        VIRTIO_ID_VSOCK
    }

    fn features(&self) -> u64 {
        FEATURE_STREAM
    }

    fn queue_max_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let config = self.guest_cid.to_le_bytes();
        let Ok(offset) = usize::try_from(offset) else { return };
        let Some(rest) = config.get(offset..) else { return };
        for (to, from) in data.iter_mut().zip(rest) {
            *to = *from;
        }
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    fn start(&mut self, activation: Activation) -> io::Result<()> {
        let mut worker = lock(&self.worker);
        let queues = Queues::new(activation, &self.poll)?;
        if let Err(error) = self.attend(&mut worker) {
            queues.into_inner(&self.poll);
            return Err(error);
        }
        if queues.are_fresh() {
            worker.muxer.forget_guest();
        }
        worker.queues = Some(queues);
        worker.muxer.go_online(Instant::now());
        worker.acceptable = true;
        // The first turn is the I/O thread's.
        self.poll.wake();
        Ok(())
    }

    fn stop(&mut self) -> Vec<Queue> {
        let mut worker = lock(&self.worker);
        // Under the handler's mutex: it is not running, and will not be called again.
        worker.registration = None;
        worker.muxer.go_offline();
        worker.queues.take().map(|queues| queues.into_inner(&self.poll)).unwrap_or_default()
    }

    fn driver_left(&mut self) {
        let mut worker = lock(&self.worker);
        worker.muxer.close();
        // Clients are turned away from now on, rather than left to wait.
        match self.attend(&mut worker) {
            Ok(()) => worker.acceptable = true,
            Err(error) => worker.faults.note(format_args!("turn clients away: {error}")),
        }
        self.poll.wake();
    }
}

impl Vsock {
    /// Lets the I/O thread serve the device, as it may do already.
    fn attend(&self, worker: &mut Worker) -> io::Result<()> {
        // One at a time: both would be for the same descriptor.
        worker.registration = None;
        let handler: SharedHandler = self.worker.clone();
        let source: Arc<dyn Source> = self.poll.clone();
        worker.registration = Some(self.io.register(source, EventSet::IN, handler, 0)?);
        Ok(())
    }
}

impl Drop for Vsock {
    fn drop(&mut self) {
        self.stop();
        // Handles may live on, but the guest does not: their streams end.
        lock(&self.worker).muxer.close();
    }
}

impl EventHandler for Worker {
    fn ready(&mut self, _token: u64, _readiness: EventSet) {
        self.turn(Instant::now());
    }
}

impl Worker {
    /// Handles what changed, then moves packets.
    fn turn(&mut self, now: Instant) {
        let mut events = std::mem::take(&mut self.events);
        if let Err(error) = self.poll.changes(&mut events) {
            log::error!("virtio-vsock: wait for events: {error}");
        }
        let mut expire = false;
        for event in events.drain(..) {
            match event.source {
                // Their work is done in every turn.
                poll::Source::Doorbell | poll::Source::Wake => {}
                poll::Source::Listener => self.acceptable = true,
                poll::Source::Timer => expire = true,
                poll::Source::Link(id) => self.muxer.socket_changed(id, &event),
            }
        }
        self.events = events;
        if expire {
            self.muxer.expire(now);
        }
        self.accept(now);
        self.muxer.arm_timer(now);

        let links = self.muxer.link_count();
        self.move_packets();
        if self.acceptable && self.muxer.link_count() < links {
            // There was no descriptor for a client, and now there may be.
            self.poll.wake();
        }
    }

    fn move_packets(&mut self) {
        let Some(queues) = &mut self.queues else { return };
        if queues.needs_reset() {
            return;
        }
        match queues.turn(&mut self.muxer, &mut self.faults) {
            Ok(false) => {}
            Ok(true) => self.poll.wake(),
            Err(fault) => {
                self.faults.note(format_args!("the device must be reset: {fault}"));
                queues.request_reset();
                // Until then clients are turned away, rather than left to wait.
                self.muxer.close();
            }
        }
    }

    /// Accepts clients of the agent socket.
    fn accept(&mut self, now: Instant) {
        while self.acceptable {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    // Dropped where there are too many: the client sees the end.
                    if let Err(error) = self.muxer.connect(AGENT_PORT, stream, now) {
                        self.faults
                            .note(format_args!("client of the agent socket turned away: {error}"));
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => self.acceptable = false,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    // Out of descriptors or memory: tried again in the next turn, whatever that is about. Clients
                    // wait in the backlog.
                    _ => {
                        self.faults
                            .note(format_args!("accept a client of the agent socket: {error}"));
                        break;
                    }
                },
            }
        }
    }
}

#[cfg(test)]
mod tests;
