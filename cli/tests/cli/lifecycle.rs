//! The life of a box.

use crate::harness::{Ended, Home};
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Command, Stdio};

fn status(home: &Home) -> String {
    home.list()[0]["status"].as_str().unwrap().to_owned()
}

#[test]
fn a_box_is_made_stopped_started_and_removed() {
    let home = Home::new("ready");
    let made = home.run(["new", "web", "--cpus", "2", "--memory", "1G", "-e", "A=b"]).code(0);
    assert_eq!((made.stdout.as_str(), made.stderr.as_str()), ("web\n", ""));
    assert_eq!(status(&home), "running");
    let _ = home.run(["new", "web"]).code(1).says(&["error[box_exists]", "lilbox rm web"]);
    let _ = home.run(["rm", "web"]).code(1).says(&["error[box_running]", "lilbox stop web"]);

    let stat: serde_json::Value =
        serde_json::from_str(&home.run(["stat", "web", "--json"]).code(0).stdout).unwrap();
    assert_eq!(
        (&stat["cpus"], &stat["memory_mib"], &stat["status"]),
        (&2.into(), &1024.into(), &"running".into())
    );
    assert_eq!(stat["pid"].as_i64().unwrap(), i64::from(home.vmms()[0]));
    assert!(stat["boot_micros"].as_u64().unwrap() > 0);
    let socket = stat["agent_socket"].as_str().unwrap();
    assert!(std::fs::exists(socket).unwrap(), "{socket}");
    assert_eq!(stat["env"], serde_json::json!(["A=b"]));

    for _ in 0..2 {
        let _ = home.run(["stop", "web"]).code(0);
        assert_eq!(status(&home), "stopped");
        assert!(home.vmms().is_empty());
        assert!(!std::fs::exists(socket).unwrap());
    }
    let stat: serde_json::Value =
        serde_json::from_str(&home.run(["stat", "web", "--json"]).code(0).stdout).unwrap();
    assert!(stat["pid"].is_null());
    let _ = home
        .run(["exec", "web", "--", "echo"])
        .code(125)
        .says(&["error[box_stopped]", "lilbox start web"]);
    for _ in 0..2 {
        let _ = home.run(["start", "web"]).code(0);
        assert_eq!(status(&home), "running");
    }
    let before = home.vmms();
    let _ = home.run(["restart", "web"]).code(0);
    assert_ne!(home.vmms(), before);
    assert_eq!(home.run(["logs", "web"]).code(0).stdout, "hello from web\n".repeat(3));
    assert_eq!(home.run(["logs", "web", "--tail", "1"]).code(0).stdout, "hello from web\n");

    let _ = home.run(["rm", "--force", "web"]).code(0);
    assert!(home.list().is_empty() && home.left().is_empty() && home.vmms().is_empty());
    let _ = home.run(["rm", "web"]).code(1).says(&["error[box_not_found]"]);
}

