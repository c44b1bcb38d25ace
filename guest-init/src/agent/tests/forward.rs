//! Port forwarding.

use super::*;
use proto::code::Code;
use std::net::{Shutdown, TcpListener, TcpStream};

/// A forwarded connection, and the listener's side of it.
fn forwarded(listener: &TcpListener) -> (UnixStream, TcpStream) {
    let port = listener.local_addr().unwrap().port();
    let mut host = Host::connect();
    let request = Message::Request(Request { protocol: AGENT_PROTOCOL, op: Op::Forward { port } });
    // Bytes that follow the request at once belong to the stream.
    host.stream.write_all(&[request.encode().unwrap(), b"early ".to_vec()].concat()).unwrap();
    assert_eq!(host.next(), Some(Message::Reply(Reply::Done)));
    let (server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(host.decoder.into_rest().is_empty(), "nothing was sent yet");
    (host.stream, server)
}

fn read_all(mut from: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn each_side_can_end_its_direction_first() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(listener) = TcpListener::bind(address) else {
            eprintln!("skipped {address}: this host has no such loopback");
            continue;
        };
        let (mut client, mut server) = forwarded(&listener);
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&server), b"early question");
        server.write_all(b"answer").unwrap();
        drop(server);
        assert_eq!(read_all(&client), b"answer");

        let (mut client, mut server) = forwarded(&listener);
        server.write_all(b"greeting").unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&client), b"greeting");
        client.write_all(b"reply").unwrap();
        drop(client);
        assert_eq!(read_all(&server), b"early reply");
    }
}

#[test]
fn much_passes_both_ways_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (client, server) = forwarded(&listener);
    let payload = vec![b'x'; 8 << 20];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&client).write_all(&payload).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        scope.spawn(|| {
            (&server).write_all(&payload).unwrap();
            server.shutdown(Shutdown::Write).unwrap();
        });
        let down = scope.spawn(|| read_all(&client));
        assert_eq!(read_all(&server).len(), payload.len() + b"early ".len());
        assert_eq!(down.join().unwrap().len(), payload.len());
    });
}

#[test]
fn a_port_without_a_listener_is_refused() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut host = Host::ask(Op::Forward { port });
    let Some(Message::Reply(Reply::Failed(failed))) = host.next() else { panic!("no answer") };
    assert_eq!(failed.code, Code::ConnectionRefused);
    assert!(failed.message.contains(&port.to_string()));
    assert_eq!(host.next(), None);
}

#[test]
fn a_side_that_vanishes_takes_the_other_along() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (client, server) = forwarded(&listener);
    drop(client);
    assert_eq!(read_all(&server), b"early ");
    let (client, server) = forwarded(&listener);
    drop(server);
    assert_eq!(read_all(&client), b"");
}
