//! The life of a machine as one table.
//!
//! ```text
//!            GuestReady              Stop, SIGTERM, GuestDown
//!  Booting ─────────────▶ Running ───────────────────────────▶ Stopping
//!     │ anything that means                │ crash                  │ processor stopped, grace over, Kill
//!     ▼ "it will not start"                ▼                        ▼
//!   Ended(failure)                    Ended(failure)            Ended(success)
//! ```
//!
//! Pure: no clock, no descriptor, nothing to wait for. Only the main thread owns a [`Life`].

use proto::code::Code;
use proto::control::{ControlOp, MachineState};
use std::time::Duration;

/// Longest time between the guest's word that it goes down and the end of its processor. It has synced and unmounted
/// by then.
const DOWN_GRACE: Duration = Duration::from_secs(10);

/// Where a machine is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// The guest has not said hello.
    Booting,
    /// The guest answers.
    Running,
    /// An orderly stop is under way.
    Stopping,
    /// Over; nothing more is done.
    Ended,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client asks.
    Asked(ControlOp),
    /// SIGTERM.
    Terminate,
    /// The parent's end of the launch channel closed.
    ParentGone,
    /// The guest's agent listens.
    GuestReady,
    /// The guest says it cannot go on.
    GuestFailed {
        /// Code word.
        code: Code,
        /// Why.
        message: String,
    },
    /// The guest is about to power off.
    GuestDown,
    /// The agent cannot be asked to power off.
    PoweroffRefused(String),
    /// A processor met the end of the machine: reset, power-off or triple fault.
    MachineShutdown,
    /// A processor cannot go on.
    ProcessorFailed(String),
    /// The guest did not say hello in time.
    BootTimeout,
    /// The grace of an orderly stop is over.
    GraceOver,
}

/// What the main thread knows besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Grace of a stop that did not bring its own.
    pub stop_grace: Duration,
    /// Whether the box ends with its parent.
    pub tied_to_parent: bool,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Answer the client with the status.
    AnswerStatus,
    /// Answer the client that it is being done.
    AnswerStopping,
    /// Answer the client that it is refused.
    Refuse(Code, &'static str),
    /// Tell the parent that the box is usable.
    TellReady,
    /// Tell the parent why it is not going to be.
    TellFailed(Code, String),
    /// Ask the guest's agent to power off and send [`Event::GraceOver`] after this time, or at an earlier deadline
    /// if there is one already.
    AskPoweroff(Duration),
    /// Send [`Event::GraceOver`] after this time, or at an earlier deadline if there is one already.
    Grace(Duration),
    /// End the process.
    End {
        /// Whether all went well.
        success: bool,
        /// Why, for the log.
        why: String,
    },
}

impl Life {
    /// The state that clients are told.
    #[must_use]
    pub fn state(self) -> MachineState {
        match self {
            Self::Booting => MachineState::Booting,
            Self::Running => MachineState::Running,
            Self::Stopping | Self::Ended => MachineState::Stopping,
        }
    }

    /// Decides what an event leads to.
    #[must_use]
    pub fn decide(self, event: Event, terms: Terms) -> (Self, Vec<Action>) {
        match (self, event) {
            (Self::Ended, Event::Asked(_)) => {
                (self, vec![Action::Refuse(Code::BoxStopped, "the box has ended")])
            }
            (Self::Ended, _) => (self, vec![]),
            (_, Event::Asked(op)) => match op {
                ControlOp::Status => (self, vec![Action::AnswerStatus]),
                ControlOp::Stop { grace_ms } => {
                    answered(self.stop(Duration::from_millis(grace_ms)))
                }
                ControlOp::Kill => answered(self.end_on_request("killed on request")),
            },
            (_, Event::Terminate) => self.stop(terms.stop_grace),
            (Self::Booting, event) => booting(event),
            (_, Event::ParentGone) if terms.tied_to_parent => {
                end(true, "the parent that it was tied to is gone")
            }
            (Self::Running, event) => running(event),
            (Self::Stopping, event) => stopping(event),
        }
    }

    fn stop(self, grace: Duration) -> (Self, Vec<Action>) {
        match self {
            // Nobody could be asked to power off.
            Self::Booting => self.end_on_request("stopped while it was starting"),
            Self::Stopping => (self, vec![Action::Grace(grace)]),
            _ => (Self::Stopping, vec![Action::AskPoweroff(grace)]),
        }
    }

