//! One connection as the guest sees it: handshake, credit, half-close, reset. No I/O and no clock.
//!
//! ```text
//!             host asks                       guest asks
//!    Requested ──RESPONSE──▶ Established ◀── (owes RESPONSE)
//!        │ RST, timeout           │ both directions over, or the guest broke a rule
//!        ▼                        ▼
//!      Closed ◀── owed packets ── Closing
//! ```
//!
//! What has to be said to the guest is kept as flags and not as packets, so a connection owes a bounded amount
//! however long the guest withholds receive buffers.
//!
//! The end is `SHUTDOWN(both)` and `RST` in one go. Linux keeps what its program has not read yet, answers nothing
//! to the reset, and so neither side waits for the other: there is no lingering state and no timer for it.
//!
//! # Trust
//! The guest chooses every field of every packet. All counters wrap as the specification says; each comparison is of
//! differences.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use super::packet::{Header, Op, SHUTDOWN_RECEIVE, SHUTDOWN_SEND};
use std::num::Wrapping;

const SHUTDOWN_BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;

/// The part of the window that is freed before the guest is told. Telling more often costs packets; telling later would
/// show it less than the 64 KiB that Linux sends at once.
const CREDIT_UPDATE_FRACTION: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// We asked, or are about to.
    Requested { sent: bool },
    /// Both sides agreed.
    Established,
    /// Over; the guest is to be told.
    Closing { abrupt: bool },
    /// Over, and the guest knows.
    Closed,
}

/// What a packet from the guest means for the host's side of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reaction {
    /// Nothing beyond new credit, perhaps.
    Nothing,
    /// The handshake is complete.
    Opened,
    /// The payload is within the window and wanted.
    Data,
    /// Directions were closed: see [`Connection::guest_sends_no_more`], [`Connection::guest_receives_no_more`].
    Shutdown,
    /// The guest ended or refused the connection.
    Reset,
    /// The guest broke the rule that is named; the connection is reset.
    Violation(&'static str),
}

/// A packet without payload that the guest is owed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Control {
    pub(super) op: Op,
    pub(super) flags: u32,
}

impl Control {
    const fn plain(op: Op) -> Self {
        Self { op, flags: 0 }
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    phase: Phase,
    /// Our receive buffer, `buf_alloc` in what we send.
    window: u32,
    /// Payload that came from the guest.
    received: Wrapping<u32>,
    /// The part of it that left our buffer.
    forwarded: Wrapping<u32>,
    /// `forwarded`, as the guest last heard it.
    told: Wrapping<u32>,
    /// Payload that went to the guest.
    sent: Wrapping<u32>,
    /// The guest's receive buffer.
    peer_window: u32,
    /// The part of `sent` that left the guest's buffer.
    peer_forwarded: Wrapping<u32>,
    /// Directions that the guest has closed, in its own words.
    guest_closed: u32,
    /// Directions that the host has closed, and what the guest heard of it.
    host_closed: u32,
    host_closed_told: u32,
    owes_response: bool,
    owes_credit_update: bool,
    owes_credit_request: bool,
    /// The guest was asked for credit and has not given any since.
    credit_requested: bool,
}

impl Connection {
    fn new(phase: Phase, window: u32) -> Self {
        Self {
            phase,
            window,
            received: Wrapping(0),
            forwarded: Wrapping(0),
            told: Wrapping(0),
            sent: Wrapping(0),
            peer_window: 0,
            peer_forwarded: Wrapping(0),
            guest_closed: 0,
            host_closed: 0,
            host_closed_told: 0,
            owes_response: false,
            owes_credit_update: false,
            owes_credit_request: false,
            credit_requested: false,
        }
    }

    /// A connection that the host asks for.
    pub(super) fn requested(window: u32) -> Self {
        Self::new(Phase::Requested { sent: false }, window)
    }

    /// A connection that the guest asked for with `request`, and that is granted.
    pub(super) fn granted(window: u32, request: &Header) -> Self {
        let mut connection = Self::new(Phase::Established, window);
        connection.owes_response = true;
        connection.learn_credit(request);
        connection
    }

