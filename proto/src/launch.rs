//! The launch channel: what a parent process sends to the `lilbox-vmm` it has just started.
//!
//! The VMM's standard input is one end of a `SOCK_SEQPACKET` socket pair. The parent sends one packet,
//! [`LaunchRequest`] in CBOR, with the descriptors that [`LaunchRequest::fds`] names, in that order
//! (`SCM_RIGHTS`), and waits for one packet, [`LaunchReply`]. End of file instead of a reply means the VMM crashed.
//! If the parent's end closes before the reply was sent, the VMM ends: a killed command leaves no orphan.

use crate::code::Code;
use crate::guest::GuestConfig;
use crate::spec::BoxId;
use serde::{Deserialize, Serialize};

/// Largest request: a spec is some hundred bytes, an environment may be long.
pub const MAX_REQUEST_BYTES: usize = 128 << 10;

/// Most descriptors in one request (the kernel's own limit is 253, `unix(7)`).
pub const MAX_FDS: usize = 64;

/// Index into [`LaunchRequest::fds`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdIndex(pub u8);

/// What a descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FdRole {
    /// `/dev/kvm`.
    Kvm,
    /// The kernel: an uncompressed ELF `vmlinux`.
    Kernel,
    /// The initramfs with guest-init, without configuration.
    Initramfs,
    /// A disk's file; [`DeviceSpec::Block`] says which.
    Disk,
    /// Listening Unix stream socket: each connection is joined to the guest's agent port.
    AgentListener,
    /// Listening Unix stream socket of the control protocol.
    ControlListener,
    /// The box's lock file, with an exclusive `flock(2)` held on this open file description. Never unlocked: it ends
    /// with the process.
    Lock,
    /// The console log (read and write).
    ConsoleLog,
    /// The previous console log: the log is moved here when it has grown to its cap.
    ConsoleLogOld,
}

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRequest {
    /// [`crate::version::LAUNCH_PROTOCOL`] of the sender.
    pub protocol: u16,
    /// The box.
    pub box_id: BoxId,
    /// The virtual machine.
    pub machine: MachineSpec,
    /// What the guest is told.
    pub guest: GuestConfig,
    /// Roles of the descriptors that come with the packet.
    pub fds: Vec<FdRole>,
    /// How long the guest may take until it says hello.
    pub boot_timeout_ms: u64,
    /// How long an orderly stop may take before the VMM ends by itself.
    pub stop_grace_ms: u64,
    /// Whether the box ends with its parent: the launch channel then stays open after [`LaunchReply::Ready`], and the
    /// VMM ends at once when the parent's end of it closes.
    #[serde(default)]
    pub tied_to_parent: bool,
}

/// A virtual machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSpec {
    /// Number of vCPUs.
    pub cpus: u8,
    /// RAM in MiB.
    pub memory_mib: u32,
    /// Whether the guest sees `vmx`/`svm`.
    pub nested: bool,
    /// Whether there is a serial port with all kernel messages (written to the console log).
    pub debug_boot: bool,
    /// Devices, in the order of their addresses.
    pub devices: Vec<DeviceSpec>,
}

/// A virtio device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceSpec {
    /// A disk.
    Block {
        /// Its file.
        fd: FdIndex,
        /// Whether writes are refused by the host, whatever the guest does.
        read_only: bool,
        /// Serial that the guest finds it by, at most 20 bytes.
        serial: String,
    },
    /// The socket device between host and guest.
    Vsock,
    /// Entropy.
    Rng,
    /// `hvc0`, written to the console log.
    Console,
}

/// The VMM's one answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchReply {
    /// The guest's agent listens: the box is usable.
    Ready(Ready),
    /// It is not going to be.
    Failed(LaunchFailure),
}

/// How a start went.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ready {
    /// Process id of the VMM.
    pub pid: u32,
    /// Microseconds from the VMM's `main` until vCPUs ran.
    pub build_micros: u64,
    /// Microseconds from the VMM's `main` until the guest said hello.
    pub ready_micros: u64,
    /// Isolation layers in force, such as `seccomp` and `landlock`.
    pub isolation: Vec<String>,
    /// Version of the guest's kernel.
    pub kernel: String,
}

/// Why a box did not start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFailure {
    /// Code word.
    pub code: Code,
    /// What went wrong, with its cause.
    pub message: String,
    /// Last lines of the console.
    #[serde(default)]
    pub console_tail: Vec<String>,
    /// Last exit of a vCPU, if one ran.
    #[serde(default)]
    pub last_exit: Option<String>,
}
