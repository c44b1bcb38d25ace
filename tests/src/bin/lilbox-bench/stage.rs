//! A directory on a local disk with copies of every program and file that is measured.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tests::place;

/// The directory; deleted at the end.
pub struct Stage {
    dir: TempDir,
}

impl Stage {
    /// Copies lilbox with its kernel and base image.
    pub fn new() -> Self {
        let parent = env::var_os("LILBOX_HOME").map_or_else(env::temp_dir, PathBuf::from);
        fs::create_dir_all(&parent).expect("make the stage's parent");
        let stage = Self {
            dir: tempfile::Builder::new()
                .prefix("bench-")
                .tempdir_in(parent)
                .expect("make the stage"),
        };
        let lilbox = place::lilbox();
        let release = lilbox.parent().expect("lilbox lies in a directory");
        stage.copy(&lilbox, "bin/lilbox");
        stage.copy(&release.join("lilbox-vmm"), "bin/lilbox-vmm");
        for file in ["vmlinux", "base.erofs", "base.json"] {
            stage
                .copy(&release.join("../share/lilbox").join(file), &format!("share/lilbox/{file}"));
        }
        stage
    }

    /// A path below the stage.
    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// Copies a file (what a link points to) to a path below the stage.
    pub fn copy(&self, from: &Path, to: &str) -> PathBuf {
        let to = self.path(to);
        fs::create_dir_all(to.parent().expect("a file below the stage")).expect("make a directory");
        fs::copy(from, &to).unwrap_or_else(|error| panic!("copy {}: {error}", from.display()));
        to
    }

    /// Copies a program and the shared libraries it is linked with; the libraries' directory comes second.
    pub fn copy_program(&self, program: &Path, name: &str) -> (PathBuf, PathBuf) {
        let staged = self.copy(program, &format!("{name}/bin/{name}"));
        let libraries = self.path(&format!("{name}/lib"));
        fs::create_dir_all(&libraries).expect("make a directory");
        let output = Command::new("ldd").arg(program).output().expect("run ldd");
        let text = String::from_utf8_lossy(&output.stdout);
        let paths: BTreeSet<&str> =
            text.lines().filter_map(|line| line.split("=> ").nth(1)?.split(' ').next()).collect();
        for path in paths.into_iter().filter(|path| path.starts_with('/')) {
            let file = Path::new(path).file_name().expect("a library's name").to_string_lossy();
            self.copy(Path::new(path), &format!("{name}/lib/{file}"));
        }
        (staged, libraries)
    }
}

/// Finds a program on `PATH`.
pub fn on_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}
