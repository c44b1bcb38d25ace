//! The configuration that a guest's PID 1 finds as [`CONFIG_PATH`] in its initramfs.
//!
//! The kernel unpacks initramfs archives that follow one another, so the launcher appends one small archive with
//! this file to the archive that holds guest-init. That leaves the kernel command line to the kernel: no length
//! limit, no quoting.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Where the configuration lies in the initramfs.
pub const CONFIG_PATH: &str = "lilbox.cfg";

/// What a guest is told before its agent can be asked anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestConfig {
    /// Host name.
    pub hostname: String,
    /// The root file system.
    pub root: Root,
    /// Further mounts, in order, below the root.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// Environment of every exec, below the request's own.
    #[serde(default)]
    pub env: Vec<(ByteBuf, ByteBuf)>,
    /// Default working directory of execs.
    #[serde(default)]
    pub workdir: Option<ByteBuf>,
    /// Default user of execs (see [`crate::agent::Exec::user`]).
    #[serde(default)]
    pub user: Option<String>,
    /// Content of `/etc/resolv.conf`; the image's own is kept when absent.
    #[serde(default)]
    pub resolv_conf: Option<String>,
    /// Further lines of `/etc/hosts`: address and names.
    #[serde(default)]
    pub hosts: Vec<(String, String)>,
    /// Network interfaces other than `lo`.
    #[serde(default)]
    pub interfaces: Vec<Interface>,
    /// How the host reaches the agent.
    pub agent: Transport,
    /// The host's clock when the guest was launched: nanoseconds since 1970-01-01 UTC.
    pub unix_nanos: u64,
    /// The kernel may make every new vCPU; these many are to be brought online.
    pub cpus: u8,
}

/// A root file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Root {
    /// A read-only image below, a writable disk above (overlayfs).
    Overlay {
        /// `serial` of the block device that holds the image.
        base_serial: String,
        /// Its file system: `erofs` or `ext4`.
        base_fs: String,
        /// `serial` of the block device (ext4) that takes the writes. It is grown to the device's size.
        upper_serial: String,
    },
    /// The host's own tree through 9p: the machine (the Linux host that lilbox brings along).
    NineP {
        /// 9p mount tag.
        tag: String,
    },
}

/// A mount below the root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// `serial` of a block device.
    pub serial: String,
    /// File system.
    pub fs: String,
    /// Absolute path in the guest; made if it is missing.
    pub path: ByteBuf,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}

/// A network interface with fixed addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Name, such as `eth0`.
    pub name: String,
    /// Addresses with prefix length, such as `10.0.2.15/24`.
    pub addresses: Vec<String>,
    /// Default gateways.
    pub gateways: Vec<String>,
}

/// How the host reaches the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Over vsock, on [`crate::agent::AGENT_PORT`]; `Ready` is sent to [`crate::agent::LIFECYCLE_PORT`] of the host.
    Vsock,
    /// Over TCP on all interfaces; each connection begins with an `Auth` frame that holds the secret.
    Tcp {
        /// Port.
        port: u16,
        /// The secret.
        secret: ByteBuf,
    },
}
