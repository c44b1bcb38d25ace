//! The line on the terminal that tells what takes long.

use crate::harness::Home;
use crate::terminal::Session;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;

/// What a user sees who waits for a box that does not come, and gives up.
fn give_up(mut session: Session) -> (String, String) {
    session.type_in("\x03");
    let seen = session.expect("error[interrupted]");
    let mut data = String::new();
    session.child.stdout.take().unwrap().read_to_string(&mut data).unwrap();
    assert_eq!(session.child.wait().unwrap().code(), Some(130));
    (seen, data)
}

#[test]
fn what_takes_long_is_told_on_a_terminal_alone_and_leaves_no_trace() {
    let home = Home::new("hangs");
    // These begin first: when the line is there in the third, it would be in them.
    let without = home.spawn(["new", "one"]);
    let quiet = Session::start_with(&home, &["new", "-q", "two"], true);
    let mut session = Session::start_with(&home, &["new", "web"], true);
    session.expect("booting web…");
    let (seen, data) = give_up(session);
    let (_, after) = seen.rsplit_once("\r\u{1b}[2K").expect("the line is cleared");
    assert!(after.contains("error") && !after.contains("booting"), "{seen:?}");
    assert_eq!(data, "");

    let (seen, data) = give_up(quiet);
    assert!(!seen.contains("booting") && !seen.contains("\r\u{1b}[2K"), "{seen:?}");
    assert_eq!(data, "");

    kill_process(Pid::from_child(&without), Signal::INT).unwrap();
    let output = without.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("error[interrupted]") && !text.contains('\u{1b}'), "{text:?}");
    assert!(output.stdout.is_empty());
}
