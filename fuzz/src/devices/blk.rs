//! Disks.

use crate::guest::{DATA, Guest, Part};
use crate::input::Input;
use std::io;
use std::sync::{Arc, Mutex};
use vm_memory::VolatileSlice;
use vmm::block::BlockBackend;
use vmm::block::memory::MemoryBackend;
use vmm::virtio::blk::Block;

const DISK_BYTES: usize = 32 << 10;

/// A disk that can be looked at while its device has it.
#[derive(Clone)]
struct Shared(Arc<Mutex<MemoryBackend>>);

impl Shared {
    fn with<T>(&self, act: impl FnOnce(&mut MemoryBackend) -> T) -> T {
        act(&mut self.0.lock().expect("nobody panics with the disk"))
    }
}

impl BlockBackend for Shared {
    fn len(&self) -> u64 {
        self.with(|disk| disk.len())
    }
    fn read_vectored_at(&mut self, into: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        self.with(|disk| disk.read_vectored_at(into, offset))
    }
    fn write_vectored_at(&mut self, from: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        self.with(|disk| disk.write_vectored_at(from, offset))
    }
    fn flush(&mut self) -> io::Result<()> {
        self.with(BlockBackend::flush)
    }
    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.with(|disk| disk.discard(offset, len))
    }
    fn write_zeroes(&mut self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.with(|disk| disk.write_zeroes(offset, len, unmap))
    }
}

/// Attacks a disk; the first byte says whether it is read-only.
///
/// # Panics
/// When a read-only disk changed, or a reset does not bring the device back.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let read_only = input.flag();
    let content: Vec<u8> =
        (0..DISK_BYTES).map(|index| (index / 512 + index).to_le_bytes()[0]).collect();
    let disk = Shared(Arc::new(Mutex::new(MemoryBackend::new(content.clone()))));
    let backend = Box::new(disk.clone());
    let mut guest = Guest::new(|io| Box::new(Block::new(backend, read_only, "fuzz", io)));
    guest.attack(&mut input, request);
    let now = disk.with(|disk| disk.bytes().to_vec());
    if read_only {
        assert!(now == content, "a read-only disk does not change");
    }
    assert_eq!(now.len(), DISK_BYTES);

    guest.reform();
    guest.put(DATA, &[0; 16]);
    guest.offer(0, &[(DATA, 16, false), (DATA + 0x1000, 512, true), (DATA + 0x100, 1, true)]);
    guest.put(DATA + 0x100, &[0xff]);
    guest.notify(0);
    assert_eq!(guest.bytes(DATA + 0x100, 1), [0], "a friendly driver is served");
    assert_eq!(guest.bytes(DATA + 0x1000, 512), now[..512]);
}

/// A request with a sensible header, and the rest as the bytes will have it.
fn request(guest: &mut Guest, input: &mut Input<'_>) {
    let kinds = [0, 1, 4, 8, 11, 13, u32::from(input.u8())];
    let kind = kinds[usize::from(input.below(7))];
    let sector = if input.flag() { u64::from(input.u8()) } else { input.u64() };
    let mut header = kind.to_le_bytes().to_vec();
    header.extend([0; 4]);
    header.extend(sector.to_le_bytes());
    let at = if input.flag() { DATA } else { guest.address(input) };
    guest.put(at, &header);
    // A list of ranges, where one is wanted.
    let ranges = DATA + 0x800;
    let ranges_bytes = 16 * usize::from(input.below(4));
    guest.put(ranges, input.take(ranges_bytes));
    let cut = u32::from(input.below(17));
    let mut parts: Vec<Part> =
        vec![(at, cut, false), (at.wrapping_add(u64::from(cut)), 16 - cut, false)];
    for _ in 0..input.below(4) {
        let buffer = if input.flag() { ranges } else { guest.address(input) };
        parts.push((buffer, input.length(), matches!(kind, 0 | 8) || input.below(8) == 0));
    }
    parts.push((guest.address(input), 1, input.below(16) != 0));
    guest.offer(0, &parts);
    if input.flag() {
        guest.notify(0);
    }
}
