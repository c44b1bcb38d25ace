//! All connections of one guest: which packet belongs to which, who may open one, and whose turn it is.
//!
//! Links that have something for the guest stand in a line; each puts one packet into the next free buffer and goes
//! to the end of the line. So none waits for another's program or credit, only for its turn.
//!
//! # Trust
//! The guest chooses ports, operations and their order. What it can make the host keep is bounded: the number of
//! links ([`MAX_LINKS`]), their buffers ([`receive_window`]), and refusals that wait for buffers ([`MAX_REFUSALS`]).

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use super::connection::{Connection, Reaction};
use super::handshakes::Handshakes;
use super::link::{Link, Outgoing, Ports};
use super::packet::{Header, Op, RxSlot, TYPE_STREAM, TxPacket};
use super::poll::{Event, Poll, Source};
use super::{HOST_CID, HostPorts};
use crate::virtio::fault_log::FaultLog;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most connections at a time. Each costs a descriptor of the VMM, and a guest can open as many as it likes.
pub(super) const MAX_LINKS: usize = 1024;

/// Most refusals that wait for buffers of the guest. When as many wait, nothing is taken from the guest any more
/// until it provides buffers (virtio 1.2 §5.10.6.1 allows for it); without a limit it could fill the host's memory by
/// sending nonsense and never listening.
const MAX_REFUSALS: usize = 256;

/// Ports of connections that the host begins. High, so that they stay clear of the ports on which the host listens.
const FIRST_PORT: u32 = 1 << 30;
const LAST_PORT: u32 = (1 << 31) - 1;

/// The receive buffer that a new connection gets. The first ones get what a fast stream needs. A guest or host that
/// opens very many gets less for each: 256 KiB a piece would be 256 MiB of the host's memory; this way it is 30 MiB.
fn receive_window(links: usize) -> u32 {
    match links {
        0..32 => 256 << 10,
        32..128 => 64 << 10,
        _ => 16 << 10,
    }
}

/// The connections of one guest.
pub(super) struct Muxer {
    guest_cid: u64,
    host_ports: HostPorts,
    poll: Arc<Poll>,
    handshakes: Handshakes,
    /// Whether the guest can be reached, so that time limits run.
    online: bool,
    /// Whether links may be opened at all.
    open: bool,
    /// [`MAX_LINKS`], but for tests.
    pub(super) max_links: usize,
    links: HashMap<u64, Link>,
    /// The links that the guest may speak to; links that are being drained are not among them.
    by_ports: HashMap<Ports, u64>,
    next_link: u64,
    next_port: u32,
    line: VecDeque<u64>,
    refusals: VecDeque<Header>,
    faults: FaultLog,
}

impl Muxer {
    /// No connections.
    ///
    /// # Errors
    /// When descriptors run out.
    pub(super) fn new(
        guest_cid: u64,
        host_ports: HostPorts,
        handshake_limit: Duration,
        poll: Arc<Poll>,
    ) -> io::Result<Self> {
        Ok(Self {
            guest_cid,
            host_ports,
            handshakes: Handshakes::new(handshake_limit, &poll)?,
            poll,
            online: false,
            open: true,
            max_links: MAX_LINKS,
            links: HashMap::new(),
            by_ports: HashMap::new(),
            next_link: 0,
            next_port: FIRST_PORT,
            line: VecDeque::new(),
            refusals: VecDeque::new(),
            faults: FaultLog::new("virtio-vsock"),
        })
    }

    /// How many links there are.
    pub(super) fn link_count(&self) -> usize {
        self.links.len()
    }

    /// Whether no trace is left of any connection.
    #[cfg(test)]
    pub(super) fn is_clean(&self) -> bool {
        self.links.is_empty()
            && self.by_ports.is_empty()
            && self.line.is_empty()
            && self.refusals.is_empty()
    }

