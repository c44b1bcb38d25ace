//! virtio-mmio version 2: the registers of one device (virtio 1.2 §4.2).
//!
//! # Trust
//! Offsets, widths and values come from the guest, and from several of its processors in any order. Every register is
//! total. The configuration of queues is plain data until `DRIVER_OK`; then it is validated, turned into queues that
//! the device owns, and no register reaches them any more (CVE-2026-5747). A reset forgets the queues and nothing else:
//! memory and doorbells stay, so the device works again after it.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod queue_config;

use super::device::{Activation, ActiveQueue, GuestMemory, Interrupt, VirtioDevice};
use super::fault_log::FaultLog;
use queue_config::{QueueConfig, QueueConfigError};
use std::io;
use std::sync::Arc;
use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_DRIVER_OK,
    VIRTIO_CONFIG_S_FAILED, VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET,
    VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_mmio as reg;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vmm_sys_util::eventfd::EventFd;

/// "virt", little-endian.
const MAGIC: u32 = 0x7472_6976;
/// The only version that virtio 1.x knows.
const VERSION: u32 = 2;
/// "lilb", little-endian.
const VENDOR: u32 = 0x626c_696c;

/// Features that the transport adds to those of each device.
const TRANSPORT_FEATURES: u64 =
    1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_RING_F_EVENT_IDX | 1 << VIRTIO_RING_F_INDIRECT_DESC;

/// The steps of initialisation, in order; each requires all before it (virtio 1.2 §3.1.1).
const STEPS: [u32; 4] = [
    VIRTIO_CONFIG_S_ACKNOWLEDGE,
    VIRTIO_CONFIG_S_DRIVER,
    VIRTIO_CONFIG_S_FEATURES_OK,
    VIRTIO_CONFIG_S_DRIVER_OK,
];

/// Why a device did not start although the driver asked for it.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("queue {index}: {source}")]
    Queue { index: usize, source: QueueConfigError },
    #[error("cannot duplicate a doorbell: {0}")]
    Doorbell(io::Error),
    #[error("the device does not start: {0}")]
    Device(io::Error),
}

/// One device on the guest's bus.
pub struct MmioTransport {
    device: Box<dyn VirtioDevice>,
    memory: Arc<GuestMemory>,
    interrupt: Interrupt,
    doorbells: Vec<EventFd>,
    queues: Vec<QueueConfig>,
    /// `DEVICE_NEEDS_RESET` is kept in `interrupt`, since the device's thread sets it.
    status: u32,
    driver_features: u64,
    device_features_sel: u32,
    driver_features_sel: u32,
    queue_sel: u32,
    /// `start` has succeeded and `stop` was not called.
    running: bool,
    faults: FaultLog,
}

impl MmioTransport {
    /// A device after reset.
    ///
    /// `doorbells` holds one non-blocking event per queue of the device, in order. Where the hypervisor can, it rings them
    /// itself on a write of the queue's number to `QueueNotify` (offset 0x50), and such a write never comes here.
    #[must_use]
    pub fn new(
        device: Box<dyn VirtioDevice>,
        memory: Arc<GuestMemory>,
        interrupt: Interrupt,
        doorbells: Vec<EventFd>,
    ) -> Self {
        let queues = device.queue_max_sizes().iter().copied().map(QueueConfig::new).collect();
        Self {
            device,
            memory,
            interrupt,
            doorbells,
            queues,
            status: 0,
            driver_features: 0,
            device_features_sel: 0,
            driver_features_sel: 0,
            queue_sel: 0,
            running: false,
            faults: FaultLog::new("virtio-mmio"),
        }
    }

