//! Commands in boxes: streams, exit codes, options.

use crate::harness::{Ended, Home, until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn exit_codes_are_the_commands_and_the_shells() {
    let home = Home::new("ready");
    let _ = home.run(["new", "web"]).code(0);
    for (command, code) in [
        (&["exit", "0"][..], 0),
        (&["exit", "7"], 7),
        (&["exit", "255"], 255),
        (&["killed", "9"], 137),
        (&["times-out"], 124),
        (&["missing"], 127),
        (&["directory"], 126),
    ] {
        let _ = home.run(["run", "--"].iter().chain(command).copied()).code(code);
        let _ = home.run(["exec", "web", "--"].iter().chain(command).copied()).code(code);
        // Without `--` too.
        let _ = home.run(["exec", "web"].iter().chain(command).copied()).code(code);
    }
    let _ = home
        .run(["run", "--", "missing"])
        .code(127)
        .says(&["error[command_not_found]: missing: no such command"]);
    assert_eq!(home.list().len(), 1);
    assert_eq!(home.left().len(), 2);
}

#[test]
fn streams_stay_apart_and_input_comes_back() {
    let home = Home::new("ready");
    let ended = home.run(["run", "--", "echo", "hello", "world"]).code(0);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("hello world\n", "on stderr\n"));
    assert_eq!(home.run(["run"]).code(0).stdout, "from the image\n");
    let bytes: Vec<u8> =
        (0..1 << 20).map(|index: u32| index.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    assert!(home.run_with(["run", "--", "cat"], &bytes).code(0).bytes == bytes);
    // Input that nobody reads does not hold anything up.
    let _ = home.run_with(["run", "--", "exit", "3"], &bytes).code(3);
}

#[test]
fn options_reach_the_guest() {
    let home = Home::new("ready");
    let _ = home.run(["new", "web"]).code(0);
    let described = home
        .run([
            "exec",
            "-e",
            "A=x y",
            "-e",
            "HOME",
            "-w",
            "/srv",
            "-u",
            "1000:100",
            "--timeout",
            "2m",
            "web",
            "--",
            "describe",
        ])
        .code(0)
        .stdout;
    let user = home.path("user");
    assert_eq!(
        described,
        format!(
            "env A=x y HOME={}\ncwd Some(\"/srv\")\nuser Some(\"1000:100\")\ntty None\nstdin true\ntimeout Some(120000)\ndetach false\n",
            user.display()
        )
    );
    let _ = home.run(["exec", "--detach", "web", "--", "wait"]).code(0);
}

#[test]
fn output_that_nobody_reads_ends_the_command_quietly() {
    let home = Home::new("ready");
    let mut child = home.spawn(["run", "--", "yes"]);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "y\n");
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()),
        (Some(141), "")
    );
    assert!(home.left().is_empty());
    // The same of a list.
    let mut command = home.lilbox(["completions", "bash"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = Ended::from(
        command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap(),
    );
    assert_eq!(ended.code(0).stderr, "");
}

#[test]
fn signals_reach_the_command() {
    let home = Home::new("ready");
    let _ = home.run(["new", "web"]).code(0);
    for (signal, code) in
        [(Signal::INT, 130), (Signal::TERM, 143), (Signal::USR1, 138), (Signal::HUP, 129)]
    {
        for args in [&["exec", "web", "--", "wait"][..], &["run", "--", "wait"]] {
            let mut child = home.spawn(args.iter().copied());
            let mut line = String::new();
            BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "waiting\n");
            kill_process(Pid::from_child(&child), signal).unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(code), "{args:?}");
        }
    }
    assert_eq!(home.left().len(), 2);
}

#[test]
fn a_box_that_dies_under_its_command_is_an_error_with_its_console() {
    let home = Home::new("ready");
    let ended = home.run(["run", "--", "die"]).code(125);
    let _ = ended.says(&["error[guest_died]", "the last lines of its console", "hello from box-"]);
    assert!(home.left().is_empty());
    let _ = home.run(["new", "web"]).code(0);
    let _ = home
        .run(["exec", "web", "--", "die"])
        .code(125)
        .says(&["error[guest_died]", "lilbox logs web"]);
    until("the VMM has ended", || home.vmms().is_empty());
}

/// `nohup` leaves a standard input that cannot be read; shells can make it a directory.
#[test]
fn a_standard_input_that_cannot_be_read_is_an_empty_one() {
    let home = Home::new("ready");
    let _ = home.run(["new", "web"]).code(0);
    for (input, warning) in [
        (File::options().write(true).open("/dev/null").unwrap(), ""),
        (File::open(home.root()).unwrap(), "warning: standard input is a directory"),
    ] {
        for args in [&["exec", "web", "--", "cat"][..], &["run", "--", "cat"]] {
            let mut command = home.lilbox(args.iter().copied());
            command.stdin(input.try_clone().unwrap());
            let ended = Ended::of(command).code(0).says(&[warning]);
            assert_eq!(ended.stdout, "");
        }
    }
}
