//! The output file, written front to back while the archive is read.
//!
//! Content goes through one buffer of fixed size, so that memory stays bounded whatever the archive holds; zeros of
//! sparse files are skipped, and stay holes in the image file.

use std::fs::File;
use std::os::unix::fs::FileExt;

use sha2::{Digest, Sha256};

use super::error::ErofsError;
use super::format::BLOCK_BYTES;

/// Large enough that a disk is kept busy, small enough to be no burden.
const BUFFER_BYTES: usize = 1 << 20;

/// Where the image goes.
pub(super) struct Sink<'a> {
    file: &'a File,
    buffer: Vec<u8>,
    /// Offset in the file at which the buffer's first byte belongs.
    start: u64,
    limit: u64,
    digest: Sha256,
}

impl<'a> Sink<'a> {
    /// Empties the file and starts behind its first block, which is written last.
    pub fn new(file: &'a File, limit: u64) -> Result<Self, ErofsError> {
        // Skipped ranges must read as zeros whatever the file held before.
        file.set_len(0)
            .map_err(|source| ErofsError::WriteImage { operation: "truncate", source })?;
        let buffer = Vec::with_capacity(BUFFER_BYTES);
        Ok(Self { file, buffer, start: BLOCK_BYTES, limit, digest: Sha256::new() })
    }

    /// Offset of the next byte.
    pub fn position(&self) -> u64 {
        self.start.saturating_add(u64::try_from(self.buffer.len()).unwrap_or(u64::MAX))
    }

    /// Number of the next block. Call after [`Sink::align`].
    pub fn block(&self) -> Result<u32, ErofsError> {
        u32::try_from(self.position() / BLOCK_BYTES).map_err(|_| self.too_large())
    }

    /// Writes bytes.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), ErofsError> {
        self.digest.update(bytes);
        self.check_room(u64::try_from(bytes.len()).unwrap_or(u64::MAX))?;
        while !bytes.is_empty() {
            let room = BUFFER_BYTES.saturating_sub(self.buffer.len()).min(bytes.len());
            let (now, later) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() >= BUFFER_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Leaves out bytes, which will read as zeros.
    pub fn skip(&mut self, count: u64) -> Result<(), ErofsError> {
        self.check_room(count)?;
        // The digest covers where content lies, or moving it within a file would go unnoticed.
        self.digest.update(count.to_le_bytes());
        let room = BUFFER_BYTES.saturating_sub(self.buffer.len());
        match usize::try_from(count) {
            Ok(count) if count < room => {
                self.buffer.resize(self.buffer.len().saturating_add(count), 0)
            }
            _ => {
                self.flush()?;
                self.start = self.start.saturating_add(count);
            }
        }
        Ok(())
    }

    /// Goes on to the next block boundary, if not there.
    pub fn align(&mut self) -> Result<(), ErofsError> {
        match self.position() % BLOCK_BYTES {
            0 => Ok(()),
            used => self.skip(BLOCK_BYTES.saturating_sub(used)),
        }
    }

    /// Digest of all that was written so far, in order.
    pub fn digest(&self) -> [u8; 32] {
        self.digest.clone().finalize().into()
    }

    /// Writes the first block and gives the file its length.
    pub fn finish(mut self, first_block: &[u8]) -> Result<(), ErofsError> {
        self.flush()?;
        let length = self.position();
        self.file
            .set_len(length)
            .map_err(|source| ErofsError::WriteImage { operation: "set length", source })?;
        let written = self.file.write_all_at(first_block, 0);
        written.map_err(|source| ErofsError::WriteImage { operation: "superblock", source })
    }

    fn flush(&mut self) -> Result<(), ErofsError> {
        let written = self.file.write_all_at(&self.buffer, self.start);
        written.map_err(|source| ErofsError::WriteImage { operation: "write", source })?;
        self.start = self.position();
        self.buffer.clear();
        Ok(())
    }

    /// Makes sure that so many bytes more are within the limit.
    pub fn check_room(&self, count: u64) -> Result<(), ErofsError> {
        match self.position().checked_add(count) {
            Some(end) if end <= self.limit => Ok(()),
            _ => Err(self.too_large()),
        }
    }

    /// The error for an image that outgrows its limit.
    pub fn too_large(&self) -> ErofsError {
        ErofsError::ImageTooLarge { limit: self.limit }
    }
}
