//! `lilbox machine …`.

use super::options::Quiet;
use crate::attach::Interaction;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::progress::Progress;
use crate::{machine_passthrough, output};
use boxes::machine::{self, Running, Status};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

/// Manage the emulated Linux host that lilbox brings along for computers whose KVM cannot run boxes
///
/// It starts by itself when it is needed. LILBOX_MACHINE says when that is: `auto` (where KVM cannot run boxes),
/// `never` or `always`. LILBOX_MACHINE_CPUS, LILBOX_MACHINE_MEMORY and LILBOX_MACHINE_DISK (both in MiB) size it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show whether it runs and what it costs
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Start it
    Start {
        #[command(flatten)]
        quiet: Quiet,
    },
    /// Stop it, and all boxes in it
    Stop {
        /// Seconds that programs in it have to end by themselves
        #[arg(long, short, value_name = "SECONDS", default_value_t = 10)]
        time: u32,
        #[command(flatten)]
        quiet: Quiet,
    },
    /// Delete it, and all boxes and images in it
    Rm {
        /// Stop it first if it is running
        #[arg(long, short)]
        force: bool,
    },
    /// Run a program of this computer inside it, as root
    Exec {
        /// Program and arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
}

impl Args {
    /// Whether the exit code is that of a program inside.
    pub fn runs_command(&self) -> bool {
        matches!(self.action, Action::Exec { .. })
    }

    /// Runs the command.
    pub fn run(self, context: Context) -> Result<ExitCode> {
        let machine = machine_passthrough::machine(&context)?;
        match self.action {
            Action::Status { json } => {
                let status = machine::status(&machine)?;
                if json {
                    output::json(&status)?;
                } else {
                    output::data(&to_text(&status))?;
                }
            }
            Action::Start { quiet } => {
                machine_passthrough::find(&context, &machine, None, quiet.quiet)?;
            }
            Action::Stop { time, quiet } => {
                let _progress = Progress::begin("stopping the machine…", quiet.quiet);
                machine::stop(&machine, Duration::from_secs(time.into()))?;
            }
            Action::Rm { force } => {
                if !force && machine::status(&machine)?.status != "stopped" {
                    return Err(CliError::Usage(
                        "the machine is running: stop it first with `lilbox machine stop`, or use --force".into(),
                    ));
                }
                machine::remove(&machine, Duration::from_secs(2))?;
            }
            Action::Exec { command } => {
                let record = machine_passthrough::find(&context, &machine, None, false)?;
                let interaction = Interaction::default();
                return machine_passthrough::run_inside(&machine, &record, command, interaction);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn to_text(status: &Status) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<10} {value}");
    };
    let Some(running) = &status.running else {
        row("status", status.status.into());
        if status.exists {
            row("disk", disk(status));
        }
        return text;
    };
    let Running { pid, port, kernel, cpus, memory_mib, outdated, .. } = running;
    row("status", format!("running (pid {pid}, port {port} of 127.0.0.1)"));
    row(
        "uptime",
        format!("{}, started in {:.1} s", span(running.uptime_seconds), seconds(running.start_ms)),
    );
    row(
        "cost",
        format!(
            "{}% of a CPU now, {}% since its start, {} of memory",
            running.cpu_percent_now,
            running.cpu_percent,
            size(running.memory_used_bytes)
        ),
    );
    row("size", format!("{cpus} CPUs, up to {} of memory", size(u64::from(*memory_mib) << 20)));
    row("disk", disk(status));
    row(
        "boxes",
        running.boxes.map_or("it does not say".into(), |count| format!("{count} running")),
    );
    row(
        "kernel",
        if *outdated { format!("{kernel} (of another version of lilbox)") } else { kernel.clone() },
    );
    text
}

fn disk(status: &Status) -> String {
    format!("{} used of {}", size(status.disk_used_bytes), size(status.disk_bytes))
}

/// Bytes for people.
#[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.0} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}

#[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
fn seconds(millis: u64) -> f64 {
    millis as f64 / 1000.0
}

/// A span of time for people.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an uptime is positive and short"
)]
fn span(seconds: f64) -> String {
    match seconds as u64 {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds @ 3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        seconds => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_sizes_are_for_people() {
        assert_eq!(span(59.9), "59 s");
        assert_eq!(span(3599.0), "59 min 59 s");
        assert_eq!(span(90_061.0), "1 d 1 h");
        assert_eq!(size(300 << 20), "300 MiB");
        assert_eq!(size(64 << 30), "64.0 GiB");
    }

    #[test]
    fn json_is_flat_and_a_stopped_machine_has_no_costs() {
        let stopped = Status {
            status: "stopped",
            exists: true,
            disk_bytes: 1,
            disk_used_bytes: 0,
            running: None,
        };
        let json = serde_json::to_value(&stopped).unwrap();
        assert_eq!(json["status"], "stopped");
        assert!(json.get("pid").is_none());
        let running = Running {
            pid: 7,
            port: 41217,
            kernel: "6.12".into(),
            cpus: 2,
            memory_mib: 2048,
            memory_used_bytes: 300 << 20,
            start_ms: 2400,
            uptime_seconds: 61.0,
            cpu_percent: 3.0,
            cpu_percent_now: 0.4,
            boxes: Some(1),
            outdated: false,
        };
        let status = Status { status: "running", running: Some(running), ..stopped };
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!((&json["pid"], &json["status"]), (&7.into(), &"running".into()));
        let text = to_text(&status);
        assert!(text.contains("started in 2.4 s") && text.contains("0.4% of a CPU now"), "{text}");
    }
}
