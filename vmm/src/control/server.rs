//! The control socket: one request per connection, one reply (see [`proto::control`]).
//!
//! # Trust
//! Anyone who can open the socket may connect, send anything, send nothing, or never read. So there is a cap on
//! clients and on bytes, a deadline by which a client must be done, and no call that blocks.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use proto::code::Code;
use proto::control::{ControlOp, ControlReply, ControlRequest, KIND_REPLY, KIND_REQUEST};
use proto::frame::{self, FrameDecoder};
use proto::version::CONTROL_PROTOCOL;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Clients at a time; further ones wait in the socket's backlog.
const MAX_CLIENTS: usize = 16;

/// A request is some dozen bytes.
const MAX_REQUEST_BYTES: usize = 4 << 10;

/// Time for a client to send its request and take its reply.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time until clients are accepted again after that failed: for want of descriptors, which others give back. They wait
/// in the backlog; asking at once would keep the main thread busy with nothing else.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Names a client for as long as it is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientId(u64);

enum Stage {
    /// Its request has not arrived in full.
    Asking,
    /// Its request is with the main thread, which answers in the same turn.
    Waiting,
    /// Its reply has not left in full.
    Answering {
        reply: Vec<u8>,
        sent: usize,
        /// Whether the connection then stays open until the process ends.
        keep: bool,
    },
    /// It waits for this process to end.
    Watching,
}

struct Client {
    id: ClientId,
    stream: UnixStream,
    decoder: FrameDecoder,
    received: usize,
    deadline: Option<Instant>,
    stage: Stage,
}

/// The socket and its clients.
pub struct Server {
    listener: UnixListener,
    clients: Vec<Client>,
    next_id: u64,
    /// No client is accepted before.
    accept_at: Option<Instant>,
}

/// What a client wants to be told about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// More bytes, or its end.
    Read,
    /// Room for the reply.
    Write,
}

impl Server {
    /// Serves this listener.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener, clients: Vec::new(), next_id: 0, accept_at: None })
    }

    /// The listener, if another client may come.
    #[must_use]
    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        (self.clients.len() < MAX_CLIENTS && self.accept_at.is_none())
            .then(|| self.listener.as_fd())
    }

    /// The clients and what each waits for.
    pub fn clients(&self) -> impl Iterator<Item = (ClientId, BorrowedFd<'_>, Interest)> {
        self.clients.iter().map(|client| {
            let interest = if matches!(client.stage, Stage::Answering { .. }) {
                Interest::Write
            } else {
                Interest::Read
            };
            (client.id, client.stream.as_fd(), interest)
        })
    }

    /// The next moment at which [`Server::expire`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.clients.iter().filter_map(|client| client.deadline).chain(self.accept_at).min()
    }

    /// Hangs up on clients whose time is over, and accepts clients again if it is time.
    pub fn expire(&mut self, now: Instant) {
        self.accept_at = self.accept_at.filter(|moment| *moment > now);
        self.clients.retain(|client| client.deadline.is_none_or(|deadline| deadline > now));
    }

    /// Takes a client from the backlog.
    pub fn accept(&mut self, now: Instant) {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                if !is_transient(&error) {
                    log::warn!("cannot accept a client of the control socket: {error}");
                    self.accept_at = now.checked_add(ACCEPT_PAUSE);
                }
                return;
            }
        };
        if let Err(error) = stream.set_nonblocking(true) {
            log::warn!("cannot serve a client of the control socket: {error}");
            return;
        }
        let id = ClientId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        self.clients.push(Client {
            id,
            stream,
            decoder: FrameDecoder::new(),
            received: 0,
            deadline: now.checked_add(PATIENCE),
            stage: Stage::Asking,
        });
    }

    /// Serves a client that is ready. Returns its request once it is whole; answer it by [`Server::answer`].
    pub fn serve(&mut self, id: ClientId) -> Option<ControlOp> {
        let client = self.clients.iter_mut().find(|client| client.id == id)?;
        match client.advance() {
            Ok(Step::Asked(op)) => Some(op),
            Ok(Step::Going) => None,
            Ok(Step::Refused(code, message)) => {
                self.answer(id, &ControlReply::Refused { code, message: message.into() });
                None
            }
            Err(Done) => {
                self.clients.retain(|client| client.id != id);
                None
            }
        }
    }

    /// Answers a client. After [`ControlReply::Stopping`] its connection stays open until the process ends.
    pub fn answer(&mut self, id: ClientId, reply: &ControlReply) {
        let Some(client) = self.clients.iter_mut().find(|client| client.id == id) else { return };
        let payload = proto::codec::encode(reply);
        let Some(header) = frame::header(KIND_REPLY, payload.len()) else { return };
        let reply_bytes = [&header[..], &payload].concat();
        let keep = matches!(reply, ControlReply::Stopping);
        client.stage = Stage::Answering { reply: reply_bytes, sent: 0, keep };
        // Nearly always the socket takes it at once.
        if client.advance().is_err() {
            self.clients.retain(|client| client.id != id);
        }
    }
}

