//! Boxes: everything that `lilbox` does, for any program to call.
//!
//! - [`paths`], [`install`]: where state, sockets and our own files lie;
//! - [`error`]: what goes wrong, with its code word and advice;
//! - [`probe`]: whether this host's KVM can run boxes;
//! - [`spec`], [`image`], [`store`]: what a box is, what it starts from, where that is written down;
//! - [`lock`]: what tells whether a box runs;
//! - [`create`], [`start`], [`stop`], [`remove`], [`list`], [`exec`], [`logs`]: what is done with boxes, each a function
//!   on a [`home::Home`];
//! - [`launch`], [`control`]: how VMM processes are started and spoken to;
//! - [`initramfs`], [`empty_disk`]: what every guest starts from, linked into this crate;
//! - [`progress`]: what takes long, told while it does;
//! - [`gc`], [`doctor`]: what killed commands left, and what this computer lacks;
//! - [`machine`]: the Linux host that lilbox brings along where KVM cannot run boxes.
//!
//! This crate never prints, reads the environment or ends the process; its callers pass such things in. It has no
//! async runtime: whatever waits, waits on descriptors.

pub mod clock;
pub mod control;
pub mod create;
pub mod doctor;
pub mod empty_disk;
pub mod error;
pub mod exec;
pub mod gc;
mod hex;
pub mod home;
pub mod image;
pub mod initramfs;
pub mod install;
pub mod launch;
pub mod list;
pub mod lock;
pub mod logs;
pub mod machine;
pub mod paths;
pub mod probe;
pub mod progress;
mod random;
pub mod remove;
mod resolv;
mod similar;
pub mod spec;
pub mod start;
pub mod stop;
pub mod store;

pub use error::{Error, Result};
pub use proto::code::Code;
pub use proto::spec::{BoxId, BoxName, BoxSpec};
