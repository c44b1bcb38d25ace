//! A guest that breaks the rules harms itself only.

#![expect(clippy::cast_possible_truncation, reason = "small numbers, or noise")]

use super::driver::{Guest, QUEUE_SIZE, Socket};
use crate::virtio::device::VirtioDevice;
use crate::virtio::vsock::HostPorts;
use crate::virtio::vsock::packet::{HEADER_LEN, Header, Op};
use std::io::{Read, Write};
use vm_memory::{Bytes, GuestAddress};

const RX: u32 = 4096;

#[test]
fn more_data_than_credit_resets_the_connection() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let mut client = guest.client();
    let mut socket = Socket::accept(&mut guest);
    let mut other = guest.client();
    let mut other_socket = Socket::accept(&mut guest);
    // The client does not read: its socket takes some, the window the rest, and then it is too much.
    let mut reset = None;
    for _ in 0..32 {
        socket.send(&mut guest, &[9; 60_000]);
        while let Some((header, _)) = guest.receive() {
            reset = reset.or((Op::from_number(header.op) == Some(Op::Reset)).then_some(header));
        }
    }
    assert!(reset.is_some());
    assert_eq!(guest.handle.connection_count(), 1);
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    other_socket.send(&mut guest, b"unharmed");
    other.read_exact(&mut [0; 8]).unwrap();
}

#[test]
fn rules_of_an_open_connection() {
    let cases: [(Op, u32, u32); 4] =
        [(Op::Request, 0, 0), (Op::Response, 0, 0), (Op::Data, 70_000, 0), (Op::Data, u32::MAX, 0)];
    for (op, len, flags) in cases {
        let mut guest = Guest::up(RX, HostPorts::new());
        let mut client = guest.client();
        let socket = Socket::accept(&mut guest);
        let header = Header { len, flags, ..socket.header(&guest, op) };
        guest.send(&header, &[]);
        guest.expect(Op::Reset);
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "{op:?} {len}");
        assert_eq!(guest.handle.connection_count(), 0);
    }
}

#[test]
fn data_after_the_promised_end_resets() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let _client = guest.client();
    let mut socket = Socket::accept(&mut guest);
    socket.tell(&mut guest, Op::Shutdown, 2);
    socket.send(&mut guest, b"x");
    guest.expect(Op::Reset);
}

#[test]
fn data_before_the_handshake_resets() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let mut client = guest.client();
    let (request, _) = guest.expect(Op::Request);
    let header = Header { len: 1, ..guest.header(Op::Data, request.dst_port, request.src_port) };
    guest.send(&header, b"x");
    guest.expect(Op::Reset);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

#[test]
fn credit_for_what_was_never_sent_is_no_credit() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let mut client = guest.client();
    let socket = Socket::accept(&mut guest);
    let header = Header { fwd_cnt: 5, ..socket.header(&guest, Op::CreditUpdate) };
    guest.send(&header, &[]);
    client.write_all(b"held").unwrap();
    guest.expect(Op::CreditRequest);
    guest.expect_nothing();
}

#[test]
fn refusals_that_nobody_fetches_stop_the_guest_not_the_host() {
    let mut guest = Guest::down(RX, HostPorts::new());
    guest.start();
    let stray = guest.header(Op::Data, 1, 2);
    let mut sent = 0u32;
    loop {
        guest.queue_packet(&stray, &[]);
        guest.kick();
        guest.run_without_refill();
        sent += 1;
        if !guest.all_sent() {
            break;
        }
        assert!(sent < 10_000, "refusals pile up");
    }
    // With buffers it goes on, and every packet is answered.
    for slot in 0..QUEUE_SIZE {
        guest.post(slot);
    }
    for _ in 0..sent {
        guest.expect(Op::Reset);
    }
    guest.expect_nothing();
    assert!(guest.all_sent());
}

