//! The agent protocol: what the host asks the guest's PID 1 to do.
//!
//! One connection serves one request, and its first frame already is the request:
//!
//! ```text
//! host → guest   [Auth] Request            (Auth only where the transport is not private: TCP)
//! guest → host   Reply                     Started / Done / Hello / Failed
//! exec:          Stdin* StdinEof  ⇄  Stdout* Stderr* StdinCredit*      Resize, Signal at any time
//! guest → host   Exit                      always the last frame of an exec
//! forward:       after Reply::Done the connection is the raw byte stream
//! ```
//!
//! The host does not wait for the reply before it sends standard input. Output is held back by the connection
//! itself. Standard input is not: signals travel behind it, so the host sends at most [`STDIN_WINDOW_BYTES`] that
//! the guest has not acknowledged with [`Message::StdinCredit`], and the guest keeps reading frames however slow
//! the program is. A client that vanishes (end of file or reset) hangs up the exec's process group unless it was
//! detached. End of file of the host's sending side alone (half-close) is *not* used: end of input is `StdinEof`.
//!
//! The same agent runs in boxes (over vsock) and in the machine (over TCP on the host's loopback, with a secret).
//!
//! # Trust
//! Both peers are hostile to each other. Decoding never panics; payloads are capped by [`crate::frame`].

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use crate::code::Code;
use crate::codec::{self, DecodeError};
use crate::frame::{self, Frame};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Port, on vsock, on which the guest's agent listens.
pub const AGENT_PORT: u32 = 1024;

/// Port, on vsock, of the VMM, to which the guest connects once at boot to say [`Lifecycle::Ready`].
/// The connection stays open: `Lifecycle::Down` on it tells an orderly end from a crash.
pub const LIFECYCLE_PORT: u32 = 1025;

/// Standard input that may be under way without an acknowledgement.
pub const STDIN_WINDOW_BYTES: u32 = 256 << 10;

/// A request, with the version of the protocol it is written in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`crate::version::AGENT_PROTOCOL`] of the sender.
    pub protocol: u16,
    /// What to do.
    pub op: Op,
}

/// What the guest is asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Say who you are.
    Hello,
    /// Run a program.
    Exec(Exec),
    /// Join this connection to a TCP port of guest loopback (127.0.0.1, then ::1).
    Forward {
        /// TCP port.
        port: u16,
    },
    /// Set the wall clock.
    SetTime {
        /// Nanoseconds since 1970-01-01 UTC.
        unix_nanos: u64,
    },
    /// Write all dirty pages to the disks.
    Sync,
    /// Stop all processes, sync, unmount, power off. Answered with `Done` before anything is stopped.
    Poweroff {
        /// Time processes have between SIGTERM and SIGKILL.
        grace_ms: u64,
    },
}

/// A program to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exec {
    /// Program and arguments; never passed to a shell. The program is searched in the request's `PATH`.
    pub argv: Vec<ByteBuf>,
    /// Environment variables set on top of the guest's own (`HOME`, `USER`, `PATH`, configured ones).
    pub env: Vec<(ByteBuf, ByteBuf)>,
    /// Working directory; the guest's configured one, else `/`, when absent.
    pub cwd: Option<ByteBuf>,
    /// `name`, `uid`, `name:group` or `uid:gid`, looked up in the guest's files; root when absent.
    pub user: Option<String>,
    /// A terminal of this size instead of pipes.
    pub tty: Option<TtySize>,
    /// Whether standard input will be sent; otherwise it is `/dev/null`.
    pub stdin: bool,
    /// Kill the process group after this time: SIGTERM, then SIGKILL two seconds later.
    pub timeout_ms: Option<u64>,
    /// Resource limits, by `setrlimit(2)` number: (resource, soft, hard).
    pub rlimits: Vec<(u32, u64, u64)>,
    /// Let the program run on when the client vanishes.
    pub detach: bool,
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TtySize {
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// First answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The request is carried out.
    Done,
    /// The program runs.
    Started {
        /// Its process id in the guest.
        pid: u32,
    },
    /// Who the guest is.
    Hello(Hello),
    /// The request failed.
    Failed(Failed),
}

/// Who the guest is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hello {
    /// Agent protocol of the guest.
    pub protocol: u16,
    /// Version of guest-init.
    pub version: String,
    /// `uname -r`.
    pub kernel: String,
    /// Nanoseconds of guest uptime when the agent began to listen.
    pub ready_uptime_nanos: u64,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Code word.
    pub code: Code,
    /// Explanation.
    pub message: String,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exit {
    /// Exit code, if it exited.
    pub code: Option<i32>,
    /// Signal, if one ended it.
    pub signal: Option<i32>,
    /// Whether its time ran out.
    pub timed_out: bool,
}

