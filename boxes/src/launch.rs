//! Starts a VMM process and waits for its one answer (see [`proto::launch`]).
//!
//! Until the answer has come the process is undone when [`Vmm`] is dropped. There is no window in which a killed
//! command leaves a VMM behind: the kernel closes its end of the channel, and the VMM ends.

use crate::{Error, Result, lock};
use proto::codec;
use proto::launch::{LaunchReply, LaunchRequest, MAX_FDS, MAX_REQUEST_BYTES, Ready};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
    SocketFlags, SocketType, recv, sendmsg, shutdown, socketpair,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a VMM that was told to end may take before it is ended by force.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// What a VMM may take beyond the boot timeout it was given, before it counts as hung.
const REPLY_SLACK: Duration = Duration::from_secs(15);

/// Longest reply: some lines of console, some words.
const MAX_REPLY_BYTES: usize = 64 << 10;

/// Most bytes of the VMM's standard error that an error message is made of.
const LOG_TAIL_BYTES: u64 = 4 << 10;

/// Most lines of it.
const LOG_TAIL_LINES: usize = 10;

/// A VMM process started by this one.
#[derive(Debug)]
pub struct Vmm {
    child: Child,
    channel: OwnedFd,
    log: File,
    started: Instant,
    reply_timeout: Duration,
    /// Whether the process is to be ended on drop.
    armed: bool,
}

/// How a launch went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launched {
    /// What the VMM said.
    pub ready: Ready,
    /// From the start of the process until its answer was here.
    pub elapsed: Duration,
}

/// Starts `program` and sends it the request with its descriptors. `log` becomes its standard error.
///
/// # Errors
/// [`Error::InstallBroken`] if there is no such program, [`Error::InvalidValue`] if the request is too long,
/// [`Error::Io`] if a system call fails.
///
/// # Panics
/// If the number of descriptors is not what the request says.
pub fn spawn(
    program: &Path,
    log: File,
    request: &LaunchRequest,
    fds: &[BorrowedFd<'_>],
) -> Result<Vmm> {
    assert!(
        fds.len() == request.fds.len() && fds.len() <= MAX_FDS,
        "descriptors match the request"
    );
    let bytes = codec::encode(request);
    if bytes.len() > MAX_REQUEST_BYTES {
        let cause = format!(
            "the settings of the box take {} bytes, more than {MAX_REQUEST_BYTES}",
            bytes.len()
        );
        return Err(Error::InvalidValue { what: "environment".into(), cause });
    }
    let (channel, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(Error::sys("make the launch channel"))?;
    let stderr = log.try_clone().map_err(Error::io("copy a descriptor"))?;
    let started = Instant::now();
    // It calls `setsid` itself: nothing of the terminal this command runs on is to reach it.
    let child = Command::new(program)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::from(stderr))
        .spawn()
        .map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::InstallBroken { path: program.into() },
            _ => Error::io(format!("start {}", program.display()))(source),
        })?;
    let reply_timeout = Duration::from_millis(request.boot_timeout_ms) + REPLY_SLACK;
    let vmm = Vmm { child, channel, log, started, reply_timeout, armed: true };
    match send(&vmm.channel, &bytes, fds) {
        // The process is gone already: its end of file says more than this error.
        Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(vmm),
        Err(errno) => Err(Error::sys("send the launch request")(errno)),
    }
}

fn send(channel: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(
        ancillary.push(SendAncillaryMessage::ScmRights(fds)),
        "the buffer is large enough for all descriptors"
    );
    loop {
        match sendmsg(channel, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            result => return result.map(drop),
        }
    }
}

