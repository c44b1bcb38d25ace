//! What the guest's PID 1 says about itself, and the request that it power off.
//!
//! # Trust
//! Every byte on both connections is the guest's. Messages are small, so are the caps.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::decide::Event;
use proto::agent::{Hello, Lifecycle, Message, Op, Reply, Request};
use proto::code::Code;
use proto::frame::FrameDecoder;
use proto::version::AGENT_PROTOCOL;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Bytes of one message. Hello has three short texts; more would be an attempt to make this process hold memory.
const MAX_MESSAGE_BYTES: usize = 16 << 10;

/// Characters kept of any text of the guest: it ends up in messages and logs.
const MAX_TEXT_CHARS: usize = 512;

/// A connection on which frames come from the guest.
struct Frames {
    stream: UnixStream,
    decoder: FrameDecoder,
    /// Bytes since the last whole frame.
    pending: usize,
}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum Over {
    /// The guest closed it.
    #[error("the guest closed the connection")]
    Closed,
    /// It broke.
    #[error("the connection broke")]
    Broken(#[source] io::Error),
    /// What came is not the protocol.
    #[error("the guest sent something else than the protocol")]
    Malformed,
}

impl Frames {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, decoder: FrameDecoder::new(), pending: 0 })
    }

    /// Reads what is there and returns whole messages; at most one buffer per call, so that a guest that never stops
    /// sending does not keep the main thread.
    fn read(&mut self) -> Result<Vec<Message>, Over> {
        let mut buffer = [0; 4096];
        let count = match self.stream.read(&mut buffer) {
            Ok(0) => return Err(Over::Closed),
            Ok(count) => count,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Ok(Vec::new());
            }
            Err(error) => return Err(Over::Broken(error)),
        };
        self.decoder.push(buffer.get(..count).unwrap_or_default());
        self.pending = self.pending.saturating_add(count);
        let mut messages = Vec::new();
        while let Some(frame) = self.decoder.next_frame().map_err(|_| Over::Malformed)? {
            self.pending = 0;
            messages.push(Message::decode(frame).map_err(|_| Over::Malformed)?);
        }
        if self.pending > MAX_MESSAGE_BYTES { Err(Over::Malformed) } else { Ok(messages) }
    }
}

/// The connection that the guest opened to say how it is.
pub struct LifecycleConnection {
    frames: Frames,
    /// What it said in `Ready`.
    pub hello: Option<Hello>,
}

impl LifecycleConnection {
    /// Takes over a connection to [`proto::agent::LIFECYCLE_PORT`].
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        Ok(Self { frames: Frames::new(stream)?, hello: None })
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// When the connection is over; it must then be dropped.
    pub fn read(&mut self) -> Result<Vec<Event>, Over> {
        let mut events = Vec::new();
        for message in self.frames.read()? {
            let Message::Lifecycle(message) = message else { return Err(Over::Malformed) };
            events.push(match message {
                Lifecycle::Ready(hello) if !proto::version::agent_is_compatible(hello.protocol) => {
                    Event::GuestFailed {
                        code: Code::ProtocolMismatch,
                        message: format!(
                            "the guest speaks version {} of the agent protocol",
                            hello.protocol
                        ),
                    }
                }
                Lifecycle::Ready(mut hello) => {
                    hello.kernel = printable(&hello.kernel);
                    self.hello = Some(hello);
                    Event::GuestReady
                }
                Lifecycle::Failed(failed) => {
                    Event::GuestFailed { code: failed.code, message: printable(&failed.message) }
                }
                Lifecycle::Down => Event::GuestDown,
            });
        }
        Ok(events)
    }
}

impl AsFd for LifecycleConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.frames.stream.as_fd()
    }
}

/// A request to the guest's agent that it power off.
pub struct Poweroff {
    frames: Frames,
    accepted: bool,
}

impl Poweroff {
    /// Sends the request on a fresh connection to the agent.
    ///
    /// # Errors
    /// The kernel's error; the request is small, so a socket that would block is one too.
    pub fn send(mut stream: UnixStream, grace_ms: u64) -> io::Result<Self> {
        let request =
            Message::Request(Request { protocol: AGENT_PROTOCOL, op: Op::Poweroff { grace_ms } });
        let bytes = request.encode().map_err(io::Error::other)?;
        stream.write_all(&bytes)?;
        Ok(Self { frames: Frames::new(stream)?, accepted: false })
    }

    /// Reads the answer. Once it was accepted, an end of the connection is part of going down.
    ///
    /// # Errors
    /// When the connection is over; it must then be dropped.
    pub fn read(&mut self) -> Result<Option<Event>, Over> {
        let messages = match self.frames.read() {
            Err(error) if !self.accepted => {
                return Ok(Some(Event::PoweroffRefused(crate::launch::chain(&error))));
            }
            result => result?,
        };
        for message in messages {
            match message {
                Message::Reply(Reply::Done) => self.accepted = true,
                Message::Reply(Reply::Failed(failed)) => {
                    return Ok(Some(Event::PoweroffRefused(printable(&failed.message))));
                }
                _ => return Err(Over::Malformed),
            }
        }
        Ok(None)
    }
}