    /// Takes a packet of the guest. Payload is counted here and must be accounted for by
    /// [`forwarded`](Self::forwarded) once it left the buffer, unless the reaction is not [`Reaction::Data`].
    pub(super) fn packet(&mut self, op: Op, header: &Header) -> Reaction {
        self.learn_credit(header);
        match self.phase {
            Phase::Requested { sent } => match op {
                Op::Response if sent => {
                    self.phase = Phase::Established;
                    Reaction::Opened
                }
                Op::Reset => self.end_by_guest(),
                _ => self.violation("packet before the handshake"),
            },
            Phase::Established => match op {
                Op::Data => self.data(header.len),
                Op::Shutdown => {
                    self.guest_closed |= header.flags & SHUTDOWN_BOTH;
                    self.settle();
                    Reaction::Shutdown
                }
                Op::Reset => self.end_by_guest(),
                Op::CreditUpdate => Reaction::Nothing,
                Op::CreditRequest => {
                    self.owes_credit_update = true;
                    Reaction::Nothing
                }
                Op::Request | Op::Response => self.violation("handshake on an open connection"),
            },
            // Under way when we closed; the guest will be told, or already was.
            Phase::Closing { .. } | Phase::Closed => match op {
                Op::Reset => self.end_by_guest(),
                _ => Reaction::Nothing,
            },
        }
    }

    fn data(&mut self, len: u32) -> Reaction {
        if self.guest_sends_no_more() {
            return self.violation("data after shutdown");
        }
        let held = self.received - self.forwarded;
        if len > self.window.saturating_sub(held.0) {
            return self.violation("more data than credit");
        }
        self.received += len;
        if self.host_closed & SHUTDOWN_RECEIVE != 0 {
            self.forwarded += len;
            return Reaction::Nothing;
        }
        Reaction::Data
    }

    fn learn_credit(&mut self, header: &Header) {
        self.peer_window = header.buf_alloc;
        self.peer_forwarded = Wrapping(header.fwd_cnt);
        if self.peer_free() > 0 {
            self.credit_requested = false;
            self.owes_credit_request = false;
        }
    }

    /// A guest that acknowledges what was never sent only gets less: the difference then is huge.
    fn peer_free(&self) -> u32 {
        self.peer_window.saturating_sub((self.sent - self.peer_forwarded).0)
    }

    fn end_by_guest(&mut self) -> Reaction {
        self.phase = Phase::Closed;
        Reaction::Reset
    }

    fn violation(&mut self, rule: &'static str) -> Reaction {
        self.abort();
        Reaction::Violation(rule)
    }

    /// Ends the connection without regard for what is under way.
    pub(super) fn abort(&mut self) {
        self.phase = match self.phase {
            Phase::Requested { sent: false } | Phase::Closed => Phase::Closed,
            _ => Phase::Closing { abrupt: true },
        };
    }

    /// Both directions over, by whichever side: then so is the connection.
    fn settle(&mut self) {
        let to_guest = self.host_closed & SHUTDOWN_SEND != 0 || self.guest_receives_no_more();
        let to_host = self.host_closed & SHUTDOWN_RECEIVE != 0 || self.guest_sends_no_more();
        if self.phase == Phase::Established && to_guest && to_host {
            self.phase = Phase::Closing { abrupt: false };
        }
    }

    /// The host's program has nothing more to say, and all it said was sent.
    pub(super) fn host_sends_no_more(&mut self) {
        self.host_closed |= SHUTDOWN_SEND;
        self.settle();
    }

    /// The host's program does not listen any more. Counts what the buffer still held as forwarded.
    pub(super) fn host_receives_no_more(&mut self) {
        self.host_closed |= SHUTDOWN_RECEIVE;
        self.forwarded = self.received;
        self.settle();
    }

    /// `count` bytes of the guest's payload left the buffer.
    pub(super) fn forwarded(&mut self, count: u32) {
        self.forwarded += count;
        let threshold = self.window.checked_div(CREDIT_UPDATE_FRACTION).unwrap_or_default().max(1);
        if (self.forwarded - self.told).0 >= threshold && !self.guest_sends_no_more() {
            self.owes_credit_update = true;
        }
    }

    /// How much payload may be sent to the guest now.
    pub(super) fn credit(&self) -> u32 {
        if self.may_send() { self.peer_free() } else { 0 }
    }

