//! The beginning of an exec: streams or terminal, then the program.

use super::Agent;
use super::channel::Channel;
use super::command::{Command, CommandError};
use super::connection::{answer, failed};
use super::output::Output;
use super::pty::Terminal;
use super::session::Session;
use super::spawn::{SpawnError, spawn};
use super::stdin::{Sink, Stdin};
use crate::console;
use crate::reap::Child;
use proto::agent::{Exec, Failed, Reply, kind};
use proto::code::Code;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::sync::Arc;

/// A program that runs, with our ends of its streams.
#[derive(Debug)]
pub struct Started {
    /// The program.
    pub child: Child,
    /// Its terminal, if it has one.
    pub terminal: Option<Terminal>,
    /// Its input.
    pub stdin: Stdin,
    /// Its output.
    pub outputs: Vec<Output>,
}

/// Why nothing runs.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error("cannot make the standard streams")]
    Streams(#[from] io::Error),
}

impl From<StartError> for Failed {
    fn from(error: StartError) -> Self {
        let code = match &error {
            StartError::Command(error) => error.code(),
            StartError::Spawn(error) => error.code(),
            StartError::Streams(_) => Code::Io,
        };
        failed(code, console::chain(&error))
    }
}

/// Serves an exec to its end.
pub fn serve(agent: &Agent, channel: Channel, request: &Exec) {
    match start(agent, request) {
        Ok(started) => Session::new(channel, started, request).run(&agent.leftovers),
        Err(error) => answer(channel, Reply::Failed(error.into())),
    }
}

fn start(agent: &Agent, request: &Exec) -> Result<Started, StartError> {
    let command = Command::from_request(request, &agent.defaults)?;
    match request.tty {
        Some(size) => {
            let (terminal, slave) = Terminal::open(size, command.identity.uid)?;
            let child = spawn(&agent.children, &command, [slave.as_fd(); 3], true)?;
            let sink = if request.stdin {
                Sink::Terminal(Arc::clone(terminal.master()))
            } else {
                Sink::Closed
            };
            let outputs = vec![Output::new(Arc::clone(terminal.master()), kind::STDOUT, true)];
            Ok(Started { child, terminal: Some(terminal), stdin: Stdin::new(sink), outputs })
        }
        None => start_with_pipes(agent, request, &command),
    }
}

fn start_with_pipes(
    agent: &Agent,
    request: &Exec,
    command: &Command,
) -> Result<Started, StartError> {
    let (stdin_end, sink) = if request.stdin {
        let (read, write) = pipe(command, Ours::Write)?;
        (read, Sink::Pipe(Arc::new(write)))
    } else {
        let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        (null.map_err(io::Error::from)?, Sink::Closed)
    };
    let (stdout, stdout_end) = pipe(command, Ours::Read)?;
    let (stderr, stderr_end) = pipe(command, Ours::Read)?;
    let streams = [stdin_end.as_fd(), stdout_end.as_fd(), stderr_end.as_fd()];
    let child = spawn(&agent.children, command, streams, false)?;
    let outputs = vec![
        Output::new(Arc::new(stdout), kind::STDOUT, false),
        Output::new(Arc::new(stderr), kind::STDERR, false),
    ];
    Ok(Started { child, terminal: None, stdin: Stdin::new(sink), outputs })
}

enum Ours {
    Read,
    Write,
}

/// A pipe, reading end first. Our end does not block; it belongs to the program's user, who may want to open
/// `/dev/stdout`.
fn pipe(command: &Command, ours: Ours) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    let (our_end, flags) = match ours {
        Ours::Read => (&read, OFlags::RDONLY),
        Ours::Write => (&write, OFlags::WRONLY),
    };
    rustix::fs::fcntl_setfl(our_end, flags | OFlags::NONBLOCK)?;
    let identity = &command.identity;
    rustix::fs::fchown(
        &read,
        Some(Uid::from_raw(identity.uid)),
        Some(Gid::from_raw(identity.gid)),
    )?;
    Ok((read, write))
}
