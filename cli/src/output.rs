//! What reaches the terminal: data on standard output, everything else on standard error.

use crate::error::{CliError, Result};
use std::io::Write as _;
use std::process::ExitCode;

/// Writes data to standard output.
pub fn data(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(CliError::Output)
}

/// Writes a note to standard error. A standard error that is gone is not a reason to fail.
pub fn note(text: &str) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// Ends a command line that clap did not accept, or that asked for help.
pub fn parse_result(error: &clap::Error) -> ExitCode {
    // Help goes to standard output: a broken pipe there is the reader's choice.
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { 2 } else { 0 })
}
