//! From descriptors to packets and back: the one place that reads what the driver laid out in the vsock queues.
//!
//! # Trust
//! Everything here is the guest's: addresses, lengths, flags, the header. The header is copied to host memory once
//! and only the copy is believed, whatever the guest writes later. Payload is never copied by this file; it is handed
//! on as bounds-checked slices of guest memory, no longer than [`MAX_PAYLOAD`]. Beyond this file there are no guest
//! addresses and no lengths that were not checked.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use crate::virtio::device::GuestMemory;
use thiserror::Error;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{GuestAddress, GuestMemoryBackend, VolatileSlice};

/// Size of a packet's header (virtio 1.2 §5.10.6).
pub(super) const HEADER_LEN: usize = 44;

/// Most payload of one packet. Linux never sends more; a guest that claims more would make one packet occupy the I/O
/// thread for as long as it likes.
pub(super) const MAX_PAYLOAD: usize = 64 << 10;

/// Most descriptors of one packet. Linux uses some eighteen for the largest. An indirect table may have 65535 that are
/// all empty, and a guest that sends such packets would keep the I/O thread from its other devices.
const MAX_DESCRIPTORS: usize = 256;

/// Stream sockets, the only kind there is without `VIRTIO_VSOCK_F_SEQPACKET`.
pub(super) const TYPE_STREAM: u16 = 1;

/// `flags` of [`Op::Shutdown`]: the sender will not receive any more.
pub(super) const SHUTDOWN_RECEIVE: u32 = 1;
/// `flags` of [`Op::Shutdown`]: the sender will not send any more.
pub(super) const SHUTDOWN_SEND: u32 = 2;

/// What a packet is for (virtio 1.2 §5.10.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Op {
    /// Asks for a connection.
    Request = 1,
    /// Grants it.
    Response = 2,
    /// Ends a connection at once, or refuses it.
    Reset = 3,
    /// Announces that one or both directions will carry no more data.
    Shutdown = 4,
    /// Carries data.
    Data = 5,
    /// Tells how much may be sent.
    CreditUpdate = 6,
    /// Asks how much may be sent.
    CreditRequest = 7,
}

impl Op {
    /// The operation with this number, if there is one.
    pub(super) fn from_number(number: u16) -> Option<Self> {
        [
            Self::Request,
            Self::Response,
            Self::Reset,
            Self::Shutdown,
            Self::Data,
            Self::CreditUpdate,
            Self::CreditRequest,
        ]
        .into_iter()
        .find(|op| op.number() == number)
    }

    /// The number on the wire.
    pub(super) const fn number(self) -> u16 {
        self as u16
    }
}

/// A packet's header, as the driver wrote it: any value in any field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// Context id of the sender.
    pub(super) src_cid: u64,
    /// Context id of the receiver.
    pub(super) dst_cid: u64,
    /// Port of the sender.
    pub(super) src_port: u32,
    /// Port of the receiver.
    pub(super) dst_port: u32,
    /// Bytes of payload.
    pub(super) len: u32,
    /// Kind of socket.
    pub(super) kind: u16,
    /// Operation, see [`Op`].
    pub(super) op: u16,
    /// Depends on the operation.
    pub(super) flags: u32,
    /// Size of the sender's receive buffer for this connection.
    pub(super) buf_alloc: u32,
    /// Bytes that the sender's reader has taken out of that buffer so far.
    pub(super) fwd_cnt: u32,
}

impl Header {
    /// Reads a header.
    pub(super) fn decode(raw: &[u8; HEADER_LEN]) -> Self {
        let mut rest: &[u8] = raw;
        Self {
            src_cid: u64::from_le_bytes(take(&mut rest)),
            dst_cid: u64::from_le_bytes(take(&mut rest)),
            src_port: u32::from_le_bytes(take(&mut rest)),
            dst_port: u32::from_le_bytes(take(&mut rest)),
            len: u32::from_le_bytes(take(&mut rest)),
            kind: u16::from_le_bytes(take(&mut rest)),
            op: u16::from_le_bytes(take(&mut rest)),
            flags: u32::from_le_bytes(take(&mut rest)),
            buf_alloc: u32::from_le_bytes(take(&mut rest)),
            fwd_cnt: u32::from_le_bytes(take(&mut rest)),
        }
    }

    /// Writes a header.
    pub(super) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut raw = [0; HEADER_LEN];
        let mut rest: &mut [u8] = &mut raw;
        put(&mut rest, self.src_cid.to_le_bytes());
        put(&mut rest, self.dst_cid.to_le_bytes());
        put(&mut rest, self.src_port.to_le_bytes());
        put(&mut rest, self.dst_port.to_le_bytes());
        put(&mut rest, self.len.to_le_bytes());
        put(&mut rest, self.kind.to_le_bytes());
        put(&mut rest, self.op.to_le_bytes());
        put(&mut rest, self.flags.to_le_bytes());
        put(&mut rest, self.buf_alloc.to_le_bytes());
        put(&mut rest, self.fwd_cnt.to_le_bytes());
        raw
    }
}

