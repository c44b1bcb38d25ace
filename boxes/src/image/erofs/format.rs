//! EROFS on disk: the superblock and the inode as bytes.
//!
//! Facts are from the kernel's documentation of the format (`Documentation/filesystems/erofs.rst`) and its header
//! `erofs_fs.h`. Of the format's features only what Linux 5.4 had is used, so no incompatible feature bit is set.

/// Block size; also the size of a page where our guests run.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// Inodes start at multiples of this, and are numbered by it.
pub(super) const SLOT_BYTES: u64 = 32;

/// Size of the extended inode, the only form written: the compact one has neither its own time nor 32-bit owners.
pub(super) const INODE_BYTES: u64 = 64;

/// The first number given to an inode, the root's: not zero, since programs take a file number of zero for a deleted
/// name. Numbers count slots of the metadata area, and the superblock has 16 bits for the root's.
pub(super) const FIRST_NID: u64 = 2;

const SUPERBLOCK_OFFSET: usize = 1024;
const MAGIC: u32 = 0xe0f5_e1e2;
const BLOCK_SIZE_BITS: u8 = 12;
/// Superblock has a checksum; inode times are modification times.
const COMPATIBLE_FEATURES: u32 = 0x1 | 0x2;

/// Where an inode's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataLayout {
    /// All in consecutive blocks.
    Plain = 0,
    /// The last, incomplete block's bytes follow the inode.
    Inline = 2,
}

/// One inode as it is stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct InodeRecord {
    pub layout: DataLayout,
    /// Bytes of the attribute body, which is a multiple of four.
    pub xattr_bytes: usize,
    /// Type and permissions.
    pub mode: u16,
    pub size: u64,
    /// First block or device number.
    pub address: u32,
    pub serial: u32,
    pub uid: u32,
    pub gid: u32,
    pub seconds: i64,
    pub nanos: u32,
    pub links: u32,
}

impl InodeRecord {
    pub fn store(&self, into: &mut Vec<u8>) {
        const EXTENDED: u16 = 1;
        let format = EXTENDED | ((self.layout as u16) << 1);
        // Counted as one for the header of twelve bytes and one for each further four.
        let xattr_count = match self.xattr_bytes.checked_sub(super::xattr::BODY_HEADER_BYTES) {
            None => 0,
            Some(rest) => u16::try_from((rest / 4).saturating_add(1)).unwrap_or(u16::MAX),
        };
        into.extend(format.to_le_bytes());
        into.extend(xattr_count.to_le_bytes());
        into.extend(self.mode.to_le_bytes());
        into.extend([0; 2]);
        into.extend(self.size.to_le_bytes());
        into.extend(self.address.to_le_bytes());
        into.extend(self.serial.to_le_bytes());
        into.extend(self.uid.to_le_bytes());
        into.extend(self.gid.to_le_bytes());
        into.extend(self.seconds.to_le_bytes());
        into.extend(self.nanos.to_le_bytes());
        into.extend(self.links.to_le_bytes());
        into.extend([0; 16]);
    }
}

/// What the superblock says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Superblock {
    pub inodes: u64,
    pub built_seconds: u64,
    pub blocks: u32,
    pub metadata_block: u32,
    pub xattr_block: u32,
    pub root_nid: u64,
    pub uuid: [u8; 16],
}

impl Superblock {
    /// The image's first block.
    pub fn first_block(&self) -> Vec<u8> {
        let mut sb = Vec::new();
        sb.extend(MAGIC.to_le_bytes());
        sb.extend([0; 4]); // checksum, below
        sb.extend(COMPATIBLE_FEATURES.to_le_bytes());
        sb.extend([BLOCK_SIZE_BITS, 0]);
        // The root is the first inode, so its number is 2, or that of the next block's first slot.
        sb.extend(u16::try_from(self.root_nid).unwrap_or(u16::MAX).to_le_bytes());
        sb.extend(self.inodes.to_le_bytes());
        sb.extend(self.built_seconds.to_le_bytes());
        sb.extend([0; 4]); // nanoseconds of the same
        sb.extend(self.blocks.to_le_bytes());
        sb.extend(self.metadata_block.to_le_bytes());
        sb.extend(self.xattr_block.to_le_bytes());
        sb.extend(self.uuid);
        // Volume name, incompatible features, compression and further devices: none.
        sb.resize(
            usize::try_from(BLOCK_BYTES).unwrap_or_default().saturating_sub(SUPERBLOCK_OFFSET),
            0,
        );
        // The checksum covers the rest of the block as if the field were zero.
        let checksum = crc32c(&sb).to_le_bytes();
        if let Some(field) = sb.get_mut(4..8) {
            field.copy_from_slice(&checksum);
        }
        let mut block = vec![0; SUPERBLOCK_OFFSET];
        block.append(&mut sb);
        block
    }
}

/// CRC-32C as the kernel uses it here: all ones to start with, and not inverted at the end. Bit by bit, as it is
/// computed over one block per image.
fn crc32c(data: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    data.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn checksum_of_the_standard_vector() {
        assert_eq!(!crc32c(b"123456789"), 0xe306_9283);
    }
}
