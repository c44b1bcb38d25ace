//! `new`, `ls`, `stat`, `stop`, `start`, `restart`, `rm`, `logs`: the life of a box.

use tests::Lab;

trials![
    files_survive_stop_and_start,
    names_are_unique_and_random_when_absent,
    ls_and_stat_tell_the_truth,
    stop_is_orderly,
    removal_leaves_nothing,
    the_console_is_logged,
    identity_is_set,
    the_root_is_writable_and_large,
];

fn files_survive_stop_and_start() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    let _ = sandbox.sh("echo kept > /root/file && rm /etc/debian_version && mkdir /srv/d");
    for command in [&["stop"][..], &["start"], &["restart"]] {
        let arguments = command.iter().copied().chain([sandbox.name.as_str()]);
        let _ = lab.lilbox(arguments).run().assert_code(0);
    }
    let script = "cat /root/file; test ! -e /etc/debian_version && test -d /srv/d && echo gone";
    assert_eq!(sandbox.sh(script), "kept\ngone");
}

fn names_are_unique_and_random_when_absent() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    let _ = lab
        .lilbox(["new", &sandbox.name])
        .run()
        .assert_code(1)
        .assert_stderr_contains("box_exists");
    let random = lab.lilbox(["new"]).text();
    let digits = random.strip_prefix("box-").expect("random names begin with box-");
    assert!(digits.len() == 6 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{random}");
    let _ = lab.lilbox(["new", "no/slash"]).run().assert_code(2);
}

fn ls_and_stat_tell_the_truth() {
    let lab = Lab::new();
    let sandbox = lab.boot(["--cpus", "2", "--memory", "256M"]);
    let row = &lab.list()[0];
    assert_eq!(
        (row["name"].as_str(), row["status"].as_str()),
        (Some(sandbox.name.as_str()), Some("running"))
    );
    let stat = sandbox.stat();
    assert_eq!((stat["cpus"].as_u64(), stat["memory_mib"].as_u64()), (Some(2), Some(256)));
    let _ = lab.lilbox(["stop", &sandbox.name]).run().assert_code(0);
    assert_eq!(lab.list()[0]["status"], "stopped");
    assert_eq!(sandbox.stat()["pid"], serde_json::Value::Null);
}

fn stop_is_orderly() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    let trap = "trap 'echo orderly > /root/end; sync; exit 0' TERM; echo ready > /root/up; while :; do sleep 0.1; done";
    let _ = lab
        .lilbox(["exec", "--detach", &sandbox.name, "--", "sh", "-c", trap])
        .run()
        .assert_code(0);
    let _ = sandbox.sh("while ! test -e /root/up; do sleep 0.1; done");
    let _ = lab.lilbox(["stop", &sandbox.name]).run().assert_code(0);
    let _ = lab.lilbox(["start", &sandbox.name]).run().assert_code(0);
    assert_eq!(sandbox.sh("cat /root/end"), "orderly");
}

fn removal_leaves_nothing() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    let _ = lab
        .lilbox(["rm", &sandbox.name])
        .run()
        .assert_code(1)
        .assert_stderr_contains("box_running");
    let _ = lab.lilbox(["rm", "--force", &sandbox.name]).run().assert_code(0);
    assert!(lab.list().is_empty() && lab.vmm_pids().is_empty());
    assert_eq!(std::fs::read_dir(lab.home().join("data/boxes")).map_or(0, Iterator::count), 0);
    let _ = lab
        .lilbox(["rm", &sandbox.name])
        .run()
        .assert_code(1)
        .assert_stderr_contains("box_not_found");
}

fn the_console_is_logged() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    let _ = sandbox.sh("echo marker-4711 > /dev/hvc0");
    let logs = lab.lilbox(["logs", &sandbox.name]).text();
    assert!(logs.contains("marker-4711"), "{logs}");
}

fn identity_is_set() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    assert_eq!(sandbox.sh("hostname"), sandbox.name);
    assert_eq!(
        sandbox.sh("python3 -c \"import socket; print(socket.gethostbyname('localhost'))\""),
        "127.0.0.1"
    );
    let _ = sandbox.sh(&format!("grep -qw {} /etc/hosts", sandbox.name));
    let guest: u64 = sandbox.sh("date +%s").parse().expect("seconds");
    let host = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    assert!(host.abs_diff(guest) <= 5, "guest clock {guest}, host clock {host}");
    let mounts = sandbox.sh("cat /proc/mounts");
    for expected in [
        "overlay / overlay",
        "/proc proc",
        "/sys sysfs",
        "/dev devtmpfs",
        "cgroup2",
        "/dev/pts devpts",
    ] {
        assert!(mounts.contains(expected), "`{expected}` is not in\n{mounts}");
    }
}

fn the_root_is_writable_and_large() {
    let lab = Lab::new();
    let sandbox = lab.boot(["--disk", "6G"]);
    let kib: u64 = sandbox.sh("df --output=size / | tail -n 1").parse().expect("a size");
    assert!((5_500_000..6_400_000).contains(&kib), "root has {kib} KiB");
}
