//! `lilbox stat`.

use crate::context::Context;
use crate::error::Result;
use crate::output;
use crate::values::{human_bytes, human_span};
use boxes::clock;
use boxes::list::{Details, details};
use boxes::paths::BoxFiles;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

/// Show one box in detail
#[derive(Debug, clap::Args)]
#[command(visible_alias = "inspect")]
pub struct Args {
    /// The box
    name: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub fn run(self, context: Context) -> Result<ExitCode> {
        let home = context.open()?;
        let details = details(&home, &self.name)?;
        let files = home.files(&details.record);
        if self.json {
            output::json(&to_json(&details, &files))?;
        } else {
            output::data(&to_text(&details))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn to_json(details: &Details, files: &BoxFiles) -> Value {
    let (record, vmm) = (&details.record, details.vmm.as_ref());
    let spec = &record.spec;
    json!({
        "id": record.id,
        "name": record.name,
        "status": details.status.word(),
        "image": spec.image,
        "image_digest": record.image_digest,
        "cpus": spec.cpus,
        "memory_mib": spec.memory_mib,
        "disk_mib": spec.disk_mib,
        "disk_used_bytes": details.disk_used_bytes,
        "env": spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
        "workdir": spec.workdir,
        "user": spec.user,
        "nested": spec.nested,
        "kernel_file": spec.kernel,
        "debug_boot": spec.debug_boot,
        "ephemeral": record.ephemeral,
        "created": clock::to_utc(record.created_at_ms),
        "started": record.started_at_ms.map(clock::to_utc),
        "boot_micros": record.boot_micros,
        "pid": vmm.map(|vmm| vmm.pid),
        "uptime_ms": vmm.map(|vmm| vmm.uptime_ms),
        "ready_micros": vmm.and_then(|vmm| vmm.ready_micros),
        "isolation": vmm.map(|vmm| &vmm.isolation),
        "connections": vmm.map(|vmm| vmm.connections),
        "kernel": vmm.map(|vmm| &vmm.kernel),
        "directory": files.directory,
        "agent_socket": files.agent_socket(),
        "control_socket": files.control_socket(),
    })
}

fn to_text(details: &Details) -> String {
    let (record, spec) = (&details.record, &details.record.spec);
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "{:<12} {value}", format!("{name}:"));
    };
    row("name", record.name.to_string());
    row("status", details.status.to_string());
    row("id", record.id.to_string());
    row("image", spec.image.clone());
    row("cpus", spec.cpus.to_string());
    row("memory", human_bytes(u64::from(spec.memory_mib) << 20));
    let disk = u64::from(spec.disk_mib) << 20;
    row("disk", format!("{} used of {}", human_bytes(details.disk_used_bytes), human_bytes(disk)));
    row("created", clock::to_utc(record.created_at_ms));
    if let Some(vmm) = &details.vmm {
        row("pid", vmm.pid.to_string());
        row("uptime", human_span(Duration::from_millis(vmm.uptime_ms)));
        row("kernel", vmm.kernel.clone());
        row(
            "isolation",
            if vmm.isolation.is_empty() { "none".into() } else { vmm.isolation.join(", ") },
        );
    }
    if let Some(micros) = record.boot_micros {
        row("boot", format!("{}.{} ms", micros / 1000, micros % 1000 / 100));
    }
    for (name, value) in &spec.env {
        row("env", format!("{name}={value}"));
    }
    for (name, value) in [("workdir", &spec.workdir), ("user", &spec.user)] {
        if let Some(value) = value {
            row(name, value.clone());
        }
    }
    text
}
