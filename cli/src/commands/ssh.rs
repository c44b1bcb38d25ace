//! `lilbox ssh`.

use super::exec::ExecOptions;
use crate::attach::{Interaction, attach};
use crate::context::Context;
use crate::error::Result;
use boxes::exec::exec;
use std::ffi::OsString;
use std::process::ExitCode;

/// Finds the user's shell in the guest's own file, with nothing but a POSIX shell's built-in commands, and becomes it.
const LOGIN: &str = r#"shell=
while IFS=: read -r name _ _ _ _ _ program; do
  [ "$name" = "${USER:-root}" ] && shell=$program
done 2>/dev/null < /etc/passwd
[ -x "$shell" ] || shell=/bin/sh
export SHELL="$shell"
exec "$shell" -l"#;

/// Open a shell in a running box
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  lilbox ssh web
  lilbox ssh -u nobody web
  lilbox ssh web -- uname -a")]
pub struct Args {
    #[command(flatten)]
    options: ExecOptions,
    /// The box
    name: String,
    /// A command to run instead of a shell
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Args {
    /// Runs the command.
    pub fn run(self, context: Context) -> Result<ExitCode> {
        let login = || ["/bin/sh", "-c", LOGIN].map(OsString::from).to_vec();
        let command = if self.command.is_empty() { login() } else { self.command };
        let request = self.options.request(command);
        let home = context.open()?;
        attach(Interaction::default(), request, None, |request, streams, events| {
            exec(&home, &self.name, request, streams, Some(events))
        })
    }
}
