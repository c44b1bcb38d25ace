//! The guest's side of a device, for tests: registers through a real transport, rings in real memory, and the device's
//! event loop turned by hand.

#![expect(clippy::cast_possible_truncation, reason = "tests use small numbers")]

use super::device::{GuestMemory, Interrupt, IrqLine, VirtioDevice};
use super::io_thread::{EventLoop, IoHandle};
use super::transport::MmioTransport;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use virtio_bindings::virtio_mmio as reg;
use vm_memory::{Bytes as _, GuestAddress};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub const RAM_BYTES: usize = 8 << 20;
/// Where tests put their buffers.
pub const DATA: u64 = 0x10_0000;
/// Rings of queue `n` begin at `n` times this.
const QUEUE_STRIDE: u64 = 0x1_0000;
const AVAILABLE: u64 = 0x4000;
const USED: u64 = 0x8000;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

pub const VERSION_1: u64 = 1 << 32;
pub const EVENT_IDX: u64 = 1 << 29;

/// Counts interrupts.
#[derive(Default)]
pub struct CountingLine(pub AtomicUsize);

impl IrqLine for CountingLine {
    fn raise(&self) -> io::Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

pub fn memory() -> Arc<GuestMemory> {
    Arc::new(GuestMemory::from_ranges(&[(GuestAddress(0), RAM_BYTES)]).unwrap())
}

/// One part of a request: guest address, length, whether the device writes it.
pub type Part = (u64, u32, bool);

pub struct MockDriver {
    pub transport: MmioTransport,
    pub memory: Arc<GuestMemory>,
    pub line: Arc<CountingLine>,
    event_loop: EventLoop,
    /// For each queue: next free descriptor, next available index, next used index to look at.
    positions: Vec<(u16, u16, u16)>,
    size: u16,
}

impl MockDriver {
    /// A driver that has not touched its device yet.
    pub fn new(size: u16, make: impl FnOnce(&IoHandle) -> Box<dyn VirtioDevice>) -> Self {
        let event_loop = EventLoop::new().unwrap();
        let device = make(event_loop.handle());
        let memory = memory();
        let line = Arc::new(CountingLine::default());
        let queues = device.queue_max_sizes().len();
        let doorbells = (0..queues).map(|_| EventFd::new(EFD_NONBLOCK).unwrap()).collect();
        let interrupt = Interrupt::new(line.clone());
        let transport = MmioTransport::new(device, memory.clone(), interrupt, doorbells);
        Self { transport, memory, line, event_loop, positions: vec![(0, 0, 0); queues], size }
    }

    /// A driver whose device runs.
    pub fn running(
        size: u16,
        features: u64,
        make: impl FnOnce(&IoHandle) -> Box<dyn VirtioDevice>,
    ) -> Self {
        let mut driver = Self::new(size, make);
        driver.initialise(features);
        assert_eq!(driver.read(reg::VIRTIO_MMIO_STATUS), 15);
        driver
    }

    pub fn read(&mut self, register: u32) -> u32 {
        let mut data = [0; 4];
        self.transport.read(register.into(), &mut data);
        u32::from_le_bytes(data)
    }

    pub fn write(&mut self, register: u32, value: u32) {
        self.transport.write(register.into(), &value.to_le_bytes());
    }

    pub fn initialise(&mut self, features: u64) {
        self.negotiate(features | VERSION_1);
        for queue in 0..self.positions.len() {
            self.configure_queue(queue);
        }
        self.write(reg::VIRTIO_MMIO_STATUS, 15);
    }

    pub fn negotiate(&mut self, features: u64) {
        self.write(reg::VIRTIO_MMIO_STATUS, 0);
        self.positions.fill((0, 0, 0));
        self.write(reg::VIRTIO_MMIO_STATUS, 1);
        self.write(reg::VIRTIO_MMIO_STATUS, 3);
        for half in 0..2 {
            self.write(reg::VIRTIO_MMIO_DRIVER_FEATURES_SEL, half);
            self.write(reg::VIRTIO_MMIO_DRIVER_FEATURES, (features >> (32 * half)) as u32);
        }
        self.write(reg::VIRTIO_MMIO_STATUS, 11);
    }

