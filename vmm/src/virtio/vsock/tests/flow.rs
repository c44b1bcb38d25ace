//! Data: all of it, in order, for everybody, and no more of it held than was promised.

#![expect(clippy::cast_possible_truncation, reason = "small numbers, or noise")]

use super::driver::{Guest, QUEUE_SIZE, Received, Socket};
use super::opening::listed;
use crate::virtio::vsock::HostPorts;
use crate::virtio::vsock::packet::{HEADER_LEN, Header, MAX_PAYLOAD, Op};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

const RX: u32 = 4096;
const HEADER: u32 = HEADER_LEN as u32;

/// Bytes whose every position is told from its neighbours.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

fn client_and_socket(guest: &mut Guest) -> (UnixStream, Socket) {
    let client = guest.client();
    client.set_nonblocking(true).unwrap();
    (client, Socket::accept(guest))
}

/// Writes what the socket takes now.
fn write_some(client: &mut UnixStream, rest: &mut &[u8]) {
    while !rest.is_empty() {
        match client.write(rest) {
            Ok(count) => *rest = &rest[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads what is there.
fn read_some(client: &mut UnixStream, into: &mut Vec<u8>) -> usize {
    let before = into.len();
    let mut bytes = [0; 8192];
    loop {
        match client.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => into.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    into.len() - before
}

#[test]
fn to_the_guest_through_a_tiny_window_and_tiny_buffers() {
    let data = pattern(1 << 20);
    let mut guest = Guest::up(HEADER + 700, HostPorts::new());
    guest.buf_alloc = 1000;
    let (mut client, mut socket) = client_and_socket(&mut guest);
    let (mut rest, mut got) = (data.as_slice(), Vec::new());
    while got.len() < data.len() {
        write_some(&mut client, &mut rest);
        let mut in_window = 0;
        let mut asked = false;
        while let Some(received) = guest.receive() {
            match Op::from_number(received.0.op) {
                Some(Op::Data) => in_window += received.0.len,
                Some(Op::CreditRequest) => asked = true,
                op => panic!("{op:?}"),
            }
            socket.took(&received);
            got.extend_from_slice(&received.1);
        }
        assert!(in_window <= 1000, "sent {in_window} with credit of 1000");
        assert!(asked || got.len() == data.len(), "stuck without asking for credit");
        socket.tell(&mut guest, Op::CreditUpdate, 0);
    }
    assert_eq!(got, data);
}

#[test]
fn to_the_host_within_the_window() {
    let data = pattern(1 << 20);
    let mut guest = Guest::up(RX, HostPorts::new());
    let (mut client, mut socket) = client_and_socket(&mut guest);
    let (mut sent, mut got) = (0, Vec::new());
    while got.len() < data.len() {
        let step = (socket.credit() as usize).min(3001).min(data.len() - sent);
        if step > 0 {
            socket.send(&mut guest, &data[sent..sent + step]);
            sent += step;
        } else {
            // A slow program: it reads only when all is stuck.
            let read = read_some(&mut client, &mut got);
            assert!(read > 0, "stuck");
        }
        while let Some((header, _)) = guest.receive() {
            assert_eq!(Op::from_number(header.op), Some(Op::CreditUpdate));
            socket.learn(&header);
        }
    }
    assert_eq!(got, data);
}

#[test]
fn a_slow_reader_holds_a_window_and_nobody_else_up() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let (mut slow, mut slow_socket) = client_and_socket(&mut guest);
    let (mut fast, mut fast_socket) = client_and_socket(&mut guest);
    let mut sent = Vec::new();
    loop {
        while let Some((header, _)) = guest.receive() {
            slow_socket.learn(&header);
        }
        let step = slow_socket.credit().min(60_000) as usize;
        if step == 0 {
            break;
        }
        let data = pattern(step);
        slow_socket.send(&mut guest, &data);
        sent.extend(data);
    }
    assert!(guest.all_sent(), "the device must not hold the guest's buffers back");

    fast_socket.send(&mut guest, b"past it");
    let mut got = Vec::new();
    read_some(&mut fast, &mut got);
    assert_eq!(got, b"past it");
    fast.write_all(b"and back").unwrap();
    assert_eq!(guest.expect(Op::Data).1, b"and back");

    // What is held comes out whole, and the guest may go on.
    let mut got = Vec::new();
    while got.len() < sent.len() {
        assert!(read_some(&mut slow, &mut got) > 0);
        guest.run();
    }
    assert_eq!(got, sent);
    while let Some((header, _)) = guest.receive() {
        slow_socket.learn(&header);
    }
    assert!(slow_socket.credit() > (256 << 10) / 2);
}

#[test]
fn credit_is_told_when_asked() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let (mut client, mut socket) = client_and_socket(&mut guest);
    socket.send(&mut guest, &[1; 100]);
    guest.expect_nothing();
    socket.tell(&mut guest, Op::CreditRequest, 0);
    assert_eq!(guest.expect(Op::CreditUpdate).0.fwd_cnt, 100);
    // Data tells it as well.
    socket.send(&mut guest, &[1; 23]);
    client.write_all(&[5]).unwrap();
    assert_eq!(guest.expect(Op::Data).0.fwd_cnt, 123);
    guest.expect_nothing();
}

#[test]
fn connections_take_turns() {
    let mut guest = Guest::down(HEADER + 100, HostPorts::new());
    guest.start();
    for slot in 0..8 {
        guest.post(slot);
    }
    let mut pairs: Vec<_> = (0..4).map(|_| client_and_socket(&mut guest)).collect();
    for (client, _) in &mut pairs {
        client.write_all(&[7; 10_000]).unwrap();
    }
    let turns: Vec<Received> = (0..40).map(|_| guest.expect(Op::Data)).collect();
    for round in turns.chunks(4) {
        let mut ports: Vec<u32> = round.iter().map(|(header, _)| header.src_port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 4);
    }
}

#[test]
fn payload_of_any_shape_of_chain_arrives() {
    let (ports, host) = listed(9);
    let mut guest = Guest::up(RX, ports);
    let request = guest.header(Op::Request, 1, 9);
    guest.send(&request, &[]);
    let (response, _) = guest.expect(Op::Response);
    let mut socket = Socket::new(1, 9);
    socket.learn(&response);
    let mut program = host.recv().unwrap();
    let data = pattern(MAX_PAYLOAD);
    socket.send(&mut guest, &data);
    let mut got = vec![0; MAX_PAYLOAD];
    program.read_exact(&mut got).unwrap();
    assert_eq!(got, data);
}

#[test]
fn without_buffers_of_the_guest_nothing_is_read_and_nothing_lost() {
    let mut guest = Guest::down(RX, HostPorts::new());
    guest.start();
    guest.post(0);
    let mut client = guest.client();
    guest.run_without_refill();
    client.write_all(b"first").unwrap();
    let stream = guest.handle.connect(8).unwrap();
    guest.run_without_refill();
    drop(stream);
    guest.run_without_refill();
    for slot in 1..8 {
        guest.post(slot);
    }
    let (request, _) = guest.expect(Op::Request);
    assert_eq!(request.dst_port, proto::agent::AGENT_PORT);
    assert_eq!(guest.expect(Op::Request).0.dst_port, 8);
    let response = guest.header(Op::Response, request.dst_port, request.src_port);
    guest.send(&response, &[]);
    assert_eq!(guest.expect(Op::Data).1, b"first");
}

#[test]
fn a_batch_makes_one_interrupt() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let (mut client, socket) = client_and_socket(&mut guest);
    let before = guest.interrupts();
    let header = Header { len: 3, ..socket.header(&guest, Op::Data) };
    for _ in 0..QUEUE_SIZE / 4 {
        guest.queue_packet(&header, b"abc");
    }
    guest.kick();
    guest.run();
    assert!(guest.interrupts() - before <= 1);
    let mut got = Vec::new();
    assert_eq!(read_some(&mut client, &mut got), usize::from(QUEUE_SIZE / 4) * 3);
}

#[test]
fn a_guest_that_sends_without_end_lets_others_have_their_turn() {
    // The thread comes back from each turn although there is always more: else this would not end.
    let mut guest = Guest::up(RX, HostPorts::new());
    let (mut client, mut socket) = client_and_socket(&mut guest);
    let mut got = Vec::new();
    for _ in 0..1000 {
        socket.send(&mut guest, &[1; 64]);
        read_some(&mut client, &mut got);
        while let Some((header, _)) = guest.receive() {
            socket.learn(&header);
        }
    }
    assert_eq!(got.len(), 64_000);
}
