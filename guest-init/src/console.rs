//! The console: the one place PID 1 can complain to before, and after, the agent runs.

use std::error::Error;
use std::io::Write;

/// Writes a line to the console. A console that cannot be written to leaves nobody to tell.
pub fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "lilbox-init: {message}");
}

/// The error with its causes in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
