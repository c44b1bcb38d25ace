//! A guest whose kernel is not on our side: it drives a device through its real transport, from bytes.

use crate::input::Input;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryBackend as _};
use vmm::virtio::device::{GuestMemory, Interrupt, IrqLine, VirtioDevice};
use vmm::virtio::io_thread::{EventLoop, IoHandle};
use vmm::virtio::transport::MmioTransport;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// RAM with a hole in it, and two regions without one between them.
const REGIONS: [(u64, usize); 3] = [(0, 0x2_0000), (0x4_0000, 0x2_0000), (0x6_0000, 0x1_0000)];
/// The first address behind all RAM.
const END: u64 = 0x7_0000;
/// Where buffers are, when they are somewhere sensible.
pub(crate) const DATA: u64 = 0x1_0000;

/// Rings of queue `n` begin at `n` times this.
const QUEUE_STRIDE: u64 = 0x4000;
const RINGS_OF_ZEROES: [u8; 0x4000] = [0; 0x4000];
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
/// Small, so that hostile indices often hit.
const QUEUE_SIZE: u16 = 16;

/// More than a device needs to come to rest, unless it wakes itself without end.
const MAX_TURNS: usize = 200;
/// Actions of one run.
const MAX_ACTIONS: usize = 300;

const QUEUE_NOTIFY: u64 = 0x50;
const STATUS: u64 = 0x70;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// An interrupt line that nobody listens to.
struct DeafLine;

impl IrqLine for DeafLine {
    fn raise(&self) -> io::Result<()> {
        Ok(())
    }
}

/// One part of a request: guest address, length, whether the device writes it.
pub(crate) type Part = (u64, u32, bool);

pub(crate) struct Guest {
    pub(crate) transport: MmioTransport,
    pub(crate) memory: Arc<GuestMemory>,
    event_loop: EventLoop,
    /// For each queue: next free descriptor, next available index.
    positions: Vec<(u16, u16)>,
}

impl Guest {
    /// A guest with one device, which it has not touched yet.
    ///
    /// # Panics
    /// When the host has no memory or descriptors.
    pub(crate) fn new(make: impl FnOnce(&IoHandle) -> Box<dyn VirtioDevice>) -> Self {
        let event_loop = EventLoop::new().expect("an event loop");
        let device = make(event_loop.handle());
        let ranges: Vec<_> =
            REGIONS.iter().map(|(start, len)| (GuestAddress(*start), *len)).collect();
        let memory = Arc::new(GuestMemory::from_ranges(&ranges).expect("guest RAM"));
        let queues = device.queue_max_sizes().len();
        let doorbells =
            (0..queues).map(|_| EventFd::new(EFD_NONBLOCK).expect("a doorbell")).collect();
        let transport = MmioTransport::new(
            device,
            memory.clone(),
            Interrupt::new(Arc::new(DeafLine)),
            doorbells,
        );
        Self { transport, memory, event_loop, positions: vec![(0, 0); queues] }
    }

