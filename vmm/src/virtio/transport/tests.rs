//! The registers, as a driver and as an attacker would use them.

use crate::virtio::device::{Activation, Interrupt, VirtioDevice};
use crate::virtio::mock_driver::{EVENT_IDX, MockDriver, RAM_BYTES, VERSION_1};
use std::io;
use std::sync::{Arc, Mutex};
use virtio_bindings::virtio_mmio as reg;
use virtio_queue::{Queue, QueueT as _};

#[derive(Default)]
struct Log {
    starts: Vec<(u64, Vec<(u16, u64)>)>,
    stops: usize,
    interrupt: Option<Interrupt>,
    refuse: bool,
}

/// A device that remembers what its transport does to it.
struct Probe {
    log: Arc<Mutex<Log>>,
    config: [u8; 6],
}

impl VirtioDevice for Probe {
    fn id(&self) -> u32 {
        42
    }
    fn features(&self) -> u64 {
        1 << 5 | 1 << 40
    }
    fn queue_max_sizes(&self) -> &[u16] {
        &[64, 16]
    }
    fn read_config(&self, offset: u64, data: &mut [u8]) {
        for (to, from) in data
            .iter_mut()
            .zip(self.config.iter().skip(usize::try_from(offset).unwrap_or(usize::MAX)))
        {
            *to = *from;
        }
    }
    fn write_config(&mut self, offset: u64, data: &[u8]) {
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        for (to, from) in self.config.iter_mut().skip(at).zip(data) {
            *to = *from;
        }
    }
    fn start(&mut self, activation: Activation) -> io::Result<()> {
        let mut log = self.log.lock().unwrap();
        if log.refuse {
            return Err(io::Error::other("no"));
        }
        assert_eq!(log.starts.len(), log.stops, "never started twice");
        let queues = activation
            .queues
            .iter()
            .map(|queue| (queue.queue.size(), queue.queue.desc_table()))
            .collect();
        log.starts.push((activation.features, queues));
        log.interrupt = Some(activation.interrupt);
        Ok(())
    }
    fn stop(&mut self) -> Vec<Queue> {
        self.log.lock().unwrap().stops += 1;
        Vec::new()
    }
}

fn probe() -> (MockDriver, Arc<Mutex<Log>>) {
    let log = Arc::new(Mutex::new(Log::default()));
    let device = Probe { log: log.clone(), config: [1, 2, 3, 4, 5, 6] };
    (MockDriver::new(16, |_| Box::new(device)), log)
}

const STATUS: u32 = reg::VIRTIO_MMIO_STATUS;

#[test]
fn a_driver_finds_the_device() {
    let (mut driver, _) = probe();
    assert_eq!(driver.read(reg::VIRTIO_MMIO_MAGIC_VALUE).to_le_bytes(), *b"virt");
    assert_eq!(driver.read(reg::VIRTIO_MMIO_VERSION), 2);
    assert_eq!(driver.read(reg::VIRTIO_MMIO_DEVICE_ID), 42);
    let mut features = 0;
    for half in 0..2 {
        driver.write(reg::VIRTIO_MMIO_DEVICE_FEATURES_SEL, half);
        features |= u64::from(driver.read(reg::VIRTIO_MMIO_DEVICE_FEATURES)) << (32 * half);
    }
    assert_eq!(features, 1 << 5 | 1 << 40 | VERSION_1 | EVENT_IDX | 1 << 28);
    driver.write(reg::VIRTIO_MMIO_DEVICE_FEATURES_SEL, 2);
    assert_eq!(driver.read(reg::VIRTIO_MMIO_DEVICE_FEATURES), 0);
}

#[test]
fn the_queues_reach_the_device_as_configured() {
    let (mut driver, log) = probe();
    driver.initialise(1 << 5);
    assert_eq!(driver.read(STATUS), 15);
    let log = log.lock().unwrap();
    assert_eq!(log.starts, [(1 << 5 | VERSION_1, vec![(16, 0), (16, 0x1_0000)])]);
}

#[test]
fn the_last_step_written_twice_starts_once() {
    let (mut driver, log) = probe();
    driver.initialise(0);
    driver.write(STATUS, 15);
    assert_eq!(log.lock().unwrap().starts.len(), 1);
}

#[test]
fn steps_out_of_order_are_ignored() {
    for status in [2, 4, 8, 5, 9, 12, 14] {
        let (mut driver, log) = probe();
        driver.write(STATUS, status);
        assert_eq!(driver.read(STATUS) & 14, 0, "status {status}");
        assert!(log.lock().unwrap().starts.is_empty());
    }
}

#[test]
fn status_bits_do_not_vanish_without_a_reset() {
    let (mut driver, log) = probe();
    driver.initialise(0);
    driver.write(STATUS, 3);
    assert_eq!(driver.read(STATUS), 15);
    driver.write(STATUS, 0);
    assert_eq!(driver.read(STATUS), 0);
    assert_eq!(log.lock().unwrap().stops, 1);
}