/// What became of a client.
enum Step {
    Going,
    Asked(ControlOp),
    Refused(Code, &'static str),
}

/// The client is to be dropped.
struct Done;

impl Client {
    fn advance(&mut self) -> Result<Step, Done> {
        match &mut self.stage {
            Stage::Asking => self.receive(),
            Stage::Waiting => Ok(Step::Going),
            Stage::Answering { reply, sent, keep } => {
                let rest = reply.get(*sent..).unwrap_or_default();
                match self.stream.write(rest) {
                    Ok(count) => *sent = sent.saturating_add(count),
                    Err(error) if is_transient(&error) => return Ok(Step::Going),
                    Err(_) => return Err(Done),
                }
                if *sent < reply.len() {
                    return Ok(Step::Going);
                }
                if !*keep {
                    return Err(Done);
                }
                self.deadline = None;
                self.stage = Stage::Watching;
                Ok(Step::Going)
            }
            // Whatever it still sends is thrown away; it may leave.
            Stage::Watching => match self.stream.read(&mut [0; 256]) {
                Ok(0) => Err(Done),
                Ok(_) => Ok(Step::Going),
                Err(error) if is_transient(&error) => Ok(Step::Going),
                Err(_) => Err(Done),
            },
        }
    }

    fn receive(&mut self) -> Result<Step, Done> {
        let mut buffer = [0; 1024];
        let count = match self.stream.read(&mut buffer) {
            Ok(0) => return Err(Done),
            Ok(count) => count,
            Err(error) if is_transient(&error) => return Ok(Step::Going),
            Err(_) => return Err(Done),
        };
        self.received = self.received.saturating_add(count);
        self.decoder.push(buffer.get(..count).unwrap_or_default());
        let refused = |message| Ok(Step::Refused(Code::BadMessage, message));
        let frame = match self.decoder.next_frame() {
            Ok(Some(frame)) => frame,
            Ok(None) if self.received <= MAX_REQUEST_BYTES => return Ok(Step::Going),
            Ok(None) | Err(_) => return refused("the request is too long"),
        };
        if frame.kind != KIND_REQUEST {
            return refused("that is not a control request");
        }
        match proto::codec::decode::<ControlRequest>(&frame.payload) {
            Ok(request) if request.protocol == CONTROL_PROTOCOL => {
                self.stage = Stage::Waiting;
                Ok(Step::Asked(request.op))
            }
            Ok(_) => Ok(Step::Refused(
                Code::ProtocolMismatch,
                "the request is in another version of the protocol",
            )),
            Err(_) => refused("the request cannot be decoded"),
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> (tempfile::TempDir, Server) {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("control")).unwrap();
        (directory, Server::new(listener).unwrap())
    }

    fn connect(directory: &tempfile::TempDir, server: &mut Server) -> UnixStream {
        let stream = UnixStream::connect(directory.path().join("control")).unwrap();
        server.accept(Instant::now());
        stream
    }

    fn serve_all(server: &mut Server) -> Vec<(ClientId, ControlOp)> {
        let ids: Vec<ClientId> = server.clients().map(|(id, _, _)| id).collect();
        ids.into_iter().filter_map(|id| server.serve(id).map(|op| (id, op))).collect()
    }

    fn request(op: ControlOp) -> Vec<u8> {
        let payload = proto::codec::encode(&ControlRequest { protocol: CONTROL_PROTOCOL, op });
        [&frame::header(KIND_REQUEST, payload.len()).unwrap()[..], &payload].concat()
    }

    fn reply(stream: &mut UnixStream) -> ControlReply {
        let mut decoder = FrameDecoder::new();
        loop {
            if let Some(frame) = decoder.next_frame().unwrap() {
                assert_eq!(frame.kind, KIND_REPLY);
                return proto::codec::decode(&frame.payload).unwrap();
            }
            let mut buffer = [0; 1024];
            let count = stream.read(&mut buffer).unwrap();
            assert_ne!(count, 0);
            decoder.push(&buffer[..count]);
        }
    }

    #[test]
    fn a_request_in_pieces_is_answered_and_a_stop_keeps_the_connection() {
        let (directory, mut server) = server();
        let mut client = connect(&directory, &mut server);
        let bytes = request(ControlOp::Kill);
        client.write_all(&bytes[..3]).unwrap();
        assert_eq!(serve_all(&mut server), []);
        client.write_all(&bytes[3..]).unwrap();
        let [(id, ControlOp::Kill)] = serve_all(&mut server)[..] else { panic!() };
        assert_eq!(serve_all(&mut server), [], "a request is handed out once");
        server.answer(id, &ControlReply::Stopping);
        assert_eq!(reply(&mut client), ControlReply::Stopping);
        client.write_all(b"more").unwrap();
        serve_all(&mut server);
        server.expire(Instant::now() + 10 * PATIENCE);
        assert_eq!(server.clients().count(), 1);
        drop(server);
        assert_eq!(
            client.read(&mut [0; 1]).unwrap(),
            0,
            "end of file tells the end of the process"
        );
    }

    #[test]
    fn garbage_is_refused_and_hung_up_on() {
        let old = ControlRequest { protocol: 99, op: ControlOp::Status };
        let payload = proto::codec::encode(&old);
        let old = [&frame::header(KIND_REQUEST, payload.len()).unwrap()[..], &payload].concat();
        for (bytes, code) in [
            (b"\xff\xff\xff\xff\x40".to_vec(), Code::BadMessage),
            (frame::header(7, 0).unwrap().to_vec(), Code::BadMessage),
            (
                [&frame::header(KIND_REQUEST, 4).unwrap()[..], b"\xff\xff\xff\xff"].concat(),
                Code::BadMessage,
            ),
            (old, Code::ProtocolMismatch),
        ] {
            let (directory, mut server) = server();
            let mut client = connect(&directory, &mut server);
            client.write_all(&bytes).unwrap();
            assert_eq!(serve_all(&mut server), []);
            let ControlReply::Refused { code: found, .. } = reply(&mut client) else { panic!() };
            assert_eq!(found, code);
            assert_eq!(server.clients().count(), 0);
        }
    }

    #[test]
    fn an_endless_request_is_cut_off() {
        let (directory, mut server) = server();
        let mut client = connect(&directory, &mut server);
        client.write_all(&frame::header(KIND_REQUEST, 1 << 20).unwrap()).unwrap();
        for _ in 0..8 {
            client.write_all(&[0; 1024]).unwrap();
            serve_all(&mut server);
            if server.clients().count() == 0 {
                return;
            }
        }
        panic!("the client is still served");
    }

    #[test]
    fn clients_are_capped_and_silent_ones_leave_by_deadline() {
        let (directory, mut server) = server();
        let silent: Vec<UnixStream> =
            (0..MAX_CLIENTS).map(|_| connect(&directory, &mut server)).collect();
        assert!(server.listener().is_none());
        let now = Instant::now();
        assert!(server.next_deadline().unwrap() <= now + PATIENCE);
        server.expire(now);
        assert_eq!(server.clients().count(), MAX_CLIENTS);
        server.expire(now + PATIENCE);
        assert!(server.listener().is_some() && server.next_deadline().is_none());
        drop(silent);
    }

    #[test]
    fn a_client_that_leaves_or_never_reads_harms_nobody() {
        let (directory, mut server) = server();
        drop(connect(&directory, &mut server));
        assert_eq!(serve_all(&mut server), []);
        assert_eq!(server.clients().count(), 0);
        let mut rude = connect(&directory, &mut server);
        rude.write_all(&request(ControlOp::Status)).unwrap();
        let [(id, ControlOp::Status)] = serve_all(&mut server)[..] else { panic!() };
        drop(rude);
        server.answer(id, &ControlReply::Refused { code: Code::Internal, message: String::new() });
        assert_eq!(server.clients().count(), 0);
    }
}
