//! The client against a scripted agent.

use super::*;
use proto::agent::{Failed, Message, Op, Reply, STDIN_WINDOW_BYTES};
use proto::code::Code;
use proto::frame::FrameDecoder;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::thread::{JoinHandle, spawn};

/// The guest's side of a connection.
struct Agent {
    stream: UnixStream,
    decoder: FrameDecoder,
}

impl Agent {
    fn receive(&mut self) -> Option<Message> {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some(Message::decode(frame).unwrap());
            }
            let mut buffer = vec![0; 64 << 10];
            match self.stream.read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(len) => self.decoder.push(&buffer[..len]),
            }
        }
    }

    fn send(&mut self, message: &Message) {
        self.stream.write_all(&message.encode().unwrap()).unwrap();
    }

    fn exit(&mut self, code: i32) {
        self.send(&Message::Exit(Exit { code: Some(code), ..Exit::default() }));
    }
}

/// A box whose agent serves one connection by a script.
struct Guest {
    directory: tempfile::TempDir,
    server: JoinHandle<()>,
}

fn guest(script: impl FnOnce(&mut Agent, Exec) + Send + 'static) -> Guest {
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join("agent.sock")).unwrap();
    let server = spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut agent = Agent { stream, decoder: FrameDecoder::new() };
        match agent.receive() {
            Some(Message::Request(request)) => match request.op {
                Op::Exec(exec) => script(&mut agent, exec),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    });
    Guest { directory, server }
}

