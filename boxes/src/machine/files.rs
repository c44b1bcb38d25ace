//! Where the machine's files lie.

use crate::paths::Dirs;
use std::path::{Path, PathBuf};

/// The machine's files. QEMU runs in [`Self::directory`] and is given names relative to it, which spares us the
/// quoting of commas in its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineFiles {
    /// Directory of everything that survives a stop.
    pub directory: PathBuf,
    /// The gate of this state directory; see [`crate::lock`].
    pub gate: PathBuf,
    /// The file whose lock orders starts and stops. Outside the directory, which may be removed in between.
    pub turn: PathBuf,
    /// QEMU's control socket.
    pub qmp_socket: PathBuf,
}

impl MachineFiles {
    /// The machine's own disk, relative to the directory.
    pub(super) const DISK: &'static str = "disk.ext4";
    /// The initramfs of the running machine, relative to the directory.
    pub(super) const INITRAMFS: &'static str = "initramfs";
    /// The console's log, relative to the directory.
    pub(super) const CONSOLE: &'static str = "console.log";

    pub(super) fn new(dirs: &Dirs) -> Self {
        Self {
            directory: dirs.data.join("machine"),
            gate: dirs.gate(),
            turn: dirs.state.join("machine.lock"),
            qmp_socket: dirs.runtime.join("machine.sock"),
        }
    }

    /// The file whose lock QEMU holds.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.directory.join("lock")
    }

    /// How to reach the running machine.
    #[must_use]
    pub fn record(&self) -> PathBuf {
        self.directory.join("machine.json")
    }

    /// The machine's own disk.
    #[must_use]
    pub fn disk(&self) -> PathBuf {
        self.at(Self::DISK)
    }

    /// The initramfs with the configuration for PID 1.
    #[must_use]
    pub fn initramfs(&self) -> PathBuf {
        self.at(Self::INITRAMFS)
    }

    /// What the machine's kernel and PID 1 print.
    #[must_use]
    pub fn console(&self) -> PathBuf {
        self.at(Self::CONSOLE)
    }

    /// What QEMU prints.
    #[must_use]
    pub fn qemu_log(&self) -> PathBuf {
        self.at("qemu.log")
    }

    fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.join(name)
    }
}
