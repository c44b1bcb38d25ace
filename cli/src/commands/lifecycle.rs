//! `lilbox stop`, `start`, `restart` and `rm`: the same thing done to several boxes, one after the other. One that
//! fails does not keep the others from their turn.

use super::options::Quiet;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::progress::Progress;
use crate::signals::Signals;
use crate::values::duration;
use boxes::home::Home;
use boxes::remove::remove;
use boxes::start::{STOP_GRACE, start};
use boxes::stop::stop;
use std::process::ExitCode;
use std::time::Duration;

/// Stop boxes; their files stay
#[derive(Debug, clap::Args)]
pub struct StopArgs {
    /// The boxes
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    grace: Grace,
    #[command(flatten)]
    quiet: Quiet,
}

/// Start boxes that are stopped
#[derive(Debug, clap::Args)]
pub struct StartArgs {
    /// The boxes
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    quiet: Quiet,
}

/// Stop boxes and start them again
#[derive(Debug, clap::Args)]
pub struct RestartArgs {
    /// The boxes
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    grace: Grace,
    #[command(flatten)]
    quiet: Quiet,
}

/// Remove boxes with all their files
#[derive(Debug, clap::Args)]
pub struct RmArgs {
    /// The boxes
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Remove running boxes too
    #[arg(short, long)]
    force: bool,
}

#[derive(Debug, Clone, Copy, clap::Args)]
struct Grace {
    /// Time that programs in the box have to end by themselves [default: 10s]
    #[arg(short, long = "time", value_name = "DURATION", value_parser = duration)]
    time: Option<Duration>,
}

impl Grace {
    fn time(&self) -> Duration {
        self.time.unwrap_or(STOP_GRACE)
    }
}

impl StopArgs {
    /// Whether nothing is to be shown of what takes long.
    pub fn is_quiet(&self) -> bool {
        self.quiet.quiet
    }

    /// Runs the command.
    pub fn run(self, context: Context) -> Result<ExitCode> {
        for_each(&context.open()?, &self.names, |home, name| {
            stop_one(home, name, self.grace, self.quiet)
        })
    }
}

impl StartArgs {
    /// Whether nothing is to be shown of what takes long.
    pub fn is_quiet(&self) -> bool {
        self.quiet.quiet
    }

    /// Runs the command.
    pub fn run(self, context: Context) -> Result<ExitCode> {
        context.require_kvm()?;
        let mut ending = Signals::ending()?;
        for_each(&context.open()?, &self.names, |home, name| {
            start_one(home, name, &mut ending, self.quiet)
        })
    }
}

impl RestartArgs {
    /// Whether nothing is to be shown of what takes long.
    pub fn is_quiet(&self) -> bool {
        self.quiet.quiet
    }

    /// Runs the command.
    pub fn run(self, context: Context) -> Result<ExitCode> {
        context.require_kvm()?;
        let mut ending = Signals::ending()?;
        for_each(&context.open()?, &self.names, |home, name| {
            stop_one(home, name, self.grace, self.quiet)?;
            start_one(home, name, &mut ending, self.quiet)
        })
    }
}

impl RmArgs {
    /// Runs the command.
    pub fn run(self, context: Context) -> Result<ExitCode> {
        for_each(&context.open()?, &self.names, |home, name| Ok(remove(home, name, self.force)?))
    }
}

fn stop_one(home: &Home, name: &str, grace: Grace, quiet: Quiet) -> Result<()> {
    let _progress = Progress::begin(&format!("stopping {name}…"), quiet.quiet);
    stop(home, name, grace.time())?;
    Ok(())
}

fn start_one(home: &Home, name: &str, ending: &mut Signals, quiet: Quiet) -> Result<()> {
    let _progress = Progress::begin(&format!("booting {name}…"), quiet.quiet);
    let started = start(home, name, Some(ending.descriptor()));
    started.map(drop).map_err(|error| ending.explain(error))
}

fn for_each(
    home: &Home,
    names: &[String],
    mut action: impl FnMut(&Home, &str) -> Result<()>,
) -> Result<ExitCode> {
    let mut failed = false;
    for name in names {
        match action(home, name) {
            Ok(()) => {}
            // The user wants to end, not to go on with the next.
            Err(error @ CliError::Signal(_)) => return Err(error),
            Err(error) => {
                error.print();
                failed = true;
            }
        }
    }
    if failed { Err(CliError::Partial) } else { Ok(ExitCode::SUCCESS) }
}