/// What a client got.
struct Seen {
    outcome: Result<Outcome>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

fn run(guest: Guest, stdin: Option<Vec<u8>>, detach: bool) -> Seen {
    let (from_us, mut to_client) = std::io::pipe().unwrap();
    let (mut stdout, stdout_of_client) = std::io::pipe().unwrap();
    let (mut stderr, stderr_of_client) = std::io::pipe().unwrap();
    let exec = Exec {
        argv: vec![b"x".to_vec().into()],
        stdin: stdin.is_some(),
        detach,
        ..Exec::default()
    };
    let writer = spawn(move || {
        // A client that ends early does not take everything.
        let _ = to_client.write_all(&stdin.unwrap_or_default());
    });
    let read = |mut pipe: std::io::PipeReader| {
        spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).unwrap();
            bytes
        })
    };
    let _ = (&mut stdout, &mut stderr);
    let (stdout, stderr) = (read(stdout), read(stderr));
    let streams = Streams {
        stdin: from_us.as_fd(),
        stdout: stdout_of_client.as_fd(),
        stderr: stderr_of_client.as_fd(),
    };
    let outcome = exec_at(&guest.directory.path().join("agent.sock"), "web", &exec, streams, None);
    drop((stdout_of_client, stderr_of_client, from_us));
    writer.join().unwrap();
    guest.server.join().unwrap();
    Seen { outcome, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

fn exited(code: i32) -> Outcome {
    Outcome::Exited(Exit { code: Some(code), ..Exit::default() })
}

/// Sends standard input back, acknowledging it in small portions, and checks the window.
fn echo(agent: &mut Agent, _: Exec) {
    agent.send(&Message::Reply(Reply::Started { pid: 2 }));
    let mut unacknowledged = 0;
    while let Some(message) = agent.receive() {
        match message {
            Message::Stdin(bytes) => {
                unacknowledged += bytes.len();
                assert!(
                    unacknowledged <= usize::try_from(STDIN_WINDOW_BYTES).unwrap(),
                    "the window is kept"
                );
                let count = u32::try_from(bytes.len()).unwrap();
                agent.send(&Message::Stdout(bytes));
                agent.send(&Message::StdinCredit(count));
                unacknowledged = 0;
            }
            Message::StdinEof => {
                agent.exit(0);
                return;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn sixty_four_mebibytes_come_back_identical() {
    let bytes: Vec<u8> =
        (0..64_u32 << 20).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let seen = run(guest(echo), Some(bytes.clone()), false);
    assert_eq!(seen.outcome.unwrap(), exited(0));
    assert!(seen.stdout == bytes, "{} bytes came back", seen.stdout.len());
}

#[test]
fn the_window_holds_back_input_that_nobody_takes() {
    let silent = |agent: &mut Agent, _: Exec| {
        let mut taken = 0;
        while taken < usize::try_from(STDIN_WINDOW_BYTES).unwrap() {
            match agent.receive() {
                Some(Message::Stdin(bytes)) => taken += bytes.len(),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(taken, usize::try_from(STDIN_WINDOW_BYTES).unwrap());
        // Nothing more is here, and none comes until there is credit.
        agent.stream.set_nonblocking(true).unwrap();
        assert!(agent.stream.read(&mut [0]).is_err());
        assert!(matches!(agent.decoder.next_frame(), Ok(None)));
        agent.stream.set_nonblocking(false).unwrap();
        agent.send(&Message::StdinCredit(1));
        assert!(matches!(agent.receive(), Some(Message::Stdin(bytes)) if bytes.len() == 1));
        agent.exit(5);
    };
    let seen = run(guest(silent), Some(vec![9; 4 << 20]), false);
    assert_eq!(seen.outcome.unwrap(), exited(5));
}

#[test]
fn outputs_stay_apart_and_all_of_them_arrives_before_the_exit() {
    let talker = |agent: &mut Agent, exec: Exec| {
        assert!(!exec.stdin);
        agent.send(&Message::Reply(Reply::Started { pid: 2 }));
        for _ in 0..100 {
            agent.send(&Message::Stdout(vec![b'o'; 50_000]));
            agent.send(&Message::Stderr(vec![b'e'; 10_000]));
        }
        agent.send(&Message::Exit(Exit { code: None, signal: Some(9), timed_out: false }));
    };
    let seen = run(guest(talker), None, false);
    assert_eq!(
        seen.outcome.unwrap(),
        Outcome::Exited(Exit { code: None, signal: Some(9), timed_out: false })
    );
    assert!(seen.stdout == vec![b'o'; 5_000_000] && seen.stderr == vec![b'e'; 1_000_000]);
}

#[test]
fn refusals_losses_and_nonsense_are_told_apart() {
    let refused = Failed { code: Code::CommandNotFound, message: "x: not found".into() };
    let answer = refused.clone();
    let seen =
        run(guest(move |agent, _| agent.send(&Message::Reply(Reply::Failed(answer)))), None, false);
    assert!(matches!(seen.outcome, Err(Error::Guest(failed)) if failed == refused));

    let dies = |agent: &mut Agent, _: Exec| agent.send(&Message::Stdout(b"last words".to_vec()));
    let seen = run(guest(dies), None, false);
    assert!(matches!(seen.outcome, Err(Error::ConnectionLost(name)) if name == "web"));
    assert_eq!(seen.stdout, b"last words");

    let seen = run(guest(|agent, _| agent.stream.write_all(&[0xff; 64]).unwrap()), None, false);
    assert_eq!(seen.outcome.unwrap_err().code(), Code::BadMessage);
    let seen = run(guest(|agent, _| agent.send(&Message::StdinEof)), None, false);
    assert_eq!(seen.outcome.unwrap_err().code(), Code::BadMessage);
}

#[test]
fn a_detached_command_is_left_once_it_runs() {
    let detached = |agent: &mut Agent, exec: Exec| {
        assert!(exec.detach);
        agent.send(&Message::Reply(Reply::Started { pid: 77 }));
        assert_eq!(agent.receive(), None);
    };
    let seen = run(guest(detached), None, true);
    assert_eq!(seen.outcome.unwrap(), Outcome::Detached { pid: 77 });
}

#[test]
fn output_that_nobody_reads_ends_the_client() {
    let endless = |agent: &mut Agent, _: Exec| {
        let frame = Message::Stdout(vec![b'y'; 60_000]).encode().unwrap();
        while agent.stream.write_all(&frame).is_ok() {}
    };
    let guest = guest(endless);
    let (stdout, stdout_of_client) = std::io::pipe().unwrap();
    drop(stdout);
    let null = std::fs::File::open("/dev/null").unwrap();
    let streams =
        Streams { stdin: null.as_fd(), stdout: stdout_of_client.as_fd(), stderr: null.as_fd() };
    let socket = guest.directory.path().join("agent.sock");
    let outcome = exec_at(&socket, "web", &Exec::default(), streams, None).unwrap();
    assert_eq!(outcome, Outcome::OutputClosed);
    guest.server.join().unwrap();
}

/// Events that a test has prepared.
struct Prepared {
    wake: std::io::PipeReader,
    events: Vec<Event>,
}

impl Events for Prepared {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
    fn take(&mut self) -> Vec<Event> {
        self.wake.read_exact(&mut [0]).unwrap();
        std::mem::take(&mut self.events)
    }
}

#[test]
fn signals_and_sizes_are_passed_on_and_patience_ends() {
    let size = TtySize { rows: 50, cols: 132 };
    let receiver = move |agent: &mut Agent, _: Exec| {
        assert_eq!(agent.receive(), Some(Message::Signal(2)));
        assert_eq!(agent.receive(), Some(Message::Resize(size)));
        agent.exit(130);
    };
    let null = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
    let streams = Streams { stdin: null.as_fd(), stdout: null.as_fd(), stderr: null.as_fd() };
    let exec_with = |guest: Guest, events: Vec<Event>| {
        let (wake, mut waker) = std::io::pipe().unwrap();
        waker.write_all(&[0]).unwrap();
        let mut events = Prepared { wake, events };
        let socket = guest.directory.path().join("agent.sock");
        let outcome =
            exec_at(&socket, "web", &Exec::default(), streams, Some(&mut events)).unwrap();
        guest.server.join().unwrap();
        drop(waker);
        outcome
    };
    assert_eq!(
        exec_with(guest(receiver), vec![Event::Signal(2), Event::Resize(size)]),
        exited(130)
    );
    let hung = |agent: &mut Agent, _: Exec| assert_eq!(agent.receive(), None);
    assert_eq!(exec_with(guest(hung), vec![Event::GiveUp]), Outcome::GaveUp);
}
