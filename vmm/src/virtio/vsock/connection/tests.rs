//! The state machine as tables: what happens, and what the guest is then told.

use super::*;

const WINDOW: u32 = 4000;
const PEER: u32 = 1000;

/// Something that happens to a connection.
#[derive(Debug, Clone, Copy)]
enum Event {
    Packet(Op),
    Data(u32),
    Shutdown(u32),
    Credit { buf_alloc: u32, fwd_cnt: u32 },
    HostSendsNoMore,
    HostReceivesNoMore,
    Forwarded(u32),
    Sent(u32),
    Starved,
    Abort,
}

use Event::*;

fn header() -> Header {
    Header { buf_alloc: PEER, ..Header::default() }
}

fn apply(connection: &mut Connection, event: Event) -> Reaction {
    match event {
        Packet(op) => return connection.packet(op, &header()),
        Data(len) => return connection.packet(Op::Data, &Header { len, ..header() }),
        Shutdown(flags) => return connection.packet(Op::Shutdown, &Header { flags, ..header() }),
        Credit { buf_alloc, fwd_cnt } => {
            return connection.packet(Op::CreditUpdate, &Header { buf_alloc, fwd_cnt, ..header() });
        }
        HostSendsNoMore => connection.host_sends_no_more(),
        HostReceivesNoMore => connection.host_receives_no_more(),
        Forwarded(count) => connection.forwarded(count),
        Sent(count) => connection.sent(count),
        Starved => connection.starved(),
        Abort => connection.abort(),
    }
    Reaction::Nothing
}

/// All control packets that are owed.
fn drain(connection: &mut Connection) -> Vec<(Op, u32)> {
    let mut owed = Vec::new();
    while connection.owes_control() {
        let control = connection.next_control().expect("owes_control says so");
        connection.tell_credit();
        owed.push((control.op, control.flags));
    }
    assert_eq!(connection.next_control(), None);
    owed
}

/// Asked for by the host, and granted.
fn established() -> Connection {
    let mut connection = Connection::requested(WINDOW);
    assert_eq!(drain(&mut connection), [(Op::Request, 0)]);
    assert_eq!(connection.packet(Op::Response, &header()), Reaction::Opened);
    connection
}

const RECEIVE: u32 = SHUTDOWN_RECEIVE;
const SEND: u32 = SHUTDOWN_SEND;
const BOTH: u32 = SHUTDOWN_BOTH;

