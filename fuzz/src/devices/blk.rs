//! Disks.

use crate::guest::{DATA, Guest, Part};
use crate::input::Input;
use std::io;
use std::sync::{Arc, Mutex};
use vm_memory::VolatileSlice;
use vmm::block::BlockBackend;
use vmm::block::memory::MemoryBackend;
use vmm::virtio::blk::Block;
use vmm::virtio::chain::total;

const DISK_BYTES: usize = 32 << 10;

/// A disk that can be looked at while its device has it.
#[derive(Clone)]
struct Shared(Arc<Mutex<MemoryBackend>>);

impl Shared {
    fn with<T>(&self, act: impl FnOnce(&mut MemoryBackend) -> T) -> T {
        act(&mut self.0.lock().expect("nobody panics with the disk"))
    }

    /// The disk, for a range that the device must have checked.
    fn at<T>(&self, offset: u64, len: u64, act: impl FnOnce(&mut MemoryBackend) -> T) -> T {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= DISK_BYTES as u64),
            "only the disk is touched"
        );
        assert!(offset.is_multiple_of(512) && len.is_multiple_of(512), "only whole sectors are");
        self.with(act)
    }
}

impl BlockBackend for Shared {
    fn len(&self) -> u64 {
        self.with(|disk| disk.len())
    }

    fn read_vectored_at(&mut self, into: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        self.at(offset, total(into), |disk| disk.read_vectored_at(into, offset))
    }

    fn write_vectored_at(&mut self, from: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        self.at(offset, total(from), |disk| disk.write_vectored_at(from, offset))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.with(BlockBackend::flush)
    }

    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.at(offset, len, |disk| disk.discard(offset, len))
    }

    fn write_zeroes(&mut self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.at(offset, len, |disk| disk.write_zeroes(offset, len, unmap))
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

/// A request that is right but for what the bytes say.
fn request(guest: &mut Guest, input: &mut Input<'_>) {
    let odd = |input: &mut Input<'_>| input.below(16) == 15;
    let kinds = [0, 1, 4, 8, 11, 13, u32::from(input.u8())];
    let kind = kinds[usize::from(input.below(7))];
    let sector = if odd(input) { input.u64() } else { u64::from(input.below(70)) };
    let mut header = kind.to_le_bytes().to_vec();
    header.extend([0; 4]);
    header.extend(sector.to_le_bytes());
    let at = if odd(input) { guest.address(input) } else { DATA };
    guest.put(at, &header);
    let cut = if odd(input) { u32::from(input.below(17)) } else { 16 };
    let mut parts: Vec<Part> =
        vec![(at, cut, false), (at.wrapping_add(u64::from(cut)), 16 - cut, false)];
    match kind {
        4 => {}
        11 | 13 => parts.push(ranges(guest, input)),
        _ => {
            for _ in 0..=input.below(3) {
                let len = if odd(input) { input.length() } else { 512 * u32::from(input.below(4)) };
                parts.push((guest.address(input), len, (kind != 1) != odd(input)));
            }
        }
    }
    let status = if odd(input) { guest.address(input) } else { DATA + 0x100 };
    parts.push((status, 1, !odd(input)));
    guest.offer(0, &parts);
    if input.flag() {
        guest.notify(0);
    }
}

/// A list of ranges to discard or zero.
fn ranges(guest: &Guest, input: &mut Input<'_>) -> Part {
    let mut list = Vec::new();
    for _ in 0..input.below(20) {
        let (sector, sectors) = if input.flag() {
            (input.u64(), input.u32())
        } else {
            (input.below(70).into(), input.below(8).into())
        };
        list.extend(sector.to_le_bytes());
        list.extend(sectors.to_le_bytes());
        list.extend(u32::from(input.below(3)).to_le_bytes());
    }
    let len = u32::try_from(list.len()).unwrap_or(0);
    let address = DATA + 0x800;
    guest.put(address, &list);
    (address, if input.below(16) == 15 { input.length() } else { len }, false)
}
