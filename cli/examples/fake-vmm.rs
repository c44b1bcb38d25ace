//! Stands in for `lilbox-vmm` in the command line's tests: the same channels, no virtual machine. How it behaves is told
//! by the name it is started under (see [`main`]); its agent understands a handful of commands (see [`Agent::run`]).

#![expect(clippy::print_stderr, reason = "its standard error is a log that tests look at")]

use proto::agent::{Exec, Exit, Failed, Hello, Message, Op, Reply};
use proto::code::Code;
use proto::codec;
use proto::control::{
    ControlOp, ControlReply, ControlRequest, KIND_REPLY, MachineState, VmmStatus,
};
use proto::frame::{self, FrameDecoder};
use proto::launch::{
    FdRole, LaunchFailure, LaunchReply, LaunchRequest, MAX_FDS, MAX_REQUEST_BYTES, Ready,
};
use rustix::io::IoSliceMut;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recv, recvmsg,
    send,
};
use rustix::process::{Signal, getppid, kill_process, setsid};
use std::fs::File;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    let behaviour = Path::new(&name).file_name().unwrap_or_default().to_string_lossy().into_owned();
    eprintln!("started as {behaviour}");
    setsid().expect("lead a session");
    let stdin = std::io::stdin();
    let (request, descriptors) = receive(stdin.as_fd());
    eprintln!("received {}", request.box_id);
    match behaviour.as_str() {
        "ready" => {
            reply(stdin.as_fd(), &LaunchReply::Ready(ready()));
            serve(stdin.as_fd(), &request, descriptors, request.tied_to_parent)
        }
        "hangs-when-ready" => {
            reply(stdin.as_fd(), &LaunchReply::Ready(ready()));
            loop {
                std::thread::park();
            }
        }
        // Its parent dies at the worst moment: the box is ready and nobody has written that down.
        "kills-its-parent" => {
            kill_process(getppid().expect("a parent"), Signal::KILL).expect("kill");
            serve(stdin.as_fd(), &request, descriptors, false)
        }
        "fails" => {
            let failure = LaunchFailure {
                code: Code::GuestPanic,
                message: "the guest kernel panicked".into(),
                console_tail: vec!["Kernel panic - not syncing".into()],
                last_exit: Some("hlt".into()),
            };
            reply(stdin.as_fd(), &LaunchReply::Failed(failure));
            ExitCode::FAILURE
        }
        "crashes" => {
            eprintln!("something terrible");
            ExitCode::from(3)
        }
        "talks-nonsense" => {
            send(stdin.as_fd(), b"\xff\xff", SendFlags::empty()).expect("send");
            ExitCode::SUCCESS
        }
        // Until its parent closes the channel.
        "hangs" => {
            let _ = recv(stdin.as_fd(), &mut [0; 1][..], RecvFlags::empty());
            eprintln!("the parent is gone");
            ExitCode::SUCCESS
        }
        // Whatever its parent does.
        "hangs-for-good" => loop {
            std::thread::park();
        },
        other => panic!("unknown behaviour {other}"),
    }
}

fn ready() -> Ready {
    Ready { pid: std::process::id(), build_micros: 1, ready_micros: 2, ..Ready::default() }
}

fn receive(channel: BorrowedFd<'_>) -> (LaunchRequest, Vec<OwnedFd>) {
    let mut bytes = vec![0; MAX_REQUEST_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        channel,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )
    .expect("receive");
    assert!(
        !received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC),
        "nothing is cut off"
    );
    let descriptors = ancillary
        .drain()
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
            _ => Vec::new(),
        })
        .collect();
    (codec::decode(&bytes[..received.bytes]).expect("a request"), descriptors)
}

fn reply(channel: BorrowedFd<'_>, reply: &LaunchReply) {
    send(channel, &codec::encode(reply), SendFlags::NOSIGNAL).expect("reply");
}

/// Serves the sockets until told to end. The other descriptors, the lock among them, are held for as long.
fn serve(
    parent: BorrowedFd<'_>,
    request: &LaunchRequest,
    descriptors: Vec<OwnedFd>,
    tied: bool,
) -> ExitCode {
    assert_eq!(descriptors.len(), request.fds.len(), "one descriptor for each role");
    let (end, ended) = channel();
    let mut held = Vec::new();
    for (role, descriptor) in request.fds.iter().zip(descriptors) {
        match role {
            FdRole::AgentListener => {
                let (end, listener) = (end.clone(), UnixListener::from(descriptor));
                std::thread::spawn(move || serve_agent(&listener, &end));
            }
            FdRole::ControlListener => {
                let (end, listener, request) =
                    (end.clone(), UnixListener::from(descriptor), request.clone());
                std::thread::spawn(move || serve_control(&listener, &request, &end));
            }
            FdRole::ConsoleLog => {
                let mut log = File::from(descriptor);
                std::io::Seek::seek(&mut log, std::io::SeekFrom::End(0)).expect("seek");
                writeln!(log, "hello from {}", request.guest.hostname)
                    .expect("write to the console");
                held.push(OwnedFd::from(log));
            }
            _ => held.push(descriptor),
        }
    }
    if tied {
        let parent = parent.try_clone_to_owned().expect("copy a descriptor");
        std::thread::spawn(move || {
            let _ = recv(&parent, &mut [0; 1][..], RecvFlags::empty());
            let _ = end.send(None);
        });
    }
    // Its connection, if there is one, is closed with the process.
    let _connection: Option<UnixStream> = ended.recv().expect("somebody ends it");
    drop(held);
    ExitCode::SUCCESS
}

