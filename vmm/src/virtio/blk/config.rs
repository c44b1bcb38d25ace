//! What a disk tells its driver: features and configuration space (virtio 1.2 §5.2.3, §5.2.4).

use super::request::{
    MAX_DISCARD_SECTORS, MAX_RANGES, MAX_SEGMENT_BYTES, MAX_SEGMENTS, MAX_WRITE_ZEROES_SECTORS,
    SECTOR_BYTES,
};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO,
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_WRITE_ZEROES,
};

/// Length of configuration space up to the last field whose feature is offered.
pub(super) const BYTES: usize = 60;

/// Discards are honoured in units of the host's pages and file system blocks, in sectors.
const DISCARD_ALIGNMENT_SECTORS: u32 = 8;

/// Features offered.
pub(super) fn features(read_only: bool) -> u64 {
    let always =
        1 << VIRTIO_BLK_F_SIZE_MAX | 1 << VIRTIO_BLK_F_SEG_MAX | 1 << VIRTIO_BLK_F_BLK_SIZE;
    let by_access = if read_only {
        1 << VIRTIO_BLK_F_RO
    } else {
        // Without FLUSH the driver takes the disk for write-through and loses what a crash of the host loses.
        1 << VIRTIO_BLK_F_FLUSH | 1 << VIRTIO_BLK_F_DISCARD | 1 << VIRTIO_BLK_F_WRITE_ZEROES
    };
    always | by_access
}

/// Configuration space of a disk of that many sectors.
pub(super) fn space(sectors: u64) -> [u8; BYTES] {
    let ranges = u32::try_from(MAX_RANGES).unwrap_or(u32::MAX);
    let sector_bytes = u32::try_from(SECTOR_BYTES).unwrap_or(u32::MAX);
    let mut space = [0; BYTES];
    let mut put =
        |offset: usize, bytes: &[u8]| space[offset..offset + bytes.len()].copy_from_slice(bytes);
    put(0, &sectors.to_le_bytes());
    put(8, &MAX_SEGMENT_BYTES.to_le_bytes());
    put(12, &MAX_SEGMENTS.to_le_bytes());
    put(20, &sector_bytes.to_le_bytes());
    put(36, &MAX_DISCARD_SECTORS.to_le_bytes());
    put(40, &ranges.to_le_bytes());
    put(44, &DISCARD_ALIGNMENT_SECTORS.to_le_bytes());
    put(48, &MAX_WRITE_ZEROES_SECTORS.to_le_bytes());
    put(52, &ranges.to_le_bytes());
    // write_zeroes_may_unmap
    put(56, &[1]);
    space
}
