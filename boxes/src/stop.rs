//! Stops boxes.

use crate::control::{self, Stopping};
use crate::home::Home;
use crate::lock::{Gate, take_when_free};
use crate::store::State;
use crate::{Error, Result, gc, start};
use std::time::Duration;

/// What the guest may take beyond the grace that its processes have: unmounting and writing back.
const SLACK: Duration = Duration::from_secs(10);

/// How long a VMM may take to be gone once it has said goodbye.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// What came of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It was stopped in good order.
    Orderly,
    /// It had to be ended by force.
    ByForce,
    /// It did not run.
    Already,
}

/// Stops a box: its processes get SIGTERM, then SIGKILL after the grace; disks are written back.
///
/// # Errors
/// [`Error::BoxNotFound`], [`Error::BoxBusy`] if another command is making it, or [`Error::StopTimeout`] if not even force
/// helps.
pub fn stop(home: &Home, name: &str, grace: Duration) -> Result<Stopped> {
    let record = home.store.find(name)?;
    let files = home.files(&record);
    if record.state == State::Creating && !record.ephemeral {
        // Its lock may still be that command's, which force would end.
        return Err(Error::BoxBusy(record.name));
    }
    let (gate, lock) = (home.dirs.gate(), files.lock());
    if !Gate::shared(&gate)?.is_held(&lock)? {
        return Ok(Stopped::Already);
    }
    let mut outcome = Stopped::Orderly;
    let asked = control::stop(&files.control_socket(), Some(grace), grace.saturating_add(SLACK));
    match asked? {
        Stopping::Ended | Stopping::NobodyThere => {}
        Stopping::TimedOut => {
            outcome = Stopped::ByForce;
            gc::kill_vmm(home, &lock)?;
        }
    }
    // Taken so that nobody starts the box while its sockets are removed.
    let mut taken = take_when_free(&gate, &lock, END_PATIENCE)?;
    if taken.is_none() && outcome == Stopped::Orderly && lock.exists() {
        // It does not hear us (its sockets may have been swept away by whoever tidies that directory), or hangs.
        outcome = Stopped::ByForce;
        gc::kill_vmm(home, &lock)?;
        taken = take_when_free(&gate, &lock, END_PATIENCE)?;
    }
    let Some(_lock) = taken else {
        return if lock.exists() {
            Err(Error::StopTimeout(name.into()))
        } else {
            Ok(outcome) // An ephemeral box: its command has removed it.
        };
    };
    start::remove_sockets(&files)?;
    Ok(outcome)
}
