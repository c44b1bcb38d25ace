//! Directories: where state, data and sockets lie.
//!
//! Computing paths touches nothing; [`Dirs::create`] makes the directories, all of them for their owner alone.

use crate::{BoxId, Error, Result, hex};
use sha2::{Digest, Sha256};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Longest path of a Unix socket (`unix(7)`: 108 bytes with the final NUL).
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// What follows the runtime directory in the longest socket path: `/<id>/control.sock`.
const SOCKET_SUFFIX_BYTES: usize = 1 + 12 + 1 + "control.sock".len();

/// The environment that directories are computed from.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `LILBOX_HOME`: all directories below one.
    pub lilbox_home: Option<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// `XDG_STATE_HOME`.
    pub state_home: Option<PathBuf>,
    /// `XDG_DATA_HOME`.
    pub data_home: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<PathBuf>,
    /// Directory for temporary files.
    pub temporary: PathBuf,
    /// The user's id.
    pub uid: u32,
}

/// The directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirs {
    /// The database.
    pub state: PathBuf,
    /// Images and disks.
    pub data: PathBuf,
    /// Sockets.
    pub runtime: PathBuf,
    /// Whether `runtime` lies in a directory that others can write to, and must be checked before it is believed.
    shared_parent: Option<PathBuf>,
}

impl Dirs {
    /// Computes the directories.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] if there is no home directory, or a path is not absolute or not UTF-8.
    pub fn compute(environment: &Environment) -> Result<Self> {
        let absolute = |name: &str, path: &Option<PathBuf>| match path {
            Some(path) if path.as_os_str().is_empty() => Ok(None),
            Some(path) if path.is_absolute() => Ok(Some(path.clone())),
            Some(path) => Err(Error::InvalidValue {
                what: name.into(),
                cause: format!("`{}` is not an absolute path", path.display()),
            }),
            None => Ok(None),
        };
        let fallback = environment.temporary.join(format!("lilbox-{}", environment.uid));
        let (state, data, runtime) = if let Some(home) =
            absolute("LILBOX_HOME", &environment.lilbox_home)?
        {
            (home.join("state"), home.join("data"), Some(home.join("run")))
        } else {
            // The XDG specification says: a relative path in these variables is invalid and to be ignored.
            let valid = |path: &Option<PathBuf>| path.clone().filter(|path| path.is_absolute());
            let home = absolute("HOME", &environment.home)?.ok_or_else(|| Error::InvalidValue {
                what: "HOME".into(),
                cause: "is not set; set it, or LILBOX_HOME".into(),
            });
            let below = |variable: &Option<PathBuf>, default: &str| match (valid(variable), &home) {
                (Some(path), _) => Ok(path.join("lilbox")),
                (None, Ok(home)) => Ok(home.join(default).join("lilbox")),
                (None, Err(_)) => Err(Error::InvalidValue {
                    what: "HOME".into(),
                    cause: "is not set; set it, or LILBOX_HOME".into(),
                }),
            };
            (
                below(&environment.state_home, ".local/state")?,
                below(&environment.data_home, ".local/share")?,
                valid(&environment.runtime_dir).map(|path| path.join("lilbox")),
            )
        };
        let fits =
            |path: &PathBuf| path.as_os_str().len() + SOCKET_SUFFIX_BYTES <= MAX_SOCKET_PATH_BYTES;
        let (runtime, shared_parent) = match runtime {
            Some(runtime) if fits(&runtime) => (runtime, None),
            // Too long for a socket: a short directory that only this home has.
            Some(runtime) => (fallback.join(short_hash(&runtime)), Some(fallback)),
            // Without XDG_RUNTIME_DIR two homes of one user must still not meet.
            None => (fallback.join(short_hash(&state)), Some(fallback)),
        };
        if !fits(&runtime) {
            return Err(Error::InvalidValue {
                what: "TMPDIR".into(),
                cause: format!(
                    "`{}` is too long for the path of a socket",
                    environment.temporary.display()
                ),
            });
        }
        // Paths below them are written down as text.
        if let Some(path) =
            [&state, &data, &runtime].into_iter().find(|path| path.to_str().is_none())
        {
            return Err(Error::not_utf8("directory", path));
        }
        Ok(Self { state, data, runtime, shared_parent })
    }

    /// Makes the directories that are missing.
    ///
    /// # Errors
    /// [`Error::Io`] if one cannot be made, [`Error::StateInvalid`] if the runtime directory belongs to somebody else.
    pub fn create(&self) -> Result<()> {
        for path in [&self.state, &self.data, &self.images(), &self.boxes()] {
            create_private(path)?;
        }
        if let Some(parent) = &self.shared_parent {
            create_private(parent)?;
            check_private(parent)?;
        }
        create_private(&self.runtime)?;
        check_private(&self.runtime)
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.state.join("state.db")
    }

    /// The file whose lock orders lock attempts; see [`crate::lock`].
    #[must_use]
    pub fn gate(&self) -> PathBuf {
        self.state.join("gate.lock")
    }

    /// Directory of image files.
    #[must_use]
    pub fn images(&self) -> PathBuf {
        self.data.join("images")
    }

    /// Directory of the boxes' directories.
    #[must_use]
    pub fn boxes(&self) -> PathBuf {
        self.data.join("boxes")
    }

    /// Files of one box.
    #[must_use]
    pub fn of_box(&self, id: &BoxId) -> BoxFiles {
        BoxFiles {
            directory: self.boxes().join(id.as_str()),
            sockets: self.runtime.join(id.as_str()),
        }
    }
}

/// Paths of one box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxFiles {
    /// Directory of its disk, logs and lock.
    pub directory: PathBuf,
    /// Directory of its sockets.
    pub sockets: PathBuf,
}

