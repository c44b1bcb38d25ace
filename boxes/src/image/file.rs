//! Image files: which file system they hold. Only two are known, and each is told by its magic number at a fixed place.

use crate::{Error, Result};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Both file systems keep their superblock here.
const SUPERBLOCK_OFFSET: u64 = 1024;

/// First four bytes of an EROFS superblock (kernel: `fs/erofs/erofs_fs.h`).
const EROFS_MAGIC: u32 = 0xE0F5_E1E2;

/// `s_magic` of ext2, ext3 and ext4, 56 bytes into the superblock (kernel: `Documentation/filesystems/ext4`).
const EXT4_MAGIC: u16 = 0xEF53;

/// `ustar`, 257 bytes into a tar archive (POSIX.1-2001, ustar interchange format).
const TAR_MAGIC: &[u8; 5] = b"ustar";

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filesystem {
    /// EROFS.
    Erofs,
    /// ext4 (or an older kin that the same driver reads).
    Ext4,
}

impl Filesystem {
    /// Its name, as `mount(2)` knows it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Erofs => "erofs",
            Self::Ext4 => "ext4",
        }
    }
}

/// Tells which file system a file holds; `None` if none that is known.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read.
pub fn detect(file: &File, path: &Path) -> Result<Option<Filesystem>> {
    let mut head = [0; 58];
    if !read_at(file, path, &mut head, SUPERBLOCK_OFFSET)? {
        return Ok(None);
    }
    if u32::from_le_bytes([head[0], head[1], head[2], head[3]]) == EROFS_MAGIC {
        return Ok(Some(Filesystem::Erofs));
    }
    let ext4 = u16::from_le_bytes([head[56], head[57]]) == EXT4_MAGIC;
    Ok(ext4.then_some(Filesystem::Ext4))
}

/// Tells whether a file looks like a tar archive.
pub(super) fn is_tar(file: &File, path: &Path) -> Result<bool> {
    let mut magic = [0; TAR_MAGIC.len()];
    Ok(read_at(file, path, &mut magic, 257)? && magic == *TAR_MAGIC)
}

/// Fills the buffer; `false` if the file is too short.
fn read_at(file: &File, path: &Path, buffer: &mut [u8], offset: u64) -> Result<bool> {
    match file.read_exact_at(buffer, offset) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(Error::io(format!("read {}", path.display()))(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_are_told_by_their_magic() {
        let with = |offset: usize, bytes: &[u8]| {
            let file = tempfile::tempfile().unwrap();
            let mut content = vec![0; 4096];
            content[offset..offset + bytes.len()].copy_from_slice(bytes);
            file.write_all_at(&content, 0).unwrap();
            file
        };
        let path = Path::new("image");
        let erofs = with(1024, &EROFS_MAGIC.to_le_bytes());
        assert_eq!(detect(&erofs, path).unwrap(), Some(Filesystem::Erofs));
        let ext4 = with(1024 + 56, &EXT4_MAGIC.to_le_bytes());
        assert_eq!(detect(&ext4, path).unwrap(), Some(Filesystem::Ext4));
        let tar = with(257, TAR_MAGIC);
        assert_eq!(detect(&tar, path).unwrap(), None);
        assert!(is_tar(&tar, path).unwrap());
        assert_eq!(detect(&tempfile::tempfile().unwrap(), path).unwrap(), None);
    }
}
