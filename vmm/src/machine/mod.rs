//! A machine: built from a specification, run by its processors' threads, ended by the main thread.

pub mod boot;
pub mod devices;
pub mod layout;
pub mod notice;
pub mod ram;
pub mod run;
#[cfg(target_arch = "x86_64")]
mod serial;

use crate::arch::x86_64::cpuid::{self, Leaf, Policy};
use crate::arch::x86_64::{VcpuSetup, mptable, msr};
use crate::bus::Bus;
use crate::console_log::ConsoleLog;
use crate::hv::{self, Hypervisor};
use crate::launch::Descriptors;
use crate::sandbox::Confined;
use crate::sandbox::syscalls::Role;
use crate::virtio::io_thread::IoThread;
use crate::virtio::vsock::VsockHandle;
use devices::{DeviceError, IoHandles, Surroundings};
use notice::Notices;
use proto::code::Code;
use proto::launch::LaunchRequest;
use run::{Processors, SpawnError};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The console log and its predecessor each hold this much at most.
const CONSOLE_LOG_BYTES: u64 = 1 << 20;

/// A machine that cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The hypervisor.
    #[error(transparent)]
    Hypervisor(#[from] hv::Error),
    /// More vCPUs than the host can run.
    #[error("the host can give a machine {max} vCPUs, {wanted} were asked for")]
    TooManyCpus {
        /// Asked for.
        wanted: u8,
        /// Possible.
        max: usize,
    },
    /// RAM.
    #[error(transparent)]
    Ram(#[from] ram::RamError),
    /// Processors.
    #[error(transparent)]
    Processors(#[from] SpawnError),
    /// Devices.
    #[error(transparent)]
    Devices(#[from] DeviceError),
    /// Kernel and initramfs.
    #[error(transparent)]
    Boot(#[from] boot::BootError),
    /// The console log.
    #[error("cannot use the console log")]
    ConsoleLog(#[source] io::Error),
    /// A thread or an event.
    #[error("cannot start {0}")]
    Start(&'static str, #[source] io::Error),
    /// The MP table.
    #[error("cannot write the MP table")]
    MpTable(#[source] vm_memory::GuestMemoryError),
}

impl BuildError {
    /// Code word for the reply.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Ram(_) => Code::NoMemory,
            Self::Hypervisor(error) if is_out_of_memory(error) => Code::NoMemory,
            Self::Processors(SpawnError::Make { source, .. }) if is_out_of_memory(source) => {
                Code::NoMemory
            }
            Self::Hypervisor(_) | Self::Processors(_) => Code::KvmUnusable,
            Self::TooManyCpus { .. } => Code::InvalidValue,
            Self::Boot(boot::BootError::Kernel(_)) => Code::KernelInvalid,
            Self::Boot(boot::BootError::TooSmall { .. }) => Code::InvalidValue,
            Self::Boot(
                boot::BootError::CommandLineLength(_) | boot::BootError::CommandLineCharacters,
            ) => Code::InvalidValue,
            _ => Code::Io,
        }
    }
}

fn is_out_of_memory(error: &hv::Error) -> bool {
    error.source.kind() == io::ErrorKind::OutOfMemory
}

/// A running machine.
pub struct Machine {
    processors: Processors,
    bus: Arc<Bus>,
    io: [IoThread; 2],
    /// A way to the guest.
    pub vsock: Option<VsockHandle>,
    /// Where the console goes.
    pub console_log: ConsoleLog,
    /// What the machine's threads say.
    pub notices: Notices,
    /// See [`devices::Devices::lifecycle_free`].
    pub lifecycle_free: Arc<AtomicBool>,
    /// Held until the machine is gone: whoever can take it knows that the box does not run.
    _lock: OwnedFd,
}

/// What the machine leaves to its builder.
pub struct Built {
    /// The machine, running.
    pub machine: Machine,
    /// The control socket.
    pub control_listener: std::os::unix::net::UnixListener,
}

impl Machine {
    /// Builds a machine and lets it run. `confined` proves that whatever the guest does, it does to a confined process.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn build(
        confined: &Confined,
        request: &LaunchRequest,
        descriptors: Descriptors,
    ) -> Result<Built, BuildError> {
        let Descriptors {
            kvm,
            mut kernel,
            mut initramfs,
            agent_listener,
            control_listener,
            lock,
            console_log,
            console_log_old,
            mut disks,
        } = descriptors;
        let spec = &request.machine;
        let ram_mib = u64::from(spec.memory_mib);
        let ram_bytes = ram_mib << 20;
        ram::check_against_host(ram_mib, host_ram_bytes())?;
        let memory = Arc::new(ram::map(ram_bytes)?);

        let hypervisor = hv::Native::new(kvm)?;
        let max = hypervisor.max_vcpus();
        if usize::from(spec.cpus) > max {
            return Err(BuildError::TooManyCpus { wanted: spec.cpus, max });
        }
        let vm = Arc::new(hypervisor.create_vm()?);
        hv::Vm::map(&*vm, &memory)?;

        let (notifier, notices) =
            notice::channel().map_err(|error| BuildError::Start("the main thread", error))?;
        let supported = hypervisor.supported_cpuid()?;
        let setups = setups(&supported, Policy { cpus: spec.cpus, nested: spec.nested });
        // Their threads make the processors while this one goes on.
        let pending = Processors::make(&vm, setups, &notifier, confined.restrict(Role::Vcpu))?;

        let console_log = ConsoleLog::new(console_log, console_log_old, CONSOLE_LOG_BYTES)
            .map_err(BuildError::ConsoleLog)?;
        let io = [
            IoThread::spawn("disks", confined.restrict(Role::Io))
                .map_err(|error| BuildError::Start("the disks' thread", error))?,
            IoThread::spawn("devices", confined.restrict(Role::Io))
                .map_err(|error| BuildError::Start("the devices' thread", error))?,
        ];
        let surroundings = Surroundings {
            memory: &memory,
            io: IoHandles { disks: io[0].handle(), others: io[1].handle() },
            console_log: &console_log,
            notifier: &notifier,
            agent_listener,
        };
        let mut devices = devices::make(&*vm, &spec.devices, &mut disks, surroundings)?;
        #[cfg(target_arch = "x86_64")]
        if spec.debug_boot {
            serial::attach(&*vm, &mut devices.bus, &console_log)?;
        }

        let command_line = boot::command_line(spec.debug_boot, &devices.slots);
        let payload = boot::Payload {
            kernel: &mut kernel,
            initramfs: &mut initramfs,
            config: &request.guest,
            command_line: &command_line,
        };
        let entry = boot::load(&memory, ram_bytes, payload)?;
        let (signature, features) = identity(&supported);
        mptable::write(&memory, spec.cpus, signature, features).map_err(BuildError::MpTable)?;

        confined.restrict(Role::Main)()
            .map_err(|error| BuildError::Start("the main thread's confinement", error))?;
        let bus = Arc::new(devices.bus);
        let processors = pending.start(&bus, entry)?;
        let machine = Self {
            processors,
            bus,
            io,
            vsock: devices.vsock,
            console_log,
            notices,
            lifecycle_free: devices.lifecycle_free,
            _lock: lock,
        };
        Ok(Built { machine, control_listener })
    }

    /// The last exit of each processor, in words.
    #[must_use]
    pub fn last_exits(&self) -> String {
        self.processors.last_exits()
    }

    /// Ends the machine: processors first, so that nothing new comes; then devices, which finish what they are at;
    /// then their threads, and at last the lock.
    pub fn stop(self) {
        let exits = self.processors.exits();
        self.processors.stop();
        drop(self.bus);
        drop(self.io);
        log::info!("machine stopped after {exits} exits");
    }
}

fn host_ram_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

fn setups(supported: &[Leaf], policy: Policy) -> Vec<VcpuSetup> {
    let msrs = msr::boot_values();
    (0..policy.cpus)
        .map(|id| VcpuSetup {
            cpuid: cpuid::for_vcpu(supported, policy, id),
            msrs: Arc::clone(&msrs),
        })
        .collect()
}

/// EAX and EDX of leaf 1, for the MP table.
fn identity(supported: &[Leaf]) -> (u32, u32) {
    supported.iter().find(|leaf| leaf.function == 1).map_or((0, 0), |leaf| (leaf.eax, leaf.edx))
}
