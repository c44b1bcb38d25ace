//! Errors of the command line: what is printed, and the exit code.

use anstyle::{AnsiColor, Style};
use boxes::Code;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// Exit code of a failure of lilbox itself where the exit code otherwise is that of a command in a guest.
pub const EXIT_FAILED: u8 = 125;

/// Result of a command.
pub type Result<T, E = CliError> = std::result::Result<T, E>;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// `boxes` failed.
    #[error(transparent)]
    Boxes(#[from] boxes::Error),
    /// The command line asks for something that makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Standard output cannot be written to.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
    /// A signal ended the command before its box was ready.
    #[error("interrupted by signal {0}")]
    Signal(u8),
    /// Some of several targets failed; each was reported.
    #[error("some of the boxes were not handled")]
    Partial,
    /// A system call failed.
    #[error("cannot {operation}")]
    Io {
        /// What was tried.
        operation: String,
        /// Cause.
        source: io::Error,
    },
}

impl CliError {
    /// Wraps an error of a system call: `operation` completes "cannot …".
    pub fn io(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let operation = operation.into();
        move |source| Self::Io { operation, source }
    }

    /// The code word.
    fn code(&self) -> Code {
        match self {
            Self::Boxes(error) => error.code(),
            Self::Usage(_) => Code::InvalidValue,
            Self::Signal(_) => Code::Interrupted,
            Self::Output(_) | Self::Io { .. } | Self::Partial => Code::Io,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Boxes(error) => error.hint(),
            _ => None,
        }
    }

    /// The exit code. A command that could not be run in a guest has the shells' codes for it; other failures of lilbox
    /// have `failure_code`.
    fn exit_code(&self, failure_code: u8) -> u8 {
        match (self, self.code()) {
            (Self::Usage(_), _) => 2,
            (Self::Signal(number), _) => 128 + (number & 0x7f),
            (_, Code::CommandNotFound) => 127,
            (_, Code::CommandNotRunnable) => 126,
            _ => failure_code,
        }
    }

    /// Prints the error and gives the exit code.
    pub fn report(&self, failure_code: u8) -> ExitCode {
        match self {
            // Whoever read our output has had enough: that is not a failure.
            Self::Output(source) if source.kind() == io::ErrorKind::BrokenPipe => {
                return ExitCode::SUCCESS;
            }
            Self::Partial => {}
            _ => self.print(),
        }
        ExitCode::from(self.exit_code(failure_code))
    }

    /// Prints the error.
    pub fn print(&self) {
        let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
        let cyan = Style::new().bold().fg_color(Some(AnsiColor::Cyan.into()));
        let mut text = format!("{red}error[{}]{red:#}: {}", self.code(), self.chain());
        if let Some(hint) = self.hint() {
            let _ = write!(text, "\n{cyan}hint{cyan:#}: {hint}");
        }
        // A standard error that is gone leaves only the exit code to tell.
        let _ = writeln!(anstream::stderr(), "{text}");
    }

    /// The message with its causes. Parts of it may be a guest's words, which must not reach the terminal as commands.
    fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            let _ = write!(text, ": {cause}");
            source = cause.source();
        }
        text.chars()
            .map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_words_do_nothing_to_the_terminal() {
        let message = "\x1b]0;owned\x07\x1b[2Jno\nsuch".into();
        let failed = proto::agent::Failed { code: Code::CommandNotFound, message };
        let error = CliError::from(boxes::Error::Guest(failed));
        assert_eq!(error.chain(), "\u{fffd}]0;owned\u{fffd}\u{fffd}[2Jno\nsuch");
    }
}
