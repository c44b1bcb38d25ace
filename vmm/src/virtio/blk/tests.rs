//! A disk, seen from the guest: through its transport, its queue and its event loop.

use super::Block;
use super::request::{MAX_DISCARD_SECTORS, MAX_RANGES, MAX_SEGMENTS, MAX_WRITE_ZEROES_SECTORS};
use crate::block::BlockBackend;
use crate::block::memory::MemoryBackend;
use crate::virtio::mock_driver::{
    DATA, EVENT_IDX, INDIRECT, MockDriver, NEXT, Part, RAM_BYTES, WRITE,
};
use std::io;
use std::sync::{Arc, Mutex};
use virtio_bindings::virtio_mmio as reg;
use vm_memory::VolatileSlice;

const HEADER: u64 = DATA;
const STATUS: u64 = DATA + 0x100;
const BUFFER: u64 = DATA + 0x1000;
const SECTORS: usize = 64;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;
/// What a status byte holds before the device has written it.
const UNTOUCHED: u8 = 0xcc;

/// A disk that a test can look into while its device has it.
#[derive(Clone)]
struct Shared(Arc<Mutex<MemoryBackend>>);

impl BlockBackend for Shared {
    fn len(&self) -> u64 {
        self.0.lock().unwrap().len()
    }
    fn read_vectored_at(&mut self, into: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        self.0.lock().unwrap().read_vectored_at(into, offset)
    }
    fn write_vectored_at(&mut self, from: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        self.0.lock().unwrap().write_vectored_at(from, offset)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().unwrap().flush()
    }
    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.0.lock().unwrap().discard(offset, len)
    }
    fn write_zeroes(&mut self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.0.lock().unwrap().write_zeroes(offset, len, unmap)
    }
}

struct Bench {
    driver: MockDriver,
    disk: Shared,
}

fn content() -> Vec<u8> {
    (0..SECTORS * 512).map(|index| ((index / 512) ^ index).to_le_bytes()[0]).collect()
}

impl Bench {
    fn with(features: u64, read_only: bool) -> Self {
        let disk = Shared(Arc::new(Mutex::new(MemoryBackend::new(content()))));
        let backend = disk.clone();
        let driver = MockDriver::running(16, features, |io| {
            Box::new(Block::new(Box::new(backend), read_only, "serial-0123456789-too-long", io))
        });
        Self { driver, disk }
    }

    fn new() -> Self {
        Self::with(0, false)
    }

    fn put_header(&self, kind: u32, sector: u64) {
        let mut header = kind.to_le_bytes().to_vec();
        header.extend([0; 4]);
        header.extend(sector.to_le_bytes());
        self.driver.put(HEADER, &header);
        self.driver.put(STATUS, &[UNTOUCHED]);
    }

    /// One request in the usual form; returns status and used length.
    fn request(&mut self, kind: u32, sector: u64, data: &[Part]) -> (u8, u32) {
        self.put_header(kind, sector);
        let parts = [&[(HEADER, 16, false)], data, &[(STATUS, 1, true)]].concat();
        let used = self.driver.request(0, &parts);
        (self.driver.bytes(STATUS, 1)[0], used)
    }

    fn bytes(&self) -> Vec<u8> {
        self.disk.0.lock().unwrap().bytes().to_vec()
    }

    /// A request with a list of ranges: first sector, sectors, flags.
    fn ranges(&mut self, kind: u32, ranges: &[(u64, u32, u32)]) -> u8 {
        let mut list = Vec::new();
        for (sector, sectors, flags) in ranges {
            list.extend(sector.to_le_bytes());
            list.extend(sectors.to_le_bytes());
            list.extend(flags.to_le_bytes());
        }
        self.driver.put(BUFFER, &list);
        self.request(kind, 0, &[(BUFFER, u32::try_from(list.len()).unwrap(), false)]).0
    }
}

