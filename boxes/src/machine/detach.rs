//! Starts a process that outlives us: in a session of its own, with chosen descriptors kept open.
#![expect(unsafe_code, reason = "UNSAFETY: code runs between fork and exec")]

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::setsid;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Starts `command` detached. It inherits `kept` under their numbers here; our copies are closed on return.
pub(super) fn spawn(mut command: Command, kept: Vec<OwnedFd>) -> io::Result<Child> {
    let in_child = move || {
        for descriptor in &kept {
            fcntl_setfd(descriptor, FdFlags::empty())?;
        }
        setsid()?;
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed: the closure makes two kinds of system
    // calls and turns their error numbers into `io::Error`s, none of which allocates or takes a lock.
    unsafe { command.pre_exec(in_child) };
    // Dropping the command drops the closure, and with it our copies of the descriptors.
    command.spawn()
}

/// The number of a descriptor, for a program that is told it on its command line.
pub(super) fn number(descriptor: BorrowedFd<'_>) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(&descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::process::Stdio;

    #[test]
    fn the_child_has_a_session_of_its_own_and_the_descriptors() {
        let (mut reader, writer) = io::pipe().unwrap();
        let writer = OwnedFd::from(writer);
        let script = format!("ps -o sid= -p $$ >&{0}; echo $$ >&{0}", number(writer.as_fd()));
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdin(Stdio::null());
        let mut child = spawn(command, vec![writer]).unwrap();
        let mut text = String::new();
        // Ends only if no copy of the writer is left here.
        reader.read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().success());
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(matches!(words[..], [session, pid] if session == pid), "{text}");
    }
}