    /// Does what the bytes say until they run out. `special` is what only this device's attacker does.
    pub(crate) fn attack(
        &mut self,
        input: &mut Input<'_>,
        mut special: impl FnMut(&mut Self, &mut Input<'_>),
    ) {
        // Mostly a device that runs: what comes before that is the registers' body to look into.
        if input.below(8) != 0 {
            self.initialise(1 << 29);
        }
        for _ in 0..MAX_ACTIONS {
            if input.is_empty() {
                break;
            }
            match input.below(16) {
                0 => self.initialise(input.u64()),
                1 => self.initialise(1 << 29),
                2 => self.write(u64::from(input.u8()) * 4, input.u32()),
                3 => self.write(u64::from(input.u8()) * 4, u32::from(input.u8())),
                4 => self.odd_access(input),
                5 => self.put_random_descriptor(input),
                6 => {
                    let queue = self.queue(input);
                    self.offer_head(queue, u16::from(input.u8()) % (QUEUE_SIZE + 2));
                }
                7 => {
                    let queue = self.queue(input);
                    self.put(
                        queue as u64 * QUEUE_STRIDE + AVAILABLE + 2,
                        &input.u16().to_le_bytes(),
                    );
                }
                8 => self.write(QUEUE_NOTIFY, u32::from(input.below(6))),
                9 => {
                    let address = self.address(input);
                    let count = usize::from(input.below(64));
                    self.put(address, input.take(count));
                }
                10 => {
                    let queue = self.queue(input);
                    let count = usize::from(input.below(6)) + 1;
                    let parts: Vec<Part> = (0..count)
                        .map(|_| (self.address(input), input.length(), input.flag()))
                        .collect();
                    self.offer(queue, &parts);
                    self.notify(queue);
                }
                11 => self.offer_indirect(input),
                12 => self.settle(),
                _ => special(self, input),
            }
        }
        self.settle();
    }

    fn odd_access(&mut self, input: &mut Input<'_>) {
        let offset = match input.below(4) {
            0 => input.u64(),
            1 => 0x100 + u64::from(input.u8()),
            _ => u64::from(input.u8()),
        };
        let width = usize::from(input.below(9));
        let mut data = [0xee; 8];
        self.transport.read(offset, &mut data[..width]);
        self.transport.write(offset, input.take(width));
    }

    pub(crate) fn queue(&self, input: &mut Input<'_>) -> usize {
        usize::from(input.u8()) % self.positions.len()
    }

    /// An address: sensible, at some border, or anywhere.
    pub(crate) fn address(&self, input: &mut Input<'_>) -> u64 {
        match input.below(8) {
            // The rings themselves.
            0 => u64::from(input.u16()) % (QUEUE_STRIDE * self.positions.len() as u64),
            1 => 0x2_0000 - u64::from(input.u8()),
            2 => 0x4_0000 - u64::from(input.u8()) + u64::from(input.u8()),
            3 => 0x6_0000 - u64::from(input.u8()),
            4 => END - u64::from(input.u8()),
            5 => input.u64(),
            6 => u64::MAX - u64::from(input.u8()),
            _ => DATA + u64::from(input.u16()),
        }
    }

    /// Writes guest RAM as far as there is any.
    pub(crate) fn put(&self, address: u64, bytes: &[u8]) {
        if let Ok(slices) = self
            .memory
            .get_slices(GuestAddress(address), bytes.len())
            .collect::<Result<Vec<_>, _>>()
        {
            let mut rest = bytes;
            for slice in slices {
                let (head, tail) = rest.split_at(slice.len());
                slice.copy_from(head);
                rest = tail;
            }
        }
    }

    /// Reads guest RAM.
    ///
    /// # Panics
    /// When there is none.
    pub(crate) fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory
            .read_slice(&mut bytes, GuestAddress(address))
            .expect("addresses of our own are in RAM");
        bytes
    }

    pub(crate) fn read(&mut self, register: u64) -> u32 {
        let mut data = [0; 4];
        self.transport.read(register, &mut data);
        u32::from_le_bytes(data)
    }

    pub(crate) fn write(&mut self, register: u64, value: u32) {
        self.transport.write(register, &value.to_le_bytes());
    }

    /// Resets the device and sets it up by the book.
    pub(crate) fn initialise(&mut self, features: u64) {
        let [low, high] =
            [0, 32].map(|shift| u32::try_from(features >> shift & 0xffff_ffff).unwrap_or(0));
        for (register, value) in [
            (STATUS, 0),
            (STATUS, 1),
            (STATUS, 3),
            (0x24, 0),
            (0x20, low),
            (0x24, 1),
            (0x20, high | 1),
            (STATUS, 11),
        ] {
            self.write(register, value);
        }
        for queue in 0..self.positions.len() {
            let base = queue as u64 * QUEUE_STRIDE;
            self.put(base, &RINGS_OF_ZEROES);
            let low = |address: u64| u32::try_from(address).unwrap_or(0);
            self.write(0x30, u32::try_from(queue).unwrap_or(0));
            self.write(0x38, QUEUE_SIZE.into());
            for (register, address) in [(0x80, base), (0x90, base + AVAILABLE), (0xa0, base + USED)]
            {
                self.write(register, low(address));
                self.write(register + 4, 0);
            }
            self.write(0x44, 1);
        }
        self.positions.fill((0, 0));
        self.write(STATUS, 15);
    }

