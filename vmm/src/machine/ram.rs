//! Guest RAM.
//!
//! Private, anonymous, unreserved memory: pages come when the guest first touches them, and `fork(2)` shares them
//! copy-on-write. Huge pages where the host has them: fewer faults at boot and a cheap fork. Never populated up front.
//!
//! RAM is mapped once and never unmapped: it lives as long as the process, so no pointer into it can dangle.

#![expect(unsafe_code, reason = "UNSAFETY: makes the mapping that is guest RAM")]

use crate::arch::memory_map::ram_regions;
use crate::virtio::device::GuestMemory;
use std::io;
use std::ptr;
use vm_memory::{GuestAddress, GuestRegionMmap, MmapRegion};

/// Alignment of the mapping: a huge page of the guest is one of the host only if both begin at such a boundary.
const HUGE_PAGE: usize = 2 << 20;

/// RAM that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RamError {
    /// More than the host has.
    #[error("{wanted_mib} MiB of RAM were asked for, but the host has {host_mib} MiB in all")]
    MoreThanHost {
        /// Asked for.
        wanted_mib: u64,
        /// The host's total.
        host_mib: u64,
    },
    /// The address space cannot be reserved.
    #[error("cannot map {bytes} bytes of guest RAM")]
    Map {
        /// Size of the region.
        bytes: usize,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The pieces do not make a whole.
    #[error("cannot lay out guest RAM")]
    Layout(#[from] vm_memory::GuestRegionCollectionError),
    /// A piece is not usable.
    #[error("cannot use a mapping as guest RAM")]
    Region(#[from] vm_memory::mmap::MmapRegionError),
}

/// Refuses RAM that the host can never back. Less than that is allowed, even beyond what is free now: most guests
/// never touch all of theirs, and whether to overcommit is the user's choice.
///
/// # Errors
/// [`RamError::MoreThanHost`].
pub fn check_against_host(wanted_mib: u64, host_bytes: u64) -> Result<(), RamError> {
    let host_mib = host_bytes >> 20;
    if wanted_mib > host_mib {
        Err(RamError::MoreThanHost { wanted_mib, host_mib })
    } else {
        Ok(())
    }
}

/// Maps `bytes` of RAM, around the hole of the architecture.
///
/// # Errors
/// If the host cannot.
pub fn map(bytes: u64) -> Result<GuestMemory, RamError> {
    let mut regions = Vec::new();
    for (address, len) in ram_regions(bytes) {
        let len = usize::try_from(len).expect("a 64-bit host");
        let host = map_aligned(len).map_err(|source| RamError::Map { bytes: len, source })?;
        // SAFETY: `host` begins a mapping of `len` bytes, readable and writable, that is never unmapped.
        let mapping = unsafe {
            MmapRegion::build_raw(host.cast(), len, libc::PROT_READ | libc::PROT_WRITE, FLAGS)
        }?;
        let region = GuestRegionMmap::new(mapping, GuestAddress(address))
            .expect("regions end far below 2^64");
        regions.push(region);
    }
    Ok(GuestMemory::from_regions(regions)?)
}

const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Maps `len` bytes at a huge-page boundary, for good.
fn map_aligned(len: usize) -> io::Result<*mut libc::c_void> {
    let reserved = len.checked_add(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let start = unsafe {
        libc::mmap(ptr::null_mut(), reserved, libc::PROT_READ | libc::PROT_WRITE, FLAGS, -1, 0)
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let lead = start.align_offset(HUGE_PAGE);
    let aligned = start.wrapping_byte_add(lead);
    unmap(start, lead)?;
    unmap(aligned.wrapping_byte_add(len), HUGE_PAGE - lead)?;
    for advice in [libc::MADV_HUGEPAGE, libc::MADV_DONTDUMP] {
        // SAFETY: the range was mapped above; these pieces of advice do not change its contents.
        if unsafe { libc::madvise(aligned, len, advice) } != 0 {
            // A host without huge pages; slower, not wrong.
            log::info!("madvise({advice}) on guest RAM: {}", io::Error::last_os_error());
        }
    }
    Ok(aligned)
}

/// Gives back a part of the mapping that [`map_aligned`] has just made.
fn unmap(start: *mut libc::c_void, len: usize) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    // SAFETY: called only for the unused ends of a fresh mapping, to which no reference exists.
    if unsafe { libc::munmap(start, len) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::{Address, Bytes, GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress};

    #[test]
    fn regions_are_aligned_and_reach_around_the_hole() {
        let memory = map(5 << 30).unwrap();
        let mut total = 0;
        for region in memory.iter() {
            let host = region.get_host_address(MemoryRegionAddress(0)).unwrap();
            assert_eq!(host.align_offset(HUGE_PAGE), 0);
            total += region.len();
        }
        assert_eq!(total, 5 << 30);
        memory.write_obj(42_u64, GuestAddress(5 << 30)).unwrap();
        assert_eq!(memory.last_addr().raw_value(), (6 << 30) - 1);
        assert!(memory.write_obj(0_u8, GuestAddress(0xd000_0000)).is_err());
    }

    #[test]
    fn more_than_the_host_has_is_refused_and_overcommit_is_not() {
        assert!(check_against_host(4096, 8 << 30).is_ok());
        assert!(check_against_host(8192, 8 << 30).is_ok());
        assert!(matches!(
            check_against_host(8193, 8 << 30),
            Err(RamError::MoreThanHost { wanted_mib: 8193, host_mib: 8192 })
        ));
    }
}