/// The next `N` bytes. The fields of [`Header`] add up to its size, so there always are as many.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let Some((head, tail)) = rest.split_first_chunk::<N>() else { return [0; N] };
    *rest = tail;
    *head
}

/// Writes the next `N` bytes; see [`take`].
fn put<const N: usize>(rest: &mut &mut [u8], value: [u8; N]) {
    if let Some((head, tail)) = std::mem::take(rest).split_first_chunk_mut::<N>() {
        *head = value;
        *rest = tail;
    }
}

/// Why a descriptor chain is no packet.
#[derive(Debug, Error)]
pub(super) enum Malformed {
    /// A buffer to be written to where packets are sent, or the reverse.
    #[error("descriptor of the wrong direction")]
    Direction,
    /// A buffer that is not in guest memory.
    #[error("buffer outside guest memory")]
    Address,
    /// The chain is shorter than a header.
    #[error("chain of {0} bytes has no room for a header")]
    NoHeader(usize),
    /// The buffer has room for a header only. Data could not be sent with such buffers, so none is taken.
    #[error("buffer has no room for payload")]
    NoRoom,
    /// The header promises more than a packet may carry, or more than the chain holds. A stream with a hole in it is
    /// worth nothing, so the connection named by the header is to be reset.
    #[error("payload of {} bytes is more than the packet has or may have", .0.len)]
    Payload(Header),
}

/// A packet from the guest.
pub(super) struct TxPacket<'m> {
    /// The host's copy of the header.
    pub(super) header: Header,
    /// The payload, `header.len` bytes in all; empty unless the operation is [`Op::Data`].
    pub(super) payload: Vec<VolatileSlice<'m>>,
}

impl<'m> TxPacket<'m> {
    /// Reads the packet in a chain of the tx queue.
    pub(super) fn parse(
        memory: &'m GuestMemory,
        chain: impl Iterator<Item = Descriptor>,
    ) -> Result<Self, Malformed> {
        let mut raw = [0; HEADER_LEN];
        let mut missing: &mut [u8] = &mut raw;
        let mut buffers = Buffers::new(memory, chain, false);
        while !missing.is_empty() {
            let Some(slice) = buffers.next(missing.len())? else {
                return Err(Malformed::NoHeader(HEADER_LEN.saturating_sub(missing.len())));
            };
            let copied = slice.copy_to(missing);
            missing = std::mem::take(&mut missing).get_mut(copied..).unwrap_or_default();
        }
        let header = Header::decode(&raw);

        let mut payload = Vec::new();
        if header.op == Op::Data.number() {
            let mut left = match usize::try_from(header.len) {
                Ok(len) if len <= MAX_PAYLOAD => len,
                _ => return Err(Malformed::Payload(header)),
            };
            while left > 0 {
                let Some(slice) = buffers.next(left)? else {
                    return Err(Malformed::Payload(header));
                };
                left = left.saturating_sub(slice.len());
                payload.push(slice);
            }
        }
        Ok(Self { header, payload })
    }
}

/// A buffer of the guest that waits for a packet.
pub(super) struct RxSlot<'m> {
    header: Vec<VolatileSlice<'m>>,
    payload: Vec<VolatileSlice<'m>>,
}

impl<'m> RxSlot<'m> {
    /// Reads where a chain of the rx queue has room.
    pub(super) fn parse(
        memory: &'m GuestMemory,
        chain: impl Iterator<Item = Descriptor>,
    ) -> Result<Self, Malformed> {
        let mut buffers = Buffers::new(memory, chain, true);
        let (header, missing) = buffers.gather(HEADER_LEN)?;
        if missing > 0 {
            return Err(Malformed::NoHeader(HEADER_LEN.saturating_sub(missing)));
        }
        let (payload, _) = buffers.gather(MAX_PAYLOAD)?;
        if payload.is_empty() {
            return Err(Malformed::NoRoom);
        }
        Ok(Self { header, payload })
    }

    /// Where payload goes, in order.
    pub(super) fn payload(&self) -> &[VolatileSlice<'m>] {
        &self.payload
    }

    /// Writes the header; the payload was written before. Returns how many bytes of the buffer are used.
    pub(super) fn finish(self, header: &Header) -> u32 {
        let raw = header.encode();
        let mut rest: &[u8] = &raw;
        for slice in &self.header {
            let (now, later) = rest.split_at_checked(slice.len()).unwrap_or((rest, &[]));
            slice.copy_from(now);
            rest = later;
        }
        u32::try_from(HEADER_LEN).unwrap_or(u32::MAX).saturating_add(header.len)
    }
}

