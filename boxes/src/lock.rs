//! Locks: a box runs if and only if somebody holds its lock.
//!
//! Three kinds of files are locked with `flock(2)`, whose locks the kernel drops when their holder dies:
//!
//! - the *box lock*, taken by the command that starts a box and handed to the VMM with its open file description;
//! - the *owner lock*, held by the command that makes a box until the box is committed, and by `run` for as long as
//!   its box lives. A box in the making, or an ephemeral one, without an owner is what a killed command left;
//! - the *gate*, one file per state directory, held for the few microseconds in which locks are taken or looked at.
//!   Without it, a look at a box lock (which takes it, shared, for a moment) could make a command that tries to take
//!   it believe that the box is running. Order: who is to write to the database with the gate to itself gets the right
//!   to write first ([`crate::store::Writing`]), then the gate, then locks. Nothing waits while it holds the gate.

use crate::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The gate, held until dropped.
#[derive(Debug)]
pub struct Gate {
    exclusive: bool,
    _file: File,
}

/// A lock that is held until dropped, or for as long as a process that was given its descriptor lives.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Gate {
    /// Enters in order to take locks. Waits for others who do, which takes them microseconds.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be opened or locked.
    pub fn exclusive(path: &Path) -> Result<Self> {
        Self::enter(path, true)
    }

    /// Enters in order to look at locks.
    ///
    /// # Errors
    /// As [`Gate::exclusive`].
    pub fn shared(path: &Path) -> Result<Self> {
        Self::enter(path, false)
    }

    fn enter(path: &Path, exclusive: bool) -> Result<Self> {
        let file = open(path, true)?;
        let operation =
            if exclusive { FlockOperation::LockExclusive } else { FlockOperation::LockShared };
        loop {
            match flock(&file, operation) {
                Err(Errno::INTR) => {}
                result => break result.map_err(Error::sys(format!("lock {}", path.display())))?,
            }
        }
        Ok(Self { exclusive, _file: file })
    }

    /// Takes a lock, making its file if need be. `None` if somebody holds it.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be opened or locked.
    ///
    /// # Panics
    /// If the gate was entered to look only.
    pub fn take(&self, path: &Path) -> Result<Option<Lock>> {
        assert!(self.exclusive, "locks are taken with the gate to oneself");
        let file = open(path, true)?;
        Ok(try_lock(&file, path, true)?.then_some(Lock { file }))
    }

    /// Takes a lock whose file must exist already. `None` if somebody holds it, or if there is no such file.
    ///
    /// # Errors
    /// As [`Gate::take`].
    ///
    /// # Panics
    /// As [`Gate::take`].
    pub fn take_existing(&self, path: &Path) -> Result<Option<Lock>> {
        assert!(self.exclusive, "locks are taken with the gate to oneself");
        match open(path, false) {
            Ok(file) => Ok(try_lock(&file, path, true)?.then_some(Lock { file })),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells whether somebody holds a lock. One whose file does not exist is free.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be opened.
    pub fn is_held(&self, path: &Path) -> Result<bool> {
        match open(path, false) {
            // Closing the file gives up what was taken.
            Ok(file) => Ok(!try_lock(&file, path, false)?),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Lock {
    /// The descriptor, to be handed on. The lock is free when all its copies are closed.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Notes to which process the lock is handed, so that it can be waited for and, if need be, ended. Whether the lock
    /// is held is never told by this.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub fn hand_over(&self, pid: Pid) -> Result<()> {
        // A process that has ended already holds nothing.
        let started = start_time(pid).unwrap_or_default();
        let text = format!("{} {started}\n", pid.as_raw_nonzero());
        let write = self.file.set_len(0).and_then(|()| self.file.write_all_at(text.as_bytes(), 0));
        write.map_err(Error::io("note the VMM in the box's lock file"))
    }
}

/// Waits until a lock is free and takes it. `None` if it is still held after `patience`.
///
/// # Errors
/// [`Error::Io`] if the gate or the file cannot be locked.
pub fn take_when_free(gate: &Path, path: &Path, patience: Duration) -> Result<Option<Lock>> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(lock) = Gate::exclusive(gate)?.take_existing(path)? {
            return Ok(Some(lock));
        }
        if !path.exists() || Instant::now() >= deadline {
            return Ok(None);
        }
        let holders = holders(path);
        for holder in &holders {
            wait_for_exit(holder, deadline.saturating_duration_since(Instant::now()))?;
        }
        if holders.is_empty() {
            // A command that has it for a moment, or a VMM on its way out: nothing to wait on.
            let moment = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
            let _ = poll(&mut [], Some(&moment));
        }
    }
}

/// Ends, by SIGKILL, the processes that hold a lock. For VMMs that do not answer.
///
/// # Errors
/// [`Error::Io`] if a signal cannot be sent.
pub fn kill_holders(path: &Path) -> Result<()> {
    for holder in holders(path) {
        match pidfd_send_signal(&holder, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => return Err(Error::sys("end a process by force")(errno)),
        }
    }
    Ok(())
}

/// The processes that hold a lock, as far as can be told: the one it was handed to, else all that have its file open.
/// A confined VMM does not let others of its user look at its descriptors.
fn holders(path: &Path) -> Vec<OwnedFd> {
    holder(path).map_or_else(|| openers(path), |holder| vec![holder])
}

/// Processes of this user, other than this one, that have the file open.
fn openers(path: &Path) -> Vec<OwnedFd> {
    let Ok(wanted) = path.metadata() else { return Vec::new() };
    let holds = |process: &Path| {
        let descriptors = std::fs::read_dir(process.join("fd")).into_iter().flatten();
        descriptors
            .filter_map(|entry| entry.ok()?.path().metadata().ok())
            .any(|metadata| (metadata.dev(), metadata.ino()) == (wanted.dev(), wanted.ino()))
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten();
    let numbers = processes.filter_map(|entry| {
        entry.ok()?.file_name().to_str()?.parse::<i32>().ok().and_then(Pid::from_raw)
    });
    numbers
        .filter(|pid| *pid != rustix::process::getpid())
        .filter_map(|pid| {
            let descriptor = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            // Asked after the descriptor was made: the number cannot have changed its owner in between.
            let process = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
            holds(&process).then_some(descriptor)
        })
        .collect()
}

/// The process that [`Lock::hand_over`] named, if it lives. Its number alone would say little, as numbers are used
/// again; together with the time it was started it means one process of this boot.
pub(crate) fn holder(path: &Path) -> Option<OwnedFd> {
    let text = std::fs::read_to_string(path).ok()?;
    let (number, started) = text.trim().split_once(' ')?;
    let pid = Pid::from_raw(number.parse().ok()?)?;
    let descriptor = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // Asked after the descriptor was made: the number cannot have changed its owner in between.
    (start_time(pid)? == started).then_some(descriptor)
}

/// When a process was started, in ticks since the host was (`proc_pid_stat(5)`, field 22).
fn start_time(pid: Pid) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name, the second field, may hold spaces and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(22 - 3).map(str::to_owned)
}

/// Waits until a process has ended, or the time is up.
pub(crate) fn wait_for_exit(pidfd: impl AsFd, patience: Duration) -> Result<bool> {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::sys("wait for a process to end")(errno)),
        }
    }
}

