//! What the guest asks a disk for.
//!
//! # Trust
//! The only file that reads this device's descriptors. The header is copied once and only the copy is believed; it may
//! be split over descriptors in any way (virtio 1.2 §2.7.4). What comes out is a typed request: offsets are bytes and
//! lie within the disk, slices lie in RAM, and of guest addresses nothing is left.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use crate::virtio::chain::{self, Buffers, ChainError, Limits};
use crate::virtio::device::GuestMemory;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD,
    VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_queue::DescriptorChain;
use vm_memory::VolatileSlice;

/// The unit of the protocol, whatever the disk's blocks are.
pub const SECTOR_BYTES: u64 = 512;

/// Data segments of one request, told to the driver (`seg_max`); with header and status they fit a queue of 256.
pub const MAX_SEGMENTS: u32 = 253;

/// Bytes of one segment, told to the driver (`size_max`).
pub const MAX_SEGMENT_BYTES: u32 = 256 << 10;

/// What a driver that keeps to the two numbers above can reach; beyond it a single request would occupy the disks'
/// thread for as long as the guest likes. One descriptor more than needed is allowed, for a header in two pieces.
const LIMITS: Limits = Limits {
    descriptors: MAX_SEGMENTS as usize + 3,
    bytes: MAX_SEGMENTS as u64 * MAX_SEGMENT_BYTES as u64 + 17,
};

/// Ranges of one discard or write-zeroes request, told to the driver. Bounds what is copied to the host's stack.
pub const MAX_RANGES: usize = 16;

/// Sectors of one range to discard, told to the driver: a hole is punched in one go, however long.
pub const MAX_DISCARD_SECTORS: u32 = 1 << 22;

/// Sectors of one range to zero, told to the driver: where the host knows no shortcut, that much is written.
pub const MAX_WRITE_ZEROES_SECTORS: u32 = 1 << 16;

/// Bytes of a request's header (virtio 1.2 §5.2.6).
const HEADER_BYTES: usize = 16;

/// Bytes of one range to discard or zero.
const RANGE_BYTES: usize = 16;

/// A chain that is no request; the driver cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The chain itself, and it has no room for a status.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// There is no room for a status.
    #[error("a request has no room for its status")]
    NoStatus,
}

/// Why a request is answered without being carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The chain is not what it should be.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The header is shorter than a header.
    #[error("a request has a header of {0} bytes")]
    Header(usize),
    /// The operation is not known.
    #[error("operation {0} is not known")]
    Unknown(u32),
    /// The data is not whole sectors.
    #[error("{0} bytes of data are not whole sectors")]
    PartialSector(u64),
    /// The sectors are not on the disk.
    #[error("{bytes} bytes at sector {sector} are not on the disk")]
    OutOfDisk {
        /// First sector.
        sector: u64,
        /// Length.
        bytes: u64,
    },
    /// A list of ranges is empty, too long, or has an incomplete entry.
    #[error("a list of ranges has {0} bytes")]
    RangeList(u64),
    /// One range is longer than the device allows.
    #[error("a range has {0} sectors")]
    RangeTooLong(u32),
    /// A range has flags that are not known for its operation.
    #[error("a range has flags {0:#x}")]
    RangeFlags(u32),
}

impl Refusal {
    /// The status byte that says it.
    #[must_use]
    pub fn status(self) -> Status {
        match self {
            Self::Unknown(_) | Self::RangeFlags(_) => Status::Unsupported,
            _ => Status::IoError,
        }
    }
}

/// How a request ended (virtio 1.2 §5.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok,
    /// Tried and failed, or refused.
    IoError,
    /// Not known to the device.
    Unsupported,
}

impl Status {
    fn byte(self) -> u8 {
        let code = match self {
            Self::Ok => VIRTIO_BLK_S_OK,
            Self::IoError => VIRTIO_BLK_S_IOERR,
            Self::Unsupported => VIRTIO_BLK_S_UNSUPP,
        };
        code.to_le_bytes()[0]
    }
}

/// A range to discard or zero, within the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Whether space may be given back.
    pub unmap: bool,
}

/// The ranges of one request.
#[derive(Clone, Copy, Debug)]
pub struct Ranges {
    ranges: [Range; MAX_RANGES],
    count: usize,
}

impl Ranges {
    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Range> {
        self.ranges.iter().take(self.count)
    }
}

/// What is to be done.
#[derive(Debug)]
pub enum Operation<'s, 'm> {
    /// Read from the disk.
    Read {
        /// First byte.
        offset: u64,
        /// Where to.
        into: &'s [VolatileSlice<'m>],
    },
    /// Write to the disk.
    Write {
        /// First byte.
        offset: u64,
        /// What.
        from: &'s [VolatileSlice<'m>],
    },
    /// Make earlier writes durable.
    Flush,
    /// Tell the serial number.
    Identify {
        /// Where to.
        into: &'s [VolatileSlice<'m>],
    },
    /// Give space back.
    Discard(Ranges),
    /// Zero ranges.
    WriteZeroes(Ranges),
    /// Nothing: the request breaks the rules.
    Refuse(Refusal),
}

/// A request.
#[derive(Debug)]
pub struct Request<'s, 'm> {
    /// What is to be done.
    pub operation: Operation<'s, 'm>,
    /// Where the outcome goes.
    pub status: StatusSlot<'m>,
}

