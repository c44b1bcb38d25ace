//! Images: root file systems that boxes start from.
//!
//! An image is one read-only file, shared by all boxes that start from it. A box records the file it was made from and
//! its digest: the box's own disk holds differences from exactly that image, and would be rubbish on another.

pub mod erofs;

mod build;
mod collection;
mod directory;
mod file;
mod resolve;

pub(crate) use build::clean;
pub use build::{Source, import};
pub(crate) use collection::sweep;
pub use collection::{Listed, list, parse_tag, remove};
pub use file::{Filesystem, detect};
pub(crate) use resolve::pin;
pub use resolve::{BASE, is_path, resolve, verify};

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What an image says about running it. Spelled as in the OCI image specification ("Config").
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ImageConfig {
    /// Environment, `NAME=value`.
    pub env: Vec<String>,
    /// What `cmd` is given to.
    pub entrypoint: Vec<String>,
    /// What runs when the user names no command.
    pub cmd: Vec<String>,
    /// Working directory.
    pub working_dir: String,
    /// User.
    pub user: String,
}

impl ImageConfig {
    /// The command of a box whose user named none.
    #[must_use]
    pub fn command(&self) -> Vec<String> {
        self.entrypoint.iter().chain(&self.cmd).cloned().collect()
    }
}

/// An image that is here and can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedImage {
    /// What stands for its content.
    pub digest: String,
    /// Its file.
    pub file: PathBuf,
    /// What it says about running it.
    pub config: ImageConfig,
}
