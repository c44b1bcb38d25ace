//! lilbox itself.

use crate::MEMORY_MIB;
use crate::report::{OURS, Report, Row};
use crate::stage::Stage;
use std::path::PathBuf;
use std::time::Duration;
use tests::{Invocation, process};

const BOX: &str = "bench";

/// The staged lilbox, with a running box for execs.
pub struct Ours {
    lilbox: PathBuf,
    home: PathBuf,
}

impl Ours {
    /// Boots the box that execs go to.
    pub fn new(stage: &Stage) -> Self {
        let ours = Self { lilbox: stage.path("bin/lilbox"), home: stage.path("home") };
        let _ = ours.command(&["new", "exec", "--memory", "512M"]).text();
        ours
    }

    fn command(&self, args: &[&str]) -> Invocation {
        Invocation::new(&self.lilbox, args)
            .env("LILBOX_HOME", &self.home)
            .env("LILBOX_MACHINE", "never")
    }

    fn stat(&self) -> serde_json::Value {
        serde_json::from_str(&self.command(&["stat", BOX, "--json"]).text()).expect("JSON")
    }

    /// Boots a box and measures its memory.
    pub fn cold_boot(&self, report: &mut Report) {
        let memory = format!("{MEMORY_MIB}M");
        let _ = self.command(&["new", BOX, "--memory", &memory]).text();
        let stat = self.stat();
        let boot = stat["boot_micros"].as_u64().expect("stat tells how long the boot took");
        let pid = stat["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a pid");
        report.add(Row::ColdBoot, OURS, milliseconds(Duration::from_micros(boot)));
        let own = process::memory(pid, MEMORY_MIB.into()).own_kib;
        report.add(Row::OwnMemory, OURS, f64::from(u32::try_from(own).expect("a size")));
        let _ = self.command(&["rm", "--force", BOX]).text();
    }

    /// `lilbox run -- true`.
    pub fn run_true(&self, report: &mut Report) {
        let finished =
            self.command(&["run", "--memory", "512M", "--", "true"]).run().assert_code(0);
        report.add(Row::RunTrue, OURS, milliseconds(finished.elapsed));
    }

    /// `lilbox exec -- true`.
    pub fn exec_round_trip(&self, report: &mut Report) {
        let finished = self.command(&["exec", "exec", "--", "true"]).run().assert_code(0);
        report.add(Row::ExecRoundTrip, OURS, milliseconds(finished.elapsed));
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.command(&["rm", "--force", "exec"]).run();
    }
}

/// A duration in milliseconds.
pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
