//! The messages that lilbox's programs exchange.
//!
//! Three programs speak to each other: the command line (through `boxes`), the VMM and the guest's
//! PID 1. Every message between them is defined here once:
//!
//! - [`launch`]: parent process → VMM, one request with descriptors, one reply;
//! - [`control`]: anyone with access to a box's control socket → its VMM;
//! - [`agent`]: host → guest agent, in [`frame`]s over one connection per request;
//! - [`guest`]: the configuration a guest finds in its initramfs.
//!
//! This crate does no I/O and has no `unsafe` code: it turns bytes into values and back.

#![forbid(unsafe_code)]

pub mod agent;
pub mod code;
pub mod codec;
pub mod control;
pub mod cpio;
pub mod frame;
pub mod guest;
pub mod launch;
pub mod spec;
pub mod version;
