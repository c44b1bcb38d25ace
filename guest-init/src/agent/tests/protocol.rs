//! Requests that are no execs, and peers that do not keep to the protocol.

use super::*;
use crate::agent::listen::{Listener, MAX_CONNECTIONS};
use proto::agent::kind;
use proto::code::Code;
use proto::frame;
use std::net::{TcpListener, TcpStream};

const SECRET: &[u8] = b"correct horse";

#[test]
fn hello_tells_who_the_guest_is() {
    let mut host = Host::ask(Op::Hello);
    let Some(Message::Reply(Reply::Hello(hello))) = host.next() else { panic!("no hello") };
    assert_eq!(hello.protocol, AGENT_PROTOCOL);
    assert_eq!(hello.version, env!("CARGO_PKG_VERSION"));
    assert!(!hello.kernel.is_empty() && hello.ready_uptime_nanos > 0);
    assert_eq!(host.next(), None);
}

#[test]
fn sync_is_done_and_power_off_is_answered_first() {
    assert_eq!(Host::ask(Op::Sync).next(), Some(Message::Reply(Reply::Done)));
    let mut host = Host::ask(Op::Poweroff { grace_ms: 1234 });
    assert_eq!(host.next(), Some(Message::Reply(Reply::Done)));
    let (_, watch) = agent();
    assert_eq!(watch.wait(), Duration::from_millis(1234));
}

#[test]
fn a_time_that_no_clock_can_show_is_refused() {
    if is_root() {
        eprintln!("skipped: as root this would set the clock of the host");
        return;
    }
    let mut host = Host::ask(Op::SetTime { unix_nanos: 1 });
    assert!(
        matches!(host.next(), Some(Message::Reply(Reply::Failed(failed))) if failed.code == Code::Io)
    );
}

#[test]
fn another_version_is_told_so() {
    let mut host = Host::connect();
    host.send(&Message::Request(Request { protocol: AGENT_PROTOCOL + 1, op: Op::Hello }));
    let Some(Message::Reply(Reply::Failed(failed))) = host.next() else { panic!("no answer") };
    assert_eq!(failed.code, Code::ProtocolMismatch);
    assert_eq!(host.next(), None);
}

#[test]
fn the_secret_opens_and_nothing_else_does() {
    let ask = |offered: &[&[u8]]| {
        let mut host = Host::connect_with(Some(SECRET));
        for secret in offered {
            host.send(&Message::Auth(secret.to_vec()));
        }
        host.send(&Message::Request(Request { protocol: AGENT_PROTOCOL, op: Op::Hello }));
        host.next()
    };
    assert!(matches!(ask(&[SECRET]), Some(Message::Reply(Reply::Hello(_)))));
    for wrong in [&b""[..], b"wrong", b"correct hors", b"correct horses", &[0; 4000]] {
        let answer = ask(&[wrong]);
        assert!(
            matches!(&answer, Some(Message::Reply(Reply::Failed(failed))) if failed.code == Code::Unauthorized),
            "{answer:?}"
        );
    }
    let answer = ask(&[]);
    assert!(
        matches!(&answer, Some(Message::Reply(Reply::Failed(failed))) if failed.code == Code::Unauthorized)
    );
}

#[test]
fn a_client_without_the_secret_cannot_make_the_guest_hold_much() {
    let mut host = Host::connect_with(Some(SECRET));
    let mut sent = frame::header(kind::AUTH, 1 << 20).unwrap().to_vec();
    sent.resize(64 << 10, 0);
    // The guest closes long before it has taken in what was announced; whether it takes this much is its affair.
    let _ = host.stream.write_all(&sent);
    assert_eq!(host.next(), None);
}

#[test]
fn garbage_closes_the_connection_and_harms_nobody() {
    let mut floods: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: guest\r\n\r\n".to_vec(),
        vec![0xff; 100],
        vec![0; 100],
        frame::header(kind::REQUEST, 0).unwrap().to_vec(),
        [&frame::header(kind::REQUEST, 3).unwrap()[..], &[0xff; 3]].concat(),
        [&frame::header(99, 1).unwrap()[..], &[0]].concat(),
        Message::Exit(Exit::default()).encode().unwrap(),
        Message::Auth(b"unasked".to_vec()).encode().unwrap(),
    ];
    let request =
        Message::Request(Request { protocol: AGENT_PROTOCOL, op: Op::Hello }).encode().unwrap();
    floods.extend((0..request.len() * 8).map(|bit| {
        let mut flipped = request.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        flipped
    }));
    for flood in floods {
        let mut host = Host::connect();
        // The guest may close before everything is written.
        let _ = host.stream.write_all(&flood);
        let _ = host.stream.shutdown(std::net::Shutdown::Write);
        while host.next().is_some() {}
    }
    assert!(matches!(Host::ask(Op::Hello).next(), Some(Message::Reply(Reply::Hello(_)))));
}

#[test]
fn garbage_in_the_middle_of_an_exec_hangs_it_up() {
    let meeting = Meeting::new();
    let script = "trap 'echo hangup > @from; exit' HUP; echo ready; while :; do sleep 0.05; done";
    let mut host = Host::exec(meeting.shell(script));
    host.wait_for("ready");
    host.send(&Message::Signal(200));
    assert_eq!(meeting.hear(), "hangup");
}

#[test]
fn more_connections_than_are_served_are_told_to_come_later() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let (agent, _) = agent();
    Listener::Tcp { socket, secret: SECRET.into() }.serve(Arc::clone(agent)).unwrap();
    let hello = [
        Message::Auth(SECRET.to_vec()).encode().unwrap(),
        Message::Request(Request { protocol: AGENT_PROTOCOL, op: Op::Hello }).encode().unwrap(),
    ]
    .concat();
    let ask = |stream: &mut TcpStream| {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = Vec::new();
        // A refused client may find the connection reset while it still sends.
        let _ = stream.write_all(&hello);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut answer);
        let mut decoder = FrameDecoder::new();
        decoder.push(&answer);
        decoder.next_frame().unwrap().map(|frame| Message::decode(frame).unwrap())
    };
    let served = |answer: &Option<Message>| matches!(answer, Some(Message::Reply(Reply::Hello(_))));
    let idle: Vec<_> = (0..MAX_CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut refused = TcpStream::connect(address).unwrap();
    refused.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    refused.read_to_end(&mut answer).unwrap();
    let mut decoder = FrameDecoder::new();
    decoder.push(&answer);
    let message = Message::decode(decoder.next_frame().unwrap().unwrap()).unwrap();
    assert!(
        matches!(message, Message::Reply(Reply::Failed(failed)) if failed.code == Code::LimitReached)
    );
    drop(idle);
    eventually("there is room again", || served(&ask(&mut TcpStream::connect(address).unwrap())));
}
