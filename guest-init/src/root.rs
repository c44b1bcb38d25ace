//! The root file system: put together in the initramfs, then entered for good.

use crate::disks::{self, Disk, DiskError};
use crate::mounts::{self, MountError, Mounting};
use proto::guest::{Mount, Root};
use rustix::mount::MountFlags;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where the read-only image is mounted, in the initramfs.
const BASE: &str = "/base";
/// Where the writable disk is mounted, in the initramfs.
const DISK: &str = "/disk";
/// Where the new root is put together, in the initramfs.
const ROOT: &str = "/root";

/// Directories that lie on the writable disk itself, because their owners put overlays of their own on them and an
/// overlay does not work as another's upper layer.
const DIRECT: [&str; 4] =
    ["var/lib/containerd", "var/lib/containers", "var/lib/docker", "var/lib/rancher"];

/// Why there is no root.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// A disk is missing or cannot be grown.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A file system cannot be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The new root cannot be entered.
    #[error("cannot enter the new root")]
    Enter(#[source] io::Error),
    /// A mount's path is not absolute text.
    #[error("`{0}` is not an absolute path")]
    Path(String),
}

/// File systems on disks that are to be made read-only before the power goes. The handles keep them reachable
/// although their mount points are out of sight.
#[derive(Debug, Default)]
pub struct Writable(pub Vec<File>);

/// Puts the root together below `/root` of the initramfs.
///
/// # Errors
/// [`RootError`] if a disk is missing or a mount fails.
pub fn assemble(root: &Root, writable: &mut Writable) -> Result<(), RootError> {
    match root {
        Root::Overlay { base_serial, base_fs, upper_serial } => {
            let base = disks::find(base_serial)?;
            mount_disk(&base, BASE, base_fs, true)?;
            let upper = disks::find(upper_serial)?;
            mount_disk(&upper, DISK, "ext4", false)?;
            mount_overlay()?;
            writable.keep(DISK)?;
            mount_direct_directories()
        }
        Root::NineP { tag } => mount_nine_p(tag),
    }
}

impl Writable {
    fn keep(&mut self, mount_point: &str) -> Result<(), RootError> {
        let handle = File::open(mount_point).map_err(|source| MountError::Mount {
            what: "handle".into(),
            path: mount_point.into(),
            source,
        })?;
        self.0.push(handle);
        Ok(())
    }
}

fn mount_disk(disk: &Disk, path: &str, fs: &str, read_only: bool) -> Result<(), RootError> {
    let node = disk.node.to_string_lossy();
    let mounting = Mounting { source: &node, path, fs, flags: MountFlags::NOATIME, options: "" };
    if read_only {
        mounting_read_only(mounting)?;
    } else if fs == "ext4" {
        mount_growing_ext4(disk, mounting)?;
    } else {
        mounting.mount()?;
    }
    Ok(())
}

fn mounting_read_only(mounting: Mounting<'_>) -> Result<(), MountError> {
    Mounting { flags: mounting.flags | MountFlags::RDONLY, ..mounting }.mount()
}

/// Mounts an ext4 file system and makes it as large as its disk.
///
/// Inode tables are never zeroed in the background: they are read only as far as they are in use, and zeroing them
/// would write 1.6% of the disk, which the host keeps sparse. Growing must not zero them in the foreground either,
/// which it does while `noinit_itable` is set.
fn mount_growing_ext4(disk: &Disk, mounting: Mounting<'_>) -> Result<(), RootError> {
    let discard = if disk.can_discard { ",discard" } else { "" };
    let settled = format!("noinit_itable{discard}");
    let Some(blocks) = disk.ext4_target_blocks()? else {
        return Ok(Mounting { options: &settled, ..mounting }.mount()?);
    };
    let growing = format!("init_itable{discard}");
    Mounting { options: &growing, ..mounting }.mount()?;
    disk.grow_ext4(Path::new(mounting.path), blocks)?;
    rustix::mount::mount_remount(mounting.path, mounting.flags, settled).map_err(|errno| {
        let what = format!("{} again", mounting.source);
        MountError::Mount { what, path: mounting.path.into(), source: errno.into() }.into()
    })
}

fn mount_overlay() -> Result<(), RootError> {
    let (upper, work) = (format!("{DISK}/upper"), format!("{DISK}/work"));
    mounts::make_directory(Path::new(&upper), 0o755)?;
    mounts::make_directory(Path::new(&work), 0o755)?;
    // With `redirect_dir` a directory of the image can be renamed, which package managers do.
    let options = format!("lowerdir={BASE},upperdir={upper},workdir={work},redirect_dir=on");
    let overlay = Mounting {
        source: "overlay",
        path: ROOT,
        fs: "overlay",
        flags: MountFlags::empty(),
        options: &options,
    };
    Ok(overlay.mount()?)
}

fn mount_direct_directories() -> Result<(), RootError> {
    for directory in DIRECT {
        let (direct, target) =
            (format!("{DISK}/direct/{directory}"), format!("{ROOT}/{directory}"));
        // What an image brings along there must stay visible.
        let is_from_image =
            std::fs::read_dir(&target).is_ok_and(|mut entries| entries.next().is_some());
        if is_from_image {
            continue;
        }
        mounts::make_directory(Path::new(&direct), 0o755)?;
        mounts::make_directory(Path::new(&target), 0o755)?;
        rustix::mount::mount_bind(&direct, &target).map_err(|errno| MountError::Mount {
            what: direct,
            path: target.into(),
            source: errno.into(),
        })?;
    }
    Ok(())
}

fn mount_nine_p(tag: &str) -> Result<(), RootError> {
    // `mmap`: file data is cached only while a file is open, so what the host changes is seen at the next open, and
    // programs can be mapped. `msize`: the most that 128 descriptors of a page carry. `access=any`: one attach.
    let options = "trans=virtio,version=9p2000.L,msize=512000,cache=mmap,access=any";
    let flags = MountFlags::NOATIME;
    Ok(Mounting { source: tag, path: ROOT, fs: "9p", flags, options }.mount()?)
}

/// Makes the assembled root `/`, with the early mounts in it, and gives the initramfs's memory back.
///
/// # Errors
/// [`RootError`] if a mount cannot be moved or the root not entered.
pub fn enter() -> Result<(), RootError> {
    mounts::move_early_below(Path::new(ROOT))?;
    mounts::empty_initramfs();
    std::env::set_current_dir(ROOT).map_err(RootError::Enter)?;
    let enter = || {
        rustix::mount::mount_move(".", "/")?;
        rustix::process::chroot(".")?;
        rustix::process::chdir("/")
    };
    enter().map_err(|errno| RootError::Enter(errno.into()))
}

/// Makes the further mounts, in the new root.
///
/// # Errors
/// [`RootError`] if a disk is missing or a mount fails.
pub fn mount_further(further: &[Mount], writable: &mut Writable) -> Result<(), RootError> {
    for Mount { serial, fs, path, read_only } in further {
        let path = Path::new(OsStr::from_bytes(path));
        let Some(path) = path.to_str().filter(|path| path.starts_with('/')) else {
            return Err(RootError::Path(path.to_string_lossy().into_owned()));
        };
        mount_disk(&disks::find(serial)?, path, fs, *read_only)?;
        if !read_only {
            writable.keep(path)?;
        }
    }
    Ok(())
}
