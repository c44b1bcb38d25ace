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
