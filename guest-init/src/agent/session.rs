//! An exec from its start to its exit frame: one thread, one poll loop.
//!
//! ```text
//! running ──client gone──▶ hung up (SIGHUP, 2 s, SIGKILL) ──▶ ended
//!    │  └──time is up────▶ timed out (SIGTERM, 2 s, SIGKILL) ─▶ ended
//!    └─────program ended─▶ drain what it wrote ─▶ exit frame ─▶ ended
//! ```
//! After a hang-up or a timeout, group members that the program left behind get the same two seconds. After an exit
//! of its own accord they live on, and so does everything of a detached exec whose client has gone.

use super::channel::{Channel, ChannelError, timespec};
use super::exec::Started;
use super::group;
use super::leftover::Leftovers;
use super::output::Output;
use super::pty::Terminal;
use super::stdin::Stdin;
use crate::reap::Child;
use crate::syscalls::Ended;
use proto::agent::{Exec, Exit, Message, Reply};
use proto::frame::DATA_CHUNK_BYTES;
use rustix::event::{PollFd, PollFlags, poll};
use std::time::{Duration, Instant};

/// Time between the signal that asks a group to end and the one that ends it.
const GRACE: Duration = Duration::from_secs(2);

/// A killed program that is not gone after this time waits for a device or file system that hangs. Its client is
/// told the signal and need not wait for it.
const KILLED_PATIENCE: Duration = Duration::from_secs(5);

/// An exec under way.
#[derive(Debug)]
pub struct Session {
    channel: Channel,
    child: Child,
    terminal: Option<Terminal>,
    stdin: Stdin,
    outputs: Vec<Output>,
    client: Client,
    detach: bool,
    exit: Option<Exit>,
    exit_is_queued: bool,
    timed_out: bool,
    /// When the exec's own time is up.
    timeout: Option<Instant>,
    /// When the group that was asked to end is killed.
    kill_at: Option<Instant>,
    /// When a killed program is given up.
    abandon_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    Listens,
    Gone,
}

impl Session {
    /// A session of a program that has just started.
    pub fn new(mut channel: Channel, started: Started, request: &Exec) -> Self {
        let Started { child, terminal, stdin, outputs } = started;
        channel.queue(&Message::Reply(Reply::Started { pid: child.pid().unsigned_abs() }));
        let timeout = request
            .timeout_ms
            .and_then(|millis| Instant::now().checked_add(Duration::from_millis(millis)));
        Self {
            channel,
            child,
            terminal,
            stdin,
            outputs,
            client: Client::Listens,
            detach: request.detach,
            exit: None,
            exit_is_queued: false,
            timed_out: false,
            timeout,
            kill_at: None,
            abandon_at: None,
        }
    }

    /// Runs it to its end.
    pub fn run(mut self, leftovers: &Leftovers) {
        loop {
            self.talk();
            self.note_exit();
            self.pump();
            self.watch_clock();
            if self.is_over() {
                break;
            }
            self.wait();
        }
        self.wind_up(leftovers);
    }

    /// Takes in what the client sent.
    fn talk(&mut self) {
        if self.client == Client::Gone {
            return;
        }
        let mut outcome = self.channel.receive(DATA_CHUNK_BYTES).map(drop);
        while outcome.is_ok() {
            match self.channel.next_message() {
                Ok(Some(message)) => outcome = self.obey(message),
                Ok(None) => return,
                Err(error) => outcome = Err(error),
            }
        }
        // Gone, or talking nonsense: an exec whose client cannot be understood has none.
        self.lose_client();
    }

    fn obey(&mut self, message: Message) -> Result<(), ChannelError> {
        match message {
            Message::Stdin(bytes) => self.stdin.push(&bytes).map_err(|_| ChannelError::Gone)?,
            Message::StdinEof => self.stdin.end(),
            Message::Resize(size) => {
                if let Some(terminal) = &self.terminal {
                    // A terminal that cannot be resized any more shows nothing either.
                    let _ = terminal.resize(size);
                }
            }
            Message::Signal(number) if group::is_signal(number) => {
                if self.exit.is_none() {
                    group::forward(self.child.pid(), self.terminal.as_ref(), i32::from(number));
                }
            }
            _ => return Err(ChannelError::Gone),
        }
        Ok(())
    }

    fn lose_client(&mut self) {
        self.client = Client::Gone;
        self.stdin.close();
        if !self.detach
            && self.exit.is_none()
            && self.kill_at.is_none()
            && self.abandon_at.is_none()
        {
            self.ask_to_end(libc::SIGHUP);
        }
    }

    fn ask_to_end(&mut self, signal: i32) {
        group::end(self.child.pid(), self.terminal.as_ref(), signal);
        self.kill_at = Instant::now().checked_add(GRACE);
    }

