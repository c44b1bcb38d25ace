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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    const LEN: usize = 1 << 20;

    fn disk() -> (tempfile::NamedTempFile, FileBackend) {
        let named = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            named.path(),
            (0..LEN).map(|index| index.to_le_bytes()[1] | 1).collect::<Vec<u8>>(),
        )
        .unwrap();
        let backend = FileBackend::new(named.reopen().unwrap(), Access::ReadWrite).unwrap();
        (named, backend)
    }

    #[test]
    fn pieces_are_read_and_written_in_order() {
        let (named, mut backend) = disk();
        let mut bytes: Vec<u8> =
            (0..100_000).map(|index| (index / 7_i32).to_le_bytes()[0]).collect();
        let expected = bytes.clone();
        // More pieces than go into one system call, of odd sizes, some of them empty.
        let mut pieces = Vec::new();
        let mut rest = bytes.as_mut_slice();
        for size in (0..).map(|index| index * 37 % 1201) {
            if rest.is_empty() {
                break;
            }
            let (piece, others) = rest.split_at_mut(size.min(rest.len()));
            pieces.push(VolatileSlice::from(piece));
            rest = others;
        }
        assert!(pieces.len() > 128);
        backend.write_vectored_at(&pieces, 12_345).unwrap();
        assert_eq!(std::fs::read(named.path()).unwrap()[12_345..112_345], expected);
        for piece in &pieces {
            piece.copy_from(&vec![0_u8; piece.len()]);
        }
        backend.read_vectored_at(&pieces, 12_345).unwrap();
        drop(pieces);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn nothing_happens_beyond_the_end() {
        let (named, mut backend) = disk();
        let before = std::fs::read(named.path()).unwrap();
        let mut bytes = [7; 512];
        let slices = [VolatileSlice::from(&mut bytes[..])];
        let len = LEN as u64;
        for offset in [len - 511, len, u64::MAX - 100, u64::MAX] {
            assert!(backend.read_vectored_at(&slices, offset).is_err());
            assert!(backend.write_vectored_at(&slices, offset).is_err());
            assert!(backend.discard(offset, 512).is_err());
            assert!(backend.write_zeroes(offset, 512, true).is_err());
        }
        assert_eq!(std::fs::read(named.path()).unwrap(), before);
        assert_eq!(bytes, [7; 512]);
    }

    #[test]
    fn a_file_that_was_cut_is_an_error_not_zeroes() {
        let (named, mut backend) = disk();
        named.as_file().set_len(100).unwrap();
        let mut bytes = [7; 512];
        let error =
            backend.read_vectored_at(&[VolatileSlice::from(&mut bytes[..])], 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn zeroes_are_zeroes_and_the_length_stays() {
        for unmap in [true, false] {
            let (named, mut backend) = disk();
            backend.write_zeroes(1000, 200_000, unmap).unwrap();
            backend.write_zeroes(LEN as u64 - 10, 10, unmap).unwrap();
            backend.write_zeroes(0, 0, unmap).unwrap();
            let bytes = std::fs::read(named.path()).unwrap();
            assert_eq!(bytes.len(), LEN);
            assert!(bytes[1000..201_000].iter().chain(&bytes[LEN - 10..]).all(|byte| *byte == 0));
            assert!(bytes[..1000].iter().chain(&bytes[201_000..LEN - 10]).all(|byte| *byte != 0));
        }
    }

    #[test]
    fn zeroes_are_written_where_there_is_no_shortcut() {
        let (named, backend) = disk();
        backend.fill_with_zeroes(777, 150_000).unwrap();
        let bytes = std::fs::read(named.path()).unwrap();
        assert!(bytes[777..150_777].iter().all(|byte| *byte == 0));
        assert!(bytes[776] != 0 && bytes[150_777] != 0);
    }

    #[test]
    fn discarded_space_goes_back_to_the_host() {
        let (named, mut backend) = disk();
        backend.flush().unwrap();
        let before = named.as_file().metadata().unwrap().blocks();
        match backend.discard(0, LEN as u64) {
            Ok(()) => assert!(named.as_file().metadata().unwrap().blocks() < before),
            // Then the guest is told so; whether it works is the file system's business.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported),
        }
        assert_eq!(named.as_file().metadata().unwrap().len(), LEN as u64);
        backend.discard(5, 0).unwrap();
    }

    #[test]
    fn a_read_only_disk_refuses_every_change() {
        let (named, _) = disk();
        let before = std::fs::read(named.path()).unwrap();
        let mut backend =
            FileBackend::new(File::open(named.path()).unwrap(), Access::ReadOnly).unwrap();
        let mut bytes = [7; 512];
        let slices = [VolatileSlice::from(&mut bytes[..])];
        let refused = [
            backend.write_vectored_at(&slices, 0),
            backend.discard(0, 4096),
            backend.write_zeroes(0, 4096, false),
        ];
        for result in refused {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
        }
        backend.flush().unwrap();
        backend.read_vectored_at(&slices, 0).unwrap();
        assert_eq!(bytes[..], before[..512]);
        assert_eq!(std::fs::read(named.path()).unwrap(), before);
    }

    #[test]
    fn a_descriptor_that_can_do_more_or_less_than_its_disk_is_refused() {
        let (named, _) = disk();
        let writable = named.reopen().unwrap();
        assert!(matches!(
            FileBackend::new(writable, Access::ReadOnly),
            Err(OpenError::WrongMode { .. })
        ));
        let readable = File::open(named.path()).unwrap();
        assert!(matches!(
            FileBackend::new(readable, Access::ReadWrite),
            Err(OpenError::WrongMode { .. })
        ));
    }
}
