//! Where the tests run: here if this host's KVM runs ordinary kernels, else inside the machine.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Set for the copy of the program that runs inside the machine.
const INSIDE: &str = "LILBOX_TESTS_INSIDE_MACHINE";

/// The program under test: `lilbox` of the same build.
///
/// # Panics
/// If it was not built; `make e2e` builds it first.
#[must_use]
pub fn lilbox() -> PathBuf {
    let this = env::current_exe().expect("path of this program");
    // target/release/deps/e2e-… or target/release/lilbox-bench
    let found = this.ancestors().skip(1).map(|dir| dir.join("lilbox")).find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("no `lilbox` above {}: build it first (make build)", this.display())
    })
}

/// Whether this program was moved into the machine.
#[must_use]
pub fn is_inside_machine() -> bool {
    env::var_os(INSIDE).is_some()
}

/// Moves the program into the machine if it has to run there. `Some` is the exit code to end with.
///
/// # Panics
/// If neither this host nor a machine can run boxes: end-to-end tests are never skipped.
#[must_use]
pub fn enter() -> Option<ExitCode> {
    if is_inside_machine() || kvm_is_usable() {
        return None;
    }
    let home = machine_home();
    let machine = |args: &[&str]| {
        let mut command = Command::new(lilbox());
        command.arg("machine").args(args).env("LILBOX_HOME", &home);
        command
    };
    eprintln!("this host's KVM cannot run ordinary kernels: running inside the machine");
    let mut inside = machine(&["exec", "--"]);
    inside.args([OsString::from("/usr/bin/env"), format!("{INSIDE}=1").into()]);
    inside.arg(env::current_exe().expect("path of this program")).args(env::args_os().skip(1));
    let status = inside.status().expect("run `lilbox machine exec`");
    let stopped = machine(&["stop"]).status().expect("run `lilbox machine stop`");
    assert!(stopped.success(), "the machine did not stop");
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Some(ExitCode::from(code))
}

/// State directory of the machine that the tests use; not the user's own.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn machine_home() -> PathBuf {
    let lilbox = lilbox();
    let target = lilbox.ancestors().nth(2).expect("lilbox lies in target/release");
    let home = target.join("e2e-home");
    std::fs::create_dir_all(&home).expect("make the tests' state directory");
    home
}

/// Asks the program itself, so that tests and product agree.
fn kvm_is_usable() -> bool {
    let output = Command::new(lilbox())
        .args(["doctor", "--json"])
        .env("LILBOX_MACHINE", "never")
        .env("LILBOX_HOME", machine_home())
        .output()
        .expect("run `lilbox doctor`");
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("`lilbox doctor --json` printed no JSON ({error}): {output:?}")
        });
    report["kvm"]["usable"].as_bool().expect("doctor tells whether KVM is usable")
}
