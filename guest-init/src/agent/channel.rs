//! One connection: frames in, frames out, never blocking.

use proto::agent::{Message, kind};
use proto::codec::DecodeError;
use proto::frame::{self, Frame, FrameDecoder};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::time::{Duration, Instant};

/// Output that may wait for a slow client; then the program's pipes fill up and it waits.
const OUT_LIMIT_BYTES: usize = 256 << 10;

/// Sent bytes are moved out of the way when there are so many, not after each call.
const OUT_COMPACT_BYTES: usize = 64 << 10;

/// How long a client may take to close its end after the last frame. Closing ours first, with bytes of the client
/// unread, would make TCP drop what is still on its way to it.
const FAREWELL: Duration = Duration::from_secs(5);

/// Why there are no more frames.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The client is gone.
    #[error("the client is gone")]
    Gone,
    /// The client sends something else than frames of this protocol.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
}

/// A connection with its buffers.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    decoder: FrameDecoder,
    out: Vec<u8>,
    /// Bytes of `out` that are sent.
    sent: usize,
    scratch: Box<[u8]>,
}

impl Channel {
    /// A channel at the beginning of its connection.
    pub fn new(socket: OwnedFd) -> Self {
        let scratch = vec![0; frame::DATA_CHUNK_BYTES].into_boxed_slice();
        Self { socket, decoder: FrameDecoder::new(), out: Vec::new(), sent: 0, scratch }
    }

    /// The socket, to be polled.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes in what has arrived, at most `limit` bytes of it, and returns their number.
    ///
    /// # Errors
    /// [`ChannelError::Gone`] if the client has closed or lost the connection.
    pub fn receive(&mut self, limit: usize) -> Result<usize, ChannelError> {
        let limit = limit.min(self.scratch.len());
        let buffer = self.scratch.get_mut(..limit).unwrap_or_default();
        match rustix::net::recv(&self.socket, buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(ChannelError::Gone),
            Ok((length, _)) => {
                self.decoder.push(self.scratch.get(..length).unwrap_or_default());
                Ok(length)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(_) => Err(ChannelError::Gone),
        }
    }

    /// The next whole frame that has been taken in.
    ///
    /// # Errors
    /// [`ChannelError::Malformed`] if there is none to come.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, ChannelError> {
        Ok(self.decoder.next_frame()?)
    }

    /// The next whole message that has been taken in.
    ///
    /// # Errors
    /// [`ChannelError::Malformed`] if it is none of this protocol.
    pub fn next_message(&mut self) -> Result<Option<Message>, ChannelError> {
        self.next_frame()?.map(Message::decode).transpose().map_err(ChannelError::Malformed)
    }

    /// Waits for the next frame until `deadline`, taking in no more than `budget` bytes for it.
    ///
    /// # Errors
    /// [`ChannelError`]; a client that lets the deadline pass or needs more bytes counts as gone.
    pub fn wait_for_frame(
        &mut self,
        deadline: Instant,
        mut budget: usize,
    ) -> Result<Frame, ChannelError> {
        loop {
            if let Some(frame) = self.next_frame()? {
                return Ok(frame);
            }
            if budget == 0 {
                return Err(ChannelError::Gone);
            }
            let length = self.receive(budget)?;
            budget = budget.saturating_sub(length);
            if length == 0 && !self.wait(PollFlags::IN, Some(deadline)) {
                return Err(ChannelError::Gone);
            }
        }
    }

    /// Queues a message. Ours are never too long to be encoded: output is cut into chunks.
    pub fn queue(&mut self, message: &Message) {
        if let Ok(bytes) = message.encode() {
            self.out.extend_from_slice(&bytes);
        }
    }

    /// Reads once from a program's output, at most `limit` bytes, and queues what came as a frame of this kind
    /// (`None`: throws it away, because nobody listens). Returns the number of bytes; 0 is the end.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn queue_output(
        &mut self,
        source: BorrowedFd<'_>,
        kind: Option<u8>,
        limit: usize,
    ) -> Result<usize, Errno> {
        let limit = limit.min(self.scratch.len());
        let length = rustix::io::read(source, self.scratch.get_mut(..limit).unwrap_or_default())?;
        debug_assert!(
            kind.is_none_or(|kind| matches!(kind, kind::STDOUT | kind::STDERR)),
            "output has two kinds"
        );
        if let Some(header) =
            kind.and_then(|kind| frame::header(kind, length)).filter(|_| length > 0)
        {
            self.out.extend_from_slice(&header);
            self.out.extend_from_slice(self.scratch.get(..length).unwrap_or_default());
        }
        Ok(length)
    }

    /// Whether more output may be queued.
    pub fn has_room(&self) -> bool {
        self.out.len().saturating_sub(self.sent) < OUT_LIMIT_BYTES
    }

    /// Whether everything queued is sent.
    pub fn is_flushed(&self) -> bool {
        self.sent >= self.out.len()
    }

    /// Sends as much as the connection takes now.
    ///
    /// # Errors
    /// [`ChannelError::Gone`] if the client has closed or lost the connection.
    pub fn flush(&mut self) -> Result<(), ChannelError> {
        while !self.is_flushed() {
            let rest = self.out.get(self.sent..).unwrap_or_default();
            match rustix::net::send(&self.socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(length) => self.sent = self.sent.saturating_add(length),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if self.sent >= OUT_COMPACT_BYTES {
                        self.out.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(());
                }
                Err(_) => return Err(ChannelError::Gone),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    /// Sends everything, however long the client takes to read it; `false` if it is gone before.
    pub fn flush_fully(&mut self) -> bool {
        while self.flush().is_ok() {
            if self.is_flushed() {
                return true;
            }
            self.wait(PollFlags::OUT, None);
        }
        false
    }

    /// Sends everything, then closes.
    pub fn finish(mut self) {
        if self.flush_fully() {
            self.say_farewell();
        }
    }

    /// Tells the client that no more frames follow. Should it be gone, it need not be told.
    pub fn end_frames(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
    }

    /// Closes after everything was sent: lets the client close first.
    fn say_farewell(&mut self) {
        let deadline = Instant::now().checked_add(FAREWELL);
        self.end_frames();
        loop {
            let buffer = &mut *self.scratch;
            match rustix::net::recv(&self.socket, buffer, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) if self.wait(PollFlags::IN, deadline) => {}
                Err(Errno::INTR) => {}
                Ok((length, _))
                    if length > 0 && deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
                _ => return,
            }
        }
    }

    /// Gives up the frames: the socket, and the bytes that arrived after the last one.
    pub fn into_raw(self) -> (OwnedFd, Vec<u8>) {
        (self.socket, self.decoder.into_rest())
    }

    /// Waits for the socket; `false` if the deadline passed.
    fn wait(&self, flags: PollFlags, deadline: Option<Instant>) -> bool {
        loop {
            let timeout = deadline
                .map(|deadline| timespec(deadline.saturating_duration_since(Instant::now())));
            match poll(&mut [PollFd::new(&self.socket, flags)], timeout.as_ref()) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

/// A duration as `poll` wants it.
pub fn timespec(duration: Duration) -> Timespec {
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: i64::from(duration.subsec_nanos()) }
}
