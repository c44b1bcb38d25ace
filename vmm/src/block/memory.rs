//! A disk in memory, for tests and fuzzing.

use super::{BlockBackend, check_range, total_len};
use std::io;
use vm_memory::VolatileSlice;

/// A disk in memory.
#[derive(Debug)]
pub struct MemoryBackend {
    bytes: Vec<u8>,
    flushes: usize,
}

impl MemoryBackend {
    /// A disk with that content.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, flushes: 0 }
    }

    /// Its content.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How often it was flushed.
    #[must_use]
    pub fn flushes(&self) -> usize {
        self.flushes
    }

    fn range(&mut self, offset: u64, len: u64) -> io::Result<&mut [u8]> {
        check_range(self.len(), offset, len)?;
        let outside = || io::Error::from(io::ErrorKind::InvalidInput);
        let start = usize::try_from(offset).map_err(|_| outside())?;
        let len = usize::try_from(len).map_err(|_| outside())?;
        self.bytes.get_mut(start..).and_then(|rest| rest.get_mut(..len)).ok_or_else(outside)
    }
}

impl BlockBackend for MemoryBackend {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_vectored_at(&mut self, into: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        let mut bytes: &[u8] = self.range(offset, total_len(into))?;
        for slice in into {
            let (head, rest) = bytes.split_at(slice.len().min(bytes.len()));
            slice.copy_from(head);
            bytes = rest;
        }
        Ok(())
    }

    fn write_vectored_at(&mut self, from: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        let mut bytes = self.range(offset, total_len(from))?;
        for slice in from {
            let (head, rest) = bytes.split_at_mut(slice.len().min(bytes.len()));
            slice.copy_to(head);
            bytes = rest;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flushes += 1;
        Ok(())
    }

    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        // A pattern, so that a test notices who relies on discarded bytes.
        self.range(offset, len)?.fill(0xdd);
        Ok(())
    }

    fn write_zeroes(&mut self, offset: u64, len: u64, _unmap: bool) -> io::Result<()> {
        self.range(offset, len)?.fill(0);
        Ok(())
    }
}