    /// Answers a read of `data.len()` bytes at `offset` from the device's base address.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if let Some(offset) = offset.checked_sub(u64::from(reg::VIRTIO_MMIO_CONFIG)) {
            self.device.read_config(offset, data);
        } else if let (Ok(register), Ok(data)) =
            (u32::try_from(offset), <&mut [u8; 4]>::try_from(data))
        {
            *data = self.read_register(register).to_le_bytes();
        } else {
            self.faults.note("a register was read that is not four bytes wide");
        }
    }

    /// Takes a write of `data` at `offset` from the device's base address.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        if let Some(offset) = offset.checked_sub(u64::from(reg::VIRTIO_MMIO_CONFIG)) {
            self.device.write_config(offset, data);
        } else if let (Ok(register), Ok(data)) = (u32::try_from(offset), <[u8; 4]>::try_from(data))
        {
            self.write_register(register, u32::from_le_bytes(data));
        } else {
            self.faults.note("a register was written that is not four bytes wide");
        }
    }

    /// Stops the device and forgets what the driver has set, as the driver does by writing zero to `Status`.
    pub fn reset(&mut self) {
        if self.running {
            self.device.stop();
            self.device.driver_left();
            self.running = false;
        }
        // Only now: no device thread can set a bit after this.
        self.interrupt.reset();
        self.status = 0;
        self.driver_features = 0;
        self.device_features_sel = 0;
        self.driver_features_sel = 0;
        self.queue_sel = 0;
        for queue in &mut self.queues {
            queue.reset();
        }
    }

    fn offered_features(&self) -> u64 {
        self.device.features() | TRANSPORT_FEATURES
    }

    fn selected_queue(&self) -> Option<&QueueConfig> {
        self.queues.get(usize::try_from(self.queue_sel).ok()?)
    }

    fn read_register(&mut self, register: u32) -> u32 {
        match register {
            reg::VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            reg::VIRTIO_MMIO_VERSION => VERSION,
            reg::VIRTIO_MMIO_DEVICE_ID => self.device.id(),
            reg::VIRTIO_MMIO_VENDOR_ID => VENDOR,
            reg::VIRTIO_MMIO_DEVICE_FEATURES => {
                half(self.offered_features(), self.device_features_sel)
            }
            reg::VIRTIO_MMIO_QUEUE_NUM_MAX => {
                self.selected_queue().map_or(0, |queue| u32::from(queue.max_size()))
            }
            reg::VIRTIO_MMIO_QUEUE_READY => {
                self.selected_queue().map_or(0, |queue| u32::from(queue.ready))
            }
            reg::VIRTIO_MMIO_INTERRUPT_STATUS => self.interrupt.status(),
            reg::VIRTIO_MMIO_STATUS => self.status(),
            // No shared memory region exists, whichever is selected (virtio 1.2 §4.2.2.1).
            reg::VIRTIO_MMIO_SHM_LEN_LOW
            | reg::VIRTIO_MMIO_SHM_LEN_HIGH
            | reg::VIRTIO_MMIO_SHM_BASE_LOW
            | reg::VIRTIO_MMIO_SHM_BASE_HIGH => u32::MAX,
            // No device changes its configuration while it runs, so a driver never sees half a change.
            reg::VIRTIO_MMIO_CONFIG_GENERATION => 0,
            _ => {
                self.faults.note(format_args!("register {register:#x} cannot be read"));
                0
            }
        }
    }

    fn status(&self) -> u32 {
        if self.interrupt.needs_reset() {
            self.status | VIRTIO_CONFIG_S_NEEDS_RESET
        } else {
            self.status
        }
    }

    fn write_register(&mut self, register: u32, value: u32) {
        match register {
            reg::VIRTIO_MMIO_DEVICE_FEATURES_SEL => self.device_features_sel = value,
            reg::VIRTIO_MMIO_DRIVER_FEATURES_SEL => self.driver_features_sel = value,
            reg::VIRTIO_MMIO_DRIVER_FEATURES => self.write_driver_features(value),
            reg::VIRTIO_MMIO_QUEUE_SEL => self.queue_sel = value,
            reg::VIRTIO_MMIO_QUEUE_NOTIFY => self.notify(value),
            reg::VIRTIO_MMIO_INTERRUPT_ACK => self.interrupt.acknowledge(value),
            reg::VIRTIO_MMIO_STATUS => self.write_status(value),
            // Selecting any of the regions that do not exist changes nothing.
            reg::VIRTIO_MMIO_SHM_SEL => {}
            reg::VIRTIO_MMIO_QUEUE_NUM
            | reg::VIRTIO_MMIO_QUEUE_READY
            | reg::VIRTIO_MMIO_QUEUE_DESC_LOW
            | reg::VIRTIO_MMIO_QUEUE_DESC_HIGH
            | reg::VIRTIO_MMIO_QUEUE_AVAIL_LOW
            | reg::VIRTIO_MMIO_QUEUE_AVAIL_HIGH
            | reg::VIRTIO_MMIO_QUEUE_USED_LOW
            | reg::VIRTIO_MMIO_QUEUE_USED_HIGH => self.configure_queue(register, value),
            _ => self.faults.note(format_args!("register {register:#x} cannot be written")),
        }
    }

    fn write_driver_features(&mut self, value: u32) {
        if self.status & VIRTIO_CONFIG_S_DRIVER == 0
            || self.status & VIRTIO_CONFIG_S_FEATURES_OK != 0
        {
            self.faults.note("features are written outside of their negotiation");
            return;
        }
        let value = u64::from(value);
        match self.driver_features_sel {
            0 => self.driver_features = self.driver_features & !0xffff_ffff | value,
            1 => self.driver_features = self.driver_features & 0xffff_ffff | value << 32,
            _ => self.faults.note("features are written that do not exist"),
        }
    }

    fn configure_queue(&mut self, register: u32, value: u32) {
        const SETTLED: u32 = VIRTIO_CONFIG_S_DRIVER_OK | VIRTIO_CONFIG_S_FAILED;
        if self.status & VIRTIO_CONFIG_S_FEATURES_OK == 0 || self.status & SETTLED != 0 {
            self.faults.note(format_args!(
                "queue register {register:#x} is written at status {:#x}",
                self.status
            ));
            return;
        }
        let queue =
            usize::try_from(self.queue_sel).ok().and_then(|index| self.queues.get_mut(index));
        let Some(queue) = queue else {
            self.faults.note(format_args!("queue {} does not exist", self.queue_sel));
            return;
        };
        if register == reg::VIRTIO_MMIO_QUEUE_READY {
            queue.ready = value & 1 != 0;
            return;
        }
        if queue.ready {
            self.faults.note(format_args!("queue {} is changed while it is ready", self.queue_sel));
            return;
        }
        match register {
            reg::VIRTIO_MMIO_QUEUE_NUM => queue.size = value,
            reg::VIRTIO_MMIO_QUEUE_DESC_LOW => set_low(&mut queue.descriptors, value),
            reg::VIRTIO_MMIO_QUEUE_DESC_HIGH => set_high(&mut queue.descriptors, value),
            reg::VIRTIO_MMIO_QUEUE_AVAIL_LOW => set_low(&mut queue.available, value),
            reg::VIRTIO_MMIO_QUEUE_AVAIL_HIGH => set_high(&mut queue.available, value),
            reg::VIRTIO_MMIO_QUEUE_USED_LOW => set_low(&mut queue.used, value),
            reg::VIRTIO_MMIO_QUEUE_USED_HIGH => set_high(&mut queue.used, value),
            _ => {}
        }
    }

    fn notify(&mut self, queue: u32) {
        let doorbell = usize::try_from(queue).ok().and_then(|index| self.doorbells.get(index));
        match doorbell {
            Some(doorbell) if self.running => {
                if let Err(error) = doorbell.write(1) {
                    self.faults
                        .note(format_args!("cannot ring the doorbell of queue {queue}: {error}"));
                }
            }
            Some(_) => self
                .faults
                .note(format_args!("queue {queue} is notified while the device does not run")),
            None => self.faults.note(format_args!("queue {queue} is notified and does not exist")),
        }
    }

    fn write_status(&mut self, value: u32) {
        if value == 0 {
            self.reset();
            return;
        }
        // The device's own bit; drivers write back what they have read.
        let value = value & !VIRTIO_CONFIG_S_NEEDS_RESET;
        if self.status & !value != 0 {
            self.faults.note(format_args!(
                "status {:#x} is lowered to {value:#x} without a reset",
                self.status
            ));
            return;
        }
        if value & VIRTIO_CONFIG_S_FAILED != 0 {
            // The driver has given up; only a reset leads on from here.
            self.status |= VIRTIO_CONFIG_S_FAILED;
            return;
        }
        let mut required = 0;
        for step in STEPS {
            if value & !self.status & step != 0 {
                if self.status & required != required {
                    self.faults.note(format_args!(
                        "status {value:#x} is written at status {:#x}",
                        self.status
                    ));
                    return;
                }
                match step {
                    // Left clear, which tells the driver that its choice is refused (virtio 1.2 §3.1.1).
                    VIRTIO_CONFIG_S_FEATURES_OK if !self.features_are_acceptable() => return,
                    VIRTIO_CONFIG_S_DRIVER_OK => self.start(),
                    _ => {}
                }
                self.status |= step;
            }
            required |= step;
        }
    }

    fn features_are_acceptable(&mut self) -> bool {
        let unknown = self.driver_features & !self.offered_features();
        let modern = self.driver_features & 1 << VIRTIO_F_VERSION_1 != 0;
        if unknown != 0 || !modern {
            self.faults.note(format_args!("features {:#x} are refused", self.driver_features));
        }
        unknown == 0 && modern
    }

    fn start(&mut self) {
        if self.running {
            return;
        }
        match self.try_start() {
            Ok(()) => self.running = true,
            Err(error) => {
                self.faults.note(&error);
                if let Err(error) = self.interrupt.request_reset() {
                    self.faults.note(format_args!("cannot interrupt the guest: {error}"));
                }
            }
        }
    }

    fn try_start(&mut self) -> Result<(), StartError> {
        let event_idx = self.driver_features & 1 << VIRTIO_RING_F_EVENT_IDX != 0;
        let mut queues = Vec::with_capacity(self.queues.len());
        for (index, (config, doorbell)) in self.queues.iter().zip(&self.doorbells).enumerate() {
            let queue = config
                .build(&self.memory, event_idx)
                .map_err(|source| StartError::Queue { index, source })?;
            let doorbell = doorbell.try_clone().map_err(StartError::Doorbell)?;
            queues.push(ActiveQueue { queue, doorbell });
        }
        let activation = Activation {
            features: self.driver_features,
            queues,
            memory: Arc::clone(&self.memory),
            interrupt: self.interrupt.clone(),
        };
        self.device.start(activation).map_err(StartError::Device)
    }
}

impl Drop for MmioTransport {
    fn drop(&mut self) {
        self.reset();
    }
}

/// Half number `select` of `value`; there are two.
fn half(value: u64, select: u32) -> u32 {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    match select {
        0 => u32::from_le_bytes([a, b, c, d]),
        1 => u32::from_le_bytes([e, f, g, h]),
        _ => 0,
    }
}

fn set_low(address: &mut u64, value: u32) {
    *address = *address & !0xffff_ffff | u64::from(value);
}

fn set_high(address: &mut u64, value: u32) {
    *address = *address & 0xffff_ffff | u64::from(value) << 32;
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "the numbers here are ours")]
mod tests;
