//! Random bytes for ids and names.

use crate::{Error, Result};

/// That many random bytes.
///
/// # Errors
/// [`Error::Io`] if the kernel has none to give.
pub fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::io("get random bytes")(std::io::Error::other(error.to_string())))?;
    Ok(bytes)
}

/// Twice that many random hexadecimal digits.
///
/// # Errors
/// As [`bytes`].
pub fn hex<const N: usize>() -> Result<String> {
    Ok(crate::hex::digits(&bytes::<N>()?))
}
