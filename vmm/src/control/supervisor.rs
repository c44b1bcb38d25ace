//! The main thread after the machine was built: waits for events, lets [`super::decide`] judge them, acts.
//!
//! It alone changes the machine's state, and it never blocks except here, for all events at once.

use super::decide::{Action, Event, Life, Terms};
use super::lifecycle::{LifecycleConnection, Poweroff};
use super::server::{ClientId, Interest, Server};
use super::signals::Signals;
use crate::launch::Channel;
use crate::machine::Machine;
use crate::machine::notice::Notice;
use crate::machine::run::Outcome;
use proto::agent::AGENT_PORT;
use proto::code::Code;
use proto::control::{ControlReply, VmmStatus};
use proto::launch::{LaunchFailure, LaunchReply, Ready};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Lines of the console that go into an error.
const TAIL_LINES: usize = 20;

/// Characters kept of each. The guest chooses how long its lines are; all of them have to fit into one packet.
const TAIL_LINE_CHARS: usize = 512;

/// Longest time that the end of the process may take once it is decided. A disk of a dead network file system can
/// hold a device's thread for ever.
const EXIT_LIMIT_SECONDS: u32 = 5;

/// What a status tells that does not change.
#[derive(Debug, Clone)]
pub struct Facts {
    /// vCPUs.
    pub cpus: u8,
    /// RAM in MiB.
    pub memory_mib: u32,
    /// Isolation layers in force.
    pub isolation: Vec<String>,
    /// When the process started.
    pub started: Instant,
    /// Microseconds from then until vCPUs ran.
    pub build_micros: u64,
}

/// What the main thread knows.
pub struct Supervisor {
    life: Life,
    terms: Terms,
    facts: Facts,
    machine: Machine,
    /// Until it has served its purpose.
    channel: Option<Channel>,
    server: Server,
    signals: Signals,
    lifecycle: Option<LifecycleConnection>,
    poweroff: Option<Poweroff>,
    boot_deadline: Option<Instant>,
    grace_deadline: Option<Instant>,
    ready_micros: Option<u64>,
    kernel: String,
}

/// What the main thread waits for, and what it then looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Signals,
    Notices,
    Channel,
    Lifecycle,
    Poweroff,
    Listener,
    Client(ClientId),
}

impl Supervisor {
    /// Takes over a running machine.
    #[must_use]
    pub fn new(
        machine: Machine,
        channel: Channel,
        server: Server,
        signals: Signals,
        facts: Facts,
        terms: Terms,
        boot_timeout: Duration,
    ) -> Self {
        Self {
            life: Life::Booting,
            terms,
            machine,
            channel: Some(channel),
            server,
            signals,
            lifecycle: None,
            poweroff: None,
            boot_deadline: facts.started.checked_add(boot_timeout),
            grace_deadline: None,
            ready_micros: None,
            kernel: String::new(),
            facts,
        }
    }

