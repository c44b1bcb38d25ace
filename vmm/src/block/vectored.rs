//! Positioned reads and writes between a file and guest RAM, without a copy in between.
//!
//! The standard library has these calls for references only, and Rust must never hold one to guest RAM, which the guest
//! changes at will.

#![expect(
    unsafe_code,
    reason = "UNSAFETY: preadv and pwritev on raw addresses; references to guest RAM cannot be"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use vm_memory::VolatileSlice;

/// Ranges given to the kernel per call; longer lists take several calls.
const RANGES_PER_CALL: usize = 64;

/// Which way the bytes go.
#[derive(Clone, Copy)]
enum Direction {
    FromFile,
    ToFile,
}

/// Fills all slices from the file.
pub(super) fn read_exact_at(
    file: &File,
    into: &[VolatileSlice<'_>],
    offset: u64,
) -> io::Result<()> {
    transfer(file, Direction::FromFile, into, offset)
}

/// Stores all slices in the file.
pub(super) fn write_all_at(file: &File, from: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
    transfer(file, Direction::ToFile, from, offset)
}

fn transfer(
    file: &File,
    direction: Direction,
    mut slices: &[VolatileSlice<'_>],
    mut offset: u64,
) -> io::Result<()> {
    // Bytes of `slices[0]` that are done.
    let mut done = 0_usize;
    loop {
        while let [first, rest @ ..] = slices
            && done >= first.len()
        {
            done -= first.len();
            slices = rest;
        }
        if slices.is_empty() {
            return Ok(());
        }
        let moved = match call(file, direction, slices, done, offset) {
            Ok(0) if matches!(direction, Direction::FromFile) => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(moved) => moved,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        done += moved;
        offset += moved as u64;
    }
}

/// One system call; returns how many bytes it has moved.
fn call(
    file: &File,
    direction: Direction,
    slices: &[VolatileSlice<'_>],
    skip: usize,
    offset: u64,
) -> io::Result<usize> {
    let offset =
        libc::off_t::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut ranges = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; RANGES_PER_CALL];
    let mut count = 0;
    let mut skip = skip;
    for (range, slice) in ranges.iter_mut().zip(slices) {
        let guard = slice.ptr_guard_mut();
        range.iov_base = guard.as_ptr().wrapping_add(skip).cast();
        range.iov_len = slice.len().saturating_sub(skip);
        skip = 0;
        count += 1;
    }
    let moved = match direction {
        Direction::FromFile => {
            // SAFETY: the first `count` elements of `ranges` are initialised, `count` is at most 64, and each describes
            // memory within a `VolatileSlice`, whose lifetime lasts beyond this call and which may be written by
            // anyone at any time.
            unsafe { libc::preadv(file.as_raw_fd(), ranges.as_ptr(), count, offset) }
        }
        Direction::ToFile => {
            // SAFETY: as above; the memory is only read.
            unsafe { libc::pwritev(file.as_raw_fd(), ranges.as_ptr(), count, offset) }
        }
    };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}
