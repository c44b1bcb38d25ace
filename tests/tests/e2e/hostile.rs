//! Hostile input on a box's sockets, and guests that die.

use crate::forms::Random;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use tests::{Lab, TestBox};

trials![
    garbage_on_the_agent_socket_harms_nothing,
    garbage_on_the_control_socket_harms_nothing,
    a_guest_that_crashes_is_seen_as_stopped,
    a_broken_image_gives_its_reason,
    another_user_cannot_reach_the_sockets,
];

fn sockets(sandbox: &TestBox<'_>) -> Vec<PathBuf> {
    let stat = sandbox.stat();
    ["agent_socket", "control_socket"]
        .map(|key| stat[key].as_str().expect("a socket's path").into())
        .into()
}

fn throw_garbage_at(socket: &PathBuf, seed: u64) {
    let mut random = Random::new(seed);
    let mut inputs: Vec<Vec<u8>> = (0..40).map(|round| random.bytes(1 << (round % 17))).collect();
    inputs.push(Vec::new());
    inputs.push(vec![0xff; 64]);
    inputs.push([&[0, 0, 0x40, 0, 2][..], &[0x9f; 4096]].concat()); // announces 4 MiB, nests without end
    inputs.push([&[4, 0, 0, 0, 64][..], &[0xa1, 0x61, 0x61, 0x01]].concat()); // a request without a request's fields
    let open: Vec<UnixStream> = inputs
        .iter()
        .map(|input| {
            let mut stream = UnixStream::connect(socket).expect("connect");
            stream.set_read_timeout(Some(Duration::from_millis(50))).expect("set a timeout");
            // The other side may hang up at any byte.
            let _ = stream.write_all(input);
            let _ = stream.read(&mut [0; 64]);
            stream
        })
        .collect();
    drop(open);
}

fn garbage_on_the_agent_socket_harms_nothing() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    throw_garbage_at(&sockets(&sandbox)[0], 1);
    assert_eq!(sandbox.sh("echo alive"), "alive");
}

fn garbage_on_the_control_socket_harms_nothing() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    throw_garbage_at(&sockets(&sandbox)[1], 2);
    assert_eq!(sandbox.stat()["status"], "running");
    assert_eq!(sandbox.sh("echo alive"), "alive");
    let _ = lab.lilbox(["stop", &sandbox.name]).run().assert_code(0);
}

fn a_guest_that_crashes_is_seen_as_stopped() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    // PID 1 cannot be killed; a reboot without an orderly end is what a crash looks like from outside.
    let mut client = sandbox
        .command(["sh", "-c", "echo 1 > /proc/sys/kernel/sysrq; echo b > /proc/sysrq-trigger"])
        .spawn();
    client.wait().expect("the exec ends with its box");
    let _ = lab.lilbox(["stop", &sandbox.name]).run();
    assert_eq!(lab.list()[0]["status"], "stopped");
    let _ = lab.lilbox(["start", &sandbox.name]).run().assert_code(0);
    assert_eq!(sandbox.sh("echo alive"), "alive");
}

fn a_broken_image_gives_its_reason() {
    let lab = Lab::new();
    let image = lab.home().join("broken.erofs");
    let mut bytes = Random::new(3).bytes(1 << 20);
    bytes[1024..1028].copy_from_slice(&0xE0F5_E1E2_u32.to_le_bytes());
    std::fs::write(&image, bytes).expect("write the image");
    // It looks like an image to the host, which never parses more than that; the guest finds out, and says where.
    let _ = lab
        .run(["--image", image.to_str().expect("UTF-8"), "--", "true"])
        .assert_code(125)
        .assert_stderr_contains("error[guest_died]")
        .assert_stderr_contains("cannot assemble the root");
    assert!(lab.list().is_empty() && lab.vmm_pids().is_empty());
}

fn another_user_cannot_reach_the_sockets() {
    use std::os::unix::fs::MetadataExt;
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    for socket in sockets(&sandbox) {
        let open_to_others = socket
            .ancestors()
            .skip(1)
            .all(|dir| dir.metadata().is_ok_and(|metadata| metadata.mode() & 0o011 != 0));
        let mode = socket.metadata().expect("the socket").mode();
        assert!(
            !open_to_others || mode & 0o066 == 0,
            "{} can be reached by others",
            socket.display()
        );
    }
}
