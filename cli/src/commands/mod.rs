//! One file per command: an `Args` whose doc comments are the help, and `run`.

mod completions;
mod version;

use crate::error::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Version(version::Args),
    Completions(completions::Args),
}

impl Command {
    /// Runs the command.
    pub fn run(self) -> Result<ExitCode> {
        match self {
            Self::Version(args) => args.run(),
            Self::Completions(args) => args.run(),
        }
    }
}
