//! Runs commands in boxes: the client of the guest's agent (see [`proto::agent`]).
//!
//! One connection, one thread, one `poll(2)`: standard input, the connection, signals and both outputs are served as
//! each is ready, so that none of them waits for another. Descriptors of the caller are never set non-blocking, as
//! they may be shared with other processes.

mod session;
mod sink;
#[cfg(test)]
mod tests;

use crate::control::is_nobody_there;
use crate::home::Home;
use crate::{Error, Result, lock};
use proto::agent::{Exec, Exit, TtySize};
use session::Session;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a VMM that seems to be ending is waited for.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// The caller's standard streams.
#[derive(Debug, Clone, Copy)]
pub struct Streams<'a> {
    /// Sent to the command if the request says that standard input is sent.
    pub stdin: BorrowedFd<'a>,
    /// Gets the command's standard output, or the terminal's.
    pub stdout: BorrowedFd<'a>,
    /// Gets the command's standard error.
    pub stderr: BorrowedFd<'a>,
}

/// Something that happens beside the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The command is to get this signal.
    Signal(u8),
    /// The terminal has another size.
    Resize(TtySize),
    /// The user has lost patience: end without waiting for the command.
    GiveUp,
}

/// Where events come from.
pub trait Events {
    /// Becomes readable when there are events.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// Takes what there is; never waits.
    fn take(&mut self) -> Vec<Event>;
}

/// How a command ended, as seen from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It ended.
    Exited(Exit),
    /// It runs on in the guest.
    Detached {
        /// Its process id there.
        pid: u32,
    },
    /// Nobody reads the output any more; the guest was told by the end of the connection.
    OutputClosed,
    /// The user lost patience.
    GaveUp,
}

/// Runs a command in the box of that name, to its end.
///
/// # Errors
/// [`Error::BoxNotFound`], [`Error::BoxStopped`], [`Error::Guest`] if the guest refuses, [`Error::ConnectionLost`] if
/// the box ends before the command.
pub fn exec(
    home: &Home,
    name: &str,
    request: &Exec,
    streams: Streams<'_>,
    events: Option<&mut dyn Events>,
) -> Result<Outcome> {
    let record = home.store.find(name)?;
    let files = home.files(&record);
    match exec_at(&files.agent_socket(), name, request, streams, events) {
        Err(Error::Io { source, .. }) if is_nobody_there(&source) => {
            let_vmm_end(&files.lock())?;
            Err(Error::BoxStopped(record.name))
        }
        Err(error @ Error::ConnectionLost(_)) => {
            let_vmm_end(&files.lock())?;
            Err(error)
        }
        result => result,
    }
}

/// Gives a VMM that has closed its sockets the moment it needs to be gone: after a command that says so, the next one
/// must not find the box running.
fn let_vmm_end(lock: &Path) -> Result<()> {
    match lock::holder(lock) {
        Some(holder) => lock::wait_for_exit(&holder, END_PATIENCE).map(drop),
        None => Ok(()),
    }
}

/// Runs a command through a box's agent socket, to its end.
///
/// # Errors
/// As [`exec`]; [`Error::Io`] if nobody is at the socket.
pub fn exec_at(
    socket: &Path,
    name: &str,
    request: &Exec,
    streams: Streams<'_>,
    events: Option<&mut dyn Events>,
) -> Result<Outcome> {
    let stream = UnixStream::connect(socket).map_err(Error::io(format!("reach box '{name}'")))?;
    exec_on(stream.into(), name, request, streams, events)
}

/// Runs a command through a connection to an agent, to its end. `name` is what errors call the other side.
///
/// # Errors
/// As [`exec`].
pub fn exec_on(
    connection: OwnedFd,
    name: &str,
    request: &Exec,
    streams: Streams<'_>,
    events: Option<&mut dyn Events>,
) -> Result<Outcome> {
    Session::begin(connection, name, request, streams)?.run(events)
}
