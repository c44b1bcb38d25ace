//! The wall clock, which a guest without a real-time clock learns from its host.

use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use std::io;
use std::time::Duration;

/// A clock that differs by less is left alone: the kernel read it from the hypervisor, which is more exact than a
/// time that was true when the launch began.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Time since the guest's kernel started.
pub fn uptime() -> Duration {
    duration(clock_gettime(ClockId::Boottime))
}

/// Sets the wall clock by the host's at launch, unless it is right already.
///
/// # Errors
/// If the kernel refuses the time.
pub fn set_from_launch(unix_nanos: u64) -> io::Result<()> {
    let estimate = Duration::from_nanos(unix_nanos).saturating_add(uptime());
    let current = duration(clock_gettime(ClockId::Realtime));
    if current.abs_diff(estimate) <= TOLERANCE { Ok(()) } else { set(estimate) }
}

/// Sets the wall clock to this time since 1970-01-01 UTC.
///
/// # Errors
/// If the kernel refuses the time.
pub fn set(since_epoch: Duration) -> io::Result<()> {
    let tv_sec = i64::try_from(since_epoch.as_secs()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let time = Timespec { tv_sec, tv_nsec: i64::from(since_epoch.subsec_nanos()) };
    Ok(clock_settime(ClockId::Realtime, time)?)
}

fn duration(time: Timespec) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}
