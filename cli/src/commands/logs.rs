//! `lilbox logs`.

use crate::context::Context;
use crate::error::{CliError, Result};
use crate::signals::Signals;
use boxes::logs::{Selection, logs};
use std::io;
use std::process::ExitCode;

/// Show a box's console: what its kernel and its services wrote there
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The box
    name: String,
    /// Go on with what comes, until the box stops
    #[arg(short, long)]
    follow: bool,
    /// Show only that many lines of what is there
    #[arg(short = 'n', long, value_name = "N")]
    tail: Option<usize>,
}

impl Args {
    /// Runs the command.
    pub fn run(self, context: Context) -> Result<ExitCode> {
        let home = context.open()?;
        let selection = Selection { tail: self.tail, follow: self.follow };
        let ending = if self.follow { Some(Signals::ending()?) } else { None };
        let cancel = ending.as_ref().map(Signals::descriptor);
        match logs(&home, &self.name, selection, cancel, &mut io::stdout().lock()) {
            Err(boxes::Error::Io { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => {
                Err(CliError::Output(source))
            }
            result => Ok(result.map(|()| ExitCode::SUCCESS)?),
        }
    }
}
