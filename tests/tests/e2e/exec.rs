//! `lilbox exec`: many commands in one box.

use std::thread;
use tests::{Lab, process};

trials![
    two_hundred_in_a_row_and_thirty_two_at_once_leave_nothing_behind,
    a_background_child_does_not_hold_the_exec,
    a_client_that_vanishes_hangs_up_its_command,
    a_detached_command_outlives_its_client,
    unknown_and_stopped_boxes_are_named,
    stdin_reaches_end_of_file,
    zombies_are_reaped,
];

fn two_hundred_in_a_row_and_thirty_two_at_once_leave_nothing_behind() {
    let lab = Lab::new();
    let sandbox = lab.boot(["--memory", "512M"]);
    let pid = sandbox.vmm_pid();
    let guest =
        "ls /proc/1/fd | wc -l; ls /proc/1/task | wc -l; grep VmRSS /proc/1/status | tr -dc 0-9";
    let guest_counts = || -> Vec<u64> {
        sandbox.sh(guest).lines().map(|line| line.trim().parse().expect("a count")).collect()
    };
    let at_once = || {
        thread::scope(|scope| {
            for index in 0..32 {
                let sandbox = &sandbox;
                scope.spawn(move || {
                    let text = index.to_string();
                    let finished = sandbox.exec(["sh", "-c", &format!("echo {text}; exit {text}")]);
                    let _ = finished.assert_code(index).assert_stdout(&format!("{text}\n"));
                });
            }
        });
    };
    // The first round warms caches and allocators; what counts is that later rounds add nothing.
    at_once();
    let _ = sandbox.sh("true");
    let host = |pid| (process::descriptors(pid), process::threads(pid));
    let (before, guest_before, memory_before) =
        (host(pid), guest_counts(), process::memory(pid, 512));
    for _ in 0..200 {
        let _ = sandbox.exec(["true"]).assert_code(0);
    }
    at_once();
    let (after, guest_after, memory_after) = (host(pid), guest_counts(), process::memory(pid, 512));
    assert_eq!(before, after, "descriptors and threads of the VMM");
    assert_eq!(guest_before[..2], guest_after[..2], "descriptors and threads of the agent");
    assert!(
        guest_after[2] <= guest_before[2] + 1024,
        "agent grew: {guest_before:?} {guest_after:?} KiB"
    );
    let grown = memory_after.own_kib.saturating_sub(memory_before.own_kib);
    assert!(grown <= 1024, "the VMM grew by {grown} KiB: {memory_before:?} {memory_after:?}");
}

fn a_background_child_does_not_hold_the_exec() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    let _ = sandbox
        .exec(["sh", "-c", "sleep 1000 & echo started"])
        .assert_code(0)
        .assert_stdout("started\n");
}

fn a_client_that_vanishes_hangs_up_its_command() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    let mut client = sandbox.command(["sh", "-c", "echo $$; exec sleep 4242"]).spawn();
    let mut line = String::new();
    let stdout = client.stdout.take().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)
        .expect("the command's pid");
    client.kill().expect("kill -9 the client");
    client.wait().expect("reap the client");
    let pid = line.trim();
    let script = format!(
        "for i in $(seq 100); do kill -0 {pid} 2>/dev/null || exit 0; sleep 0.1; done; exit 1"
    );
    let _ = sandbox.exec(["sh", "-c", &script]).assert_code(0);
}

fn a_detached_command_outlives_its_client() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    let _ =
        lab.lilbox(["exec", "--detach", &sandbox.name, "--", "sleep", "4243"]).run().assert_code(0);
    let _ = sandbox.sh("pgrep -f 'sleep 4243'");
}

fn unknown_and_stopped_boxes_are_named() {
    let lab = Lab::new();
    let finished = lab.lilbox(["exec", "ghost", "--", "true"]).run().assert_code(125);
    let _ = finished
        .assert_stderr_contains("no box named 'ghost'")
        .assert_stderr_contains("box_not_found");
    let sandbox = lab.boot([]);
    let _ = lab.lilbox(["stop", &sandbox.name]).run().assert_code(0);
    let _ = sandbox.exec(["true"]).assert_code(125).assert_stderr_contains("box_stopped");
}

fn stdin_reaches_end_of_file() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let finished = sandbox.command(["wc", "-c"]).stdin(bytes).run().assert_code(0);
    assert_eq!(finished.stdout_text().trim(), "100000");
    let _ = sandbox
        .command(["head", "-c", "3"])
        .stdin("abcdef")
        .run()
        .assert_code(0)
        .assert_stdout("abc");
    let _ = sandbox.command(["true"]).stdin(vec![0; 1 << 20]).run().assert_code(0);
}

fn zombies_are_reaped() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    let _ =
        sandbox.exec(["sh", "-c", "for i in $(seq 50); do (sleep 0.1 &) ; done"]).assert_code(0);
    let script = "for i in $(seq 100); do grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | grep -q . || exit 0; \
                  sleep 0.1; done; exit 1";
    let _ = sandbox.exec(["sh", "-c", script]).assert_code(0);
}
