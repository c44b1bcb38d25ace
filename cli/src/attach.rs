//! Joins this process's terminal, streams and signals to a command in a guest.

use crate::context::variable;
use crate::error::{CliError, Result};
use crate::signals::Signals;
use crate::terminal::{self, Raw};
use boxes::exec::{Event, Events, Outcome, Streams, exec_on};
use proto::agent::{Exec, Exit, TtySize};
use rustix::process::Signal;
use serde_bytes::ByteBuf;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;

/// Exit code of a command whose time ran out, as of `timeout(1)`.
const EXIT_TIMEOUT: u8 = 124;

/// Signals that ask a command to end, after which the user's patience is over.
const PATIENCE: u32 = 3;

/// Size of a terminal that does not tell its own.
const DEFAULT_SIZE: TtySize = TtySize { rows: 24, cols: 80 };

/// What the user asked for, as with `docker exec`.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Interaction {
    /// Send standard input even if it is a terminal
    #[arg(short, long)]
    pub interactive: bool,
    /// Give the command a terminal
    ///
    /// Without -i, -t and --no-tty this is so if standard input and output are terminals.
    #[arg(short, long, overrides_with = "no_tty")]
    pub tty: bool,
    /// Give the command pipes even if standard input and output are terminals
    #[arg(long, overrides_with = "tty")]
    pub no_tty: bool,
}

impl Interaction {
    /// Decides whether there is a terminal and whether standard input is sent. A job in the background has neither
    /// unless it asks for them: it would be stopped.
    fn decide(
        self,
        stdin_is_terminal: bool,
        stdout_is_terminal: bool,
        in_foreground: bool,
    ) -> Result<(bool, bool)> {
        if self.tty && !stdin_is_terminal {
            return Err(CliError::Usage(
                "standard input is not a terminal: leave out -t, or give the command a terminal"
                    .into(),
            ));
        }
        let told = self.interactive || self.tty || self.no_tty;
        let automatic = !told && in_foreground && stdin_is_terminal && stdout_is_terminal;
        let tty = self.tty || automatic;
        Ok((tty, automatic || self.interactive || !stdin_is_terminal))
    }
}

/// Runs a command through a connection to the machine's agent. Gives its exit code.
pub fn run(
    connection: impl Into<OwnedFd>,
    exec: Exec,
    interaction: Interaction,
) -> Result<ExitCode> {
    let connection = connection.into();
    attach(interaction, exec, None, |exec, streams, events| {
        exec_on(connection, "machine", exec, streams, Some(events))
    })
}

