//! What can go wrong: what was tried, its cause, a code word that is stable, and advice where there is any.

use crate::Code;
use crate::machine::MachineError;
use proto::agent::Failed;
use proto::codec::DecodeError;
use proto::launch::LaunchFailure;
use proto::spec::{BoxName, NameError};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

/// Result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure. Its `Display` says what failed; [`std::error::Error::source`] says why, where that is somebody else's
/// error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name is taken.
    #[error("a box named '{0}' exists already")]
    BoxExists(BoxName),
    /// There is no such box.
    #[error("no box named '{name}'")]
    BoxNotFound {
        /// What the user wrote.
        name: String,
        /// Names that look like it.
        similar: Vec<String>,
    },
    /// The box has to be stopped for this.
    #[error("box '{0}' is running")]
    BoxRunning(BoxName),
    /// The box has to be running for this.
    #[error("box '{0}' is not running")]
    BoxStopped(BoxName),
    /// Another command works on the box.
    #[error("box '{0}' is being changed by another command")]
    BoxBusy(BoxName),
    /// The text is not a name.
    #[error(transparent)]
    InvalidName(#[from] NameError),
    /// A value is not usable.
    #[error("{what}: {cause}")]
    InvalidValue {
        /// Which value.
        what: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The image is not known.
    #[error("no image '{0}' here")]
    ImageNotFound(String),
    /// The image cannot be used.
    #[error("image '{reference}' cannot be used: {cause}")]
    ImageInvalid {
        /// The image, as the user wrote it.
        reference: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The guest kernel cannot be read.
    #[error("cannot open the kernel {path}", path = .path.display())]
    KernelInvalid {
        /// Its file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A file that belongs to lilbox is missing.
    #[error("the installation is incomplete: {path} is missing", path = .path.display())]
    InstallBroken {
        /// The file.
        path: PathBuf,
    },
    /// There is no KVM.
    #[error("{path} does not exist: this Linux has no KVM", path = .0.display())]
    KvmMissing(PathBuf),
    /// KVM may not be used.
    #[error("{path} may not be opened by this user", path = .0.display())]
    KvmDenied(PathBuf),
    /// KVM cannot run what boxes need.
    #[error("this host's KVM cannot run ordinary kernels: {reason}")]
    KvmUnusable {
        /// What it did instead.
        reason: String,
    },
    /// The disk is too full.
    #[error("too little free space in {path}: {needed_mib} MiB needed, {free_mib} MiB free", path = .path.display())]
    NoSpace {
        /// Directory on the disk.
        path: PathBuf,
        /// MiB needed.
        needed_mib: u64,
        /// MiB free.
        free_mib: u64,
    },
    /// The host has less memory than the box asks for.
    #[error("{wanted_mib} MiB of memory asked for, but the host has {host_mib} MiB")]
    NoMemory {
        /// MiB asked for.
        wanted_mib: u64,
        /// MiB of the host.
        host_mib: u64,
    },
    /// The VMM says why the box does not run.
    #[error("the box did not start: {message}", message = describe_launch_failure(.0))]
    Launch(LaunchFailure),
    /// The VMM ended without a word.
    #[error("the VMM ended before the box was ready ({status}){tail}", tail = indent(.log_tail))]
    VmmDied {
        /// How it ended.
        status: String,
        /// Last lines of what it wrote to standard error.
        log_tail: Vec<String>,
    },
    /// The guest refused a request.
    #[error("{message}", message = .0.message)]
    Guest(Failed),
    /// The connection to the box ended in the middle of a request.
    #[error("the connection to box '{0}' was lost: the box was stopped, or it crashed")]
    ConnectionLost(String),
    /// A peer sent something that cannot be understood.
    #[error("{peer} sent a message that cannot be understood")]
    BadMessage {
        /// Who.
        peer: &'static str,
        /// Cause.
        source: DecodeError,
    },
    /// A peer sent something at the wrong time.
    #[error("{peer} sent an unexpected {message}")]
    UnexpectedMessage {
        /// Who.
        peer: &'static str,
        /// What.
        message: &'static str,
    },
    /// The VMM refused a request.
    #[error("the VMM refused: {message}")]
    Refused {
        /// Code word.
        code: Code,
        /// Its explanation.
        message: String,
    },
    /// The VMM did not end in time, not even by force.
    #[error("the VMM of box '{0}' does not end")]
    StopTimeout(String),
    /// A signal arrived.
    #[error("interrupted")]
    Interrupted,
    /// The database cannot be used.
    #[error("cannot {operation} in the state database")]
    State {
        /// What was tried.
        operation: &'static str,
        /// Cause.
        source: rusqlite::Error,
    },
    /// A newer lilbox has changed the database.
    #[error("the state database has version {found}, this lilbox knows versions up to {known}")]
    StateNewer {
        /// Its version.
        found: u32,
        /// Latest version known here.
        known: u32,
    },
    /// Something on disk is not as we left it.
    #[error("{path} is not usable: {cause}", path = .path.display())]
    StateInvalid {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// The machine cannot be used.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A system call failed.
    #[error("cannot {operation}")]
    Io {
        /// What was tried, and on what.
        operation: String,
        /// Cause.
        source: io::Error,
    },
}

impl Error {
    /// The error of a path that is written down as text, and is none.
    pub(crate) fn not_utf8(what: &str, path: &Path) -> Self {
        let cause = format!("`{}` is not UTF-8", path.display());
        Self::InvalidValue { what: what.into(), cause }
    }

    /// Wraps an error of a system call: `operation` completes "cannot …".
    pub fn io(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let operation = operation.into();
        move |source| Self::Io { operation, source }
    }

    /// Wraps an error of `rustix`, like [`Error::io`].
    pub fn sys(operation: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> Self {
        let wrap = Self::io(operation);
        move |errno| wrap(errno.into())
    }

    /// Whether a write failed for want of space.
    pub(crate) fn is_disk_full(&self) -> bool {
        match self {
            Self::Io { source, .. } => source.kind() == io::ErrorKind::StorageFull,
            Self::State { source, .. } => is_database_full(source),
            _ => false,
        }
    }

    /// The code word.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::BoxExists(_) => Code::BoxExists,
            Self::BoxNotFound { .. } => Code::BoxNotFound,
            Self::BoxRunning(_) | Self::BoxBusy(_) => Code::BoxRunning,
            Self::BoxStopped(_) => Code::BoxStopped,
            Self::InvalidName(_) => Code::InvalidName,
            Self::InvalidValue { .. } => Code::InvalidValue,
            Self::ImageNotFound(_) => Code::ImageNotFound,
            Self::ImageInvalid { .. } => Code::ImageInvalid,
            Self::KernelInvalid { .. } => Code::KernelInvalid,
            Self::InstallBroken { .. } => Code::InstallBroken,
            Self::KvmMissing(_) => Code::KvmMissing,
            Self::KvmDenied(_) => Code::KvmDenied,
            Self::KvmUnusable { .. } => Code::KvmUnusable,
            Self::NoSpace { .. } => Code::NoSpace,
            Self::NoMemory { .. } => Code::NoMemory,
            Self::Launch(failure) => failure.code,
            Self::VmmDied { .. } => Code::VmmDied,
            Self::Guest(failed) => failed.code,
            Self::ConnectionLost(_) => Code::GuestDied,
            Self::BadMessage { .. } | Self::UnexpectedMessage { .. } => Code::BadMessage,
            Self::Refused { code, .. } => *code,
            Self::StopTimeout(_) => Code::Internal,
            Self::Interrupted => Code::Interrupted,
            _ if self.is_disk_full() => Code::NoSpace,
            Self::State { .. } | Self::StateNewer { .. } | Self::StateInvalid { .. } => {
                Code::StateInvalid
            }
            Self::Machine(error) => error.code(),
            Self::Io { .. } => Code::Io,
        }
    }

    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::BoxExists(name) => format!("choose another name, or remove it with `lilbox rm {name}`"),
            Self::BoxNotFound { similar, .. } => match similar.first() {
                Some(name) => format!("did you mean '{name}'? `lilbox ls` lists all boxes"),
                None => "`lilbox ls` lists all boxes, `lilbox new` makes one".into(),
            },
            Self::BoxRunning(name) => format!("stop it first with `lilbox stop {name}`"),
            Self::BoxStopped(name) => format!("start it with `lilbox start {name}`"),
            Self::BoxBusy(_) => "try again when the other command has ended".into(),
            Self::ImageNotFound(_) => {
                "`lilbox image ls` lists images; `lilbox image import FILE --tag NAME` adds one; a directory or a \
                 file is given as a path that begins with `/`, `./` or `../`"
                    .into()
            }
            Self::InstallBroken { .. } => "run `make install` again, or set LILBOX_SHARE".into(),
            Self::KvmMissing(_) => {
                "enable virtualisation in the firmware and load kvm_intel or kvm_amd, or set LILBOX_MACHINE=always".into()
            }
            Self::KvmDenied(_) => "add yourself to the group `kvm` and log in again: `sudo usermod -aG kvm $USER`".into(),
            Self::KvmUnusable { .. } => {
                "unset LILBOX_MACHINE: lilbox then uses a machine of its own, with an emulated CPU".into()
            }
            Self::NoSpace { .. } => "remove boxes with `lilbox rm`, or move LILBOX_HOME to a larger disk".into(),
            Self::NoMemory { .. } => "ask for less with --memory".into(),
            Self::KernelInvalid { .. } => "--kernel takes an uncompressed ELF vmlinux".into(),
            Self::Launch(failure) => launch_hint(failure.code)?.into(),
            Self::StateNewer { .. } => "use the newer lilbox, or another LILBOX_HOME".into(),
            _ if self.is_disk_full() => "free some disk space, or move LILBOX_HOME to a larger disk".into(),
            Self::Machine(error) => return error.hint(),
            Self::Guest(failed) => guest_hint(failed.code)?.into(),
            Self::ConnectionLost(name) => format!("`lilbox logs {name}` shows its console"),
            _ => return None,
        })
    }
}

