//! `lilbox new`.

use super::options::BoxOptions;
use crate::context::Context;
use crate::error::Result;
use crate::output;
use crate::progress::Progress;
use crate::signals::Signals;
use boxes::BoxName;
use boxes::create::{Request, create};
use boxes::progress::Step;
use std::process::ExitCode;

/// Make and start a box that stays
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  lilbox new web --cpus 2 --memory 1G
  name=$(lilbox new)                         the name goes to standard output")]
pub struct Args {
    /// Its name: letters, digits, `.`, `-`, `_`; a random one if absent
    name: Option<BoxName>,
    #[command(flatten)]
    options: BoxOptions,
}

impl Args {
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
        let request = Request { name: self.name, spec, ephemeral: false };
        let progress = Progress::begin("making the box…", quiet);
        let mut tell = |step: Step<'_>| progress.step(step);
        let created = create(&home, &request, Some(ending.descriptor()), &mut tell);
        drop(progress);
        let record = created.map_err(|error| ending.explain(error))?.commit()?;
        output::data(&format!("{}\n", record.name))?;
        output::hint(&format!(
            "`lilbox exec {0} -- COMMAND` runs a command in it, `lilbox ssh {0}` opens a shell",
            record.name
        ));
        Ok(ExitCode::SUCCESS)
    }
}
