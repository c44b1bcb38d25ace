//! Boxes: everything that `lilbox` does, for any program to call.
//!
//! - [`paths`], [`install`]: where state, sockets and our own files lie;
//! - [`error`]: what goes wrong, with its code word and advice;
//! - [`probe`]: whether this host's KVM can run boxes;
//! - [`spec`], [`image`], [`store`]: what a box is, what it starts from, where that is written down;
//! - [`lock`]: what tells whether a box runs;
//! - [`exec`], [`logs`]: what is done with boxes, each a function on a [`home::Home`];
//! - [`launch`], [`control`]: how VMM processes are started and spoken to;
//!
//! This crate never prints, reads the environment or ends the process; its callers pass such things in. It has no
//! async runtime: whatever waits, waits on descriptors.

pub mod clock;
pub mod control;
pub mod error;
pub mod exec;
pub mod home;
pub mod image;
pub mod install;
pub mod launch;
pub mod lock;
pub mod logs;
pub mod paths;
pub mod probe;
mod random;
mod similar;
pub mod spec;
pub mod store;

pub use error::{Error, Result};
pub use proto::code::Code;
pub use proto::spec::{BoxId, BoxName, BoxSpec};
