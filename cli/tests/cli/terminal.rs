//! A terminal between the user and the command.

use crate::harness::{Home, until};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

pub struct Session {
    pub child: Child,
    master: OwnedFd,
    slave: File,
    seen: String,
}

impl Session {
    fn start(home: &Home, args: &[&str]) -> Self {
        Self::start_with(home, args, false)
    }

    /// Starts `lilbox`; what it writes as data goes to a pipe instead if that is wished.
    pub fn start_with(home: &Home, args: &[&str], piped: bool) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        resize(&master, 24, 80);
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = File::options().read(true).write(true).open(name).unwrap();
        let stream = || Stdio::from(slave.try_clone().unwrap());
        // The terminal becomes its controlling terminal, so that a change of its size is told.
        let lilbox = home.lilbox(args.iter().copied());
        let mut command = Command::new("setsid");
        command
            .args(["--ctty", "--wait"])
            .arg(lilbox.get_program())
            .args(lilbox.get_args())
            .env_clear();
        command
            .envs(lilbox.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .env("TERM", "xterm");
        let stdout = if piped { Stdio::piped() } else { stream() };
        let child = command.stdin(stream()).stdout(stdout).stderr(stream()).spawn().unwrap();
        Self { child, master, slave, seen: String::new() }
    }

    /// Reads until that text has come. Gives all that was read since the last time.
    #[track_caller]
    pub fn expect(&mut self, text: &str) -> String {
        while !self.seen.contains(text) {
            let mut buffer = [0; 4096];
            let len = File::from(self.master.try_clone().unwrap()).read(&mut buffer).unwrap();
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..len]));
        }
        std::mem::take(&mut self.seen)
    }

    pub fn type_in(&self, text: &str) {
        File::from(self.master.try_clone().unwrap()).write_all(text.as_bytes()).unwrap();
    }

    fn echoes(&self) -> bool {
        tcgetattr(&self.slave).unwrap().local_modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }
}

fn resize(master: &OwnedFd, rows: u16, cols: u16) {
    tcsetwinsize(master, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 })
        .unwrap();
}

#[test]
fn keys_and_sizes_reach_the_guest_and_the_terminal_is_given_back() {
    let home = Home::new("ready");
    let _ = home.run(["new", "web"]).code(0);
    let mut session = Session::start(&home, &["exec", "web", "--", "wait"]);
    session.expect("waiting");
    assert!(!session.echoes(), "raw mode");
    session.type_in("\x03");
    session.expect("typed [3]");
    resize(&session.master, 50, 132);
    session.expect("size 50x132");
    let pid = session.child.id();
    // The child of `setsid --wait` is lilbox.
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let target = children.split_whitespace().next().map_or(pid, |child| child.parse().unwrap());
    let target = rustix::process::Pid::from_raw(i32::try_from(target).unwrap()).unwrap();
    rustix::process::kill_process(target, rustix::process::Signal::TERM).unwrap();
    assert_eq!(session.child.wait().unwrap().code(), Some(143));
    assert!(session.echoes(), "the terminal is as it was");
}

#[test]
fn a_terminal_is_described_to_the_guest() {
    let home = Home::new("ready");
    let _ = home.run(["new", "web"]).code(0);
    let mut session = Session::start(&home, &["exec", "-it", "web", "--", "describe"]);
    session.expect("tty Some(TtySize { rows: 24, cols: 80 })\nstdin true");
    assert_eq!(session.child.wait().unwrap().code(), Some(0));
    let mut session = Session::start(&home, &["exec", "web", "--", "describe"]);
    session.expect("env TERM=xterm");
    session.child.wait().unwrap();
    let mut session = Session::start(&home, &["exec", "--no-tty", "web", "--", "describe"]);
    session.expect("tty None\r\nstdin false");
    session.child.wait().unwrap();
}

/// However the connection ends.
#[test]
fn the_terminal_is_given_back_when_the_box_dies() {
    let home = Home::new("ready");
    let mut session = Session::start(&home, &["run", "--", "wait"]);
    session.expect("waiting");
    let vmm = rustix::process::Pid::from_raw(home.vmms()[0]).unwrap();
    rustix::process::kill_process(vmm, rustix::process::Signal::KILL).unwrap();
    session.expect("error[guest_died]");
    assert_eq!(session.child.wait().unwrap().code(), Some(125));
    assert!(session.echoes());
    until("nothing is left", || home.left().is_empty());
}
