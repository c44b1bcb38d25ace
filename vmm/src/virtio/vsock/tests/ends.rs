//! How connections end, and that nothing is left of them.

use super::driver::{Guest, Socket};
use super::opening::listed;
use crate::virtio::vsock::packet::{Op, SHUTDOWN_RECEIVE, SHUTDOWN_SEND};
use crate::virtio::vsock::{HostPorts, lock};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

const RX: u32 = 4096;
const BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;

fn connected(guest: &mut Guest) -> (UnixStream, Socket) {
    let client = guest.client();
    (client, Socket::accept(guest))
}

/// The end. Where the program is gone, one direction may be told before the other: that nobody listens is known before
/// its last words are read, and the reverse if its end of file is read before the hang-up is noticed.
#[track_caller]
fn expect_end(guest: &mut Guest) {
    let (mut shutdown, _) = guest.expect(Op::Shutdown);
    if shutdown.flags != BOTH {
        (shutdown, _) = guest.expect(Op::Shutdown);
    }
    assert_eq!(shutdown.flags, BOTH);
    guest.expect(Op::Reset);
    guest.expect_nothing();
    assert_eq!(guest.handle.connection_count(), 0);
}

#[test]
fn the_program_ends_its_sending_side() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let (mut client, mut socket) = connected(&mut guest);
    client.write_all(b"last words").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(guest.expect(Op::Data).1, b"last words");
    assert_eq!(guest.expect(Op::Shutdown).0.flags, SHUTDOWN_SEND);
    guest.expect_nothing();
    // The other direction works on.
    socket.send(&mut guest, b"reply");
    let mut bytes = [0; 5];
    client.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"reply");
    socket.tell(&mut guest, Op::Shutdown, SHUTDOWN_SEND);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    expect_end(&mut guest);
}

#[test]
fn the_guest_ends_its_sending_side() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let (mut client, mut socket) = connected(&mut guest);
    socket.send(&mut guest, b"all");
    socket.tell(&mut guest, Op::Shutdown, SHUTDOWN_SEND);
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"all");
    client.write_all(b"but you can").unwrap();
    assert_eq!(guest.expect(Op::Data).1, b"but you can");
    client.shutdown(Shutdown::Write).unwrap();
    expect_end(&mut guest);
}

#[test]
fn the_guest_ends_its_receiving_side() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let (mut client, mut socket) = connected(&mut guest);
    socket.tell(&mut guest, Op::Shutdown, SHUTDOWN_RECEIVE);
    assert_eq!(client.write(b"nobody reads").unwrap_err().kind(), ErrorKind::BrokenPipe);
    socket.send(&mut guest, b"still");
    let mut bytes = [0; 5];
    client.read_exact(&mut bytes).unwrap();
    socket.tell(&mut guest, Op::Shutdown, SHUTDOWN_SEND);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    guest.expect(Op::Reset);
    guest.expect_nothing();
    assert_eq!(guest.handle.connection_count(), 0);
}

#[test]
fn the_program_ends_its_receiving_side() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let (mut client, mut socket) = connected(&mut guest);
    client.shutdown(Shutdown::Read).unwrap();
    socket.send(&mut guest, b"deaf");
    assert_eq!(guest.expect(Op::Shutdown).0.flags, SHUTDOWN_RECEIVE);
    // What was under way does not count against anybody.
    for _ in 0..8 {
        socket.send(&mut guest, &[0; 60_000]);
    }
    client.write_all(b"not dumb").unwrap();
    assert_eq!(guest.expect(Op::Data).1, b"not dumb");
    drop(client);
    expect_end(&mut guest);
}

#[test]
fn the_guest_closes() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let (mut client, mut socket) = connected(&mut guest);
    client.write_all(b"not read by anyone").unwrap();
    guest.expect(Op::Data);
    client.write_all(b"nor this").unwrap();
    socket.send(&mut guest, b"bye");
    socket.tell(&mut guest, Op::Shutdown, BOTH);
    let mut got = Vec::new();
    client.read_to_end(&mut got).expect("an orderly end although there are bytes that nobody read");
    assert_eq!(got, b"bye");
    guest.expect(Op::Data);
    guest.expect(Op::Reset);
    guest.expect_nothing();
    assert_eq!(guest.handle.connection_count(), 0);
}

#[test]
fn the_guest_resets() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let (mut client, mut socket) = connected(&mut guest);
    socket.send(&mut guest, b"bye");
    socket.tell(&mut guest, Op::Reset, 0);
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"bye");
    guest.expect_nothing();
    assert_eq!(guest.handle.connection_count(), 0);
}

#[test]
fn a_program_that_vanishes_is_missed_at_once() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let (client, mut socket) = connected(&mut guest);
    drop(client);
    // Neither side was sending.
    expect_end(&mut guest);
    // The guest's own close crosses ours.
    socket.tell(&mut guest, Op::Shutdown, BOTH);
    guest.expect(Op::Reset);
    socket.tell(&mut guest, Op::Reset, 0);
    guest.expect_nothing();
}

