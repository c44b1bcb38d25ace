//! PID 1 of lilbox's guests.
//!
//! [`boot`] is the list of steps from the kernel's hand-over to an agent that listens. Then this process only reaps
//! orphans, serves the agent's connections, and waits until it is asked to end the guest in good order.
//!
//! The same program is PID 1 of boxes (root: an overlay of an image and a disk; agent on vsock) and of the machine
//! (root: the host's tree through 9p; agent on TCP).

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agent;
mod clock;
mod config;
mod console;
mod cpus;
mod disks;
mod identity;
mod kvm;
mod lifecycle;
mod limits;
mod mounts;
mod netlink;
mod network;
mod power;
mod reap;
mod root;
mod syscalls;
mod threads;
mod vsock;

use agent::listen::Listener;
use agent::{Agent, Defaults};
use identity::Place;
use kvm::IdleGuests;
use lifecycle::LifecycleConnection;
use power::PowerWatch;
use proto::agent::{Failed, Lifecycle};
use proto::code::Code;
use proto::guest::{GuestConfig, Root, Transport};
use reap::Children;
use root::Writable;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

/// A guest that is up.
struct Guest {
    children: Arc<Children>,
    writable: Writable,
    lifecycle: LifecycleConnection,
    power: PowerWatch,
    _idle_guests: Option<IdleGuests>,
}

/// A step that failed, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{step}")]
struct BootError {
    step: &'static str,
    source: Box<dyn Error + Send + Sync>,
}

fn main() -> ExitCode {
    if std::process::id() != 1 {
        console::say("this is the first process of a lilbox guest, not a program to run");
        return ExitCode::FAILURE;
    }
    match boot() {
        Ok(guest) => {
            let grace = guest.power.wait();
            power::off(&guest.children, grace, &guest.writable, guest.lifecycle);
        }
        Err(error) => give_up(&error),
    }
    // The kernel panics when PID 1 ends, which the VMM reports: better than a guest that only seems alive.
    ExitCode::FAILURE
}

fn boot() -> Result<Guest, BootError> {
    syscalls::use_one_arena();
    let mut writable = Writable::default();
    step("mount the kernel's file systems", mounts::mount_early())?;
    let config = step("read the configuration", config::read())?;
    attempt("set the clock", clock::set_from_launch(config.unix_nanos));
    let idle_guests = match config.root {
        Root::Overlay { .. } => None,
        Root::NineP { .. } => attempt("keep KVM from patching the kernel", kvm::hold()).flatten(),
    };
    attempt("bring the CPUs online", cpus::bring_online(config.cpus));
    step("assemble the root", root::assemble(&config.root, &mut writable))?;
    step("enter the root", root::enter())?;
    step("mount the kernel's file systems in the root", mounts::mount_late())?;
    attempt("delegate cgroup controllers", mounts::delegate_controllers());
    step("mount further disks", root::mount_further(&config.mounts, &mut writable))?;
    let place = match config.root {
        Root::Overlay { .. } => {
            attempt("mount /tmp", mounts::mount_tmp_if_missing());
            attempt("make the working directory", agent::make_workdir(config.workdir.as_ref()));
            Place::Root
        }
        Root::NineP { .. } => Place::Cover,
    };
    attempt(
        "assume the identity",
        identity::assume(&config.hostname, &config.hosts, config.resolv_conf.as_deref(), place),
    );
    attempt("let mounts propagate", mounts::share_all());
    step("bring up the network", network::bring_up(&config.interfaces))?;
    attempt("raise the limits", limits::raise());
    serve(config, writable, idle_guests)
}

fn serve(
    config: GuestConfig,
    writable: Writable,
    idle_guests: Option<IdleGuests>,
) -> Result<Guest, BootError> {
    let (button, power) = step("watch for the end", power::button_and_watch())?;
    let children = step("start the reaper", Children::reap_from_now_on())?;
    let listener = step("listen for the agent", Listener::open(&config.agent))?;
    let is_box = matches!(config.agent, Transport::Vsock);
    let defaults = Defaults { env: config.env, workdir: config.workdir, user: config.user };
    let agent = Arc::new(Agent::new(defaults, Arc::clone(&children), button));
    let hello = agent.hello();
    step("start the agent", listener.serve(agent))?;
    let lifecycle =
        if is_box { LifecycleConnection::open() } else { Ok(LifecycleConnection::default()) };
    let lifecycle = step("reach the VMM", lifecycle)?;
    step("say hello", lifecycle.tell(Lifecycle::Ready(hello)))?;
    // Other VMMs are timed by this line; ours has been told already.
    console::say("ready");
    Ok(Guest { children, writable, lifecycle, power, _idle_guests: idle_guests })
}

/// A step without which the guest is of no use.
fn step<T, E: Error + Send + Sync + 'static>(
    step: &'static str,
    result: Result<T, E>,
) -> Result<T, BootError> {
    result.map_err(|source| BootError { step, source: source.into() })
}

/// A step without which the guest is still of use: the failure is told on the console.
fn attempt<T, E: Error + Send + Sync + 'static>(
    step: &'static str,
    result: Result<T, E>,
) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(source) => {
            let error = BootError { step, source: source.into() };
            console::say(&console::chain(&error));
            None
        }
    }
}

fn give_up(error: &BootError) {
    let message = format!("cannot {}", console::chain(error));
    console::say(&message);
    let told = LifecycleConnection::open().and_then(|connection| {
        connection.tell_last(Lifecycle::Failed(Failed { code: Code::GuestDied, message }))
    });
    if let Err(error) = told {
        console::say(&format!("cannot tell the VMM: {error}"));
    }
    rustix::fs::sync();
    power::end();
}