    fn descriptor(&self, address: u64, part: Part, flags: u16, next: u16) {
        let (buffer, len, write) = part;
        let flags = flags | if write { WRITE } else { 0 };
        let mut bytes = buffer.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.put(address, &bytes);
    }

    fn put_random_descriptor(&self, input: &mut Input<'_>) {
        let queue = self.queue(input) as u64;
        let index = u64::from(input.u8()) % (u64::from(QUEUE_SIZE) + 1);
        let part = (self.address(input), input.length(), input.flag());
        let flags = input.u16() & if input.flag() { 7 } else { 0xffff };
        let next = u16::from(input.u8()) % (QUEUE_SIZE + 2);
        self.descriptor(queue * QUEUE_STRIDE + 16 * index, part, flags, next);
    }

    /// Puts a chain into the table and makes it available.
    pub(crate) fn offer(&mut self, queue: usize, parts: &[Part]) {
        let table = queue as u64 * QUEUE_STRIDE;
        let head = self.positions[queue].0;
        let mut index = head;
        for (position, part) in parts.iter().enumerate() {
            let next = (index + 1) % QUEUE_SIZE;
            let flags = if position + 1 == parts.len() { 0 } else { NEXT };
            self.descriptor(table + 16 * u64::from(index), *part, flags, next);
            index = next;
        }
        self.positions[queue].0 = index;
        self.offer_head(queue, head);
    }

    fn offer_indirect(&mut self, input: &mut Input<'_>) {
        let queue = self.queue(input);
        let table = self.address(input);
        let count = u64::from(input.below(20));
        for index in 0..count {
            let part = (self.address(input), input.length(), input.flag());
            let next = if input.flag() { index + 1 } else { u64::from(input.u8()) };
            self.descriptor(
                table.wrapping_add(16 * index),
                part,
                u16::from(input.u8()) & 7,
                u16::try_from(next).unwrap_or(0),
            );
        }
        let len =
            if input.flag() { u32::try_from(16 * count).unwrap_or(0) } else { input.length() };
        let head = self.positions[queue].0;
        self.descriptor(
            queue as u64 * QUEUE_STRIDE + 16 * u64::from(head),
            (table, len, false),
            INDIRECT,
            0,
        );
        self.positions[queue].0 = (head + 1) % QUEUE_SIZE;
        self.offer_head(queue, head);
        self.notify(queue);
    }

    fn offer_head(&mut self, queue: usize, head: u16) {
        let ring = queue as u64 * QUEUE_STRIDE + AVAILABLE;
        let index = self.positions[queue].1;
        self.put(ring + 4 + 2 * u64::from(index % QUEUE_SIZE), &head.to_le_bytes());
        self.positions[queue].1 = index.wrapping_add(1);
        self.put(ring + 2, &self.positions[queue].1.to_le_bytes());
    }

    /// Rings a doorbell and lets the device work.
    pub(crate) fn notify(&mut self, queue: usize) {
        self.write(QUEUE_NOTIFY, u32::try_from(queue).unwrap_or(0));
        self.settle();
    }

    /// Lets the device work until it is idle, or has proved to be busy for good.
    ///
    /// # Panics
    /// When waiting for events fails.
    pub(crate) fn settle(&self) {
        for _ in 0..MAX_TURNS {
            if self.event_loop.turn(Some(Duration::ZERO)).expect("the event loop turns") == 0 {
                break;
            }
        }
    }

    /// Becomes a friendly driver: after any abuse, a reset must bring the device back.
    ///
    /// # Panics
    /// When it does not.
    pub(crate) fn reform(&mut self) {
        self.initialise(0);
        assert_eq!(self.read(STATUS), 15, "a device works again after a reset");
        self.settle();
    }

    /// How many chains the device has returned on a queue.
    pub(crate) fn used_index(&self, queue: usize) -> u16 {
        let bytes = self.bytes(queue as u64 * QUEUE_STRIDE + USED + 2, 2);
        u16::from_le_bytes([bytes[0], bytes[1]])
    }
}
