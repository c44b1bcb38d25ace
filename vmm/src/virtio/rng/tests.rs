//! Entropy, seen from the guest.

use super::Rng;
use super::request::MAX_ANSWER_BYTES;
use crate::virtio::mock_driver::{DATA, MockDriver, RAM_BYTES};
use virtio_bindings::virtio_mmio as reg;

fn driver() -> MockDriver {
    MockDriver::running(16, 0, |io| Box::new(Rng::new(io)))
}

#[test]
fn a_buffer_is_filled_with_random_bytes() {
    let mut driver = driver();
    assert_eq!(driver.request(0, &[(DATA, 64, true)]), 64);
    let first = driver.bytes(DATA, 64);
    assert_eq!(driver.request(0, &[(DATA, 32, true), (DATA + 0x1000, 32, true)]), 64);
    assert_ne!(first[..32], driver.bytes(DATA, 32));
    assert_ne!(driver.bytes(DATA + 0x1000, 32), [0; 32]);
    assert_eq!(driver.bytes(DATA + 64, 64), [0; 64], "nothing beyond the buffer");
}

/// An uncapped request made another monitor allocate whatever the guest asked for.
#[test]
fn a_huge_request_gets_a_bounded_answer() {
    let mut driver = driver();
    let all = u32::try_from(RAM_BYTES).unwrap();
    let cap = u32::try_from(MAX_ANSWER_BYTES).unwrap();
    assert_eq!(driver.request(0, &[(DATA, all - u32::try_from(DATA).unwrap(), true)]), cap);
}

#[test]
fn malformed_requests_get_nothing() {
    let mut driver = driver();
    let outside = RAM_BYTES as u64;
    assert_eq!(driver.request(0, &[(DATA, 16, false)]), 0);
    assert_eq!(driver.request(0, &[(DATA, 16, false), (DATA + 64, 16, true)]), 0);
    assert_eq!(driver.request(0, &[(outside - 8, 16, true)]), 0);
    assert_eq!(driver.request(0, &[(0, u32::MAX, true)]), 0);
    assert_eq!(driver.request(0, &[(DATA, 0, true)]), 0);
    assert_eq!(driver.bytes(DATA, 128), [0; 128]);
    assert_eq!(driver.request(0, &[(DATA, 16, true)]), 16, "and still works");
}

#[test]
fn a_reset_lets_it_start_again() {
    let mut driver = driver();
    driver.set_available_index(0, 999);
    driver.notify(0);
    assert_eq!(driver.read(reg::VIRTIO_MMIO_STATUS), 0x4f);
    driver.initialise(0);
    assert_eq!(driver.request(0, &[(DATA, 16, true)]), 16);
}
