//! Starting a VMM: every way in which it can fail, and commands that are killed meanwhile.

use crate::harness::{Home, until};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn every_failure_of_the_vmm_has_its_error_and_leaves_nothing() {
    let home = Home::new("fails");
    let _ = home.run(["new", "web"]).code(1).says(&[
        "error[guest_panic]",
        "the guest kernel panicked",
        "last exit of a vCPU: hlt",
        "Kernel panic - not syncing",
        "hint: --debug-boot",
    ]);
    home.behave("crashes");
    let _ = home.run(["run", "--", "echo"]).code(125).says(&[
        "error[vmm_died]",
        "exit status: 3",
        "something terrible",
    ]);
    home.behave("talks-nonsense");
    let _ = home.run(["run", "--", "echo"]).code(125).says(&["error[bad_message]"]);
    let mut command = home.lilbox(["run", "--", "echo"]);
    command.env("LILBOX_VMM", "/no/such/program");
    let _ = crate::harness::Ended::of(command)
        .code(125)
        .says(&["error[install_broken]", "/no/such/program"]);
    let mut command = home.lilbox(["run", "--", "echo"]);
    command.env("LILBOX_KVM", "/no/such/device");
    let _ = crate::harness::Ended::of(command).code(125).says(&["error[kvm_missing]"]);
    assert!(home.left().is_empty(), "{:?}", home.left());
    assert!(home.list().is_empty() && home.vmms().is_empty());
}

/// Starts `lilbox`, waits until its VMM has the request, and sends the signal.
fn interrupt(home: &Home, args: &[&str], signal: Signal) -> std::process::Output {
    let child = home.spawn(args.iter().copied());
    until("the VMM has the request", || {
        let boxes =
            std::fs::read_dir(home.root().join("data/boxes")).into_iter().flatten().flatten();
        boxes
            .map(|entry| std::fs::read_to_string(entry.path().join("vmm.log")).unwrap_or_default())
            .any(|log| log.contains("received"))
    });
    kill_process(Pid::from_child(&child), signal).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn an_interrupted_start_cleans_up_after_itself() {
    let home = Home::new("hangs");
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        for args in [&["new", "web"][..], &["run", "--", "echo"]] {
            let output = interrupt(&home, args, signal);
            assert_eq!(
                output.status.code(),
                Some(code),
                "{args:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            assert!(home.left().is_empty() && home.vmms().is_empty(), "{args:?}");
        }
    }
    home.behave("hangs-for-good");
    let output = interrupt(&home, &["new", "web"], Signal::INT);
    assert_eq!(output.status.code(), Some(130));
    assert!(home.left().is_empty() && home.vmms().is_empty(), "a VMM that does not end is ended");
}

#[test]
fn a_killed_start_is_cleaned_up_by_the_next_command() {
    let home = Home::new("hangs");
    for args in [&["new", "web"][..], &["run", "--", "echo"]] {
        interrupt(&home, args, Signal::KILL);
        assert!(home.list().is_empty(), "{args:?}");
        assert!(home.left().is_empty(), "{args:?}: {:?}", home.left());
        until("the VMM has ended", || home.vmms().is_empty());
    }
    // One that does not notice, and has no control socket to be told on.
    home.behave("hangs-for-good");
    interrupt(&home, &["new", "web"], Signal::KILL);
    home.behave("ready");
    assert_eq!(home.run(["new", "web"]).code(0).stdout, "web\n");
}

/// The moment after the guest is ready and before the box is committed.
#[test]
fn a_box_that_nobody_committed_is_ended_and_removed() {
    let home = Home::new("kills-its-parent");
    let _ = home.run(["new", "web"]).code(137);
    until("the VMM serves its sockets", || home.vmms().len() == 1);
    assert!(home.list().is_empty());
    assert!(home.left().is_empty(), "{:?}", home.left());
    until("the VMM has ended", || home.vmms().is_empty());
    home.behave("ready");
    let _ = home.run(["new", "web"]).code(0);
}

#[test]
fn a_box_of_run_dies_with_its_command() {
    let home = Home::new("ready");
    let mut child = home.spawn(["run", "--name", "short", "--", "wait"]);
    until("the box runs", || home.list().first().is_some_and(|row| row["status"] == "running"));
    let row = &home.list()[0];
    assert_eq!((&row["name"], &row["ephemeral"]), (&"short".into(), &true.into()));
    assert_eq!(home.run(["exec", "short", "--", "echo", "hi"]).code(0).stdout, "hi\n");
    let _ = home.run(["rm", "short"]).code(1).says(&["error[box_running]"]);
    child.kill().unwrap();
    child.wait().unwrap();
    until("the VMM has ended", || home.vmms().is_empty());
    assert!(home.list().is_empty());
    assert!(home.left().is_empty(), "{:?}", home.left());
}

#[test]
fn what_lies_around_without_a_box_is_removed() {
    let home = Home::new("ready");
    let _ = home.run(["new", "web"]).code(0);
    for directory in ["data/boxes/0123456789ab", "run/0123456789ab"] {
        std::fs::create_dir(home.root().join(directory)).unwrap();
    }
    std::fs::write(home.root().join("data/images/.new-0123"), "half an image").unwrap();
    std::fs::create_dir(home.root().join("data/boxes/not-ours")).unwrap();
    assert_eq!(home.list().len(), 1);
    assert!(!home.root().join("data/images/.new-0123").exists());
    assert_eq!(
        home.left().len(),
        3,
        "the box, its sockets, and what is not ours: {:?}",
        home.left()
    );
    assert_eq!(home.run(["exec", "web", "--", "echo", "hi"]).code(0).stdout, "hi\n");
}
