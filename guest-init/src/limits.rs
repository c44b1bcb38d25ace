//! Resource limits that all processes of the guest inherit.

use rustix::process::{Resource, Rlimit, setrlimit};
use std::io;

/// The kernel's defaults (1024 and 4096 descriptors) are too few for servers. The soft limit is not higher, because
/// some programs close every descriptor up to it, one by one.
const OPEN_FILES: Rlimit = Rlimit { current: Some(65_536), maximum: Some(1_048_576) };

/// Raises the limits of this process.
///
/// # Errors
/// If the kernel refuses.
pub fn raise() -> io::Result<()> {
    Ok(setrlimit(Resource::Nofile, OPEN_FILES)?)
}