impl BoxFiles {
    /// The file whose lock its VMM holds.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.directory.join("lock")
    }

    /// The file whose lock the command holds that the box belongs to.
    #[must_use]
    pub fn owner(&self) -> PathBuf {
        self.directory.join("owner")
    }

    /// The writable disk.
    #[must_use]
    pub fn disk(&self) -> PathBuf {
        self.directory.join("disk.ext4")
    }

    /// The guest's console.
    #[must_use]
    pub fn console_log(&self) -> PathBuf {
        self.directory.join("console.log")
    }

    /// The guest's console, before it was rotated.
    #[must_use]
    pub fn console_log_old(&self) -> PathBuf {
        self.directory.join("console.log.old")
    }

    /// Standard error of the VMM.
    #[must_use]
    pub fn vmm_log(&self) -> PathBuf {
        self.directory.join("vmm.log")
    }

    /// Socket to the guest's agent.
    #[must_use]
    pub fn agent_socket(&self) -> PathBuf {
        self.sockets.join("agent.sock")
    }

    /// Socket to the VMM.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.sockets.join("control.sock")
    }
}

/// Makes a directory (and its parents) that only its owner can enter. An existing one is left as it is.
pub(crate) fn create_private(path: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(Error::io(format!("make the directory {}", path.display())))
}

/// Refuses a directory that somebody else could have made, or can write to: sockets in it could be theirs.
fn check_private(path: &Path) -> Result<()> {
    let metadata = path
        .symlink_metadata()
        .map_err(Error::io(format!("look at the directory {}", path.display())))?;
    let invalid = |cause: &str| Err(Error::StateInvalid { path: path.into(), cause: cause.into() });
    if !metadata.is_dir() {
        return invalid("it is not a directory");
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return invalid("it belongs to another user");
    }
    if metadata.mode() & 0o077 != 0 {
        return invalid("others have access to it (it must have mode 0700)");
    }
    Ok(())
}

/// Removes a directory with all that is in it; one that is not there is fine.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}

/// Removes a file that may be gone already.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}

/// Eight hexadecimal digits that stand for a path.
fn short_hash(path: &Path) -> String {
    let digest = Sha256::digest(path.as_os_str().as_bytes());
    hex::digits(&digest[..4])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn environment() -> Environment {
        Environment {
            home: Some("/home/u".into()),
            runtime_dir: Some("/run/user/7".into()),
            temporary: "/tmp".into(),
            uid: 7,
            ..Environment::default()
        }
    }

    #[test]
    fn directories_follow_xdg() {
        let dirs = Dirs::compute(&environment()).unwrap();
        assert_eq!(dirs.state, Path::new("/home/u/.local/state/lilbox"));
        assert_eq!(dirs.data, Path::new("/home/u/.local/share/lilbox"));
        assert_eq!(dirs.runtime, Path::new("/run/user/7/lilbox"));
        let dirs = Dirs::compute(&Environment {
            data_home: Some("/d".into()),
            state_home: Some("relative/is/ignored".into()),
            ..environment()
        });
        let dirs = dirs.unwrap();
        assert_eq!(dirs.data, Path::new("/d/lilbox"));
        assert_eq!(dirs.state, Path::new("/home/u/.local/state/lilbox"));
    }

    #[test]
    fn lilbox_home_moves_everything() {
        let dirs = Dirs::compute(&Environment { lilbox_home: Some("/x".into()), ..environment() })
            .unwrap();
        assert_eq!(dirs.state, Path::new("/x/state"));
        assert_eq!(dirs.runtime, Path::new("/x/run"));
        let relative = Environment { lilbox_home: Some("x".into()), ..environment() };
        assert!(matches!(Dirs::compute(&relative), Err(Error::InvalidValue { .. })));
        let bytes: PathBuf = std::ffi::OsStr::from_bytes(b"/x\xff").into();
        let no_text = Environment { lilbox_home: Some(bytes), ..environment() };
        assert!(matches!(Dirs::compute(&no_text), Err(Error::InvalidValue { .. })));
        let nothing = Environment { home: None, ..environment() };
        assert!(Dirs::compute(&nothing).is_err());
    }

    #[test]
    fn socket_paths_fit_whatever_the_home() {
        let long = PathBuf::from(format!("/{}", "x".repeat(150)));
        let dirs = Dirs::compute(&Environment { lilbox_home: Some(long.clone()), ..environment() })
            .unwrap();
        assert!(dirs.runtime.starts_with("/tmp/lilbox-7"), "{}", dirs.runtime.display());
        let other = Environment { lilbox_home: Some(long.join("y")), ..environment() };
        assert_ne!(Dirs::compute(&other).unwrap().runtime, dirs.runtime);
        let files = dirs.of_box(&BoxId::from_random([1; 6]));
        assert!(files.control_socket().as_os_str().len() <= MAX_SOCKET_PATH_BYTES);
        assert!(files.agent_socket().as_os_str().len() <= MAX_SOCKET_PATH_BYTES);
        let long_tmp = Environment { temporary: long, runtime_dir: None, ..environment() };
        assert!(Dirs::compute(&long_tmp).is_err());
    }

    #[test]
    fn directories_are_private_and_a_shared_runtime_directory_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let from = Environment { lilbox_home: Some(root.path().join("h")), ..environment() };
        let dirs = Dirs::compute(&from).unwrap();
        dirs.create().unwrap();
        dirs.create().unwrap();
        for path in [&dirs.state, &dirs.data, &dirs.runtime] {
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        }
        std::fs::set_permissions(&dirs.runtime, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(matches!(dirs.create(), Err(Error::StateInvalid { .. })));
    }
}
