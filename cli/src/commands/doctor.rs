//! `lilbox doctor`.

use crate::context::Context;
use crate::error::Result;
use crate::output;
use anstyle::{AnsiColor, Style};
use boxes::doctor::{Check, Grade, Report, examine};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::ExitCode;

/// Find out whether boxes can run here, and what to do if not
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub fn run(self, context: Context) -> Result<ExitCode> {
        let report = examine(&context.dirs, &context.install, context.search_path.as_deref());
        if self.json {
            output::json(&to_json(&report))?;
        } else {
            output::coloured(&to_text(&report))?;
        }
        let failed = report.checks.iter().any(|check| check.grade == Grade::Fail);
        Ok(ExitCode::from(u8::from(failed)))
    }
}

fn to_json(report: &Report) -> Value {
    let check = |check: &Check| json!({ "name": check.name, "status": check.grade.word(), "detail": check.detail, "fix": check.fix });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ok": report.checks.iter().all(|check| check.grade != Grade::Fail),
        "kvm": { "usable": report.kvm.reason().is_none(), "reason": report.kvm.reason() },
        "checks": report.checks.iter().map(check).collect::<Vec<_>>(),
    })
}

fn to_text(report: &Report) -> String {
    let mut text = String::new();
    for check in &report.checks {
        let colour = match check.grade {
            Grade::Ok => AnsiColor::Green,
            Grade::Warn => AnsiColor::Yellow,
            Grade::Fail => AnsiColor::Red,
        };
        let style = Style::new().fg_color(Some(colour.into()));
        let _ = writeln!(
            text,
            "{style}{:<4}{style:#}  {:<9} {}",
            check.grade.word(),
            check.name,
            check.detail
        );
        if let Some(fix) = &check.fix {
            let _ = writeln!(text, "{:16} fix: {fix}", "");
        }
    }
    text
}
