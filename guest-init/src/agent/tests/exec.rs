//! Starting programs: what they find, and why some do not start.

use super::*;
use proto::code::Code;
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn exit_codes_and_signals_are_told_apart() {
    assert_eq!(run(command(&["true"])).exit, exited(0));
    assert_eq!(run(shell("exit 7")).exit, exited(7));
    assert_eq!(run(shell("kill -9 $$")).exit, killed(9));
    assert_eq!(run(shell("kill -35 $$")).exit, killed(35));
}

#[test]
fn both_streams_arrive_apart() {
    let outcome = run(shell("echo out; echo err >&2"));
    assert_eq!(
        (outcome.stdout.as_slice(), outcome.stderr.as_slice()),
        (&b"out\n"[..], &b"err\n"[..])
    );
}

#[test]
fn arguments_are_bytes_and_never_seen_by_a_shell() {
    let mut request = command(&["printf", "%s", "$HOME `id` * ;"]);
    assert_eq!(run(request.clone()).text(), "$HOME `id` * ;");
    request.argv[2] = ByteBuf::from(vec![0xff, 0xfe]);
    assert_eq!(run(request).stdout, [0xff, 0xfe]);
}

#[test]
fn what_cannot_be_run_has_its_own_reason() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str, mode: u32| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let code = |program: &str| refusal(command(&[program])).code;
    assert_eq!(code("no-such-program"), Code::CommandNotFound);
    assert_eq!(code("/no/such/program"), Code::CommandNotFound);
    assert_eq!(code("/etc/passwd/x"), Code::CommandNotFound);
    assert_eq!(code("/etc"), Code::CommandNotRunnable);
    assert_eq!(code(&file("plain", "#!/bin/sh\n", 0o644)), Code::CommandNotRunnable);
    let garbage = refusal(command(&[&file("garbage", "no program\n", 0o755)]));
    assert_eq!(garbage.code, Code::CommandNotRunnable);
    assert!(garbage.message.contains("Exec format error"), "{}", garbage.message);
    assert_eq!(run(command(&[&file("script", "#!/bin/sh\nexit 3\n", 0o755)])).exit, exited(3));
}

#[test]
fn the_path_of_the_request_is_searched_past_what_cannot_be_run() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("a"), directory.path().join("b"));
    for (place, mode) in [(&first, 0o644), (&second, 0o755)] {
        fs::create_dir(place).unwrap();
        fs::write(place.join("tool"), "#!/bin/sh\necho found\n").unwrap();
        fs::set_permissions(place.join("tool"), fs::Permissions::from_mode(mode)).unwrap();
    }
    let with_path =
        |path: String| Exec { env: vec![(bytes("PATH"), bytes(&path))], ..command(&["tool"]) };
    let both = format!("/nowhere:{}:{}", first.display(), second.display());
    assert_eq!(run(with_path(both)).text(), "found");
    assert_eq!(refusal(with_path(first.display().to_string())).code, Code::CommandNotRunnable);
    assert_eq!(refusal(with_path("/nowhere".into())).code, Code::CommandNotFound);
}

#[test]
fn the_working_directory_is_entered_or_refused() {
    let inside = |path: &str| Exec { cwd: Some(bytes(path)), ..command(&["pwd"]) };
    assert_eq!(run(command(&["pwd"])).text(), "/");
    assert_eq!(run(inside("/proc")).text(), "/proc");
    let missing = refusal(inside("/no/such"));
    assert_eq!(missing.code, Code::WorkdirInvalid);
    assert!(missing.message.contains("/no/such"), "{}", missing.message);
    assert_eq!(refusal(inside("/etc/passwd")).code, Code::WorkdirInvalid);
}