    fn end_on_request(self, why: &str) -> (Self, Vec<Action>) {
        let (next, mut actions) = end(true, why);
        if self == Self::Booting {
            actions.insert(0, Action::TellFailed(Code::Interrupted, format!("the box was {why}")));
        }
        (next, actions)
    }
}

/// Puts the client's answer before what is done.
fn answered((next, mut actions): (Life, Vec<Action>)) -> (Life, Vec<Action>) {
    actions.insert(0, Action::AnswerStopping);
    (next, actions)
}

fn end(success: bool, why: impl Into<String>) -> (Life, Vec<Action>) {
    (Life::Ended, vec![Action::End { success, why: why.into() }])
}

fn not_started(code: Code, why: String) -> (Life, Vec<Action>) {
    (Life::Ended, vec![Action::TellFailed(code, why.clone()), Action::End { success: false, why }])
}

fn booting(event: Event) -> (Life, Vec<Action>) {
    match event {
        Event::GuestReady => (Life::Running, vec![Action::TellReady]),
        Event::ParentGone => end(false, "the parent went away before the guest was ready"),
        Event::GuestFailed { code, message } => not_started(code, message),
        Event::GuestDown => {
            not_started(Code::GuestDied, "the guest powered off before it was ready".into())
        }
        Event::MachineShutdown => {
            not_started(Code::GuestDied, "the guest reset its machine before it was ready".into())
        }
        Event::ProcessorFailed(reason) => not_started(Code::KvmUnusable, reason),
        Event::BootTimeout => {
            not_started(Code::BootTimeout, "the guest did not say hello in time".into())
        }
        _ => (Life::Booting, vec![]),
    }
}

fn running(event: Event) -> (Life, Vec<Action>) {
    match event {
        Event::GuestDown => (Life::Stopping, vec![Action::Grace(DOWN_GRACE)]),
        Event::GuestFailed { code, message } => {
            end(false, format!("the guest gave up ({code}): {message}"))
        }
        Event::MachineShutdown => end(false, "the guest's kernel crashed or was reset"),
        Event::ProcessorFailed(reason) => end(false, reason),
        _ => (Life::Running, vec![]),
    }
}

