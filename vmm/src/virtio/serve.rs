//! How a device takes buffers from a queue and returns them.
//!
//! # Trust
//! Rings and indices are written by the guest. The loop here is bounded per call, each chain is returned before the
//! next is taken (so no head is ever in flight twice), and a ring that makes no sense ends in a [`QueueFault`].

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use super::device::{ActiveQueue, GuestMemory, INTERRUPT_USED, Interrupt};
use super::fault_log::FaultLog;
use std::io;
use std::sync::Arc;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT as _, QueueT as _};
use vmm_sys_util::eventfd::EventFd;

/// The guest is interrupted once this much work has been returned, instead of at the end of a long batch only.
pub const INTERRUPT_COST: u32 = 16;

/// A queue that cannot be used any more; the device must be reset.
#[derive(Debug, thiserror::Error)]
pub enum QueueFault {
    /// The rings make no sense or are not in RAM.
    #[error("the rings make no sense: {0}")]
    Ring(virtio_queue::Error),
    /// A chain begins beyond the descriptor table.
    #[error("chain begins at descriptor {head} of {size}")]
    Head {
        /// Index given by the guest.
        head: u16,
        /// Size of the table.
        size: u16,
    },
    /// The guest cannot be interrupted.
    #[error("cannot interrupt the guest")]
    Interrupt(#[source] io::Error),
}

impl From<virtio_queue::Error> for QueueFault {
    fn from(error: virtio_queue::Error) -> Self {
        Self::Ring(error)
    }
}

/// What became of one chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Bytes written to the chain's device-writable part.
    pub written: u32,
    /// How much the guest has waited for it, see [`INTERRUPT_COST`].
    pub cost: u32,
}

impl Used {
    /// A chain that was quickly done.
    #[must_use]
    pub const fn cheap(written: u32) -> Self {
        Self { written, cost: 1 }
    }
}

/// Where a call of [`serve`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The queue is empty; the driver will ring when it adds something.
    Drained,
    /// The budget is spent; the caller should come again without waiting for the driver (ring its own doorbell), after
    /// others on the same thread had their turn.
    BudgetSpent,
}

/// Takes up to a queue's length of chains, has each handled, returns it, and interrupts the guest as it wishes.
///
/// # Errors
/// [`QueueFault`] when the queue is unusable.
pub fn serve<'m>(
    queue: &mut Queue,
    memory: &'m GuestMemory,
    interrupt: &Interrupt,
    mut handle: impl FnMut(DescriptorChain<&'m GuestMemory>) -> Used,
) -> Result<Progress, QueueFault> {
    // Another vCPU can refill the queue as fast as it is drained: without a bound, it would hold the thread for ever.
    let mut budget = queue.size();
    let mut owed = 0_u32;
    loop {
        queue.disable_notification(memory)?;
        while budget > 0 {
            let Some(chain) = queue.iter(memory)?.next() else { break };
            budget = budget.saturating_sub(1);
            let head = chain.head_index();
            if head >= queue.size() {
                return Err(QueueFault::Head { head, size: queue.size() });
            }
            let used = handle(chain);
            queue.add_used(memory, head, used.written)?;
            owed = owed.saturating_add(used.cost.max(1));
            if owed >= INTERRUPT_COST {
                owed = 0;
                interrupt_if_wanted(queue, memory, interrupt)?;
            }
        }
        let more = budget == 0 || queue.enable_notification(memory)?;
        if more && budget > 0 {
            // Whatever the reason that nothing could be taken just now, it must not keep us here.
            budget = budget.saturating_sub(1);
            continue;
        }
        if owed > 0 {
            interrupt_if_wanted(queue, memory, interrupt)?;
        }
        return Ok(if more { Progress::BudgetSpent } else { Progress::Drained });
    }
}

fn interrupt_if_wanted(
    queue: &mut Queue,
    memory: &GuestMemory,
    interrupt: &Interrupt,
) -> Result<(), QueueFault> {
    if queue.needs_notification(memory)? {
        interrupt.signal(INTERRUPT_USED).map_err(QueueFault::Interrupt)?;
    }
    Ok(())
}

/// A queue that a handler on an I/O thread serves whenever its doorbell rings.
pub struct ServedQueue {
    queue: Queue,
    doorbell: Arc<EventFd>,
    memory: Arc<GuestMemory>,
    interrupt: Interrupt,
    /// Set by a [`QueueFault`]; nothing is taken from the queue any more.
    faulty: bool,
}

impl ServedQueue {
    /// Begins to serve a queue. The doorbell rings once, since the driver may have added buffers before.
    ///
    /// # Errors
    /// If the doorbell cannot be rung.
    pub fn new(
        active: ActiveQueue,
        memory: Arc<GuestMemory>,
        interrupt: Interrupt,
    ) -> io::Result<Self> {
        active.doorbell.write(1)?;
        Ok(Self {
            queue: active.queue,
            doorbell: Arc::new(active.doorbell),
            memory,
            interrupt,
            faulty: false,
        })
    }

    /// The doorbell, for registration with the I/O thread.
    #[must_use]
    pub fn doorbell(&self) -> Arc<EventFd> {
        Arc::clone(&self.doorbell)
    }

    /// The memory in which the queue's buffers lie.
    #[must_use]
    pub fn memory(&self) -> Arc<GuestMemory> {
        Arc::clone(&self.memory)
    }

    /// Serves the queue after its doorbell has rung; see [`serve`]. `memory` is what [`ServedQueue::memory`] returns;
    /// it is an argument so that `handle` may keep slices of it from one chain to the next.
    pub fn run<'m>(
        &mut self,
        memory: &'m GuestMemory,
        faults: &mut FaultLog,
        mut handle: impl FnMut(DescriptorChain<&'m GuestMemory>, &mut FaultLog) -> Used,
    ) {
        // First the doorbell, then the ring: a buffer added in between rings again. An error says that it has not rung.
        let _not_rung = self.doorbell.read();
        if self.faulty {
            faults.note("a queue is notified that is broken");
            return;
        }
        match serve(&mut self.queue, memory, &self.interrupt, |chain| handle(chain, faults)) {
            Ok(Progress::Drained) => {}
            Ok(Progress::BudgetSpent) => {
                if let Err(error) = self.doorbell.write(1) {
                    faults.note(format_args!("cannot ring a doorbell: {error}"));
                }
            }
            Err(fault) => {
                self.faulty = true;
                faults.note(&fault);
                if let Err(error) = self.interrupt.request_reset() {
                    faults.note(format_args!("cannot interrupt the guest: {error}"));
                }
            }
        }
    }

    /// Ends the service.
    #[must_use]
    pub fn into_queue(self) -> Queue {
        self.queue
    }
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "the numbers here are ours")]
mod tests;
