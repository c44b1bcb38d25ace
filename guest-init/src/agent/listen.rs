//! Accepts the agent's connections.

use super::channel::Channel;
use super::{Agent, connection};
use crate::{console, threads, vsock};
use proto::agent::{AGENT_PORT, Failed, Message, Reply};
use proto::code::Code;
use proto::guest::Transport;
use rustix::fd::OwnedFd;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Connections served at once. Each may hold a thread, a few descriptors, and up to some megabytes of a request; the
/// rest is told to come again later.
pub const MAX_CONNECTIONS: usize = 256;

/// Where the host reaches the agent.
#[derive(Debug)]
pub enum Listener {
    /// Over vsock.
    Vsock(OwnedFd),
    /// Over TCP, with a secret that each connection must begin with.
    Tcp {
        /// The listening socket.
        socket: TcpListener,
        /// The secret.
        secret: Arc<[u8]>,
    },
}

/// A place among the connections served; given back when dropped.
#[derive(Debug)]
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(occupied: &Arc<AtomicUsize>) -> Option<Self> {
        let grow = |count: usize| count.checked_add(1).filter(|count| *count <= MAX_CONNECTIONS);
        occupied.fetch_update(Ordering::AcqRel, Ordering::Acquire, grow).ok()?;
        Some(Self(Arc::clone(occupied)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Listener {
    /// Begins to listen.
    ///
    /// # Errors
    /// If there is no such transport or the port is taken.
    pub fn open(transport: &Transport) -> io::Result<Self> {
        Ok(match transport {
            Transport::Vsock => Self::Vsock(vsock::listen(AGENT_PORT)?),
            Transport::Tcp { port, secret } => {
                let socket = TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port))?;
                Self::Tcp { socket, secret: secret.as_slice().into() }
            }
        })
    }

    /// Serves connections from now on, in threads of their own.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub fn serve(self, agent: Arc<Agent>) -> io::Result<()> {
        threads::spawn("accept", move || self.run(&agent))
    }

    fn run(&self, agent: &Arc<Agent>) {
        let occupied = Arc::new(AtomicUsize::new(0));
        loop {
            match self.accept() {
                Ok(Some(socket)) => self.begin(agent, &occupied, socket),
                Ok(None) => {}
                Err(error) => pause_after(&error),
            }
        }
    }

    fn accept(&self) -> io::Result<Option<OwnedFd>> {
        match self {
            Self::Vsock(listener) => vsock::accept_from_host(listener),
            Self::Tcp { socket, .. } => {
                let (connection, _) = socket.accept()?;
                connection.set_nodelay(true)?;
                Ok(Some(connection.into()))
            }
        }
    }

    fn begin(&self, agent: &Arc<Agent>, occupied: &Arc<AtomicUsize>, socket: OwnedFd) {
        let Some(place) = Place::take(occupied) else {
            return refuse(socket);
        };
        let agent = Arc::clone(agent);
        let secret = match self {
            Self::Vsock(_) => None,
            Self::Tcp { secret, .. } => Some(Arc::clone(secret)),
        };
        let body = move || {
            connection::serve(&agent, socket, secret.as_deref());
            drop(place);
        };
        if let Err(error) = threads::spawn("connection", body) {
            console::say(&format!("cannot serve a connection: {error}"));
        }
    }
}

/// Tells the client why; it need not listen.
fn refuse(socket: OwnedFd) {
    let message = format!("the guest serves {MAX_CONNECTIONS} connections at once");
    let mut channel = Channel::new(socket);
    channel.queue(&Message::Reply(Reply::Failed(Failed { code: Code::LimitReached, message })));
    let _ = channel.flush();
}

/// An aborted connection is the client's affair. A lack of descriptors or memory passes, but not while this thread
/// spins on it.
fn pause_after(error: &io::Error) {
    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) {
        return;
    }
    console::say(&format!("cannot accept a connection: {error}"));
    let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
    let _ = rustix::event::poll(&mut [], Some(&second));
}
