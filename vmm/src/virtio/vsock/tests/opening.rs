//! How connections come to be, or do not.

use super::driver::{Guest, Socket};
use crate::virtio::device::VirtioDevice;
use crate::virtio::vsock::packet::{Header, Op};
use crate::virtio::vsock::{GUEST_CID, HANDSHAKE_LIMIT, HOST_CID, HostPorts, lock};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Instant;

const RX: u32 = 4096;

/// A host port that hands the host's ends of its connections to the test.
pub(super) fn listed(port: u32) -> (HostPorts, mpsc::Receiver<UnixStream>) {
    let (sender, receiver) = mpsc::channel();
    let connect = move || {
        let (ours, theirs) = UnixStream::pair()?;
        sender.send(theirs).map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok(ours)
    };
    (HostPorts::from([(port, Box::new(connect) as _)]), receiver)
}

#[test]
fn a_client_that_came_before_the_guest_is_served() {
    let mut guest = Guest::down(RX, HostPorts::new());
    let mut client = guest.client();
    client.write_all(b"early").unwrap();
    guest.start();
    guest.run();
    for slot in 0..4 {
        guest.post(slot);
    }
    let mut socket = Socket::accept(&mut guest);
    let received = guest.expect(Op::Data);
    assert_eq!(received.1, b"early");
    socket.took(&received);
    socket.send(&mut guest, b"answer");
    let mut answer = [0; 6];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"answer");
}

#[test]
fn a_request_names_the_agents_port_and_a_window() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let _client = guest.client();
    let (request, payload) = guest.expect(Op::Request);
    assert_eq!((request.src_cid, request.dst_cid), (HOST_CID, GUEST_CID));
    assert_eq!(request.dst_port, proto::agent::AGENT_PORT);
    assert_eq!((request.buf_alloc, request.fwd_cnt), (256 << 10, 0));
    assert!(payload.is_empty());
}

#[test]
fn refused_by_the_guest_means_end_of_file() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let mut stream = guest.handle.connect(77).unwrap();
    assert_eq!(guest.handle.connection_count(), 1);
    let (request, _) = guest.expect(Op::Request);
    assert_eq!(request.dst_port, 77);
    let reset = guest.header(Op::Reset, 77, request.src_port);
    guest.send(&reset, &[]);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert_eq!(guest.handle.connection_count(), 0);
    guest.expect_nothing();
}

#[test]
fn a_handle_connects_before_the_guest_is_up() {
    let mut guest = Guest::down(RX, HostPorts::new());
    let mut stream = guest.handle.connect(5).unwrap();
    stream.write_all(b"x").unwrap();
    guest.start();
    for slot in 0..4 {
        guest.post(slot);
    }
    Socket::accept(&mut guest);
    assert_eq!(guest.expect(Op::Data).1, b"x");
}

#[test]
fn a_guest_that_does_not_answer_is_given_up() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let mut client = guest.client();
    let (request, _) = guest.expect(Op::Request);
    lock(&guest.device.worker).turn(Instant::now() + HANDSHAKE_LIMIT / 2);
    assert_eq!(guest.handle.connection_count(), 1);
    // As the timer does; it has not gone off, nor do we wait for it.
    lock(&guest.device.worker).muxer.expire(Instant::now() + HANDSHAKE_LIMIT);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    guest.handle.connect(1).unwrap();
    let (reset, _) = guest.expect(Op::Reset);
    assert_eq!(reset.src_port, request.src_port);
    // Too late.
    let response = guest.header(Op::Response, request.dst_port, request.src_port);
    guest.send(&response, &[]);
    guest.expect(Op::Request);
    guest.expect(Op::Reset);
}

#[test]
fn the_guest_reaches_listed_ports_only() {
    let (ports, host) = listed(1025);
    let mut guest = Guest::up(RX, ports);
    let request = guest.header(Op::Request, 4000, 1025);
    guest.send(&request, &[]);
    let (response, _) = guest.expect(Op::Response);
    assert_eq!((response.src_port, response.dst_port), (1025, 4000));
    let mut socket = Socket::new(4000, 1025);
    socket.learn(&response);
    let mut program = host.recv().unwrap();
    socket.send(&mut guest, b"ready");
    let mut bytes = [0; 5];
    program.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"ready");

    let request = guest.header(Op::Request, 4000, 22);
    guest.send(&request, &[]);
    let (reset, _) = guest.expect(Op::Reset);
    assert_eq!((reset.src_port, reset.dst_port), (22, 4000));
    assert_eq!(guest.handle.connection_count(), 1);
}

#[test]
fn a_host_program_that_cannot_be_reached_refuses() {
    let connect = || Err(io::ErrorKind::NotFound.into());
    let mut guest = Guest::up(RX, HostPorts::from([(9, Box::new(connect) as _)]));
    let request = guest.header(Op::Request, 1, 9);
    guest.send(&request, &[]);
    guest.expect(Op::Reset);
    assert_eq!(guest.handle.connection_count(), 0);
}