fn stopping(event: Event) -> (Life, Vec<Action>) {
    match event {
        Event::GuestDown => (Life::Stopping, vec![Action::Grace(DOWN_GRACE)]),
        Event::MachineShutdown => end(true, "the guest powered off"),
        Event::GraceOver => end(true, "the grace of the stop was over"),
        Event::PoweroffRefused(reason) => {
            end(true, format!("the guest could not be asked to power off: {reason}"))
        }
        Event::GuestFailed { code, message } => {
            end(false, format!("the guest gave up ({code}): {message}"))
        }
        Event::ProcessorFailed(reason) => end(false, reason),
        _ => (Life::Stopping, vec![]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Life::{Booting, Ended, Running, Stopping};

    const TERMS: Terms = Terms { stop_grace: Duration::from_secs(7), tied_to_parent: false };
    const TIED: Terms = Terms { tied_to_parent: true, ..TERMS };
    const STOP: Event = Event::Asked(ControlOp::Stop { grace_ms: 3000 });
    const KILL: Event = Event::Asked(ControlOp::Kill);
    const STATUS: Event = Event::Asked(ControlOp::Status);

    /// Actions without their texts.
    fn names(actions: &[Action]) -> Vec<String> {
        let name = |action: &Action| match action {
            Action::TellFailed(code, _) => format!("failed:{code}"),
            Action::End { success, .. } => format!("end:{success}"),
            Action::AskPoweroff(grace) => format!("poweroff:{}", grace.as_secs()),
            Action::Grace(grace) => format!("grace:{}", grace.as_secs()),
            Action::Refuse(code, _) => format!("refuse:{code}"),
            Action::AnswerStatus => "status".into(),
            Action::AnswerStopping => "stopping".into(),
            Action::TellReady => "ready".into(),
        };
        actions.iter().map(name).collect()
    }

    #[test]
    fn the_table() {
        let failed = || Event::GuestFailed { code: Code::ImageInvalid, message: "no root".into() };
        let cpu = || Event::ProcessorFailed("emulation failure".into());
        let refused = || Event::PoweroffRefused("reset".into());
        let rows: Vec<(Life, Event, Terms, Life, &[&str])> = vec![
            (Booting, STATUS, TERMS, Booting, &["status"]),
            (Booting, STOP, TERMS, Ended, &["stopping", "failed:interrupted", "end:true"]),
            (Booting, KILL, TERMS, Ended, &["stopping", "failed:interrupted", "end:true"]),
            (Booting, Event::Terminate, TERMS, Ended, &["failed:interrupted", "end:true"]),
            (Booting, Event::ParentGone, TERMS, Ended, &["end:false"]),
            (Booting, Event::GuestReady, TERMS, Running, &["ready"]),
            (Booting, failed(), TERMS, Ended, &["failed:image_invalid", "end:false"]),
            (Booting, Event::GuestDown, TERMS, Ended, &["failed:guest_died", "end:false"]),
            (Booting, Event::MachineShutdown, TERMS, Ended, &["failed:guest_died", "end:false"]),
            (Booting, cpu(), TERMS, Ended, &["failed:kvm_unusable", "end:false"]),
            (Booting, Event::BootTimeout, TERMS, Ended, &["failed:boot_timeout", "end:false"]),
            (Booting, Event::GraceOver, TERMS, Booting, &[]),
            (Running, STATUS, TERMS, Running, &["status"]),
            (Running, STOP, TERMS, Stopping, &["stopping", "poweroff:3"]),
            (Running, KILL, TERMS, Ended, &["stopping", "end:true"]),
            (Running, Event::Terminate, TERMS, Stopping, &["poweroff:7"]),
            (Running, Event::ParentGone, TERMS, Running, &[]),
            (Running, Event::ParentGone, TIED, Ended, &["end:true"]),
            (Running, Event::GuestReady, TERMS, Running, &[]),
            (Running, Event::GuestDown, TERMS, Stopping, &["grace:10"]),
            (Running, failed(), TERMS, Ended, &["end:false"]),
            (Running, Event::MachineShutdown, TERMS, Ended, &["end:false"]),
            (Running, cpu(), TERMS, Ended, &["end:false"]),
            (Running, Event::BootTimeout, TERMS, Running, &[]),
            (Stopping, STATUS, TERMS, Stopping, &["status"]),
            (Stopping, STOP, TERMS, Stopping, &["stopping", "grace:3"]),
            (Stopping, KILL, TERMS, Ended, &["stopping", "end:true"]),
            (Stopping, Event::Terminate, TERMS, Stopping, &["grace:7"]),
            (Stopping, Event::ParentGone, TIED, Ended, &["end:true"]),
            (Stopping, Event::GuestDown, TERMS, Stopping, &["grace:10"]),
            (Stopping, Event::MachineShutdown, TERMS, Ended, &["end:true"]),
            (Stopping, Event::GraceOver, TERMS, Ended, &["end:true"]),
            (Stopping, refused(), TERMS, Ended, &["end:true"]),
            (Stopping, failed(), TERMS, Ended, &["end:false"]),
            (Stopping, cpu(), TERMS, Ended, &["end:false"]),
            (Ended, STATUS, TERMS, Ended, &["refuse:box_stopped"]),
            (Ended, KILL, TERMS, Ended, &["refuse:box_stopped"]),
            (Ended, Event::MachineShutdown, TERMS, Ended, &[]),
            (Ended, Event::GuestReady, TERMS, Ended, &[]),
        ];
        for (state, event, terms, expected, actions) in rows {
            let (next, decided) = state.decide(event.clone(), terms);
            assert_eq!(
                (next, names(&decided)),
                (expected, actions.iter().map(ToString::to_string).collect()),
                "{state:?} {event:?}"
            );
        }
    }

    /// Whatever comes, an ended machine was told to end exactly once, and the parent hears at most once.
    #[test]
    fn every_sequence_ends_once_and_answers_the_parent_at_most_once() {
        let events = [
            STATUS,
            STOP,
            KILL,
            Event::Terminate,
            Event::ParentGone,
            Event::GuestReady,
            Event::GuestDown,
            Event::MachineShutdown,
            Event::BootTimeout,
            Event::GraceOver,
            Event::PoweroffRefused(String::new()),
            Event::ProcessorFailed(String::new()),
        ];
        for first in &events {
            for second in &events {
                for third in &events {
                    let mut life = Booting;
                    let (mut ends, mut replies) = (0, 0);
                    for event in [first, second, third] {
                        let (next, actions) = life.decide(event.clone(), TIED);
                        ends += actions
                            .iter()
                            .filter(|action| matches!(action, Action::End { .. }))
                            .count();
                        replies += actions
                            .iter()
                            .filter(|action| {
                                matches!(action, Action::TellReady | Action::TellFailed(..))
                            })
                            .count();
                        life = next;
                    }
                    assert_eq!(ends, usize::from(life == Ended));
                    assert!(replies <= 1);
                }
            }
        }
    }
}