#[test]
fn what_the_guest_is_told() {
    const END: [(Op, u32); 2] = [(Op::Shutdown, BOTH), (Op::Reset, 0)];
    type Case = (&'static [Event], &'static [(Op, u32)], bool);
    let cases: &[Case] = &[
        (&[], &[], false),
        // One direction at a time.
        (&[HostSendsNoMore], &[(Op::Shutdown, SEND)], false),
        (&[HostReceivesNoMore], &[(Op::Shutdown, RECEIVE)], false),
        (&[Shutdown(SEND)], &[], false),
        (&[Shutdown(RECEIVE)], &[], false),
        (&[Shutdown(0)], &[], false),
        (&[Shutdown(SEND), HostReceivesNoMore], &[(Op::Shutdown, RECEIVE)], false),
        // Both, by whichever side.
        (&[HostSendsNoMore, HostReceivesNoMore], &END, true),
        (&[Shutdown(SEND), HostSendsNoMore], &END, true),
        (&[HostReceivesNoMore, Shutdown(RECEIVE)], &END, true),
        (&[Shutdown(BOTH)], &[(Op::Reset, 0)], true),
        (&[Shutdown(SEND), Shutdown(RECEIVE)], &[(Op::Reset, 0)], true),
        (&[Shutdown(u32::MAX)], &[(Op::Reset, 0)], true),
        // Over is over.
        (&[Packet(Op::Reset)], &[], true),
        (&[Shutdown(BOTH), Packet(Op::Reset)], &[], true),
        (&[Packet(Op::Reset), HostSendsNoMore, HostReceivesNoMore], &[], true),
        (&[Shutdown(BOTH), Data(10), Packet(Op::Request)], &[(Op::Reset, 0)], true),
        (&[Abort], &[(Op::Reset, 0)], true),
        (&[Abort, Abort, Packet(Op::CreditRequest)], &[(Op::Reset, 0)], true),
        (&[Packet(Op::Reset), Abort], &[], true),
        // Broken rules.
        (&[Packet(Op::Request)], &[(Op::Reset, 0)], true),
        (&[Packet(Op::Response)], &[(Op::Reset, 0)], true),
        (&[Data(WINDOW + 1)], &[(Op::Reset, 0)], true),
        (&[Data(u32::MAX)], &[(Op::Reset, 0)], true),
        (&[Data(WINDOW), Data(1)], &[(Op::Reset, 0)], true),
        (&[Shutdown(SEND), Data(1)], &[(Op::Reset, 0)], true),
        // Credit for the guest.
        (&[Data(WINDOW)], &[], false),
        (&[Data(WINDOW), Forwarded(WINDOW / 4 - 1)], &[], false),
        (&[Data(WINDOW), Forwarded(WINDOW / 4)], &[(Op::CreditUpdate, 0)], false),
        (&[Data(WINDOW), Forwarded(1), Data(1)], &[], false),
        (&[Packet(Op::CreditRequest), Packet(Op::CreditRequest)], &[(Op::CreditUpdate, 0)], false),
        (&[Data(WINDOW), Shutdown(SEND), Forwarded(WINDOW)], &[], false),
        // Credit from the guest.
        (&[Starved], &[], false),
        (&[Sent(PEER), Starved, Starved], &[(Op::CreditRequest, 0)], false),
        (&[Sent(PEER), Starved, Credit { buf_alloc: PEER, fwd_cnt: 1 }], &[], false),
        (&[Sent(PEER), Shutdown(RECEIVE), Starved], &[], false),
    ];
    for (events, told, closed) in cases {
        let mut connection = established();
        for event in *events {
            apply(&mut connection, *event);
        }
        assert_eq!(drain(&mut connection), *told, "{events:?}");
        assert_eq!(connection.is_closed(), *closed, "{events:?}");
    }
}

#[test]
fn told_in_steps_when_it_happens_in_steps() {
    let mut connection = established();
    connection.host_receives_no_more();
    assert_eq!(drain(&mut connection), [(Op::Shutdown, RECEIVE)]);
    connection.host_sends_no_more();
    assert_eq!(drain(&mut connection), [(Op::Shutdown, BOTH), (Op::Reset, 0)]);
}

#[test]
fn a_handshake_by_the_host() {
    // Before the request has gone, the guest cannot know of it.
    let mut connection = Connection::requested(WINDOW);
    assert!(connection.is_unknown_to_guest());
    assert!(matches!(connection.packet(Op::Response, &header()), Reaction::Violation(_)));
    assert!(connection.is_closed());

    let mut connection = Connection::requested(WINDOW);
    connection.abort();
    assert_eq!(drain(&mut connection), []);
    assert!(connection.is_closed());

    for (op, closed, told) in [
        (Op::Reset, true, &[][..]),
        (Op::Data, true, &[(Op::Reset, 0)]),
        (Op::Shutdown, true, &[(Op::Reset, 0)]),
        (Op::Request, true, &[(Op::Reset, 0)]),
        (Op::Response, false, &[]),
    ] {
        let mut connection = Connection::requested(WINDOW);
        drain(&mut connection);
        assert!(!connection.may_send());
        connection.packet(op, &header());
        assert_eq!(drain(&mut connection), told, "{op:?}");
        assert_eq!(connection.is_closed(), closed, "{op:?}");
        assert_eq!(connection.may_send(), op == Op::Response);
    }

    let mut connection = Connection::requested(WINDOW);
    drain(&mut connection);
    connection.abort();
    assert_eq!(drain(&mut connection), [(Op::Reset, 0)]);
}

