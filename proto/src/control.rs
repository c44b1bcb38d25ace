//! The control socket of a running box: a Unix stream socket, one request per connection.
//!
//! A request is one [`crate::frame`] of kind [`KIND_REQUEST`], its answer one of kind [`KIND_REPLY`]. After a
//! `Stop` the VMM keeps the connection open until its process ends: end of file tells the client that the box is
//! down and its lock free.

use crate::code::Code;
use serde::{Deserialize, Serialize};

/// Frame kind of a [`ControlRequest`].
pub const KIND_REQUEST: u8 = 64;

/// Frame kind of a [`ControlReply`].
pub const KIND_REPLY: u8 = 65;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlRequest {
    /// [`crate::version::CONTROL_PROTOCOL`] of the sender.
    pub protocol: u16,
    /// What to do.
    pub op: ControlOp,
}

/// What a VMM can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlOp {
    /// Tell how you are.
    Status,
    /// Stop in good order: the agent's power-off, then an end by force after the grace.
    Stop {
        /// The grace.
        grace_ms: u64,
    },
    /// End now.
    Kill,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlReply {
    /// How the VMM is.
    Status(VmmStatus),
    /// The request is being carried out; end of file follows when the process has ended.
    Stopping,
    /// The request is refused.
    Refused {
        /// Code word.
        code: Code,
        /// Explanation.
        message: String,
    },
}

/// State of a VMM's machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MachineState {
    /// The guest has not said hello.
    Booting,
    /// The guest answers.
    Running,
    /// An orderly stop is under way.
    Stopping,
}

/// How a VMM is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmmStatus {
    /// Process id.
    pub pid: u32,
    /// State.
    pub state: MachineState,
    /// Milliseconds since the VMM started.
    pub uptime_ms: u64,
    /// vCPUs.
    pub cpus: u8,
    /// RAM in MiB.
    pub memory_mib: u32,
    /// Microseconds from the VMM's start until the guest said hello; absent while booting.
    #[serde(default)]
    pub ready_micros: Option<u64>,
    /// Isolation layers in force.
    #[serde(default)]
    pub isolation: Vec<String>,
    /// Open connections to the guest.
    #[serde(default)]
    pub connections: u32,
    /// Version of the guest's kernel.
    #[serde(default)]
    pub kernel: String,
}
