//! The database: what the user asked for. All SQL is in this folder.
//!
//! It holds intent, never runtime truth: whether a box runs is told by its lock. No transaction spans a process being
//! started or waited for. A box exists for good from the moment its row says [`State::Created`].

mod migrations;
mod rows;

pub use rows::{BoxRecord, ImageRecord, State};

use crate::image::ResolvedImage;
use crate::launch::Launched;
use crate::{BoxId, BoxName, BoxSpec, Error, Result};
use rows::{BOX_COLUMNS, IMAGE_COLUMNS, box_from_row, image_from_row};
use rusqlite::config::DbConfig;
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params,
};
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// How long a statement waits for another process to end its transaction. Ours take microseconds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Length at which the write-ahead log is written back. Short, as the first to open the database reads all of it.
const LOG_PAGES: u32 = 200;

/// An open database.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
}

/// The right to write, held until committed; dropped without, all that was written meanwhile is undone.
///
/// What is written with the gate to oneself needs this first: getting it may mean waiting for another process, which
/// nobody does under the gate.
#[derive(Debug)]
pub struct Writing<'a>(Transaction<'a>);

impl Writing<'_> {
    /// Makes what was written hold.
    ///
    /// # Errors
    /// [`Error::State`] if the database cannot be written.
    pub fn commit(self) -> Result<()> {
        self.0.commit().map_err(failed("write the changes"))
    }
}

/// A box about to be made.
#[derive(Debug, Clone)]
pub struct NewBox<'a> {
    /// Its id.
    pub id: &'a BoxId,
    /// Its name.
    pub name: &'a BoxName,
    /// Its settings.
    pub spec: &'a BoxSpec,
    /// What it starts from.
    pub image: &'a ResolvedImage,
    /// Whether it ends with the command that makes it.
    pub ephemeral: bool,
    /// Milliseconds since 1970-01-01 UTC.
    pub created_at_ms: i64,
}

fn failed(operation: &'static str) -> impl FnOnce(rusqlite::Error) -> Error {
    move |source| Error::State { operation, source }
}

impl Store {
    /// Opens the database, making or upgrading it.
    ///
    /// # Errors
    /// [`Error::State`] if it cannot be opened, [`Error::StateNewer`] if a newer lilbox has changed it.
    pub fn open(path: &Path) -> Result<Self> {
        // Made here, for its owner alone; the files beside it get its permissions from SQLite.
        File::options()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .map_err(Error::io(format!("open {}", path.display())))?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection =
            Connection::open_with_flags(path, flags).map_err(failed("open the file"))?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(failed("set the waiting time"))?;
        let mode: String = connection
            .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
            .map_err(failed("turn on the write-ahead log"))?;
        log::trace!("journal mode {mode}");
        connection
            .execute_batch(&format!(
                "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = {LOG_PAGES};"
            ))
            .map_err(failed("configure the connection"))?;
        // The last of several connections would otherwise write the log back and wait for the disk four times. Most
        // commands are the only one, so that would be each time.
        connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
            .map_err(failed("configure the connection"))?;
        let mut store = Self { connection };
        migrations::apply(&mut store.connection)?;
        Ok(store)
    }

    /// Version of the database's tables.
    ///
    /// # Errors
    /// [`Error::State`] if it cannot be read.
    pub fn version(&self) -> Result<u32> {
        migrations::version(&self.connection)
    }

