//! One exec on one connection.

use super::sink::Sink;
use super::{Event, Events, Outcome, Streams};
use crate::{Error, Result};
use proto::agent::{Exec, Exit, Message, Op, Reply, Request, STDIN_WINDOW_BYTES};
use proto::codec::DecodeError;
use proto::frame::{DATA_CHUNK_BYTES, FrameDecoder};
use proto::version::AGENT_PROTOCOL;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Output that may wait here for a slow reader before the connection is no longer read, and so holds back the guest.
const MAX_PENDING_OUTPUT: usize = 256 << 10;

/// Frames that may wait for the connection before standard input is no longer read: little, as signals wait behind.
const MAX_PENDING_FRAMES: usize = 128 << 10;

/// How long after its time ran out a command may still take to end (the guest gives it two seconds of that) before the
/// guest counts as hung.
const TIMEOUT_SLACK: Duration = Duration::from_secs(15);

/// Whether the guest's side of the connection still says something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    /// It may.
    Open,
    /// The connection has ended.
    Gone,
}

/// An exec under way.
pub(super) struct Session<'a> {
    /// A stream socket of any family.
    stream: OwnedFd,
    name: &'a str,
    decoder: FrameDecoder,
    /// Frames on their way to the guest, of which `sent` bytes are sent.
    frames: Vec<u8>,
    sent: usize,
    /// `None` once its end was sent, or if it is not sent at all.
    stdin: Option<BorrowedFd<'a>>,
    /// Bytes of standard input that the guest has not acknowledged.
    in_flight: usize,
    stdout: Sink<'a>,
    stderr: Sink<'a>,
    peer: Peer,
    detach: bool,
    /// How it ended.
    outcome: Option<Outcome>,
    deadline: Option<Instant>,
}

impl<'a> Session<'a> {
    /// Sends the request. The reply is not waited for: standard input may follow at once.
    pub(super) fn begin(
        stream: OwnedFd,
        name: &'a str,
        exec: &Exec,
        streams: Streams<'a>,
    ) -> Result<Self> {
        rustix::io::ioctl_fionbio(&stream, true)
            .map_err(Error::sys("set a socket non-blocking"))?;
        let request =
            Message::Request(Request { protocol: AGENT_PROTOCOL, op: Op::Exec(exec.clone()) });
        let frames = request.encode().map_err(|_| Error::InvalidValue {
            what: "command".into(),
            cause: "its arguments and environment are too long".into(),
        })?;
        let deadline = exec.timeout_ms.map(|millis| {
            Instant::now()
                + Duration::from_millis(millis).min(Duration::from_secs(1 << 32))
                + TIMEOUT_SLACK
        });
        let mut session = Self {
            stream,
            name,
            decoder: FrameDecoder::new(),
            frames,
            sent: 0,
            stdin: exec.stdin.then_some(streams.stdin),
            in_flight: 0,
            stdout: Sink::new(streams.stdout),
            stderr: Sink::new(streams.stderr),
            peer: Peer::Open,
            detach: exec.detach,
            outcome: None,
            deadline,
        };
        session.write_frames();
        Ok(session)
    }

    /// Serves the streams until the command has ended and its output is written.
    pub(super) fn run(mut self, mut events: Option<&mut dyn Events>) -> Result<Outcome> {
        loop {
            if self.stdout.is_closed() {
                return Ok(self.outcome.unwrap_or(Outcome::OutputClosed));
            }
            let flushed = self.stdout.pending() == 0 && self.stderr.pending() == 0;
            if let Some(outcome) = self.outcome.filter(|_| flushed) {
                return Ok(outcome);
            }
            if self.peer == Peer::Gone && self.outcome.is_none() && flushed {
                return Err(Error::ConnectionLost(self.name.into()));
            }
            let ready = self.wait(events.as_deref())?;
            if ready.timed_out {
                return Ok(Outcome::Exited(Exit { timed_out: true, ..Exit::default() }));
            }
            if ready.events
                && let Some(events) = events.as_deref_mut()
            {
                for event in events.take() {
                    match event {
                        // The command has ended: what is left is output that nobody takes.
                        Event::GiveUp => return Ok(self.outcome.unwrap_or(Outcome::GaveUp)),
                        Event::Signal(number) => self.send(&Message::Signal(number))?,
                        Event::Resize(size) => self.send(&Message::Resize(size))?,
                    }
                }
            }
            if ready.stdin {
                self.read_stdin()?;
            }
            self.write_frames();
            if ready.stream {
                self.read_frames()?;
            }
            self.stdout.write().map_err(Error::sys("write standard output"))?;
            self.stderr.write().map_err(Error::sys("write standard error"))?;
        }
    }

