//! What there is: one query and one look at a lock per box; no VMM is asked unless for the details of one box.

use crate::control;
use crate::home::Home;
use crate::lock::Gate;
use crate::store::{BoxRecord, State};
use crate::{Result, gc};
use proto::control::VmmStatus;
use std::fmt;

/// What a box does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// A command is making it.
    Creating,
    /// It runs.
    Running,
    /// It does not run.
    Stopped,
}

impl Status {
    /// One word, the same in tables and JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// A box in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The box.
    pub record: BoxRecord,
    /// What it does.
    pub status: Status,
}

/// One box in detail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Details {
    /// The box.
    pub record: BoxRecord,
    /// What it does.
    pub status: Status,
    /// What its VMM says; absent if it does not run or does not answer.
    pub vmm: Option<VmmStatus>,
    /// Bytes that its disk takes on the host.
    pub disk_used_bytes: u64,
}

/// All boxes, oldest first.
///
/// # Errors
/// If the database cannot be read or a lock cannot be looked at.
pub fn list(home: &Home) -> Result<Vec<Listed>> {
    gc::collect(home)?;
    let records = home.store.boxes()?;
    let gate = Gate::shared(&home.dirs.gate())?;
    records
        .into_iter()
        .map(|record| Ok(Listed { status: status_of(home, &gate, &record)?, record }))
        .collect()
}

/// One box in detail.
///
/// # Errors
/// [`crate::Error::BoxNotFound`], or as [`list`].
pub fn details(home: &Home, name: &str) -> Result<Details> {
    use std::os::unix::fs::MetadataExt;
    let record = home.store.find(name)?;
    let files = home.files(&record);
    let status = status_of(home, &Gate::shared(&home.dirs.gate())?, &record)?;
    let vmm = match status {
        Status::Stopped => None,
        Status::Creating | Status::Running => control::status(&files.control_socket())
            .unwrap_or_else(|error| {
                log::warn!("the VMM of box '{name}' does not answer: {error}");
                None
            }),
    };
    let disk_used_bytes = files.disk().metadata().map_or(0, |metadata| metadata.blocks() * 512);
    Ok(Details { record, status, vmm, disk_used_bytes })
}

fn status_of(home: &Home, gate: &Gate, record: &BoxRecord) -> Result<Status> {
    let running = gate.is_held(&home.files(record).lock())?;
    Ok(match record.state {
        // An ephemeral box is never committed; that its start was noted says that it was ready.
        State::Creating if record.started_at_ms.is_none() || !record.ephemeral => Status::Creating,
        State::Creating | State::Created if running => Status::Running,
        State::Creating | State::Created => Status::Stopped,
    })
}
