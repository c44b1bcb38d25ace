//! The machine: a Linux host that lilbox brings along for computers whose KVM cannot run boxes.
//!
//! QEMU emulates a CPU *with* virtualisation; in it runs our own guest kernel with our own PID 1, whose root is the
//! host's file tree (9p), so that programs, working directories and this very `lilbox` are found under the same
//! paths. Boxes and images live on a disk of the machine's own, mounted at [`INNER_HOME`]. The link is the agent's
//! protocol over a TCP port of loopback that QEMU picks, with a secret.
//!
//! A machine runs if and only if its lock is held: QEMU inherits the locked descriptor. The [`Record`] says
//! how to reach it, and is believed only while the lock is held and after the start was completed. Starts are ordered
//! by a lock of their own, so that two commands at once start one machine.
//!
//! - `settings`: how large it is; `qemu`: the command line; `config`: what its PID 1 is told;
//! - `start`, `ready`, `stop`, `status`: what the user asks for; `decide`: what a command does about what it finds;
//! - `qmp`, `link`, `log`: QEMU's control socket, the agent, the console; `tsc`: what its clock needs to know.

mod config;
mod decide;
mod detach;
mod error;
mod files;
mod link;
mod log;
mod qemu;
mod qmp;
mod ready;
mod record;
mod settings;
mod start;
mod status;
mod stop;
mod tsc;

pub use error::MachineError;
pub use files::MachineFiles;
pub use link::Link;
pub use record::{Ready, Record};
pub use settings::{Settings, SettingsError, Wishes};
pub use start::{Event, ensure};
pub use status::{Running, Status, status};
pub use stop::{remove, stop};

use crate::install::Install;
use crate::paths::Dirs;
use std::path::{Path, PathBuf};

/// Where the machine's own disk is mounted inside it, which is `LILBOX_HOME` there. Short, since paths of sockets are
/// limited, and below `/run`, which is the machine's own and not the host's.
pub const INNER_HOME: &str = "/run/lilbox-machine";

/// Whether this process runs inside the machine.
#[must_use]
pub fn is_inside() -> bool {
    Path::new(INNER_HOME).is_dir()
}

/// Lines of a log that an error shows.
const TAIL_LINES: usize = 12;

/// The machine of one state directory.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its files.
    pub files: MachineFiles,
    /// Our own files: the kernel.
    pub install: Install,
    /// Its size.
    pub settings: Settings,
    /// This program, under its path on the host, which is its path inside as well.
    pub program: PathBuf,
    /// QEMU; searched in `PATH` if it is a bare name.
    pub qemu: PathBuf,
    /// The archive with PID 1.
    initramfs: &'static [u8],
    /// What tells it from other releases' archives.
    initramfs_sha256: &'static str,
}

impl Machine {
    /// The machine that belongs to `dirs`. Touches nothing.
    #[must_use]
    pub fn new(dirs: &Dirs, install: &Install, settings: Settings, program: PathBuf) -> Self {
        Self {
            files: MachineFiles::new(dirs),
            install: install.clone(),
            settings,
            program,
            qemu: "qemu-system-x86_64".into(),
            initramfs: crate::initramfs::INITRAMFS,
            initramfs_sha256: crate::initramfs::INITRAMFS_SHA256,
        }
    }

    /// What a connection to it that broke off means.
    #[must_use]
    pub fn lost(&self) -> MachineError {
        MachineError::Lost { tail: log::tail(&self.files.console(), TAIL_LINES) }
    }
}
