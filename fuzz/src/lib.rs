//! Fuzz bodies: each takes bytes, does with them what an attacker would, and panics if something is broken that must
//! hold whatever the bytes are.
//!
//! They are plain functions, so two things can call them: `tests/replay.rs`, which every build runs on a fixed set of
//! inputs, and the libFuzzer targets in `libfuzzer/`, which search for new ones (that needs a nightly toolchain:
//! `cargo +nightly fuzz run --fuzz-dir fuzz/libfuzzer blk`). What they find goes to `corpus/`, and stays fixed.
//!
//! - [`devices`]: a hostile driver in front of each virtio device, which ends with a friendly one that must be served;
//! - [`messages`]: what guests and clients send over sockets;
//! - [`images`]: archives from registries.

mod guest;
mod input;

pub mod devices;
pub mod images;
pub mod messages;

/// A body.
pub type Body = fn(&[u8]);

/// All bodies, by the names of their libFuzzer targets and folders in `corpus/`.
pub const BODIES: &[(&str, Body)] = &[
    ("agent_frames", messages::agent_frames),
    ("blk", devices::blk::run),
    ("console", devices::console::run),
    ("control_frames", messages::control_frames),
    ("erofs_tar", images::erofs_tar),
    ("launch_request", messages::launch_request),
    ("mmio_transport", devices::transport::run),
    ("rng", devices::rng::run),
    ("vsock", devices::vsock::run),
];