/// Whether SQLite found no space: for a file, or for the index of the log, which has a code of its own.
fn is_database_full(error: &rusqlite::Error) -> bool {
    use rusqlite::{ErrorCode, ffi};
    error.sqlite_error().is_some_and(|error| {
        error.code == ErrorCode::DiskFull || error.extended_code == ffi::SQLITE_IOERR_SHMSIZE
    })
}

fn launch_hint(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::KernelInvalid => "--kernel takes an uncompressed ELF vmlinux",
        Code::KvmUnusable => {
            "`lilbox doctor` says what this host can do; LILBOX_MACHINE=always does without KVM"
        }
        Code::NoMemory => "ask for less with --memory",
        Code::GuestPanic | Code::GuestDied | Code::BootTimeout => {
            "--debug-boot shows all messages of the guest's kernel"
        }
        Code::ProtocolMismatch => {
            "lilbox and lilbox-vmm are from different releases: install both again"
        }
        _ => return None,
    })
}

fn guest_hint(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::UserNotFound => {
            "-u takes a name or number, with an optional :group, that the guest's /etc/passwd knows"
        }
        Code::ProtocolMismatch => "restart the box: it runs an agent of another release",
        _ => return None,
    })
}

/// The message of a failed launch, with the console's last lines.
fn describe_launch_failure(failure: &LaunchFailure) -> String {
    let mut text = failure.message.clone();
    if let Some(exit) = &failure.last_exit {
        let _ = write!(text, "; last exit of a vCPU: {exit}");
    }
    if !failure.console_tail.is_empty() {
        text.push_str("; the console's last lines:");
        text.push_str(&indent(&failure.console_tail));
    }
    text
}

