//! A driver for the tests: the guest's half of the queues, in guest memory.

use crate::virtio::device::{
    Activation, ActiveQueue, GuestMemory, Interrupt, IrqLine, VirtioDevice,
};
use crate::virtio::io_thread::{EventLoop, IoHandle};
use crate::virtio::vsock::packet::{HEADER_LEN, Header, Op, TYPE_STREAM};
use crate::virtio::vsock::{GUEST_CID, HOST_CID, HostPorts, Vsock, VsockConfig, VsockHandle};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

const NEXT: u16 = 1;
const WRITE: u16 = 2;

pub(super) const QUEUE_SIZE: u16 = 64;
/// Each queue's rings, then its buffers.
const QUEUE_SPAN: u64 = 16 << 20;
const AVAIL: u64 = 0x4000;
const USED: u64 = 0x8000;
const BUFFERS: u64 = 0x10000;
/// Room for the largest packet.
const BUFFER_SPAN: u64 = 0x11000;

/// Counts interrupts, and lets a guest wait for one.
#[derive(Default)]
pub(super) struct Line {
    count: Mutex<usize>,
    raised: Condvar,
}

impl IrqLine for Line {
    fn raise(&self) -> io::Result<()> {
        *self.count.lock().unwrap() += 1;
        self.raised.notify_all();
        Ok(())
    }
}

/// The guest's half of one queue.
pub(super) struct Ring {
    pub(super) base: u64,
    pub(super) avail: u16,
    used: u16,
    pub(super) doorbell: EventFd,
}

impl Ring {
    fn new(index: u64) -> Self {
        let doorbell = EventFd::new(EFD_NONBLOCK).unwrap();
        Self { base: index * QUEUE_SPAN, avail: 0, used: 0, doorbell }
    }

    fn queue(&self, event_idx: bool) -> Queue {
        let mut queue = Queue::new(QUEUE_SIZE).unwrap();
        queue.set_desc_table_address(Some(u32::try_from(self.base).unwrap()), Some(0));
        queue.set_avail_ring_address(Some(u32::try_from(self.base + AVAIL).unwrap()), Some(0));
        queue.set_used_ring_address(Some(u32::try_from(self.base + USED).unwrap()), Some(0));
        queue.set_event_idx(event_idx);
        queue.set_ready(true);
        queue
    }

    /// Begins anew, as a new driver does.
    pub(super) fn restart(&mut self, memory: &GuestMemory) {
        memory.write_slice(&[0; 0xc000], GuestAddress(self.base)).unwrap();
        (self.avail, self.used) = (0, 0);
    }

    pub(super) fn buffer(&self, slot: u16) -> u64 {
        self.base + BUFFERS + u64::from(slot) * BUFFER_SPAN
    }

    pub(super) fn describe(
        &self,
        memory: &GuestMemory,
        at: u16,
        address: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let entry = GuestAddress(self.base + u64::from(at) * 16);
        memory.write_obj(address.to_le(), entry).unwrap();
        memory.write_obj(len.to_le(), GuestAddress(entry.0 + 8)).unwrap();
        memory.write_obj(flags.to_le(), GuestAddress(entry.0 + 12)).unwrap();
        memory.write_obj(next.to_le(), GuestAddress(entry.0 + 14)).unwrap();
    }

    pub(super) fn offer(&mut self, memory: &GuestMemory, head: u16) {
        let slot = u64::from(self.avail % QUEUE_SIZE);
        memory.write_obj(head.to_le(), GuestAddress(self.base + AVAIL + 4 + slot * 2)).unwrap();
        self.avail = self.avail.wrapping_add(1);
        memory
            .store(self.avail.to_le(), GuestAddress(self.base + AVAIL + 2), Ordering::Release)
            .unwrap();
    }