fn open(path: &Path, make: bool) -> Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(make)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(Error::io(format!("open {}", path.display())))
}

fn is_absent(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}

fn try_lock(file: &File, path: &Path, exclusive: bool) -> Result<bool> {
    let operation = if exclusive {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(Error::sys(format!("lock {}", path.display()))(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_lock_is_held_until_the_last_copy_of_its_descriptor_is_closed() {
        let root = tempfile::tempdir().unwrap();
        let (gate, path) = (root.path().join("gate"), root.path().join("lock"));
        assert!(!Gate::shared(&gate).unwrap().is_held(&path).unwrap());
        assert!(Gate::exclusive(&gate).unwrap().take_existing(&path).unwrap().is_none());
        let lock = Gate::exclusive(&gate).unwrap().take(&path).unwrap().unwrap();
        assert!(Gate::exclusive(&gate).unwrap().take(&path).unwrap().is_none());
        let copy = lock.file().try_clone().unwrap();
        drop(lock);
        assert!(Gate::shared(&gate).unwrap().is_held(&path).unwrap());
        drop(copy);
        assert!(!Gate::shared(&gate).unwrap().is_held(&path).unwrap());
        assert!(Gate::exclusive(&gate).unwrap().take_existing(&path).unwrap().is_some());
    }

    #[test]
    fn looking_at_a_lock_never_makes_taking_it_fail() {
        let root = tempfile::tempdir().unwrap();
        let (gate, path) = (root.path().join("gate"), root.path().join("lock"));
        drop(Gate::exclusive(&gate).unwrap().take(&path).unwrap());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        Gate::shared(&gate).unwrap().is_held(&path).unwrap();
                    }
                });
            }
            for _ in 0..200 {
                let lock = Gate::exclusive(&gate).unwrap().take(&path).unwrap();
                assert!(lock.is_some());
                // Given up with the gate held, as nobody may look at it half closed.
                let gate = Gate::exclusive(&gate).unwrap();
                drop(lock);
                drop(gate);
            }
        });
    }

    #[test]
    fn a_holder_is_found_waited_for_and_killed() {
        end_holder(true);
        end_holder(false);
    }

    fn end_holder(handed_over: bool) {
        let root = tempfile::tempdir().unwrap();
        let (gate, path) = (root.path().join("gate"), root.path().join("lock"));
        let lock = Gate::exclusive(&gate).unwrap().take(&path).unwrap().unwrap();
        let stdin = Stdio::from(lock.file().try_clone().unwrap());
        let mut child = Command::new("sleep").arg("1000").stdin(stdin).spawn().unwrap();
        if handed_over {
            lock.hand_over(Pid::from_child(&child)).unwrap();
        }
        drop(lock);
        assert!(Gate::shared(&gate).unwrap().is_held(&path).unwrap());
        assert!(take_when_free(&gate, &path, Duration::ZERO).unwrap().is_none());
        kill_holders(&path).unwrap();
        assert!(take_when_free(&gate, &path, Duration::from_secs(60)).unwrap().is_some());
        child.wait().unwrap();
        assert!(holder(&path).is_none(), "a process that has ended holds nothing");
        std::fs::write(&path, format!("{} 1\n", std::process::id())).unwrap();
        assert!(holder(&path).is_none(), "another process of the same number is not meant");
    }
}
