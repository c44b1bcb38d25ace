//! Chains that end, and chains that do not.

use super::*;
use crate::virtio::mock_driver::{DATA, INDIRECT, NEXT, RAM_BYTES, WRITE};
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::mock::MockSplitQueue;
use virtio_queue::{Queue, QueueOwnedT as _};
use vm_memory::{Bytes as _, GuestAddress};

const LIMITS: Limits = Limits { descriptors: 8, bytes: 1 << 20 };
const TABLE: u64 = 0x8_0000;

type Raw = (u64, u32, u16, u16);

/// What `collect` makes of these descriptors, as lengths: readable, writable.
fn collect(
    descriptors: &[Raw],
    indirect: &[Raw],
) -> (Result<(), ChainError>, Vec<usize>, Vec<usize>) {
    let memory = crate::virtio::mock_driver::memory();
    let raw = |list: &[Raw]| -> Vec<RawDescriptor> {
        list.iter().map(|d| RawDescriptor::from(Descriptor::new(d.0, d.1, d.2, d.3))).collect()
    };
    let mock = MockSplitQueue::create(memory.as_ref(), GuestAddress(0x1000), 16);
    for (index, descriptor) in (0..).zip(raw(descriptors)) {
        mock.desc_table().store(index, descriptor).unwrap();
    }
    for (index, descriptor) in (0..).zip(raw(indirect)) {
        memory.write_obj(descriptor, GuestAddress(TABLE + 16 * index)).unwrap();
    }
    mock.avail().idx().store(1);
    let mut queue: Queue = mock.create_queue().unwrap();
    let chain = queue.iter(memory.as_ref()).unwrap().next().unwrap();
    let mut buffers = Buffers::default();
    let result = buffers.collect(chain, &memory, LIMITS);
    let lens = |slices: &[VolatileSlice<'_>]| slices.iter().map(VolatileSlice::len).collect();
    (result, lens(&buffers.readable), lens(&buffers.writable))
}

#[test]
fn parts_are_sorted_by_direction() {
    let (result, readable, writable) = collect(
        &[
            (DATA, 16, NEXT, 1),
            (DATA, 0, NEXT, 2),
            (DATA + 64, 5, NEXT | WRITE, 3),
            (DATA, 1, WRITE, 0),
        ],
        &[],
    );
    assert_eq!((result, readable, writable), (Ok(()), vec![16], vec![5, 1]));
}

#[test]
fn an_indirect_table_is_followed() {
    let table = [(DATA, 16, NEXT, 1), (DATA, 8, NEXT, 2), (DATA, 1, WRITE, 0)];
    let (result, readable, writable) = collect(&[(TABLE, 48, INDIRECT, 0)], &table);
    assert_eq!((result, readable, writable), (Ok(()), vec![16, 8], vec![1]));
}

#[test]
fn endless_chains_are_recognised() {
    let last = RAM_BYTES as u64;
    let cases: &[(&str, &[Raw], &[Raw])] = &[
        ("itself", &[(DATA, 1, NEXT, 0)], &[]),
        ("a loop of two", &[(DATA, 1, NEXT, 1), (DATA, 1, NEXT, 0)], &[]),
        ("out of the table", &[(DATA, 1, NEXT, 16)], &[]),
        ("far out of the table", &[(DATA, 1, NEXT, u16::MAX)], &[]),
        ("an indirect table outside RAM", &[(last, 16, INDIRECT, 0)], &[]),
        ("an indirect table at the end of addresses", &[(u64::MAX - 15, 32, INDIRECT, 0)], &[]),
        ("an empty indirect table", &[(TABLE, 0, INDIRECT, 0)], &[]),
        ("a table of half a descriptor", &[(TABLE, 8, INDIRECT, 0)], &[]),
        ("a table that is too long", &[(TABLE, 0xffff_fff0, INDIRECT, 0)], &[]),
        ("a table within a table", &[(TABLE, 32, INDIRECT, 0)], &[(TABLE, 16, INDIRECT, 0)]),
        ("a table that leads out of itself", &[(TABLE, 32, INDIRECT, 0)], &[(DATA, 1, NEXT, 2)]),
        ("a table that loops", &[(TABLE, 32, INDIRECT, 0)], &[(DATA, 1, NEXT | WRITE, 0)]),
    ];
    for (name, descriptors, indirect) in cases {
        let (result, _, writable) = collect(descriptors, indirect);
        assert!(
            matches!(result, Err(ChainError::Endless | ChainError::TooManyDescriptors)),
            "{name}: {result:?}"
        );
        assert!(writable.is_empty(), "{name}: no place for an answer is believed");
    }
}

#[test]
fn a_chain_has_a_largest_number_of_descriptors() {
    let mut table: Vec<Raw> = (0..8).map(|index| (DATA, 1, NEXT, index + 1)).collect();
    table.push((DATA, 1, WRITE, 0));
    assert_eq!(
        collect(&[(TABLE, 9 * 16, INDIRECT, 0)], &table).0,
        Err(ChainError::TooManyDescriptors)
    );
    table.remove(0);
    for descriptor in &mut table {
        descriptor.3 = descriptor.3.saturating_sub(1);
    }
    assert_eq!(collect(&[(TABLE, 8 * 16, INDIRECT, 0)], &table).0, Ok(()));
}

#[test]
fn what_is_wrong_before_the_end_leaves_room_for_the_answer() {
    let outside = RAM_BYTES as u64;
    let cases: &[(ChainError, &[Raw])] = &[
        (ChainError::NotInRam, &[(outside, 1, NEXT, 1), (DATA, 1, WRITE, 0)]),
        (ChainError::NotInRam, &[(outside - 1, 2, NEXT, 1), (DATA, 1, WRITE, 0)]),
        (ChainError::NotInRam, &[(u64::MAX, 2, NEXT, 1), (DATA, 1, WRITE, 0)]),
        (ChainError::TooManyBytes, &[(0, (1 << 20) + 1, NEXT, 1), (DATA, 1, WRITE, 0)]),
        (ChainError::Order, &[(DATA, 1, WRITE | NEXT, 1), (DATA, 1, NEXT, 2), (DATA, 1, WRITE, 0)]),
    ];
    for (expected, descriptors) in cases {
        let (result, _, writable) = collect(descriptors, &[]);
        assert_eq!(result, Err(*expected));
        assert_eq!(writable.last(), Some(&1));
    }
}

#[test]
fn copies_cross_the_borders_of_slices() {
    let mut bytes = *b"abcdefgh";
    let (left, right) = bytes.split_at_mut(3);
    let mut slices = [VolatileSlice::from(left), VolatileSlice::from(right)];
    let mut copy = [0; 5];
    assert_eq!(copy_out(&slices, &mut copy), 5);
    assert_eq!(&copy, b"abcde");
    assert_eq!(copy_out(&slices, &mut [0; 20]), 8);
    assert_eq!(copy_in(&slices, b"12345"), 5);
    let rest = skip(&mut slices, 4);
    assert_eq!(total(rest), 4);
    let mut copy = [0; 4];
    assert_eq!(copy_out(rest, &mut copy), 4);
    assert_eq!(&copy, b"5fgh");
    assert_eq!(total(skip(&mut slices, 20)), 0);
}
