//! `lilbox ls`.

use crate::context::Context;
use crate::error::Result;
use crate::output::{self, Table};
use crate::values::{human_bytes, human_span};
use boxes::clock;
use boxes::list::{Listed, list};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// List boxes
#[derive(Debug, clap::Args)]
#[command(visible_alias = "list")]
pub struct Args {
    /// Print JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
    /// Print names only
    #[arg(short, long)]
    quiet: bool,
}

impl Args {
    /// Whether nothing is to be shown of what takes long.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Runs the command.
    pub fn run(self, context: Context) -> Result<ExitCode> {
        let boxes = list(&context.open()?)?;
        if self.json {
            let rows: Vec<Value> = boxes.iter().map(to_json).collect();
            output::json(&rows)?;
        } else if self.quiet {
            output::data(
                &boxes.iter().map(|listed| format!("{}\n", listed.record.name)).collect::<String>(),
            )?;
        } else if boxes.is_empty() {
            output::hint("no boxes; `lilbox new` makes one");
        } else {
            output::data(&table(&boxes, clock::unix_millis()).to_string())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// One box in the list's JSON.
fn to_json(listed: &Listed) -> Value {
    let record = &listed.record;
    json!({
        "id": record.id,
        "name": record.name,
        "status": listed.status.word(),
        "image": record.spec.image,
        "cpus": record.spec.cpus,
        "memory_mib": record.spec.memory_mib,
        "disk_mib": record.spec.disk_mib,
        "ephemeral": record.ephemeral,
        "created": clock::to_utc(record.created_at_ms),
    })
}

fn table(boxes: &[Listed], now_ms: i64) -> Table {
    let mut table = Table::new(&["NAME", "STATUS", "IMAGE", "CPUS", "MEMORY", "CREATED"]);
    for Listed { record, status } in boxes {
        let age = u64::try_from(now_ms.saturating_sub(record.created_at_ms)).unwrap_or_default();
        table.row(vec![
            record.name.to_string(),
            status.to_string(),
            record.spec.image.clone(),
            record.spec.cpus.to_string(),
            human_bytes(u64::from(record.spec.memory_mib) << 20),
            format!("{} ago", human_span(Duration::from_millis(age))),
        ]);
    }
    table
}
