//! A `lilbox` with a home of its own, and a stand-in for its VMM.

use boxes::paths::{Dirs, Environment};
use boxes::probe::{Verdict, probe};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Only ends what hangs; nothing is expected to take that long.
const DEADLINE: Duration = Duration::from_secs(60);

/// A home directory with installed files and a stand-in for the VMM.
pub struct Home {
    directory: TempDir,
}

impl Home {
    /// A home whose VMM behaves like that.
    pub fn new(behaviour: &str) -> Self {
        let home = Self { directory: tempfile::tempdir().unwrap() };
        std::fs::create_dir(home.path("share")).unwrap();
        std::fs::write(home.path("share/vmlinux"), "kernel").unwrap();
        let image = File::create(home.path("share/base.erofs")).unwrap();
        image.write_all_at(&0xE0F5_E1E2_u32.to_le_bytes(), 1024).unwrap();
        image.set_len(4096).unwrap();
        let description = r#"{"tag":"lilbox/base","digest":"one","size_bytes":4096,"config":{"Env":["PATH=/bin"],"Cmd":["echo","from the image"]}}"#;
        std::fs::write(home.path("share/base.json"), description).unwrap();
        std::fs::create_dir(home.path("bin")).unwrap();
        home.behave(behaviour);
        home.trust_kvm();
        home
    }

    /// Lets `lilbox` find that KVM runs boxes. The stand-in needs none, so the device is `/dev/null`, and the outcome of
    /// trying it out is changed where it is kept.
    fn trust_kvm(&self) {
        let environment = Environment { lilbox_home: Some(self.root()), ..Environment::default() };
        let dirs = Dirs::compute(&environment).unwrap();
        dirs.create().unwrap();
        assert!(matches!(probe(Path::new("/dev/null"), &dirs.runtime), Verdict::Unusable { .. }));
        let path = dirs.runtime.join("kvm-probe.json");
        let mut kept: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        kept["verdict"] = serde_json::to_value(Verdict::Usable).unwrap();
        std::fs::write(&path, kept.to_string()).unwrap();
    }

    /// Removes all that `lilbox` or [`Home::new`] made in `LILBOX_HOME`.
    pub fn forget(&self) {
        std::fs::remove_dir_all(self.root()).unwrap();
    }

    /// Lets VMMs that are started from now on behave like that.
    pub fn behave(&self, behaviour: &str) {
        // target/debug/deps/cli-… → target/debug/examples/fake-vmm
        let this = std::env::current_exe().unwrap();
        let fake = this.ancestors().nth(2).unwrap().join("examples/fake-vmm");
        assert!(fake.exists(), "{} is built with the tests", fake.display());
        let link = self.path("bin").join(behaviour);
        if !link.exists() {
            symlink(fake, &link).unwrap();
        }
        std::fs::write(self.path("behaviour"), behaviour).unwrap();
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join(below)
    }

    /// `LILBOX_HOME`.
    pub fn root(&self) -> PathBuf {
        self.path("home")
    }

    /// A `lilbox` about to be run.
    pub fn lilbox<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let behaviour = std::fs::read_to_string(self.path("behaviour")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_lilbox"));
        command
            .args(args)
            .env_clear()
            .env("HOME", self.path("user"))
            .env("LILBOX_HOME", self.root())
            .env("LILBOX_MACHINE", "never")
            .env("LILBOX_SHARE", self.path("share"))
            .env("LILBOX_VMM", self.path("bin").join(behaviour))
            .env("LILBOX_KVM", "/dev/null")
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null());
        command
    }

    /// Runs `lilbox` to its end.
    pub fn run<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Ended {
        Ended::of(self.lilbox(args))
    }

    /// Runs `lilbox` to its end, with standard input.
    pub fn run_with<'a>(&self, args: impl IntoIterator<Item = &'a str>, input: &[u8]) -> Ended {
        let mut command = self.lilbox(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let output = std::thread::scope(|scope| {
            scope.spawn(move || {
                // A command that ends early does not take everything.
                let _ = stdin.write_all(input);
            });
            child.wait_with_output().unwrap()
        });
        Ended::from(output)
    }

    /// Starts `lilbox` with its output piped.
    pub fn spawn<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Child {
        self.lilbox(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// `ls --json`.
    pub fn list(&self) -> Vec<serde_json::Value> {
        serde_json::from_str(&self.run(["ls", "--json"]).code(0).stdout).unwrap()
    }

    /// Directories of boxes and of their sockets that are there.
    pub fn left(&self) -> Vec<PathBuf> {
        let below = |directory: &str| {
            let entries = std::fs::read_dir(self.root().join(directory)).into_iter().flatten();
            entries
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.is_dir())
                .collect::<Vec<_>>()
        };
        [below("data/boxes"), below("run")].concat()
    }

    /// The directory of the one box that there is.
    pub fn the_box(&self) -> PathBuf {
        let boxes = std::fs::read_dir(self.root().join("data/boxes")).unwrap();
        let paths: Vec<PathBuf> = boxes.map(|entry| entry.unwrap().path()).collect();
        assert_eq!(paths.len(), 1, "{paths:?}");
        paths[0].clone()
    }

    /// Pids of stand-ins that belong to this home.
    pub fn vmms(&self) -> Vec<i32> {
        let programs = self.path("bin");
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| {
            // A zombie has no command line.
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            Path::new(&String::from_utf8_lossy(&line).into_owned()).starts_with(&programs)
        })
        .collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for pid in self.vmms() {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// Waits until something is so.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::yield_now();
    }
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ended {
    code: i32,
    pub stdout: String,
    pub stderr: String,
    pub bytes: Vec<u8>,
}

impl Ended {
    pub fn of(mut command: Command) -> Self {
        Self::from(command.output().unwrap())
    }

    /// Asserts on the exit code.
    #[track_caller]
    pub fn code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    /// Asserts that standard error holds each of these.
    #[track_caller]
    pub fn says(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.stderr.contains(text), "`{text}` is not in: {}", self.stderr);
        }
        self
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
        Self {
            code: output.status.code().unwrap_or_else(|| 128 + signal.unwrap_or_default()),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            bytes: output.stdout,
        }
    }
}
