//! The configuration that the launcher put into the initramfs.

use proto::codec::{self, DecodeError};
use proto::guest::{CONFIG_PATH, GuestConfig};
use std::fs;
use std::io;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is missing or cannot be read.
    #[error("cannot read /{CONFIG_PATH}")]
    Read(#[source] io::Error),
    /// The file is not a configuration this build understands.
    #[error("cannot understand /{CONFIG_PATH}")]
    Decode(#[source] DecodeError),
}

/// Reads the configuration.
///
/// # Errors
/// [`ConfigError`] if it is missing or malformed.
pub fn read() -> Result<GuestConfig, ConfigError> {
    let bytes = fs::read(format!("/{CONFIG_PATH}")).map_err(ConfigError::Read)?;
    codec::decode(&bytes).map_err(ConfigError::Decode)
}
