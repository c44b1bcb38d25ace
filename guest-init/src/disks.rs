//! Finds block devices by the serial that the host gave them, and makes file systems as large as their device.

use crate::syscalls;
use rustix::fs::SeekFrom;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Why a disk is of no use.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The list of block devices cannot be read.
    #[error("cannot list block devices")]
    List(#[source] io::Error),
    /// No block device has that serial.
    #[error("no disk with serial `{0}`")]
    NotFound(String),
    /// The disk cannot be read.
    #[error("cannot read {device}")]
    Measure {
        /// The device.
        device: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file system cannot be grown.
    #[error("cannot grow the file system on {device}")]
    Grow {
        /// The device.
        device: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Its node.
    pub node: PathBuf,
    /// Whether blocks that a file system no longer needs can be given back to the host.
    pub can_discard: bool,
}

/// Finds the disk with this serial.
///
/// # Errors
/// [`DiskError::NotFound`] if there is none.
pub fn find(serial: &str) -> Result<Disk, DiskError> {
    find_below(Path::new("/sys/block"), Path::new("/dev"), serial)
}

fn find_below(block: &Path, dev: &Path, serial: &str) -> Result<Disk, DiskError> {
    for entry in fs::read_dir(block).map_err(DiskError::List)? {
        let entry = entry.map_err(DiskError::List)?;
        // Loop and RAM devices have no such file.
        let Ok(found) = fs::read_to_string(entry.path().join("serial")) else { continue };
        if found.trim_end_matches(['\n', '\0']) == serial {
            let limit = fs::read_to_string(entry.path().join("queue/discard_max_bytes"))
                .unwrap_or_default();
            let can_discard = limit.trim().parse::<u64>().is_ok_and(|bytes| bytes > 0);
            return Ok(Disk { node: dev.join(entry.file_name()), can_discard });
        }
    }
    Err(DiskError::NotFound(serial.into()))
}

impl Disk {
    /// The number of blocks that the unmounted ext4 file system on this disk should be grown to, if it is smaller
    /// than the disk.
    ///
    /// # Errors
    /// [`DiskError::Measure`] if the disk cannot be read.
    pub fn ext4_target_blocks(&self) -> Result<Option<u64>, DiskError> {
        let measure = || {
            let device = File::open(&self.node)?;
            let mut superblock = [0; SUPERBLOCK_BYTES];
            device.read_exact_at(&mut superblock, SUPERBLOCK_OFFSET)?;
            let device_bytes = rustix::fs::seek(&device, SeekFrom::End(0))?;
            Ok(target_blocks(&superblock, device_bytes))
        };
        measure().map_err(|source| DiskError::Measure { device: self.node.clone(), source })
    }

    /// Grows the ext4 file system of this disk, mounted at `mount_point`, to this many blocks.
    ///
    /// # Errors
    /// [`DiskError::Grow`] if the kernel cannot.
    pub fn grow_ext4(&self, mount_point: &Path, blocks: u64) -> Result<(), DiskError> {
        File::open(mount_point)
            .and_then(|directory| syscalls::ext4_resize(directory, blocks))
            .map_err(|source| DiskError::Grow { device: self.node.clone(), source })
    }
}

/// Place and length of an ext4 superblock (kernel: `Documentation/filesystems/ext4/super.rst`).
const SUPERBLOCK_OFFSET: u64 = 1024;
const SUPERBLOCK_BYTES: usize = 1024;

/// `None` if the bytes are no ext4 superblock (mounting then says why) or growing is not worth it: a rest of less
/// than a quarter of a block group may be too small to become one, and would be tried again at every boot.
fn target_blocks(superblock: &[u8; SUPERBLOCK_BYTES], device_bytes: u64) -> Option<u64> {
    let field = |offset: usize| {
        let bytes = superblock.get(offset..)?.first_chunk()?;
        Some(u64::from(u32::from_le_bytes(*bytes)))
    };
    let has_magic = superblock.get(0x38..0x3a) == Some(&[0x53, 0xef]);
    let has_64bit = field(0x60)? & 0x80 != 0;
    let high = if has_64bit { field(0x150)? } else { 0 };
    let blocks = (high << 32) | field(0x4)?;
    let block_bytes = 1024_u64.checked_shl(u32::try_from(field(0x18)?).ok()?)?;
    let blocks_per_group = field(0x20)?;
    let device_blocks = device_bytes.checked_div(block_bytes)?;
    let worth_it = device_blocks.saturating_sub(blocks) > blocks_per_group / 4;
    (has_magic && worth_it).then_some(device_blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(blocks: u64) -> [u8; SUPERBLOCK_BYTES] {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        bytes[0x4..0x8]
            .copy_from_slice(&u32::try_from(blocks & 0xffff_ffff).unwrap().to_le_bytes());
        bytes[0x150..0x154].copy_from_slice(&u32::try_from(blocks >> 32).unwrap().to_le_bytes());
        bytes[0x18] = 2;
        bytes[0x20..0x24].copy_from_slice(&32768_u32.to_le_bytes());
        bytes[0x38..0x3a].copy_from_slice(&[0x53, 0xef]);
        bytes[0x60] = 0x80;
        bytes
    }

    #[test]
    fn a_file_system_grows_to_the_device_unless_the_rest_is_tiny() {
        let gib = 1 << 30;
        let blocks = |bytes: u64| bytes / 4096;
        assert_eq!(target_blocks(&superblock(blocks(4 * gib)), 4 * gib), None);
        assert_eq!(target_blocks(&superblock(blocks(4 * gib)), 3 * gib), None);
        assert_eq!(target_blocks(&superblock(blocks(4 * gib)), 4 * gib + 4096), None);
        assert_eq!(target_blocks(&superblock(blocks(4 * gib)), 64 * gib), Some(blocks(64 * gib)));
        assert_eq!(target_blocks(&superblock(1 << 33), (1 << 46) + 4096), Some((1 << 34) + 1));
    }

    #[test]
    fn bytes_that_are_no_ext4_are_left_to_mount() {
        assert_eq!(target_blocks(&[0; SUPERBLOCK_BYTES], 1 << 40), None);
        assert_eq!(target_blocks(&[0xff; SUPERBLOCK_BYTES], 1 << 40), None);
    }

    #[test]
    fn disks_are_found_by_their_exact_serial() {
        let root = tempfile::tempdir().unwrap();
        for (name, serial) in [("vda", "base"), ("vdb", "base-2\n"), ("vdc", "upper\0\0")] {
            let queue = root.path().join(name).join("queue");
            fs::create_dir_all(&queue).unwrap();
            fs::write(root.path().join(name).join("serial"), serial).unwrap();
            fs::write(
                queue.join("discard_max_bytes"),
                if name == "vdc" { "4096\n" } else { "0\n" },
            )
            .unwrap();
        }
        fs::create_dir(root.path().join("loop0")).unwrap();
        let find = |serial| find_below(root.path(), Path::new("/dev"), serial).ok();
        assert_eq!(find("base"), Some(Disk { node: "/dev/vda".into(), can_discard: false }));
        assert_eq!(find("base-2"), Some(Disk { node: "/dev/vdb".into(), can_discard: false }));
        assert_eq!(find("upper"), Some(Disk { node: "/dev/vdc".into(), can_discard: true }));
        assert_eq!(find("bas"), None);
    }
}