    /// Waits until something can be done.
    fn wait(&self, events: Option<&dyn Events>) -> Result<Ready> {
        let mut stream = PollFlags::empty();
        let running = self.outcome.is_none() && self.peer == Peer::Open;
        if running && self.stdout.pending().max(self.stderr.pending()) < MAX_PENDING_OUTPUT {
            stream |= PollFlags::IN;
        }
        if running && self.sent < self.frames.len() {
            stream |= PollFlags::OUT;
        }
        let window = usize::try_from(STDIN_WINDOW_BYTES).expect("it fits");
        let may_read = running
            && self.in_flight < window
            && self.frames.len() - self.sent < MAX_PENDING_FRAMES;
        let descriptors = [
            (!stream.is_empty()).then_some((self.stream.as_fd(), stream)),
            self.stdin.filter(|_| may_read).map(|stdin| (stdin, PollFlags::IN)),
            (self.stdout.pending() > 0).then(|| (self.stdout.descriptor(), PollFlags::OUT)),
            (self.stderr.pending() > 0).then(|| (self.stderr.descriptor(), PollFlags::OUT)),
            events.map(|events| (events.descriptor(), PollFlags::IN)),
        ];
        let mut waiting: Vec<PollFd<'_>> = descriptors
            .iter()
            .flatten()
            .map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
            .collect();
        loop {
            let left =
                self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(Ready { timed_out: true, ..Ready::default() });
            }
            let timeout = left.map(|left| {
                Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1 << 20, tv_nsec: 0 })
            });
            match poll(&mut waiting, timeout.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => break,
                Err(errno) => return Err(Error::sys("wait for the command")(errno)),
            }
        }
        let mut happened = waiting.iter().map(|fd| !fd.revents().is_empty());
        let mut next =
            |index: usize| descriptors[index].is_some() && happened.next().unwrap_or(false);
        let (stream, stdin) = (next(0), next(1));
        let (_, _) = (next(2), next(3)); // sinks are written to in any case
        Ok(Ready { stream, stdin, events: next(4), timed_out: false })
    }

    /// Moves standard input into a frame.
    fn read_stdin(&mut self) -> Result<()> {
        let Some(stdin) = self.stdin else { return Ok(()) };
        let window = usize::try_from(STDIN_WINDOW_BYTES).expect("it fits");
        let mut buffer = vec![0; DATA_CHUNK_BYTES.min(window - self.in_flight)];
        match rustix::io::read(stdin, &mut buffer) {
            Ok(0) => self.end_stdin(),
            Ok(len) => {
                buffer.truncate(len);
                self.in_flight += len;
                self.send(&Message::Stdin(buffer))
            }
            Err(Errno::INTR | Errno::AGAIN) => Ok(()),
            // Open for writing only, as `nohup` leaves it to programs that are not to read it.
            Err(Errno::BADF) => self.end_stdin(),
            // A terminal that was hung up; nothing more comes from it either.
            Err(Errno::IO) if stdin.is_terminal() => self.end_stdin(),
            // Only a command that reads it is wrong; most do not.
            Err(Errno::ISDIR) => {
                log::warn!("standard input is a directory: the command finds it empty");
                self.end_stdin()
            }
            Err(errno) => Err(Error::sys("read standard input")(errno)),
        }
    }

    /// Tells the guest that there is no more standard input.
    fn end_stdin(&mut self) -> Result<()> {
        self.stdin = None;
        self.send(&Message::StdinEof)
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        let bad = |source| Error::BadMessage { peer: "lilbox", source };
        self.frames.drain(..self.sent);
        self.sent = 0;
        self.frames.extend_from_slice(&message.encode().map_err(bad)?);
        Ok(())
    }

    fn write_frames(&mut self) {
        while self.sent < self.frames.len() {
            match rustix::net::send(&self.stream, &self.frames[self.sent..], SendFlags::NOSIGNAL) {
                Ok(len) => self.sent += len,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The other side takes nothing more. What it said before that is still to be read.
                Err(_) => {
                    self.stdin = None;
                    self.sent = self.frames.len();
                }
            }
        }
    }

    fn read_frames(&mut self) -> Result<()> {
        let mut buffer = vec![0; DATA_CHUNK_BYTES];
        match rustix::io::read(&self.stream, &mut buffer) {
            Ok(0) | Err(Errno::CONNRESET) => self.peer = Peer::Gone,
            Ok(len) => self.decoder.push(&buffer[..len]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(Error::sys(format!("read from box '{}'", self.name))(errno)),
        }
        while self.outcome.is_none() {
            let Some(frame) = self.decoder.next_frame().map_err(not_understood)? else { break };
            self.handle(Message::decode(frame).map_err(not_understood)?)?;
        }
        Ok(())
    }

    fn handle(&mut self, message: Message) -> Result<()> {
        let unexpected = |message| Err(Error::UnexpectedMessage { peer: "the guest", message });
        match message {
            Message::Reply(Reply::Started { pid }) => {
                if self.detach {
                    self.outcome = Some(Outcome::Detached { pid });
                }
            }
            Message::Reply(Reply::Failed(failed)) => return Err(Error::Guest(failed)),
            Message::Stdout(bytes) => self.stdout.push(bytes),
            Message::Stderr(bytes) => self.stderr.push(bytes),
            Message::StdinCredit(bytes) => {
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                self.in_flight = self.in_flight.saturating_sub(bytes);
            }
            Message::Exit(exit) => self.outcome = Some(Outcome::Exited(exit)),
            Message::Reply(_) => return unexpected("reply"),
            _ => return unexpected("message"),
        }
        Ok(())
    }
}

/// What can be done.
#[derive(Debug, Default)]
struct Ready {
    stream: bool,
    stdin: bool,
    events: bool,
    timed_out: bool,
}

fn not_understood(source: DecodeError) -> Error {
    Error::BadMessage { peer: "the guest", source }
}
