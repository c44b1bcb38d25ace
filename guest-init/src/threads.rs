//! Threads with small stacks: the guest may be small, and its PID 1 has a thread per connection.

use std::io;
use std::thread::Builder;

/// Enough for the deepest call here (decoding a request: at most 32 levels of nesting), in release and debug builds.
const STACK_BYTES: usize = if cfg!(debug_assertions) { 512 << 10 } else { 128 << 10 };

/// Starts a detached thread.
///
/// # Errors
/// If there is no memory or the limit of threads is reached.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    Builder::new().name(name.into()).stack_size(STACK_BYTES).spawn(body).map(drop)
}
