//! How to reach the running machine: written by the command that started it, read by all others.

use super::files::MachineFiles;
use crate::install::Install;
use crate::{Error, Result, hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::SystemTime;

/// Facts about one run of the machine. They mean nothing unless the machine's lock is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Stands for what it was started from: kernel, PID 1, release.
    pub fingerprint: String,
    /// QEMU.
    pub pid: u32,
    /// Port of the agent on the host's loopback.
    pub port: u16,
    /// What the agent wants to see first, in hexadecimal digits.
    pub secret: String,
    /// QEMU's control socket.
    pub qmp_socket: PathBuf,
    /// CPUs.
    pub cpus: u8,
    /// Memory.
    pub memory_mib: u32,
    /// Set when the agent answered: how long the start took, and what it said.
    pub ready: Option<Ready>,
}

/// What is known once the agent has answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// From the command to start to the agent's answer.
    pub start_ms: u64,
    /// `uname -r` inside.
    pub kernel: String,
}

impl Record {
    /// Reads the record. `None` if there is none, or it cannot be understood (another release wrote it).
    pub(super) fn read(files: &MachineFiles) -> Result<Option<Self>> {
        match std::fs::read(files.record()) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(format!("read {}", files.record().display()))(error)),
        }
    }

    /// Writes the record in one step, readable for its owner alone since it holds the secret.
    pub(super) fn write(&self, files: &MachineFiles) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).expect("a record is plain data");
        replace(files.record(), &text)
    }

    /// Removes the record; one that is not there is fine.
    pub(super) fn remove(files: &MachineFiles) -> Result<()> {
        match std::fs::remove_file(files.record()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(format!("remove {}", files.record().display()))(error))
            }
            _ => Ok(()),
        }
    }
}

/// Writes a private file in one step.
pub(super) fn replace(path: PathBuf, content: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    let write = || {
        // The mode counts for new files only; a leftover must not keep one of its own.
        let _ = std::fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(content)?;
        std::fs::rename(&new, &path)
    };
    write().map_err(Error::io(format!("write {}", path.display())))
}

/// Stands for everything that a running machine took from the installation: kernel, PID 1, and this release. A
/// machine with another fingerprint runs something else than this `lilbox` would start.
pub(super) fn fingerprint(install: &Install, initramfs_sha256: &str) -> Result<String> {
    let kernel = install.kernel();
    let metadata = kernel.metadata().map_err(|_| Error::InstallBroken { path: kernel.clone() })?;
    // Reading 25 MB in each command would cost more than all else; a kernel that was replaced differs in these.
    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let identity = format!("{} {} {} {modified:?}", metadata.dev(), metadata.ino(), metadata.len());
    let mut hash = Sha256::new();
    for part in [env!("CARGO_PKG_VERSION"), &identity, initramfs_sha256] {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    Ok(hex::digits(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::{Dirs, Environment};
    use std::path::Path;

    fn install(root: &Path) -> Install {
        let install = Install { vmm: root.join("vmm"), share: root.into(), kvm: root.join("kvm") };
        std::fs::write(install.kernel(), "kernel").unwrap();
        install
    }

    #[test]
    fn a_record_is_private_and_comes_back_as_it_was() {
        let root = tempfile::tempdir().unwrap();
        let environment =
            Environment { lilbox_home: Some(root.path().into()), ..Environment::default() };
        let files = MachineFiles::new(&Dirs::compute(&environment).unwrap());
        std::fs::create_dir_all(&files.directory).unwrap();
        assert_eq!(Record::read(&files).unwrap(), None);
        let record = Record {
            fingerprint: "f".into(),
            pid: 7,
            port: 41217,
            secret: hex::digits(&[0, 255]),
            qmp_socket: "/x".into(),
            cpus: 2,
            memory_mib: 512,
            ready: Some(Ready { start_ms: 3, kernel: "6.12".into() }),
        };
        record.write(&files).unwrap();
        assert_eq!(files.record().metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(Record::read(&files).unwrap(), Some(record));
        std::fs::write(files.record(), "{").unwrap();
        assert_eq!(Record::read(&files).unwrap(), None);
        Record::remove(&files).unwrap();
        Record::remove(&files).unwrap();
    }

    #[test]
    fn another_kernel_or_agent_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let install = install(root.path());
        let first = fingerprint(&install, "agent").unwrap();
        assert_eq!(fingerprint(&install, "agent").unwrap(), first);
        assert_ne!(fingerprint(&install, "other").unwrap(), first);
        std::fs::write(install.kernel(), "another kernel").unwrap();
        assert_ne!(fingerprint(&install, "agent").unwrap(), first);
        std::fs::remove_file(install.kernel()).unwrap();
        assert!(matches!(fingerprint(&install, "agent"), Err(Error::InstallBroken { .. })));
    }
}