#[test]
fn a_driver_that_failed_can_only_reset() {
    let (mut driver, log) = probe();
    driver.write(STATUS, 1);
    driver.write(STATUS, 0x81);
    driver.write(STATUS, 0x8f);
    assert_eq!(driver.read(STATUS), 0x81);
    assert!(log.lock().unwrap().starts.is_empty());
    driver.initialise(0);
    assert_eq!(driver.read(STATUS), 15);
}

#[test]
fn features_that_were_not_offered_are_refused() {
    for features in [VERSION_1 | 1 << 7, VERSION_1 | 1 << 63, 1 << 5, 0] {
        let (mut driver, _) = probe();
        driver.negotiate(features);
        assert_eq!(driver.read(STATUS), 3, "features {features:#x}");
    }
}

#[test]
fn features_are_frozen_once_accepted() {
    let (mut driver, log) = probe();
    driver.negotiate(VERSION_1);
    driver.write(reg::VIRTIO_MMIO_DRIVER_FEATURES_SEL, 0);
    driver.write(reg::VIRTIO_MMIO_DRIVER_FEATURES, 1 << 5);
    driver.configure_queue(0);
    driver.configure_queue(1);
    driver.write(STATUS, 15);
    assert_eq!(log.lock().unwrap().starts[0].0, VERSION_1);
}

/// CVE-2026-5747: queue registers stay writable after activation.
#[test]
fn queues_are_frozen_once_the_driver_is_ready() {
    let (mut driver, log) = probe();
    driver.initialise(0);
    for register in [
        reg::VIRTIO_MMIO_QUEUE_NUM,
        reg::VIRTIO_MMIO_QUEUE_DESC_LOW,
        reg::VIRTIO_MMIO_QUEUE_DESC_HIGH,
        reg::VIRTIO_MMIO_QUEUE_AVAIL_LOW,
        reg::VIRTIO_MMIO_QUEUE_USED_HIGH,
        reg::VIRTIO_MMIO_QUEUE_READY,
    ] {
        driver.write(register, 0);
    }
    assert_eq!(driver.read(reg::VIRTIO_MMIO_QUEUE_READY), 1);
    driver.write(STATUS, 15);
    assert_eq!(log.lock().unwrap().starts.len(), 1);
}

#[test]
fn a_ready_queue_is_not_changed_before_activation_either() {
    let (mut driver, log) = probe();
    driver.negotiate(VERSION_1);
    driver.configure_queue(1);
    driver.configure_queue(0);
    driver.write(reg::VIRTIO_MMIO_QUEUE_DESC_LOW, 0x7000);
    driver.write(STATUS, 15);
    assert_eq!(log.lock().unwrap().starts[0].1[0], (16, 0));
}

#[test]
fn queues_are_not_configured_before_features_are_agreed() {
    let (mut driver, _) = probe();
    driver.write(STATUS, 1);
    driver.write(STATUS, 3);
    driver.write(reg::VIRTIO_MMIO_QUEUE_READY, 1);
    assert_eq!(driver.read(reg::VIRTIO_MMIO_QUEUE_READY), 0);
}

/// A queue number without a queue took down another monitor.
#[test]
fn a_queue_that_does_not_exist_is_harmless() {
    for selected in [2, 3, 0xffff, 0x1_0000, u32::MAX] {
        let (mut driver, _) = probe();
        driver.negotiate(VERSION_1);
        driver.write(reg::VIRTIO_MMIO_QUEUE_SEL, selected);
        assert_eq!(driver.read(reg::VIRTIO_MMIO_QUEUE_NUM_MAX), 0);
        for register in (0..0x100).step_by(4) {
            if register != STATUS && register != reg::VIRTIO_MMIO_QUEUE_SEL {
                driver.write(register, 1);
            }
            driver.read(register);
        }
        assert_eq!(driver.read(reg::VIRTIO_MMIO_QUEUE_READY), 0);
        driver.write(reg::VIRTIO_MMIO_QUEUE_NOTIFY, selected);
    }
}

