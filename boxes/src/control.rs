//! Client of a VMM's control socket (see [`proto::control`]).

use crate::{Error, Result};
use proto::control::{
    ControlOp, ControlReply, ControlRequest, KIND_REPLY, KIND_REQUEST, VmmStatus,
};
use proto::frame::{self, FrameDecoder};
use proto::version::CONTROL_PROTOCOL;
use proto::{codec, codec::DecodeError};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a VMM may take to answer. It answers from memory.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// What came of asking a VMM to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopping {
    /// Its process has ended, as far as its socket tells.
    Ended,
    /// There is nobody at the socket.
    NobodyThere,
    /// It did not end in time.
    TimedOut,
}

/// A connection on which one request was sent.
struct Conversation {
    stream: UnixStream,
    decoder: FrameDecoder,
}

impl Conversation {
    fn begin(socket: &Path, op: ControlOp) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        let payload = codec::encode(&ControlRequest { protocol: CONTROL_PROTOCOL, op });
        let mut bytes = frame::header(KIND_REQUEST, payload.len())
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?
            .to_vec();
        bytes.extend_from_slice(&payload);
        stream.set_write_timeout(Some(ANSWER_PATIENCE))?;
        stream.write_all(&bytes)?;
        Ok(Self { stream, decoder: FrameDecoder::new() })
    }

    /// The next reply, or `None` at the end of the connection.
    fn reply(&mut self, deadline: Instant) -> Result<Option<ControlReply>> {
        let bad = |source| Error::BadMessage { peer: "the VMM", source };
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(bad)? {
                if frame.kind != KIND_REPLY {
                    return Err(bad(DecodeError::UnknownKind(frame.kind)));
                }
                return codec::decode(&frame.payload).map(Some).map_err(bad);
            }
            let mut buffer = [0; 4096];
            let left =
                deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let read = self
                .stream
                .set_read_timeout(Some(left))
                .and_then(|()| self.stream.read(&mut buffer));
            match read {
                Ok(0) => return Ok(None),
                Ok(len) => self.decoder.push(&buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(Error::io("read from the VMM")(error)),
            }
        }
    }
}

/// Asks a VMM how it is; `None` if there is nobody at the socket.
///
/// # Errors
/// If the answer does not come or is not understood.
pub fn status(socket: &Path) -> Result<Option<VmmStatus>> {
    let mut conversation = match Conversation::begin(socket, ControlOp::Status) {
        Ok(conversation) => conversation,
        Err(error) if is_nobody_there(&error) => return Ok(None),
        Err(error) => return Err(Error::io("reach the VMM")(error)),
    };
    match conversation.reply(Instant::now() + ANSWER_PATIENCE)? {
        Some(ControlReply::Status(status)) => Ok(Some(status)),
        Some(ControlReply::Refused { code, message }) => Err(Error::Refused { code, message }),
        Some(ControlReply::Stopping) => {
            Err(Error::UnexpectedMessage { peer: "the VMM", message: "answer to another request" })
        }
        None => Ok(None),
    }
}

/// Asks a VMM to stop, or to end at once if there is no grace, and waits until it has.
pub(crate) fn stop(socket: &Path, grace: Option<Duration>, patience: Duration) -> Result<Stopping> {
    let op = match grace {
        Some(grace) => {
            ControlOp::Stop { grace_ms: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX) }
        }
        None => ControlOp::Kill,
    };
    let mut conversation = match Conversation::begin(socket, op) {
        Ok(conversation) => conversation,
        Err(error) if is_nobody_there(&error) => return Ok(Stopping::NobodyThere),
        Err(error) => return Err(Error::io("reach the VMM")(error)),
    };
    let deadline = Instant::now() + patience;
    loop {
        match conversation.reply(deadline) {
            Ok(None) => return Ok(Stopping::Ended),
            Ok(Some(ControlReply::Refused { code, message })) => {
                return Err(Error::Refused { code, message });
            }
            Ok(Some(_)) => {}
            Err(Error::Io { source, .. }) if is_timeout(&source) => return Ok(Stopping::TimedOut),
            Err(error) => return Err(error),
        }
    }
}

/// Nobody listens, or whoever did is going away.
pub(crate) fn is_nobody_there(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    [ConnectionRefused, NotFound, ConnectionReset, BrokenPipe].contains(&error.kind())
}

fn is_timeout(error: &io::Error) -> bool {
    [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut].contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::code::Code;
    use proto::control::MachineState;
    use std::os::unix::net::UnixListener;

    /// Serves one connection: reads a request, sends these replies, closes.
    fn serve(
        listener: UnixListener,
        replies: Vec<ControlReply>,
    ) -> std::thread::JoinHandle<ControlOp> {
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut decoder = FrameDecoder::new();
            let request = loop {
                if let Some(frame) = decoder.next_frame().unwrap() {
                    break codec::decode::<ControlRequest>(&frame.payload).unwrap();
                }
                let mut buffer = [0; 64];
                let len = stream.read(&mut buffer).unwrap();
                decoder.push(&buffer[..len]);
            };
            for reply in replies {
                let payload = codec::encode(&reply);
                stream.write_all(&frame::header(KIND_REPLY, payload.len()).unwrap()).unwrap();
                stream.write_all(&payload).unwrap();
            }
            request.op
        })
    }

    #[test]
    fn a_vmm_tells_how_it_is_stops_and_refuses() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        assert_eq!(status(&socket).unwrap(), None);
        let patience = Duration::from_secs(60);
        assert_eq!(stop(&socket, None, patience).unwrap(), Stopping::NobodyThere);

        let expected = VmmStatus {
            pid: 7,
            state: MachineState::Running,
            uptime_ms: 1,
            cpus: 2,
            memory_mib: 512,
            ready_micros: Some(3),
            isolation: vec!["seccomp".into()],
            connections: 0,
            kernel: "6.12".into(),
        };
        let server = serve(
            UnixListener::bind(&socket).unwrap(),
            vec![ControlReply::Status(expected.clone())],
        );
        assert_eq!(status(&socket).unwrap(), Some(expected));
        assert_eq!(server.join().unwrap(), ControlOp::Status);
        assert_eq!(status(&socket).unwrap(), None, "a dead VMM's socket is as good as none");

        std::fs::remove_file(&socket).unwrap();
        let server = serve(UnixListener::bind(&socket).unwrap(), vec![ControlReply::Stopping]);
        assert_eq!(stop(&socket, Some(Duration::from_secs(1)), patience).unwrap(), Stopping::Ended);
        assert_eq!(server.join().unwrap(), ControlOp::Stop { grace_ms: 1000 });

        std::fs::remove_file(&socket).unwrap();
        let refused = ControlReply::Refused { code: Code::LimitReached, message: "no".into() };
        let server = serve(UnixListener::bind(&socket).unwrap(), vec![refused]);
        let error = stop(&socket, None, patience).unwrap_err();
        assert_eq!(error.code(), Code::LimitReached);
        server.join().unwrap();
    }

    #[test]
    fn a_vmm_that_does_not_end_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        assert_eq!(stop(&socket, None, Duration::ZERO).unwrap(), Stopping::TimedOut);
    }
}