/// The byte in which the driver looks for the outcome.
#[derive(Debug)]
pub struct StatusSlot<'m>(VolatileSlice<'m>);

impl StatusSlot<'_> {
    /// Tells the outcome.
    pub fn set(self, status: Status) {
        self.0.copy_from(&[status.byte()]);
    }
}

/// Reads one request for a disk of `disk_bytes`.
///
/// # Errors
/// [`Malformed`] if the driver cannot even be told.
pub fn parse<'s, 'm>(
    chain: DescriptorChain<&'m GuestMemory>,
    memory: &'m GuestMemory,
    disk_bytes: u64,
    buffers: &'s mut Buffers<'m>,
) -> Result<Request<'s, 'm>, Malformed> {
    let collected = buffers.collect(chain, memory, LIMITS);
    let status = take_status(&mut buffers.writable);
    match (collected, status) {
        (Ok(()), Some(status)) => {
            let operation = read_operation(buffers, disk_bytes).unwrap_or_else(Operation::Refuse);
            Ok(Request { operation, status })
        }
        (Err(error), Some(status)) => {
            Ok(Request { operation: Operation::Refuse(error.into()), status })
        }
        (Ok(()), None) => Err(Malformed::NoStatus),
        (Err(error), None) => Err(error.into()),
    }
}

/// Splits the last byte off the writable part.
fn take_status<'m>(writable: &mut Vec<VolatileSlice<'m>>) -> Option<StatusSlot<'m>> {
    let last = writable.pop()?;
    let rest = last.len().checked_sub(1)?;
    let status = last.offset(rest).ok()?;
    if rest > 0 {
        writable.push(last.subslice(0, rest).ok()?);
    }
    Some(StatusSlot(status))
}

fn read_operation<'s, 'm>(
    buffers: &'s mut Buffers<'m>,
    disk_bytes: u64,
) -> Result<Operation<'s, 'm>, Refusal> {
    let mut header = [0; HEADER_BYTES];
    let copied = chain::copy_out(&buffers.readable, &mut header);
    if copied < HEADER_BYTES {
        return Err(Refusal::Header(copied));
    }
    let [t0, t1, t2, t3, _, _, _, _, sector @ ..] = header;
    let kind = u32::from_le_bytes([t0, t1, t2, t3]);
    let sector = u64::from_le_bytes(sector);
    let payload = chain::skip(&mut buffers.readable, HEADER_BYTES);
    let into = buffers.writable.as_slice();
    match kind {
        VIRTIO_BLK_T_IN => {
            Ok(Operation::Read { offset: place(sector, chain::total(into), disk_bytes)?, into })
        }
        VIRTIO_BLK_T_OUT => Ok(Operation::Write {
            offset: place(sector, chain::total(payload), disk_bytes)?,
            from: payload,
        }),
        VIRTIO_BLK_T_FLUSH => Ok(Operation::Flush),
        VIRTIO_BLK_T_GET_ID => Ok(Operation::Identify { into }),
        VIRTIO_BLK_T_DISCARD => {
            Ok(Operation::Discard(read_ranges(payload, disk_bytes, MAX_DISCARD_SECTORS, 0)?))
        }
        VIRTIO_BLK_T_WRITE_ZEROES => Ok(Operation::WriteZeroes(read_ranges(
            payload,
            disk_bytes,
            MAX_WRITE_ZEROES_SECTORS,
            VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
        )?)),
        kind => Err(Refusal::Unknown(kind)),
    }
}

/// The byte offset of whole sectors that are on the disk.
fn place(sector: u64, bytes: u64, disk_bytes: u64) -> Result<u64, Refusal> {
    if !bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(Refusal::PartialSector(bytes));
    }
    sector
        .checked_mul(SECTOR_BYTES)
        .filter(|offset| offset.checked_add(bytes).is_some_and(|end| end <= disk_bytes))
        .ok_or(Refusal::OutOfDisk { sector, bytes })
}

fn read_ranges(
    payload: &[VolatileSlice<'_>],
    disk_bytes: u64,
    max_sectors: u32,
    known_flags: u32,
) -> Result<Ranges, Refusal> {
    let mut bytes = [0; MAX_RANGES * RANGE_BYTES];
    let total = chain::total(payload);
    let copied = chain::copy_out(payload, &mut bytes);
    if total == 0 || total != copied as u64 || !copied.is_multiple_of(RANGE_BYTES) {
        return Err(Refusal::RangeList(total));
    }
    let mut ranges = Ranges { ranges: [Range::default(); MAX_RANGES], count: 0 };
    let (entries, _) = bytes.get(..copied).unwrap_or_default().as_chunks::<RANGE_BYTES>();
    for (range, entry) in ranges.ranges.iter_mut().zip(entries) {
        let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, flags @ ..] = *entry;
        let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        let sectors = u32::from_le_bytes([n0, n1, n2, n3]);
        let flags = u32::from_le_bytes(flags);
        if flags & !known_flags != 0 {
            return Err(Refusal::RangeFlags(flags));
        }
        if sectors > max_sectors {
            return Err(Refusal::RangeTooLong(sectors));
        }
        let len = u64::from(sectors).saturating_mul(SECTOR_BYTES);
        *range = Range { offset: place(sector, len, disk_bytes)?, len, unmap: flags != 0 };
        ranges.count = ranges.count.saturating_add(1);
    }
    Ok(ranges)
}
