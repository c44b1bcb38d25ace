//! Sockets between the guest and its host.

use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, VsockAddr};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::net::SocketFlags;
use std::io;

/// The host's address.
const HOST_CID: u32 = 2;

/// Listens on a port.
///
/// # Errors
/// If there is no vsock device or the port is taken.
pub fn listen(port: u32) -> io::Result<OwnedFd> {
    let listener = new_socket()?;
    socket::bind(listener.as_raw_fd(), &VsockAddr::new(libc::VMADDR_CID_ANY, port))?;
    socket::listen(&listener, Backlog::new(128)?)?;
    Ok(listener)
}

/// Accepts a connection; `None` if it does not come from the host. The guest's own unprivileged programs could reach
/// the port too, through vsock's loopback, and whoever reaches the agent is root.
///
/// # Errors
/// As `accept(2)`.
pub fn accept_from_host(listener: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let connection = rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?;
    let peer: VsockAddr = socket::getpeername(connection.as_raw_fd())?;
    Ok((peer.cid() == HOST_CID).then_some(connection))
}

/// Connects to a port of the host.
///
/// # Errors
/// If nobody listens there or there is no vsock device.
pub fn connect_to_host(port: u32) -> io::Result<OwnedFd> {
    let connection = new_socket()?;
    socket::connect(connection.as_raw_fd(), &VsockAddr::new(HOST_CID, port))?;
    Ok(connection)
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket::socket(AddressFamily::Vsock, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?)
}
