//! The end of the guest: in good order, so that nothing written is lost.

use crate::console;
use crate::lifecycle::LifecycleConnection;
use crate::reap::Children;
use crate::root::Writable;
use crate::syscalls;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use proto::agent::Lifecycle;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::mount::{FsPickFlags, MountFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::system::RebootCommand;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What processes have between SIGTERM and SIGKILL if a program in the guest asks for the end.
const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// How long killed processes may take to be gone. One that waits for a device that hangs never is.
const KILLED_PATIENCE: Duration = Duration::from_secs(2);

/// By these signals to PID 1 programs such as `poweroff`, `halt` and `reboot` ask for the end. All mean the same:
/// whether the guest starts again is its host's business.
const SIGNALS: [Signal; 5] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGPWR];

/// Asks for the end, from any thread.
#[derive(Debug)]
pub struct PowerButton(OwnedFd);

/// Waits until the end is asked for.
#[derive(Debug)]
pub struct PowerWatch {
    button: OwnedFd,
    signals: SignalFd,
}

/// Makes the button and its watch. Must be called before there are other threads: they inherit the signal mask.
///
/// # Errors
/// If there are no descriptors left.
pub fn button_and_watch() -> io::Result<(PowerButton, PowerWatch)> {
    let mask: SigSet = SIGNALS.into_iter().collect();
    mask.thread_block()?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC)?;
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((PowerButton(write), PowerWatch { button: read, signals }))
}

impl PowerButton {
    /// Asks for the end.
    ///
    /// # Errors
    /// If nobody waits for it any more.
    pub fn press(&self, grace: Duration) -> io::Result<()> {
        let millis = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        rustix::io::write(&self.0, &millis.to_ne_bytes())?;
        Ok(())
    }
}

impl PowerWatch {
    /// Waits until the end is asked for, and returns the grace to give.
    pub fn wait(&self) -> Duration {
        loop {
            let mut fds = [
                PollFd::new(&self.button, PollFlags::IN),
                PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
            ];
            // Fails only by a signal (all that matter are blocked) or for want of memory: then again.
            let _ = poll(&mut fds, None);
            let [button, signal] = fds.map(|fd| !fd.revents().is_empty());
            if signal {
                return DEFAULT_GRACE;
            }
            let mut millis = [0; 8];
            if button && rustix::io::read(&self.button, &mut millis).is_ok() {
                return Duration::from_millis(u64::from_ne_bytes(millis));
            }
        }
    }
}

/// Stops everything, writes everything, tells the VMM and ends the guest. Returns only if the kernel refuses to
/// reboot.
pub fn off(
    children: &Arc<Children>,
    grace: Duration,
    writable: &Writable,
    lifecycle: LifecycleConnection,
) {
    stop_processes(children, grace);
    settle_disks(writable);
    if let Err(error) = lifecycle.tell_last(Lifecycle::Down) {
        console::say(&format!("cannot say goodbye: {error}"));
    }
    end();
}

/// Ends the guest at once. Without ACPI there is no way to cut the power: with `reboot=t` the restart is a triple
/// fault, which the VMM takes as the end.
pub fn end() {
    if let Err(error) = rustix::system::reboot(RebootCommand::Restart) {
        console::say(&format!("cannot reboot: {error}"));
    }
}

fn stop_processes(children: &Children, grace: Duration) {
    // To everybody but PID 1; an error means that there is nobody. A stopped process must run to hear SIGTERM.
    let _ = syscalls::kill(-1, libc::SIGTERM);
    let _ = syscalls::kill(-1, libc::SIGCONT);
    if children.wait_until_childless(grace) {
        return;
    }
    let _ = syscalls::kill(-1, libc::SIGKILL);
    if !children.wait_until_childless(KILLED_PATIENCE) {
        console::say("some processes cannot be killed");
    }
}

fn settle_disks(writable: &Writable) {
    rustix::fs::sync();
    let root = rustix::mount::mount_remount("/", MountFlags::RDONLY, "");
    if let Err(error) = root {
        console::say(&format!("cannot make / read-only: {error}"));
    }
    for file_system in &writable.0 {
        if let Err(error) = make_read_only(file_system) {
            console::say(&format!("cannot make a disk read-only: {error}"));
        }
    }
}

/// Works by descriptor, because the mount point of the overlay's disk is below the root, out of sight.
fn make_read_only(directory: &File) -> rustix::io::Result<()> {
    let context = rustix::mount::fspick(
        directory,
        "",
        FsPickFlags::FSPICK_EMPTY_PATH | FsPickFlags::FSPICK_CLOEXEC,
    )?;
    rustix::mount::fsconfig_set_flag(context.as_fd(), "ro")?;
    rustix::mount::fsconfig_reconfigure(context.as_fd())
}
