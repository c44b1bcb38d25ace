//! What reaches the terminal: data on standard output, everything else on standard error.

use crate::error::{CliError, Result};
use crate::{progress, terminal};
use serde::Serialize;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

/// Writes data to standard output.
pub fn data(text: &str) -> Result<()> {
    write_to(&mut std::io::stdout().lock(), text)
}

/// Writes data with colours, which are left out where nobody sees them.
pub fn coloured(text: &str) -> Result<()> {
    write_to(&mut anstream::stdout().lock(), text)
}

/// Writes data as JSON.
pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<()> {
    let text = serde_json::to_string_pretty(value).expect("our own data has string keys");
    data(&format!("{text}\n"))
}

fn write_to(out: &mut impl Write, text: &str) -> Result<()> {
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Output)
}

/// Writes a note to standard error. A standard error that is gone is not a reason to fail.
pub fn note(text: &str) {
    progress::aside(|| {
        let _ = writeln!(anstream::stderr(), "{text}");
    });
}

/// Warns of something that did not keep the command from its work.
pub fn warning(text: &str) {
    note(&format!("warning: {text}"));
}

/// Shows the warnings of `boxes`, which itself never prints: things that went wrong and kept nobody from their work.
pub fn show_warnings() {
    static WARNINGS: Warnings = Warnings;
    if log::set_logger(&WARNINGS).is_ok() {
        log::set_max_level(log::LevelFilter::Warn);
    }
}

struct Warnings;

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn && metadata.target().starts_with("boxes")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            warning(&record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Tells people at a terminal what they can do next.
pub fn hint(text: &str) {
    if terminal::stderr_is_terminal() {
        note(&format!("hint: {text}"));
    }
}

/// Ends a command line that clap did not accept, or that asked for help.
pub fn parse_result(error: &clap::Error) -> ExitCode {
    // Help goes to standard output: a broken pipe there is the reader's choice.
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { 2 } else { 0 })
}

/// Columns with a header, two spaces apart.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(|name| (*name).to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
        };
        let widths: Vec<usize> =
            (0..columns).map(|column| width(column).unwrap_or_default()).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:<width$}  "));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["NAME", "S"]);
        table.row(vec!["a-long-name".into(), "up".into()]);
        table.row(vec!["b".into(), "x".into()]);
        assert_eq!(table.to_string(), "NAME         S\na-long-name  up\nb            x\n");
    }
}