    fn note_exit(&mut self) {
        if self.exit.is_some() {
            return;
        }
        let (code, signal) = match self.child.ended() {
            None => return,
            Some(Ended::Exited(code)) => (Some(code), None),
            Some(Ended::Killed(signal)) => (None, Some(signal)),
        };
        self.set_exit(code, signal);
    }

    fn set_exit(&mut self, code: Option<i32>, signal: Option<i32>) {
        self.exit = Some(Exit { code, signal, timed_out: self.timed_out });
        self.timeout = None;
        self.abandon_at = None;
        self.outputs.iter_mut().for_each(Output::program_ended);
    }

    /// Moves bytes both ways.
    fn pump(&mut self) {
        self.stdin.write();
        let listens = self.client == Client::Listens;
        for output in &mut self.outputs {
            output.pump(&mut self.channel, listens);
        }
        if !listens {
            return;
        }
        // Credit waits for room too: a client that sends but does not read must not fill our memory with it.
        if self.channel.has_room()
            && let Some(credit) = self.stdin.take_credit()
        {
            self.channel.queue(&Message::StdinCredit(credit));
        }
        if !self.exit_is_queued
            && let Some(exit) = self.exit
            && self.outputs.iter().all(Output::is_drained)
        {
            self.channel.queue(&Message::Exit(exit));
            self.exit_is_queued = true;
        }
        if self.channel.flush().is_err() {
            self.lose_client();
        }
    }

    fn watch_clock(&mut self) {
        let now = Instant::now();
        let is_past = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        if is_past(self.timeout) {
            self.timeout = None;
            self.timed_out = true;
            self.ask_to_end(libc::SIGTERM);
        }
        if is_past(self.kill_at) && self.exit.is_none() {
            self.kill_at = None;
            group::end(self.child.pid(), self.terminal.as_ref(), libc::SIGKILL);
            self.abandon_at = now.checked_add(KILLED_PATIENCE);
        }
        if is_past(self.abandon_at) && self.exit.is_none() {
            self.set_exit(None, Some(libc::SIGKILL));
        }
    }

    fn is_over(&self) -> bool {
        match self.client {
            Client::Listens => self.exit_is_queued && self.channel.is_flushed(),
            Client::Gone => {
                self.exit.is_some()
                    || (self.detach && self.timeout.is_none() && self.kill_at.is_none())
            }
        }
    }

    fn wait(&self) {
        let listens = self.client == Client::Listens;
        let mut fds = Vec::with_capacity(5);
        if listens {
            let write = if self.channel.is_flushed() { PollFlags::empty() } else { PollFlags::OUT };
            fds.push(PollFd::from_borrowed_fd(self.channel.socket(), PollFlags::IN | write));
        }
        if self.exit.is_none() {
            fds.push(PollFd::from_borrowed_fd(self.child.event(), PollFlags::IN));
        }
        if let Some(fd) = self.stdin.pending() {
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::OUT));
        }
        // A stream that has no room is not polled: its hang-up would be reported again and again.
        if !listens || self.channel.has_room() {
            let open = self.outputs.iter().filter_map(Output::open);
            fds.extend(open.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        let deadlines =
            [self.timeout, self.kill_at.filter(|_| self.exit.is_none()), self.abandon_at];
        let next = deadlines.into_iter().flatten().min();
        let timeout =
            next.map(|deadline| timespec(deadline.saturating_duration_since(Instant::now())));
        // Interrupted or without memory: the loop looks at everything again.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// Ends the group that was asked to, hands over what lives on, and closes the connection.
    fn wind_up(mut self, leftovers: &Leftovers) {
        self.stdin.close();
        let leader = self.child.pid();
        let is_condemned = self.kill_at.is_some() || self.timed_out;
        // A terminal without a client hangs up on its programs, as everywhere; those of a detached exec keep it.
        let keeps = self.terminal.is_none() || (self.exit.is_none() && !is_condemned);
        leftovers.adopt(self.outputs.into_iter().filter_map(Output::into_source).filter(|_| keeps));
        drop(self.terminal);
        if self.client == Client::Listens {
            self.channel.end_frames();
        }
        if is_condemned {
            kill_rest(leader, self.kill_at);
        }
        if self.client == Client::Listens {
            self.channel.finish();
        }
    }
}

/// Waits out the grace, then kills what is left of the group.
fn kill_rest(leader: i32, kill_at: Option<Instant>) {
    if let Some(deadline) = kill_at.filter(|_| group::exists(leader)) {
        let rest = timespec(deadline.saturating_duration_since(Instant::now()));
        let _ = poll(&mut [], Some(&rest));
    }
    if group::exists(leader) {
        group::end(leader, None, libc::SIGKILL);
    }
}
