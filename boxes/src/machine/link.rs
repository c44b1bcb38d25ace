//! The machine's agent, reached through a TCP port of loopback.

use super::error::MachineError;
use super::record::Record;
use crate::Result;
use proto::agent::{Exec, Exit, Hello, Message, Op, Reply, Request};
use proto::frame::FrameDecoder;
use proto::version::AGENT_PROTOCOL;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the agent may take to answer. An emulated computer under load is slow, but not this slow.
const PATIENCE: Duration = Duration::from_secs(30);

/// Most output that is collected from a command that we run inside for ourselves.
const MAX_OUTPUT_BYTES: usize = 16 << 20;

/// Address and secret of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    port: u16,
    secret: Vec<u8>,
}

/// What a program that ran inside left behind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Captured {
    pub exit: Exit,
    pub stdout: Vec<u8>,
}

impl Link {
    /// The link to the machine that a record describes.
    #[must_use]
    pub fn new(record: &Record) -> Self {
        Self { port: record.port, secret: record.secret.clone().into_bytes() }
    }

    /// Connects for one request. The secret is sent already.
    ///
    /// # Errors
    /// [`MachineError::Link`] if QEMU does not take the connection.
    pub fn connect(&self) -> Result<TcpStream> {
        let connect = || {
            let mut stream =
                TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)))?;
            // Frames of a terminal are small and must not wait for each other.
            stream.set_nodelay(true)?;
            stream.write_all(&encode(&Message::Auth(self.secret.clone()))?)?;
            Ok(stream)
        };
        connect().map_err(|source| MachineError::Link { operation: "connect", source }.into())
    }

    /// Makes sure that the agent answers.
    pub(super) fn hello(&self) -> Result<Hello> {
        let answer = self.open(Op::Hello, PATIENCE).and_then(|mut connection| connection.hello());
        answer.map_err(|source| {
            MachineError::Link { operation: "ask whether it is there", source }.into()
        })
    }

    /// Sets the machine's clock to ours. Its own stands still while this computer sleeps.
    pub(super) fn set_time(&self) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.expect_done(Op::SetTime { unix_nanos }, "set its clock")
    }

    /// Tells the machine to end; it does so after the answer.
    pub(super) fn power_off(&self, grace: Duration) -> Result<()> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.expect_done(Op::Poweroff { grace_ms }, "power it off")
    }

    /// Runs a program inside and collects its output.
    pub(super) fn capture(&self, exec: Exec) -> Result<Captured> {
        let run = || {
            let mut connection = self.open(Op::Exec(exec), PATIENCE)?;
            let mut captured = Captured::default();
            loop {
                match connection.next()? {
                    Message::Reply(Reply::Started { .. }) | Message::Stderr(_) => {}
                    Message::Stdout(bytes) => captured.stdout.extend_from_slice(&bytes),
                    Message::Exit(exit) => {
                        captured.exit = exit;
                        return Ok(captured);
                    }
                    Message::Reply(reply) => return Err(unexpected(&reply)),
                    _ => return Err(io::Error::other("it sent a message at the wrong time")),
                }
                if captured.stdout.len() > MAX_OUTPUT_BYTES {
                    return Err(io::Error::other("it sends output without end"));
                }
            }
        };
        run().map_err(|source| {
            MachineError::Link { operation: "run a command in it", source }.into()
        })
    }

    fn expect_done(&self, op: Op, operation: &'static str) -> Result<()> {
        let result = match self.ask(op, PATIENCE) {
            Ok(Reply::Done) => return Ok(()),
            Ok(reply) => Err(unexpected(&reply)),
            Err(error) => Err(error),
        };
        result.map_err(|source| MachineError::Link { operation, source }.into())
    }

    fn ask(&self, op: Op, patience: Duration) -> io::Result<Reply> {
        match self.open(op, patience)?.next()? {
            Message::Reply(reply) => Ok(reply),
            _ => Err(io::Error::other("it sent something else than a reply")),
        }
    }

    /// Sends a request. Reads from the connection wait no longer than `patience`.
    pub(super) fn open(&self, op: Op, patience: Duration) -> io::Result<Connection> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let mut bytes = encode(&Message::Auth(self.secret.clone()))?;
        bytes.extend(encode(&Message::Request(Request { protocol: AGENT_PROTOCOL, op }))?);
        stream.write_all(&bytes)?;
        Ok(Connection { stream, decoder: FrameDecoder::new() })
    }
}

