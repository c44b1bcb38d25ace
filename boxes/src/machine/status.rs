//! What the machine is and what it costs.

use super::link::Link;
use super::record::Record;
use super::start::{is_held, look, running};
use super::{INNER_HOME, Machine, record};
use crate::machine::decide::Found;
use crate::{Error, Result};
use proto::agent::Exec;
use rustix::event::Timespec;
use serde::Serialize;
use serde_bytes::ByteBuf;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// Unit of the times in `/proc/PID/stat`: the kernel's ABI has 100 per second on every architecture that we know.
const TICKS_PER_SECOND: f64 = 100.0;

/// How long QEMU is watched to see what it costs right now.
const SAMPLE: Duration = Duration::from_millis(500);

/// The machine as `lilbox machine status` shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// `running`, `starting` or `stopped`.
    pub status: &'static str,
    /// Whether there is a machine at all: it was started before.
    pub exists: bool,
    /// Size of its disk, as boxes see it.
    pub disk_bytes: u64,
    /// What the disk takes on the host.
    pub disk_used_bytes: u64,
    /// Facts about a running machine.
    #[serde(flatten)]
    pub running: Option<Running>,
}

/// A running machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Running {
    /// QEMU.
    pub pid: u32,
    /// Port of its agent on loopback.
    pub port: u16,
    /// Its kernel.
    pub kernel: String,
    /// CPUs.
    pub cpus: u8,
    /// Memory that it may use.
    pub memory_mib: u32,
    /// Memory that it uses.
    pub memory_used_bytes: u64,
    /// How long the start took.
    pub start_ms: u64,
    /// How long ago that was.
    pub uptime_seconds: f64,
    /// Share of one CPU over its life, in percent.
    pub cpu_percent: f64,
    /// Share of one CPU while this command looked, in percent: what an idle machine costs.
    pub cpu_percent_now: f64,
    /// Boxes running in it; absent if it does not say.
    pub boxes: Option<usize>,
    /// Whether it runs another kernel or agent than this lilbox would start.
    pub outdated: bool,
}

/// What `/proc` says about a process.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Usage {
    cpu_seconds: f64,
    started_seconds: f64,
}

/// Looks at the machine.
///
/// # Errors
/// [`Error::Io`] if its files cannot be read.
pub fn status(machine: &Machine) -> Result<Status> {
    let files = &machine.files;
    let disk = files.disk().metadata().ok();
    let mut status = Status {
        status: "stopped",
        exists: disk.is_some(),
        disk_bytes: disk.as_ref().map_or(0, std::fs::Metadata::len),
        disk_used_bytes: disk.as_ref().map_or(0, |metadata| metadata.blocks().saturating_mul(512)),
        running: None,
    };
    if !is_held(machine)? {
        return Ok(status);
    }
    status.status = "starting";
    let Some(record) = running(machine)? else { return Ok(status) };
    let Some(ready) = record.ready.clone() else { return Ok(status) };
    status.status = "running";
    let wanted = record::fingerprint(&machine.install, machine.initramfs_sha256)?;
    let outdated = look(machine, &wanted)?.0 == Found::Outdated;
    // First what it costs, then what it does: asking it wakes it up.
    let (first, uptime) = (usage(record.pid)?, uptime()?);
    watch(SAMPLE)?;
    let second = usage(record.pid)?;
    let uptime_seconds = (uptime - first.started_seconds).max(0.0);
    status.running = Some(Running {
        pid: record.pid,
        port: record.port,
        kernel: ready.kernel,
        cpus: record.cpus,
        memory_mib: record.memory_mib,
        memory_used_bytes: resident_bytes(record.pid)?,
        start_ms: ready.start_ms,
        uptime_seconds,
        cpu_percent: tenths(100.0 * first.cpu_seconds / uptime_seconds.max(0.01)),
        cpu_percent_now: tenths(
            100.0 * (second.cpu_seconds - first.cpu_seconds) / SAMPLE.as_secs_f64(),
        ),
        boxes: boxes_running(machine, &record),
        outdated,
    });
    Ok(status)
}

/// Asks the lilbox inside how many boxes run. `None` if it does not say.
pub(super) fn boxes_running(machine: &Machine, record: &Record) -> Option<usize> {
    let exec = Exec {
        argv: [machine.program.as_os_str().as_bytes(), b"ls", b"--json"].map(ByteBuf::from).into(),
        env: vec![
            (ByteBuf::from("LILBOX_HOME"), ByteBuf::from(INNER_HOME)),
            (ByteBuf::from("LILBOX_MACHINE"), ByteBuf::from("never")),
        ],
        ..Exec::default()
    };
    let captured = match Link::new(record).capture(exec) {
        Ok(captured) if captured.exit.code == Some(0) => captured,
        Ok(captured) => {
            log::warn!("`lilbox ls` in the machine failed: {:?}", captured.exit);
            return None;
        }
        Err(error) => {
            log::warn!("{error}");
            return None;
        }
    };
    let boxes: Vec<serde_json::Value> = serde_json::from_slice(&captured.stdout).ok()?;
    let is_stopped =
        |entry: &&serde_json::Value| entry.get("status").is_some_and(|status| status == "stopped");
    Some(boxes.len() - boxes.iter().filter(is_stopped).count())
}

fn usage(pid: u32) -> Result<Usage> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).map_err(Error::io(format!("read {path}")))?;
    parse_usage(&text).ok_or_else(|| Error::StateInvalid {
        path: path.into(),
        cause: "it does not have the fields that Linux writes".into(),
    })
}

/// `proc_pid_stat(5)`: fields 14 and 15 are CPU time, field 22 is when the process started. The name, field 2, is in
/// parentheses and may hold anything.
fn parse_usage(text: &str) -> Option<Usage> {
    let (_, after_name) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    Some(Usage {
        cpu_seconds: (ticks(14)? + ticks(15)?) / TICKS_PER_SECOND,
        started_seconds: ticks(22)? / TICKS_PER_SECOND,
    })
}

/// Seconds since the host was booted.
fn uptime() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/uptime").map_err(Error::io("read /proc/uptime"))?;
    Ok(text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default())
}

fn resident_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/statm");
    let text = std::fs::read_to_string(&path).map_err(Error::io(format!("read {path}")))?;
    let pages: u64 =
        text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or_default();
    Ok(pages.saturating_mul(u64::try_from(rustix::param::page_size()).unwrap_or(4096)))
}

/// Lets time pass, since a rate needs two moments.
fn watch(span: Duration) -> Result<()> {
    let timeout = Timespec::try_from(span).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
    match rustix::event::poll(&mut [], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(Error::sys("wait")(errno)),
    }
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let text = "77 (a) b (c) S 1 77 77 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 4 0 12345 1 2 3\n";
        assert_eq!(parse_usage(text), Some(Usage { cpu_seconds: 3.0, started_seconds: 123.45 }));
        assert_eq!(parse_usage("77 (a) S 1"), None);
        assert!(usage(std::process::id()).is_ok());
        assert!(resident_bytes(std::process::id()).unwrap() > 0);
    }
}
