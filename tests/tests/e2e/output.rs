//! Much output and slow readers: nothing lost, nothing piled up.

use crate::forms::short_or_long;
use std::io::Read;
use std::thread;
use std::time::Duration;
use tests::{Lab, process};

trials![
    output_to_a_slow_reader_is_complete_and_does_not_grow_the_vmm,
    a_closed_pipe_ends_the_command
];

/// `seq` makes output that is cheap to make, long, and of which every byte is known.
fn expected(count: usize) -> impl Iterator<Item = u8> {
    (1..=count).flat_map(|number| format!("{number}\n").into_bytes())
}

fn output_to_a_slow_reader_is_complete_and_does_not_grow_the_vmm() {
    // 12 million lines are 100 MiB, 115 million 1 GiB.
    let count = short_or_long(12_000_000, 115_000_000);
    let lab = Lab::new();
    let sandbox = lab.boot(["--memory", "256M"]);
    let pid = sandbox.vmm_pid();
    let before = process::memory(pid, 256);
    let mut client = sandbox.command(["seq", &count.to_string()]).spawn();
    let mut stdout = client.stdout.take().expect("piped");
    // The guest fills every buffer on the way while nobody reads.
    #[expect(clippy::disallowed_methods, reason = "a slow reader is one that waits on time")]
    thread::sleep(Duration::from_secs(2));
    let blocked = process::memory(pid, 256);
    let (mut buffer, mut lines, mut read_bytes) = (vec![0; 1 << 20], expected(count), 0_usize);
    let mut largest = before.own_kib.max(blocked.own_kib);
    loop {
        let read = stdout.read(&mut buffer).expect("read the command's output");
        if read == 0 {
            break;
        }
        for byte in &buffer[..read] {
            assert_eq!(Some(*byte), lines.next(), "byte {read_bytes} of the output");
            read_bytes += 1;
        }
        if read_bytes % (16 << 20) < read {
            largest = largest.max(process::memory(pid, 256).own_kib);
        }
    }
    assert_eq!(lines.next(), None, "output ended after {read_bytes} bytes");
    assert!(client.wait().expect("reap").success());
    let grown = largest.saturating_sub(before.own_kib);
    assert!(grown <= 8 << 10, "the VMM grew by {grown} KiB");
}

fn a_closed_pipe_ends_the_command() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    let mut client = sandbox.command(["yes"]).spawn();
    let mut stdout = client.stdout.take().expect("piped");
    stdout.read_exact(&mut [0; 4096]).expect("some output");
    drop(stdout);
    let mut stderr = String::new();
    client.stderr.take().expect("piped").read_to_string(&mut stderr).expect("read stderr");
    client.wait().expect("the command ends when its reader has gone");
    assert!(!stderr.contains("panic"), "{stderr}");
    let script =
        "for i in $(seq 100); do pgrep -x yes >/dev/null || exit 0; sleep 0.1; done; exit 1";
    let _ = sandbox.exec(["sh", "-c", script]).assert_code(0);
}
