//! Payload of the guest that the host's program has not taken yet.
//!
//! Empty most of the time: payload goes from guest memory to the socket directly, and only what the socket refuses is
//! copied here. The memory is returned when the last byte leaves, so a connection that was slow once costs nothing
//! afterwards.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use vm_memory::VolatileSlice;

/// Bytes in order. Never more than the connection's window: its credit is checked before anything is pushed.
#[derive(Default)]
pub(super) struct Outbox {
    bytes: VecDeque<u8>,
}

impl Outbox {
    /// Whether all has been taken.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.bytes = VecDeque::new();
    }

    /// Copies a piece of guest memory behind what is there. Grows by doubling, but not beyond `limit`, the most that
    /// will ever be here.
    pub(super) fn push(&mut self, slice: &VolatileSlice<'_>, limit: usize) {
        let old = self.bytes.len();
        let new = old.saturating_add(slice.len());
        if new > self.bytes.capacity() {
            let room = self.bytes.capacity().saturating_mul(2).min(limit).max(new);
            self.bytes.reserve_exact(room.saturating_sub(old));
        }
        self.bytes.resize(new, 0);
        let (front, back) = self.bytes.as_mut_slices();
        let front_len = front.len();
        if let Some(tail) = front.get_mut(old..)
            && !tail.is_empty()
        {
            let copied = slice.copy_to(tail);
            if let Ok(rest) = slice.offset(copied) {
                rest.copy_to(back);
            }
        } else if let Some(tail) = back.get_mut(old.saturating_sub(front_len)..) {
            slice.copy_to(tail);
        }
    }

    /// Writes as much as the socket takes. Returns how much that was, and whether the socket is full.
    ///
    /// # Errors
    /// The socket's error, `WouldBlock` aside.
    pub(super) fn flush(&mut self, mut stream: &UnixStream) -> io::Result<(usize, bool)> {
        let mut total: usize = 0;
        let mut full = false;
        while !self.bytes.is_empty() {
            let (front, _) = self.bytes.as_slices();
            match io::Write::write(&mut stream, front) {
                Ok(written) => {
                    self.bytes.drain(..written);
                    total = total.saturating_add(written);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    full = true;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if self.bytes.is_empty() {
            self.clear();
        }
        Ok((total, full))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn keeps_the_order_over_the_wrap_and_releases_its_memory() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut outbox = Outbox::default();
        let mut pushed = 0;
        let mut read = 0;
        for round in 0..200usize {
            let mut piece: Vec<u8> = (0..(round * 37) % 4096).map(|_| next(&mut pushed)).collect();
            outbox.push(&VolatileSlice::from(piece.as_mut_slice()), 1 << 20);
            let (written, full) = outbox.flush(&ours).unwrap();
            // Reading less than was written fills the socket, and then the outbox.
            let mut taken = vec![0; if full { 100_000 } else { written / 2 }];
            theirs.read_exact(&mut taken).unwrap();
            for byte in taken {
                assert_eq!(byte, next(&mut read));
            }
        }
        while !outbox.is_empty() {
            outbox.flush(&ours).unwrap();
            let mut byte = [0];
            theirs.read_exact(&mut byte).unwrap();
            assert_eq!(byte[0], next(&mut read));
        }
        assert_eq!(outbox.bytes.capacity(), 0);
    }

    fn next(counter: &mut u8) -> u8 {
        *counter = if *counter == 250 { 0 } else { *counter + 1 };
        *counter
    }

    #[test]
    fn does_not_grow_beyond_its_limit() {
        let mut outbox = Outbox::default();
        let mut piece = vec![7; 60_000];
        for _ in 0..4 {
            outbox.push(&VolatileSlice::from(piece.as_mut_slice()), 256 << 10);
        }
        assert!(outbox.bytes.capacity() <= 256 << 10);
    }

    #[test]
    fn reports_a_peer_that_is_gone() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let mut outbox = Outbox::default();
        outbox.push(&VolatileSlice::from([1u8, 2].as_mut_slice()), 16);
        assert_eq!(outbox.flush(&ours).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