#[test]
fn what_was_written_is_read_back() {
    let mut bench = Bench::new();
    bench.driver.put(BUFFER, &[0x5a; 1024]);
    assert_eq!(bench.request(OUT, 3, &[(BUFFER, 1024, false)]), (OK, 1));
    assert_eq!(bench.bytes()[3 * 512..5 * 512], [0x5a; 1024]);
    let pieces = [(BUFFER + 0x2000, 100, true), (BUFFER + 0x3000, 1436, true)];
    assert_eq!(bench.request(IN, 2, &pieces), (OK, 1537));
    let read =
        [bench.driver.bytes(BUFFER + 0x2000, 100), bench.driver.bytes(BUFFER + 0x3000, 1436)]
            .concat();
    assert_eq!(read, bench.bytes()[2 * 512..5 * 512]);
    assert_eq!(bench.driver.interrupts(), 2);
}

/// Drivers may cut a request into descriptors as they like (virtio 1.2 §2.7.4).
#[test]
fn a_request_may_be_cut_anywhere() {
    for cut in 1..16 {
        let mut bench = Bench::new();
        bench.put_header(OUT, 1);
        // Header and data in one run of memory, cut within the header or behind it.
        bench.driver.put(HEADER + 16, &[7; 512]);
        let parts =
            [(HEADER, cut, false), (HEADER + u64::from(cut), 528 - cut, false), (BUFFER, 1, true)];
        assert_eq!(bench.driver.request(0, &parts), 1);
        assert_eq!(bench.driver.bytes(BUFFER, 1), [OK]);
        assert_eq!(bench.bytes()[512..1024], [7; 512]);
    }
    let mut bench = Bench::new();
    bench.put_header(IN, 1);
    let bytewise: Vec<Part> = (0..13).map(|index| (HEADER + index, 1, false)).collect();
    // Data and status share the last descriptor.
    let parts = [bytewise.as_slice(), &[(HEADER + 13, 3, false), (BUFFER, 513, true)]].concat();
    assert_eq!(bench.driver.request(0, &parts), 513);
    assert_eq!(bench.driver.bytes(BUFFER, 512), content()[512..1024]);
    assert_eq!(bench.driver.bytes(BUFFER + 512, 1), [OK]);
}

#[test]
fn an_indirect_table_holds_a_whole_request() {
    let mut bench = Bench::new();
    bench.put_header(IN, 0);
    let table = BUFFER + 0x8000;
    bench.driver.put_descriptor(table, 0, HEADER, 16, NEXT, 1);
    for index in 1..=64 {
        bench.driver.put_descriptor(
            table,
            index,
            BUFFER + 512 * u64::from(index),
            512,
            NEXT | WRITE,
            index + 1,
        );
    }
    bench.driver.put_descriptor(table, 65, STATUS, 1, WRITE, 0);
    bench.driver.put_descriptor(MockDriver::table(0), 0, table, 66 * 16, INDIRECT, 0);
    bench.driver.offer_head(0, 0);
    bench.driver.notify(0);
    assert_eq!(bench.driver.used(0), [(0, 64 * 512 + 1)]);
    assert_eq!(bench.driver.bytes(BUFFER + 512, 64 * 512), content());
}

#[test]
fn flush_reaches_the_backend() {
    let mut bench = Bench::new();
    assert_eq!(bench.request(FLUSH, 0, &[]), (OK, 1));
    assert_eq!(bench.disk.0.lock().unwrap().flushes(), 1);
}

#[test]
fn the_serial_number_is_twenty_bytes_at_most() {
    let mut bench = Bench::new();
    assert_eq!(bench.request(GET_ID, 0, &[(BUFFER, 20, true)]), (OK, 21));
    assert_eq!(bench.driver.bytes(BUFFER, 20), b"serial-0123456789-to");
    assert_eq!(bench.request(GET_ID, 0, &[(BUFFER, 6, true)]), (OK, 7));
}

#[test]
fn ranges_are_zeroed_and_discarded() {
    let mut bench = Bench::new();
    assert_eq!(bench.ranges(WRITE_ZEROES, &[(1, 2, 0), (5, 1, 1)]), OK);
    assert_eq!(bench.ranges(DISCARD, &[(8, 2, 0)]), OK);
    let mut expected = content();
    expected[512..1536].fill(0);
    expected[5 * 512..6 * 512].fill(0);
    expected[8 * 512..10 * 512].fill(0xdd);
    assert_eq!(bench.bytes(), expected);
}