    pub fn configure_queue(&mut self, queue: usize) {
        let base = queue as u64 * QUEUE_STRIDE;
        self.memory.write_slice(&[0; QUEUE_STRIDE as usize], GuestAddress(base)).unwrap();
        self.write(reg::VIRTIO_MMIO_QUEUE_SEL, queue as u32);
        self.write(reg::VIRTIO_MMIO_QUEUE_NUM, self.size.into());
        self.write(reg::VIRTIO_MMIO_QUEUE_DESC_LOW, base as u32);
        self.write(reg::VIRTIO_MMIO_QUEUE_AVAIL_LOW, (base + AVAILABLE) as u32);
        self.write(reg::VIRTIO_MMIO_QUEUE_USED_LOW, (base + USED) as u32);
        self.write(reg::VIRTIO_MMIO_QUEUE_READY, 1);
    }

    pub fn put_descriptor(
        &self,
        table: u64,
        index: u16,
        addr: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let mut bytes = addr.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.memory.write_slice(&bytes, GuestAddress(table + 16 * u64::from(index))).unwrap();
    }

    /// Puts a chain into the table and makes it available; returns its head.
    pub fn offer(&mut self, queue: usize, parts: &[Part]) -> u16 {
        let table = queue as u64 * QUEUE_STRIDE;
        let head = self.positions[queue].0;
        for (offset, (addr, len, write)) in parts.iter().enumerate() {
            let index = (head + offset as u16) % self.size;
            let last = offset + 1 == parts.len();
            let flags = if *write { WRITE } else { 0 } | if last { 0 } else { NEXT };
            self.put_descriptor(table, index, *addr, *len, flags, (index + 1) % self.size);
        }
        self.positions[queue].0 = (head + parts.len() as u16) % self.size;
        self.offer_head(queue, head);
        head
    }

    /// Makes the chain at `head` available, whatever is there.
    pub fn offer_head(&mut self, queue: usize, head: u16) {
        let ring = queue as u64 * QUEUE_STRIDE + AVAILABLE;
        let index = self.positions[queue].1;
        self.memory
            .write_obj(head, GuestAddress(ring + 4 + 2 * u64::from(index % self.size)))
            .unwrap();
        self.positions[queue].1 = index.wrapping_add(1);
        self.memory.write_obj(self.positions[queue].1, GuestAddress(ring + 2)).unwrap();
    }

    /// Address of the queue's descriptor table, and of the index of its available ring.
    pub fn table(queue: usize) -> u64 {
        queue as u64 * QUEUE_STRIDE
    }

    pub fn set_available_index(&self, queue: usize, index: u16) {
        let ring = queue as u64 * QUEUE_STRIDE + AVAILABLE;
        self.memory.write_obj(index, GuestAddress(ring + 2)).unwrap();
    }

    /// Rings the doorbell as a hypervisor without ioeventfds would, and lets the device work until it is idle.
    pub fn notify(&mut self, queue: usize) {
        self.write(reg::VIRTIO_MMIO_QUEUE_NOTIFY, queue as u32);
        self.settle();
    }

    /// Lets the device work until it is idle.
    pub fn settle(&self) {
        while self.event_loop.turn(Some(Duration::ZERO)).unwrap() > 0 {}
    }

    /// What the device has returned since the last call: heads and lengths.
    pub fn used(&mut self, queue: usize) -> Vec<(u32, u32)> {
        let ring = queue as u64 * QUEUE_STRIDE + USED;
        let end: u16 = self.memory.read_obj(GuestAddress(ring + 2)).unwrap();
        let mut used = Vec::new();
        while self.positions[queue].2 != end {
            let entry = ring + 4 + 8 * u64::from(self.positions[queue].2 % self.size);
            let id: u32 = self.memory.read_obj(GuestAddress(entry)).unwrap();
            let len: u32 = self.memory.read_obj(GuestAddress(entry + 4)).unwrap();
            used.push((id, len));
            self.positions[queue].2 = self.positions[queue].2.wrapping_add(1);
        }
        used
    }

    /// Offers a chain, notifies, and returns the length that came back with it.
    pub fn request(&mut self, queue: usize, parts: &[Part]) -> u32 {
        let head = self.offer(queue, parts);
        self.notify(queue);
        let used = self.used(queue);
        assert_eq!(used.len(), 1, "exactly this chain comes back");
        assert_eq!(used[0].0, u32::from(head));
        used[0].1
    }

    pub fn interrupts(&self) -> usize {
        self.line.0.load(Ordering::SeqCst)
    }

    pub fn bytes(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_slice(&mut bytes, GuestAddress(addr)).unwrap();
        bytes
    }

    pub fn put(&self, addr: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(addr)).unwrap();
    }
}
