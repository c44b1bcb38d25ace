//! The machine (the Linux host that lilbox brings along), seen from outside.

use crate::forms::Random;
use crate::terminal::Session;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;
use tests::{Finished, Invocation, place};
use wait_timeout::ChildExt;

/// Only ends what hangs.
const DEADLINE: Duration = Duration::from_secs(240);

/// The tests of this file; one after the other, since there is one machine.
pub fn trials() -> Vec<libtest_mimic::Trial> {
    vec![libtest_mimic::Trial::test(
        "machine::passes_everything_through_and_survives_kills",
        || {
            passes_everything_through_and_survives_kills();
            Ok(())
        },
    )]
}

fn lilbox<'a>(home: &Path, args: impl IntoIterator<Item = &'a str>) -> Invocation {
    Invocation::new(&place::lilbox(), args).env("LILBOX_HOME", home).env("LILBOX_MACHINE", "always")
}

fn status(home: &Path) -> serde_json::Value {
    let text = lilbox(home, ["machine", "status", "--json"]).text();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("machine status: {error}: {text}"))
}

fn passes_everything_through_and_survives_kills() {
    let home = place::machine_home();
    let run = |args: &[&str]| -> Finished { lilbox(&home, args.iter().copied()).run() };
    // One notice says where the command runs; the command's own output is untouched.
    let _ = run(&["machine", "stop"]).assert_code(0);
    let first = run(&["run", "--", "sh", "-c", "echo inside; exit 7"])
        .assert_code(7)
        .assert_stdout("inside\n");
    let _ = first.assert_stderr_contains("machine");
    let bytes = Random::new(7).bytes(4 << 20);
    let echoed =
        lilbox(&home, ["machine", "exec", "--", "cat"]).stdin(bytes.clone()).run().assert_code(0);
    assert!(echoed.stdout == bytes, "stdin comes back identical");
    let here = tempfile::tempdir().expect("a directory");
    let pwd = lilbox(&home, ["machine", "exec", "--", "pwd"]).current_dir(here.path()).text();
    assert_eq!(Path::new(&pwd), here.path(), "the working directory is passed through");

    terminals_and_signals_reach_the_guest(&home);

    // A machine that is killed takes its boxes down, and the next command brings it back.
    let _ = run(&["new", "keeper"]).assert_code(0).assert_stdout("keeper\n");
    let _ =
        run(&["exec", "keeper", "--", "sh", "-c", "echo kept > /root/file; sync"]).assert_code(0);
    let pid = i32::try_from(status(&home)["pid"].as_u64().expect("a pid")).expect("a pid");
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL).expect("kill -9 QEMU");
    let _ = run(&["start", "keeper"]).assert_code(0);
    let _ =
        run(&["exec", "keeper", "--", "cat", "/root/file"]).assert_code(0).assert_stdout("kept\n");

    // A client that is killed harms nothing.
    let mut client = lilbox(&home, ["run", "--", "sleep", "1000"]).spawn();
    client.kill().expect("kill -9 the client");
    client.wait().expect("reap the client");
    let _ = run(&["exec", "keeper", "--", "true"]).assert_code(0);
    let _ = run(&["rm", "--force", "keeper"]).assert_code(0);
    let names = lilbox(&home, ["ls", "-q"]).text();
    assert_eq!(names, "", "boxes left in the machine");
    let _ = run(&["machine", "stop"]).assert_code(0);
    assert_eq!(status(&home)["status"], "stopped");
}

/// Through two agents: the machine's and the box's.
fn terminals_and_signals_reach_the_guest(home: &Path) {
    let script =
        "trap 'echo caught; exit 5' INT; stty size; echo ready; while :; do sleep 0.1; done";
    let args = ["run", "-it", "--", "sh", "-c", script];
    let mut session = Session::start_in(home, "always", &args, (31, 97));
    session.expect("31 97");
    session.expect("ready");
    session.type_in("\x03");
    session.expect("caught");
    assert_eq!(session.end(), 5);

    for (script, code) in [
        ("echo ready; exec sleep 1000", 143),
        ("trap 'exit 6' TERM; echo ready; while :; do sleep 0.1; done", 6),
    ] {
        let mut client = lilbox(home, ["run", "--", "sh", "-c", script]).spawn();
        let mut line = String::new();
        BufReader::new(client.stdout.take().expect("stdout is piped"))
            .read_line(&mut line)
            .expect("read the command's output");
        assert_eq!(line, "ready\n");
        kill_process(Pid::from_child(&client), Signal::TERM).expect("ask the client to end");
        let status = client.wait_timeout(DEADLINE).expect("wait for the client");
        if status.is_none() {
            client.kill().expect("kill the client");
            client.wait().expect("reap the client");
        }
        assert_eq!(status.expect("SIGTERM ends the command").code(), Some(code), "{script}");
    }
}