#[test]
fn a_queue_that_makes_no_sense_needs_a_reset() {
    let last = u32::try_from(RAM_BYTES).unwrap();
    let cases = [
        (reg::VIRTIO_MMIO_QUEUE_NUM, 0),
        (reg::VIRTIO_MMIO_QUEUE_NUM, 3),
        (reg::VIRTIO_MMIO_QUEUE_NUM, 32),
        (reg::VIRTIO_MMIO_QUEUE_NUM, 0x1_0010),
        (reg::VIRTIO_MMIO_QUEUE_NUM, u32::MAX),
        (reg::VIRTIO_MMIO_QUEUE_DESC_LOW, 8),
        (reg::VIRTIO_MMIO_QUEUE_AVAIL_LOW, 0x4001),
        (reg::VIRTIO_MMIO_QUEUE_USED_LOW, 0x8002),
        (reg::VIRTIO_MMIO_QUEUE_DESC_LOW, last - 16),
        (reg::VIRTIO_MMIO_QUEUE_AVAIL_LOW, last - 36),
        (reg::VIRTIO_MMIO_QUEUE_USED_LOW, last - 132),
        (reg::VIRTIO_MMIO_QUEUE_DESC_HIGH, u32::MAX),
        (reg::VIRTIO_MMIO_QUEUE_AVAIL_HIGH, 1),
        (reg::VIRTIO_MMIO_QUEUE_USED_HIGH, 0x8000_0000),
        (reg::VIRTIO_MMIO_QUEUE_READY, 0),
    ];
    for (register, value) in cases {
        let (mut driver, log) = probe();
        driver.negotiate(VERSION_1);
        driver.configure_queue(0);
        driver.configure_queue(1);
        driver.write(reg::VIRTIO_MMIO_QUEUE_READY, 0);
        driver.write(register, value);
        if register != reg::VIRTIO_MMIO_QUEUE_READY {
            driver.write(reg::VIRTIO_MMIO_QUEUE_READY, 1);
        }
        driver.write(STATUS, 15);
        assert_eq!(driver.read(STATUS), 0x4f, "{register:#x} = {value:#x}");
        assert_eq!(driver.read(reg::VIRTIO_MMIO_INTERRUPT_STATUS), 2);
        assert!(log.lock().unwrap().starts.is_empty());
        driver.write(reg::VIRTIO_MMIO_QUEUE_NOTIFY, 1);
        driver.initialise(0);
        assert_eq!(driver.read(STATUS), 15, "works after a reset");
        assert_eq!(driver.read(reg::VIRTIO_MMIO_INTERRUPT_STATUS), 0);
    }
}

#[test]
fn a_device_that_does_not_start_needs_a_reset() {
    let (mut driver, log) = probe();
    log.lock().unwrap().refuse = true;
    driver.initialise(0);
    assert_eq!(driver.read(STATUS), 0x4f);
    driver.write(STATUS, 0);
    assert_eq!(log.lock().unwrap().stops, 0, "it never ran");
}

#[test]
fn a_device_can_ask_for_a_reset() {
    let (mut driver, log) = probe();
    driver.initialise(0);
    log.lock().unwrap().interrupt.clone().unwrap().request_reset().unwrap();
    assert_eq!(driver.read(STATUS), 0x4f);
    // A driver that writes back what it has read neither sets nor clears the device's bit.
    driver.write(STATUS, 0x4f);
    assert_eq!(driver.read(STATUS), 0x4f);
    assert_eq!(driver.interrupts(), 1);
    driver.write(STATUS, 0);
    assert_eq!(driver.read(STATUS), 0);
}

#[test]
fn interrupts_are_acknowledged_bit_by_bit() {
    let (mut driver, log) = probe();
    driver.initialise(0);
    log.lock().unwrap().interrupt.clone().unwrap().signal(3).unwrap();
    assert_eq!(driver.read(reg::VIRTIO_MMIO_INTERRUPT_STATUS), 3);
    driver.write(reg::VIRTIO_MMIO_INTERRUPT_ACK, 1);
    assert_eq!(driver.read(reg::VIRTIO_MMIO_INTERRUPT_STATUS), 2);
    driver.write(reg::VIRTIO_MMIO_INTERRUPT_ACK, u32::MAX);
    assert_eq!(driver.read(reg::VIRTIO_MMIO_INTERRUPT_STATUS), 0);
}

#[test]
fn configuration_is_read_and_written_at_any_width() {
    let (mut driver, _) = probe();
    let mut read = |offset, width: usize| {
        let mut data = vec![0xaa; width];
        driver.transport.read(0x100 + offset, &mut data);
        data
    };
    assert_eq!(read(0, 8), [1, 2, 3, 4, 5, 6, 0, 0]);
    assert_eq!(read(5, 1), [6]);
    assert_eq!(read(6, 4), [0; 4]);
    assert_eq!(read(u64::MAX - 0x200, 2), [0; 2]);
    driver.transport.write(0x104, &[9, 9, 9, 9]);
    let mut data = [0; 6];
    driver.transport.read(0x100, &mut data);
    assert_eq!(data, [1, 2, 3, 4, 9, 9]);
}

#[test]
fn every_offset_width_and_value_is_answered() {
    let (mut driver, _) = probe();
    for value in [0, 1, 3, 11, 15, 0x80, 0xffff_ffff_u32] {
        for offset in (0..0x120).chain([0x1000, u64::MAX - 3, u64::MAX]) {
            for width in 0..=9 {
                let data = [value.to_le_bytes(), value.to_le_bytes(), value.to_le_bytes()].concat();
                driver.transport.write(offset, &data[..width]);
                let mut data = [0xee; 12];
                driver.transport.read(offset, &mut data[..width]);
                if offset < 0x100 && width != 4 {
                    assert_eq!(data[..width], [0; 12][..width], "no stale bytes");
                }
            }
        }
    }
}

#[test]
fn shared_memory_regions_do_not_exist() {
    let (mut driver, _) = probe();
    for select in [0, 1, u32::MAX] {
        driver.write(reg::VIRTIO_MMIO_SHM_SEL, select);
        for register in (reg::VIRTIO_MMIO_SHM_LEN_LOW..=reg::VIRTIO_MMIO_SHM_BASE_HIGH).step_by(4) {
            assert_eq!(driver.read(register), u32::MAX);
        }
    }
}