#[test]
fn ranges_against_the_rules_change_nothing() {
    let sectors = SECTORS as u64;
    type Case<'a> = (u32, &'a [(u64, u32, u32)], u8);
    let cases: &[Case<'_>] = &[
        (DISCARD, &[], IOERR),
        (DISCARD, &[(0, 1, 1)], UNSUPP),
        (DISCARD, &[(0, 1, 0x8000_0000)], UNSUPP),
        (WRITE_ZEROES, &[(0, 1, 2)], UNSUPP),
        (DISCARD, &[(sectors, 1, 0)], IOERR),
        (DISCARD, &[(sectors - 1, 2, 0)], IOERR),
        (DISCARD, &[(u64::MAX, 1, 0)], IOERR),
        (DISCARD, &[(u64::MAX / 512, 1, 0)], IOERR),
        (DISCARD, &[(0, MAX_DISCARD_SECTORS + 1, 0)], IOERR),
        (WRITE_ZEROES, &[(0, MAX_WRITE_ZEROES_SECTORS + 1, 0)], IOERR),
        (WRITE_ZEROES, &[(0, u32::MAX, 0)], IOERR),
        // The first range is fine, the second is not: neither is touched.
        (WRITE_ZEROES, &[(0, 1, 0), (sectors, 1, 0)], IOERR),
        (WRITE_ZEROES, &[(0, 1, 0); MAX_RANGES + 1], IOERR),
    ];
    let mut bench = Bench::new();
    for (kind, ranges, status) in cases {
        assert_eq!(bench.ranges(*kind, ranges), *status, "{kind} {ranges:?}");
    }
    bench.driver.put(BUFFER, &[0; 24]);
    assert_eq!(bench.request(DISCARD, 0, &[(BUFFER, 24, false)]).0, IOERR, "one range and a half");
    assert_eq!(bench.bytes(), content());
}

#[test]
fn sectors_off_the_disk_are_refused() {
    let sectors = SECTORS as u64;
    let mut bench = Bench::new();
    for sector in
        [sectors, sectors - 1, u64::MAX, u64::MAX / 512, u64::MAX / 512 + 1, 1 << 55, (1 << 55) - 2]
    {
        for (kind, write) in [(IN, true), (OUT, false)] {
            let (status, used) = bench.request(kind, sector, &[(BUFFER, 1024, write)]);
            assert_eq!((status, used), (IOERR, 1), "sector {sector}");
        }
    }
    assert_eq!(bench.bytes(), content());
    assert_eq!(bench.driver.bytes(BUFFER, 1024), [0; 1024]);
}

#[test]
fn parts_of_sectors_are_refused() {
    let mut bench = Bench::new();
    for len in [1, 511, 513] {
        assert_eq!(bench.request(IN, 0, &[(BUFFER, len, true)]).0, IOERR);
        assert_eq!(bench.request(OUT, 0, &[(BUFFER, len, false)]).0, IOERR);
    }
}

#[test]
fn unknown_operations_are_unsupported() {
    let mut bench = Bench::new();
    // 2 is SCSI passthrough (CVE-2026-48914), which does not exist here.
    for kind in [2, 3, 5, 14, 24, 0x8000_0000, u32::MAX] {
        assert_eq!(bench.request(kind, 0, &[(BUFFER, 512, true)]), (UNSUPP, 1));
    }
}

/// Another monitor let a guest remount a read-only share; here the driver's opinion is not asked.
#[test]
fn a_read_only_disk_is_not_written() {
    let mut bench = Bench::with(0, true);
    bench.driver.write(reg::VIRTIO_MMIO_DEVICE_FEATURES_SEL, 0);
    let features = bench.driver.read(reg::VIRTIO_MMIO_DEVICE_FEATURES);
    assert_eq!(features & (1 << 5 | 1 << 9 | 1 << 13 | 1 << 14), 1 << 5);
    assert_eq!(bench.request(OUT, 0, &[(BUFFER, 512, false)]), (IOERR, 1));
    assert_eq!(bench.ranges(DISCARD, &[(0, 1, 0)]), IOERR);
    assert_eq!(bench.ranges(WRITE_ZEROES, &[(0, 1, 0)]), IOERR);
    assert_eq!(bench.request(FLUSH, 0, &[]).0, OK);
    assert_eq!(bench.request(IN, 0, &[(BUFFER, 512, true)]), (OK, 513));
    assert_eq!(bench.bytes(), content());
}