/// What the guest tells its VMM on [`LIFECYCLE_PORT`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifecycle {
    /// The agent listens.
    Ready(Hello),
    /// The guest cannot go on.
    Failed(Failed),
    /// The guest is about to power off in good order.
    Down,
}

/// A decoded frame of the agent protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// First frame where the transport is not private.
    Auth(Vec<u8>),
    /// The request.
    Request(Request),
    /// The first answer.
    Reply(Reply),
    /// Guest to VMM, on the lifecycle port.
    Lifecycle(Lifecycle),
    /// Bytes for standard input.
    Stdin(Vec<u8>),
    /// End of standard input.
    StdinEof,
    /// Bytes of standard output, or of the terminal.
    Stdout(Vec<u8>),
    /// Bytes of standard error.
    Stderr(Vec<u8>),
    /// The terminal's new size.
    Resize(TtySize),
    /// Send this signal to the process group.
    Signal(u8),
    /// The guest took this many more bytes of standard input.
    StdinCredit(u32),
    /// The program ended; last frame.
    Exit(Exit),
}

/// Frame kinds.
pub mod kind {
    #![expect(missing_docs, reason = "named after the variants of `Message`")]
    pub const AUTH: u8 = 1;
    pub const REQUEST: u8 = 2;
    pub const REPLY: u8 = 3;
    pub const LIFECYCLE: u8 = 4;
    pub const STDIN: u8 = 16;
    pub const STDIN_EOF: u8 = 17;
    pub const STDOUT: u8 = 18;
    pub const STDERR: u8 = 19;
    pub const RESIZE: u8 = 20;
    pub const SIGNAL: u8 = 21;
    pub const STDIN_CREDIT: u8 = 22;
    pub const EXIT: u8 = 23;
}

