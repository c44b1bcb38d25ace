//! What can go wrong with the machine.

use super::settings::SettingsError;
use crate::Code;
use std::io;

/// A failure of the machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// QEMU is not installed.
    #[error("`{program}` is not installed, and this computer needs it to run boxes")]
    QemuMissing {
        /// The program.
        program: String,
    },
    /// A setting is not usable.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The machine did not come up.
    #[error("the machine did not start: {cause}{tail}", tail = crate::error::indent(.tail))]
    Start {
        /// What happened.
        cause: String,
        /// Last lines of its console, or of QEMU's messages.
        tail: Vec<String>,
    },
    /// QEMU's control socket does not do what it should.
    #[error("QEMU's control socket: cannot {operation}")]
    Qmp {
        /// What was tried.
        operation: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// The machine's agent cannot be reached.
    #[error("the machine does not answer: cannot {operation}")]
    Link {
        /// What was tried.
        operation: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// It ended while a command ran in it.
    #[error("the machine ended while the command ran: it was stopped, or it crashed{tail}", tail = crate::error::indent(.tail))]
    Lost {
        /// Last lines of its console.
        tail: Vec<String>,
    },
    /// QEMU does not end, not even by force.
    #[error("the machine does not end: QEMU is stuck in the kernel")]
    Stuck,
}

impl MachineError {
    /// The code word.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::QemuMissing { .. } => Code::ProgramMissing,
            Self::Settings(_) => Code::InvalidValue,
            _ => Code::MachineFailed,
        }
    }

    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::QemuMissing { .. } => {
                "install QEMU: `sudo apt-get install qemu-system-x86` (Debian, Ubuntu) or `sudo dnf install \
                 qemu-system-x86-core` (Fedora)"
                    .into()
            }
            Self::Link { .. } | Self::Qmp { .. } => "restart it: `lilbox machine stop`, then try again".into(),
            Self::Settings(_) | Self::Start { .. } | Self::Lost { .. } | Self::Stuck => return None,
        })
    }
}
