//! The ends of execs: of their own accord, by time, or because the client has gone.

use super::*;
use std::path::Path;

#[test]
fn a_background_child_does_not_keep_the_exec_open() {
    let outcome = run(shell("sleep 1000 & echo $!"));
    assert_eq!(outcome.exit, exited(0));
    let child: i32 = outcome.text().parse().unwrap();
    assert!(Path::new(&format!("/proc/{child}")).exists(), "it lives on");
    crate::syscalls::kill(child, libc::SIGKILL).unwrap();
    eventually("the orphan is reaped", || !Path::new(&format!("/proc/{child}")).exists());
}

#[test]
fn a_background_child_that_writes_for_ever_does_not_keep_the_exec_open() {
    let outcome = run(shell("yes & echo $! >&2"));
    assert_eq!(outcome.exit, exited(0));
    let child: i32 = std::str::from_utf8(&outcome.stderr).unwrap().trim().parse().unwrap();
    crate::syscalls::kill(child, libc::SIGKILL).unwrap();
}

#[test]
fn a_background_child_can_write_after_the_exec_has_ended() {
    let meeting = Meeting::new();
    let script =
        "{ read line < @to; echo late; echo later >&2; echo survived > @from; } & echo started";
    assert_eq!(run(meeting.shell(script)).text(), "started");
    assert_eq!(run(meeting.shell("echo go > @to")).exit, exited(0));
    assert_eq!(meeting.hear(), "survived");
}

#[test]
fn time_runs_out_gently_and_then_not() {
    let limited = |script: &str| Exec { timeout_ms: Some(300), ..shell(script) };
    assert_eq!(run(limited("exec sleep 1000")).exit, Exit { timed_out: true, ..killed(15) });
    let deaf = run(limited("trap '' TERM; sleep 1000"));
    assert_eq!(deaf.exit, Exit { timed_out: true, ..killed(9) });
    let polite = run(limited("trap 'echo bye; exit 3' TERM; sleep 1000 & wait"));
    assert_eq!((polite.text(), polite.exit), ("bye", Exit { timed_out: true, ..exited(3) }));
    assert_eq!(run(Exec { timeout_ms: Some(u64::MAX), ..command(&["true"]) }).exit, exited(0));
}

#[test]
fn what_a_timed_out_program_leaves_behind_is_killed_too() {
    let meeting = Meeting::new();
    let script = "(trap '' TERM; exec 9> @from; echo here >&9; sleep 1000) & exec sleep 1000";
    let host = Host::exec(Exec { timeout_ms: Some(1000), ..meeting.shell(script) });
    // Heard to the end: the deaf child's descriptor closes when it is killed.
    assert_eq!(meeting.hear(), "here");
    assert!(host.finish().exit.timed_out);
}

#[test]
fn a_client_that_vanishes_hangs_up() {
    let meeting = Meeting::new();
    let script = "trap 'echo hangup > @from; exit' HUP; echo ready; while :; do sleep 0.05; done";
    let mut host = Host::exec(meeting.shell(script));
    host.wait_for("ready");
    drop(host);
    assert_eq!(meeting.hear(), "hangup");
}

#[test]
fn a_program_deaf_to_the_hangup_is_killed() {
    let meeting = Meeting::new();
    let mut host = Host::exec(meeting.shell("trap '' HUP; echo ready; exec 9> @from; sleep 1000"));
    host.wait_for("ready");
    drop(host);
    assert_eq!(meeting.hear(), "");
}

#[test]
fn a_stopped_program_hears_the_hangup() {
    let meeting = Meeting::new();
    let mut host =
        Host::ask(Op::Exec(meeting.shell("trap 'echo hangup > @from; exit' HUP; kill -STOP $$")));
    let Some(Message::Reply(Reply::Started { pid })) = host.next() else { panic!("not started") };
    let status = format!("/proc/{pid}/status");
    eventually("the program stops", || {
        std::fs::read_to_string(&status).unwrap().contains("State:\tT")
    });
    drop(host);
    assert_eq!(meeting.hear(), "hangup");
}

#[test]
fn a_detached_program_outlives_its_client() {
    let meeting = Meeting::new();
    let script = "echo ready; read line < @to; echo still; echo alive > @from";
    for tty in [None, Some(proto::agent::TtySize { rows: 24, cols: 80 })] {
        let mut host = Host::exec(Exec { detach: true, tty, ..meeting.shell(script) });
        host.wait_for("ready");
        drop(host);
        assert_eq!(run(meeting.shell("echo go > @to")).exit, exited(0));
        assert_eq!(meeting.hear(), "alive");
    }
}

#[test]
fn a_detached_program_still_has_its_time() {
    let meeting = Meeting::new();
    let script = "exec 9> @from; echo ready; sleep 1000";
    let hear = std::thread::spawn({
        let request = meeting.shell("cat @from");
        move || run(request)
    });
    let mut host =
        Host::exec(Exec { detach: true, timeout_ms: Some(500), ..meeting.shell(script) });
    host.wait_for("ready");
    drop(host);
    assert_eq!(hear.join().unwrap().exit, exited(0), "the pipe closed, so the program ended");
}

#[test]
fn signals_reach_the_whole_group() {
    let meeting = Meeting::new();
    let script = "(trap 'echo child > @from; exit' USR1; echo ready; while :; do sleep 0.05; done) & trap '' USR1; wait";
    let mut host = Host::exec(meeting.shell(script));
    host.wait_for("ready");
    host.send(&Message::Signal(10));
    assert_eq!(meeting.hear(), "child");
    assert_eq!(host.finish().exit, exited(0));
}