    fn take_used(&mut self, memory: &GuestMemory) -> Option<(u16, u32)> {
        // After what the last call asked for (see below) is visible: else an interrupt could be missed.
        fence(Ordering::SeqCst);
        let index: u16 =
            memory.load(GuestAddress(self.base + USED + 2), Ordering::Acquire).unwrap();
        if index == self.used {
            return None;
        }
        let entry = GuestAddress(self.base + USED + 4 + u64::from(self.used % QUEUE_SIZE) * 8);
        self.used = self.used.wrapping_add(1);
        // Asks for an interrupt at the next used buffer (EVENT_IDX).
        memory
            .write_obj(
                self.used.to_le(),
                GuestAddress(self.base + AVAIL + 4 + u64::from(QUEUE_SIZE) * 2),
            )
            .unwrap();
        let head: u32 = memory.read_obj(entry).unwrap();
        let len = memory.read_obj(GuestAddress(entry.0 + 4)).unwrap();
        Some((u16::try_from(head).unwrap(), len))
    }
}

/// A packet that the guest received.
pub(super) type Received = (Header, Vec<u8>);

/// A guest, the device, and the thread that serves it, run turn by turn.
pub(super) struct Guest {
    pub(super) device: Vsock,
    pub(super) handle: VsockHandle,
    pub(super) memory: Arc<GuestMemory>,
    pub(super) rx: Ring,
    pub(super) tx: Ring,
    event: Ring,
    line: Arc<Line>,
    interrupt: Interrupt,
    /// None where the device works on a thread of its own.
    event_loop: Option<EventLoop>,
    rx_len: u32,
    /// What the guest tells about its receive buffers.
    pub(super) buf_alloc: u32,
    inbox: std::collections::VecDeque<Received>,
    agent_path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Guest {
    /// A guest whose driver is not up yet. `rx_len` is the size of its receive buffers.
    pub(super) fn down(rx_len: u32, host_ports: HostPorts) -> Self {
        let event_loop = EventLoop::new().unwrap();
        let handle = event_loop.handle().clone();
        Self { event_loop: Some(event_loop), ..Self::served_by(&handle, rx_len, host_ports) }
    }

    /// A guest whose device works on a thread, and whose driver is not up yet.
    pub(super) fn served_by(io: &IoHandle, rx_len: u32, host_ports: HostPorts) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let agent_path = directory.path().join("agent");
        let agent_listener = UnixListener::bind(&agent_path).unwrap();
        let config = VsockConfig { guest_cid: GUEST_CID, agent_listener, host_ports };
        let device = Vsock::new(config, io).unwrap();
        let line = Arc::new(Line::default());
        let irq_line: Arc<dyn IrqLine> = line.clone();
        Self {
            interrupt: Interrupt::new(irq_line),
            line,
            handle: device.handle(),
            device,
            memory: Arc::new(
                GuestMemory::from_ranges(&[(
                    GuestAddress(0),
                    usize::try_from(QUEUE_SPAN * 3).unwrap(),
                )])
                .unwrap(),
            ),
            rx: Ring::new(0),
            tx: Ring::new(1),
            event: Ring::new(2),
            event_loop: None,
            rx_len,
            buf_alloc: 256 << 10,
            inbox: std::collections::VecDeque::new(),
            agent_path,
            _directory: directory,
        }
    }

    /// A guest that is up, with as many receive buffers as its queue takes.
    pub(super) fn up(rx_len: u32, host_ports: HostPorts) -> Self {
        let mut guest = Self::down(rx_len, host_ports);
        guest.start();
        guest.post_all();
        guest
    }

    /// Starts the device with queues as the rings are.
    pub(super) fn start(&mut self) {
        let queues = [&self.rx, &self.tx, &self.event].map(|ring| ActiveQueue {
            queue: ring.queue(true),
            doorbell: ring.doorbell.try_clone().unwrap(),
        });
        self.start_with(queues.into());
    }

    /// Starts the device with these queues.
    pub(super) fn start_with(&mut self, queues: Vec<ActiveQueue>) {
        self.interrupt.reset();
        let interrupt = self.interrupt.clone();
        let memory = Arc::clone(&self.memory);
        self.device.start(Activation { features: 0, queues, memory, interrupt }).unwrap();
    }

