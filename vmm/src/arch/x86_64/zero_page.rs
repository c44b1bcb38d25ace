//! The boot parameters ("zero page") that a 64-bit kernel finds through `rsi`
//! (kernel: `Documentation/arch/x86/zero-page.rst`).

use super::memory_map::{COMMAND_LINE, ZERO_PAGE, usable_ranges};
use crate::virtio::device::GuestMemory;
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params};
use vm_memory::{ByteValued, Bytes, GuestAddress, GuestMemoryError};

const E820_RAM: u32 = 1;
const BOOT_FLAG: u16 = 0xaa55;
const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"HdrS");
/// A boot loader without a number of its own.
const LOADER_UNDEFINED: u8 = 0xff;

/// `boot_params` as bytes; the type is plain data, which its crate does not say.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
struct Plain(boot_params);

// SAFETY: a packed C structure of integers and arrays of integers, without padding or references; every bit pattern
// is a value of it.
#[expect(unsafe_code, reason = "UNSAFETY: declares a structure of integers to be plain data")]
unsafe impl ByteValued for Plain {}

/// Where the initramfs lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Initramfs {
    /// Address.
    pub address: u32,
    /// Length.
    pub len: u32,
}

/// Writes the boot parameters.
///
/// # Errors
/// If the guest has too little RAM.
pub fn write(
    memory: &GuestMemory,
    ram_bytes: u64,
    command_line_len: u32,
    initramfs: Initramfs,
) -> Result<(), GuestMemoryError> {
    let mut params = boot_params::default();
    params.hdr.boot_flag = BOOT_FLAG;
    params.hdr.header = HEADER_MAGIC;
    params.hdr.type_of_loader = LOADER_UNDEFINED;
    params.hdr.cmd_line_ptr = u32::try_from(COMMAND_LINE).expect("a constant below 1 MiB");
    params.hdr.cmdline_size = command_line_len;
    params.hdr.ramdisk_image = initramfs.address;
    params.hdr.ramdisk_size = initramfs.len;
    for ((addr, size), entry) in usable_ranges(ram_bytes).into_iter().zip(&mut params.e820_table) {
        *entry = boot_e820_entry { addr, size, r#type: E820_RAM };
        params.e820_entries += 1;
    }
    memory.write_obj(Plain(params), GuestAddress(ZERO_PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_offsets_hold_the_documented_values() {
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        write(&memory, 4 << 30, 99, Initramfs { address: 0x1000_0000, len: 77 }).unwrap();
        let byte = |offset| memory.read_obj::<u8>(GuestAddress(ZERO_PAGE + offset)).unwrap();
        let word = |offset| memory.read_obj::<u32>(GuestAddress(ZERO_PAGE + offset)).unwrap();
        let long = |offset| memory.read_obj::<u64>(GuestAddress(ZERO_PAGE + offset)).unwrap();
        assert_eq!(byte(0x1e8), 3); // e820_entries
        assert_eq!(word(0x202), HEADER_MAGIC);
        assert_eq!(word(0x218), 0x1000_0000); // ramdisk_image
        assert_eq!(word(0x21c), 77); // ramdisk_size
        assert_eq!(word(0x228), 0x2_0000); // cmd_line_ptr
        assert_eq!(word(0x238), 99); // cmdline_size
        assert_eq!((long(0x2d0), long(0x2d8), word(0x2e0)), (0, 0x9_fc00, 1));
        assert_eq!((long(0x2d0 + 40), long(0x2d8 + 40)), (4 << 30, 1 << 30));
    }
}
