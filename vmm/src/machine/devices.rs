//! From the specification of devices to devices on the bus.

use super::layout::{self, Slot};
use super::notice::{Notice, Notifier};
use crate::block::file::{Access, FileBackend, OpenError};
use crate::bus::{Bus, BusDevice, Overlap};
use crate::console_log::ConsoleLog;
use crate::hv::{self, Vm};
use crate::launch::{Disks, LaunchError};
use crate::virtio::blk::Block;
use crate::virtio::console::Console;
use crate::virtio::device::{GuestMemory, Interrupt, VirtioDevice};
use crate::virtio::io_thread::IoHandle;
use crate::virtio::rng::Rng;
use crate::virtio::transport::MmioTransport;
use crate::virtio::vsock::{Connector, GUEST_CID, Vsock, VsockConfig, VsockHandle};
use proto::agent::LIFECYCLE_PORT;
use proto::launch::DeviceSpec;
use std::collections::HashMap;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Offset of the register by which a driver tells that a queue has buffers (virtio 1.2 §4.2.2, `QueueNotify`).
const QUEUE_NOTIFY: u64 = 0x50;

/// Longest serial that a disk can have (virtio 1.2 §5.2.6.1).
const MAX_SERIAL_BYTES: usize = 20;

/// Devices that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// More devices than interrupts.
    #[error("there is no interrupt for device {0}")]
    NoSlot(usize),
    /// A disk's descriptor.
    #[error(transparent)]
    Descriptor(#[from] LaunchError),
    /// A disk's file.
    #[error("cannot use the file of disk `{serial}`")]
    Disk {
        /// Serial of the disk.
        serial: String,
        /// Why.
        #[source]
        source: OpenError,
    },
    /// A disk that the guest could not find.
    #[error("the serial `{0}` has more than {MAX_SERIAL_BYTES} bytes")]
    Serial(String),
    /// The vsock device.
    #[error("cannot make the vsock device")]
    Vsock(#[source] io::Error),
    /// A doorbell.
    #[error("cannot make a doorbell")]
    Doorbell(#[source] io::Error),
    /// The hypervisor refuses.
    #[error(transparent)]
    Hypervisor(#[from] hv::Error),
    /// The layout is wrong.
    #[error(transparent)]
    Overlap(#[from] Overlap),
}

/// Where devices work.
pub struct IoHandles<'a> {
    /// Disks: a slow one holds back no other device.
    pub disks: &'a IoHandle,
    /// All others.
    pub others: &'a IoHandle,
}

/// What devices are joined to.
pub struct Surroundings<'a> {
    /// Guest RAM.
    pub memory: &'a Arc<GuestMemory>,
    /// Where they work.
    pub io: IoHandles<'a>,
    /// Where the console goes.
    pub console_log: &'a ConsoleLog,
    /// The main thread.
    pub notifier: &'a Notifier,
    /// The agent's clients.
    pub agent_listener: UnixListener,
}

/// Devices on their bus.
pub struct Devices {
    /// The bus.
    pub bus: Bus,
    /// Their places, in order.
    pub slots: Vec<Slot>,
    /// A way to the guest, if it has vsock.
    pub vsock: Option<VsockHandle>,
    /// Whether the guest may open its lifecycle connection: set again when the main thread drops the last one.
    pub lifecycle_free: Arc<AtomicBool>,
}

impl BusDevice for MmioTransport {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        Self::read(self, offset, data);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        Self::write(self, offset, data);
    }
}

/// Makes the devices of a machine, in the order of their addresses.
///
/// # Errors
/// [`DeviceError`].
pub fn make(
    vm: &impl Vm,
    specs: &[DeviceSpec],
    disks: &mut Disks,
    surroundings: Surroundings<'_>,
) -> Result<Devices, DeviceError> {
    let Surroundings { memory, io, console_log, notifier, agent_listener } = surroundings;
    let mut agent_listener = Some(agent_listener);
    let mut devices = Devices {
        bus: Bus::default(),
        slots: Vec::with_capacity(specs.len()),
        vsock: None,
        lifecycle_free: Arc::new(AtomicBool::new(true)),
    };
    for (index, spec) in specs.iter().enumerate() {
        let slot = layout::slot(index).ok_or(DeviceError::NoSlot(index))?;
        let device: Box<dyn VirtioDevice> = match spec {
            DeviceSpec::Block { fd, read_only, serial } => {
                let file = disks.take(*fd)?;
                let access = if *read_only { Access::ReadOnly } else { Access::ReadWrite };
                if serial.len() > MAX_SERIAL_BYTES {
                    return Err(DeviceError::Serial(serial.clone()));
                }
                let backend = FileBackend::new(file, access)
                    .map_err(|source| DeviceError::Disk { serial: serial.clone(), source })?;
                Box::new(Block::new(Box::new(backend), *read_only, serial, io.disks))
            }
            DeviceSpec::Vsock => {
                let Some(agent_listener) = agent_listener.take() else {
                    return Err(LaunchError::TwiceTheDevice(DeviceSpec::Vsock).into());
                };
                let lifecycle =
                    lifecycle_connector(notifier.clone(), Arc::clone(&devices.lifecycle_free));
                let host_ports = HashMap::from([(LIFECYCLE_PORT, lifecycle)]);
                let config = VsockConfig { guest_cid: GUEST_CID, agent_listener, host_ports };
                let vsock = Vsock::new(config, io.others).map_err(DeviceError::Vsock)?;
                devices.vsock = Some(vsock.handle());
                Box::new(vsock)
            }
            DeviceSpec::Rng => Box::new(Rng::new(io.others)),
            DeviceSpec::Console => Box::new(Console::new(Box::new(console_log.clone()), io.others)),
        };
        let transport = connect(vm, device, slot, memory)?;
        devices.bus.insert_mmio(slot.address, layout::SLOT_BYTES, Box::new(transport))?;
        devices.slots.push(slot);
    }
    Ok(devices)
}

/// Gives a device its interrupt, its doorbells and its registers.
fn connect(
    vm: &impl Vm,
    device: Box<dyn VirtioDevice>,
    slot: Slot,
    memory: &Arc<GuestMemory>,
) -> Result<MmioTransport, DeviceError> {
    let interrupt = Interrupt::new(vm.irq_line(slot.gsi)?);
    let mut doorbells = Vec::new();
    for (index, _) in (0..).zip(device.queue_max_sizes()) {
        doorbells.push(match vm.doorbell(slot.address + QUEUE_NOTIFY, index)? {
            Some(doorbell) => doorbell,
            None => EventFd::new(EFD_NONBLOCK).map_err(DeviceError::Doorbell)?,
        });
    }
    Ok(MmioTransport::new(device, Arc::clone(memory), interrupt, doorbells))
}

/// The host's end of the lifecycle port: hands the connection to the main thread. One at a time, or a guest could
/// fill this process with descriptors.
fn lifecycle_connector(notifier: Notifier, free: Arc<AtomicBool>) -> Connector {
    Box::new(move || {
        if !free.swap(false, Ordering::SeqCst) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let pair = UnixStream::pair();
        if pair.is_err() {
            free.store(true, Ordering::SeqCst);
        }
        let (ours, theirs) = pair?;
        notifier.send(Notice::GuestCalls(ours));
        Ok(theirs)
    })
}
