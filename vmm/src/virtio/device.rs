//! What a virtio device is to its transport, and the transport to a device.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use virtio_queue::Queue;
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::EventFd;

/// Guest RAM.
pub type GuestMemory = GuestMemoryMmap<()>;

/// `InterruptStatus` bit: a used buffer was returned (virtio 1.2 §4.2.2).
pub const INTERRUPT_USED: u32 = 1;
/// `InterruptStatus` bit: the configuration changed.
pub const INTERRUPT_CONFIG: u32 = 2;

/// An edge-triggered interrupt line into the guest. KVM: an irqfd. Other hypervisors: a call.
pub trait IrqLine: Send + Sync {
    /// Raises the line once.
    ///
    /// # Errors
    /// The hypervisor's error.
    fn raise(&self) -> io::Result<()>;
}

/// A device's way to interrupt the guest. Cheap to clone; all clones share the status register.
#[derive(Clone)]
pub struct Interrupt {
    status: Arc<AtomicU32>,
    broken: Arc<AtomicBool>,
    line: Arc<dyn IrqLine>,
}

impl Interrupt {
    /// An interrupt with a clear status register.
    pub fn new(line: Arc<dyn IrqLine>) -> Self {
        Self { status: Arc::new(AtomicU32::new(0)), broken: Arc::new(AtomicBool::new(false)), line }
    }

    /// Sets bits of the status register and raises the line.
    ///
    /// # Errors
    /// The hypervisor's error.
    pub fn signal(&self, bits: u32) -> io::Result<()> {
        self.status.fetch_or(bits, Ordering::SeqCst);
        self.line.raise()
    }

    /// Declares that the device cannot go on before the driver resets it: the guest has corrupted a queue. The
    /// transport shows `DEVICE_NEEDS_RESET` from now on (virtio 1.2 §2.1.2).
    ///
    /// # Errors
    /// The hypervisor's error.
    pub fn request_reset(&self) -> io::Result<()> {
        self.broken.store(true, Ordering::SeqCst);
        self.signal(INTERRUPT_CONFIG)
    }

    /// Whether a reset was requested and has not happened.
    #[must_use]
    pub fn needs_reset(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    /// Forgets everything pending; the driver has reset the device. Called when no device thread is at work.
    pub fn reset(&self) {
        self.status.store(0, Ordering::SeqCst);
        self.broken.store(false, Ordering::SeqCst);
    }

    /// The status register.
    #[must_use]
    pub fn status(&self) -> u32 {
        self.status.load(Ordering::SeqCst)
    }

    /// Clears bits of the status register (the driver acknowledges them).
    pub fn acknowledge(&self, bits: u32) {
        self.status.fetch_and(!bits, Ordering::SeqCst);
    }
}

/// A queue that the driver has set up, and the doorbell it rings for it.
pub struct ActiveQueue {
    /// The queue; its configuration is frozen (validated at DRIVER_OK, CVE-2026-5747).
    pub queue: Queue,
    /// Rung by the driver (ioeventfd, or by the transport where the hypervisor has none).
    pub doorbell: EventFd,
}

/// What a device needs to work.
pub struct Activation {
    /// Features both sides agreed on.
    pub features: u64,
    /// The queues, in order; all the device has.
    pub queues: Vec<ActiveQueue>,
    /// Guest RAM.
    pub memory: Arc<GuestMemory>,
    /// Way to the guest.
    pub interrupt: Interrupt,
}

/// A virtio device without its transport.
///
/// Duties of the device: every method is total, whatever offset or value the guest chose. `start` must not block; the
/// work is done on the device's I/O thread. `stop` must be idempotent and return only when no thread touches the
/// queues any more: reset and pause both use it.
///
/// Duties of the transport: `start` is called only with queues that passed `is_valid`, one for each that the device
/// has, and never twice without a `stop` between.
pub trait VirtioDevice: Send {
    /// Device id (virtio 1.2 §5).
    fn id(&self) -> u32;
    /// Features offered, without those that the transport itself adds (`VERSION_1`, `EVENT_IDX`, `INDIRECT_DESC`).
    fn features(&self) -> u64;
    /// Largest size of each queue; its length is the number of queues.
    fn queue_max_sizes(&self) -> &[u16];
    /// Reads configuration space; bytes beyond its end are left as they are (the transport zeroes them).
    fn read_config(&self, offset: u64, data: &mut [u8]);
    /// Writes configuration space; what is not writable is ignored.
    fn write_config(&mut self, offset: u64, data: &[u8]);
    /// Begins work.
    ///
    /// # Errors
    /// When the device cannot; the transport then sets `DEVICE_NEEDS_RESET`.
    fn start(&mut self, activation: Activation) -> io::Result<()>;
    /// Ends work and returns the queues' state, in order; empty if it was not started.
    fn stop(&mut self) -> Vec<Queue>;
    /// Learns, after a stop, that it was a reset by the driver, which may never come back: whoever waits for it is told.
    fn driver_left(&mut self) {}
}
