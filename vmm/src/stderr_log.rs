//! The log: one line per message on standard error, which the parent points at a file.

use std::io::Write as _;

struct StandardError;

impl log::Log for StandardError {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let line = format!("{:5} {}: {}\n", record.level(), record.target(), record.args());
            // A log that cannot be written to must not end the box, and there is nobody else to tell.
            let _nobody_listens = std::io::stderr().write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}

/// Begins to log.
pub fn start(level: log::LevelFilter) {
    if log::set_logger(&StandardError).is_ok() {
        log::set_max_level(level);
    }
}