/// A connection that carries one request.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    decoder: FrameDecoder,
}

impl Connection {
    /// Reads the answer to [`Op::Hello`].
    pub(super) fn hello(&mut self) -> io::Result<Hello> {
        match self.next()? {
            Message::Reply(Reply::Hello(hello)) => Ok(hello),
            Message::Reply(reply) => Err(unexpected(&reply)),
            _ => Err(io::Error::other("it sent something else than a reply")),
        }
    }

    fn next(&mut self) -> io::Result<Message> {
        let mut chunk = [0; 16 << 10];
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(io::Error::other)? {
                return Message::decode(frame).map_err(io::Error::other);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.decoder.push(chunk.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What a timeout of the socket looks like; its text would be "resource temporarily unavailable".
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn encode(message: &Message) -> io::Result<Vec<u8>> {
    message.encode().map_err(io::Error::other)
}

fn unexpected(reply: &Reply) -> io::Error {
    io::Error::other(match reply {
        Reply::Failed(failed) => failed.message.clone(),
        Reply::Done | Reply::Started { .. } | Reply::Hello(_) => {
            "it gave the answer to another question".to_owned()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::agent::Failed;
    use proto::code::Code;
    use std::net::TcpListener;
    use std::thread;

    /// An agent that takes one request, sends these messages, and returns what it was sent.
    fn agent(answers: Vec<Message>) -> (Link, thread::JoinHandle<Vec<Message>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut connection = Connection { stream, decoder: FrameDecoder::new() };
            let received = vec![connection.next().unwrap(), connection.next().unwrap()];
            for answer in answers {
                connection.stream.write_all(&answer.encode().unwrap()).unwrap();
            }
            received
        });
        (Link { port, secret: b"secret".to_vec() }, server)
    }

    #[test]
    fn the_secret_goes_first() {
        let hello = Hello { kernel: "6.12".into(), ..Hello::default() };
        let (link, server) = agent(vec![Message::Reply(Reply::Hello(hello.clone()))]);
        assert_eq!(link.hello().unwrap(), hello);
        let received = server.join().unwrap();
        assert_eq!(received[0], Message::Auth(b"secret".to_vec()));
        assert!(matches!(&received[1], Message::Request(Request { op: Op::Hello, .. })));
    }

    #[test]
    fn output_is_collected_to_the_exit() {
        let exit = Exit { code: Some(3), ..Exit::default() };
        let (link, server) = agent(vec![
            Message::Reply(Reply::Started { pid: 9 }),
            Message::Stdout(b"a".to_vec()),
            Message::Stderr(b"noise".to_vec()),
            Message::Stdout(b"b".to_vec()),
            Message::Exit(exit),
        ]);
        let captured = link.capture(Exec::default()).unwrap();
        assert_eq!(captured, Captured { exit, stdout: b"ab".to_vec() });
        server.join().unwrap();
    }

    #[test]
    fn refusals_and_lost_connections_are_errors() {
        let failed = Failed { code: Code::Unauthorized, message: "the secret is wrong".into() };
        let (link, server) = agent(vec![Message::Reply(Reply::Failed(failed))]);
        let error = link.power_off(Duration::ZERO).unwrap_err();
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the secret is wrong");
        server.join().unwrap();
        let (link, server) = agent(vec![]);
        assert!(link.hello().unwrap_err().to_string().contains("does not answer"));
        server.join().unwrap();
        assert!(link.connect().is_err(), "nobody listens any more");
    }
}
