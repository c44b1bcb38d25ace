//! Namespaces of its own and an empty root directory. A host may forbid them (containers, hardened distributions): then
//! each is left out, and said so.

use nix::sched::{CloneFlags, unshare};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};
use rustix::process::{chdir, pivot_root};

/// Enters as many as the host allows and returns their names.
pub(super) fn enter() -> Vec<&'static str> {
    let mut layers = Vec::new();
    // Capabilities over the others come with the first.
    if !try_unshare(CloneFlags::CLONE_NEWUSER, "user_namespace", &mut layers) {
        return layers;
    }
    try_unshare(CloneFlags::CLONE_NEWNET, "net_namespace", &mut layers);
    try_unshare(CloneFlags::CLONE_NEWIPC, "ipc_namespace", &mut layers);
    try_unshare(CloneFlags::CLONE_NEWUTS, "uts_namespace", &mut layers);
    if try_unshare(CloneFlags::CLONE_NEWNS, "mount_namespace", &mut layers) {
        match empty_root() {
            Ok(()) => layers.push("empty_root"),
            Err(error) => log::info!("no empty root: {error}"),
        }
    }
    layers
}

fn try_unshare(flag: CloneFlags, name: &'static str, layers: &mut Vec<&'static str>) -> bool {
    match unshare(flag) {
        Ok(()) => {
            layers.push(name);
            true
        }
        Err(error) => {
            log::info!("no {name}: {error}");
            false
        }
    }
}

/// Makes an empty, read-only file system the root and lets go of the old one.
fn empty_root() -> rustix::io::Result<()> {
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    // Any directory that every host has will do as the place from which the new root takes over.
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    mount("none", "/proc", "tmpfs", flags, None)?;
    chdir("/proc")?;
    // Old and new root at one place: the old one lies on top and can be taken off (`pivot_root(2)`).
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")
}