/// Runs a command through `run`, which is given the completed request. `ending` are signals that were caught while the
/// guest was started: one that has arrived meanwhile ends this.
pub fn attach(
    interaction: Interaction,
    mut exec: Exec,
    ending: Option<&mut Signals>,
    run: impl FnOnce(&Exec, Streams<'_>, &mut dyn Events) -> boxes::Result<Outcome>,
) -> Result<ExitCode> {
    let (tty, stdin) = interaction.decide(
        terminal::stdin_is_terminal(),
        terminal::stdout_is_terminal(),
        terminal::in_foreground(),
    )?;
    exec.stdin = stdin && !exec.detach;
    if tty && !exec.detach {
        exec.tty = Some(terminal::size().unwrap_or(DEFAULT_SIZE));
        pass_term(&mut exec);
    }
    let signals = Signals::forwarded()?;
    if let Some(signal) = ending.and_then(|ending| ending.take().first().copied()) {
        return Err(CliError::Signal(signal));
    }
    let raw = if exec.tty.is_some() { Some(Raw::begin()?) } else { None };
    let mut events = Attached { signals, raw, tty: exec.tty.is_some(), asked: 0, last: 0 };
    let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let streams = Streams { stdin: stdin.as_fd(), stdout: stdout.as_fd(), stderr: stderr.as_fd() };
    let outcome = run(&exec, streams, &mut events);
    // The terminal is the user's again before anything is said.
    let last = events.last;
    drop(events);
    Ok(exit_code(outcome?, last))
}

/// The guest's programs draw for the terminal that the user has.
fn pass_term(exec: &mut Exec) {
    let given = exec.env.iter().any(|(name, _)| **name == *b"TERM");
    if let Some(term) = variable("TERM").filter(|_| !given) {
        exec.env.push((ByteBuf::from(b"TERM".to_vec()), ByteBuf::from(term.into_vec())));
    }
}

fn exit_code(outcome: Outcome, last_signal: u8) -> ExitCode {
    let of_signal = |number: i32| u8::try_from(128 + (number & 0x7f)).expect("at most 255");
    ExitCode::from(match outcome {
        Outcome::Exited(Exit { timed_out: true, .. }) => EXIT_TIMEOUT,
        Outcome::Exited(Exit { signal: Some(number), .. }) => of_signal(number),
        // Exit codes have eight bits; a guest that says otherwise is cut to them, as a kernel would.
        Outcome::Exited(Exit { code, .. }) => {
            u8::try_from(code.unwrap_or_default() & 0xff).expect("eight bits")
        }
        Outcome::Detached { .. } => 0,
        Outcome::OutputClosed => of_signal(Signal::PIPE.as_raw()),
        Outcome::GaveUp => of_signal(last_signal.into()),
    })
}

/// Turns signals into events for the guest.
struct Attached {
    signals: Signals,
    raw: Option<Raw>,
    tty: bool,
    /// How often the command was asked to end.
    asked: u32,
    last: u8,
}

impl Events for Attached {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.signals.descriptor()
    }

    fn take(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for number in self.signals.take() {
            match Signal::from_named_raw(number.into()) {
                Some(Signal::WINCH) => events.extend(self.resized()),
                Some(Signal::CONT) => {
                    if let Some(raw) = &self.raw {
                        raw.renew();
                    }
                    events.extend(self.resized());
                }
                signal => {
                    self.last = number;
                    if matches!(signal, Some(Signal::INT | Signal::TERM)) {
                        self.asked += 1;
                    }
                    events.push(if self.asked >= PATIENCE {
                        Event::GiveUp
                    } else {
                        Event::Signal(number)
                    });
                }
            }
        }
        events
    }
}

impl Attached {
    fn resized(&self) -> Option<Event> {
        terminal::size().filter(|_| self.tty).map(Event::Resize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_are_used_where_there_are_any() {
        let none = Interaction::default();
        let (i, t) = (Interaction { interactive: true, ..none }, Interaction { tty: true, ..none });
        let it = Interaction { interactive: true, tty: true, ..none };
        let no = Interaction { no_tty: true, ..none };
        // (terminal, standard input) for: both terminals; only input; only output; none.
        let decide = |interaction: Interaction| {
            [(true, true), (true, false), (false, true), (false, false)]
                .map(|(stdin, stdout)| interaction.decide(stdin, stdout, true).ok())
        };
        let piped = Some((false, true));
        assert_eq!(decide(none), [Some((true, true)), Some((false, false)), piped, piped]);
        assert_eq!(decide(i), [piped, piped, piped, piped]);
        assert_eq!(decide(it), [Some((true, true)), Some((true, true)), None, None]);
        assert_eq!(decide(t), [Some((true, false)), Some((true, false)), None, None]);
        assert_eq!(decide(no), [Some((false, false)), Some((false, false)), piped, piped]);
    }

    #[test]
    fn a_job_in_the_background_is_not_stopped_for_a_terminal_it_did_not_ask_for() {
        let none = Interaction::default();
        assert_eq!(none.decide(true, true, false).unwrap(), (false, false));
        let asked = Interaction { tty: true, ..none };
        assert_eq!(asked.decide(true, true, false).unwrap(), (true, false));
    }

    #[test]
    fn exit_codes_are_the_shells() {
        let exited = |code, signal, timed_out| {
            exit_code(Outcome::Exited(Exit { code, signal, timed_out }), 0)
        };
        assert_eq!(exited(Some(7), None, false), ExitCode::from(7));
        assert_eq!(exited(None, Some(9), false), ExitCode::from(137));
        assert_eq!(exited(None, Some(15), true), ExitCode::from(124));
        assert_eq!(exited(Some(-1), None, false), ExitCode::from(255));
        assert_eq!(exited(None, Some(i32::MAX), false), ExitCode::from(255));
        assert_eq!(exit_code(Outcome::OutputClosed, 0), ExitCode::from(141));
        assert_eq!(exit_code(Outcome::GaveUp, 2), ExitCode::from(130));
        assert_eq!(exit_code(Outcome::Detached { pid: 7 }, 0), ExitCode::SUCCESS);
    }
}