impl Message {
    /// Encodes the message as one frame.
    ///
    /// # Errors
    /// [`DecodeError::TooLong`] if the payload exceeds [`frame::MAX_PAYLOAD_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        let (kind, payload) = match self {
            Self::Auth(secret) => (kind::AUTH, secret.clone()),
            Self::Request(request) => (kind::REQUEST, codec::encode(request)),
            Self::Reply(reply) => (kind::REPLY, codec::encode(reply)),
            Self::Lifecycle(event) => (kind::LIFECYCLE, codec::encode(event)),
            Self::Stdin(bytes) => (kind::STDIN, bytes.clone()),
            Self::StdinEof => (kind::STDIN_EOF, Vec::new()),
            Self::Stdout(bytes) => (kind::STDOUT, bytes.clone()),
            Self::Stderr(bytes) => (kind::STDERR, bytes.clone()),
            Self::Resize(TtySize { rows, cols }) => {
                let ([a, b], [c, d]) = (rows.to_le_bytes(), cols.to_le_bytes());
                (kind::RESIZE, vec![a, b, c, d])
            }
            Self::Signal(number) => (kind::SIGNAL, vec![*number]),
            Self::StdinCredit(bytes) => (kind::STDIN_CREDIT, bytes.to_le_bytes().to_vec()),
            Self::Exit(exit) => (kind::EXIT, codec::encode(exit)),
        };
        let mut bytes = frame::header(kind, payload.len())
            .ok_or(DecodeError::TooLong(u32::try_from(payload.len()).unwrap_or(u32::MAX)))?
            .to_vec();
        bytes.extend_from_slice(&payload);
        Ok(bytes)
    }

    /// Decodes a frame.
    ///
    /// # Errors
    /// [`DecodeError`] if its kind is unknown or its payload is not of that kind.
    pub fn decode(frame: Frame) -> Result<Self, DecodeError> {
        let Frame { kind, payload } = frame;
        let wrong_length = || DecodeError::PayloadLength { kind, len: payload.len() };
        Ok(match kind {
            kind::AUTH => Self::Auth(payload),
            kind::REQUEST => Self::Request(codec::decode(&payload)?),
            kind::REPLY => Self::Reply(codec::decode(&payload)?),
            kind::LIFECYCLE => Self::Lifecycle(codec::decode(&payload)?),
            kind::STDIN => Self::Stdin(payload),
            kind::STDIN_EOF if payload.is_empty() => Self::StdinEof,
            kind::STDOUT => Self::Stdout(payload),
            kind::STDERR => Self::Stderr(payload),
            kind::RESIZE => {
                let [a, b, c, d] = <[u8; 4]>::try_from(&*payload).map_err(|_| wrong_length())?;
                let (rows, cols) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
                Self::Resize(TtySize { rows, cols })
            }
            kind::SIGNAL => {
                let [number] = <[u8; 1]>::try_from(&*payload).map_err(|_| wrong_length())?;
                Self::Signal(number)
            }
            kind::STDIN_CREDIT => {
                let bytes = <[u8; 4]>::try_from(&*payload).map_err(|_| wrong_length())?;
                Self::StdinCredit(u32::from_le_bytes(bytes))
            }
            kind::EXIT => Self::Exit(codec::decode(&payload)?),
            kind::STDIN_EOF => return Err(wrong_length()),
            _ => return Err(DecodeError::UnknownKind(kind)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FrameDecoder;
    use crate::version::AGENT_PROTOCOL;

    fn samples() -> Vec<Message> {
        let exec = Exec {
            argv: vec![ByteBuf::from(b"sh".to_vec()), ByteBuf::from(vec![0xff, 0xfe])],
            env: vec![(ByteBuf::from(b"A".to_vec()), ByteBuf::from(b"b=c".to_vec()))],
            cwd: Some(ByteBuf::from(b"/tmp".to_vec())),
            user: Some("1000:100".into()),
            tty: Some(TtySize { rows: 24, cols: 80 }),
            stdin: true,
            timeout_ms: Some(2000),
            rlimits: vec![(7, 1024, 4096)],
            detach: false,
        };
        vec![
            Message::Auth(vec![1, 2, 3]),
            Message::Request(Request { protocol: AGENT_PROTOCOL, op: Op::Hello }),
            Message::Request(Request { protocol: AGENT_PROTOCOL, op: Op::Exec(exec) }),
            Message::Request(Request { protocol: AGENT_PROTOCOL, op: Op::Forward { port: 80 } }),
            Message::Request(Request {
                protocol: AGENT_PROTOCOL,
                op: Op::Poweroff { grace_ms: 5 },
            }),
            Message::Reply(Reply::Done),
            Message::Reply(Reply::Started { pid: 9 }),
            Message::Reply(Reply::Failed(Failed { code: Code::Io, message: "x".into() })),
            Message::Lifecycle(Lifecycle::Ready(Hello { protocol: 1, ..Hello::default() })),
            Message::Lifecycle(Lifecycle::Down),
            Message::Stdin(vec![0; 1000]),
            Message::StdinEof,
            Message::Stdout(b"out".to_vec()),
            Message::Stderr(b"err".to_vec()),
            Message::Resize(TtySize { rows: 50, cols: 132 }),
            Message::Signal(2),
            Message::StdinCredit(65536),
            Message::Exit(Exit { code: Some(7), signal: None, timed_out: false }),
            Message::Exit(Exit { code: None, signal: Some(9), timed_out: true }),
        ]
    }

    #[test]
    fn every_message_round_trips() {
        for message in samples() {
            let mut decoder = FrameDecoder::new();
            decoder.push(&message.encode().unwrap());
            let frame = decoder.next_frame().unwrap().unwrap();
            assert_eq!(Message::decode(frame).unwrap(), message);
        }
    }

    #[test]
    fn truncated_and_flipped_messages_never_panic() {
        for message in samples() {
            let bytes = message.encode().unwrap();
            for cut in 0..bytes.len() {
                let payload = bytes.get(frame::HEADER_BYTES..cut).unwrap_or_default().to_vec();
                let _ = Message::decode(Frame { kind: bytes[4], payload });
            }
            for bit in 0..(bytes.len().min(200) * 8) {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let payload = flipped[frame::HEADER_BYTES..].to_vec();
                let _ = Message::decode(Frame { kind: flipped[4], payload });
            }
        }
    }

    /// A newer host may add fields to a request; this guest must still understand the rest.
    #[test]
    fn unknown_fields_are_ignored_and_absent_ones_have_defaults() {
        #[derive(Serialize)]
        struct NewerExec {
            argv: Vec<ByteBuf>,
            from_the_future: u8,
        }
        let newer = NewerExec { argv: vec![ByteBuf::from(b"ls".to_vec())], from_the_future: 1 };
        let exec: Exec = codec::decode(&codec::encode(&newer)).unwrap();
        assert_eq!(exec, Exec { argv: newer.argv, ..Exec::default() });
    }
}
