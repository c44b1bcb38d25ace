//! Removes what killed commands left. Every command that changes boxes, and `ls`, does this first; with nothing to
//! remove it costs one query and two directory listings.

use crate::control::{self, Stopping};
use crate::create::erase;
use crate::home::Home;
use crate::lock::{Gate, Lock, kill_holders, take_when_free};
use crate::paths::{BoxFiles, remove_tree};
use crate::store::BoxRecord;
use crate::{BoxId, Error, Result, image};
use std::path::Path;
use std::time::Duration;

/// How long a VMM whose owner is dead may take to end. It has been told by the kernel already.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// Removes what is left of boxes whose owner is dead, directories that belong to no box, and sockets of boxes that do
/// not run.
///
/// # Errors
/// If the database or a directory cannot be read. Things that cannot be removed are only logged: they must not keep the
/// command from its work, and the next one tries again.
pub fn collect(home: &Home) -> Result<()> {
    let gate = Gate::exclusive(&home.dirs.gate())?;
    let mut abandoned: Vec<(BoxRecord, Lock)> = Vec::new();
    for record in home.store.owned()? {
        let owner = home.files(&record).owner();
        // Without a directory there never was, or is no longer, an owner.
        let lock = if owner.exists() {
            gate.take_existing(&owner)?
        } else {
            take_missing(home, &gate, &record)?
        };
        if let Some(lock) = lock {
            abandoned.push((record, lock));
        }
    }
    if !abandoned.is_empty() {
        // Asked again now that the locks are ours: a command commits its box and then gives up the lock, and may have
        // done both since the first look. The box is the user's then.
        let still_owned = home.store.owned()?;
        abandoned.retain(|(record, _)| still_owned.iter().any(|owned| owned.id == record.id));
    }
    collect_strays(home, &gate)?;
    image::clean(&home.dirs.images())?;
    drop(gate);
    for (record, _owner) in &abandoned {
        log::info!("removing box '{}', whose command was killed", record.name);
        if let Err(error) = finish_off(home, record) {
            log::warn!("cannot remove box '{}': {error}", record.name);
        }
    }
    Ok(())
}

/// The owner lock of a row whose directory is gone, so that one command alone removes it.
fn take_missing(home: &Home, gate: &Gate, record: &BoxRecord) -> Result<Option<Lock>> {
    let files = home.files(record);
    crate::paths::create_private(&files.directory)?;
    gate.take(&files.owner())
}

/// Ends the VMM of a box whose owner is dead, and removes the box.
fn finish_off(home: &Home, record: &BoxRecord) -> Result<()> {
    let files = home.files(record);
    let _lock =
        end_vmm(home, &files)?.ok_or_else(|| Error::StopTimeout(record.name.to_string()))?;
    erase(home, &record.id, &files)
}

/// Ends a box's VMM, if it has one, and takes the box's lock. `None` if the VMM does not end. A box without a lock file
/// has no VMM; one is made.
pub(crate) fn end_vmm(home: &Home, files: &BoxFiles) -> Result<Option<Lock>> {
    let (gate, path) = (home.dirs.gate(), files.lock());
    if let Some(lock) = Gate::exclusive(&gate)?.take(&path)? {
        return Ok(Some(lock));
    }
    match control::stop(&files.control_socket(), None, END_PATIENCE) {
        Ok(Stopping::Ended | Stopping::NobodyThere) => {}
        Ok(Stopping::TimedOut) => kill_vmm(home, &path)?,
        Err(error) => {
            log::warn!("a VMM is ended by force: {error}");
            kill_vmm(home, &path)?;
        }
    }
    if let Some(lock) = take_when_free(&gate, &path, END_PATIENCE)? {
        return Ok(Some(lock));
    }
    kill_vmm(home, &path)?;
    take_when_free(&gate, &path, END_PATIENCE)
}

/// Ends the VMM that holds a lock by force.
pub(crate) fn kill_vmm(home: &Home, lock: &Path) -> Result<()> {
    // With the gate to oneself nobody has the file open just to look at it.
    let _gate = Gate::exclusive(&home.dirs.gate())?;
    kill_holders(lock)
}

/// Removes directories without a row, and sockets without a VMM. Nobody makes such things while the gate is ours.
fn collect_strays(home: &Home, gate: &Gate) -> Result<()> {
    let known = home.store.ids()?;
    for id in ids_in(&home.dirs.boxes())? {
        let files = home.dirs.of_box(&id);
        if known.contains(id.as_str()) {
            continue;
        }
        let owner = if files.owner().exists() {
            gate.take_existing(&files.owner())?.is_some()
        } else {
            true
        };
        if owner && !gate.is_held(&files.lock())? {
            discard(&files.sockets);
            discard(&files.directory);
        }
    }
    for id in ids_in(&home.dirs.runtime)? {
        let files = home.dirs.of_box(&id);
        // Without a directory here it is a box of another home: two that differ in XDG_DATA_HOME alone share sockets'
        // directory. Ours lose their sockets before their directory.
        if files.directory.exists() && !gate.is_held(&files.lock())? {
            discard(&files.sockets);
        }
    }
    Ok(())
}

fn discard(path: &Path) {
    if !path.exists() {
        return;
    }
    log::info!("removing {}, which belongs to no running box", path.display());
    if let Err(error) = remove_tree(path) {
        log::warn!("{error}");
    }
}

/// Entries of a directory that are named like a box.
fn ids_in(directory: &Path) -> Result<Vec<BoxId>> {
    let entries =
        std::fs::read_dir(directory).map_err(Error::io(format!("read {}", directory.display())))?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::{Install, Told};
    use crate::paths::{Dirs, Environment, create_private};

    fn home(root: &Path, name: &str) -> Home {
        let environment = Environment {
            home: Some(root.join(name)),
            runtime_dir: Some(root.into()),
            ..Environment::default()
        };
        let install = Install::locate(Path::new("/nowhere"), Told::default());
        Home::open(Dirs::compute(&environment).unwrap(), install).unwrap()
    }

    #[test]
    fn strays_are_removed_with_their_sockets_and_another_homes_are_not() {
        let root = tempfile::tempdir().unwrap();
        let (ours, other) = (home(root.path(), "ours"), home(root.path(), "other"));
        let stray = ours.dirs.of_box(&BoxId::from_random([1; 6]));
        for directory in [&stray.directory, &stray.sockets] {
            create_private(directory).unwrap();
        }
        assert_eq!(ours.dirs.runtime, other.dirs.runtime);
        collect(&other).unwrap();
        assert!(stray.directory.exists() && stray.sockets.exists());
        collect(&ours).unwrap();
        assert!(!stray.directory.exists() && !stray.sockets.exists());
    }
}
