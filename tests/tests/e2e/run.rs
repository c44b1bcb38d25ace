//! `lilbox run`: a throw-away box for one command.

use crate::forms::Random;
use std::time::Duration;
use tests::Lab;

trials![
    prints_42,
    exit_codes_are_the_commands_own,
    a_missing_command_is_127_and_a_directory_126,
    timeout_is_124,
    stdin_comes_back_identical,
    the_kernel_is_not_the_hosts,
    environment_workdir_and_user_are_applied,
    stdout_and_stderr_stay_apart,
    nothing_is_left_behind,
    bad_options_fail_before_anything_is_made,
];

fn prints_42() {
    let lab = Lab::new();
    let finished = lab.run(["--", "python3", "-c", "print(6*7)"]);
    let _ = finished.assert_code(0).assert_stdout("42\n");
}

fn exit_codes_are_the_commands_own() {
    let lab = Lab::new();
    let _ = lab.run(["--", "sh", "-c", "exit 7"]).assert_code(7);
    let _ = lab.run(["--", "sh", "-c", "kill -9 $$"]).assert_code(137);
    let _ = lab.run(["--", "true"]).assert_code(0).assert_stdout("");
}

fn a_missing_command_is_127_and_a_directory_126() {
    let lab = Lab::new();
    let _ = lab.run(["--", "nosuch"]).assert_code(127).assert_stderr_contains("nosuch");
    let _ = lab.run(["--", "/etc"]).assert_code(126).assert_stderr_contains("/etc");
    let _ = lab.run(["--", "/etc/passwd"]).assert_code(126);
}

fn timeout_is_124() {
    let lab = Lab::new();
    let finished = lab.run(["--timeout", "2s", "--", "sleep", "60"]).assert_code(124);
    // The command's own time is bounded to 4 s; booting an emulated box may take many more.
    assert!(finished.elapsed < Duration::from_secs(50), "{finished}");
    let sandbox = lab.boot([]);
    let finished =
        lab.lilbox(["exec", "--timeout", "2s", &sandbox.name, "--", "sleep", "60"]).run();
    assert!(finished.elapsed < Duration::from_secs(4), "timeout 2s ends within 4 s: {finished}");
    let _ = finished.assert_code(124);
}

fn stdin_comes_back_identical() {
    let lab = Lab::new();
    let bytes = Random::new(42).bytes(64 << 20);
    let finished = lab.lilbox(["run", "--", "cat"]).stdin(bytes.clone()).run().assert_code(0);
    assert!(
        finished.stdout == bytes,
        "{} of {} bytes came back",
        finished.stdout.len(),
        bytes.len()
    );
}

fn the_kernel_is_not_the_hosts() {
    let lab = Lab::new();
    let inside =
        lab.run(["--", "cat", "/proc/sys/kernel/random/boot_id"]).assert_code(0).stdout_text();
    let host = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("host's boot id");
    assert_ne!(inside, host, "a box runs a kernel of its own");
    let release = lab.run(["--", "uname", "-r"]).assert_code(0).stdout_text();
    let host = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("host's release");
    // Inside the machine both are lilbox's kernel: the same release, another boot.
    assert!(tests::place::is_inside_machine() || release != host, "{release} {host}");
}

fn environment_workdir_and_user_are_applied() {
    let lab = Lab::new();
    let script = "echo $A:$B; pwd; id -un; id -u";
    let options =
        ["-e", "A=x y", "-e", "B=", "-w", "/usr/lib", "-u", "nobody", "--", "sh", "-c", script];
    let _ = lab.run(options).assert_code(0).assert_stdout("x y:\n/usr/lib\nnobody\n65534\n");
    let _ = lab
        .run(["-u", "ghost", "--", "true"])
        .assert_code(125)
        .assert_stderr_contains("user_not_found");
    // A box's own working directory is made if it is missing, as container engines do; an exec's is not.
    let _ = lab.run(["-w", "/new/dir", "--", "pwd"]).assert_code(0).assert_stdout("/new/dir\n");
    let sandbox = lab.boot([]);
    let finished = lab.lilbox(["exec", "-w", "/nowhere", &sandbox.name, "--", "true"]).run();
    let _ = finished.assert_code(125).assert_stderr_contains("workdir_invalid");
}

fn stdout_and_stderr_stay_apart() {
    let lab = Lab::new();
    let finished = lab.run(["--", "sh", "-c", "echo out; echo err >&2"]).assert_code(0);
    let _ = finished.assert_stdout("out\n").assert_stderr_contains("err");
}

fn nothing_is_left_behind() {
    let lab = Lab::new();
    let _ = lab.run(["--", "true"]).assert_code(0);
    assert!(lab.list().is_empty());
    assert!(lab.vmm_pids().is_empty());
    let boxes = lab.home().join("data/boxes");
    let left = std::fs::read_dir(&boxes).map_or(0, Iterator::count);
    assert_eq!(left, 0, "files left in {}", boxes.display());
}

fn bad_options_fail_before_anything_is_made() {
    let lab = Lab::new();
    for options in [
        &["--cpus", "0", "--", "true"][..],
        &["--cpus", "65", "--", "true"],
        &["--memory", "lots", "--", "true"],
        &["--memory", "1M", "--", "true"],
        &["--timeout", "soon", "--", "true"],
        &["--no-such-flag", "--", "true"],
        &["-e", "=x", "--", "true"],
    ] {
        let finished = lab.run(options.iter().copied());
        assert_eq!(finished.code, 2, "{finished}");
    }
    let _ = lab.run(["--image", "no/such-image", "--", "true"]).assert_code(125);
    assert!(lab.list().is_empty());
}