/// The buffers of a chain, cut to what is asked for.
struct Buffers<'m, C> {
    memory: &'m GuestMemory,
    chain: std::iter::Take<C>,
    writable: bool,
    /// What is left of the descriptor that was begun.
    address: GuestAddress,
    left: usize,
}

impl<'m, C: Iterator<Item = Descriptor>> Buffers<'m, C> {
    fn new(memory: &'m GuestMemory, chain: C, writable: bool) -> Self {
        let chain = chain.take(MAX_DESCRIPTORS);
        Self { memory, chain, writable, address: GuestAddress(0), left: 0 }
    }

    /// The next piece, of at least one and at most `limit` bytes; none at the end of the chain. A chain with a loop
    /// ends too: descriptors are counted.
    fn next(&mut self, limit: usize) -> Result<Option<VolatileSlice<'m>>, Malformed> {
        while self.left == 0 {
            let Some(descriptor) = self.chain.next() else { return Ok(None) };
            if descriptor.is_write_only() != self.writable {
                return Err(Malformed::Direction);
            }
            self.address = descriptor.addr();
            self.left = usize::try_from(descriptor.len()).map_err(|_| Malformed::Address)?;
        }
        let memory = self.memory;
        let slice = memory
            .get_slices(self.address, self.left.min(limit))
            .next()
            .and_then(Result::ok)
            .filter(|slice| !slice.is_empty())
            .ok_or(Malformed::Address)?;
        self.left = self.left.saturating_sub(slice.len());
        let step = u64::try_from(slice.len()).map_err(|_| Malformed::Address)?;
        self.address = GuestAddress(self.address.0.wrapping_add(step));
        Ok(Some(slice))
    }

    /// Up to `limit` bytes, and how many were missing.
    fn gather(&mut self, limit: usize) -> Result<(Vec<VolatileSlice<'m>>, usize), Malformed> {
        let mut slices = Vec::new();
        let mut missing = limit;
        while missing > 0 {
            let Some(slice) = self.next(missing)? else { break };
            missing = missing.saturating_sub(slice.len());
            slices.push(slice);
        }
        Ok((slices, missing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::Bytes;

    const NEXT: u16 = 1;
    const WRITE: u16 = 2;

    fn memory() -> GuestMemory {
        // Two regions that touch, and a hole behind them.
        GuestMemory::from_ranges(&[(GuestAddress(0), 0x2_0000), (GuestAddress(0x2_0000), 0x2_0000)])
            .unwrap()
    }

    fn chain(pieces: &[(u64, u32)], flags: u16) -> std::vec::IntoIter<Descriptor> {
        let descriptors: Vec<_> = pieces
            .iter()
            .map(|(address, len)| Descriptor::new(*address, *len, flags | NEXT, 0))
            .collect();
        descriptors.into_iter()
    }

    fn sample() -> Header {
        Header {
            src_cid: 0x0102_0304_0506_0708,
            dst_cid: 0x1112_1314_1516_1718,
            src_port: 0x2122_2324,
            dst_port: 0x3132_3334,
            len: 100,
            kind: 0x5152,
            op: Op::Data.number(),
            flags: 0x7172_7374,
            buf_alloc: 0x8182_8384,
            fwd_cnt: 0x9192_9394,
        }
    }

    #[test]
    fn a_header_on_the_wire() {
        let raw = sample().encode();
        assert_eq!(raw[..8], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(raw[24..32], [100, 0, 0, 0, 0x52, 0x51, 5, 0]);
        assert_eq!(raw[40..], [0x94, 0x93, 0x92, 0x91]);
        assert_eq!(Header::decode(&raw), sample());
    }

    #[test]
    fn operations_have_the_numbers_of_the_specification() {
        let known: Vec<_> = (0..=u16::MAX).filter_map(Op::from_number).map(Op::number).collect();
        assert_eq!(known, [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn packets_may_be_cut_anywhere() {
        let memory = memory();
        let bytes: Vec<u8> = sample().encode().into_iter().chain((0..100).map(|i| i + 1)).collect();
        // Across the border of the regions.
        memory.write_slice(&bytes, GuestAddress(0x1_ffff)).unwrap();
        let cuts: [&[u32]; 6] =
            [&[144], &[44, 100], &[1, 143], &[43, 2, 99], &[0, 44, 0, 100], &[144, 5000]];
        for cut in cuts {
            let mut at = 0x1_ffff;
            let mut pieces = Vec::new();
            for len in cut {
                pieces.push((at, *len));
                at += u64::from(*len);
            }
            let packet = TxPacket::parse(&memory, chain(&pieces, 0)).unwrap();
            assert_eq!(packet.header, sample());
            let mut payload = Vec::new();
            for slice in &packet.payload {
                let mut piece = vec![0; slice.len()];
                slice.copy_to(&mut piece);
                payload.extend(piece);
            }
            assert_eq!(payload, bytes[44..], "{cut:?}");
        }
    }

    #[test]
    fn the_largest_packet_and_one_more() {
        let memory = memory();
        for (len, fits) in [(MAX_PAYLOAD, true), (MAX_PAYLOAD + 1, false)] {
            let header = Header { len: u32::try_from(len).unwrap(), ..sample() };
            memory.write_slice(&header.encode(), GuestAddress(0)).unwrap();
            let packet = TxPacket::parse(&memory, chain(&[(0, 0x4_0000)], 0));
            assert_eq!(packet.is_ok(), fits);
        }
    }

    #[test]
    fn payload_of_other_operations_is_not_touched() {
        let memory = memory();
        let header = Header { op: Op::Request.number(), len: u32::MAX, ..sample() };
        memory.write_slice(&header.encode(), GuestAddress(0)).unwrap();
        assert!(TxPacket::parse(&memory, chain(&[(0, 44)], 0)).unwrap().payload.is_empty());
    }

    #[test]
    fn chains_that_are_no_packets() {
        let memory = memory();
        memory.write_slice(&sample().encode(), GuestAddress(0)).unwrap();
        let parse = |pieces: &[(u64, u32)], flags| {
            TxPacket::parse(&memory, chain(pieces, flags)).map(|_| ())
        };
        assert!(matches!(parse(&[], 0), Err(Malformed::NoHeader(0))));
        assert!(matches!(parse(&[(0, 43)], 0), Err(Malformed::NoHeader(43))));
        assert!(matches!(parse(&[(0, 144)], WRITE), Err(Malformed::Direction)));
        assert!(matches!(parse(&[(0x4_0000, 144)], 0), Err(Malformed::Address)));
        assert!(matches!(parse(&[(0, 44), (0x3_ffff, 100)], 0), Err(Malformed::Address)));
        let long = vec![(0, 0); MAX_DESCRIPTORS];
        assert!(matches!(parse(&[&long[1..], &[(0, 144)]].concat(), 0), Ok(())));
        assert!(matches!(
            parse(&[&long[..], &[(0, 144)]].concat(), 0),
            Err(Malformed::NoHeader(0))
        ));
        assert!(matches!(parse(&[(u64::MAX, 144)], 0), Err(Malformed::Address)));
        assert!(
            matches!(parse(&[(0, 143)], 0), Err(Malformed::Payload(header)) if header == sample())
        );
    }

    #[test]
    fn slots_take_header_and_payload_wherever_they_are() {
        let memory = memory();
        let header = Header { len: 3, ..sample() };
        for pieces in
            [&[(0x1_fff0, 200)][..], &[(0, 10), (100, 34), (200, 1), (300, 9)], &[(0, 46), (60, 8)]]
        {
            let slot = RxSlot::parse(&memory, chain(pieces, WRITE)).unwrap();
            let mut rest: &[u8] = b"abc";
            for slice in slot.payload() {
                let (now, later) = rest.split_at(rest.len().min(slice.len()));
                slice.copy_from(now);
                rest = later;
            }
            assert_eq!(slot.finish(&header), 47);
            let mut got = Vec::new();
            for (address, len) in pieces {
                let mut piece = vec![0; *len as usize];
                memory.read_slice(&mut piece, GuestAddress(*address)).unwrap();
                got.extend(piece);
            }
            assert_eq!(got[..44], header.encode());
            assert_eq!(got[44..47], *b"abc");
        }
    }

    #[test]
    fn slots_are_cut_to_the_largest_packet() {
        let memory = memory();
        let slot = RxSlot::parse(&memory, chain(&[(0, 0x4_0000), (0x4_0000, 1)], WRITE)).unwrap();
        assert_eq!(slot.payload().iter().map(VolatileSlice::len).sum::<usize>(), MAX_PAYLOAD);
    }

    #[test]
    fn chains_that_are_no_slots() {
        let memory = memory();
        let parse =
            |pieces: &[(u64, u32)], flags| RxSlot::parse(&memory, chain(pieces, flags)).map(|_| ());
        assert!(matches!(parse(&[(0, 43)], WRITE), Err(Malformed::NoHeader(43))));
        assert!(matches!(parse(&[(0, 44)], WRITE), Err(Malformed::NoRoom)));
        assert!(matches!(parse(&[(0, 45)], 0), Err(Malformed::Direction)));
        assert!(matches!(parse(&[(0x3_fff0, 45)], WRITE), Err(Malformed::Address)));
    }
}
