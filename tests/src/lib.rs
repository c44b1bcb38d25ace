//! The harness of the end-to-end tests: a test reads *boot, exec, assert*.
//!
//! Tests drive the real `lilbox` program, as a user would, in a state directory of their own ([`Lab`]). They need a
//! KVM that runs ordinary kernels. Where there is none, [`place::enter`] moves the whole test program into the
//! machine (`lilbox machine exec`), in one boot of it.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test harness reads the environment and talks to its user"
)]

pub mod command;
pub mod lab;
pub mod place;
pub mod process;

pub use command::{Finished, Invocation};
pub use lab::{Lab, TestBox};
