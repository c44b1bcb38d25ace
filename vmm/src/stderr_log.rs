//! The log: one line per message on standard error, which the parent points at a file.
//!
//! Nobody caps that file, so what a guest can make us log must be bounded. Our own messages about guests are
//! ([`crate::virtio::fault_log`]). Those of libraries are not: `virtio-queue` complains of every queue that makes no
//! sense, as often as a guest sets one up. So only our own are written; they say the same.

use std::io::Write as _;

struct StandardError;

impl log::Log for StandardError {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level() && is_ours(metadata.target())
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

/// Whether a message comes from this crate, its library or its program.
fn is_ours(target: &str) -> bool {
    matches!(target.split("::").next(), Some("vmm" | "lilbox_vmm"))
}

/// Begins to log.
pub fn start(level: log::LevelFilter) {
    if log::set_logger(&StandardError).is_ok() {
        log::set_max_level(level);
    }
}

#[cfg(test)]
mod tests {
    use super::is_ours;

    #[test]
    fn libraries_which_guests_can_make_complain_are_not_heard() {
        assert!(is_ours(module_path!()) && is_ours("lilbox_vmm"));
        assert!(!is_ours("virtio_queue::queue") && !is_ours("vmm_sys_util") && !is_ours(""));
    }
}
