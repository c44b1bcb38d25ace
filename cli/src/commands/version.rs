//! `lilbox version`.

use crate::error::Result;
use crate::output;
use proto::version::{AGENT_PROTOCOL, CONTROL_PROTOCOL, LAUNCH_PROTOCOL};
use std::process::ExitCode;

/// Show the versions of lilbox and of its protocols
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub fn run(self) -> Result<ExitCode> {
        let version = env!("CARGO_PKG_VERSION");
        output::data(&if self.json {
            let value = serde_json::json!({
                "version": version,
                "protocols": { "agent": AGENT_PROTOCOL, "control": CONTROL_PROTOCOL, "launch": LAUNCH_PROTOCOL },
            });
            format!("{value}\n")
        } else {
            format!(
                "lilbox {version} (protocols: agent {AGENT_PROTOCOL}, control {CONTROL_PROTOCOL}, launch {LAUNCH_PROTOCOL})\n"
            )
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
