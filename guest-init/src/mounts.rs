//! The kernel's own file systems, and mounting in general.

use crate::console;
use rustix::fs::{AtFlags, CWD};
use rustix::mount::{MountFlags, MountPropagationFlags};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A mount that did not come about.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point is missing and cannot be made.
    #[error("cannot make the directory {path}")]
    MakeDirectory {
        /// The mount point.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused the mount.
    #[error("cannot mount {what} on {path}")]
    Mount {
        /// File system or source.
        what: String,
        /// The mount point.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A mount to be made.
#[derive(Debug, Clone, Copy)]
pub struct Mounting<'a> {
    /// Device, tag or a word for file systems that have neither.
    pub source: &'a str,
    /// Where.
    pub path: &'a str,
    /// File system.
    pub fs: &'a str,
    /// Flags.
    pub flags: MountFlags,
    /// Options of the file system, separated by commas.
    pub options: &'a str,
}

impl Mounting<'_> {
    /// Mounts it; makes the mount point if it is missing.
    ///
    /// # Errors
    /// [`MountError`] if there is no mount point or the kernel refuses.
    pub fn mount(self) -> Result<(), MountError> {
        let path = Path::new(self.path);
        make_directory(path, 0o755)?;
        self.mount_here()
    }

    fn mount_here(self) -> Result<(), MountError> {
        let options = std::ffi::CString::new(self.options).unwrap_or_default();
        rustix::mount::mount(self.source, self.path, self.fs, self.flags, options.as_c_str())
            .map_err(|errno| {
                let what = if self.source == self.fs {
                    self.fs.into()
                } else {
                    format!("{} ({})", self.source, self.fs)
                };
                MountError::Mount { what, path: self.path.into(), source: errno.into() }
            })
    }
}

/// Makes a directory and its parents unless it exists.
///
/// # Errors
/// [`MountError::MakeDirectory`] if it cannot be made.
pub fn make_directory(path: &Path, permissions: u32) -> Result<(), MountError> {
    // Asked first, because `mkdir` on an existing directory of a read-only file system may fail with EROFS.
    if path.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(permissions)
        .create(path)
        .map_err(|source| MountError::MakeDirectory { path: path.into(), source })
}

const NO_PROGRAMS: MountFlags =
    MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Mounts what finding the disks needs, in the initramfs.
///
/// # Errors
/// [`MountError`] if one of them cannot be mounted.
pub fn mount_early() -> Result<(), MountError> {
    let early = [
        Mounting {
            source: "dev",
            path: "/dev",
            fs: "devtmpfs",
            flags: MountFlags::NOSUID,
            options: "mode=0755",
        },
        Mounting { source: "sys", path: "/sys", fs: "sysfs", flags: NO_PROGRAMS, options: "" },
    ];
    early.into_iter().try_for_each(Mounting::mount)
}

/// Moves the early mounts below the new root.
///
/// # Errors
/// [`MountError`] if one of them cannot be moved.
pub fn move_early_below(root: &Path) -> Result<(), MountError> {
    for name in ["dev", "sys"] {
        let target = root.join(name);
        make_directory(&target, 0o755)?;
        rustix::mount::mount_move(format!("/{name}"), &target).map_err(|errno| {
            MountError::Mount { what: format!("/{name}"), path: target, source: errno.into() }
        })?;
    }
    Ok(())
}

/// Mounts the rest, in the new root: what nothing works without as errors, the others with a complaint on the
/// console, since a user's own kernel may lack them.
///
/// # Errors
/// [`MountError`] if an indispensable one cannot be mounted.
pub fn mount_late() -> Result<(), MountError> {
    let run_flags = MountFlags::NOSUID.union(MountFlags::NODEV);
    let indispensable = [
        Mounting { source: "proc", path: "/proc", fs: "proc", flags: NO_PROGRAMS, options: "" },
        Mounting {
            source: "run",
            path: "/run",
            fs: "tmpfs",
            flags: run_flags,
            options: "mode=0755",
        },
        Mounting {
            source: "devpts",
            path: "/dev/pts",
            fs: "devpts",
            flags: MountFlags::NOSUID.union(MountFlags::NOEXEC),
            options: "gid=5,mode=0620,ptmxmode=0666",
        },
        Mounting {
            source: "shm",
            path: "/dev/shm",
            fs: "tmpfs",
            flags: run_flags,
            options: "mode=1777",
        },
    ];
    indispensable.into_iter().try_for_each(Mounting::mount)?;
    let optional = [
        Mounting {
            source: "mqueue",
            path: "/dev/mqueue",
            fs: "mqueue",
            flags: NO_PROGRAMS,
            options: "",
        },
        Mounting {
            source: "cgroup2",
            path: "/sys/fs/cgroup",
            fs: "cgroup2",
            flags: NO_PROGRAMS,
            options: "nsdelegate,memory_recursiveprot",
        },
    ];
    for mounting in optional {
        if let Err(error) = mounting.mount() {
            console::say(&console::chain(&error));
        }
    }
    complete_dev();
    Ok(())
}

/// What programs expect in `/dev` and the kernel does not make itself; there is no udev.
fn complete_dev() {
    for (target, link) in [
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
        ("/proc/kcore", "/dev/core"),
    ] {
        if let Err(error) = std::os::unix::fs::symlink(target, link)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            console::say(&format!("cannot make {link}: {error}"));
        }
    }
    // As udev's rules have them: whoever may open these gains no power over others.
    for device in ["/dev/fuse", "/dev/kvm", "/dev/net/tun"] {
        match fs::set_permissions(device, fs::Permissions::from_mode(0o666)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                console::say(&format!("cannot open {device} to all: {error}"));
            }
            _ => {}
        }
    }
}

/// Hands all controllers to the cgroups below the root, where container engines look for them.
///
/// # Errors
/// If the kernel refuses.
pub fn delegate_controllers() -> io::Result<()> {
    let Ok(controllers) = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers") else {
        // No cgroup2: said when it was not mounted.
        return Ok(());
    };
    let enable: Vec<String> =
        controllers.split_whitespace().map(|name| format!("+{name}")).collect();
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", enable.join(" "))
}

/// Mounts a tmpfs on `/tmp` if the image has no such directory.
///
/// # Errors
/// [`MountError`] if it cannot be mounted.
pub fn mount_tmp_if_missing() -> Result<(), MountError> {
    if rustix::fs::statat(CWD, "/tmp", AtFlags::empty()).is_ok() {
        return Ok(());
    }
    let flags = MountFlags::NOSUID.union(MountFlags::NODEV);
    Mounting { source: "tmp", path: "/tmp", fs: "tmpfs", flags, options: "mode=1777" }.mount()
}

/// Makes mounts propagate, as container engines and orchestrators expect of `/`. Nothing can be moved afterwards.
///
/// # Errors
/// If the kernel refuses.
pub fn share_all() -> io::Result<()> {
    Ok(rustix::mount::mount_change(
        "/",
        MountPropagationFlags::SHARED | MountPropagationFlags::REC,
    )?)
}

/// Removes what the initramfs holds: the memory is the guest's. `/` must still be the initramfs, whatever is mounted
/// in it stays.
pub fn empty_initramfs() {
    let Ok(root) = rustix::fs::stat("/") else { return };
    remove_below(Path::new("/"), root.st_dev);
}

fn remove_below(directory: &Path, device: u64) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(stat) = rustix::fs::statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if stat.st_dev != device {
            continue;
        }
        let is_directory = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
        if is_directory {
            remove_below(&path, device);
        }
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        // A mount point cannot be removed and holds nothing.
        let _ = rustix::fs::unlinkat(CWD, &path, flags);
    }
}
