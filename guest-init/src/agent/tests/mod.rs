//! The agent without a guest: requests over socket pairs, carried out on this host.

#![expect(clippy::arithmetic_side_effects, reason = "a test may overflow: it fails then")]

mod endings;
mod exec;
mod forward;
mod protocol;
mod streams;
mod terminal;

use super::{Agent, Defaults, connection};
use crate::power::{self, PowerWatch};
use crate::reap::Children;
use proto::agent::{Exec, Exit, Failed, Message, Op, Reply, Request, STDIN_WINDOW_BYTES};
use proto::frame::FrameDecoder;
use proto::version::AGENT_PROTOCOL;
use rustix::event::{Timespec, poll};
use serde_bytes::ByteBuf;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// After this time a test that waits has failed; nothing here takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// The one agent of this process: only one reaper can wait for its children.
fn agent() -> &'static (Arc<Agent>, PowerWatch) {
    static AGENT: OnceLock<(Arc<Agent>, PowerWatch)> = OnceLock::new();
    AGENT.get_or_init(|| {
        // Orphans come to this process, as they come to PID 1.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let (button, watch) = power::button_and_watch().unwrap();
        let children = Children::reap_from_now_on().unwrap();
        let defaults = Defaults { user: Some(own_user()), ..Defaults::default() };
        (Arc::new(Agent::new(defaults, children, button)), watch)
    })
}

fn own_user() -> String {
    format!("{}:{}", rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The host's end of a connection.
struct Host {
    stream: UnixStream,
    decoder: FrameDecoder,
}

/// What came of an exec.
#[derive(Debug, Default)]
struct Outcome {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    exit: Exit,
}

impl Outcome {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap().trim_end()
    }
}

impl Host {
    fn connect_with(secret: Option<&'static [u8]>) -> Self {
        let (stream, guest) = UnixStream::pair().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (agent, _) = agent();
        std::thread::spawn(move || connection::serve(agent, guest.into(), secret));
        Self { stream, decoder: FrameDecoder::new() }
    }

    fn connect() -> Self {
        Self::connect_with(None)
    }

    fn ask(op: Op) -> Self {
        let mut host = Self::connect();
        host.send(&Message::Request(Request { protocol: AGENT_PROTOCOL, op }));
        host
    }

    /// Begins an exec that must start.
    fn exec(request: Exec) -> Self {
        let mut host = Self::ask(Op::Exec(request));
        match host.next() {
            Some(Message::Reply(Reply::Started { .. })) => host,
            other => panic!("not started: {other:?}"),
        }
    }

    fn send(&mut self, message: &Message) {
        self.stream.write_all(&message.encode().unwrap()).unwrap();
    }

    /// The next message; `None` at the end of the connection.
    fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some(Message::decode(frame).unwrap());
            }
            let mut buffer = vec![0; 64 << 10];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(length) => self.decoder.push(&buffer[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no message: {error}"),
            }
        }
    }

    /// Takes output until the program has written this text.
    fn wait_for(&mut self, text: &str) {
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(text) {
            match self.next() {
                Some(Message::Stdout(bytes)) => seen.extend(bytes),
                Some(Message::StdinCredit(_)) => {}
                other => panic!(
                    "`{text}` did not come, but {other:?} after {:?}",
                    String::from_utf8_lossy(&seen)
                ),
            }
        }
    }

    /// Sends all of `input`, within the window, and takes everything until the exit.
    fn finish_with(mut self, mut input: &[u8]) -> Outcome {
        let mut outcome = Outcome::default();
        let mut window = usize::try_from(STDIN_WINDOW_BYTES).unwrap();
        let mut ended = false;
        loop {
            while window > 0 && !input.is_empty() {
                let (now, later) = input.split_at(input.len().min(window).min(50_000));
                self.send(&Message::Stdin(now.to_vec()));
                window -= now.len();
                input = later;
            }
            if input.is_empty() && !ended {
                ended = true;
                self.send(&Message::StdinEof);
            }
            match self.next() {
                Some(Message::Stdout(bytes)) => outcome.stdout.extend(bytes),
                Some(Message::Stderr(bytes)) => outcome.stderr.extend(bytes),
                Some(Message::StdinCredit(credit)) => window += usize::try_from(credit).unwrap(),
                Some(Message::Exit(exit)) => {
                    outcome.exit = exit;
                    assert_eq!(self.next(), None, "the exit frame is the last");
                    return outcome;
                }
                other => panic!("unexpected {other:?} after {outcome:?}"),
            }
        }
    }

    /// Takes everything until the exit.
    fn finish(mut self) -> Outcome {
        let mut outcome = Outcome::default();
        loop {
            match self.next() {
                Some(Message::Stdout(bytes)) => outcome.stdout.extend(bytes),
                Some(Message::Stderr(bytes)) => outcome.stderr.extend(bytes),
                Some(Message::StdinCredit(_)) => {}
                Some(Message::Exit(exit)) => {
                    outcome.exit = exit;
                    assert_eq!(self.next(), None, "the exit frame is the last");
                    return outcome;
                }
                other => panic!("unexpected {other:?} after {outcome:?}"),
            }
        }
    }
}

fn command(argv: &[&str]) -> Exec {
    Exec { argv: argv.iter().map(|text| bytes(text)).collect(), ..Exec::default() }
}

fn shell(script: &str) -> Exec {
    command(&["sh", "-c", script])
}

fn bytes(text: &str) -> ByteBuf {
    ByteBuf::from(text.as_bytes().to_vec())
}

/// Runs to the end, without input.
fn run(request: Exec) -> Outcome {
    Host::exec(request).finish()
}

/// Runs what must not start.
fn refusal(request: Exec) -> Failed {
    let mut host = Host::ask(Op::Exec(request));
    match host.next() {
        Some(Message::Reply(Reply::Failed(failed))) => {
            assert_eq!(host.next(), None, "nothing follows a refusal");
            failed
        }
        other => panic!("not refused: {other:?}"),
    }
}

fn exited(code: i32) -> Exit {
    Exit { code: Some(code), ..Exit::default() }
}

fn killed(signal: i32) -> Exit {
    Exit { signal: Some(signal), ..Exit::default() }
}

/// Waits for something that nothing announces.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 })).unwrap();
    }
}

/// A directory with two pipes, by which a test and a program it has lost touch with can meet.
struct Meeting(tempfile::TempDir);

impl Meeting {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["to", "from"] {
            let mode = rustix::fs::Mode::from_raw_mode(0o666);
            rustix::fs::mkfifoat(rustix::fs::CWD, directory.path().join(name), mode).unwrap();
        }
        Self(directory)
    }

    /// The script with `@to` and `@from` replaced by the pipes.
    fn shell(&self, script: &str) -> Exec {
        let path = |name: &str| self.0.path().join(name).to_str().unwrap().to_owned();
        shell(&script.replace("@to", &path("to")).replace("@from", &path("from")))
    }

    /// What programs write to the pipe `@from` until all of them have closed it.
    fn hear(&self) -> String {
        let mut request = self.shell("cat @from");
        request.timeout_ms = Some(u64::try_from(PATIENCE.as_millis()).unwrap());
        let outcome = run(request);
        assert_eq!(outcome.exit, exited(0), "nobody came to the meeting");
        outcome.text().to_owned()
    }
}
