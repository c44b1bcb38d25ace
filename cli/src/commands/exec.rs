//! `lilbox exec`.

use crate::attach::{Interaction, attach};
use crate::context::Context;
use crate::error::Result;
use crate::values::{duration, environment};
use boxes::exec::exec;
use proto::agent::Exec;
use serde_bytes::ByteBuf;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::time::Duration;

/// Run a command in a running box
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  lilbox exec web -- ls -l /srv
  lilbox exec -it web -- bash
  lilbox exec web -- sh -c 'cat > /srv/data' < data
  lilbox exec --detach web -- python3 -m http.server

The command is not given to a shell. Exit codes are those of `lilbox run`.")]
pub struct Args {
    #[command(flatten)]
    interaction: Interaction,
    #[command(flatten)]
    options: ExecOptions,
    /// Let the command run on in the box and return at once; its output is lost
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    detach: bool,
    /// The box
    name: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How a command is to run.
#[derive(Debug, Default, clap::Args)]
pub struct ExecOptions {
    /// Set an environment variable; without a value, to the one it has here
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", value_parser = environment)]
    env: Vec<(String, String)>,
    /// Working directory
    #[arg(short, long, value_name = "PATH")]
    workdir: Option<String>,
    /// User: name or number, with an optional :group
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// End the command after this time, such as 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
}

impl ExecOptions {
    /// The request for a command.
    pub fn request(self, command: Vec<OsString>) -> Exec {
        let bytes = |text: String| ByteBuf::from(text.into_bytes());
        Exec {
            argv: command.into_iter().map(|word| ByteBuf::from(word.into_vec())).collect(),
            env: self.env.into_iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
            cwd: self.workdir.map(bytes),
            user: self.user,
            timeout_ms: self
                .timeout
                .map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
            ..Exec::default()
        }
    }
}

impl Args {
    /// What the user asked for about terminal and standard input.
    pub fn interaction(&self) -> Interaction {
        self.interaction
    }

    /// Runs the command.
    pub fn run(self, context: Context) -> Result<ExitCode> {
        let request = Exec { detach: self.detach, ..self.options.request(self.command) };
        let home = context.open()?;
        attach(self.interaction, request, None, |request, streams, events| {
            exec(&home, &self.name, request, streams, Some(events))
        })
    }
}
