//! The frequency of this computer's time stamp counter.
//!
//! QEMU's emulated counter is the host's own. The machine's kernel would measure its frequency against an emulated
//! timer chip and, on a busy host, give up: its clock then falls back to timer ticks, it never sleeps, and its KVM does
//! not get a single instruction of a guest done. So we measure here, where it is easy, and tell it.

use crate::{Error, Result};
use std::time::{Duration, Instant};

/// How long is measured: against it, the microsecond by which a reading can be off is nothing.
const SPAN: Duration = Duration::from_millis(30);

/// How often a pair of readings is tried at either end; the pair that took least time is taken.
const TRIES: u32 = 16;

/// A moment on both clocks.
#[derive(Debug, Clone, Copy)]
struct Moment {
    counter: u64,
    clock: Instant,
}

/// Thousands of ticks per second; `None` where there is no such counter, or it does not run evenly.
///
/// # Errors
/// [`Error::Io`] if waiting fails.
pub(super) fn frequency_khz() -> Result<Option<u64>> {
    let mut moments = Vec::with_capacity(3);
    for index in 0..3 {
        if index > 0 {
            wait()?;
        }
        moments.extend(moment());
    }
    Ok(match moments[..] {
        [begin, middle, end] => agreed(khz(begin, middle), khz(middle, end)),
        _ => None,
    })
}

/// The mean of two measurements, unless they differ by more than one in a thousand: such a counter changes its speed
/// with the CPU's and must not be relied on.
fn agreed(first: Option<u64>, second: Option<u64>) -> Option<u64> {
    let (first, second) = (first?, second?);
    let tolerance = first / 1000;
    (first.abs_diff(second) <= tolerance).then_some(first.midpoint(second))
}

fn khz(begin: Moment, end: Moment) -> Option<u64> {
    let ticks = u128::from(end.counter.checked_sub(begin.counter)?);
    let nanos = end.clock.duration_since(begin.clock).as_nanos();
    let khz = u64::try_from((ticks * 1_000_000).checked_div(nanos)?).ok()?;
    // Slower than any CPU: something that emulates the counter, badly.
    (khz > 100_000).then_some(khz)
}

/// Reads both clocks as closely together as possible.
fn moment() -> Option<Moment> {
    let mut best: Option<(Duration, Moment)> = None;
    for _ in 0..TRIES {
        let before = Instant::now();
        let counter = counter()?;
        let took = before.elapsed();
        if best.is_none_or(|(least, _)| took < least) {
            best = Some((took, Moment { counter, clock: before + took / 2 }));
        }
    }
    best.map(|(_, moment)| moment)
}

#[cfg(target_arch = "x86_64")]
#[expect(clippy::unnecessary_wraps, reason = "other architectures have none")]
#[expect(unsafe_code, reason = "UNSAFETY: an instruction that has no safe wrapper")]
fn counter() -> Option<u64> {
    // SAFETY: every x86-64 CPU has the instruction, and it only reads a register.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> Option<u64> {
    None
}

fn wait() -> Result<()> {
    let timeout = rustix::event::Timespec::try_from(SPAN).expect("the span is short");
    match rustix::event::poll(&mut [], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(Error::sys("wait")(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frequency_follows_from_two_moments() {
        let clock = Instant::now();
        let begin = Moment { counter: 1000, clock };
        let end = Moment { counter: 1000 + 125_000_000, clock: clock + Duration::from_millis(50) };
        assert_eq!(khz(begin, end), Some(2_500_000));
        assert_eq!(khz(end, begin), None, "a counter that runs backwards");
        assert_eq!(khz(begin, Moment { counter: 1001, ..end }), None, "a counter that hardly runs");
        assert_eq!(khz(begin, Moment { clock, ..end }), None);
    }

    #[test]
    fn measurements_that_disagree_are_not_believed() {
        assert_eq!(agreed(Some(2_500_000), Some(2_500_100)), Some(2_500_050));
        assert_eq!(agreed(Some(2_500_000), Some(2_600_000)), None);
        assert_eq!(agreed(None, Some(1)), None);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn this_computer_has_a_counter() {
        let (before, after) = (moment().unwrap(), moment().unwrap());
        assert!(after.counter > before.counter);
    }
}
