//! Everything the guest's kernel finds in RAM: itself, its initramfs, its command line and tables.
//!
//! # Trust
//! The kernel may be a file of the user's choice: the loader checks each address in it against guest RAM.

use super::layout::Slot;
use crate::arch::x86_64::memory_map::{COMMAND_LINE, COMMAND_LINE_BYTES, HIGH_RAM, HOLE};
use crate::arch::x86_64::registers::{self, Registers};
use crate::arch::x86_64::zero_page::{self, Initramfs};
use crate::virtio::device::GuestMemory;
use linux_loader::loader::{self, KernelLoader, elf::Elf};
use proto::cpio::{Archive, Kind};
use proto::guest::{CONFIG_PATH, GuestConfig};
use std::fs::File;
use std::io::{self, Seek};
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

/// Initramfs archives begin at a page.
const PAGE: u64 = 4096;

/// Archives that follow one another begin at a multiple of this.
const ARCHIVE_ALIGNMENT: u64 = 4;

/// A guest that cannot be laid out.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// Not a kernel, or not one for this address space.
    #[error("the kernel is not an uncompressed ELF image (vmlinux) that fits into guest RAM")]
    Kernel(#[source] loader::Error),
    /// Kernel and initramfs do not both fit.
    #[error("kernel and initramfs do not fit into {ram_mib} MiB of RAM")]
    TooSmall {
        /// RAM of the guest.
        ram_mib: u64,
    },
    /// The initramfs cannot be read.
    #[error("cannot read the initramfs")]
    ReadInitramfs(#[source] io::Error),
    /// Writing into guest RAM failed.
    #[error("cannot write {0} into guest RAM")]
    Write(&'static str, #[source] GuestMemoryError),
    /// The command line is too long.
    #[error("the kernel's command line has {0} bytes, {COMMAND_LINE_BYTES} fit")]
    CommandLineLength(usize),
    /// The command line holds bytes that end it or begin another line.
    #[error("the kernel's command line holds control characters")]
    CommandLineCharacters,
}

/// What is put into RAM.
pub struct Payload<'a> {
    /// The kernel's file.
    pub kernel: &'a mut File,
    /// The initramfs's file.
    pub initramfs: &'a mut File,
    /// The guest's configuration.
    pub config: &'a GuestConfig,
    /// The kernel's command line.
    pub command_line: &'a str,
}

/// Fills guest RAM and returns the registers of the processor that boots.
///
/// The files are read straight into RAM: one system call and one copy per segment, no mapping, no buffer.
///
/// # Errors
/// [`BootError`].
pub fn load(
    memory: &GuestMemory,
    ram_bytes: u64,
    payload: Payload<'_>,
) -> Result<Registers, BootError> {
    let kernel = Elf::load(memory, None, payload.kernel, Some(GuestAddress(HIGH_RAM)))
        .map_err(BootError::Kernel)?;
    let initramfs =
        load_initramfs(memory, ram_bytes, kernel.kernel_end, payload.initramfs, payload.config)?;

    let command_line = payload.command_line.as_bytes();
    if command_line.len() >= COMMAND_LINE_BYTES {
        return Err(BootError::CommandLineLength(command_line.len()));
    }
    if command_line.iter().any(u8::is_ascii_control) {
        return Err(BootError::CommandLineCharacters);
    }
    memory
        .write_slice(&[command_line, &[0]].concat(), GuestAddress(COMMAND_LINE))
        .map_err(|error| BootError::Write("the command line", error))?;
    let len = u32::try_from(command_line.len()).expect("checked above");
    zero_page::write(memory, ram_bytes, len, initramfs)
        .map_err(|error| BootError::Write("the boot parameters", error))?;
    registers::write_tables(memory).map_err(|error| BootError::Write("page tables", error))?;
    Ok(registers::for_entry(kernel.kernel_load.0))
}

/// Puts the initramfs and behind it an archive with the configuration at the end of low RAM, away from the kernel,
/// which needs the memory behind itself early.
fn load_initramfs(
    memory: &GuestMemory,
    ram_bytes: u64,
    kernel_end: u64,
    file: &mut File,
    config: &GuestConfig,
) -> Result<Initramfs, BootError> {
    let too_small = || BootError::TooSmall { ram_mib: ram_bytes >> 20 };
    let file_len = file.metadata().map_err(BootError::ReadInitramfs)?.len();
    file.rewind().map_err(BootError::ReadInitramfs)?;
    let mut archive = Archive::new();
    archive.add(CONFIG_PATH, 0o600, Kind::File(&proto::codec::encode(config)));
    let archive = archive.finish();

    let archive_offset =
        file_len.checked_next_multiple_of(ARCHIVE_ALIGNMENT).ok_or_else(too_small)?;
    let len = archive_offset.checked_add(archive.len() as u64).ok_or_else(too_small)?;
    let start = ram_bytes.min(HOLE).checked_sub(len).ok_or_else(too_small)? & !(PAGE - 1);
    if start < kernel_end {
        return Err(too_small());
    }
    let read_len = usize::try_from(file_len).map_err(|_| too_small())?;
    memory
        .read_exact_volatile_from(GuestAddress(start), file, read_len)
        .map_err(|error| BootError::Write("the initramfs", error))?;
    memory
        .write_slice(&archive, GuestAddress(start + archive_offset))
        .map_err(|error| BootError::Write("the guest's configuration", error))?;
    let address = u32::try_from(start).map_err(|_| too_small())?;
    Ok(Initramfs { address, len: u32::try_from(len).map_err(|_| too_small())? })
}

/// Composes the kernel's command line. What it holds is there for speed or because the machine lacks a device:
///
/// - `reboot=t panic=-1`: there is no reset port; a triple fault ends the machine at once, a panic too;
/// - `console=hvc0 quiet`: every byte on a serial port is an exit, `hvc0` takes buffers;
/// - `8250.nr_uarts=0`: no probing of serial ports that are not there;
/// - `random.trust_cpu=on`: the pool is ready at once (virtio-rng adds to it);
/// - `no_timer_check`: there is no PIT whose interrupt could be tested;
/// - `cryptomgr.notests`: no self-tests.
#[must_use]
pub fn command_line(debug: bool, devices: &[Slot]) -> String {
    let mut line =
        String::from("reboot=t panic=-1 random.trust_cpu=on no_timer_check cryptomgr.notests ");
    line += if debug {
        // The last console is /dev/console; the serial port has all messages from the first on.
        "earlyprintk=ttyS0 console=hvc0 console=ttyS0 ignore_loglevel"
    } else {
        "console=hvc0 quiet 8250.nr_uarts=0"
    };
    for slot in devices {
        line.push(' ');
        line += &slot.command_line();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::super::{layout, ram};
    use super::*;
    use proto::guest::{Root, Transport};
    use std::io::Write;

    fn config() -> GuestConfig {
        GuestConfig {
            hostname: "box".into(),
            root: Root::NineP { tag: "root".into() },
            mounts: Vec::new(),
            env: Vec::new(),
            workdir: None,
            user: None,
            resolv_conf: None,
            hosts: Vec::new(),
            interfaces: Vec::new(),
            agent: Transport::Vsock,
            unix_nanos: 1,
            cpus: 1,
        }
    }

    /// An ELF file with one segment of `len` bytes at 16 MiB.
    fn kernel(len: u64) -> File {
        let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        elf.extend_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
        for value in [0x100_0000_u64, 64, 0] {
            elf.extend_from_slice(&value.to_le_bytes()); // entry, program headers, no section headers
        }
        elf.extend_from_slice(&[0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        elf.extend_from_slice(&[1, 0, 0, 0, 7, 0, 0, 0]); // PT_LOAD, rwx
        for value in [120, 0x100_0000, 0x100_0000, 4, len, 0x1000_u64] {
            elf.extend_from_slice(&value.to_le_bytes()); // offset, vaddr, paddr, filesz, memsz, align
        }
        elf.extend_from_slice(b"code");
        file(&elf)
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn try_load(
        kernel: &mut File,
        initramfs: &mut File,
        command_line: &str,
    ) -> Result<(GuestMemory, Registers), BootError> {
        let ram_bytes = 64 << 20;
        let memory = ram::map(ram_bytes).unwrap();
        let payload = Payload { kernel, initramfs, config: &config(), command_line };
        load(&memory, ram_bytes, payload).map(|registers| (memory, registers))
    }

    #[test]
    fn kernel_initramfs_and_configuration_are_where_the_kernel_looks() {
        let (memory, registers) =
            try_load(&mut kernel(4), &mut file(b"070701 an archive"), "quiet").unwrap();
        assert_eq!(registers.rip, 0x100_0000);
        assert_eq!(memory.read_obj::<[u8; 4]>(GuestAddress(0x100_0000)).unwrap(), *b"code");
        assert_eq!(memory.read_obj::<[u8; 6]>(GuestAddress(COMMAND_LINE)).unwrap(), *b"quiet\0");
        let word = |offset| {
            u64::from(memory.read_obj::<u32>(GuestAddress(registers.rsi + offset)).unwrap())
        };
        let (start, len) = (word(0x218), word(0x21c));
        let mut initramfs = vec![0; usize::try_from(len).unwrap()];
        memory.read_slice(&mut initramfs, GuestAddress(start)).unwrap();
        assert!(initramfs.starts_with(b"070701 an archive\0\0\x00070701"));
        assert!(
            initramfs.windows(CONFIG_PATH.len()).any(|window| window == CONFIG_PATH.as_bytes())
        );
        assert!(start + len <= 64 << 20);
    }

    #[test]
    fn what_does_not_fit_or_is_no_kernel_is_refused() {
        let text = |result: Result<_, BootError>| result.map(|_| ()).unwrap_err().to_string();
        assert!(
            text(try_load(&mut file(b"#!/bin/sh"), &mut file(b""), ""))
                .contains("not an uncompressed ELF")
        );
        assert!(
            text(try_load(&mut file(&[0; 4096]), &mut file(b""), ""))
                .contains("not an uncompressed ELF")
        );
        assert!(
            text(try_load(&mut kernel(63 << 20), &mut file(b""), ""))
                .contains("do not fit into 64 MiB")
        );
        assert!(
            text(try_load(&mut kernel(4), &mut file(&vec![0; 50 << 20]), ""))
                .contains("do not fit into 64 MiB")
        );
        let long = "x".repeat(COMMAND_LINE_BYTES);
        assert!(text(try_load(&mut kernel(4), &mut file(b""), &long)).contains("2048 bytes"));
        assert!(
            text(try_load(&mut kernel(4), &mut file(b""), "a\nb")).contains("control characters")
        );
    }

    #[test]
    fn the_command_line_names_every_device_and_fits() {
        let slots: Vec<Slot> = (0..).map_while(layout::slot).collect();
        let line = command_line(false, &slots);
        assert!(line.len() < COMMAND_LINE_BYTES / 2);
        assert!(slots.iter().all(|slot| line.contains(&slot.command_line())));
        assert!(line.contains(" quiet ") && !line.contains("ttyS0"));
        assert!(command_line(true, &[]).contains("console=ttyS0"));
    }
}
