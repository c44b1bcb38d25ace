//! Complaints about the guest, bounded.
//!
//! A guest decides how often it misbehaves, so it must not decide how much is logged.

use std::fmt;

/// This many complaints are logged one by one; of the later ones only each that doubles the count.
const LOGGED_IN_FULL: u64 = 8;

/// Logs what one device's driver does wrong, at most some seventy lines whatever the guest does.
#[derive(Debug)]
pub struct FaultLog {
    device: &'static str,
    count: u64,
}

impl FaultLog {
    /// A log for the device of that name.
    #[must_use]
    pub const fn new(device: &'static str) -> Self {
        Self { device, count: 0 }
    }

    /// Notes one complaint; `what` is formatted only if it is logged.
    pub fn note(&mut self, what: impl fmt::Display) {
        self.count = self.count.saturating_add(1);
        if self.count <= LOGGED_IN_FULL {
            log::warn!("{}: {what}", self.device);
        } else if self.count.is_power_of_two() {
            log::warn!("{}: {what} ({} such complaints so far)", self.device, self.count);
        }
    }

    /// Complaints noted so far.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    struct Counted<'a>(&'a Cell<usize>);

    impl fmt::Display for Counted<'_> {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.set(self.0.get() + 1);
            formatter.write_str("wrong")
        }
    }

    #[test]
    fn a_flood_of_complaints_is_a_few_lines() {
        // Without a logger nothing is formatted, so install one that formats.
        struct Formatting;
        impl log::Log for Formatting {
            fn enabled(&self, _: &log::Metadata<'_>) -> bool {
                true
            }
            fn log(&self, record: &log::Record<'_>) {
                let _line = record.args().to_string();
            }
            fn flush(&self) {}
        }
        static LOGGER: Formatting = Formatting;
        // Another test of this process may have been first; any logger at this level serves.
        let _first = log::set_logger(&LOGGER);
        log::set_max_level(log::LevelFilter::Warn);
        let formatted = Cell::new(0);
        let mut faults = FaultLog::new("test");
        for _ in 0..1_000_000 {
            faults.note(Counted(&formatted));
        }
        assert_eq!(faults.count(), 1_000_000);
        // The first 8, then 16, 32, … 524288.
        assert_eq!(formatted.get(), 8 + 16);
    }
}
