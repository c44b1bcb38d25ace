//! A state directory of a test's own, and boxes in it.

use crate::command::{Finished, Invocation};
use crate::place;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

static NAMES: AtomicU32 = AtomicU32::new(0);

/// A fresh state directory. When it goes out of scope its boxes are removed and the directory is deleted.
pub struct Lab {
    home: TempDir,
    lilbox: PathBuf,
}

/// A running box. It is removed with its lab.
pub struct TestBox<'lab> {
    lab: &'lab Lab,
    /// Its name.
    pub name: String,
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

impl Lab {
    /// A lab in the directory for temporary files; inside the machine, on the machine's own disk.
    #[must_use]
    pub fn new() -> Self {
        let parent = env::var_os("LILBOX_HOME").map_or_else(env::temp_dir, PathBuf::from);
        std::fs::create_dir_all(&parent).expect("make the directory for labs");
        let home = tempfile::Builder::new().prefix("lab-").tempdir_in(parent).expect("make a lab");
        Self { home, lilbox: place::lilbox() }
    }

    /// The state directory (`LILBOX_HOME`).
    #[must_use]
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// A `lilbox` command in this lab.
    pub fn lilbox<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Invocation {
        Invocation::new(&self.lilbox, args)
            .env("LILBOX_HOME", self.home.path())
            .env("LILBOX_MACHINE", "never")
    }

    /// `lilbox run ARGS`, to its end.
    pub fn run<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Finished {
        self.lilbox(["run"].into_iter().chain(args)).run()
    }

    /// Makes and boots a box with these options.
    pub fn boot<'a>(&self, options: impl IntoIterator<Item = &'a str>) -> TestBox<'_> {
        let name = format!("t{}", NAMES.fetch_add(1, Ordering::Relaxed));
        let printed = self.lilbox(["new"]).args([name.as_str()]).args(options).text();
        assert_eq!(printed, name, "`new` prints the box's name and nothing else");
        TestBox { lab: self, name }
    }

    /// `lilbox ls --json`.
    pub fn list(&self) -> Vec<serde_json::Value> {
        let text = self.lilbox(["ls", "--json"]).text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("`ls --json`: {error}: {text}"))
    }

    /// Pids of the VMMs of this lab's boxes, found without the product's help.
    #[must_use]
    pub fn vmm_pids(&self) -> Vec<u32> {
        let mine = self.home.path().to_string_lossy().into_owned();
        let vmms = crate::process::with_command_line("lilbox-vmm").into_iter();
        let of_this_lab = |pid: &u32| {
            let Ok(links) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
            links
                .filter_map(|link| std::fs::read_link(link.ok()?.path()).ok())
                .any(|target| target.to_string_lossy().starts_with(&mine))
        };
        vmms.filter(of_this_lab).collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for entry in self.list() {
            if let Some(name) = entry["name"].as_str() {
                self.lilbox(["rm", "--force", name]).run();
            }
        }
    }
}

impl TestBox<'_> {
    /// `lilbox exec NAME -- ARGV`, about to be run.
    pub fn command<'a>(&'a self, argv: impl IntoIterator<Item = &'a str>) -> Invocation {
        self.lab.lilbox(["exec", &self.name, "--"].into_iter().chain(argv))
    }

    /// `lilbox exec NAME -- ARGV`, to its end.
    pub fn exec<'a>(&'a self, argv: impl IntoIterator<Item = &'a str>) -> Finished {
        self.command(argv).run()
    }

    /// Runs a shell script in the box, which must succeed, and returns what it printed, trimmed.
    pub fn sh(&self, script: &str) -> String {
        self.command(["sh", "-c", script]).text()
    }

    /// `lilbox stat NAME --json`.
    pub fn stat(&self) -> serde_json::Value {
        let text = self.lab.lilbox(["stat", &self.name, "--json"]).text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("`stat --json`: {error}: {text}"))
    }

    /// Pid of the box's VMM.
    pub fn vmm_pid(&self) -> u32 {
        let pid = self.stat()["pid"].as_u64().expect("a running box has a pid");
        u32::try_from(pid).expect("a pid")
    }
}