    /// Whether payload may be sent, credit aside.
    pub(super) fn may_send(&self) -> bool {
        self.phase == Phase::Established
            && !self.owes_response
            && !self.guest_receives_no_more()
            && self.host_closed & SHUTDOWN_SEND == 0
    }

    /// There is payload but no credit: the guest is asked for it, once.
    pub(super) fn starved(&mut self) {
        if self.may_send() && self.peer_free() == 0 && !self.credit_requested {
            self.credit_requested = true;
            self.owes_credit_request = true;
        }
    }

    /// `count` bytes of payload went to the guest; not more than [`credit`](Self::credit).
    pub(super) fn sent(&mut self, count: u32) {
        self.sent += count;
    }

    /// Whether [`next_control`](Self::next_control) has something.
    pub(super) fn owes_control(&self) -> bool {
        match self.phase {
            Phase::Requested { sent } => !sent,
            Phase::Established => {
                self.owes_response
                    || self.host_closed != self.host_closed_told
                    || self.owes_credit_update
                    || self.owes_credit_request
            }
            Phase::Closing { .. } => true,
            Phase::Closed => false,
        }
    }

    /// Whether it has something that payload must not overtake.
    pub(super) fn owes_urgent_control(&self) -> bool {
        match self.phase {
            Phase::Established => self.owes_response || self.host_closed != self.host_closed_told,
            _ => self.owes_control(),
        }
    }

    /// The next packet without payload that the guest is owed.
    pub(super) fn next_control(&mut self) -> Option<Control> {
        match self.phase {
            Phase::Requested { sent: true } | Phase::Closed => None,
            Phase::Requested { sent: false } => {
                self.phase = Phase::Requested { sent: true };
                Some(Control::plain(Op::Request))
            }
            Phase::Closing { abrupt: true } => self.last_control(),
            // What the host said before it closed is behind the response, so that goes first.
            Phase::Established | Phase::Closing { abrupt: false } if self.owes_response => {
                self.owes_response = false;
                Some(Control::plain(Op::Response))
            }
            Phase::Closing { abrupt: false } => {
                if self.guest_closed != SHUTDOWN_BOTH && self.host_closed_told != SHUTDOWN_BOTH {
                    return Some(self.tell_shutdown(SHUTDOWN_BOTH));
                }
                self.last_control()
            }
            Phase::Established => {
                if self.host_closed != self.host_closed_told {
                    return Some(self.tell_shutdown(self.host_closed));
                }
                if std::mem::take(&mut self.owes_credit_update) {
                    return Some(Control::plain(Op::CreditUpdate));
                }
                std::mem::take(&mut self.owes_credit_request)
                    .then(|| Control::plain(Op::CreditRequest))
            }
        }
    }

    fn tell_shutdown(&mut self, flags: u32) -> Control {
        self.host_closed_told = flags;
        Control { op: Op::Shutdown, flags }
    }

    fn last_control(&mut self) -> Option<Control> {
        self.phase = Phase::Closed;
        Some(Control::plain(Op::Reset))
    }

    /// The credit fields of a packet that is about to be sent. Every packet tells them, so an update that was owed
    /// is not any more.
    pub(super) fn tell_credit(&mut self) -> (u32, u32) {
        self.told = self.forwarded;
        self.owes_credit_update = false;
        (self.window, self.forwarded.0)
    }

    /// Whether the guest will not send any more.
    pub(super) fn guest_sends_no_more(&self) -> bool {
        self.guest_closed & SHUTDOWN_SEND != 0
    }

    /// Whether the guest will not receive any more.
    pub(super) fn guest_receives_no_more(&self) -> bool {
        self.guest_closed & SHUTDOWN_RECEIVE != 0
    }

    /// Whether the handshake is under way.
    pub(super) fn is_requested(&self) -> bool {
        matches!(self.phase, Phase::Requested { .. })
    }

    /// Whether the guest has not heard of the connection yet.
    pub(super) fn is_unknown_to_guest(&self) -> bool {
        self.phase == Phase::Requested { sent: false }
    }

    /// Whether nothing is left to be said or heard.
    pub(super) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }
}

#[cfg(test)]
mod tests;
