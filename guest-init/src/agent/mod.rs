//! The agent: carries out what the host asks, one request per connection (see [`proto::agent`]).
//!
//! A connection has a thread, and the thread a poll loop; nothing is shared between connections but [`Agent`].
//!
//! # Trust
//! Whoever reaches the agent may do anything in the guest, but must not be able to harm PID 1: no frame, no program
//! and no file of the guest may make it panic, hold memory without bound or leak a descriptor.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod channel;
mod command;
mod connection;
mod exec;
mod forward;
mod group;
mod leftover;
pub mod listen;
mod output;
mod pty;
mod session;
mod spawn;
mod stdin;
mod user;

#[cfg(test)]
mod tests;

use crate::clock;
use crate::power::PowerButton;
use crate::reap::Children;
use leftover::Leftovers;
use proto::agent::Hello;
use proto::version::AGENT_PROTOCOL;
use serde_bytes::ByteBuf;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// What the guest's configuration says about every exec.
#[derive(Debug, Clone, Default)]
pub struct Defaults {
    /// Environment, below the request's own.
    pub env: Vec<(ByteBuf, ByteBuf)>,
    /// Working directory.
    pub workdir: Option<ByteBuf>,
    /// User.
    pub user: Option<String>,
}

/// What all connections share.
#[derive(Debug)]
pub struct Agent {
    defaults: Defaults,
    children: Arc<Children>,
    power: PowerButton,
    leftovers: Leftovers,
    ready_uptime_nanos: u64,
}

impl Agent {
    /// An agent that is ready now.
    pub fn new(defaults: Defaults, children: Arc<Children>, power: PowerButton) -> Self {
        let ready_uptime_nanos = u64::try_from(clock::uptime().as_nanos()).unwrap_or(u64::MAX);
        Self { defaults, children, power, leftovers: Leftovers::default(), ready_uptime_nanos }
    }

    /// Who this guest is.
    pub fn hello(&self) -> Hello {
        Hello {
            protocol: AGENT_PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            ready_uptime_nanos: self.ready_uptime_nanos,
        }
    }
}

/// Makes the configured working directory if it is missing, as container engines do.
///
/// # Errors
/// If it cannot be made.
pub fn make_workdir(workdir: Option<&ByteBuf>) -> io::Result<()> {
    workdir.map_or(Ok(()), |path| {
        std::fs::create_dir_all(Path::new("/").join(OsStr::from_bytes(path)))
    })
}