    /// The guest can be reached from now on.
    pub(super) fn go_online(&mut self, now: Instant) {
        self.online = true;
        self.open = true;
        let mut waiting: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, link)| link.connection.is_requested())
            .map(|(id, _)| *id)
            .collect();
        waiting.sort_unstable();
        for id in waiting {
            self.handshakes.begin(id, now);
        }
    }

    /// The guest cannot be reached for now; its connections are kept.
    pub(super) fn go_offline(&mut self) {
        self.online = false;
        self.handshakes.clear();
    }

    /// A new driver knows nothing of the connections of the one before. Kept are those that it was never told of, and
    /// those that were over and only wait for a slow program.
    pub(super) fn forget_guest(&mut self) {
        self.refusals.clear();
        let old: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, link)| {
                !link.connection.is_unknown_to_guest() && !link.connection.is_closed()
            })
            .map(|(id, _)| *id)
            .collect();
        for id in old {
            self.remove(id);
        }
    }

    /// Ends all connections, and opens none until the guest is online again: there is no driver, nor one to wait for.
    pub(super) fn close(&mut self) {
        self.open = false;
        self.go_offline();
        self.refusals.clear();
        let all: Vec<u64> = self.links.keys().copied().collect();
        for id in all {
            self.remove(id);
        }
    }

    /// Opens a connection from the host to a port of the guest.
    ///
    /// # Errors
    /// When there are too many, or the socket cannot be watched. The socket is closed then.
    pub(super) fn connect(
        &mut self,
        guest_port: u32,
        stream: UnixStream,
        now: Instant,
    ) -> io::Result<()> {
        if !self.open {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionRefused,
                "the guest has no vsock driver",
            ));
        }
        let Some(host_port) = self.free_port(guest_port) else {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "too many vsock connections"));
        };
        let window = receive_window(self.links.len());
        let ports = Ports { host: host_port, guest: guest_port };
        let id = self.add(ports, Connection::requested(window), stream, window)?;
        if self.online {
            self.handshakes.begin(id, now);
        }
        self.settle(id);
        Ok(())
    }

    /// A host port that makes an unused pair with `guest_port`, if another link may be opened at all.
    fn free_port(&mut self, guest_port: u32) -> Option<u32> {
        if self.links.len() >= self.max_links {
            return None;
        }
        // There are fewer links than tries, so one of them succeeds.
        for _ in 0..=MAX_LINKS {
            let port = self.next_port;
            self.next_port = if port >= LAST_PORT { FIRST_PORT } else { port.saturating_add(1) };
            if !self.by_ports.contains_key(&Ports { host: port, guest: guest_port }) {
                return Some(port);
            }
        }
        None
    }

    fn add(
        &mut self,
        ports: Ports,
        connection: Connection,
        stream: UnixStream,
        window: u32,
    ) -> io::Result<u64> {
        stream.set_nonblocking(true)?;
        let id = self.next_link;
        self.poll.add(&stream, Source::Link(id))?;
        // 2^64 connections take longer than the machine will last.
        self.next_link = id.wrapping_add(1);
        self.by_ports.insert(ports, id);
        self.links.insert(id, Link::new(ports, connection, stream, window));
        Ok(id)
    }

    /// Takes a packet from the guest.
    pub(super) fn receive(&mut self, packet: &TxPacket<'_>) {
        let header = &packet.header;
        if header.src_cid != self.guest_cid {
            self.faults.note(format_args!("packet from context id {}", header.src_cid));
            return;
        }
        let op = match Op::from_number(header.op) {
            Some(op) if header.kind == TYPE_STREAM && header.dst_cid == HOST_CID => op,
            _ => return self.refuse(header),
        };
        let ports = Ports { host: header.dst_port, guest: header.src_port };
        let Some(&id) = self.by_ports.get(&ports) else {
            return if op == Op::Request { self.open(ports, header) } else { self.refuse(header) };
        };
        let Some(link) = self.links.get_mut(&id) else { return };
        match link.connection.packet(op, header) {
            Reaction::Nothing => {}
            Reaction::Data => link.deliver(&packet.payload),
            Reaction::Opened | Reaction::Shutdown | Reaction::Reset => link.advance(),
            Reaction::Violation(rule) => {
                self.faults.note(format_args!("connection {ports:?} reset: {rule}"));
                link.abort();
            }
        }
        self.settle(id);
    }

    /// A packet that could not be read named this connection: its stream is broken.
    pub(super) fn receive_broken(&mut self, header: &Header) {
        let ports = Ports { host: header.dst_port, guest: header.src_port };
        match self.by_ports.get(&ports) {
            Some(&id) if header.src_cid == self.guest_cid && header.dst_cid == HOST_CID => {
                if let Some(link) = self.links.get_mut(&id) {
                    link.abort();
                }
                self.settle(id);
            }
            _ if header.src_cid == self.guest_cid => self.refuse(header),
            _ => {}
        }
    }

    /// The guest asks for a connection to a port of the host.
    fn open(&mut self, ports: Ports, request: &Header) {
        let window = receive_window(self.links.len());
        let opened = if self.links.len() >= self.max_links {
            Err(io::Error::new(io::ErrorKind::QuotaExceeded, "too many vsock connections"))
        } else if let Some(connector) = self.host_ports.get_mut(&ports.host) {
            connector().and_then(|stream| {
                self.add(ports, Connection::granted(window, request), stream, window)
            })
        } else {
            Err(io::Error::new(io::ErrorKind::ConnectionRefused, "nothing listens there"))
        };
        match opened {
            Ok(id) => self.settle(id),
            Err(error) => {
                self.faults
                    .note(format_args!("connection to host port {} refused: {error}", ports.host));
                self.refuse(request);
            }
        }
    }

    /// Answers a packet that belongs to no connection. A reset is not answered: two sides would go on for ever.
    fn refuse(&mut self, header: &Header) {
        if header.op == Op::Reset.number() {
            return;
        }
        self.refusals.push_back(Header {
            src_cid: header.dst_cid,
            dst_cid: self.guest_cid,
            src_port: header.dst_port,
            dst_port: header.src_port,
            kind: header.kind,
            op: Op::Reset.number(),
            ..Header::default()
        });
    }

    /// Whether the guest must provide buffers before it is listened to again.
    pub(super) fn is_congested(&self) -> bool {
        self.refusals.len() >= MAX_REFUSALS
    }

    /// Whether there is, or may be, something for the guest.
    pub(super) fn has_packets(&self) -> bool {
        !self.refusals.is_empty() || !self.line.is_empty()
    }

    /// Puts the next packet's payload into `slot`, and returns the header; nothing if it turns out that there is none.
    pub(super) fn next_packet(&mut self, slot: &RxSlot<'_>) -> Option<Header> {
        if let Some(refusal) = self.refusals.pop_front() {
            return Some(refusal);
        }
        for _ in 0..self.line.len() {
            let Some(id) = self.line.pop_front() else { break };
            let Some(link) = self.links.get_mut(&id) else { continue };
            link.in_line = false;
            let header =
                link.next_packet(slot).map(|outgoing| Self::header(self.guest_cid, link, outgoing));
            self.settle(id);
            if header.is_some() {
                return header;
            }
        }
        None
    }

    fn header(guest_cid: u64, link: &mut Link, outgoing: Outgoing) -> Header {
        let (buf_alloc, fwd_cnt) = link.connection.tell_credit();
        Header {
            src_cid: HOST_CID,
            dst_cid: guest_cid,
            src_port: link.ports.host,
            dst_port: link.ports.guest,
            len: outgoing.len,
            kind: TYPE_STREAM,
            op: outgoing.op.number(),
            flags: outgoing.flags,
            buf_alloc,
            fwd_cnt,
        }
    }

    /// A socket changed. Events of links that are gone mean nothing: numbers are not used twice.
    pub(super) fn socket_changed(&mut self, id: u64, event: &Event) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.socket_changed(event.readable, event.writable, event.gone);
        link.advance();
        self.settle(id);
    }

    /// Sees to it that [`Source::Timer`] comes when the next handshake takes too long.
    pub(super) fn arm_timer(&mut self, now: Instant) {
        self.handshakes.arm(now);
    }

    /// The timer went off: gives up handshakes that take too long.
    pub(super) fn expire(&mut self, now: Instant) {
        self.handshakes.went_off();
        while let Some(id) = self.handshakes.next_expired(now) {
            if let Some(link) = self.links.get_mut(&id)
                && link.connection.is_requested()
            {
                log::warn!("vsock: guest port {} did not answer", link.ports.guest);
                link.abort();
                self.settle(id);
            }
        }
    }

    /// After anything happened to a link: lets it go, or puts it in line, as its state demands.
    fn settle(&mut self, id: u64) {
        let Some(link) = self.links.get_mut(&id) else { return };
        if link.connection.is_closed() {
            // The guest may use its port again at once, while the program still takes what is left.
            let ports = link.ports;
            let done = link.is_done();
            if self.by_ports.get(&ports) == Some(&id) {
                self.by_ports.remove(&ports);
            }
            if done {
                self.remove(id);
            }
        } else if !link.in_line && link.has_packet() {
            link.in_line = true;
            self.line.push_back(id);
        }
    }

    fn remove(&mut self, id: u64) {
        let Some(link) = self.links.remove(&id) else { return };
        self.poll.remove(&link.stream);
        if self.by_ports.get(&link.ports) == Some(&id) {
            self.by_ports.remove(&link.ports);
        }
        if self.links.is_empty() {
            // A crowd that has left leaves no memory behind.
            self.links.shrink_to(MAX_IDLE_CAPACITY);
            self.by_ports.shrink_to(MAX_IDLE_CAPACITY);
            self.line.clear();
            self.line.shrink_to(MAX_IDLE_CAPACITY);
            self.refusals.shrink_to(MAX_IDLE_CAPACITY);
        }
    }
}

/// Room that the tables keep while there is no connection.
const MAX_IDLE_CAPACITY: usize = 32;
