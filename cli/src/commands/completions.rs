//! `lilbox completions`.

use crate::error::Result;
use crate::{Cli, output};
use clap::CommandFactory as _;
use clap_complete::Shell;
use std::process::ExitCode;

/// Print a script that teaches a shell lilbox's commands
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  lilbox completions bash > ~/.local/share/bash-completion/completions/lilbox
  lilbox completions zsh > \"${fpath[1]}/_lilbox\"
  lilbox completions fish > ~/.config/fish/completions/lilbox.fish")]
pub struct Args {
    /// The shell
    shell: Shell,
}

impl Args {
    /// Runs the command.
    pub fn run(self) -> Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "lilbox", &mut script);
        output::data(&String::from_utf8_lossy(&script))?;
        Ok(ExitCode::SUCCESS)
    }
}
