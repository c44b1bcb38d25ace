//! microsandbox (`msb`, from its Python wheel), with the same root as a directory.

use crate::guest;
use crate::ours::milliseconds;
use crate::report::{Report, Row};
use crate::stage::{Stage, on_path};
use std::fs;
use std::path::PathBuf;
use tests::Invocation;

const NAME: &str = "microsandbox";

/// The staged `msb`.
pub struct Microsandbox {
    program: PathBuf,
    home: PathBuf,
    root: PathBuf,
}

impl Microsandbox {
    /// Stages `msb` with the library that lies beside it (`../lib`), if it is on `PATH`.
    pub fn find(stage: &Stage) -> Option<Self> {
        let installed = fs::canonicalize(on_path("msb")?).expect("path of msb");
        let program = stage.copy(&installed, "msb/bin/msb");
        for entry in fs::read_dir(installed.parent()?.join("../lib")).ok()? {
            let path = entry.expect("list msb's libraries").path();
            stage.copy(&path, &format!("msb/lib/{}", path.file_name()?.to_string_lossy()));
        }
        let root = guest::unpack_base(stage, "msb-root");
        Some(Self { program, home: stage.path("msb-home"), root })
    }

    /// `msb run ROOT -- true`.
    pub fn run_true(&self, report: &mut Report) {
        let root = self.root.to_string_lossy();
        let args =
            ["run", "-q", "--cpus", "1", "--memory", "512M", "--no-tty", &root, "--", "true"];
        let finished =
            Invocation::new(&self.program, args).env("MSB_HOME", &self.home).run().assert_code(0);
        report.add(Row::RunTrue, NAME, milliseconds(finished.elapsed));
    }
}
