//! The layers between a guest that has taken over this process and the host.
//!
//! In order: resource limits and a process that nobody may inspect; namespaces and an empty root, where the host
//! allows them; no capabilities; no new privileges; Landlock; and, per thread, a list of system calls ([`syscalls`]).
//! From then on this process reaches files only through descriptors that it was handed.
//!
//! There is no process id namespace: a process cannot move itself into one and still make threads. What it would
//! hide cannot be touched anyhow, since signals to other processes are not on any list of system calls.

mod landlock;
mod namespaces;
pub mod syscalls;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
use std::io;
use syscalls::{Role, SyscallFilterError};

/// A layer that the host must provide and does not.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A call failed.
    #[error("cannot {0}")]
    Call(&'static str, #[source] io::Error),
    /// Landlock is there and does not work.
    #[error("cannot set up Landlock")]
    Landlock(#[source] ::landlock::RulesetError),
    /// A list of system calls cannot be installed.
    #[error("cannot install the list of system calls")]
    Syscalls(#[from] SyscallFilterError),
}

/// Proof that this process is confined. Only [`enter`] makes one, and a machine cannot be built without it.
#[derive(Debug)]
pub struct Confined {
    layers: Vec<String>,
    // Compiled once, installed on each thread.
    filters: syscalls::Filters,
}

impl Confined {
    /// The layers in force, by name.
    #[must_use]
    pub fn layers(&self) -> &[String] {
        &self.layers
    }

    /// What a thread of this role runs before it meets the guest.
    pub fn restrict(&self, role: Role) -> impl FnOnce() -> io::Result<()> + Clone + Send + 'static {
        let filter = self.filters.of(role);
        move || filter.install().map_err(io::Error::other)
    }
}

/// Confines the process. To be called when it has all its descriptors and before it starts a thread.
///
/// # Errors
/// [`SandboxError`] when a layer that every supported host has cannot be had. Namespaces and Landlock, which a host
/// may lack or forbid, are left out then, and of [`Confined::layers`].
pub fn enter() -> Result<Confined, SandboxError> {
    let mut layers = Vec::new();
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(|error| SandboxError::Call("forbid core dumps", error.into()))?;

    layers.extend(namespaces::enter());

    // After the namespaces: a process that is not dumpable may not make some of them.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| SandboxError::Call("forbid inspection of the process", error.into()))?;
    layers.push("not_dumpable");

    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none)
        .map_err(|error| SandboxError::Call("drop capabilities", error.into()))?;
    layers.push("no_capabilities");
    set_no_new_privs(true)
        .map_err(|error| SandboxError::Call("forbid new privileges", error.into()))?;
    layers.push("no_new_privs");

    if landlock::restrict().map_err(SandboxError::Landlock)? {
        layers.push("landlock");
    } else {
        log::info!("this host has no Landlock");
    }
    let filters = syscalls::Filters::compile()?;
    layers.push("seccomp");
    Ok(Confined { layers: layers.into_iter().map(String::from).collect(), filters })
}
