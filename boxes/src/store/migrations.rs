//! Numbered migrations. A released one is never changed; `user_version` is the number of the last one applied.

use crate::{Error, Result};
use rusqlite::{Connection, TransactionBehavior};

/// The migrations; the first is number 1.
const MIGRATIONS: &[&str] = &[
    // 1: boxes and images.
    "CREATE TABLE boxes (
        id TEXT PRIMARY KEY NOT NULL,
        name TEXT UNIQUE NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('creating', 'created')),
        ephemeral INTEGER NOT NULL CHECK (ephemeral IN (0, 1)),
        spec TEXT NOT NULL,
        image_digest TEXT NOT NULL,
        image_file TEXT NOT NULL,
        image_config TEXT NOT NULL,
        created_at_ms INTEGER NOT NULL,
        started_at_ms INTEGER,
        boot_micros INTEGER
     ) STRICT;
     CREATE TABLE images (
        tag TEXT PRIMARY KEY NOT NULL,
        source TEXT NOT NULL,
        digest TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        config TEXT NOT NULL,
        created_at_ms INTEGER NOT NULL
     ) STRICT;",
];

/// Latest version of the tables that this build knows.
pub(crate) fn latest() -> u32 {
    u32::try_from(MIGRATIONS.len()).expect("there are few migrations")
}

/// Version of a database's tables.
pub(super) fn version(connection: &Connection) -> Result<u32> {
    connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(|source| Error::State { operation: "read the version", source })
}

/// Brings the tables up to date.
pub(super) fn apply(connection: &mut Connection) -> Result<()> {
    // The common case takes no lock.
    let found = version(connection)?;
    if found > latest() {
        return Err(Error::StateNewer { found, known: latest() });
    }
    if found == latest() {
        return Ok(());
    }
    let failed = |source| Error::State { operation: "upgrade the tables", source };
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    // Another process may have upgraded while this one waited for the lock.
    let found = version(&transaction)?;
    if found > latest() {
        return Err(Error::StateNewer { found, known: latest() });
    }
    let applied = usize::try_from(found).expect("a version fits");
    for migration in MIGRATIONS.iter().skip(applied) {
        transaction.execute_batch(migration).map_err(failed)?;
    }
    transaction.pragma_update(None, "user_version", latest()).map_err(failed)?;
    transaction.commit().map_err(failed)
}