    /// Starts the device with queues that an earlier stop returned.
    pub(super) fn resume(&mut self, queues: Vec<Queue>) {
        let doorbells =
            [&self.rx, &self.tx, &self.event].map(|ring| ring.doorbell.try_clone().unwrap());
        let queues = queues.into_iter().zip(doorbells);
        self.start_with(queues.map(|(queue, doorbell)| ActiveQueue { queue, doorbell }).collect());
    }

    /// A client of the agent socket.
    pub(super) fn client(&self) -> UnixStream {
        UnixStream::connect(&self.agent_path).unwrap()
    }

    /// Interrupts so far.
    pub(super) fn interrupts(&self) -> usize {
        *self.line.count.lock().unwrap()
    }

    /// Waits until there were more interrupts than that.
    pub(super) fn wait_for_interrupt(&self, seen: usize) {
        let count = self.line.count.lock().unwrap();
        drop(self.line.raised.wait_while(count, |count| *count <= seen).unwrap());
    }

    /// Whether the device has given up until it is reset.
    pub(super) fn needs_reset(&self) -> bool {
        self.interrupt.needs_reset()
    }

    /// Offers a receive buffer.
    pub(super) fn post(&mut self, slot: u16) {
        let buffer = self.rx.buffer(slot);
        self.rx.describe(&self.memory, slot, buffer, self.rx_len, WRITE, 0);
        self.rx.offer(&self.memory, slot);
        self.rx.doorbell.write(1).unwrap();
    }

    /// Offers all receive buffers.
    pub(super) fn post_all(&mut self) {
        for slot in 0..QUEUE_SIZE {
            self.post(slot);
        }
    }

    /// Lets the device work until it has nothing to do, giving it buffers back as they are used.
    pub(super) fn run(&mut self) {
        loop {
            self.turn();
            let before = self.inbox.len();
            self.collect(true);
            if self.inbox.len() == before {
                return;
            }
        }
    }

    /// Lets the device work, but does not give it buffers back.
    pub(super) fn run_without_refill(&mut self) {
        self.turn();
        self.collect(false);
    }

    fn turn(&self) {
        let Some(event_loop) = &self.event_loop else { return };
        while event_loop.turn(Some(Duration::ZERO)).unwrap() > 0 {}
    }

    fn collect(&mut self, refill: bool) {
        while let Some((head, len)) = self.rx.take_used(&self.memory) {
            if len > 0 {
                let len = usize::try_from(len).unwrap();
                let mut bytes = vec![0; len];
                self.memory.read_slice(&mut bytes, GuestAddress(self.rx.buffer(head))).unwrap();
                let payload = bytes.split_off(HEADER_LEN);
                let header = Header::decode(&bytes.try_into().unwrap());
                assert_eq!(usize::try_from(header.len).unwrap(), payload.len());
                self.inbox.push_back((header, payload));
            }
            if refill {
                self.post(head);
            }
        }
    }

    /// The next packet, once the device has done all it could.
    pub(super) fn receive(&mut self) -> Option<Received> {
        self.run();
        self.inbox.pop_front()
    }

    /// The next packet, which must be this operation.
    #[track_caller]
    pub(super) fn expect(&mut self, op: Op) -> Received {
        let received = self.receive().expect("a packet");
        assert_eq!(Op::from_number(received.0.op), Some(op), "{received:?}");
        received
    }

    /// No packet must be there.
    #[track_caller]
    pub(super) fn expect_nothing(&mut self) {
        assert_eq!(self.receive(), None);
    }

    /// Puts a packet into the tx queue: header and payload in a descriptor each, as Linux does.
    pub(super) fn queue_packet(&mut self, header: &Header, payload: &[u8]) {
        while self.tx.take_used(&self.memory).is_some() {}
        let in_flight = self.tx.avail.wrapping_sub(self.tx.used);
        assert!(in_flight < QUEUE_SIZE / 2, "the tx queue is full");
        let slot = self.tx.avail % (QUEUE_SIZE / 2) * 2;
        let buffer = self.tx.buffer(slot);
        self.memory.write_slice(&header.encode(), GuestAddress(buffer)).unwrap();
        self.memory.write_slice(payload, GuestAddress(buffer + 64)).unwrap();
        let header_len = u32::try_from(HEADER_LEN).unwrap();
        let flags = if payload.is_empty() { 0 } else { NEXT };
        self.tx.describe(&self.memory, slot, buffer, header_len, flags, slot + 1);
        self.tx.describe(
            &self.memory,
            slot + 1,
            buffer + 64,
            u32::try_from(payload.len()).unwrap(),
            0,
            0,
        );
        self.tx.offer(&self.memory, slot);
    }