#[test]
fn a_handshake_by_the_guest() {
    let mut connection = Connection::granted(WINDOW, &header());
    assert!(!connection.may_send(), "nothing may overtake the response");
    assert_eq!(drain(&mut connection), [(Op::Response, 0)]);
    assert_eq!(connection.credit(), PEER);

    let mut connection = Connection::granted(WINDOW, &header());
    connection.host_receives_no_more();
    connection.host_sends_no_more();
    assert_eq!(drain(&mut connection), [(Op::Response, 0), (Op::Shutdown, BOTH), (Op::Reset, 0)]);

    let mut connection = Connection::granted(WINDOW, &header());
    connection.abort();
    assert_eq!(drain(&mut connection), [(Op::Reset, 0)]);
}

#[test]
fn credit_from_the_guest() {
    let cases: &[(&[Event], u32)] = &[
        (&[], PEER),
        (&[Sent(PEER)], 0),
        (&[Sent(400)], 600),
        (&[Sent(400), Credit { buf_alloc: PEER, fwd_cnt: 400 }], PEER),
        (&[Sent(400), Credit { buf_alloc: 300, fwd_cnt: 0 }], 0),
        (&[Credit { buf_alloc: PEER, fwd_cnt: 1 }], 0),
        (&[Credit { buf_alloc: u32::MAX, fwd_cnt: 0 }], u32::MAX),
        (&[Credit { buf_alloc: 0, fwd_cnt: 0 }], 0),
        (&[Shutdown(RECEIVE)], 0),
        (&[HostSendsNoMore], 0),
        (&[Shutdown(SEND), HostReceivesNoMore], PEER),
    ];
    for (events, credit) in cases {
        let mut connection = established();
        for event in *events {
            apply(&mut connection, *event);
        }
        assert_eq!(connection.credit(), *credit, "{events:?}");
    }
}

#[test]
fn counters_wrap() {
    let mut connection = established();
    connection.packet(Op::CreditUpdate, &Header { buf_alloc: u32::MAX, ..header() });
    // Past 2^32 in both directions, in steps that fit the window.
    let (mut sent, mut received) = (0u32, 0u32);
    for _ in 0..5 {
        connection.sent(1 << 30);
        sent = sent.wrapping_add(1 << 30);
        connection.packet(Op::CreditUpdate, &Header { buf_alloc: PEER, fwd_cnt: sent, ..header() });
        assert_eq!(connection.credit(), PEER);
    }
    connection.received = Wrapping(u32::MAX - 10);
    connection.forwarded = connection.received;
    connection.told = connection.received;
    received = received.wrapping_sub(11);
    for _ in 0..10 {
        assert_eq!(apply(&mut connection, Data(WINDOW)), Reaction::Data);
        assert!(matches!(
            connection.window.checked_sub((connection.received - connection.forwarded).0),
            Some(0)
        ));
        connection.forwarded(WINDOW);
        received = received.wrapping_add(WINDOW);
        assert_eq!(connection.tell_credit(), (WINDOW, received));
    }
}

#[test]
fn data_that_nobody_wants_is_credited_at_once() {
    let mut connection = established();
    apply(&mut connection, Data(100));
    connection.host_receives_no_more();
    assert_eq!(apply(&mut connection, Data(WINDOW)), Reaction::Nothing);
    assert_eq!(connection.tell_credit(), (WINDOW, WINDOW + 100));
}

#[test]
fn what_payload_must_not_overtake() {
    let mut connection = established();
    apply(&mut connection, Data(WINDOW));
    connection.forwarded(WINDOW);
    assert!(connection.owes_control() && !connection.owes_urgent_control());
    connection.host_receives_no_more();
    assert!(connection.owes_urgent_control());
}