#[test]
fn what_belongs_to_no_connection_is_reset_or_dropped() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let stray = guest.header(Op::Data, 1, 2);
    let cases = [
        (stray, true),
        (Header { op: Op::Response.number(), ..stray }, true),
        (Header { op: Op::Shutdown.number(), ..stray }, true),
        (Header { op: 0, ..stray }, true),
        (Header { op: 999, ..stray }, true),
        (Header { kind: 2, op: Op::Request.number(), ..stray }, true),
        (Header { dst_cid: 7, op: Op::Request.number(), ..stray }, true),
        (Header { op: Op::Reset.number(), ..stray }, false),
        (Header { op: Op::Reset.number(), kind: 9, ..stray }, false),
        (Header { src_cid: 4, ..stray }, false),
        (Header { src_cid: 4, op: Op::Request.number(), ..stray }, false),
    ];
    for (header, answered) in cases {
        guest.send(&header, &[]);
        if answered {
            let (reset, _) = guest.expect(Op::Reset);
            assert_eq!(reset.src_cid, header.dst_cid);
            assert_eq!(reset.kind, header.kind);
            assert_eq!((reset.src_port, reset.dst_port), (header.dst_port, header.src_port));
        }
        guest.expect_nothing();
    }
}

#[test]
fn a_port_is_not_opened_twice() {
    let (ports, host) = listed(1025);
    let mut guest = Guest::up(RX, ports);
    let request = guest.header(Op::Request, 4000, 1025);
    guest.send(&request, &[]);
    guest.expect(Op::Response);
    guest.send(&request, &[]);
    guest.expect(Op::Reset);
    assert_eq!(host.recv().unwrap().read(&mut [0]).unwrap(), 0);
    assert_eq!(guest.handle.connection_count(), 0);
}

#[test]
fn connections_are_capped_in_both_directions() {
    const LIMIT: usize = 8;
    let (ports, host) = listed(1025);
    let mut guest = Guest::up(RX, ports);
    lock(&guest.device.worker).muxer.max_links = LIMIT;
    let mut streams: Vec<_> = (0..LIMIT - 1).map(|_| guest.handle.connect(5).unwrap()).collect();
    let request = guest.header(Op::Request, 4000, 1025);
    guest.send(&request, &[]);
    streams.push(host.recv().unwrap());
    assert_eq!(guest.handle.connection_count(), LIMIT);
    assert!(guest.handle.connect(5).is_err());
    let mut client = guest.client();
    guest.run();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    while guest.receive().is_some() {}
    let request = guest.header(Op::Request, 4001, 1025);
    guest.send(&request, &[]);
    guest.expect(Op::Reset);
}

#[test]
fn a_new_driver_does_not_inherit_connections() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let mut client = guest.client();
    Socket::accept(&mut guest);
    assert_eq!(guest.device.stop().len(), 3);
    assert!(guest.device.stop().is_empty());
    let mut waiting = guest.handle.connect(6).unwrap();
    waiting.write_all(b"still here").unwrap();

    guest.rx.restart(&guest.memory);
    guest.tx.restart(&guest.memory);
    guest.start();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    for slot in 0..4 {
        guest.post(slot);
    }
    Socket::accept(&mut guest);
    assert_eq!(guest.expect(Op::Data).1, b"still here");
}

/// As when root in the guest unbinds the driver: commands in the box must not wait for what never comes.
#[test]
fn clients_are_turned_away_once_the_driver_has_left() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let mut client = guest.client();
    Socket::accept(&mut guest);
    guest.device.stop();
    guest.device.driver_left();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    let mut late = guest.client();
    guest.run();
    assert_eq!(late.read(&mut [0]).unwrap(), 0);
    assert!(guest.handle.connect(6).is_err());

    guest.rx.restart(&guest.memory);
    guest.tx.restart(&guest.memory);
    guest.start();
    let _client = guest.client();
    for slot in 0..4 {
        guest.post(slot);
    }
    Socket::accept(&mut guest);
}

#[test]
fn stopped_and_started_again_it_goes_on() {
    let mut guest = Guest::up(RX, HostPorts::new());
    let mut client = guest.client();
    let mut socket = Socket::accept(&mut guest);
    let queues = guest.device.stop();
    client.write_all(b"while stopped").unwrap();
    guest.run();
    guest.resume(queues);
    let received = guest.expect(Op::Data);
    assert_eq!(received.1, b"while stopped");
    socket.took(&received);
    socket.send(&mut guest, b"on");
    let mut bytes = [0; 2];
    client.read_exact(&mut bytes).unwrap();
}

#[test]
fn configuration_space_holds_the_context_id() {
    let guest = Guest::down(RX, HostPorts::new());
    let mut bytes = [0xff; 12];
    guest.device.read_config(0, &mut bytes);
    assert_eq!(bytes, [3, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    let mut bytes = [0xff; 4];
    guest.device.read_config(6, &mut bytes);
    assert_eq!(bytes, [0, 0, 0xff, 0xff]);
    guest.device.read_config(u64::MAX, &mut bytes);
    assert_eq!(bytes, [0, 0, 0xff, 0xff]);
}
