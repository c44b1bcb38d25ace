//! How long the guest may take to answer a request for a connection.
//!
//! All limits are equal, so they run out in the order in which they began: a queue and one timer serve them all.
//! Handshakes that succeed are not taken out; the timer goes off once more than needed, at most once per limit.
//!
//! The timer is touched by [`arm`](Handshakes::arm) alone, which the I/O thread calls: the device is started and
//! stopped by a vCPU's thread, which has no business with timers and may not even be allowed to.

use super::poll::{Poll, Source};
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};
use vmm_sys_util::timerfd::TimerFd;

/// The handshakes that may be under way.
pub(super) struct Handshakes {
    limit: Duration,
    timer: TimerFd,
    armed: bool,
    queue: VecDeque<(Instant, u64)>,
}

impl Handshakes {
    /// No handshakes.
    ///
    /// # Errors
    /// When descriptors run out.
    pub(super) fn new(limit: Duration, poll: &Poll) -> io::Result<Self> {
        let timer = TimerFd::new()?;
        poll.add(&timer, Source::Timer)?;
        Ok(Self { limit, timer, armed: false, queue: VecDeque::new() })
    }

    /// The handshake of a link begins. [`arm`](Self::arm) must follow before the thread waits.
    pub(super) fn begin(&mut self, link: u64, now: Instant) {
        self.queue.push_back((now + self.limit, link));
    }

    /// The next link whose time is over, handshake done or not.
    pub(super) fn next_expired(&mut self, now: Instant) -> Option<u64> {
        let (deadline, link) = *self.queue.front()?;
        if deadline > now {
            return None;
        }
        self.queue.pop_front();
        Some(link)
    }

    /// The timer went off.
    pub(super) fn went_off(&mut self) {
        self.armed = false;
    }

    /// Forgets all handshakes.
    pub(super) fn clear(&mut self) {
        self.queue = VecDeque::new();
    }

    /// Sets the timer for the handshake that began first, unless it is set.
    pub(super) fn arm(&mut self, now: Instant) {
        let Some((deadline, _)) = self.queue.front() else { return };
        if self.armed {
            return;
        }
        // A delay of zero would disarm the timer.
        let delay = deadline.saturating_duration_since(now).max(Duration::from_nanos(1));
        match self.timer.reset(delay, None) {
            Ok(()) => self.armed = true,
            Err(error) => log::warn!("vsock: start the timer: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expire_in_order_and_only_when_over() {
        let limit = Duration::from_secs(3600);
        let mut handshakes = Handshakes::new(limit, &Poll::new().unwrap()).unwrap();
        let start = Instant::now();
        handshakes.begin(7, start);
        handshakes.begin(8, start + Duration::from_secs(1));
        handshakes.arm(start);
        assert!(handshakes.timer.is_armed().unwrap());
        assert_eq!(handshakes.next_expired(start + limit - Duration::from_nanos(1)), None);
        assert_eq!(handshakes.next_expired(start + limit), Some(7));
        assert_eq!(handshakes.next_expired(start + limit), None);
        handshakes.went_off();
        handshakes.arm(start + limit);
        assert!(handshakes.timer.is_armed().unwrap());
        assert_eq!(handshakes.next_expired(start + limit + Duration::from_secs(1)), Some(8));
        handshakes.begin(9, start + limit);
        handshakes.clear();
        assert_eq!(handshakes.next_expired(start + limit * 3), None);
    }
}
