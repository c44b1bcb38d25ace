//! `lilbox-bench`: measures lilbox beside other VMMs, in one run on one host.
//!
//! Subjects take turns within each round, so that a host whose speed drifts treats them alike; the first round
//! warms caches and does not count. Where KVM is not usable everything runs inside the machine. Programs are copied
//! to a local disk first: otherwise a large one would pay for the way its file is reached, not for what it does.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that measures talks to its user and reads its environment"
)]

mod firecracker;
mod guest;
mod microsandbox;
mod ours;
mod qemu;
mod report;
mod stage;

use report::Report;
use stage::Stage;
use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

/// Memory of each guest that is measured.
const MEMORY_MIB: u32 = 512;

struct Options {
    rounds: usize,
    json: Option<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { rounds: 7, json: None };
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--rounds" => {
                options.rounds = value()?.parse().map_err(|error| format!("--rounds: {error}"))?;
            }
            "--json" => options.json = Some(value()?.into()),
            _ => {
                return Err(format!(
                    "unknown argument `{arg}`; usage: lilbox-bench [--rounds N] [--json FILE]"
                ));
            }
        }
    }
    if options.rounds < 3 { Err("--rounds: a median needs at least 3".into()) } else { Ok(options) }
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("error: {message}");
            return ExitCode::from(2);
        }
    };
    if let Some(code) = tests::place::enter() {
        return code;
    }
    let stage = Stage::new();
    let ours = ours::Ours::new(&stage);
    let qemu = qemu::Qemu::find(&stage);
    let firecracker = firecracker::Firecracker::find(&stage);
    let microsandbox = microsandbox::Microsandbox::find(&stage);
    let mut report = Report::default();
    for round in 0..=options.rounds {
        eprintln!(
            "round {round} of {}{}",
            options.rounds,
            if round == 0 { " (not counted)" } else { "" }
        );
        report.counts = round > 0;
        ours.cold_boot(&mut report);
        if let Some(qemu) = &qemu {
            qemu.cold_boot(&mut report);
        }
        if let Some(firecracker) = &firecracker {
            firecracker.cold_boot(&mut report);
        }
        ours.run_true(&mut report);
        if let Some(microsandbox) = &microsandbox {
            microsandbox.run_true(&mut report);
        }
        ours.exec_round_trip(&mut report);
    }
    print!("{report}");
    if let Some(path) = options.json {
        std::fs::write(&path, report.json()).expect("write the report");
        eprintln!("report: {}", path.display());
    }
    ExitCode::SUCCESS
}
