//! Makes boxes: a name is reserved, a disk made, the VMM started, the row committed.
//!
//! Until the commit the box belongs to the process that makes it. [`OwnedBox`] undoes everything when it is dropped; if
//! the process is killed, its owner lock is free and the next command's [`gc`] does the same. An ephemeral box is never
//! committed: it belongs to its process for life.

use crate::home::Home;
use crate::image::ResolvedImage;
use crate::launch::{Launched, Vmm};
use crate::lock::{Gate, Lock};
use crate::paths::{BoxFiles, create_private, remove_file, remove_tree};
use crate::progress::{Step, Tell};
use crate::store::{BoxRecord, NewBox, State};
use crate::{
    BoxId, BoxName, BoxSpec, Error, Result, clock, empty_disk, gc, image, logs, random, start,
};
use rustix::fs::statvfs;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;

/// How many random names are tried before giving up. With 16 million of them, a second try is rare.
const NAME_TRIES: usize = 100;

/// Space that must be free before a box is made. Disks are sparse, so this is no promise; it keeps a box from starting
/// on a disk where its first writes would fail.
const MIN_FREE_MIB: u64 = 64;

/// A box to be made.
#[derive(Debug, Clone)]
pub struct Request {
    /// Its name; a random one if absent.
    pub name: Option<BoxName>,
    /// Its settings.
    pub spec: BoxSpec,
    /// Whether it ends with this process.
    pub ephemeral: bool,
}

/// A running box that belongs to this process. Dropping it removes the box.
#[derive(Debug)]
pub struct OwnedBox<'a> {
    home: &'a Home,
    /// The box.
    pub record: BoxRecord,
    /// How its start went.
    pub launched: Option<Launched>,
    files: BoxFiles,
    vmm: Option<Vmm>,
    /// Held for as long as the box belongs to this process.
    _owner: Lock,
    armed: bool,
}

/// Makes and starts a box. `cancel` becomes readable when the user does not want to wait any longer; `tell` hears what
/// is just being done.
///
/// # Errors
/// [`Error::BoxExists`] if the name is taken, [`Error::Interrupted`], or whatever keeps it from being made. Nothing is
/// left behind then.
pub fn create<'a>(
    home: &'a Home,
    request: &Request,
    cancel: Option<BorrowedFd<'_>>,
    tell: &mut Tell<'_>,
) -> Result<OwnedBox<'a>> {
    gc::collect(home)?;
    if let Some(name) = &request.name
        && let Ok(record) = home.store.find(name.as_str())
    {
        // Found out by the row's unique name in any case, but only after the image was made.
        return Err(Error::BoxExists(record.name));
    }
    start::check_memory(request.spec.memory_mib)?;
    check_space(home)?;
    let image = image::resolve(home, &request.spec.image, tell)?;
    let (mut owned, lock) = reserve(home, request, &image)?;
    tell(Step::Booting(&owned.record.name));
    make_disk(&owned.files, request.spec.disk_mib)?;
    let (vmm, launched) = start::boot(home, &owned.record, lock, request.ephemeral, cancel)?;
    owned.vmm = Some(vmm);
    owned.launched = Some(launched);
    Ok(owned)
}

impl OwnedBox<'_> {
    /// Makes the box permanent: it lives on without this process.
    ///
    /// # Errors
    /// [`Error::State`] if the database cannot be written; the box is then removed.
    pub fn commit(mut self) -> Result<BoxRecord> {
        self.note_start()?;
        self.home.store.commit(&self.record.id)?;
        self.armed = false;
        if let Some(vmm) = self.vmm.take() {
            vmm.release();
        }
        self.record.state = State::Created;
        Ok(self.record.clone())
    }

    /// Records how the start went, for `stat`.
    ///
    /// # Errors
    /// [`Error::State`] if the database cannot be written.
    pub fn note_start(&self) -> Result<()> {
        match &self.launched {
            Some(launched) => {
                self.home.store.note_start(&self.record.id, launched, clock::unix_millis())
            }
            None => Ok(()),
        }
    }

    /// Path of the socket to the guest's agent.
    #[must_use]
    pub fn agent_socket(&self) -> std::path::PathBuf {
        self.files.agent_socket()
    }

    /// The last lines of its console, without what only a terminal understands.
    ///
    /// # Errors
    /// [`Error::Io`] if the log cannot be read.
    pub fn console_tail(&self, lines: usize) -> Result<Vec<String>> {
        logs::tail(&self.files, lines)
    }

    /// Removes the box.
    ///
    /// # Errors
    /// If something of it cannot be removed; the next command tries again.
    pub fn remove(mut self) -> Result<()> {
        self.undo()
    }

    fn undo(&mut self) -> Result<()> {
        self.armed = false;
        if let Some(vmm) = self.vmm.take() {
            // Its disk goes with it: there is nothing to end in good order.
            vmm.kill()?;
        }
        erase(self.home, &self.record.id, &self.files)
    }
}

