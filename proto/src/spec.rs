//! What a box is: its identity and the settings its user chose.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Identity of a box for life: 12 lower-case hexadecimal digits. Names may change, ids do not. Short, because it is
/// part of socket paths, which may have no more than 107 bytes (`unix(7)`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BoxId(String);

/// Name of a box: 1 to 64 characters, letters, digits, `.`, `-`, `_`, beginning with a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BoxName(String);

/// A text that is not an id or name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is not a box id.
    #[error("`{0}` is not a box id (12 hexadecimal digits)")]
    Id(String),
    /// The text is not a box name.
    #[error(
        "`{0}` is not a valid name: use 1 to 64 letters, digits, `.`, `-` or `_`, beginning with a letter or digit"
    )]
    Name(String),
}

impl BoxId {
    /// The id made of these random bytes.
    #[must_use]
    pub fn from_random(bytes: [u8; 6]) -> Self {
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl BoxName {
    /// The random name `box-` + 6 hexadecimal digits.
    #[must_use]
    pub fn from_random(bytes: [u8; 3]) -> Self {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("box-{digits}"))
    }
}

macro_rules! text_type {
    ($type:ident, $variant:ident, $valid:expr) => {
        impl $type {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl FromStr for $type {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(NameError::$variant(text.into()))
                }
            }
        }
        impl TryFrom<String> for $type {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }
        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.0
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

text_type!(BoxId, Id, |text| {
    text.len() == 12
        && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
});
text_type!(BoxName, Name, |text| {
    (1..=64).contains(&text.len())
        && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
});

/// Most vCPUs a box may have.
pub const MAX_CPUS: u8 = 64;

/// Least memory a box may have, in MiB: below this the kernel and an image's shell do not fit.
pub const MIN_MEMORY_MIB: u32 = 64;

/// Settings of a box, complete: every default is filled in. Stored with the box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoxSpec {
    /// Reference of the image, as the user wrote it.
    pub image: String,
    /// Number of vCPUs, 1 to [`MAX_CPUS`].
    pub cpus: u8,
    /// Guest RAM in MiB.
    pub memory_mib: u32,
    /// Size of the writable disk in MiB.
    pub disk_mib: u32,
    /// Environment of every exec.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// Default working directory of execs; the image's own when absent.
    #[serde(default)]
    pub workdir: Option<String>,
    /// Default user of execs; the image's own when absent.
    #[serde(default)]
    pub user: Option<String>,
    /// Whether the guest may run virtual machines itself.
    #[serde(default)]
    pub nested: bool,
    /// Kernel to boot instead of lilbox's own.
    #[serde(default)]
    pub kernel: Option<std::path::PathBuf>,
    /// Whether the guest's kernel writes all its messages to a serial port.
    #[serde(default)]
    pub debug_boot: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules() {
        for good in ["a", "web", "box-0a1b2c", "A.b_c-9", "9lives", &"x".repeat(64)] {
            assert_eq!(good.parse::<BoxName>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", ".a", "_a", "a b", "a/b", "é", "a\0", &"x".repeat(65)] {
            assert_eq!(bad.parse::<BoxName>(), Err(NameError::Name(bad.into())));
        }
    }

    #[test]
    fn ids_and_random_names_are_valid() {
        let id = BoxId::from_random([0, 1, 2, 0xfd, 0xfe, 0xff]);
        assert_eq!(id.as_str(), "000102fdfeff");
        assert_eq!(id.as_str().parse::<BoxId>().unwrap(), id);
        assert!("000102FDFEFF".parse::<BoxId>().is_err());
        assert!("../../../etc".parse::<BoxId>().is_err());
        let name = BoxName::from_random([0xab, 0, 1]);
        assert_eq!(name.as_str().parse::<BoxName>().unwrap().as_str(), "box-ab0001");
    }
}
