//! A standard output or error of the caller, written to without ever blocking where that can be helped.

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A write of this size does not block on a pipe that `poll(2)` calls writable (`pipe(7)`, `PIPE_BUF`).
const SAFE_PIECE_BYTES: usize = 4096;

/// Bytes that wait for a slow reader.
#[derive(Debug)]
pub(super) struct Sink<'a> {
    descriptor: BorrowedFd<'a>,
    how: How,
    pending: Vec<u8>,
    written: usize,
    closed: bool,
}

/// How to write.
#[derive(Debug)]
enum How {
    /// A file: writing does not wait for anybody.
    Whole,
    /// A pipe, through an open file description of our own, which may be non-blocking without others noticing.
    Reopened(OwnedFd),
    /// A socket, which can be told with each call not to block.
    Socket,
    /// Anything else: so little at a time that it does not block.
    Pieces,
}

impl<'a> Sink<'a> {
    pub(super) fn new(descriptor: BorrowedFd<'a>) -> Self {
        let kind = rustix::fs::fstat(descriptor).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let how = match kind {
            Ok(FileType::RegularFile) => How::Whole,
            Ok(FileType::Socket) => How::Socket,
            Ok(FileType::Fifo) => {
                let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                // Refused for pipes of other users; small pieces always work.
                rustix::fs::open(path, flags, Mode::empty()).map_or(How::Pieces, How::Reopened)
            }
            _ => How::Pieces,
        };
        Self { descriptor, how, pending: Vec::new(), written: 0, closed: false }
    }

    /// The descriptor to wait for.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.how {
            How::Reopened(descriptor) => descriptor.as_fd(),
            _ => self.descriptor,
        }
    }

    /// Bytes that wait.
    pub(super) fn pending(&self) -> usize {
        self.pending.len() - self.written
    }

    /// Whether nobody reads any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Takes bytes to write.
    pub(super) fn push(&mut self, bytes: Vec<u8>) {
        if self.closed {
            return;
        }
        if self.pending() == 0 {
            self.pending = bytes;
        } else {
            self.pending.drain(..self.written);
            self.pending.extend_from_slice(&bytes);
        }
        self.written = 0;
    }

    /// Writes as much as goes without blocking.
    pub(super) fn write(&mut self) -> Result<(), Errno> {
        while !self.closed && self.pending() > 0 {
            let bytes = &self.pending[self.written..];
            let result = match &self.how {
                How::Whole => rustix::io::write(self.descriptor, bytes),
                How::Reopened(descriptor) => rustix::io::write(descriptor, bytes),
                How::Socket => rustix::net::send(
                    self.descriptor,
                    bytes,
                    SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
                ),
                How::Pieces => {
                    let piece = &bytes[..bytes.len().min(SAFE_PIECE_BYTES)];
                    self.written += match rustix::io::write(self.descriptor, piece) {
                        Ok(len) => len,
                        Err(errno) => return self.failed(errno),
                    };
                    return Ok(()); // `poll` is asked again before the next piece.
                }
            };
            match result {
                Ok(len) => self.written += len,
                Err(errno) => return self.failed(errno),
            }
        }
        Ok(())
    }

    fn failed(&mut self, errno: Errno) -> Result<(), Errno> {
        match errno {
            Errno::AGAIN | Errno::INTR => Ok(()),
            // A pipe without a reader, a connection without a peer, a terminal that was hung up.
            Errno::PIPE | Errno::CONNRESET | Errno::IO => {
                self.closed = true;
                self.pending = Vec::new();
                self.written = 0;
                Ok(())
            }
            errno => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_full_pipe_does_not_block_and_stays_blocking_for_others() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut sink = Sink::new(writer.as_fd());
        assert!(matches!(sink.how, How::Reopened(_)));
        sink.push(vec![1; 200_000]);
        sink.write().unwrap();
        let rest = sink.pending();
        assert!(rest > 0 && rest < 200_000);
        assert!(!rustix::fs::fcntl_getfl(&writer).unwrap().contains(OFlags::NONBLOCK));
        let mut buffer = vec![0; 200_000 - rest];
        reader.read_exact(&mut buffer).unwrap();
        sink.push(vec![2; 10]);
        sink.write().unwrap();
        assert!(sink.pending() < rest + 10);
        drop(reader);
        sink.write().unwrap();
        assert!(sink.is_closed() && sink.pending() == 0);
    }

    #[test]
    fn a_file_takes_everything_and_a_socket_what_it_can() {
        let file = tempfile::tempfile().unwrap();
        let mut sink = Sink::new(file.as_fd());
        sink.push(vec![3; 1 << 20]);
        sink.write().unwrap();
        assert_eq!((sink.pending(), file.metadata().unwrap().len()), (0, 1 << 20));
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut sink = Sink::new(ours.as_fd());
        sink.push(vec![4; 8 << 20]);
        sink.write().unwrap();
        assert!(sink.pending() > 0 && !sink.is_closed());
        drop(theirs);
        sink.write().unwrap();
        assert!(sink.is_closed());
    }
}
