//! Standard input on its way from the client to the program, which may be slower.

use super::pty::Terminal;
use proto::agent::STDIN_WINDOW_BYTES;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;

/// Credit is given in steps, not for each write: a frame for every few bytes would cost more than it carries.
const CREDIT_STEP_BYTES: u32 = 32 << 10;

/// The client has sent more than it may.
#[derive(Debug, thiserror::Error)]
#[error("the client sent more than {STDIN_WINDOW_BYTES} bytes of unacknowledged input")]
pub struct WindowExceeded;

/// Where input goes.
#[derive(Debug)]
pub enum Sink {
    /// A pipe, whose end is closed at the end of input.
    Pipe(Arc<OwnedFd>),
    /// A terminal, to which the end of input is a character.
    Terminal(Arc<OwnedFd>),
    /// Nowhere: the program has none, or does not read it any more.
    Closed,
}

/// Input that was received and not yet written.
#[derive(Debug)]
pub struct Stdin {
    sink: Sink,
    queue: VecDeque<u8>,
    /// Bytes received for which no credit was given yet, those in `queue` included.
    outstanding: u32,
    /// Bytes taken off `queue`, or thrown away, that the client does not know of yet.
    credit: u32,
    ended: bool,
    last_byte: u8,
}

impl Stdin {
    /// Input for this sink.
    pub fn new(sink: Sink) -> Self {
        Self {
            sink,
            queue: VecDeque::new(),
            outstanding: 0,
            credit: 0,
            ended: false,
            last_byte: b'\n',
        }
    }

    /// Takes bytes from the client.
    ///
    /// # Errors
    /// [`WindowExceeded`] if the client has not waited for credit.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), WindowExceeded> {
        let length = u32::try_from(bytes.len()).map_err(|_| WindowExceeded)?;
        self.outstanding = self
            .outstanding
            .checked_add(length)
            .filter(|sum| *sum <= STDIN_WINDOW_BYTES)
            .ok_or(WindowExceeded)?;
        if self.ended || matches!(self.sink, Sink::Closed) {
            self.credit = self.credit.saturating_add(length);
        } else {
            self.queue.extend(bytes);
        }
        Ok(())
    }

    /// Notes that no more bytes will come.
    pub fn end(&mut self) {
        if self.ended {
            return;
        }
        self.ended = true;
        if let Sink::Terminal(fd) = &self.sink
            && let Some(character) = Terminal::end_of_input(fd.as_fd())
        {
            // In the middle of a line the first one only hands over what was typed.
            let middle_of_line = self.queue.back().copied().unwrap_or(self.last_byte) != b'\n';
            self.queue.extend(std::iter::repeat_n(character, if middle_of_line { 2 } else { 1 }));
        }
        self.close_if_done();
    }

    /// The descriptor, if there is something to write to it.
    pub fn pending(&self) -> Option<BorrowedFd<'_>> {
        match &self.sink {
            Sink::Pipe(fd) | Sink::Terminal(fd) if !self.queue.is_empty() => Some(fd.as_fd()),
            _ => None,
        }
    }

    /// Writes as much as the program takes now.
    pub fn write(&mut self) {
        while let Some(fd) = self.pending() {
            let (front, _) = self.queue.as_slices();
            match rustix::io::write(fd, front) {
                Ok(length) => self.took(length),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The program has closed its end. The client may go on: its bytes have nowhere to go.
                Err(_) => self.close(),
            }
        }
        self.close_if_done();
    }

    /// Credit to give now, if any is worth a frame.
    pub fn take_credit(&mut self) -> Option<u32> {
        let is_due = self.credit > 0 && (self.credit >= CREDIT_STEP_BYTES || self.queue.is_empty());
        is_due.then(|| {
            self.outstanding = self.outstanding.saturating_sub(self.credit);
            std::mem::take(&mut self.credit)
        })
    }

    /// Stops writing: what is queued is thrown away.
    pub fn close(&mut self) {
        self.sink = Sink::Closed;
        self.took(self.queue.len());
        self.queue = VecDeque::new();
    }

    fn took(&mut self, length: usize) {
        if let Some(last) = length.checked_sub(1).and_then(|last| self.queue.get(last)) {
            self.last_byte = *last;
        }
        self.queue.drain(..length.min(self.queue.len()));
        // Characters that end a terminal's input are ours: nobody waits for credit for them.
        let owed = self.outstanding.saturating_sub(self.credit);
        self.credit =
            self.credit.saturating_add(u32::try_from(length).unwrap_or(u32::MAX).min(owed));
    }

    fn close_if_done(&mut self) {
        if self.ended && self.queue.is_empty() && matches!(self.sink, Sink::Pipe(_)) {
            self.sink = Sink::Closed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};

    fn piped() -> (OwnedFd, Stdin) {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        (read, Stdin::new(Sink::Pipe(Arc::new(write))))
    }

    #[test]
    fn credit_follows_what_the_program_takes_and_never_more() {
        let (read, mut stdin) = piped();
        let window = usize::try_from(STDIN_WINDOW_BYTES).unwrap();
        stdin.push(&vec![7; window]).unwrap();
        assert!(stdin.push(b"x").is_err());
        stdin.write();
        let first = stdin.take_credit().unwrap();
        assert!(first > 0 && first < STDIN_WINDOW_BYTES);
        let mut credited = first;
        let mut buffer = vec![0; 1 << 16];
        while credited < STDIN_WINDOW_BYTES {
            rustix::io::read(&read, &mut buffer[..]).unwrap();
            stdin.write();
            credited += stdin.take_credit().unwrap_or_default();
        }
        assert_eq!(credited, STDIN_WINDOW_BYTES);
        assert_eq!(stdin.take_credit(), None);
        stdin.push(&vec![7; window]).unwrap();
    }

    #[test]
    fn the_pipe_closes_after_the_last_byte_and_not_before() {
        let (read, mut stdin) = piped();
        stdin.push(b"last words").unwrap();
        stdin.end();
        let mut buffer = [0; 64];
        assert_eq!(rustix::io::read(&read, &mut buffer), Err(Errno::AGAIN));
        stdin.write();
        assert_eq!(rustix::io::read(&read, &mut buffer).unwrap(), 10);
        assert_eq!(rustix::io::read(&read, &mut buffer).unwrap(), 0);
    }

    #[test]
    fn a_program_that_stops_reading_does_not_stop_the_client() {
        let (read, mut stdin) = piped();
        drop(read);
        stdin.push(b"abc").unwrap();
        stdin.write();
        assert_eq!(stdin.take_credit(), Some(3));
        stdin.push(b"de").unwrap();
        assert_eq!(stdin.take_credit(), Some(2));
        assert!(stdin.pending().is_none());
    }
}
