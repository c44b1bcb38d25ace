//! One file per command: an `Args` whose doc comments are the help, and `run`.

mod completions;
mod doctor;
mod exec;
mod image;
mod lifecycle;
mod logs;
mod ls;
mod machine;
mod new;
mod options;
mod run;
mod ssh;
mod stat;
mod version;

use crate::attach::Interaction;
use crate::context::Context;
use crate::error::{EXIT_FAILED, Result};
use crate::machine_passthrough;
use clap::Subcommand;
use std::process::ExitCode;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(run::Args),
    New(new::Args),
    Exec(exec::Args),
    Ssh(ssh::Args),
    Ls(ls::Args),
    Stat(stat::Args),
    Stop(lifecycle::StopArgs),
    Start(lifecycle::StartArgs),
    Restart(lifecycle::RestartArgs),
    Rm(lifecycle::RmArgs),
    Logs(logs::Args),
    Image(image::Args),
    Machine(machine::Args),
    Doctor(doctor::Args),
    Version(version::Args),
    Completions(completions::Args),
}

impl Command {
    /// Exit code of a failure of lilbox itself: one that no command in a guest is likely to have, where the exit code
    /// is otherwise the command's.
    pub fn failure_code(&self) -> u8 {
        match self {
            Self::Run(_) | Self::Exec(_) | Self::Ssh(_) => EXIT_FAILED,
            Self::Machine(args) if args.runs_command() => EXIT_FAILED,
            _ => 1,
        }
    }

    /// Runs the command.
    pub fn run(self) -> Result<ExitCode> {
        match self {
            // These touch no state, and so work where nothing else does.
            Self::Version(args) => return args.run(),
            Self::Completions(args) => return args.run(),
            _ => {}
        }
        let context = Context::from_environment()?;
        if self.needs_boxes()
            && let Some(code) =
                machine_passthrough::intercept(&context, self.interaction(), self.is_quiet())?
        {
            return Ok(code);
        }
        match self {
            Self::Run(args) => args.run(context),
            Self::New(args) => args.run(context),
            Self::Exec(args) => args.run(context),
            Self::Ssh(args) => args.run(context),
            Self::Ls(args) => args.run(context),
            Self::Stat(args) => args.run(context),
            Self::Stop(args) => args.run(context),
            Self::Start(args) => args.run(context),
            Self::Restart(args) => args.run(context),
            Self::Rm(args) => args.run(context),
            Self::Logs(args) => args.run(context),
            Self::Image(args) => args.run(context),
            Self::Machine(args) => args.run(context),
            Self::Doctor(args) => args.run(context),
            Self::Version(args) => args.run(),
            Self::Completions(args) => args.run(),
        }
    }

    /// What the user asked for about terminal and standard input. In the machine, the command has what it needs for
    /// that only if we asked the machine for the same.
    fn interaction(&self) -> Interaction {
        match self {
            Self::Run(args) => args.interaction(),
            Self::Exec(args) => args.interaction(),
            _ => Interaction::default(),
        }
    }

    /// Whether the user wants to see nothing of what takes long.
    fn is_quiet(&self) -> bool {
        match self {
            Self::Run(args) => args.is_quiet(),
            Self::New(args) => args.is_quiet(),
            Self::Ls(args) => args.is_quiet(),
            Self::Stop(args) => args.is_quiet(),
            Self::Start(args) => args.is_quiet(),
            Self::Restart(args) => args.is_quiet(),
            Self::Image(args) => args.is_quiet(),
            _ => false,
        }
    }

    /// Whether the command runs where the boxes are, which may be inside the machine.
    fn needs_boxes(&self) -> bool {
        !matches!(
            self,
            Self::Machine(_) | Self::Doctor(_) | Self::Version(_) | Self::Completions(_)
        )
    }
}