    /// Whether another packet can be queued.
    pub(super) fn can_queue(&mut self) -> bool {
        while self.tx.take_used(&self.memory).is_some() {}
        self.tx.avail.wrapping_sub(self.tx.used) < QUEUE_SIZE / 2
    }

    /// Rings the tx doorbell.
    pub(super) fn kick(&self) {
        self.tx.doorbell.write(1).unwrap();
    }

    /// Sends a packet and lets the device work.
    pub(super) fn send(&mut self, header: &Header, payload: &[u8]) {
        self.queue_packet(header, payload);
        self.kick();
        self.run();
    }

    /// Whether the device has returned all that was sent.
    pub(super) fn all_sent(&mut self) -> bool {
        while self.tx.take_used(&self.memory).is_some() {}
        self.tx.avail == self.tx.used
    }

    /// A header for a packet from a port of the guest to a port of the host.
    pub(super) fn header(&self, op: Op, guest: u32, host: u32) -> Header {
        Header {
            src_cid: GUEST_CID,
            dst_cid: HOST_CID,
            src_port: guest,
            dst_port: host,
            kind: TYPE_STREAM,
            op: op.number(),
            buf_alloc: self.buf_alloc,
            ..Header::default()
        }
    }
}

/// The guest's half of one connection: counts credit as Linux does.
pub(super) struct Socket {
    guest: u32,
    host: u32,
    sent: u32,
    received: u32,
    peer_alloc: u32,
    peer_forwarded: u32,
}

impl Socket {
    /// Accepts the connection that the host asks for.
    #[track_caller]
    pub(super) fn accept(guest: &mut Guest) -> Self {
        let (request, _) = guest.expect(Op::Request);
        let mut socket = Self::new(request.dst_port, request.src_port);
        socket.learn(&request);
        let header = socket.header(guest, Op::Response);
        guest.send(&header, &[]);
        socket
    }

    pub(super) fn new(guest: u32, host: u32) -> Self {
        Self { guest, host, sent: 0, received: 0, peer_alloc: 0, peer_forwarded: 0 }
    }

    pub(super) fn learn(&mut self, header: &Header) {
        assert_eq!((header.dst_port, header.src_port), (self.guest, self.host));
        self.peer_alloc = header.buf_alloc;
        self.peer_forwarded = header.fwd_cnt;
    }

    pub(super) fn header(&self, guest: &Guest, op: Op) -> Header {
        Header { fwd_cnt: self.received, ..guest.header(op, self.guest, self.host) }
    }

    /// What may be sent.
    pub(super) fn credit(&self) -> u32 {
        self.peer_alloc - self.sent.wrapping_sub(self.peer_forwarded)
    }

    /// Sends data.
    pub(super) fn send(&mut self, guest: &mut Guest, payload: &[u8]) {
        self.queue_data(guest, payload);
        guest.kick();
        guest.run();
    }

    /// Queues data.
    pub(super) fn queue_data(&mut self, guest: &mut Guest, payload: &[u8]) {
        let len = u32::try_from(payload.len()).unwrap();
        let header = Header { len, ..self.header(guest, Op::Data) };
        self.sent = self.sent.wrapping_add(len);
        guest.queue_packet(&header, payload);
    }

    /// Sends a packet without payload.
    pub(super) fn tell(&mut self, guest: &mut Guest, op: Op, flags: u32) {
        let header = Header { flags, ..self.header(guest, op) };
        guest.send(&header, &[]);
    }

    /// Counts a data packet that was received.
    pub(super) fn took(&mut self, received: &Received) {
        self.learn(&received.0);
        self.received = self.received.wrapping_add(received.0.len);
    }
}
