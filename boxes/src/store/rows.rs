//! Rows of the tables, each mapped in one place.

use crate::image::ImageConfig;
use crate::{BoxId, BoxName, BoxSpec};
use rusqlite::Row;
use rusqlite::types::Type;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::str::FromStr;

/// How far the making of a box has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A command makes it; if that command is dead, the box is rubbish.
    Creating,
    /// It exists.
    Created,
}

/// A box as the database knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxRecord {
    /// Identity.
    pub id: BoxId,
    /// Name.
    pub name: BoxName,
    /// How far its making has come.
    pub state: State,
    /// Whether it ends with the command that made it.
    pub ephemeral: bool,
    /// Settings.
    pub spec: BoxSpec,
    /// Digest of the image it was made from.
    pub image_digest: String,
    /// File of that image.
    pub image_file: PathBuf,
    /// What the image says about running it.
    pub image_config: ImageConfig,
    /// When it was made: milliseconds since 1970-01-01 UTC.
    pub created_at_ms: i64,
    /// When it was last started.
    pub started_at_ms: Option<i64>,
    /// How long that took: from the start of the VMM's process until the guest's agent listened.
    pub boot_micros: Option<u64>,
}

/// An image as the database knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRecord {
    /// What users call it. For images made of a path, the path and a fingerprint of what was there.
    pub tag: String,
    /// Where it came from.
    pub source: String,
    /// Digest of the file, which is named after it.
    pub digest: String,
    /// Size of the file.
    pub size_bytes: u64,
    /// What it says about running it.
    pub config: ImageConfig,
    /// Milliseconds since 1970-01-01 UTC.
    pub created_at_ms: i64,
}

pub(super) const BOX_COLUMNS: &str = "id, name, state, ephemeral, spec, image_digest, image_file, image_config, created_at_ms, started_at_ms, boot_micros";

pub(super) const IMAGE_COLUMNS: &str = "tag, source, digest, size_bytes, config, created_at_ms";

pub(super) fn box_from_row(row: &Row<'_>) -> rusqlite::Result<BoxRecord> {
    Ok(BoxRecord {
        id: parsed(row, 0)?,
        name: parsed(row, 1)?,
        state: match row.get_ref(2)?.as_str()? {
            "created" => State::Created,
            _ => State::Creating,
        },
        ephemeral: row.get(3)?,
        spec: json(row, 4)?,
        image_digest: row.get(5)?,
        image_file: PathBuf::from(row.get::<_, String>(6)?),
        image_config: json(row, 7)?,
        created_at_ms: row.get(8)?,
        started_at_ms: row.get(9)?,
        boot_micros: row.get(10)?,
    })
}

pub(super) fn image_from_row(row: &Row<'_>) -> rusqlite::Result<ImageRecord> {
    Ok(ImageRecord {
        tag: row.get(0)?,
        source: row.get(1)?,
        digest: row.get(2)?,
        size_bytes: row.get(3)?,
        config: json(row, 4)?,
        created_at_ms: row.get(5)?,
    })
}

fn parsed<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    row: &Row<'_>,
    column: usize,
) -> rusqlite::Result<T> {
    row.get_ref(column)?.as_str()?.parse().map_err(|error| conversion(column, error))
}

fn json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    serde_json::from_str(row.get_ref(column)?.as_str()?).map_err(|error| conversion(column, error))
}

fn conversion(
    column: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
}

/// JSON of one of our own types.
pub(super) fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("our own types have string keys")
}
