//! The real `/dev/kvm`, for tests that need it.

use std::fs::{File, OpenOptions};

/// Opens the device. Without one the test is skipped, with a line that says so; `LILBOX_REQUIRE_KVM=1` makes that a
/// failure.
pub fn kvm() -> Option<File> {
    match OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        Ok(file) => Some(file),
        Err(error) => {
            #[expect(
                clippy::disallowed_methods,
                reason = "a test harness may read the environment"
            )]
            let required = std::env::var("LILBOX_REQUIRE_KVM").is_ok_and(|value| value == "1");
            assert!(!required, "/dev/kvm is required and cannot be opened: {error}");
            #[expect(clippy::print_stdout, reason = "a skipped test says so")]
            {
                println!("skipped: /dev/kvm cannot be opened: {error}");
            }
            None
        }
    }
}