#[test]
fn chains_that_are_no_packets_are_returned_unread() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let beyond = 1 << 40;
    let tx = guest.tx.buffer(0);
    let cases: [&[(u64, u32, u16, u16)]; 8] = [
        &[(tx, 10, 0, 0)],                     // shorter than a header
        &[(tx, 44, 2, 0)],                     // writable
        &[(beyond, 44, 0, 0)],                 // not in memory
        &[(tx, 44, 1, 1), (beyond, 44, 0, 0)], // payload not in memory
        &[(tx, 0, 1, 0)],                      // a loop of nothing
        &[(tx, 0, 1, 1), (tx, 0, 1, 0)],       // a longer one
        &[(u64::MAX - 3, 44, 0, 0)],           // wraps around
        &[(tx, 44, 1, 60_000)],                // continues beyond the table
    ];
    let header = Header { len: 44, ..guest.header(Op::Data, 1, 2) };
    for case in cases {
        guest.memory.write_slice(&header.encode(), GuestAddress(tx)).unwrap();
        for (at, (address, len, flags, next)) in case.iter().enumerate() {
            guest.tx.describe(&guest.memory, at as u16, *address, *len, *flags, *next);
        }
        guest.tx.offer(&guest.memory, 0);
        guest.kick();
        guest.run();
        assert!(guest.all_sent());
        // Where the header could be read, the sender hears that it broke.
        while let Some((header, _)) = guest.receive() {
            assert_eq!(header.op, Op::Reset.number());
        }
    }
    let _client = guest.client();
    Socket::accept(&mut guest);
}

#[test]
fn buffers_without_room_for_a_packet_are_returned_unused() {
    let mut guest = Guest::down(HEADER_LEN as u32, HostPorts::new());
    guest.start();
    let _client = guest.client();
    for slot in 0..4 {
        guest.post(slot);
    }
    guest.run_without_refill();
    guest.expect_nothing();
    let buffer = guest.rx.buffer(9);
    guest.rx.describe(&guest.memory, 9, buffer, 100, 2, 0);
    guest.rx.offer(&guest.memory, 9);
    guest.rx.doorbell.write(1).unwrap();
    guest.run_without_refill();
    assert!(guest.handle.connection_count() == 1);
}

#[test]
fn rings_that_make_no_sense_ask_for_a_reset() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let mut client = guest.client();
    Socket::accept(&mut guest);
    guest.tx.avail = guest.tx.avail.wrapping_add(30_000);
    guest.tx.offer(&guest.memory, 0);
    guest.kick();
    guest.run_without_refill();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    assert!(guest.needs_reset());
    assert!(guest.handle.connect(1).is_err());
    let mut late = guest.client();
    guest.run_without_refill();
    assert_eq!(late.read(&mut [0]).unwrap(), 0);
    assert_eq!(guest.device.stop().len(), 3);
    guest.rx.restart(&guest.memory);
    guest.tx.restart(&guest.memory);
    guest.start();
    for slot in 0..4 {
        guest.post(slot);
    }
    let _client = guest.client();
    Socket::accept(&mut guest);
}

#[test]
fn a_head_beyond_the_table_asks_for_a_reset() {
    let mut guest = Guest::up(RX, HostPorts::new());
    guest.tx.offer(&guest.memory, QUEUE_SIZE);
    guest.kick();
    guest.run_without_refill();
    assert!(guest.needs_reset());
}

#[test]
fn noise_is_survived() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut guest = Guest::up(RX, HostPorts::new());
    let mut clients = Vec::new();
    for round in 0..3000 {
        if round % 50 == 0 {
            clients.truncate(5);
            clients.push(guest.client());
        }
        let host =
            if random() % 2 == 0 { random() as u32 } else { (1 << 30) + (random() % 70) as u32 };
        let header = Header {
            src_cid: if random() % 8 == 0 { random() } else { 3 },
            dst_cid: if random() % 8 == 0 { random() } else { 2 },
            src_port: if random() % 8 == 0 { random() as u32 } else { 1024 },
            dst_port: host,
            len: (random() % 100) as u32,
            kind: if random() % 8 == 0 { random() as u16 } else { 1 },
            op: (random() % 9) as u16,
            flags: (random() % 5) as u32,
            buf_alloc: random() as u32,
            fwd_cnt: random() as u32,
        };
        let payload = vec![0; (random() % 90) as usize];
        guest.send(&header, &payload);
        while guest.receive().is_some() {}
    }
    assert!(guest.all_sent());
    drop(clients);
    let mut stream = guest.handle.connect(4).unwrap();
    stream.write_all(b"x").unwrap();
    while let Some((header, _)) = guest.receive() {
        if header.op == Op::Request.number() && header.dst_port == 4 {
            return;
        }
    }
    panic!("the device still opens connections");
}
