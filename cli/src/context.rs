//! What a command works with. The environment is read here and nowhere else.

use crate::error::{CliError, Result};
use boxes::home::Home;
use boxes::install::{Install, Told};
use boxes::paths::{Dirs, Environment};
use boxes::probe::probe;
use std::ffi::OsString;
use std::path::PathBuf;

/// The directories and the installed files.
#[derive(Debug, Clone)]
pub struct Context {
    /// State, data and sockets.
    pub dirs: Dirs,
    /// Our own files.
    pub install: Install,
    /// Where programs are searched (`PATH`).
    pub search_path: Option<OsString>,
}

/// A variable of the environment; an empty one counts as not set.
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the environment")]
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

impl Context {
    /// Finds everything; makes nothing.
    pub fn from_environment() -> Result<Self> {
        let path = |name| variable(name).map(PathBuf::from);
        let environment = Environment {
            lilbox_home: path("LILBOX_HOME"),
            home: path("HOME"),
            state_home: path("XDG_STATE_HOME"),
            data_home: path("XDG_DATA_HOME"),
            runtime_dir: path("XDG_RUNTIME_DIR"),
            temporary: "/tmp".into(),
            uid: rustix::process::geteuid().as_raw(),
        };
        let program =
            std::env::current_exe().map_err(CliError::io("find out where this program lies"))?;
        let told =
            Told { vmm: path("LILBOX_VMM"), share: path("LILBOX_SHARE"), kvm: path("LILBOX_KVM") };
        Ok(Self {
            dirs: Dirs::compute(&environment)?,
            install: Install::locate(&program, told),
            search_path: variable("PATH"),
        })
    }

    /// Passes if KVM can run boxes. For commands that start one, before they make or stop anything: a box that cannot
    /// run would only have to be removed again.
    pub fn require_kvm(&self) -> Result<()> {
        let device = &self.install.kvm;
        Ok(probe(device, &self.dirs.runtime).require(device)?)
    }

    /// Opens the state, making what is missing.
    pub fn open(self) -> Result<Home> {
        Ok(Home::open(self.dirs, self.install)?)
    }
}
