//! The guest's physical addresses on x86-64.
//!
//! ```text
//! 0x0000_0500  GDT                          \
//! 0x0000_7000  zero page (boot parameters)   |  boot structures in the first 640 KiB, which the kernel
//! 0x0000_9000  page tables, 3 pages          |  does not touch before it has read them
//! 0x0002_0000  command line                 /
//! 0x000f_0000  MP table                        the kernel looks for it in the BIOS area, no RAM as far as it knows
//! 0x0010_0000  RAM (kernel first, initramfs at the end of the part below the hole)
//! 0xc000_0000  hole: virtio-mmio from 0xd000_0000, I/O APIC, local APIC, KVM's own pages
//! 0x1_0000_0000  rest of RAM
//! ```

/// Address of the global descriptor table.
pub const GDT: u64 = 0x500;
/// Address of the boot parameters.
pub const ZERO_PAGE: u64 = 0x7000;
/// Address of the top page table; two more pages follow.
pub const PAGE_TABLES: u64 = 0x9000;
/// Address of the command line.
pub const COMMAND_LINE: u64 = 0x2_0000;
/// Longest command line with its terminator (kernel: `COMMAND_LINE_SIZE`).
pub const COMMAND_LINE_BYTES: usize = 2048;
/// End of conventional memory.
pub const LOW_RAM_END: u64 = 0x9_fc00;
/// Address of the MP table.
pub const MP_TABLE: u64 = 0xf_0000;
/// Where the area for it ends.
pub const MP_TABLE_END: u64 = 0x10_0000;
/// First address that the kernel itself may use.
pub const HIGH_RAM: u64 = 0x10_0000;

/// Where RAM is interrupted.
pub const HOLE: u64 = 0xc000_0000;
/// Where it goes on.
pub const HOLE_END: u64 = 0x1_0000_0000;

/// Registers of the first virtio device.
pub const VIRTIO_MMIO: u64 = 0xd000_0000;
/// From one device's registers to the next.
pub const VIRTIO_MMIO_STRIDE: u64 = 0x1000;
/// First interrupt of virtio devices: those below belong to devices of old.
pub const FIRST_GSI: u32 = 5;
/// Last pin of the I/O APIC.
pub const LAST_GSI: u32 = 23;

/// Registers of the I/O APIC.
pub const IO_APIC: u32 = 0xfec0_0000;
/// Registers of the local APICs.
pub const LOCAL_APIC: u32 = 0xfee0_0000;

/// Splits RAM around the hole: address and length of each region.
#[must_use]
pub fn ram_regions(bytes: u64) -> Vec<(u64, u64)> {
    match bytes.checked_sub(HOLE) {
        None | Some(0) => vec![(0, bytes)],
        Some(rest) => vec![(0, HOLE), (HOLE_END, rest)],
    }
}

/// RAM as the kernel is told about it: address and length of each usable range.
#[must_use]
pub fn usable_ranges(bytes: u64) -> Vec<(u64, u64)> {
    let mut ranges = vec![(0, LOW_RAM_END)];
    for (start, len) in ram_regions(bytes) {
        let end = start + len;
        let start = start.max(HIGH_RAM);
        if end > start {
            ranges.push((start, end - start));
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn ram_keeps_clear_of_the_hole_and_none_is_lost() {
        for bytes in [64 * MIB, 128 * MIB, 3 * GIB - MIB, 3 * GIB, 3 * GIB + MIB, 4 * GIB, 64 * GIB]
        {
            let regions = ram_regions(bytes);
            assert_eq!(regions.iter().map(|(_, len)| len).sum::<u64>(), bytes);
            for (start, len) in regions {
                assert!(len > 0);
                assert!(start + len <= HOLE || start >= HOLE_END);
            }
        }
        assert_eq!(ram_regions(3 * GIB), [(0, 3 * GIB)]);
        assert_eq!(ram_regions(4 * GIB), [(0, 3 * GIB), (4 * GIB, GIB)]);
    }

    #[test]
    fn the_kernel_is_not_offered_the_bios_area() {
        for (start, len) in usable_ranges(4 * GIB) {
            assert!(start + len <= LOW_RAM_END || start >= MP_TABLE_END);
            assert!(start + len <= HOLE || start >= HOLE_END);
        }
        assert_eq!(usable_ranges(128 * MIB), [(0, LOW_RAM_END), (MIB, 127 * MIB)]);
    }
}
