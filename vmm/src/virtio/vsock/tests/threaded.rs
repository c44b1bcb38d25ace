//! The device on its thread, with a guest and programs on theirs, and nobody waiting on time.

use super::driver::{Guest, Socket};
use crate::virtio::device::VirtioDevice;
use crate::virtio::io_thread::IoThread;
use crate::virtio::vsock::HostPorts;
use crate::virtio::vsock::packet::Op;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;

const BYTES: usize = 4 << 20;
const RX: u32 = 4096;

fn byte(index: usize) -> u8 {
    (index % 251).to_le_bytes()[0]
}

/// Sends back all that comes over one connection, until the program has said all.
fn echo(guest: &mut Guest) {
    let mut socket = None;
    let mut waiting = VecDeque::new();
    let mut ended = false;
    loop {
        let seen = guest.interrupts();
        let mut progress = false;
        while let Some(received) = guest.receive() {
            progress = true;
            let Some(socket) = &mut socket else {
                let mut new = Socket::new(received.0.dst_port, received.0.src_port);
                new.learn(&received.0);
                new.tell(guest, Op::Response, 0);
                socket = Some(new);
                continue;
            };
            match Op::from_number(received.0.op) {
                Some(Op::Data) => waiting.extend(received.1.iter().copied()),
                Some(Op::Shutdown) => ended = true,
                Some(Op::Reset) => return,
                _ => {}
            }
            socket.took(&received);
        }
        while let Some(socket) = &mut socket
            && guest.can_queue()
        {
            let step = waiting.len().min(socket.credit() as usize).min(60_000);
            if step == 0 {
                break;
            }
            let piece: Vec<u8> = waiting.drain(..step).collect();
            socket.queue_data(guest, &piece);
            guest.kick();
            progress = true;
        }
        if ended && waiting.is_empty() && guest.can_queue() {
            ended = false;
            if let Some(socket) = &mut socket {
                socket.tell(guest, Op::Shutdown, 2);
            }
            progress = true;
        }
        if !progress {
            guest.wait_for_interrupt(seen);
        }
    }
}

#[test]
fn echoes_on_its_own_thread() {
    let io = IoThread::spawn("vsock-test", || Ok(())).unwrap();
    let mut guest = Guest::served_by(&io, RX, HostPorts::new());
    let mut writer = guest.client();
    let mut reader = writer.try_clone().unwrap();
    guest.start();
    guest.post_all();
    let writing = thread::spawn(move || {
        let bytes: Vec<u8> = (0..BYTES).map(byte).collect();
        writer.write_all(&bytes).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let reading = thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        bytes
    });
    echo(&mut guest);
    writing.join().unwrap();
    let bytes = reading.join().unwrap();
    assert_eq!(bytes.len(), BYTES);
    assert!(bytes.iter().enumerate().all(|(index, got)| *got == byte(index)));
    guest.device.stop();
    assert_eq!(guest.handle.connection_count(), 0);
    assert_eq!(io.source_count(), 0);
}
