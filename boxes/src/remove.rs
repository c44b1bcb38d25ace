//! Removes boxes with all they hold.

use crate::create::erase;
use crate::home::Home;
use crate::lock::Gate;
use crate::store::State;
use crate::{Error, Result, gc, image};

/// Removes a box; a running one only with `force`.
///
/// Its files are deleted once its VMM is proven dead: this holds the lock that the VMM would hold.
///
/// # Errors
/// [`Error::BoxNotFound`], [`Error::BoxRunning`], [`Error::BoxBusy`] if another command is making it.
pub fn remove(home: &Home, name: &str, force: bool) -> Result<()> {
    gc::collect(home)?;
    let record = home.store.find(name)?;
    let files = home.files(&record);
    if record.state == State::Creating && !record.ephemeral {
        return Err(Error::BoxBusy(record.name));
    }
    let free = Gate::exclusive(&home.dirs.gate())?.take(&files.lock());
    let lock = match free {
        Ok(Some(lock)) => lock,
        Ok(None) if !force => return Err(Error::BoxRunning(record.name)),
        Ok(None) => gc::end_vmm(home, &files)?.ok_or_else(|| Error::StopTimeout(name.into()))?,
        // Another command has removed it since it was looked up.
        Err(_) if !files.directory.exists() => {
            home.store.remove(&record.id)?;
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    erase(home, &record.id, &files)?;
    drop(lock);
    image::sweep(home, &Gate::exclusive(&home.dirs.gate())?)
}
