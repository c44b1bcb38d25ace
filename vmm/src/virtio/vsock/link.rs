//! A connection joined to a Unix socket: payload in both directions, and the ends of both translated to each other.
//!
//! | the host's program | the guest |
//! |---|---|
//! | closes its sending side (we read end of file) | `SHUTDOWN(send)` after all that was written before |
//! | closes its receiving side (we get `EPIPE`) | `SHUTDOWN(receive)` |
//! | is gone (hang-up) | `SHUTDOWN(receive)` at once, then what it had written, then the end of the connection |
//! | sees end of file after all that was sent before | `SHUTDOWN(send)` |
//! | gets `EPIPE` | `SHUTDOWN(receive)` |
//!
//! Once the guest's connection is over the link may live on alone, until a slow program has taken what is left.

use super::connection::{Connection, Control};
use super::outbox::Outbox;
use super::packet::{Op, RxSlot};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use vm_memory::{ReadVolatile, VolatileMemoryError, VolatileSlice, WriteVolatile};

/// Ports of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ports {
    pub(super) host: u32,
    pub(super) guest: u32,
}

/// What to put into a packet's header; payload is in its slot already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outgoing {
    pub(super) op: Op,
    pub(super) flags: u32,
    pub(super) len: u32,
}

impl From<Control> for Outgoing {
    fn from(control: Control) -> Self {
        Self { op: control.op, flags: control.flags, len: 0 }
    }
}

/// Writing failed. Whether that is `EPIPE` or `ECONNRESET`, nobody will read what the guest sends.
struct ProgramIsDeaf;

/// A connection and its socket.
pub(super) struct Link {
    pub(super) ports: Ports,
    pub(super) connection: Connection,
    pub(super) stream: UnixStream,
    /// Whether it stands in the muxer's line of those that have something for the guest.
    pub(super) in_line: bool,
    outbox: Outbox,
    window: usize,
    /// Reading may give something. Edge-triggered: true until it gave nothing.
    readable: bool,
    /// Writing may take something.
    writable: bool,
    /// The program has closed its end, or it failed.
    peer_gone: bool,
    read_closed: bool,
    write_closed: bool,
}

impl Link {
    /// Joins a connection and a non-blocking socket.
    pub(super) fn new(
        ports: Ports,
        connection: Connection,
        stream: UnixStream,
        window: u32,
    ) -> Self {
        Self {
            ports,
            connection,
            stream,
            in_line: false,
            outbox: Outbox::default(),
            window: usize::try_from(window).unwrap_or(usize::MAX),
            // What happened before the socket was watched makes no event.
            readable: true,
            writable: true,
            peer_gone: false,
            read_closed: false,
            write_closed: false,
        }
    }

    /// The socket's state changed.
    pub(super) fn socket_changed(&mut self, readable: bool, writable: bool, gone: bool) {
        self.readable |= readable;
        self.writable |= writable;
        self.peer_gone |= gone;
    }

    /// Does what can be done without the guest's buffers: passes on what the guest sent and closed.
    pub(super) fn advance(&mut self) {
        if self.connection.is_requested() {
            return;
        }
        if self.peer_gone {
            self.program_receives_no_more();
            return;
        }
        if self.writable && !self.outbox.is_empty() {
            match self.outbox.flush(&self.stream) {
                Ok((count, full)) => {
                    self.writable = !full;
                    self.connection.forwarded(u32::try_from(count).unwrap_or(u32::MAX));
                }
                Err(_) => self.program_receives_no_more(),
            }
        }
        self.pass_on_shutdown();
    }

    fn program_receives_no_more(&mut self) {
        self.outbox.clear();
        self.writable = false;
        self.connection.host_receives_no_more();
    }

    fn pass_on_shutdown(&mut self) {
        if self.connection.guest_sends_no_more() && self.outbox.is_empty() && !self.write_closed {
            self.write_closed = true;
            self.shutdown(Shutdown::Write);
        }
        if self.connection.guest_receives_no_more() && !self.read_closed {
            self.read_closed = true;
            self.readable = false;
            self.shutdown(Shutdown::Read);
            self.discard_unread();
        }
    }

    fn shutdown(&self, how: Shutdown) {
        // Fails with ENOTCONN when the peer is gone, which its own event tells.
        if let Err(error) = self.stream.shutdown(how) {
            log::debug!("vsock: shut down a socket ({how:?}): {error}");
        }
    }

    /// Takes what the program wrote to a guest that does not read any more. Closing the socket with bytes unread
    /// would look like a reset to the program, where this is an orderly end. Nothing can be added after the shutdown,
    /// so this ends.
    fn discard_unread(&self) {
        let mut scratch = [0; 4096];
        while matches!(io::Read::read(&mut &self.stream, &mut scratch), Ok(1..)) {}
    }