/// Lines below the message they explain.
pub(crate) fn indent(lines: &[String]) -> String {
    lines.iter().map(|line| format!("\n    {}", printable(line))).collect()
}

/// A line that a guest wrote, fit for a terminal: a hostile guest could otherwise send escape sequences through it.
pub(crate) fn printable(line: &str) -> String {
    line.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_failure_shows_the_console_without_its_escape_sequences() {
        let error = Error::Launch(LaunchFailure {
            code: Code::GuestPanic,
            message: "the guest kernel panicked".into(),
            console_tail: vec!["\x1b[31mKernel panic".into()],
            last_exit: Some("hlt".into()),
        });
        let text = error.to_string();
        assert!(text.contains("the guest kernel panicked; last exit of a vCPU: hlt"), "{text}");
        assert!(text.contains("\n    \u{fffd}[31mKernel panic"), "{text}");
        assert_eq!(error.code(), Code::GuestPanic);
        assert!(error.hint().is_some());
    }

    #[test]
    fn a_full_disk_has_its_code_whoever_finds_it() {
        let error = Error::io("write disk")(io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(error.code(), Code::NoSpace);
        assert!(error.hint().is_some());
        for code in [rusqlite::ffi::SQLITE_FULL, rusqlite::ffi::SQLITE_IOERR_SHMSIZE] {
            let source = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
            let error = Error::State { operation: "remove a box", source };
            assert_eq!(error.code(), Code::NoSpace);
            assert!(error.hint().is_some());
        }
        let source = rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR),
            None,
        );
        assert_eq!(Error::State { operation: "x", source }.code(), Code::StateInvalid);
    }
}
