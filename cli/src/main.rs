//! `lilbox`: the command line. It parses, calls `boxes`, and prints; what a command does is in `boxes`.

mod attach;
mod commands;
mod context;
mod error;
mod machine_passthrough;
mod output;
mod progress;
mod signals;
mod terminal;
mod values;

use clap::Parser;
use std::process::ExitCode;

/// Instant, isolated Linux boxes on your own hardware.
#[derive(Debug, Parser)]
#[command(name = "lilbox", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return output::parse_result(&error),
    };
    output::show_warnings();
    let failure_code = cli.command.failure_code();
    match cli.command.run() {
        Ok(code) => code,
        Err(error) => error.report(failure_code),
    }
}