impl Drop for OwnedBox<'_> {
    fn drop(&mut self) {
        if self.armed
            && let Err(error) = self.undo()
        {
            log::warn!(
                "what is left of box '{}' is removed by the next command: {error}",
                self.record.name
            );
        }
    }
}

/// Removes the row and the files of a box that does not run. The caller holds its lock, or is its owner.
pub(crate) fn erase(home: &Home, id: &BoxId, files: &BoxFiles) -> Result<()> {
    // The row first: files without a row are rubbish that the next command removes, a row without files is a lie.
    match home.store.remove(id) {
        Err(error) if error.is_disk_full() => {
            // Unless there is not even the space to write that down: removing boxes is how to get some. Who is killed
            // between the two leaves a box that cannot start, and can be removed.
            remove_file(&files.disk())?;
            home.store.remove(id)?;
        }
        result => result?,
    }
    start::remove_sockets(files)?;
    remove_tree(&files.directory)
}

fn reserve<'a>(
    home: &'a Home,
    request: &Request,
    image: &ResolvedImage,
) -> Result<(OwnedBox<'a>, Lock)> {
    let mut tries = 0;
    loop {
        let name = match &request.name {
            Some(name) => name.clone(),
            None => BoxName::from_random(random::bytes()?),
        };
        tries += 1;
        match reserve_name(home, request, image, name) {
            Err(Error::BoxExists(_)) if request.name.is_none() && tries < NAME_TRIES => {}
            result => return result,
        }
    }
}

/// Takes the box's locks, then its name. In this order, and with the gate to oneself, so that nobody ever sees a row or
/// a directory of a living command without its locks.
fn reserve_name<'a>(
    home: &'a Home,
    request: &Request,
    image: &ResolvedImage,
    name: BoxName,
) -> Result<(OwnedBox<'a>, Lock)> {
    let id = BoxId::from_random(random::bytes()?);
    let files = home.dirs.of_box(&id);
    let writing = home.store.writing(false)?;
    let gate = Gate::exclusive(&home.dirs.gate())?;
    // Images that nobody refers to are removed with the gate to oneself: from here on this one is referred to.
    let image =
        &if request.ephemeral { image.clone() } else { image::pin(&home.dirs, image.clone()) };
    if !image.file.exists() {
        return Err(Error::ImageNotFound(request.spec.image.clone()));
    }
    create_private(&files.directory)?;
    let taken = |lock: Option<Lock>| {
        lock.ok_or_else(|| Error::StateInvalid {
            path: files.directory.clone(),
            cause: "a new box's lock is held by another process".into(),
        })
    };
    let owner = taken(gate.take(&files.owner())?)?;
    let lock = taken(gate.take(&files.lock())?)?;
    let created_at_ms = clock::unix_millis();
    let new = NewBox {
        id: &id,
        name: &name,
        spec: &request.spec,
        image,
        ephemeral: request.ephemeral,
        created_at_ms,
    };
    if let Err(error) = home.store.reserve(&new).and_then(|()| writing.commit()) {
        if let Err(left) = remove_tree(&files.directory) {
            log::warn!("the next command removes what is left: {left}");
        }
        return Err(error);
    }
    let record = BoxRecord {
        id,
        name,
        state: State::Creating,
        ephemeral: request.ephemeral,
        spec: request.spec.clone(),
        image_digest: image.digest.clone(),
        image_file: image.file.clone(),
        image_config: image.config.clone(),
        created_at_ms,
        started_at_ms: None,
        boot_micros: None,
    };
    Ok((
        OwnedBox { home, record, launched: None, files, vmm: None, _owner: owner, armed: true },
        lock,
    ))
}

fn make_disk(files: &BoxFiles, disk_mib: u32) -> Result<()> {
    let path = files.disk();
    let failed = || Error::io(format!("make the disk {}", path.display()));
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .map_err(failed())?;
    empty_disk::write_empty_disk(&file, u64::from(disk_mib) << 20).map_err(failed())
}

fn check_space(home: &Home) -> Result<()> {
    let path = home.dirs.boxes();
    let stat = statvfs(&path)
        .map_err(Error::sys(format!("ask for the free space in {}", path.display())))?;
    let free_mib = stat.f_bavail.saturating_mul(stat.f_frsize) >> 20;
    if free_mib < MIN_FREE_MIB {
        return Err(Error::NoSpace { path, needed_mib: MIN_FREE_MIB, free_mib });
    }
    Ok(())
}