fn serve_control(
    listener: &UnixListener,
    request: &LaunchRequest,
    end: &Sender<Option<UnixStream>>,
) {
    for stream in listener.incoming() {
        let mut stream = stream.expect("accept");
        let Some(frame) = next_frame(&mut stream, &mut FrameDecoder::new()) else { continue };
        let op = codec::decode::<ControlRequest>(&frame.payload).expect("a request").op;
        let answer = match op {
            ControlOp::Status => ControlReply::Status(VmmStatus {
                pid: std::process::id(),
                state: MachineState::Running,
                uptime_ms: 1000,
                cpus: request.machine.cpus,
                memory_mib: request.machine.memory_mib,
                ready_micros: Some(2),
                isolation: Vec::new(),
                connections: 0,
                kernel: "6.12".into(),
            }),
            ControlOp::Stop { .. } | ControlOp::Kill => ControlReply::Stopping,
        };
        let payload = codec::encode(&answer);
        stream
            .write_all(&frame::header(KIND_REPLY, payload.len()).expect("short"))
            .expect("answer");
        stream.write_all(&payload).expect("answer");
        if op != ControlOp::Status {
            end.send(Some(stream)).expect("main waits");
        }
    }
}

fn serve_agent(listener: &UnixListener, end: &Sender<Option<UnixStream>>) {
    for stream in listener.incoming() {
        let (stream, end) = (stream.expect("accept"), end.clone());
        std::thread::spawn(move || Agent { stream, decoder: FrameDecoder::new() }.run(&end));
    }
}

fn next_frame(stream: &mut UnixStream, decoder: &mut FrameDecoder) -> Option<frame::Frame> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        if let Some(frame) = decoder.next_frame().expect("frames") {
            return Some(frame);
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(len) => decoder.push(&buffer[..len]),
        }
    }
}

/// One connection to the agent.
struct Agent {
    stream: UnixStream,
    decoder: FrameDecoder,
}

impl Agent {
    fn receive(&mut self) -> Option<Message> {
        next_frame(&mut self.stream, &mut self.decoder)
            .map(|frame| Message::decode(frame).expect("a message"))
    }

    /// `false` if the client is gone.
    fn send(&mut self, message: &Message) -> bool {
        self.stream.write_all(&message.encode().expect("short")).is_ok()
    }

    fn fail(&mut self, code: Code, message: &str) {
        self.send(&Message::Reply(Reply::Failed(Failed { code, message: message.into() })));
    }

    fn exit(&mut self, code: i32) {
        self.send(&Message::Exit(Exit { code: Some(code), ..Exit::default() }));
    }

    fn run(mut self, end: &Sender<Option<UnixStream>>) {
        let Some(Message::Request(request)) = self.receive() else { return };
        let exec = match request.op {
            Op::Exec(exec) => exec,
            _ => {
                self.send(&Message::Reply(Reply::Hello(Hello::default())));
                return;
            }
        };
        let argv: Vec<String> =
            exec.argv.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        match argv[0].as_str() {
            "missing" => return self.fail(Code::CommandNotFound, "missing: no such command"),
            "directory" => {
                return self.fail(Code::CommandNotRunnable, "directory: it is a directory");
            }
            _ => self.send(&Message::Reply(Reply::Started { pid: 42 })),
        };
        match argv[0].as_str() {
            "echo" => {
                self.send(&Message::Stdout(format!("{}\n", argv[1..].join(" ")).into_bytes()));
                self.send(&Message::Stderr(b"on stderr\n".to_vec()));
                self.exit(0);
            }
            "describe" => {
                self.send(&Message::Stdout(describe(&exec).into_bytes()));
                self.exit(0);
            }
            "exit" => self.exit(argv[1].parse().expect("a number")),
            "killed" => {
                let signal = Some(argv[1].parse().expect("a number"));
                self.send(&Message::Exit(Exit { signal, ..Exit::default() }));
            }
            "times-out" => {
                self.send(&Message::Exit(Exit { timed_out: true, signal: Some(15), code: None }));
            }
            "cat" => self.cat(),
            "yes" => while self.send(&Message::Stdout(b"y\n".repeat(1 << 12))) {},
            "wait" => self.wait(),
            "die" => end.send(None).expect("main waits"),
            other => panic!("unknown command {other}"),
        }
    }

    /// Sends input back until it ends.
    fn cat(&mut self) {
        while let Some(message) = self.receive() {
            match message {
                Message::Stdin(bytes) => {
                    let count = u32::try_from(bytes.len()).expect("a short frame");
                    self.send(&Message::StdinCredit(count));
                    self.send(&Message::Stdout(bytes));
                }
                Message::StdinEof => return self.exit(0),
                _ => {}
            }
        }
    }

    /// Says what arrives, until a signal does.
    fn wait(&mut self) {
        self.send(&Message::Stdout(b"waiting\n".to_vec()));
        while let Some(message) = self.receive() {
            match message {
                Message::Signal(number) => {
                    self.send(&Message::Exit(Exit {
                        signal: Some(number.into()),
                        ..Exit::default()
                    }));
                    return;
                }
                Message::Resize(size) => {
                    self.send(&Message::Stdout(
                        format!("size {}x{}\n", size.rows, size.cols).into_bytes(),
                    ));
                }
                Message::Stdin(bytes) => {
                    self.send(&Message::Stdout(format!("typed {bytes:?}\n").into_bytes()));
                }
                _ => {}
            }
        }
    }
}

fn describe(exec: &Exec) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let env: Vec<_> =
        exec.env.iter().map(|(name, value)| format!("{}={}", text(name), text(value))).collect();
    format!(
        "env {}\ncwd {:?}\nuser {:?}\ntty {:?}\nstdin {}\ntimeout {:?}\ndetach {}\n",
        env.join(" "),
        exec.cwd.as_deref().map(|path| text(path)),
        exec.user,
        exec.tty,
        exec.stdin,
        exec.timeout_ms,
        exec.detach,
    )
}
