//! Registers of the first processor when it enters a 64-bit kernel: long mode, the first gibibyte mapped one to one,
//! flat segments, interrupts off, `rsi` pointing at the boot parameters.

use super::memory_map::{GDT, PAGE_TABLES, ZERO_PAGE};
use crate::virtio::device::GuestMemory;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

/// A flat segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Selector.
    pub selector: u16,
    /// Type (Intel SDM vol. 3, 3.4.5.1).
    pub kind: u8,
    /// Last byte.
    pub limit: u32,
    /// Whether it is a code or data segment, not a system one.
    pub is_code_or_data: bool,
    /// Whether it holds 64-bit code.
    pub is_long_code: bool,
    /// Whether the descriptor counts in pages.
    pub counts_pages: bool,
}

/// Registers at entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registers {
    /// Entry point.
    pub rip: u64,
    /// Address of the boot parameters.
    pub rsi: u64,
    /// Stack.
    pub rsp: u64,
    /// Control register 0.
    pub cr0: u64,
    /// Top page table.
    pub cr3: u64,
    /// Control register 4.
    pub cr4: u64,
    /// Extended features.
    pub efer: u64,
    /// Global descriptor table.
    pub gdt_base: u64,
    /// Its last byte.
    pub gdt_limit: u16,
    /// Code segment.
    pub code: Segment,
    /// Data and stack segments.
    pub data: Segment,
    /// Task segment.
    pub task: Segment,
}

const CR0_PE: u64 = 1;
const CR0_ET: u64 = 1 << 4;
const CR0_NE: u64 = 1 << 5;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;

const ENTRY_PRESENT_WRITABLE: u64 = 0b11;
const ENTRY_LARGE: u64 = 1 << 7;
const PAGE: u64 = 4096;
const LARGE_PAGE: u64 = 2 << 20;

/// `__BOOT_CS` and `__BOOT_DS` of the boot protocol.
const CODE: Segment = Segment {
    selector: 0x10,
    kind: 0b1011,
    limit: u32::MAX,
    is_code_or_data: true,
    is_long_code: true,
    counts_pages: true,
};
const DATA: Segment = Segment { selector: 0x18, kind: 0b0011, is_long_code: false, ..CODE };
const TASK: Segment = Segment {
    selector: 0x20,
    kind: 0b1011,
    limit: 0x67,
    is_code_or_data: false,
    is_long_code: false,
    counts_pages: false,
};

/// The registers for a kernel whose entry point is `entry`.
#[must_use]
pub fn for_entry(entry: u64) -> Registers {
    Registers {
        rip: entry,
        rsi: ZERO_PAGE,
        rsp: ZERO_PAGE - 16, // below the zero page; the kernel switches to its own before it pushes much
        cr0: CR0_PE | CR0_ET | CR0_NE | CR0_PG,
        cr3: PAGE_TABLES,
        cr4: CR4_PAE,
        efer: EFER_LME | EFER_LMA,
        gdt_base: GDT,
        gdt_limit: 5 * 8 - 1,
        code: CODE,
        data: DATA,
        task: TASK,
    }
}

/// Writes the descriptor table and the page tables that [`for_entry`] points to.
///
/// # Errors
/// If the guest has too little RAM.
pub fn write_tables(memory: &GuestMemory) -> Result<(), GuestMemoryError> {
    let descriptors = [0, 0, descriptor(&CODE), descriptor(&DATA), descriptor(&TASK)];
    for (address, value) in (GDT..).step_by(8).zip(descriptors) {
        memory.write_obj(value, GuestAddress(address))?;
    }
    let (top, middle, bottom) = (PAGE_TABLES, PAGE_TABLES + PAGE, PAGE_TABLES + 2 * PAGE);
    memory.write_obj(middle | ENTRY_PRESENT_WRITABLE, GuestAddress(top))?;
    memory.write_obj(bottom | ENTRY_PRESENT_WRITABLE, GuestAddress(middle))?;
    let mut entries = Vec::with_capacity(4096);
    for page in 0..512 {
        entries.extend_from_slice(
            &((page * LARGE_PAGE) | ENTRY_LARGE | ENTRY_PRESENT_WRITABLE).to_le_bytes(),
        );
    }
    memory.write_slice(&entries, GuestAddress(bottom))
}

/// The descriptor of a flat, present, privileged segment (Intel SDM vol. 3, figure 3-8).
const fn descriptor(segment: &Segment) -> u64 {
    let limit = if segment.counts_pages { segment.limit >> 12 } else { segment.limit } as u64;
    let present = 1 << 47;
    (limit & 0xffff)
        | ((limit >> 16) << 48)
        | ((segment.kind as u64) << 40)
        | ((segment.is_code_or_data as u64) << 44)
        | present
        | ((segment.is_long_code as u64) << 53)
        | ((segment.counts_pages as u64) << 55)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_have_the_documented_bits() {
        assert_eq!(descriptor(&CODE), 0x00af_9b00_0000_ffff);
        assert_eq!(descriptor(&DATA), 0x008f_9300_0000_ffff);
        assert_eq!(descriptor(&TASK), 0x0000_8b00_0000_0067);
    }

    #[test]
    fn the_first_gibibyte_is_mapped_one_to_one() {
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        write_tables(&memory).unwrap();
        let read = |address| memory.read_obj::<u64>(GuestAddress(address)).unwrap();
        let registers = for_entry(0x100_0000);
        for address in [0_u64, ZERO_PAGE, 0x100_0000, (1 << 30) - 1] {
            let middle = read(registers.cr3 + 8 * (address >> 39)) & !0xfff;
            let bottom = read(middle + 8 * (address >> 30)) & !0xfff;
            let entry = read(bottom + 8 * (address >> 21));
            assert_eq!((entry & !0xfff & !(1 << 12)) | (address & (LARGE_PAGE - 1)), address);
            assert_ne!(entry & ENTRY_LARGE, 0);
        }
    }
}
