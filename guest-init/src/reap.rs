//! Reaping: PID 1 inherits every orphan, and the agent wants to know how its own children ended.
//!
//! One thread looks at each ended child, and while it holds the table takes it away and, if the agent started it,
//! passes its status on. Children are started under the same lock, so none can end before it is in the table, and
//! nobody else ever waits for a child.

use crate::syscalls::{self, Ended};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A child the agent has started.
#[derive(Debug)]
pub struct Child {
    pid: i32,
    ending: Arc<Ending>,
}

#[derive(Debug)]
struct Ending {
    /// Readable once the child has ended.
    event: OwnedFd,
    status: Mutex<Option<Ended>>,
}

/// The children of this process.
#[derive(Debug)]
pub struct Children {
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    started: BTreeMap<i32, Arc<Ending>>,
    /// Whether the reaper found no child at all, so that it waits for a start.
    childless: bool,
}

impl Child {
    /// Its process id, which is its process group's and session's too.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Becomes readable when the child has ended.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.ending.event.as_fd()
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        *lock(&self.ending.status)
    }
}

impl Children {
    /// Starts the reaper thread. Its owner must be the only one in the process that waits for children.
    ///
    /// # Errors
    /// If the thread cannot be made.
    pub fn reap_from_now_on() -> io::Result<Arc<Self>> {
        let children = Arc::new(Self { table: Mutex::default(), changed: Condvar::new() });
        let reaper = Arc::clone(&children);
        crate::threads::spawn("reaper", move || reaper.run())?;
        Ok(children)
    }

    /// Starts a child with `fork`, which returns its process id.
    ///
    /// # Errors
    /// As `fork`, or if there is no descriptor left to tell the child's end by.
    pub fn start<E: From<io::Error>>(
        &self,
        fork: impl FnOnce() -> Result<i32, E>,
    ) -> Result<Child, E> {
        let event =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
        let ending = Arc::new(Ending { event, status: Mutex::new(None) });
        let mut table = lock(&self.table);
        let pid = fork()?;
        table.started.insert(pid, Arc::clone(&ending));
        table.childless = false;
        drop(table);
        self.changed.notify_all();
        Ok(Child { pid, ending })
    }

    /// Waits until there is no child left, orphans included, or `patience` is over; tells which.
    pub fn wait_until_childless(&self, patience: Duration) -> bool {
        let table = lock(&self.table);
        let waiting = self.changed.wait_timeout_while(table, patience, |table| !table.childless);
        let (table, _) = waiting.unwrap_or_else(PoisonError::into_inner);
        table.childless
    }

    fn run(&self) {
        loop {
            match syscalls::peek_ended_child() {
                Ok(pid) => self.take(pid),
                Err(_no_child) => self.wait_for_a_start(),
            }
        }
    }

    fn take(&self, pid: i32) {
        let mut table = lock(&self.table);
        if let Ok(Some(ended)) = syscalls::reap(pid)
            && let Some(ending) = table.started.remove(&pid)
        {
            *lock(&ending.status) = Some(ended);
            // A counter that only ever goes from 0 to 1 cannot overflow, the one way this write could fail.
            let _ = rustix::io::write(&ending.event, &1_u64.to_ne_bytes());
        }
    }

    /// Without a child there is no orphan to come either: orphans descend from children.
    fn wait_for_a_start(&self) {
        let mut table = lock(&self.table);
        if !table.started.is_empty() {
            return;
        }
        table.childless = true;
        self.changed.notify_all();
        let waiting = self.changed.wait_while(table, |table| table.childless);
        drop(waiting.unwrap_or_else(PoisonError::into_inner));
    }
}

/// A poisoned lock still guards consistent data: nothing here is left half-written by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
