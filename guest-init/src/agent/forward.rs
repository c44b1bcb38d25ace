//! Joins a connection to a TCP port of guest loopback.

use super::channel::Channel;
use super::connection::{answer, failed};
use proto::agent::{Message, Reply};
use proto::code::Code;
use proto::frame::DATA_CHUNK_BYTES;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};

/// One direction: bytes read from one side and not yet written to the other.
#[derive(Debug, Default)]
struct Direction {
    buffer: Vec<u8>,
    written: usize,
    /// The reading side has ended.
    ended: bool,
    /// The end was passed on.
    closed: bool,
}

/// Serves a forwarded connection to its end.
pub fn serve(mut channel: Channel, port: u16) {
    let target = match connect(port) {
        Ok(target) => target,
        Err(error) => {
            let code = match error.kind() {
                io::ErrorKind::ConnectionRefused => Code::ConnectionRefused,
                _ => Code::Io,
            };
            let message = format!("cannot connect to port {port} in the guest: {error}");
            return answer(channel, Reply::Failed(failed(code, message)));
        }
    };
    channel.queue(&Message::Reply(Reply::Done));
    if !channel.flush_fully() {
        return;
    }
    let (client, first_bytes) = channel.into_raw();
    let to_target = Direction { buffer: first_bytes, ..Direction::default() };
    // An error on either side ends both: closing them tells the peers.
    let _ = join(client.as_fd(), target.as_fd(), to_target);
}

/// To 127.0.0.1, then to ::1; if both fail, the first error counts.
fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        .or_else(|first| TcpStream::connect((Ipv6Addr::LOCALHOST, port)).map_err(|_| first))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn join(
    client: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    mut to_target: Direction,
) -> Result<(), Errno> {
    let mut to_client = Direction::default();
    while !(to_target.closed && to_client.closed) {
        // A side that nothing is waited for is not polled: its hang-up would be reported again and again.
        let interests = [
            (client, to_target.wants_read() | to_client.wants_write()),
            (target, to_client.wants_read() | to_target.wants_write()),
        ];
        let waited_for = interests.into_iter().filter(|(_, flags)| !flags.is_empty());
        let mut fds: Vec<_> =
            waited_for.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
        match poll(&mut fds, None) {
            Err(Errno::INTR) => continue,
            result => result?,
        };
        to_target.step(client, target)?;
        to_client.step(target, client)?;
    }
    Ok(())
}

impl Direction {
    fn is_empty(&self) -> bool {
        self.written >= self.buffer.len()
    }

    fn wants_read(&self) -> PollFlags {
        if self.is_empty() && !self.ended { PollFlags::IN } else { PollFlags::empty() }
    }

    fn wants_write(&self) -> PollFlags {
        if self.is_empty() { PollFlags::empty() } else { PollFlags::OUT }
    }

    fn step(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), Errno> {
        if self.is_empty() && !self.ended {
            self.read(from)?;
        }
        while !self.is_empty() {
            let rest = self.buffer.get(self.written..).unwrap_or_default();
            match rustix::net::send(to, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(length) => self.written = self.written.saturating_add(length),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        if self.ended && !self.closed {
            self.closed = true;
            rustix::net::shutdown(to, Shutdown::Write)?;
        }
        Ok(())
    }

    fn read(&mut self, from: BorrowedFd<'_>) -> Result<(), Errno> {
        self.buffer.resize(DATA_CHUNK_BYTES, 0);
        self.written = 0;
        let received = rustix::net::recv(from, self.buffer.as_mut_slice(), RecvFlags::DONTWAIT);
        let length = match received {
            Ok((0, _)) => {
                self.ended = true;
                0
            }
            Ok((length, _)) => length,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(errno) => return Err(errno),
        };
        self.buffer.truncate(length);
        Ok(())
    }
}
