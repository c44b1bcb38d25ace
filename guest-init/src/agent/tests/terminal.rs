//! Execs on a terminal.

use super::*;
use proto::agent::TtySize;

fn on_terminal(script: &str) -> Exec {
    Exec { tty: Some(TtySize { rows: 24, cols: 80 }), stdin: true, ..shell(script) }
}

fn type_in(host: &mut Host, text: &[u8]) {
    host.send(&Message::Stdin(text.to_vec()));
}

#[test]
fn the_program_sees_a_terminal_of_the_size_asked_for() {
    let outcome =
        run(on_terminal("test -t 0 && test -t 1 && test -t 2 && stty size; echo $TERM; exit 5"));
    assert_eq!(outcome.text(), "24 80\r\nxterm");
    assert_eq!(outcome.exit, exited(5));
}

#[test]
fn a_new_size_is_announced() {
    let mut host = Host::exec(on_terminal(
        "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done",
    ));
    host.wait_for("ready");
    host.send(&Message::Resize(TtySize { rows: 50, cols: 132 }));
    let outcome = host.finish();
    assert_eq!(outcome.text().trim(), "50 132");
}

#[test]
fn control_c_interrupts() {
    let mut host = Host::exec(on_terminal(
        "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.05; done",
    ));
    host.wait_for("ready");
    type_in(&mut host, b"\x03");
    let outcome = host.finish();
    assert!(outcome.text().contains("interrupted"));
    assert_eq!(outcome.exit, exited(5));
}

#[test]
fn a_signal_reaches_the_foreground_job_of_a_shell() {
    // `set -m` gives each job a group of its own, as an interactive shell does.
    let script = "set -m; sh -c 'trap \"echo job; exit 4\" INT; echo ready; while :; do sleep 0.05; done'; echo $?";
    let mut host = Host::exec(on_terminal(script));
    host.wait_for("ready");
    host.send(&Message::Signal(2));
    let outcome = host.finish();
    assert_eq!(outcome.text(), "job\r\n4");
    assert_eq!(outcome.exit, exited(0));
}

#[test]
fn the_end_of_input_ends_programs_that_read_to_it() {
    for input in [&b""[..], b"whole line\n", b"no line"] {
        let outcome =
            Host::exec(on_terminal("stty -echo; echo ready; cat > /dev/null; echo through"))
                .finish_with(input);
        assert!(outcome.text().ends_with("through"), "{outcome:?}");
        assert_eq!(outcome.exit, exited(0));
    }
}

#[test]
fn all_output_arrives_before_the_exit() {
    for _ in 0..10 {
        let outcome = run(on_terminal(
            "stty -opost; dd if=/dev/zero bs=1000 count=300 2>/dev/null; printf end",
        ));
        assert_eq!(outcome.stdout.len(), 300_003);
        assert!(outcome.stdout.ends_with(b"end"));
    }
}

#[test]
fn a_client_that_vanishes_hangs_up_the_terminal() {
    let meeting = Meeting::new();
    let request = meeting
        .shell("trap 'echo hangup > @from; exit' HUP; echo ready; while :; do sleep 0.05; done");
    let mut host = Host::exec(Exec { tty: Some(TtySize { rows: 1, cols: 1 }), ..request });
    host.wait_for("ready");
    drop(host);
    assert_eq!(meeting.hear(), "hangup");
}

#[test]
fn a_background_child_on_the_terminal_does_not_keep_the_exec_open() {
    let outcome = run(on_terminal("trap '' HUP; sleep 1000 & echo $!"));
    assert_eq!(outcome.exit, exited(0));
    let child: i32 = outcome.text().parse().unwrap();
    crate::syscalls::kill(child, libc::SIGKILL).unwrap();
}

#[test]
fn the_terminal_belongs_to_the_user() {
    if !is_root() {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let request = Exec {
        user: Some("nobody".into()),
        ..on_terminal("stat -c %U $(tty); echo again > $(tty)")
    };
    assert_eq!(run(request).text(), "nobody\r\nagain");
}
