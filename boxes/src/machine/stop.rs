//! Stops the machine: in order if it answers, else by force.

use super::link::Link;
use super::record::Record;
use super::start::{is_held, running};
use super::{Machine, MachineError, qmp::Qmp};
use crate::lock::{self, Gate};
use crate::paths::remove_tree;
use crate::{Error, Result};
use std::io;
use std::time::Duration;

/// Beyond the grace of the processes inside: time to write out and unmount file systems.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(20);

/// Time that QEMU has to end when it is told to: it writes its caches out.
const QUIT_PATIENCE: Duration = Duration::from_secs(10);

/// Time that a killed process has to disappear. It can be stuck in a disk.
const KILL_PATIENCE: Duration = Duration::from_secs(30);

/// Stops the machine and everything in it. `false` if it was not running.
///
/// # Errors
/// [`MachineError::Stuck`] if QEMU does not even end by force.
pub fn stop(machine: &Machine, grace: Duration) -> Result<bool> {
    if !machine.files.directory.exists() {
        return Ok(false);
    }
    let _turn = Gate::exclusive(&machine.files.turn)?;
    let was_running = is_held(machine)?;
    if was_running {
        end(machine, grace)?;
    }
    Ok(was_running)
}

/// Stops the machine and deletes it with all boxes and images in it.
///
/// # Errors
/// As [`stop`], and if files cannot be removed.
pub fn remove(machine: &Machine, grace: Duration) -> Result<()> {
    stop(machine, grace)?;
    if !machine.files.directory.exists() {
        return Ok(());
    }
    let _turn = Gate::exclusive(&machine.files.turn)?;
    // Another command may have started it in between.
    kill(machine)?;
    remove_tree(&machine.files.directory)
}

/// Ends a machine that runs. The caller has its turn.
pub(super) fn end(machine: &Machine, grace: Duration) -> Result<()> {
    if let Some(record) = running(machine)? {
        let asked = Link::new(&record).power_off(grace);
        if asked.is_ok() && wait(machine, grace + UNMOUNT_PATIENCE)? {
            return clean_up(machine);
        }
        if let Err(error) = asked {
            log::warn!("{error}: ending it by force");
        }
        // QEMU flushes what it has of the disk; the machine's kernel may have more, which its journal sorts out.
        let told = Qmp::connect(&record.qmp_socket).and_then(|mut qmp| qmp.quit());
        if told.is_ok() && wait(machine, QUIT_PATIENCE)? {
            return clean_up(machine);
        }
    }
    kill(machine)
}

/// Ends QEMU by force, if it runs. The caller has its turn.
pub(super) fn kill(machine: &Machine) -> Result<()> {
    let path = machine.files.lock();
    {
        // With the gate to ourselves nobody has the lock's file open just to look at it.
        let _gate = Gate::exclusive(&machine.files.gate)?;
        lock::kill_holders(&path)?;
    }
    if wait(machine, KILL_PATIENCE)? { clean_up(machine) } else { Err(MachineError::Stuck.into()) }
}

/// Waits until QEMU has ended. `false` if it still runs when patience has.
pub(super) fn wait(machine: &Machine, patience: Duration) -> Result<bool> {
    let path = machine.files.lock();
    if !path.exists() {
        return Ok(true);
    }
    Ok(lock::take_when_free(&machine.files.gate, &path, patience)?.is_some())
}

/// Removes what meant something only while it ran; the initramfs holds its secret.
fn clean_up(machine: &Machine) -> Result<()> {
    Record::remove(&machine.files)?;
    for path in [machine.files.initramfs(), machine.files.qmp_socket.clone()] {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io(format!("remove {}", path.display()))(error));
            }
            _ => {}
        }
    }
    Ok(())
}
