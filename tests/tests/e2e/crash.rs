//! `kill -9` anywhere: the next command tells the truth and works.

use crate::forms::{Random, short_or_long};
use std::time::{Duration, Instant};
use tests::Lab;

trials![
    killing_new_at_any_moment_leaves_nothing,
    killing_run_at_any_moment_leaves_nothing,
    killing_the_vmm_is_seen_at_once,
    fifty_commands_at_once_agree,
];

/// How long a whole command takes, so that kills can be spread over it.
fn duration_of(lab: &Lab, args: &[&str]) -> Duration {
    let begin = Instant::now();
    let _ = lab.lilbox(args.iter().copied()).run().assert_code(0);
    begin.elapsed()
}

fn assert_clean(lab: &Lab) {
    assert_eq!(lab.list(), Vec::<serde_json::Value>::new(), "rows left");
    // A VMM whose parent is gone ends by itself; it needs a moment to notice.
    let deadline = Instant::now() + Duration::from_secs(20);
    while !lab.vmm_pids().is_empty() {
        assert!(Instant::now() < deadline, "processes left: {:?}", lab.vmm_pids());
        std::thread::yield_now();
    }
    let _ = lab.lilbox(["ls"]).run().assert_code(0);
    for directory in ["data/boxes", "run"] {
        let entries = std::fs::read_dir(lab.home().join(directory)).into_iter().flatten();
        let left: Vec<_> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.len() == 12 && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .collect();
        assert!(left.is_empty(), "left in {directory}: {left:?}");
    }
}

/// Kills a command at random moments of its life and asserts each time that nothing is left.
fn kill_at_random_moments(args: &[&str], removes_itself: bool, count: usize, seed: u64) {
    let lab = Lab::new();
    let whole = duration_of(&lab, args);
    if !removes_itself {
        let _ = lab.lilbox(["rm", "--force", "victim"]).run().assert_code(0);
    }
    let mut random = Random::new(seed);
    for _ in 0..count {
        let moment = whole
            .mul_f64(f64::from(u16::try_from(random.next() % 1000).expect("below 1000")) / 1000.0);
        let mut child = lab.lilbox(args.iter().copied()).spawn();
        #[expect(clippy::disallowed_methods, reason = "the kill comes at a random time")]
        std::thread::sleep(moment);
        child.kill().expect("kill -9");
        child.wait().expect("reap");
        // The command may have been through: then the box is whole and usable.
        for row in lab.list() {
            assert_eq!(row["status"], "running", "after a kill at {moment:?}: {row}");
            let _ = lab.lilbox(["exec", "victim", "--", "true"]).run().assert_code(0);
            let _ = lab.lilbox(["rm", "--force", "victim"]).run().assert_code(0);
        }
        assert_clean(&lab);
    }
    assert_eq!(lab.boot([]).sh("echo alive"), "alive");
}

fn killing_new_at_any_moment_leaves_nothing() {
    kill_at_random_moments(&["new", "victim"], false, short_or_long(20, 400), 11);
}

fn killing_run_at_any_moment_leaves_nothing() {
    kill_at_random_moments(
        &["run", "--", "sh", "-c", "sleep 0.2"],
        true,
        short_or_long(10, 400),
        12,
    );
}

fn killing_the_vmm_is_seen_at_once() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    for _ in 0..short_or_long(3, 50) {
        let _ = sandbox.sh("echo precious > /root/file; sync");
        let pid = rustix::process::Pid::from_raw(i32::try_from(sandbox.vmm_pid()).expect("a pid"))
            .expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill -9 the VMM");
        let _ = sandbox.exec(["true"]).assert_code(125);
        assert_eq!(lab.list()[0]["status"], "stopped");
        let _ = lab.lilbox(["start", &sandbox.name]).run().assert_code(0);
        assert_eq!(sandbox.sh("cat /root/file"), "precious");
    }
}

fn fifty_commands_at_once_agree() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    std::thread::scope(|scope| {
        for index in 0..50 {
            let (lab, sandbox) = (&lab, &sandbox);
            scope.spawn(move || match index % 4 {
                0 => drop(sandbox.exec(["true"]).assert_code(0)),
                1 => assert_eq!(lab.list().len(), 1),
                2 => drop(lab.lilbox(["new", &sandbox.name]).run().assert_code(1)),
                _ => drop(sandbox.stat()),
            });
        }
    });
}
