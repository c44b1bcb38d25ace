//! What is behind a disk: an array of bytes that can be read and written at any offset.

pub mod file;
pub mod memory;
mod vectored;

use std::io;
use vm_memory::VolatileSlice;

/// The bytes of a disk.
///
/// Duties of the backend: every method is total, whatever the offset; what lies outside of the disk is refused with an
/// error and nothing is changed by it. Reads and writes are whole or fail. A write that has returned is visible to
/// every later read; it is safe against a crash of the host once a later `flush` has returned.
///
/// Duties of the caller: slices are guest RAM, so their content may change at any time.
pub trait BlockBackend: Send {
    /// Length in bytes; fixed while the backend is in use.
    fn len(&self) -> u64;

    /// Whether there is not a single byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `into`, slice after slice, with the bytes from `offset` on.
    ///
    /// # Errors
    /// The operating system's error; `UnexpectedEof` beyond the end.
    fn read_vectored_at(&mut self, into: &[VolatileSlice<'_>], offset: u64) -> io::Result<()>;

    /// Stores the bytes of `from`, slice after slice, from `offset` on.
    ///
    /// # Errors
    /// The operating system's error; `InvalidInput` beyond the end; `ReadOnlyFilesystem` for a read-only backend.
    fn write_vectored_at(&mut self, from: &[VolatileSlice<'_>], offset: u64) -> io::Result<()>;

    /// Makes all that was written safe against a crash of the host.
    ///
    /// # Errors
    /// The operating system's error.
    fn flush(&mut self) -> io::Result<()>;

    /// Gives the space of a range back to the host; what is read there afterwards is not defined.
    ///
    /// # Errors
    /// As [`BlockBackend::write_vectored_at`]; `Unsupported` if the host cannot.
    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()>;

    /// Zeroes a range; with `unmap`, gives its space back to the host if that can be done.
    ///
    /// # Errors
    /// As [`BlockBackend::write_vectored_at`].
    fn write_zeroes(&mut self, offset: u64, len: u64, unmap: bool) -> io::Result<()>;
}

/// Refuses ranges that are not wholly within a disk of `disk_len` bytes.
fn check_range(disk_len: u64, offset: u64, len: u64) -> io::Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= disk_len => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{len} bytes at {offset} are not within a disk of {disk_len} bytes"),
        )),
    }
}

/// Bytes that the slices hold together.
fn total_len(slices: &[VolatileSlice<'_>]) -> u64 {
    slices.iter().map(|slice| slice.len() as u64).sum()
}
