//! `lilbox run`.

use super::options::BoxOptions;
use crate::attach::{Interaction, attach};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::output;
use crate::progress::Progress;
use crate::signals::Signals;
use crate::values::duration;
use boxes::create::{OwnedBox, Request, create};
use boxes::exec::exec_at;
use boxes::progress::Step;
use boxes::{BoxName, Error};
use proto::agent::Exec;
use serde_bytes::ByteBuf;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::time::Duration;

/// Lines of the console that are shown when a box dies under its command.
const CONSOLE_LINES: usize = 10;

/// Run a command in a new box that is removed afterwards
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  lilbox run -- python3 -c 'print(6*7)'
  lilbox run --cpus 2 --memory 1G -e DEBUG=1 -- make test
  lilbox run                                 a shell, if there is a terminal
  tar c . | lilbox run -- tar t              standard input goes to the command

The exit code is the command's; 124 if its time ran out, 125 if lilbox failed before the command ran,
126 if it cannot be run, 127 if there is no such command, 128+N if signal N ended it.")]
pub struct Args {
    #[command(flatten)]
    options: BoxOptions,
    #[command(flatten)]
    interaction: Interaction,
    /// End the command after this time, such as 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    /// Name of the box while it lives
    #[arg(long, value_name = "NAME")]
    name: Option<BoxName>,
    /// Remove the box afterwards (it always is; accepted because other tools have it)
    #[arg(long, hide = true)]
    rm: bool,
    /// The command and its arguments; without one, what the image says
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Args {
    /// What the user asked for about terminal and standard input.
    pub fn interaction(&self) -> Interaction {
        self.interaction
    }

    /// Whether nothing is to be shown of what takes long.
    pub fn is_quiet(&self) -> bool {
        self.options.is_quiet()
    }

    /// Runs the command.
    pub fn run(self, context: Context) -> Result<ExitCode> {
        let quiet = self.is_quiet();
        let spec = self.options.spec()?;
        context.require_kvm()?;
        let home = context.open()?;
        let mut ending = Signals::ending()?;
        let request = Request { name: self.name, spec, ephemeral: true };
        let progress = Progress::begin("making the box…", quiet);
        let mut tell = |step: Step<'_>| progress.step(step);
        let created = create(&home, &request, Some(ending.descriptor()), &mut tell);
        drop(progress);
        let owned = created.map_err(|error| ending.explain(error))?;
        owned.note_start()?;
        let exec = Exec {
            argv: argv(self.command, || owned.record.image_config.command()),
            timeout_ms: self
                .timeout
                .map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
            ..Exec::default()
        };
        let result = attach(self.interaction, exec, Some(&mut ending), |exec, streams, events| {
            exec_at(&owned.agent_socket(), owned.record.name.as_str(), exec, streams, Some(events))
        });
        if let Err(CliError::Boxes(Error::ConnectionLost(_))) = &result {
            show_console(&owned);
        }
        if let Err(error) = owned.remove() {
            // The command has had its say; what is left is removed by the next lilbox.
            output::warning(&format!("the box is not wholly removed: {error}"));
        }
        result
    }
}

/// The command, or what the image says, or a shell.
fn argv(command: Vec<OsString>, of_image: impl FnOnce() -> Vec<String>) -> Vec<ByteBuf> {
    let mut argv: Vec<Vec<u8>> = command.into_iter().map(OsString::into_vec).collect();
    if argv.is_empty() {
        argv = of_image().into_iter().map(String::into_bytes).collect();
    }
    if argv.is_empty() {
        argv = vec![b"/bin/sh".to_vec()];
    }
    argv.into_iter().map(ByteBuf::from).collect()
}

/// Shows how a box ended that is about to be removed with its logs.
fn show_console(owned: &OwnedBox<'_>) {
    match owned.console_tail(CONSOLE_LINES) {
        Ok(lines) if lines.is_empty() => {}
        Ok(lines) => {
            output::note(&format!("the last lines of its console:\n    {}", lines.join("\n    ")))
        }
        Err(error) => output::warning(&error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_command_the_image_and_then_a_shell_is_asked() {
        let of_image = || vec!["bash".to_owned(), "-l".to_owned()];
        let text = |argv: Vec<ByteBuf>| {
            argv.iter().map(|arg| String::from_utf8_lossy(arg).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(text(argv(vec!["ls".into()], of_image)), ["ls"]);
        assert_eq!(text(argv(vec![], of_image)), ["bash", "-l"]);
        assert_eq!(text(argv(vec![], Vec::new)), ["/bin/sh"]);
    }
}
