//! The device's queues, and the round that serves them.
//!
//! # Trust
//! A round is bounded however fast the guest refills its queues, each chain is returned before the next is taken, and
//! a ring that makes no sense is a [`QueueFault`].

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use super::muxer::Muxer;
use super::packet::{Malformed, RxSlot, TxPacket};
use super::poll::{Poll, Source};
use crate::virtio::device::{Activation, ActiveQueue, GuestMemory, INTERRUPT_USED, Interrupt};
use crate::virtio::fault_log::FaultLog;
use crate::virtio::serve::QueueFault;
use std::io;
use std::sync::Arc;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT as _, QueueT as _};

/// Packets of each direction in a round. The guest is interrupted once at the end of a round, so this also bounds how
/// long the first packet of it waits.
const ROUND_PACKETS: u32 = 64;

/// Rounds before other devices of the same thread have their turn.
const ROUNDS_PER_TURN: u32 = 4;

/// The queues of a started device.
pub(super) struct Queues {
    /// Packets to the guest.
    rx: ActiveQueue,
    /// Packets from the guest.
    tx: ActiveQueue,
    /// Nothing is sent on it yet. The buffers that the driver put there stay with it.
    event: ActiveQueue,
    memory: Arc<GuestMemory>,
    interrupt: Interrupt,
}

/// How a round ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Nothing can be done until the guest or a socket does something.
    Idle,
    /// There may be more to do.
    Unfinished,
}

impl Queues {
    /// Takes the queues over and watches their doorbells.
    ///
    /// # Errors
    /// When there are not three queues, or a doorbell cannot be watched.
    pub(super) fn new(activation: Activation, poll: &Poll) -> io::Result<Self> {
        let Activation { queues, memory, interrupt, .. } = activation;
        let [rx, tx, event] =
            <[_; 3]>::try_from(queues).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        poll.add(&rx.doorbell, Source::Doorbell)?;
        if let Err(error) = poll.add(&tx.doorbell, Source::Doorbell) {
            poll.remove(&rx.doorbell);
            return Err(error);
        }
        Ok(Self { rx, tx, event, memory, interrupt })
    }

    /// Gives the queues back.
    pub(super) fn into_inner(self, poll: &Poll) -> Vec<Queue> {
        poll.remove(&self.rx.doorbell);
        poll.remove(&self.tx.doorbell);
        vec![self.rx.queue, self.tx.queue, self.event.queue]
    }

    /// Whether the driver has only just begun, and so knows of no connection.
    pub(super) fn are_fresh(&self) -> bool {
        [&self.rx, &self.tx].iter().all(|active| active.queue.next_avail() == 0)
    }

    /// Moves packets both ways until nothing can be done, or for long enough. Returns whether to come again soon.
    ///
    /// # Errors
    /// When a queue is unusable.
    pub(super) fn turn(
        &mut self,
        muxer: &mut Muxer,
        faults: &mut FaultLog,
    ) -> Result<bool, QueueFault> {
        for _ in 0..ROUNDS_PER_TURN {
            if self.round(muxer, faults)? == Round::Idle {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the device cannot go on.
    pub(super) fn needs_reset(&self) -> bool {
        self.interrupt.needs_reset()
    }

    /// Tells the guest that the device cannot go on.
    pub(super) fn request_reset(&self) {
        if let Err(error) = self.interrupt.request_reset() {
            log::error!("virtio-vsock: interrupt the guest: {error}");
        }
    }

    fn round(&mut self, muxer: &mut Muxer, faults: &mut FaultLog) -> Result<Round, QueueFault> {
        let memory = Arc::clone(&self.memory);
        let taken = take(&mut self.tx.queue, &memory, muxer, faults)?;
        let given = give(&mut self.rx.queue, &memory, muxer, faults)?;
        let mut interrupt = false;
        for (queue, used) in [(&mut self.tx.queue, taken.used), (&mut self.rx.queue, given.used)] {
            // Asked only after something was returned: without EVENT_IDX the answer would always be yes.
            interrupt |= used && queue.needs_notification(&*memory)?;
        }
        if interrupt {
            self.interrupt.signal(INTERRUPT_USED).map_err(QueueFault::Interrupt)?;
        }
        // Congestion held the guest's packets back, and sending refusals has ended it.
        let resumed = taken.congested && !muxer.is_congested();
        Ok(if taken.more || given.more || resumed { Round::Unfinished } else { Round::Idle })
    }
}

/// What became of one queue in a round.
#[derive(Debug, Default)]
struct Served {
    /// Buffers were returned.
    used: bool,
    /// The budget ran out.
    more: bool,
    /// Left alone until the guest provides buffers for refusals.
    congested: bool,
}

/// Takes packets from the guest.
fn take(
    queue: &mut Queue,
    memory: &GuestMemory,
    muxer: &mut Muxer,
    faults: &mut FaultLog,
) -> Result<Served, QueueFault> {
    let mut served = Served::default();
    queue.disable_notification(memory)?;
    for _ in 0..ROUND_PACKETS {
        if muxer.is_congested() {
            served.congested = true;
            return Ok(served);
        }
        let Some((head, chain)) = next_chain(queue, memory)? else {
            if queue.enable_notification(memory)? {
                continue;
            }
            return Ok(served);
        };
        match TxPacket::parse(memory, chain) {
            Ok(packet) => muxer.receive(&packet),
            Err(malformed) => {
                faults.note(format_args!("packet from the guest: {malformed}"));
                if let Malformed::Payload(header) = malformed {
                    muxer.receive_broken(&header);
                }
            }
        }
        queue.add_used(memory, head, 0)?;
        served.used = true;
    }
    served.more = true;
    Ok(served)
}

/// Fills buffers of the guest with packets.
fn give(
    queue: &mut Queue,
    memory: &GuestMemory,
    muxer: &mut Muxer,
    faults: &mut FaultLog,
) -> Result<Served, QueueFault> {
    let mut served = Served::default();
    queue.disable_notification(memory)?;
    for _ in 0..ROUND_PACKETS {
        if !muxer.has_packets() {
            return Ok(served);
        }
        let Some((head, chain)) = next_chain(queue, memory)? else {
            // Only now is there a reason to hear of new buffers.
            if queue.enable_notification(memory)? {
                continue;
            }
            return Ok(served);
        };
        let used = match RxSlot::parse(memory, chain) {
            Ok(slot) => match muxer.next_packet(&slot) {
                Some(header) => slot.finish(&header),
                None => {
                    queue.go_to_previous_position();
                    return Ok(served);
                }
            },
            Err(malformed) => {
                faults.note(format_args!("buffer for a packet: {malformed}"));
                0
            }
        };
        queue.add_used(memory, head, used)?;
        served.used = true;
    }
    served.more = muxer.has_packets();
    Ok(served)
}

/// The next chain that the guest made available.
fn next_chain<'m>(
    queue: &mut Queue,
    memory: &'m GuestMemory,
) -> Result<Option<(u16, DescriptorChain<&'m GuestMemory>)>, QueueFault> {
    let Some(chain) = queue.iter(memory)?.next() else { return Ok(None) };
    let head = chain.head_index();
    if head >= queue.size() {
        return Err(QueueFault::Head { head, size: queue.size() });
    }
    Ok(Some((head, chain)))
}