impl Vmm {
    /// Process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for the answer. `cancel` becomes readable when the user does not want to wait any longer.
    ///
    /// # Errors
    /// [`Error::Launch`] with the VMM's reason, [`Error::VmmDied`] if it ended without one, [`Error::Interrupted`].
    pub fn wait_until_ready(&mut self, cancel: Option<BorrowedFd<'_>>) -> Result<Launched> {
        let deadline = self.started + self.reply_timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.died("it did not answer in time"));
            }
            let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
            let mut waiting = vec![PollFd::new(&self.channel, PollFlags::IN)];
            waiting.extend(cancel.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            match poll(&mut waiting, Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::sys("wait for the VMM")(errno)),
            }
            if waiting.get(1).is_some_and(|fd| !fd.revents().is_empty()) {
                return Err(Error::Interrupted);
            }
            if waiting.first().is_some_and(|fd| !fd.revents().is_empty()) {
                break;
            }
        }
        let mut buffer = vec![0; MAX_REPLY_BYTES];
        let len = loop {
            match recv(&self.channel, &mut buffer[..], RecvFlags::empty()) {
                Ok((len, _)) => break len,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => break 0,
                Err(errno) => return Err(Error::sys("receive the VMM's answer")(errno)),
            }
        };
        let elapsed = self.started.elapsed();
        if len == 0 {
            return Err(self.died("it closed the launch channel"));
        }
        let reply: LaunchReply = codec::decode(&buffer[..len])
            .map_err(|source| Error::BadMessage { peer: "the VMM", source })?;
        match reply {
            LaunchReply::Ready(ready) => Ok(Launched { ready, elapsed }),
            LaunchReply::Failed(failure) => Err(Error::Launch(failure)),
        }
    }

    /// Lets go of a VMM that is ready: it lives on without this process. Unless it is tied to its parent, in which case
    /// this ends it.
    ///
    /// Nobody waits for it here. It stays a child of this process, and the kernel keeps its number and exit status when
    /// it has ended, until its parent asks for them or ends. A command ends soon, and PID 1 asks instead. A program that
    /// outlives its boxes has to reap children by itself (`waitpid(-1)` upon SIGCHLD, or SIGCHLD ignored); nothing in
    /// this crate minds, since whether a VMM lives is told by its lock.
    pub fn release(mut self) {
        self.armed = false;
    }

    /// Ends the VMM at once. When this returns the process is gone.
    ///
    /// # Errors
    /// [`Error::Io`] if the process cannot be waited for.
    pub fn kill(mut self) -> Result<()> {
        self.armed = false;
        // An error means that it has ended already.
        let _ = self.child.kill();
        self.child.wait().map(drop).map_err(Error::io("wait for the VMM to end"))
    }

    /// The error of a VMM that gave no answer, with what it wrote to standard error.
    fn died(&mut self, how: &str) -> Error {
        let status = match self.end() {
            Ok(Some(status)) => status.to_string(),
            Ok(None) | Err(_) => how.to_owned(),
        };
        Error::VmmDied { status, log_tail: tail(&mut self.log) }
    }

    /// Tells the process to end by closing the channel, and waits; by force if need be. Gives its status if it ended by
    /// itself.
    fn end(&mut self) -> Result<Option<std::process::ExitStatus>> {
        self.armed = false;
        let _ = shutdown(&self.channel, Shutdown::Both);
        let pidfd = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())
            .map_err(Error::sys("watch the VMM"))?;
        let by_itself = lock::wait_for_exit(pidfd.as_fd(), END_PATIENCE)?;
        if !by_itself {
            log::warn!("the VMM {} does not end by itself", self.child.id());
            let _ = self.child.kill();
        }
        let status = self.child.wait().map_err(Error::io("wait for the VMM to end"))?;
        Ok(by_itself.then_some(status))
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        if self.armed
            && let Err(error) = self.end()
        {
            log::warn!("a VMM may still be running: {error}");
        }
    }
}

/// The last lines of a log.
fn tail(log: &mut File) -> Vec<String> {
    let len = log.metadata().map_or(0, |metadata| metadata.len());
    let mut bytes = Vec::new();
    let read = log
        .seek(SeekFrom::Start(len.saturating_sub(LOG_TAIL_BYTES)))
        .and_then(|_| log.take(LOG_TAIL_BYTES).read_to_end(&mut bytes));
    if let Err(error) = read {
        log::warn!("cannot read the VMM's log: {error}");
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..]
        .iter()
        .map(|line| (*line).to_owned())
        .collect()
}
