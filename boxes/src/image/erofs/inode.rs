//! What an inode is before it has a place in the image.

use super::format::{BLOCK_BYTES, INODE_BYTES};
use super::xattr::{BODY_HEADER_BYTES, Xattr};

/// Longer tails get a block of their own. Half a block saves most of the space at a quarter of the memory, since tails are
/// kept until the inodes are written; and an inode with a long tail rarely fits into what its neighbours leave of a block.
const INLINE_LIMIT_BYTES: u64 = 2048;

/// A point in time as EROFS keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timestamp {
    /// Seconds since 1970, negative before.
    pub seconds: i64,
    /// Nanoseconds after that second, below 10⁹.
    pub nanos: u32,
}

/// Owner, permissions and attributes: what every kind of file has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    /// The twelve permission bits, setuid, setgid and sticky included.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of last modification.
    pub mtime: Timestamp,
    /// Extended attributes, sorted, each name once.
    pub xattrs: Vec<Xattr>,
}

impl Attributes {
    /// What a directory gets that the archive implies by its children and never lists.
    pub fn implied_directory() -> Self {
        Self { permissions: 0o755, ..Self::default() }
    }
}

/// Where a regular file's bytes are. They were written while the archive was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileData {
    /// Length in bytes.
    pub size: u64,
    /// First of the consecutive blocks.
    pub first_block: u32,
    /// Last bytes, to be stored beside the inode; empty if the blocks hold everything.
    pub tail: Box<[u8]>,
}

/// The two kinds of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceKind {
    /// Character device.
    Character,
    /// Block device.
    Block,
}

/// Bytes in the last block of something of this size, if it is not full.
pub(super) fn tail_of(size: u64) -> u64 {
    size % BLOCK_BYTES
}

/// Whether the tail goes beside the inode: it must be short, and share a block with the inode and its attributes. For
/// those the most they can take is assumed, as it is not known yet which of them will be shared.
pub(super) fn tail_is_inline(size: u64, attributes: &Attributes) -> bool {
    let stored = attributes
        .xattrs
        .iter()
        .fold(BODY_HEADER_BYTES, |sum, xattr| sum.saturating_add(xattr.stored_bytes()));
    let tail = tail_of(size);
    let together =
        u64::try_from(stored).unwrap_or(u64::MAX).saturating_add(INODE_BYTES).saturating_add(tail);
    tail > 0 && tail <= INLINE_LIMIT_BYTES && together <= BLOCK_BYTES
}

/// A device number in the encoding that EROFS shares with the kernel's `new_encode_dev`: 12 bits of major between 8
/// low and 12 high bits of minor.
pub(super) fn encode_device(major: u64, minor: u64) -> Option<u32> {
    let major = u32::try_from(major).ok().filter(|major| *major < 1 << 12)?;
    let minor = u32::try_from(minor).ok().filter(|minor| *minor < 1 << 20)?;
    Some((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
}

#[cfg(test)]
mod tests {
    use super::encode_device;

    #[test]
    fn device_numbers() {
        assert_eq!(encode_device(1, 3), Some(0x103));
        assert_eq!(encode_device(0xfff, 0xf_ffff), Some(0xffff_ffff));
        assert_eq!(encode_device(259, 0x12345), Some(0x1231_0345));
        assert_eq!(encode_device(1 << 12, 0), None);
        assert_eq!(encode_device(0, 1 << 20), None);
        assert_eq!(encode_device(u64::MAX, u64::MAX), None);
    }
}