#[test]
fn random_names_and_lists() {
    let home = Home::new("ready");
    assert_eq!(home.run(["ls"]).code(0).stdout, "");
    let name = home.run(["new"]).code(0).stdout;
    let digits = name.trim().strip_prefix("box-").unwrap();
    assert!(digits.len() == 6 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
    assert_eq!(home.run(["ls", "-q"]).code(0).stdout, name);
    let table = home.run(["ls"]).code(0).stdout;
    assert!(
        table.starts_with("NAME ") && table.contains("running") && table.contains("lilbox/base"),
        "{table}"
    );
    let text = home.run(["stat", name.trim()]).code(0).stdout;
    assert!(text.contains("status:") && text.contains("running"), "{text}");
}

#[test]
fn a_killed_vmm_is_seen_at_once_and_its_box_starts_again() {
    let home = Home::new("ready");
    let _ = home.run(["new", "web"]).code(0);
    for _ in 0..3 {
        kill_process(Pid::from_raw(home.vmms()[0]).unwrap(), Signal::KILL).unwrap();
        // It may still take the connection with it, or be gone already.
        let _ = home.run(["exec", "web", "--", "echo"]).code(125);
        assert_eq!(status(&home), "stopped");
        let _ = home.run(["exec", "web", "--", "echo"]).code(125).says(&["error[box_stopped]"]);
        let _ = home.run(["start", "web"]).code(0);
    }
    assert_eq!(home.run(["exec", "web", "--", "echo", "hi"]).code(0).stdout, "hi\n");
}

#[test]
fn one_target_that_fails_does_not_keep_the_others() {
    let home = Home::new("ready");
    for name in ["a", "b"] {
        let _ = home.run(["new", name]).code(0);
    }
    let _ = home.run(["stop", "a", "ghost", "b"]).code(1).says(&["no box named 'ghost'"]);
    assert!(home.list().iter().all(|row| row["status"] == "stopped"));
    let _ = home.run(["rm", "a", "b"]).code(0);
    assert!(home.list().is_empty());
}

#[test]
fn of_many_that_want_a_name_one_gets_it() {
    let home = Home::new("ready");
    let codes: Vec<i32> = std::thread::scope(|scope| {
        let spawn = |_| {
            scope.spawn(|| home.lilbox(["new", "web"]).output().unwrap().status.code().unwrap())
        };
        let threads: Vec<_> = (0..8).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(codes.iter().filter(|code| **code == 0).count(), 1, "{codes:?}");
    assert!(codes.iter().all(|code| [0, 1].contains(code)), "{codes:?}");
    assert_eq!((home.list().len(), home.vmms().len(), home.left().len()), (1, 1, 2));
}

#[test]
fn many_commands_at_once_agree() {
    let home = Home::new("ready");
    let _ = home.run(["new", "web"]).code(0);
    std::thread::scope(|scope| {
        for index in 0..24 {
            let home = &home;
            scope.spawn(move || match index % 4 {
                0 => drop(home.run(["exec", "web", "--", "exit", "7"]).code(7)),
                1 => assert!(
                    home.list()
                        .iter()
                        .any(|row| row["name"] == "web" && row["status"] == "running")
                ),
                2 => drop(home.run(["run", "--", "exit", "3"]).code(3)),
                _ => drop(home.run(["start", "web"]).code(0)),
            });
        }
    });
    assert_eq!((home.list().len(), home.vmms().len(), home.left().len()), (1, 1, 2));
}

#[test]
fn following_the_console_ends_with_the_box() {
    let home = Home::new("ready");
    let _ = home.run(["new", "web"]).code(0);
    let follower = home.spawn(["logs", "-f", "web"]);
    let log = home.the_box().join("console.log");
    let line = std::fs::OpenOptions::new().append(true).open(log).unwrap();
    std::io::Write::write_all(&mut &line, b"more\n").unwrap();
    let _ = home.run(["stop", "web"]).code(0);
    let output = follower.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello from web\nmore\n");
}

#[test]
fn a_database_of_a_newer_lilbox_is_left_alone() {
    let home = Home::new("ready");
    // One page of an empty database (SQLite file format, 1.3 and 1.6): the header, then a leaf without cells.
    let mut page = vec![0; 4096];
    let fields: [(usize, &[u8]); 8] = [
        (0, b"SQLite format 3\0"),
        (16, &[16, 0, 1, 1, 0, 64, 32, 32]), // page size, versions, payload fractions
        (28, &1_u32.to_be_bytes()),          // pages
        (44, &4_u32.to_be_bytes()),          // schema format
        (56, &1_u32.to_be_bytes()),          // UTF-8
        (60, &99_u32.to_be_bytes()),         // user version
        (100, &[13]),
        (105, &[16]),
    ];
    for (offset, bytes) in fields {
        page[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    std::fs::create_dir_all(home.root().join("state")).unwrap();
    std::fs::write(home.root().join("state/state.db"), page).unwrap();
    let _ = home.run(["ls"]).code(1).says(&["error[state_invalid]", "version 99"]);
}

/// A VMM that does not answer on its control socket is ended by force.
#[test]
fn a_hung_vmm_is_ended() {
    let home = Home::new("hangs-when-ready");
    let _ = home.run(["new", "web"]).code(0);
    assert_eq!(status(&home), "running");
    let _ = home.run(["stop", "--time", "0", "web"]).code(0);
    assert!(home.vmms().is_empty());
    assert_eq!(status(&home), "stopped");
    let _ = home.run(["rm", "web"]).code(0);
    assert!(home.left().is_empty());
}

/// Removing boxes is how a full disk gets space again.
#[test]
fn boxes_can_be_removed_from_a_full_disk() {
    let home = Home::new("ready");
    let script = r#"
        cp -a "$LILBOX_HOME/." "$HOME" && mount -t tmpfs -o size=70m none "$LILBOX_HOME" &&
        cp -a "$HOME/." "$LILBOX_HOME" && "$1" new web && "$1" stop web || exit 1
        echo kept > "$LILBOX_HOME"/data/boxes/*/disk.ext4
        dd if=/dev/zero of="$LILBOX_HOME/fill" bs=4k 2>/dev/null
        "$1" new other; echo "code $?"
        "$1" rm web; echo "code $?"
        "$1" ls -q"#;
    let lilbox = home.lilbox([]);
    let in_namespace = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount"]).args(words).env_clear();
        command.envs(lilbox.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.stdin(Stdio::null());
        command
    };
    if !in_namespace(&["mount", "-t", "tmpfs", "none", "/mnt"]).status().unwrap().success() {
        println!("skipped: this user cannot mount anything");
        return;
    }
    std::fs::create_dir(home.path("user")).unwrap();
    let program = lilbox.get_program().to_str().unwrap();
    let ended = Ended::of(in_namespace(&["sh", "-c", script, "sh", program])).code(0);
    assert_eq!(ended.stdout, "web\ncode 1\ncode 0\n", "{}", ended.stderr);
    let _ = ended.says(&["error[no_space]"]);
}
