//! The console, seen from the guest.

use super::request::MAX_OUTPUT_BYTES;
use super::{Console, ConsoleSink};
use crate::virtio::mock_driver::{DATA, MockDriver, RAM_BYTES};
use std::sync::{Arc, Mutex};
use virtio_bindings::virtio_mmio as reg;

const INPUT: usize = 0;
const OUTPUT: usize = 1;

#[derive(Clone, Default)]
struct Collected(Arc<Mutex<Vec<u8>>>);

impl ConsoleSink for Collected {
    fn output(&mut self, bytes: &[u8]) {
        self.0.lock().unwrap().extend(bytes);
    }
}

impl Collected {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn driver() -> (MockDriver, Collected) {
    let sink = Collected::default();
    let theirs = sink.clone();
    (MockDriver::running(16, 0, |io| Box::new(Console::new(Box::new(theirs), io))), sink)
}

#[test]
fn output_arrives_in_order() {
    let (mut driver, sink) = driver();
    driver.put(DATA, b"hello, ");
    driver.put(DATA + 0x1000, b"world\n");
    driver.offer(OUTPUT, &[(DATA, 7, false)]);
    driver.offer(OUTPUT, &[(DATA + 0x1000, 5, false), (DATA + 0x1005, 1, false)]);
    driver.notify(OUTPUT);
    assert_eq!(sink.take(), b"hello, world\n");
    assert_eq!(driver.used(OUTPUT), [(0, 0), (1, 0)]);
}

#[test]
fn output_longer_than_the_copy_buffer_is_whole() {
    let (mut driver, sink) = driver();
    let bytes: Vec<u8> = (0..10_000_u32).map(|index| index.to_le_bytes()[0]).collect();
    driver.put(DATA, &bytes);
    driver.request(OUTPUT, &[(DATA, 10_000, false)]);
    assert_eq!(sink.take(), bytes);
}

#[test]
fn malformed_output_is_dropped_and_returned() {
    let (mut driver, sink) = driver();
    let outside = RAM_BYTES as u64;
    let too_long = u32::try_from(MAX_OUTPUT_BYTES).unwrap() + 1;
    for part in
        [(DATA, 16, true), (outside, 1, false), (outside - 1, 2, false), (0, too_long, false)]
    {
        assert_eq!(driver.request(OUTPUT, &[part]), 0);
    }
    assert_eq!(sink.take(), []);
    driver.put(DATA, b"!");
    driver.request(OUTPUT, &[(DATA, 1, false)]);
    assert_eq!(sink.take(), b"!");
}

#[test]
fn buffers_for_input_are_never_used() {
    let (mut driver, _) = driver();
    driver.offer(INPUT, &[(DATA, 16, true)]);
    driver.notify(INPUT);
    assert_eq!(driver.used(INPUT), []);
    assert_eq!(driver.interrupts(), 0);
}

#[test]
fn a_reset_lets_it_start_again() {
    let (mut driver, sink) = driver();
    driver.set_available_index(OUTPUT, 999);
    driver.notify(OUTPUT);
    assert_eq!(driver.read(reg::VIRTIO_MMIO_STATUS), 0x4f);
    driver.initialise(0);
    driver.put(DATA, b"again");
    driver.request(OUTPUT, &[(DATA, 5, false)]);
    assert_eq!(sink.take(), b"again");
}
