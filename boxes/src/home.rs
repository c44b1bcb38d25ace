//! One user's boxes: the directories, the installed files and the open database, which nearly every operation needs.

use crate::Result;
use crate::install::Install;
use crate::paths::{BoxFiles, Dirs};
use crate::store::{BoxRecord, Store};

/// Where operations work.
#[derive(Debug)]
pub struct Home {
    /// Directories.
    pub dirs: Dirs,
    /// Installed files.
    pub install: Install,
    /// The database.
    pub store: Store,
}

impl Home {
    /// Makes missing directories and opens the database.
    ///
    /// # Errors
    /// If a directory cannot be made or the database cannot be opened.
    pub fn open(dirs: Dirs, install: Install) -> Result<Self> {
        dirs.create()?;
        let store = Store::open(&dirs.database())?;
        Ok(Self { dirs, install, store })
    }

    /// Paths of a box.
    #[must_use]
    pub fn files(&self, record: &BoxRecord) -> BoxFiles {
        self.dirs.of_box(&record.id)
    }
}
