//! Finds out whether this host's KVM can run ordinary kernels, by running guest code on it.
//!
//! CPU flags are no answer: there are KVMs without vmx and svm that run boxes, and KVMs that offer everything and
//! fail at the first instruction they would have to emulate. The trial takes about a millisecond and is made once
//! per boot; whether `/dev/kvm` may be opened is looked at every time, because that changes when a user joins a group.

mod trial;

use crate::{Error, Result};
use kvm_ioctls::Kvm;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The version of the KVM API (`KVM_GET_API_VERSION`) that has not changed since Linux 2.6.22.
const API_VERSION: i32 = 12;

/// Identifies this boot of the host.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What this host's KVM can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kvm", rename_all = "snake_case")]
pub enum Verdict {
    /// It runs boxes.
    Usable,
    /// There is no KVM device.
    Missing,
    /// This user may not open the device.
    Denied,
    /// It cannot run ordinary kernels.
    Unusable {
        /// What it did instead.
        reason: String,
    },
}

impl Verdict {
    /// Passes if KVM runs boxes.
    ///
    /// # Errors
    /// [`Error::KvmMissing`], [`Error::KvmDenied`] or [`Error::KvmUnusable`] for the device at `device`.
    pub fn require(self, device: &Path) -> Result<()> {
        match self {
            Self::Usable => Ok(()),
            Self::Missing => Err(Error::KvmMissing(device.into())),
            Self::Denied => Err(Error::KvmDenied(device.into())),
            Self::Unusable { reason } => Err(Error::KvmUnusable { reason }),
        }
    }

    /// The reason why boxes cannot run here, as the end of a sentence that begins with "because".
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Usable => None,
            Self::Missing => Some("it has no KVM".into()),
            Self::Denied => Some("you may not open its KVM".into()),
            Self::Unusable { reason } => {
                Some(format!("its KVM cannot run ordinary kernels: {reason}"))
            }
        }
    }
}

/// Probes `device` (`/dev/kvm`), or finds the trial's outcome in `runtime`, where it is kept for this boot.
///
/// A cache that cannot be read or written only costs the millisecond of another trial.
#[must_use]
pub fn probe(device: &Path, runtime: &Path) -> Verdict {
    let file = match open(device) {
        Ok(file) => file,
        Err(verdict) => return verdict,
    };
    let cache = Cache { file: runtime.join("kvm-probe.json"), key: Key::of(&file) };
    if let Some(verdict) = cache.read() {
        return verdict;
    }
    let verdict = try_out(file);
    if let Err(error) = cache.write(&verdict) {
        log::debug!(
            "cannot keep the outcome of the KVM probe in {}: {error}",
            cache.file.display()
        );
    }
    verdict
}

/// Probes `device` without a cache.
#[must_use]
pub fn probe_now(device: &Path) -> Verdict {
    match open(device) {
        Ok(file) => try_out(file),
        Err(verdict) => verdict,
    }
}

fn open(device: &Path) -> Result<File, Verdict> {
    OpenOptions::new().read(true).write(true).open(device).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Verdict::Missing,
        io::ErrorKind::PermissionDenied => Verdict::Denied,
        // A device node without a driver behind it: the module is not loaded, or the CPU has no virtualisation.
        _ if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => Verdict::Missing,
        _ => {
            Verdict::Unusable { reason: format!("{} cannot be opened: {error}", device.display()) }
        }
    })
}

fn try_out(device: File) -> Verdict {
    let kvm = into_kvm(device);
    let version = kvm.get_api_version();
    let outcome = if version == API_VERSION {
        trial::run(&kvm, trial::CODE, trial::TIME_LIMIT)
    } else {
        Err(format!("it speaks version {version} of the KVM API instead of {API_VERSION}"))
    };
    match outcome {
        Ok(()) => Verdict::Usable,
        Err(reason) => Verdict::Unusable { reason },
    }
}

#[expect(unsafe_code, reason = "UNSAFETY: a descriptor changes its owner")]
fn into_kvm(device: File) -> Kvm {
    // SAFETY: the descriptor is open and owned by nobody else, since `into_raw_fd` gave up ownership.
    unsafe { Kvm::from_raw_fd(device.into_raw_fd()) }
}