    /// Runs until the machine's life is over, ends the machine, and tells whether all went well.
    #[must_use]
    pub fn run(mut self) -> bool {
        let success = loop {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    log::error!("cannot wait for events: {error}");
                    break false;
                }
            };
            if let Some(success) = self.turn(&ready) {
                break success;
            }
        };
        nix::unistd::alarm::set(EXIT_LIMIT_SECONDS);
        // With the machine goes the lock; the server, and with it the clients who wait for the end, goes last: whoever
        // sees the end of its connection finds the lock free.
        self.machine.stop();
        success
    }

    fn wait(&self) -> io::Result<Vec<(Source, PollFlags)>> {
        let mut sources = vec![Source::Signals, Source::Notices];
        let mut fds = vec![
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(&self.machine.notices, PollFlags::IN),
        ];
        let mut add = |source, fd| {
            sources.push(source);
            fds.push(fd);
        };
        if let Some(channel) = &self.channel {
            add(Source::Channel, PollFd::new(channel, PollFlags::IN));
        }
        if let Some(lifecycle) = &self.lifecycle {
            add(Source::Lifecycle, PollFd::new(lifecycle, PollFlags::IN));
        }
        if let Some(poweroff) = &self.poweroff {
            add(Source::Poweroff, PollFd::new(poweroff, PollFlags::IN));
        }
        if let Some(listener) = self.server.listener() {
            add(Source::Listener, PollFd::from_borrowed_fd(listener, PollFlags::IN));
        }
        for (id, fd, interest) in self.server.clients() {
            let flags = if interest == Interest::Write { PollFlags::OUT } else { PollFlags::IN };
            add(Source::Client(id), PollFd::from_borrowed_fd(fd, flags));
        }
        let timeout = self.next_deadline().map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = sources.into_iter().zip(fds.iter().map(PollFd::revents));
        Ok(ready.filter(|(_, flags)| !flags.is_empty()).collect())
    }

    fn next_deadline(&self) -> Option<Instant> {
        [self.boot_deadline, self.grace_deadline, self.server.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Handles one round of events; returns whether all went well once the end has come.
    fn turn(&mut self, ready: &[(Source, PollFlags)]) -> Option<bool> {
        let mut events = Vec::new();
        for (source, flags) in ready {
            self.look_at(*source, *flags, &mut events);
        }
        let now = Instant::now();
        self.server.expire(now);
        if take_if_past(&mut self.boot_deadline, now) {
            events.push((Event::BootTimeout, None));
        }
        if take_if_past(&mut self.grace_deadline, now) {
            events.push((Event::GraceOver, None));
        }
        events.into_iter().find_map(|(event, client)| self.handle(event, client))
    }

    fn look_at(
        &mut self,
        source: Source,
        flags: PollFlags,
        events: &mut Vec<(Event, Option<ClientId>)>,
    ) {
        match source {
            Source::Signals => match self.signals.terminated() {
                Ok(true) => events.push((Event::Terminate, None)),
                Ok(false) => {}
                Err(error) => log::warn!("cannot read signals: {error}"),
            },
            Source::Notices => {
                for notice in self.machine.notices.take() {
                    match notice {
                        Notice::ProcessorEnded { outcome, id } => {
                            events.extend(judge(id, outcome).map(|event| (event, None)));
                        }
                        Notice::GuestCalls(stream) => self.adopt(stream),
                    }
                }
            }
            Source::Channel => {
                if flags.intersects(PollFlags::HUP | PollFlags::ERR) {
                    self.channel = None;
                    events.push((Event::ParentGone, None));
                } else if let Some(channel) = &self.channel {
                    channel.discard();
                }
            }
            Source::Lifecycle => match self.lifecycle.as_mut().map(LifecycleConnection::read) {
                Some(Ok(news)) => events.extend(news.into_iter().map(|event| (event, None))),
                Some(Err(over)) => {
                    // No more than that: a guest can connect and hang up as often as it likes.
                    log::debug!("lifecycle connection: {}", crate::launch::chain(&over));
                    self.lifecycle = None;
                    self.machine.lifecycle_free.store(true, Ordering::SeqCst);
                }
                None => {}
            },
            Source::Poweroff => match self.poweroff.as_mut().map(Poweroff::read) {
                Some(Ok(event)) => events.extend(event.map(|event| (event, None))),
                Some(Err(over)) => {
                    log::debug!("power-off request: {}", crate::launch::chain(&over));
                    self.poweroff = None;
                }
                None => {}
            },
            Source::Listener => self.server.accept(Instant::now()),
            Source::Client(id) => {
                events.extend(self.server.serve(id).map(|op| (Event::Asked(op), Some(id))))
            }
        }
    }

    fn adopt(&mut self, stream: UnixStream) {
        match LifecycleConnection::new(stream) {
            Ok(connection) => self.lifecycle = Some(connection),
            Err(error) => {
                log::warn!("cannot serve the guest's lifecycle connection: {error}");
                self.machine.lifecycle_free.store(true, Ordering::SeqCst);
            }
        }
    }

    fn handle(&mut self, event: Event, client: Option<ClientId>) -> Option<bool> {
        log::debug!("{:?}: {event:?}", self.life);
        let (next, actions) = self.life.decide(event, self.terms);
        self.life = next;
        let mut ended = None;
        for action in actions {
            match action {
                Action::AnswerStatus => self.answer(client, &ControlReply::Status(self.status())),
                Action::AnswerStopping => self.answer(client, &ControlReply::Stopping),
                Action::Refuse(code, message) => {
                    self.answer(client, &ControlReply::Refused { code, message: message.into() });
                }
                Action::TellReady => self.tell_ready(),
                Action::TellFailed(code, message) => self.tell_failed(code, message),
                Action::AskPoweroff(grace) => {
                    self.arm_grace(grace);
                    if let Err(error) = self.ask_poweroff(grace) {
                        let refused = Event::PoweroffRefused(error.to_string());
                        ended = ended.or(self.handle(refused, None));
                    }
                }
                Action::Grace(grace) => self.arm_grace(grace),
                Action::End { success, why } => {
                    if success {
                        log::info!("{why}");
                    } else {
                        log::error!("{why}; {}", self.machine.last_exits());
                    }
                    ended = Some(success);
                }
            }
        }
        ended
    }

    fn answer(&mut self, client: Option<ClientId>, reply: &ControlReply) {
        if let Some(client) = client {
            self.server.answer(client, reply);
        }
    }

    fn status(&self) -> VmmStatus {
        let connections = self.machine.vsock.as_ref().map_or(0, |vsock| vsock.connection_count());
        VmmStatus {
            pid: std::process::id(),
            state: self.life.state(),
            uptime_ms: u64::try_from(self.facts.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            cpus: self.facts.cpus,
            memory_mib: self.facts.memory_mib,
            ready_micros: self.ready_micros,
            isolation: self.facts.isolation.clone(),
            connections: u32::try_from(connections).unwrap_or(u32::MAX),
            kernel: self.kernel.clone(),
        }
    }

    fn tell_ready(&mut self) {
        self.boot_deadline = None;
        let ready_micros = micros_since(self.facts.started);
        self.ready_micros = Some(ready_micros);
        let hello = self.lifecycle.as_ref().and_then(|connection| connection.hello.as_ref());
        let guest_micros = hello.map_or(0, |hello| hello.ready_uptime_nanos / 1000);
        if let Some(hello) = hello {
            self.kernel.clone_from(&hello.kernel);
        }
        let ready = Ready {
            pid: std::process::id(),
            build_micros: self.facts.build_micros,
            ready_micros,
            isolation: self.facts.isolation.clone(),
            kernel: self.kernel.clone(),
        };
        log::info!(
            "guest ready after {ready_micros} us: {} us until it ran, {guest_micros} us by its own clock",
            self.facts.build_micros
        );
        let Some(channel) = &self.channel else { return };
        if let Err(error) = channel.reply(&LaunchReply::Ready(ready)) {
            log::warn!("the parent did not take the reply: {error}");
        }
        if !self.terms.tied_to_parent {
            self.channel = None;
        }
    }

    fn tell_failed(&mut self, code: Code, message: String) {
        let mut console_tail = self.machine.console_log.tail(TAIL_LINES);
        for line in &mut console_tail {
            if let Some((end, _)) = line.char_indices().nth(TAIL_LINE_CHARS) {
                line.truncate(end);
            }
        }
        let (code, message) = match console_tail.iter().find(|line| line.contains("Kernel panic")) {
            Some(line) if code != Code::Interrupted => {
                (Code::GuestPanic, format!("{message}: {line}"))
            }
            _ => (code, message),
        };
        let last_exit = Some(self.machine.last_exits());
        if let Some(channel) = self.channel.take() {
            channel.fail(LaunchFailure { code, message, console_tail, last_exit });
        }
    }

    fn arm_grace(&mut self, grace: Duration) {
        let deadline = Instant::now().checked_add(grace);
        self.grace_deadline = [self.grace_deadline, deadline].into_iter().flatten().min();
    }

    fn ask_poweroff(&mut self, grace: Duration) -> io::Result<()> {
        let vsock = self.machine.vsock.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        // Processes get most of the time; killing them, syncing and unmounting needs the rest.
        let for_processes = grace / 4 * 3;
        let grace_ms = u64::try_from(for_processes.as_millis()).unwrap_or(u64::MAX);
        self.poweroff = Some(Poweroff::send(vsock.connect(AGENT_PORT)?, grace_ms)?);
        Ok(())
    }
}

fn judge(id: u8, outcome: Outcome) -> Option<Event> {
    match outcome {
        Outcome::Stopped => None,
        Outcome::Shutdown => Some(Event::MachineShutdown),
        Outcome::Failed(reason) => Some(Event::ProcessorFailed(format!("vCPU {id}: {reason}"))),
    }
}

fn take_if_past(deadline: &mut Option<Instant>, now: Instant) -> bool {
    deadline.take_if(|deadline| *deadline <= now).is_some()
}

fn micros_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX)
}