#[test]
fn malformed_chains_end_in_an_error_status_if_they_have_room_for_one() {
    let outside = RAM_BYTES as u64;
    let mut bench = Bench::new();
    bench.put_header(IN, 0);
    let with_status: &[&[Part]] = &[
        &[(STATUS, 1, true)],
        &[(HEADER, 15, false), (STATUS, 1, true)],
        &[(HEADER, 16, false), (outside, 512, true), (STATUS, 1, true)],
        &[(outside - 8, 16, false), (BUFFER, 512, true), (STATUS, 1, true)],
        &[(u64::MAX - 4, 16, false), (STATUS, 1, true)],
        &[(BUFFER, 512, true), (HEADER, 16, false), (STATUS, 1, true)],
        &[(HEADER, 16, false), (0, 1 << 31, true), (STATUS, 1, true)],
    ];
    for parts in with_status {
        bench.driver.put(STATUS, &[UNTOUCHED]);
        assert_eq!(bench.driver.request(0, parts), 1, "{parts:?}");
        assert_eq!(bench.driver.bytes(STATUS, 1), [IOERR], "{parts:?}");
    }
    let without: &[&[Part]] = &[
        &[(HEADER, 16, false)],
        &[(HEADER, 16, false), (BUFFER, 0, true)],
        &[(HEADER, 16, false), (outside, 1, true)],
        &[(HEADER, 0, false)],
        // Longer than a chain can be at all.
        &[(HEADER, 16, false), (0, u32::MAX, true), (STATUS, 1, true)],
    ];
    for parts in without {
        assert_eq!(bench.driver.request(0, parts), 0, "{parts:?}");
    }
    assert_eq!(bench.request(IN, 0, &[(BUFFER, 512, true)]), (OK, 513), "and still works");
}

#[test]
fn a_looping_chain_comes_back_unanswered() {
    let mut bench = Bench::new();
    bench.put_header(IN, 0);
    bench.driver.put_descriptor(MockDriver::table(0), 0, HEADER, 16, NEXT, 1);
    bench.driver.put_descriptor(MockDriver::table(0), 1, BUFFER, 512, NEXT | WRITE, 1);
    bench.driver.offer_head(0, 0);
    bench.driver.notify(0);
    assert_eq!(bench.driver.used(0), [(0, 0)]);
    assert_eq!(bench.driver.bytes(BUFFER, 512), [0; 512]);
}

#[test]
fn a_queue_that_makes_no_sense_needs_a_reset_and_works_after_it() {
    let mut bench = Bench::new();
    bench.driver.set_available_index(0, 17);
    bench.driver.notify(0);
    assert_eq!(bench.driver.read(reg::VIRTIO_MMIO_STATUS), 0x4f);
    bench.driver.set_available_index(0, 1);
    bench.driver.notify(0);
    assert_eq!(bench.driver.used(0), [], "nothing happens before the reset");
    bench.driver.initialise(0);
    assert_eq!(bench.request(IN, 0, &[(BUFFER, 512, true)]), (OK, 513));
}

/// A reset that dropped the memory handle made every later notification vanish in another monitor.
#[test]
fn a_reset_forgets_the_queue_and_nothing_else() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        assert_eq!(bench.request(IN, 0, &[(BUFFER, 512, true)]).0, OK);
        bench.driver.initialise(EVENT_IDX);
    }
}

#[test]
fn nothing_is_touched_after_a_reset() {
    let mut bench = Bench::new();
    bench.put_header(IN, 0);
    bench.driver.offer(0, &[(HEADER, 16, false), (BUFFER, 512, true), (STATUS, 1, true)]);
    bench.driver.write(reg::VIRTIO_MMIO_QUEUE_NOTIFY, 0);
    bench.driver.write(reg::VIRTIO_MMIO_STATUS, 0);
    bench.driver.settle();
    assert_eq!(bench.driver.used(0), []);
    assert_eq!(bench.driver.bytes(STATUS, 1), [UNTOUCHED]);
}