    /// Makes the changes so far survive a power cut. Boxes that die with their command do without.
    fn set_durable(&self, durable: bool) -> Result<()> {
        let pragma =
            if durable { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
        self.connection.execute_batch(pragma).map_err(failed("configure the connection"))
    }

    /// Waits for the right to write. `durable` changes survive a power cut.
    ///
    /// # Errors
    /// [`Error::State`] if another process does not give it up.
    pub fn writing(&self, durable: bool) -> Result<Writing<'_>> {
        self.set_durable(durable)?;
        Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)
            .map(Writing)
            .map_err(failed("begin to write"))
    }

    /// Reserves a name: adds the row of a box that is being made.
    ///
    /// # Errors
    /// [`Error::BoxExists`] if the name is taken, [`Error::InvalidValue`] if the path of the image is not UTF-8, else
    /// [`Error::State`].
    pub fn reserve(&self, new: &NewBox<'_>) -> Result<()> {
        let image_file =
            new.image.file.to_str().ok_or_else(|| Error::not_utf8("image", &new.image.file))?;
        let sql = "INSERT INTO boxes (id, name, state, ephemeral, spec, image_digest, image_file, image_config, created_at_ms) \
                   VALUES (?1, ?2, 'creating', ?3, ?4, ?5, ?6, ?7, ?8)";
        let result = self.connection.execute(
            sql,
            params![
                new.id.as_str(),
                new.name.as_str(),
                new.ephemeral,
                rows::to_json(new.spec),
                new.image.digest,
                image_file,
                rows::to_json(&new.image.config),
                new.created_at_ms,
            ],
        );
        match result {
            Ok(_) => Ok(()),
            Err(rusqlite::Error::SqliteFailure(error, _))
                if error.code == ErrorCode::ConstraintViolation =>
            {
                Err(Error::BoxExists(new.name.clone()))
            }
            Err(source) => Err(Error::State { operation: "reserve a name", source }),
        }
    }

    /// Commits a box that was reserved.
    ///
    /// # Errors
    /// [`Error::State`] if the database cannot be written, or the row is gone.
    pub fn commit(&self, id: &BoxId) -> Result<()> {
        self.set_durable(true)?;
        let sql = "UPDATE boxes SET state = 'created' WHERE id = ?1";
        match self.connection.execute(sql, [id.as_str()]).map_err(failed("commit a box"))? {
            1 => Ok(()),
            _ => Err(failed("commit a box")(rusqlite::Error::QueryReturnedNoRows)),
        }
    }

    /// Records how a start went.
    ///
    /// # Errors
    /// [`Error::State`] if the database cannot be written.
    pub fn note_start(&self, id: &BoxId, launched: &Launched, now_ms: i64) -> Result<()> {
        let micros = i64::try_from(launched.elapsed.as_micros()).unwrap_or(i64::MAX);
        let sql = "UPDATE boxes SET started_at_ms = ?2, boot_micros = ?3 WHERE id = ?1";
        self.connection
            .execute(sql, params![id.as_str(), now_ms, micros])
            .map_err(failed("note a start"))?;
        Ok(())
    }

    /// Forgets a box.
    ///
    /// # Errors
    /// [`Error::State`] if the database cannot be written.
    pub fn remove(&self, id: &BoxId) -> Result<()> {
        let sql = "DELETE FROM boxes WHERE id = ?1";
        self.connection.execute(sql, [id.as_str()]).map_err(failed("remove a box"))?;
        Ok(())
    }

    /// All boxes, oldest first.
    ///
    /// # Errors
    /// [`Error::State`] if the database cannot be read.
    pub fn boxes(&self) -> Result<Vec<BoxRecord>> {
        let sql = format!("SELECT {BOX_COLUMNS} FROM boxes ORDER BY created_at_ms, name");
        self.all(&sql, "list the boxes", box_from_row)
    }

    /// Boxes that need their owner: those in the making, and ephemeral ones.
    ///
    /// # Errors
    /// [`Error::State`] if the database cannot be read.
    pub fn owned(&self) -> Result<Vec<BoxRecord>> {
        let sql = format!("SELECT {BOX_COLUMNS} FROM boxes WHERE state = 'creating' OR ephemeral");
        self.all(&sql, "list the boxes in the making", box_from_row)
    }

    /// Ids of all boxes.
    ///
    /// # Errors
    /// [`Error::State`] if the database cannot be read.
    pub fn ids(&self) -> Result<HashSet<String>> {
        let ids = self.all("SELECT id FROM boxes", "list the ids", |row| row.get(0))?;
        Ok(ids.into_iter().collect())
    }

    /// The box of that name.
    ///
    /// # Errors
    /// [`Error::BoxNotFound`] if there is none, with names that look like it.
    pub fn find(&self, name: &str) -> Result<BoxRecord> {
        let sql = format!("SELECT {BOX_COLUMNS} FROM boxes WHERE name = ?1");
        let found = self
            .connection
            .query_row(&sql, [name], box_from_row)
            .optional()
            .map_err(failed("look up a box"))?;
        match found {
            Some(record) => Ok(record),
            None => {
                let names =
                    self.all("SELECT name FROM boxes", "list the names", |row| row.get(0))?;
                Err(Error::BoxNotFound {
                    name: name.into(),
                    similar: crate::similar::rank(name, names),
                })
            }
        }
    }

    /// Records an image under its tag, in place of an older one.
    ///
    /// # Errors
    /// [`Error::State`] if the database cannot be written.
    pub fn put_image(&self, image: &ImageRecord) -> Result<()> {
        let sql = "INSERT INTO images (tag, source, digest, size_bytes, config, created_at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
                   ON CONFLICT (tag) DO UPDATE SET source = ?2, digest = ?3, size_bytes = ?4, config = ?5, created_at_ms = ?6";
        let values = params![
            image.tag,
            image.source,
            image.digest,
            image.size_bytes,
            rows::to_json(&image.config),
            image.created_at_ms
        ];
        self.connection.execute(sql, values).map_err(failed("record an image"))?;
        Ok(())
    }

    /// The image of that tag.
    ///
    /// # Errors
    /// [`Error::State`] if the database cannot be read.
    pub fn image(&self, tag: &str) -> Result<Option<ImageRecord>> {
        let sql = format!("SELECT {IMAGE_COLUMNS} FROM images WHERE tag = ?1");
        self.connection
            .query_row(&sql, [tag], image_from_row)
            .optional()
            .map_err(failed("look up an image"))
    }

    /// All images, by tag.
    ///
    /// # Errors
    /// [`Error::State`] if the database cannot be read.
    pub fn images(&self) -> Result<Vec<ImageRecord>> {
        let sql = format!("SELECT {IMAGE_COLUMNS} FROM images ORDER BY tag");
        self.all(&sql, "list the images", image_from_row)
    }

    /// Digests of all images that a tag or a box refers to.
    ///
    /// # Errors
    /// [`Error::State`] if the database cannot be read.
    pub fn digests(&self) -> Result<HashSet<String>> {
        let sql = "SELECT digest FROM images UNION SELECT image_digest FROM boxes";
        Ok(self.all(sql, "list the digests", |row| row.get(0))?.into_iter().collect())
    }

    /// Forgets an image. `false` if there was none of that tag.
    ///
    /// # Errors
    /// [`Error::State`] if the database cannot be written.
    pub fn remove_image(&self, tag: &str) -> Result<bool> {
        let sql = "DELETE FROM images WHERE tag = ?1";
        Ok(self.connection.execute(sql, [tag]).map_err(failed("remove an image"))? > 0)
    }

    fn all<T>(
        &self,
        sql: &str,
        operation: &'static str,
        map: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        let mut statement = self.connection.prepare(sql).map_err(failed(operation))?;
        let rows = statement.query_map([], map).map_err(failed(operation))?;
        rows.collect::<rusqlite::Result<_>>().map_err(failed(operation))
    }
}

#[cfg(test)]
mod tests;
