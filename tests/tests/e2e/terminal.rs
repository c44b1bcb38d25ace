//! Terminals: what `docker exec -it` users expect.

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tests::{Lab, TestBox};

trials![
    a_shell_on_a_terminal,
    ctrl_c_goes_to_the_guest,
    the_terminal_is_restored,
    exit_code_of_an_interactive_command
];

/// Only ends what hangs: a box in an emulated machine takes its time to boot.
const DEADLINE: Duration = Duration::from_secs(240);

/// A `lilbox` command with a terminal of its own, as if a person sat before it.
pub struct Session {
    child: Child,
    keyboard: File,
    master: OwnedFd,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

impl Session {
    fn start(lab: &Lab, args: &[&str], size: (u16, u16)) -> Self {
        Self::start_in(lab.home(), "never", args, size)
    }

    /// Starts `lilbox` with that `LILBOX_HOME` and that `LILBOX_MACHINE`, on a terminal of that many rows and columns.
    pub fn start_in(home: &Path, machine: &str, args: &[&str], size: (u16, u16)) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("openpt");
        grantpt(&master).expect("grantpt");
        unlockpt(&master).expect("unlockpt");
        resize(&master, size);
        let name = ptsname(&master, Vec::new()).expect("ptsname").into_string().expect("UTF-8");
        let slave = File::options().read(true).write(true).open(name).expect("open the terminal");
        let stream = || Stdio::from(slave.try_clone().expect("dup"));
        // `setsid --ctty` makes it the controlling terminal, so that signals work as for a person.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(tests::place::lilbox()).args(args);
        command.env("LILBOX_HOME", home).env("LILBOX_MACHINE", machine).env("TERM", "xterm");
        let child =
            command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().expect("spawn");
        let mut reader = File::from(master.try_clone().expect("dup"));
        let keyboard = File::from(master.try_clone().expect("dup"));
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Reading fails with EIO when the last process has closed the terminal.
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keyboard, master, screen, seen: String::new() }
    }

    fn shell(lab: &Lab, sandbox: &TestBox<'_>) -> Self {
        let mut session = Self::start(lab, &["exec", "-it", &sandbox.name, "--", "sh"], (24, 80));
        session.expect("# ");
        session
    }

    /// Presses keys.
    pub fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("type");
    }

    /// Waits until the text has appeared since the last call, and forgets what came before it.
    #[track_caller]
    pub fn expect(&mut self, text: &str) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(index) = self.seen.find(text) {
                self.seen.drain(..index + text.len());
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(error) => panic!("`{text}` did not appear ({error}) in {:?}", self.seen),
            }
        }
    }

    /// Waits for the command's end and gives its exit code.
    pub fn end(mut self) -> i32 {
        self.child.wait().expect("reap").code().expect("a code")
    }
}

fn resize(master: &OwnedFd, (ws_row, ws_col): (u16, u16)) {
    tcsetwinsize(master, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })
        .expect("set the window's size");
}

fn a_shell_on_a_terminal() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    let mut session = Session::shell(&lab, &sandbox);
    session.type_in("tty; stty size\r");
    session.expect("/dev/pts/");
    session.expect("24 80");
    resize(&session.master, (50, 132));
    session.type_in("while [ \"$(stty size)\" != '50 132' ]; do sleep 0.1; done; echo re''sized\r");
    session.expect("resized");
    session.type_in("echo $TERM; exit 3\r");
    session.expect("xterm");
    assert_eq!(session.end(), 3);
}

fn ctrl_c_goes_to_the_guest() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    let mut session = Session::shell(&lab, &sandbox);
    session.type_in("sleep 1000\r");
    session.expect("sleep 1000");
    let script = "for i in $(seq 100); do pgrep -f 'sleep 1000' >/dev/null && exit 0; sleep 0.1; done; exit 1";
    let _ = sandbox.exec(["sh", "-c", script]).assert_code(0);
    session.type_in("\x03");
    session.expect("# ");
    session.type_in("echo still-$((40+2))\r");
    session.expect("still-42");
    session.type_in("\x04");
    // The shell's last status was that of `echo`.
    assert_eq!(session.end(), 0);
}

fn the_terminal_is_restored() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    let before = "stty -g";
    let lilbox = tests::place::lilbox();
    let script = format!(
        "{before} > before; {} exec -it {} -- true; {before} > after; cmp before after && echo sa''me",
        lilbox.display(),
        sandbox.name
    );
    let dir = lab.home().join("terminal");
    std::fs::create_dir(&dir).expect("mkdir");
    let mut command =
        tests::Invocation::new("script".as_ref(), ["-qec", &script, "/dev/null"]).current_dir(&dir);
    command = command.env("LILBOX_HOME", lab.home()).env("LILBOX_MACHINE", "never");
    let finished = command.run();
    assert!(finished.stdout_text().contains("same"), "{finished}");
}

fn exit_code_of_an_interactive_command() {
    let lab = Lab::new();
    let session = Session::start(
        &lab,
        &["run", "-it", "--", "sh", "-c", "test -t 0 && test -t 1 && exit 9"],
        (24, 80),
    );
    assert_eq!(session.end(), 9);
}
