//! The MP table: processors and interrupt lines for a kernel without ACPI (Intel MultiProcessor Specification 1.4).

use super::memory_map::{IO_APIC, LAST_GSI, LOCAL_APIC, MP_TABLE, MP_TABLE_END};
use crate::virtio::device::GuestMemory;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

/// Length of the floating pointer that leads to the table.
const POINTER_BYTES: u64 = 16;
/// Offset of the checksum in the pointer.
const POINTER_CHECKSUM: usize = 10;
const SPEC_REVISION: u8 = 4;
const APIC_VERSION: u8 = 0x14;

const ENTRY_PROCESSOR: u8 = 0;
const ENTRY_BUS: u8 = 1;
const ENTRY_IO_APIC: u8 = 2;
const ENTRY_IO_INTERRUPT: u8 = 3;
const ENTRY_LOCAL_INTERRUPT: u8 = 4;

const PROCESSOR_ENABLED: u8 = 1;
const PROCESSOR_BOOTS: u8 = 2;

const INTERRUPT_VECTORED: u8 = 0;
const INTERRUPT_NMI: u8 = 1;
const INTERRUPT_EXT: u8 = 3;
const ISA_BUS: u8 = 0;
const ALL_LOCAL_APICS: u8 = 0xff;

/// Length of the table's header, offset of its length and checksum.
const HEADER_BYTES: usize = 44;
const HEADER_CHECKSUM: usize = 7;

/// Writes the table for `cpus` processors, whose APIC ids are 0, 1, 2 …
///
/// `signature` and `features` are EAX and EDX of CPUID leaf 1.
///
/// # Errors
/// If the guest has no RAM there.
///
/// # Panics
/// If the table does not fit: 64 processors take 1.6 of 64 KiB.
pub fn write(
    memory: &GuestMemory,
    cpus: u8,
    signature: u32,
    features: u32,
) -> Result<(), GuestMemoryError> {
    let table = table(cpus, signature, features);
    assert!(
        MP_TABLE + POINTER_BYTES + table.len() as u64 <= MP_TABLE_END,
        "the MP table fits its area"
    );
    memory.write_slice(&pointer(), GuestAddress(MP_TABLE))?;
    memory.write_slice(&table, GuestAddress(MP_TABLE + POINTER_BYTES))
}

fn pointer() -> Vec<u8> {
    let address = u32::try_from(MP_TABLE + POINTER_BYTES).expect("a constant below 1 MiB");
    let mut bytes = b"_MP_".to_vec();
    bytes.extend_from_slice(&address.to_le_bytes());
    // Length in paragraphs, revision, checksum, five feature bytes: zero says that a table is there.
    bytes.extend_from_slice(&[1, SPEC_REVISION, 0, 0, 0, 0, 0, 0]);
    bytes[POINTER_CHECKSUM] = complement(&bytes);
    bytes
}