/// What an outcome holds for: a boot, and one device of it. Loading the module anew (with other parameters) makes a
/// new device node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Key {
    boot: String,
    device: (u64, u64, u64, i64, i64),
    /// Another release may try out something else.
    version: String,
}

impl Key {
    /// The key of an open device, or `None` if the system does not tell enough to recognise it.
    fn of(device: &File) -> Option<Self> {
        let metadata = device.metadata().ok()?;
        Some(Self {
            boot: std::fs::read_to_string(BOOT_ID).ok()?.trim().into(),
            device: (
                metadata.dev(),
                metadata.ino(),
                metadata.rdev(),
                metadata.ctime(),
                metadata.ctime_nsec(),
            ),
            version: env!("CARGO_PKG_VERSION").into(),
        })
    }
}

struct Cache {
    file: PathBuf,
    key: Option<Key>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    key: Key,
    verdict: Verdict,
}

impl Cache {
    fn read(&self) -> Option<Verdict> {
        let key = self.key.as_ref()?;
        let entry: Entry = serde_json::from_slice(&std::fs::read(&self.file).ok()?).ok()?;
        (entry.key == *key).then_some(entry.verdict)
    }

    /// Writes a whole file in one step, so that a reader never finds half of it.
    fn write(&self, verdict: &Verdict) -> io::Result<()> {
        let Some(key) = self.key.clone() else { return Ok(()) };
        let text = serde_json::to_vec(&Entry { key, verdict: verdict.clone() })?;
        let new = self.file.with_extension(format!("{}.new", std::process::id()));
        std::fs::write(&new, text)?;
        std::fs::rename(&new, &self.file)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests take a setting from the environment")]
mod tests {
    use super::*;

    #[test]
    fn devices_that_are_not_there_or_not_allowed_are_told_apart() {
        let root = tempfile::tempdir().unwrap();
        let missing = root.path().join("kvm");
        assert_eq!(probe(&missing, root.path()), Verdict::Missing);
        std::fs::write(&missing, "").unwrap();
        let verdict = probe_now(&missing);
        assert!(
            matches!(&verdict, Verdict::Unusable { reason } if reason.contains("version -1")),
            "{verdict:?}"
        );
        assert!(matches!(verdict.require(&missing), Err(Error::KvmUnusable { .. })));
        let directory = probe_now(root.path());
        assert!(
            matches!(&directory, Verdict::Unusable { reason } if reason.contains("cannot be opened"))
        );
    }

    #[test]
    fn an_outcome_is_kept_for_its_device_alone() {
        let root = tempfile::tempdir().unwrap();
        let (first, second) = (root.path().join("a"), root.path().join("b"));
        std::fs::write(&first, "").unwrap();
        std::fs::write(&second, "").unwrap();
        let cache = |device: &Path| Cache {
            file: root.path().join("kvm-probe.json"),
            key: Key::of(&File::open(device).unwrap()),
        };
        assert_eq!(cache(&first).read(), None);
        cache(&first).write(&Verdict::Usable).unwrap();
        assert_eq!(cache(&first).read(), Some(Verdict::Usable));
        assert_eq!(probe(&first, root.path()), Verdict::Usable, "taken from the cache");
        assert_eq!(cache(&second).read(), None);
        std::fs::write(root.path().join("kvm-probe.json"), "{half a fi").unwrap();
        assert_eq!(cache(&first).read(), None);
    }

    #[test]
    fn this_host_gets_a_verdict_and_keeps_it() {
        let root = tempfile::tempdir().unwrap();
        let device = Path::new("/dev/kvm");
        let verdict = probe(device, root.path());
        println!("this host: {verdict:?}");
        assert_eq!(probe(device, root.path()), verdict);
        let required = std::env::var_os("LILBOX_REQUIRE_KVM").is_some();
        assert!(
            !required || matches!(verdict, Verdict::Usable | Verdict::Unusable { .. }),
            "{verdict:?}"
        );
    }
}