    /// Passes payload of the guest on, keeping what the socket does not take.
    pub(super) fn deliver(&mut self, payload: &[VolatileSlice<'_>]) {
        let mut written: usize = 0;
        for slice in payload {
            let taken = match self.write(slice) {
                Ok(taken) => taken,
                Err(ProgramIsDeaf) => return self.program_receives_no_more(),
            };
            written = written.saturating_add(taken);
            match slice.offset(taken) {
                Ok(rest) if !rest.is_empty() => self.outbox.push(&rest, self.window),
                _ => {}
            }
        }
        self.connection.forwarded(u32::try_from(written).unwrap_or(u32::MAX));
    }

    /// Writes as much of a piece of guest memory as the socket takes, unless others wait before it.
    fn write(&mut self, slice: &VolatileSlice<'_>) -> Result<usize, ProgramIsDeaf> {
        let mut written: usize = 0;
        while self.writable
            && self.outbox.is_empty()
            && let Ok(rest) = slice.offset(written)
            && !rest.is_empty()
        {
            match (&self.stream).write_volatile(&rest) {
                Ok(count) => written = written.saturating_add(count),
                Err(error) if is(&error, io::ErrorKind::Interrupted) => {}
                Err(error) if is(&error, io::ErrorKind::WouldBlock) => self.writable = false,
                Err(_) => return Err(ProgramIsDeaf),
            }
        }
        Ok(written)
    }

    /// Whether there is, or may be, a packet for the guest.
    pub(super) fn has_packet(&mut self) -> bool {
        if self.readable && self.connection.may_send() {
            if self.connection.credit() > 0 {
                return true;
            }
            self.look_ahead();
        }
        self.connection.owes_control()
    }

    /// Without credit nothing can be read, but the end can be seen, and whether credit is worth asking for.
    fn look_ahead(&mut self) {
        match rustix::net::recv(&self.stream, &mut [0; 1], RecvFlags::PEEK) {
            Ok((1.., _)) | Err(Errno::INTR) => self.connection.starved(),
            Err(Errno::WOULDBLOCK) => self.readable = false,
            Ok(_) | Err(_) => self.program_sends_no_more(),
        }
    }

    fn program_sends_no_more(&mut self) {
        self.readable = false;
        self.read_closed = true;
        self.connection.host_sends_no_more();
    }

    /// The next packet for the guest, with its payload put into `slot`.
    pub(super) fn next_packet(&mut self, slot: &RxSlot<'_>) -> Option<Outgoing> {
        // Data tells credit as well, so an update need not go first; everything else must.
        if !self.connection.owes_urgent_control() && self.readable && self.connection.may_send() {
            let len = self.read(slot);
            if len > 0 {
                self.connection.sent(len);
                return Some(Outgoing { op: Op::Data, flags: 0, len });
            }
        }
        self.connection.next_control().map(Outgoing::from)
    }

    /// Reads from the socket into guest memory, as far as the guest's credit and the slot go.
    fn read(&mut self, slot: &RxSlot<'_>) -> u32 {
        let mut credit = usize::try_from(self.connection.credit()).unwrap_or(usize::MAX);
        let mut total: usize = 0;
        for piece in slot.payload() {
            let Ok(mut piece) = piece.subslice(0, piece.len().min(credit)) else { break };
            if piece.is_empty() {
                break;
            }
            let wanted = piece.len();
            let count = match (&self.stream).read_volatile(&mut piece) {
                Ok(count) => count,
                Err(error) if is(&error, io::ErrorKind::Interrupted) => break,
                Err(error) if is(&error, io::ErrorKind::WouldBlock) => {
                    self.readable = false;
                    break;
                }
                // ECONNRESET: the program closed without reading all. What it wrote has been read by now.
                Err(_) => 0,
            };
            if count == 0 {
                self.program_sends_no_more();
                break;
            }
            total = total.saturating_add(count);
            credit = credit.saturating_sub(count);
            if count < wanted {
                // A stream may have more after a short read, so `readable` stays.
                break;
            }
        }
        u32::try_from(total).unwrap_or(u32::MAX)
    }

    /// Gives up: the program sees the end now, the guest gets a reset when it has room for one.
    pub(super) fn abort(&mut self) {
        self.connection.abort();
        self.outbox.clear();
        self.readable = false;
        self.shutdown(Shutdown::Both);
    }

    /// Whether neither side needs the link any more.
    pub(super) fn is_done(&self) -> bool {
        self.connection.is_closed() && self.outbox.is_empty()
    }
}

fn is(error: &VolatileMemoryError, kind: io::ErrorKind) -> bool {
    matches!(error, VolatileMemoryError::IOError(error) if error.kind() == kind)
}