fn table(cpus: u8, signature: u32, features: u32) -> Vec<u8> {
    // An id of its own: the processors have 0 to cpus - 1.
    let io_apic = cpus;
    let mut entries = Vec::new();
    for id in 0..cpus {
        let flags = if id == 0 { PROCESSOR_ENABLED | PROCESSOR_BOOTS } else { PROCESSOR_ENABLED };
        entries.extend_from_slice(&[ENTRY_PROCESSOR, id, APIC_VERSION, flags]);
        entries.extend_from_slice(&signature.to_le_bytes());
        entries.extend_from_slice(&features.to_le_bytes());
        entries.extend_from_slice(&[0; 8]);
    }
    entries.extend_from_slice(&[ENTRY_BUS, ISA_BUS]);
    entries.extend_from_slice(b"ISA   ");
    entries.extend_from_slice(&[ENTRY_IO_APIC, io_apic, APIC_VERSION, 1]);
    entries.extend_from_slice(&IO_APIC.to_le_bytes());
    // Each line to the pin of its number; flags 0 are the bus's own: edge-triggered, active high.
    for line in 0..=u8::try_from(LAST_GSI).expect("an I/O APIC has few pins") {
        entries.extend_from_slice(&[
            ENTRY_IO_INTERRUPT,
            INTERRUPT_VECTORED,
            0,
            0,
            ISA_BUS,
            line,
            io_apic,
            line,
        ]);
    }
    entries.extend_from_slice(&[ENTRY_LOCAL_INTERRUPT, INTERRUPT_EXT, 0, 0, ISA_BUS, 0, 0, 0]);
    entries.extend_from_slice(&[
        ENTRY_LOCAL_INTERRUPT,
        INTERRUPT_NMI,
        0,
        0,
        ISA_BUS,
        0,
        ALL_LOCAL_APICS,
        1,
    ]);

    let count = u16::from(cpus)
        + 1
        + 1
        + u16::try_from(LAST_GSI + 1).expect("an I/O APIC has few pins")
        + 2;
    let len = u16::try_from(HEADER_BYTES + entries.len()).expect("64 processors take 1.6 KiB");
    let mut bytes = b"PCMP".to_vec();
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(&[SPEC_REVISION, 0]);
    bytes.extend_from_slice(b"LILBOX  ");
    bytes.extend_from_slice(b"MICROVM     ");
    bytes.extend_from_slice(&[0; 6]); // no OEM table
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&LOCAL_APIC.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]); // no extended table
    bytes.extend_from_slice(&entries);
    bytes[HEADER_CHECKSUM] = complement(&bytes);
    bytes
}

/// The byte that makes the sum zero.
fn complement(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks the entries as the specification's appendix tells, by their lengths.
    fn kinds(table: &[u8]) -> Vec<u8> {
        let mut rest = &table[HEADER_BYTES..];
        let mut kinds = Vec::new();
        while let [kind, ..] = rest {
            kinds.push(*kind);
            rest = &rest[if *kind == ENTRY_PROCESSOR { 20 } else { 8 }..];
        }
        kinds
    }

    #[test]
    fn tables_are_whole_for_every_number_of_processors() {
        for cpus in 1..=64 {
            let table = table(cpus, 0x0080_0f12, 0x0783_fbff);
            assert_eq!(usize::from(u16::from_le_bytes([table[4], table[5]])), table.len());
            assert_eq!(complement(&table), 0);
            let kinds = kinds(&table);
            assert_eq!(usize::from(u16::from_le_bytes([table[34], table[35]])), kinds.len());
            assert_eq!(
                kinds.iter().filter(|kind| **kind == ENTRY_PROCESSOR).count(),
                usize::from(cpus)
            );
            assert_eq!(kinds.iter().filter(|kind| **kind == ENTRY_IO_INTERRUPT).count(), 24);
        }
        assert_eq!(pointer().len() as u64, POINTER_BYTES);
        assert_eq!(complement(&pointer()), 0);
    }

    #[test]
    fn exactly_one_processor_boots_and_the_io_apic_has_an_id_of_its_own() {
        let table = table(4, 0, 0);
        let processors = table[HEADER_BYTES..].chunks(20).take(4);
        let flags: Vec<(u8, u8)> = processors.map(|entry| (entry[1], entry[3])).collect();
        assert_eq!(flags, [(0, 3), (1, 1), (2, 1), (3, 1)]);
        let io_apic = &table[HEADER_BYTES + 4 * 20 + 8..][..8];
        assert_eq!((io_apic[0], io_apic[1]), (ENTRY_IO_APIC, 4));
    }

    #[test]
    fn it_lies_where_the_kernel_looks() {
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        write(&memory, 64, 0, 0).unwrap();
        assert_eq!(memory.read_obj::<[u8; 4]>(GuestAddress(MP_TABLE)).unwrap(), *b"_MP_");
        let address = memory.read_obj::<u32>(GuestAddress(MP_TABLE + 4)).unwrap();
        assert_eq!(memory.read_obj::<[u8; 4]>(GuestAddress(u64::from(address))).unwrap(), *b"PCMP");
    }
}