#[test]
fn the_environment_is_the_guests_and_the_requests_but_not_pid_1s() {
    let request = Exec { env: vec![(bytes("GREETING"), bytes("hello=you"))], ..command(&["env"]) };
    let outcome = run(request);
    let names: Vec<&str> =
        outcome.text().lines().filter_map(|line| line.split('=').next()).collect();
    assert!(outcome.text().lines().any(|line| line == "GREETING=hello=you"));
    assert!(names.contains(&"PATH") && names.contains(&"HOME"));
    assert!(!names.iter().any(|name| name.starts_with("CARGO")), "{names:?}");
}

#[test]
fn programs_inherit_neither_descriptors_nor_signal_settings() {
    let outcome = run(command(&["ls", "/proc/self/fd"]));
    assert_eq!(
        outcome.text().lines().collect::<Vec<_>>(),
        ["0", "1", "2", "3"],
        "3 is the directory that is read"
    );
    let outcome = run(command(&["grep", "^Sig[BI]", "/proc/self/status"]));
    let mask = |line: &str| u64::from_str_radix(line.split('\t').nth(1).unwrap(), 16).unwrap();
    let masks: Vec<u64> = outcome.text().lines().map(mask).collect();
    // Signals above 31 are the C library's and nobody's.
    assert!(masks.len() == 2 && masks[0] == 0 && masks[1] & 0x7fff_ffff == 0, "{}", outcome.text());
}

#[test]
fn a_program_leads_a_session_of_its_own() {
    let outcome = run(shell(
        "read pid name state parent group session rest < /proc/$$/stat; echo $pid $group $session",
    ));
    let ids: Vec<&str> = outcome.text().split(' ').collect();
    assert!(ids.len() == 3 && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[test]
fn limits_are_set() {
    let limited =
        |soft, hard| Exec { rlimits: vec![(7, soft, hard)], ..shell("ulimit -Sn; ulimit -Hn") };
    assert_eq!(run(limited(100, 200)).text(), "100\n200");
    assert_eq!(refusal(limited(200, 100)).code, Code::InvalidValue);
}

#[test]
fn users_are_assumed_with_their_groups() {
    if !is_root() {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let as_user = |user: &str, script: &str| Exec { user: Some(user.into()), ..shell(script) };
    assert_eq!(run(as_user("nobody", "id -u; echo $USER")).text(), "65534\nnobody");
    assert_eq!(
        run(as_user("4711:4712", "id -u; id -g; id -G; echo $HOME")).text(),
        "4711\n4712\n4712\n/"
    );
    assert_eq!(run(as_user("root", "id -u; cd; pwd")).text(), "0\n/root");
    // The streams belong to the user, who can open them again by name.
    assert_eq!(run(as_user("nobody", "echo again > /dev/stdout")).text(), "again");
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let request =
        Exec { cwd: Some(bytes(directory.path().to_str().unwrap())), ..as_user("nobody", "pwd") };
    assert_eq!(refusal(request).code, Code::WorkdirInvalid);
    assert_eq!(refusal(as_user("no such user", "true")).code, Code::UserNotFound);
}

#[test]
fn two_hundred_execs_leave_nothing_behind() {
    let count = |what: &str| fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let before = (count("fd"), count("task"));
    for index in 0..200 {
        let outcome = match index % 3 {
            0 => run(command(&["true"])),
            1 => Host::exec(Exec { stdin: true, ..command(&["cat"]) }).finish_with(b"x"),
            _ => {
                refusal(command(&["no-such-program"]));
                continue;
            }
        };
        assert_eq!(outcome.exit, exited(0));
    }
    // Other tests run at the same time; a leak would leave at least 66 of something.
    eventually("descriptors and threads are given back", || {
        let now = (count("fd"), count("task"));
        now.0 < before.0 + 60 && now.1 < before.1 + 60
    });
}

#[test]
fn thirty_two_execs_run_at_once() {
    let hosts: Vec<Host> =
        (0..32).map(|_| Host::exec(Exec { stdin: true, ..command(&["cat"]) })).collect();
    for (index, host) in hosts.into_iter().enumerate() {
        let text = index.to_string();
        assert_eq!(host.finish_with(text.as_bytes()).text(), text);
    }
}
