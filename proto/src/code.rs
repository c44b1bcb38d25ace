//! Code words of errors: the same word on the command line, in JSON and on the wire.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $variant:ident = $word:literal,)+) => {
        /// One word that names a kind of failure, stable across releases.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Code {
            $($(#[doc = $doc])+ #[serde(rename = $word)] $variant,)+
            /// A word this build does not know (from a newer peer).
            #[serde(other, rename = "unknown")]
            Unknown,
        }

        impl Code {
            /// Every code with its word, for documentation and tests.
            pub const ALL: &'static [(Self, &'static str)] =
                &[$((Self::$variant, $word),)+ (Self::Unknown, "unknown")];

            /// The word itself.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ Self::Unknown => "unknown" }
            }
        }
    };
}

codes! {
    /// A box of that name exists already.
    BoxExists = "box_exists",
    /// No box of that name.
    BoxNotFound = "box_not_found",
    /// The box is running and the operation needs it stopped.
    BoxRunning = "box_running",
    /// The box is not running and the operation needs it running.
    BoxStopped = "box_stopped",
    /// The name does not follow the rules.
    InvalidName = "invalid_name",
    /// A value given by the user is not usable.
    InvalidValue = "invalid_value",
    /// The image is not known here.
    ImageNotFound = "image_not_found",
    /// The image's bytes are not what its format demands.
    ImageInvalid = "image_invalid",
    /// The guest kernel cannot be read or is not one.
    KernelInvalid = "kernel_invalid",
    /// A program or file that belongs to lilbox is missing.
    InstallBroken = "install_broken",
    /// `/dev/kvm` is missing.
    KvmMissing = "kvm_missing",
    /// `/dev/kvm` may not be opened.
    KvmDenied = "kvm_denied",
    /// This KVM cannot run ordinary kernels.
    KvmUnusable = "kvm_unusable",
    /// The host has too little free disk space.
    NoSpace = "no_space",
    /// The host has too little memory.
    NoMemory = "no_memory",
    /// The guest kernel panicked.
    GuestPanic = "guest_panic",
    /// The guest shut down or crashed before it was ready.
    GuestDied = "guest_died",
    /// The guest did not say hello in time.
    BootTimeout = "boot_timeout",
    /// The VMM process ended without an answer.
    VmmDied = "vmm_died",
    /// The two programs speak different versions of a protocol.
    ProtocolMismatch = "protocol_mismatch",
    /// A message that cannot be understood.
    BadMessage = "bad_message",
    /// The secret does not match.
    Unauthorized = "unauthorized",
    /// The command does not exist in the guest.
    CommandNotFound = "command_not_found",
    /// The command exists but cannot be run (a directory, no permission).
    CommandNotRunnable = "command_not_runnable",
    /// The user does not exist in the guest.
    UserNotFound = "user_not_found",
    /// The working directory cannot be entered.
    WorkdirInvalid = "workdir_invalid",
    /// Nothing listens on the port.
    ConnectionRefused = "connection_refused",
    /// Too many of something at once.
    LimitReached = "limit_reached",
    /// The operation was interrupted.
    Interrupted = "interrupted",
    /// The machine (the Linux host lilbox brings along) cannot be started.
    MachineFailed = "machine_failed",
    /// A program from the distribution is missing.
    ProgramMissing = "program_missing",
    /// State on disk is not usable.
    StateInvalid = "state_invalid",
    /// A system call failed.
    Io = "io",
    /// A defect in lilbox.
    Internal = "internal",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::Code;

    #[test]
    fn words_round_trip_and_unknown_words_are_tolerated() {
        for (code, word) in Code::ALL {
            let json = serde_json::to_string(code).unwrap();
            assert_eq!(json, format!("\"{word}\""));
            assert_eq!(serde_json::from_str::<Code>(&json).unwrap(), *code);
        }
        assert_eq!(serde_json::from_str::<Code>("\"from_the_future\"").unwrap(), Code::Unknown);
    }
}
