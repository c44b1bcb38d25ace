//! Help, mistakes, and what needs no box.

use crate::harness::Home;

#[test]
fn help_and_mistakes_touch_no_state() {
    let home = Home::new("ready");
    let commands = [
        "run",
        "new",
        "exec",
        "ssh",
        "ls",
        "stat",
        "stop",
        "start",
        "restart",
        "rm",
        "logs",
        "image",
        "machine",
        "doctor",
        "version",
        "completions",
    ];
    let help = home.run(["--help"]).code(0).stdout;
    for command in commands {
        assert!(help.contains(&format!("  {command} ")), "`{command}` is not in the help:\n{help}");
        assert!(home.run([command, "--help"]).code(0).stdout.contains("Usage: lilbox"));
    }
    let _ = home.run([]).code(2).says(&["Usage"]);
    for mistake in [
        &["frobnicate"][..],
        &["run", "--cpus", "0", "--", "true"],
        &["run", "--cpus", "65", "--", "true"],
        &["run", "--memory", "lots", "--", "true"],
        &["run", "--memory", "1M", "--", "true"],
        &["run", "--disk", "1M", "--", "true"],
        &["run", "--timeout", "soon", "--", "true"],
        &["run", "-e", "=x", "--", "true"],
        &["run", "-w", "relative", "--", "true"],
        &["run", "--name", "no/slash", "--", "true"],
        &["run", "-t", "--", "true"],
        &["new", "-bad"],
        &["new", "no/slash"],
        &["exec", "web"],
        &["exec", "--detach", "-i", "web", "--", "true"],
        &["stop"],
        &["image", "import", "x", "--tag", "./path"],
        &["completions", "tcsh"],
    ] {
        let ended = home.run(mistake.iter().copied());
        assert!(ended.stdout.is_empty(), "{mistake:?}: {}", ended.stdout);
        let _ = ended.code(2);
    }
    assert!(home.left().is_empty());
    for command in ["version", "--version"] {
        assert!(home.run([command]).code(0).stdout.starts_with("lilbox "));
    }
    let version: serde_json::Value =
        serde_json::from_str(&home.run(["version", "--json"]).code(0).stdout).unwrap();
    assert_eq!(version["protocols"]["agent"], proto::version::AGENT_PROTOCOL);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(home.run(["completions", shell]).code(0).stdout.contains("lilbox"), "{shell}");
    }
    // `-t` is found out to be wrong when the box could be made already, so the last mistake but a few made the home.
    let untouched = Home::new("ready");
    untouched.forget();
    let _ = untouched.run(["run", "--memory", "1M", "--", "true"]).code(2);
    let _ = untouched.run(["completions", "bash"]).code(0);
    assert!(!untouched.root().exists());
}

#[test]
fn an_unusable_kvm_is_told_before_anything_is_made() {
    let home = Home::new("ready");
    home.forget();
    for (command, code) in [(&["run", "--", "true"][..], 125), (&["new", "web"], 1)] {
        let _ = home.run(command.iter().copied()).code(code).says(&[
            "error[kvm_unusable]",
            "version -1",
            "hint: unset LILBOX_MACHINE",
        ]);
    }
    assert!(!home.root().exists());
    // What is there can be looked at and removed all the same.
    let _ = home.run(["ls"]).code(0);
}

#[test]
fn errors_have_a_code_word_a_cause_and_a_hint() {
    let home = Home::new("ready");
    let _ = home
        .run(["exec", "ghost", "--", "true"])
        .code(125)
        .says(&["error[box_not_found]: no box named 'ghost'\n", "hint: "]);
    let _ = home.run(["stop", "ghost"]).code(1).says(&["error[box_not_found]"]);
    let _ = home
        .run(["run", "--image", "no/such", "--", "true"])
        .code(125)
        .says(&["error[image_not_found]"]);
    let _ =
        home.run(["run", "--memory", "16T", "--", "true"]).code(125).says(&["error[no_memory]"]);
    let _ = home
        .run(["run", "--kernel", "/no/such", "--", "true"])
        .code(125)
        .says(&["error[kernel_invalid]", "No such file"]);
    let _ = home.run(["new", "web"]).code(0);
    let _ = home.run(["stop", "wbe"]).code(1).says(&["did you mean 'web'?"]);
    assert_eq!(home.left().len(), 2, "only the box that was asked for is left: {:?}", home.left());
}

#[test]
fn a_missing_or_damaged_installation_is_named() {
    let home = Home::new("ready");
    std::fs::remove_file(home.path("share/vmlinux")).unwrap();
    let _ = home.run(["new"]).code(1).says(&["error[install_broken]", "vmlinux"]);
    std::fs::write(home.path("share/vmlinux"), "kernel").unwrap();
    std::fs::write(home.path("share/base.json"), "{").unwrap();
    let _ = home.run(["new"]).code(1).says(&["error[state_invalid]", "base.json"]);
    let mut command = home.lilbox(["run", "--image", "/dev/null", "--", "true"]);
    command.env("LILBOX_VMM", "/no/such/program");
    let _ = crate::harness::Ended::of(command).code(125).says(&["error[image_invalid]"]);
    assert!(home.list().is_empty() && home.left().is_empty());
}

#[test]
fn the_doctor_reports_as_text_and_json() {
    let home = Home::new("ready");
    let report = home.run(["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!(report["kvm"]["usable"], false, "/dev/null is no KVM");
    assert!(report["kvm"]["reason"].is_string());
    let names: Vec<_> = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| check["name"].as_str().unwrap())
        .collect();
    for name in ["kvm", "machine", "install", "state", "disk", "memory", "landlock", "userns"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    let text = home.run(["doctor"]).stdout;
    assert!(text.contains("install") && !text.contains('\x1b'), "no colours in a pipe: {text}");
}