#[test]
fn what_a_vanished_program_wrote_arrives_first() {
    let mut guest = Guest::up(RX, HostPorts::new());
    guest.buf_alloc = 4;
    let (mut client, mut socket) = connected(&mut guest);
    // Bytes for the program that it does not read, so that its close is a reset of the Unix socket.
    socket.send(&mut guest, b"unread");
    client.write_all(b"12345678").unwrap();
    drop(client);
    // It is told that nobody listens, although its window is full.
    assert_eq!(guest.expect(Op::Shutdown).0.flags, SHUTDOWN_RECEIVE);
    let first = guest.expect(Op::Data);
    assert_eq!(first.1, b"1234");
    socket.took(&first);
    guest.expect(Op::CreditRequest);
    guest.expect_nothing();
    socket.tell(&mut guest, Op::CreditUpdate, 0);
    assert_eq!(guest.expect(Op::Data).1, b"5678");
    // The end is seen although the window is full.
    expect_end(&mut guest);
}

#[test]
fn a_slow_program_gets_all_after_the_guest_has_gone() {
    for end in [Op::Shutdown, Op::Reset] {
        let (ports, host) = listed(9);
        let mut guest = Guest::up(RX, ports);
        let request = guest.header(Op::Request, 1, 9);
        guest.send(&request, &[]);
        let mut socket = Socket::new(1, 9);
        socket.learn(&guest.expect(Op::Response).0);
        let mut program = host.recv().unwrap();
        let mut sent = 0;
        while socket.credit() > 0 {
            let step = socket.credit().min(50_000);
            socket.send(&mut guest, &vec![3; step as usize]);
            sent += step as usize;
            while let Some((header, _)) = guest.receive() {
                socket.learn(&header);
            }
        }
        socket.tell(&mut guest, end, BOTH);
        if end == Op::Shutdown {
            // At once: the guest does not wait for the program.
            guest.expect(Op::Reset);
        }
        // And may use its port again.
        guest.send(&request, &[]);
        guest.expect(Op::Response);
        assert_eq!(guest.handle.connection_count(), 2);

        let mut got = 0;
        let mut bytes = [0; 8192];
        loop {
            match program.read(&mut bytes).unwrap() {
                0 => break,
                count => got += count,
            }
            guest.run();
        }
        assert_eq!(got, sent);
        assert_eq!(guest.handle.connection_count(), 1);
    }
}

#[test]
fn a_slow_program_that_gives_up_is_let_go() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let (client, mut socket) = connected(&mut guest);
    while socket.credit() > 0 {
        let step = socket.credit().min(50_000);
        socket.send(&mut guest, &vec![3; step as usize]);
        while let Some((header, _)) = guest.receive() {
            socket.learn(&header);
        }
    }
    socket.tell(&mut guest, Op::Shutdown, BOTH);
    guest.expect(Op::Reset);
    assert_eq!(guest.handle.connection_count(), 1);
    drop(client);
    guest.run();
    assert_eq!(guest.handle.connection_count(), 0);
}

#[test]
fn an_accepted_program_that_is_gone_already_still_answers_first() {
    let connect = || {
        let (ours, mut theirs) = UnixStream::pair()?;
        theirs.write_all(b"one line")?;
        Ok(ours)
    };
    let mut guest = Guest::up(RX, HostPorts::from([(9, Box::new(connect) as _)]));
    let request = guest.header(Op::Request, 1, 9);
    guest.send(&request, &[]);
    guest.expect(Op::Response);
    assert_eq!(guest.expect(Op::Data).1, b"one line");
    expect_end(&mut guest);
}

#[test]
fn five_hundred_connections_leave_nothing_behind() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let round = |together: usize, guest: &mut Guest| {
        let mut pairs: Vec<_> = (0..together).map(|_| connected(guest)).collect();
        for (index, (client, socket)) in pairs.iter_mut().enumerate() {
            client.write_all(&[1; 100]).unwrap();
            guest.expect(Op::Data);
            socket.send(guest, &[2; 100]);
            client.read_exact(&mut [0; 100]).unwrap();
            // Each way to end.
            match index % 3 {
                0 => client.shutdown(Shutdown::Both).unwrap(),
                1 => socket.tell(guest, Op::Shutdown, BOTH),
                _ => socket.tell(guest, Op::Reset, 0),
            }
            while guest.receive().is_some() {}
        }
    };
    round(1, &mut guest);
    let descriptors = open_descriptors();
    for _ in 0..200 {
        round(1, &mut guest);
    }
    for _ in 0..10 {
        round(30, &mut guest);
    }
    guest.run();
    assert_eq!(guest.handle.connection_count(), 0);
    assert!(lock(&guest.device.worker).muxer.is_clean());
    // Tests run side by side in one process, so others may have opened some; not five hundred.
    assert!(open_descriptors() < descriptors + 250);
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
