//! A disk in a raw file, or on a block device of the host.

use super::{BlockBackend, check_range, total_len};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use vm_memory::VolatileSlice;

/// What zeroes are written from where the host has no quicker way.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// What may be done with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only. The descriptor itself must be unable to write: then no mistake above it can.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// A file that cannot serve as a disk.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its length cannot be found.
    #[error("cannot find the disk's length")]
    Length(#[source] io::Error),
    /// Its mode cannot be found.
    #[error("cannot find how the disk's file was opened")]
    Mode(#[source] io::Error),
    /// It is open in another way than it is to be used.
    #[error("the disk is {access:?}, its file was opened otherwise")]
    WrongMode {
        /// How it is to be used.
        access: Access,
    },
}

/// A disk in a file.
#[derive(Debug)]
pub struct FileBackend {
    file: File,
    len: u64,
    access: Access,
}

impl FileBackend {
    /// A disk as long as the file is now.
    ///
    /// # Errors
    /// [`OpenError`]; among others if a read-only disk's file is open for writing.
    pub fn new(mut file: File, access: Access) -> Result<Self, OpenError> {
        let flags =
            rustix::fs::fcntl_getfl(&file).map_err(|error| OpenError::Mode(error.into()))?;
        let expected = match access {
            Access::ReadOnly => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR,
        };
        if flags & OFlags::ACCMODE != expected {
            return Err(OpenError::WrongMode { access });
        }
        // The length in the metadata of a block device is zero; its end is where seeking says.
        let len = file.seek(SeekFrom::End(0)).map_err(OpenError::Length)?;
        Ok(Self { file, len, access })
    }

    fn check_writable(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.access == Access::ReadOnly {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        check_range(self.len, offset, len)
    }

    fn fallocate(&self, flags: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
        loop {
            match rustix::fs::fallocate(&self.file, flags | FallocateFlags::KEEP_SIZE, offset, len)
            {
                Err(Errno::INTR) => {}
                result => return result,
            }
        }
    }

    fn fill_with_zeroes(&self, mut offset: u64, len: u64) -> io::Result<()> {
        let end = offset + len;
        while offset < end {
            let chunk =
                usize::try_from(end - offset).map_or(ZEROES.len(), |rest| rest.min(ZEROES.len()));
            self.file.write_all_at(&ZEROES[..chunk], offset)?;
            offset += chunk as u64;
        }
        Ok(())
    }
}

impl BlockBackend for FileBackend {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_vectored_at(&mut self, into: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        check_range(self.len, offset, total_len(into))?;
        super::vectored::read_exact_at(&self.file, into, offset)
    }

    fn write_vectored_at(&mut self, from: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        self.check_writable(offset, total_len(from))?;
        super::vectored::write_all_at(&self.file, from, offset)
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.access {
            Access::ReadOnly => Ok(()),
            Access::ReadWrite => self.file.sync_data(),
        }
    }

    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.check_writable(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        self.fallocate(FallocateFlags::PUNCH_HOLE, offset, len).map_err(|error| match error {
            Errno::OPNOTSUPP => io::ErrorKind::Unsupported.into(),
            error => error.into(),
        })
    }

    fn write_zeroes(&mut self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.check_writable(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        // A hole reads as zeroes. Without leave to unmap, the space has to stay allocated (virtio 1.2 §5.2.6.2).
        let ways: &[FallocateFlags] = if unmap {
            &[FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE]
        } else {
            &[FallocateFlags::ZERO_RANGE]
        };
        for way in ways {
            match self.fallocate(*way, offset, len) {
                Ok(()) => return Ok(()),
                Err(Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.fill_with_zeroes(offset, len)
    }
}