#[test]
fn buffers_offered_before_the_device_runs_are_served() {
    let disk = Box::new(MemoryBackend::new(content()));
    let mut driver = MockDriver::new(16, |io| Box::new(Block::new(disk, false, "", io)));
    driver.negotiate(1 << 32);
    driver.configure_queue(0);
    driver.offer(0, &[(HEADER, 16, false), (BUFFER, 512, true), (STATUS, 1, true)]);
    driver.write(reg::VIRTIO_MMIO_STATUS, 15);
    driver.settle();
    assert_eq!(driver.used(0).len(), 1);
}

#[test]
fn a_burst_is_answered_with_one_interrupt() {
    let mut bench = Bench::with(EVENT_IDX, false);
    bench.put_header(IN, 0);
    for _ in 0..5 {
        bench.driver.offer(0, &[(HEADER, 16, false), (BUFFER, 512, true), (STATUS, 1, true)]);
    }
    bench.driver.notify(0);
    assert_eq!(bench.driver.used(0).len(), 5);
    assert_eq!(bench.driver.interrupts(), 1);
}

#[test]
fn the_driver_is_told_what_it_may_ask_for() {
    let mut bench = Bench::new();
    let mut config = [0; 60];
    bench.driver.transport.read(0x100, &mut config);
    assert_eq!(config[..8], (SECTORS as u64).to_le_bytes());
    assert_eq!(config[12..16], MAX_SEGMENTS.to_le_bytes());
    assert_eq!(config[20..24], 512_u32.to_le_bytes());
    assert_eq!(config[36..40], MAX_DISCARD_SECTORS.to_le_bytes());
    assert_eq!(config[48..52], MAX_WRITE_ZEROES_SECTORS.to_le_bytes());
    let mut beyond = [1; 8];
    bench.driver.transport.read(0x100 + 56, &mut beyond);
    assert_eq!(beyond, [1, 0, 0, 0, 0, 0, 0, 0]);
    bench.driver.transport.write(0x100, &[0xff; 8]);
    bench.driver.transport.read(0x100, &mut config);
    assert_eq!(config[..8], (SECTORS as u64).to_le_bytes());
}

#[test]
fn a_disk_ends_with_its_last_whole_sector() {
    let disk = Box::new(MemoryBackend::new(vec![0; 1023]));
    let mut driver = MockDriver::new(16, |io| Box::new(Block::new(disk, false, "", io)));
    let mut sectors = [0; 8];
    driver.transport.read(0x100, &mut sectors);
    assert_eq!(u64::from_le_bytes(sectors), 1);
}

/// What a failing disk says.
struct Failing(io::ErrorKind);

impl BlockBackend for Failing {
    fn len(&self) -> u64 {
        1 << 20
    }
    fn read_vectored_at(&mut self, _: &[VolatileSlice<'_>], _: u64) -> io::Result<()> {
        Err(self.0.into())
    }
    fn write_vectored_at(&mut self, _: &[VolatileSlice<'_>], _: u64) -> io::Result<()> {
        Err(self.0.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Err(self.0.into())
    }
    fn discard(&mut self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn write_zeroes(&mut self, _: u64, _: u64, _: bool) -> io::Result<()> {
        Err(self.0.into())
    }
}

#[test]
fn the_hosts_errors_become_statuses() {
    let mut bench = Bench::new();
    bench.driver = MockDriver::running(16, 0, |io| {
        Box::new(Block::new(Box::new(Failing(io::ErrorKind::StorageFull)), false, "", io))
    });
    assert_eq!(bench.request(IN, 0, &[(BUFFER, 512, true)]), (IOERR, 1));
    assert_eq!(bench.request(OUT, 0, &[(BUFFER, 512, false)]), (IOERR, 1));
    assert_eq!(bench.request(FLUSH, 0, &[]), (IOERR, 1));
    assert_eq!(bench.ranges(WRITE_ZEROES, &[(0, 1, 0)]), IOERR);
    assert_eq!(bench.ranges(DISCARD, &[(0, 1, 0)]), UNSUPP);
}