impl AsFd for Poweroff {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.frames.stream.as_fd()
    }
}

/// Text of the guest, bounded and without characters that a terminal obeys.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars()
        .take(MAX_TEXT_CHARS)
        .map(|char| if char.is_control() { '?' } else { char })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::agent::Failed;

    fn pair() -> (UnixStream, LifecycleConnection) {
        let (guest, host) = UnixStream::pair().unwrap();
        (guest, LifecycleConnection::new(host).unwrap())
    }

    fn lifecycle(message: Lifecycle) -> Vec<u8> {
        Message::Lifecycle(message).encode().unwrap()
    }

    #[test]
    fn ready_failed_and_down_become_events() {
        let (mut guest, mut connection) = pair();
        let hello =
            Hello { protocol: AGENT_PROTOCOL, kernel: "6.12\x1b[31m".into(), ..Hello::default() };
        guest.write_all(&lifecycle(Lifecycle::Ready(hello))).unwrap();
        assert_eq!(connection.read().unwrap(), [Event::GuestReady]);
        assert_eq!(connection.hello.as_ref().unwrap().kernel, "6.12?[31m");
        let failed = Failed { code: Code::ImageInvalid, message: "x".repeat(10_000) };
        guest
            .write_all(&[lifecycle(Lifecycle::Failed(failed)), lifecycle(Lifecycle::Down)].concat())
            .unwrap();
        let mut events = Vec::new();
        while events.len() < 2 {
            events.extend(connection.read().unwrap());
        }
        let Event::GuestFailed { code, message } = &events[0] else { panic!("{events:?}") };
        assert_eq!((*code, message.len()), (Code::ImageInvalid, MAX_TEXT_CHARS));
        assert_eq!(events[1], Event::GuestDown);
    }

    #[test]
    fn nothing_to_read_is_no_event_and_an_end_is_one_error() {
        let (guest, mut connection) = pair();
        assert_eq!(connection.read().unwrap(), []);
        drop(guest);
        assert!(matches!(connection.read(), Err(Over::Closed)));
    }

    #[test]
    fn garbage_other_messages_and_endless_frames_are_refused() {
        for bytes in
            [b"\xff\xff\xff\xff\x01".to_vec(), vec![0; 64], Message::StdinEof.encode().unwrap()]
        {
            let (mut guest, mut connection) = pair();
            guest.write_all(&bytes).unwrap();
            assert!(matches!(connection.read(), Err(Over::Malformed)));
        }
        let (mut guest, mut connection) = pair();
        guest
            .write_all(&proto::frame::header(proto::agent::kind::LIFECYCLE, 4 << 20).unwrap())
            .unwrap();
        let mut fed = 0;
        while connection.read().is_ok() {
            fed += 4096;
            assert!(fed < 10 * MAX_MESSAGE_BYTES, "memory grows without bound");
            guest.write_all(&[0; 4096]).unwrap();
        }
    }

    #[test]
    fn a_guest_of_another_protocol_does_not_become_ready() {
        let (mut guest, mut connection) = pair();
        guest
            .write_all(&lifecycle(Lifecycle::Ready(Hello { protocol: 99, ..Hello::default() })))
            .unwrap();
        let events = connection.read().unwrap();
        assert!(matches!(&events[..], [Event::GuestFailed { code: Code::ProtocolMismatch, .. }]));
    }

    #[test]
    fn a_poweroff_is_refused_by_an_agent_that_hangs_up_and_accepted_by_one_that_says_so() {
        let (mut guest, host) = UnixStream::pair().unwrap();
        let mut poweroff = Poweroff::send(host, 500).unwrap();
        let mut request = [0; 256];
        let count = guest.read(&mut request).unwrap();
        let mut decoder = FrameDecoder::new();
        decoder.push(&request[..count]);
        let message = Message::decode(decoder.next_frame().unwrap().unwrap()).unwrap();
        let expected = Request { protocol: AGENT_PROTOCOL, op: Op::Poweroff { grace_ms: 500 } };
        assert_eq!(message, Message::Request(expected));
        guest.write_all(&Message::Reply(Reply::Done).encode().unwrap()).unwrap();
        assert_eq!(poweroff.read().unwrap(), None);
        drop(guest);
        assert!(matches!(poweroff.read(), Err(Over::Closed)));

        let (guest, host) = UnixStream::pair().unwrap();
        let mut poweroff = Poweroff::send(host, 500).unwrap();
        drop(guest);
        assert!(matches!(poweroff.read(), Ok(Some(Event::PoweroffRefused(_)))));
    }
}
