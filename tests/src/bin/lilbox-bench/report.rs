//! Samples, medians and ratios.

use std::collections::BTreeMap;
use std::fmt;

/// Our own name in reports.
pub const OURS: &str = "lilbox";

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Row {
    /// Spawn of the VMM until guest-init is ready.
    ColdBoot,
    /// `run -- true`, start to exit, cold.
    RunTrue,
    /// `exec -- true` in a running box, start to exit of the client.
    ExecRoundTrip,
    /// The VMM's proportional set size without guest RAM, after boot.
    OwnMemory,
}

impl Row {
    fn title(self) -> &'static str {
        match self {
            Self::ColdBoot => "cold boot: spawn -> ready",
            Self::RunTrue => "run -- true, cold: start -> exit",
            Self::ExecRoundTrip => "exec -- true: start -> exit",
            Self::OwnMemory => "VMM memory beyond guest RAM",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::ColdBoot => "cold_boot",
            Self::RunTrue => "run_true_cold",
            Self::ExecRoundTrip => "exec_round_trip",
            Self::OwnMemory => "vmm_own_memory",
        }
    }

    fn unit(self) -> &'static str {
        if self == Self::OwnMemory { "KiB" } else { "ms" }
    }
}

/// All samples of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Whether samples count (the first round does not).
    pub counts: bool,
    samples: BTreeMap<(Row, &'static str), Vec<f64>>,
}

#[derive(Debug, Clone, Copy)]
struct Summary {
    median: f64,
    min: f64,
    max: f64,
    count: usize,
}

impl Report {
    /// Adds a sample.
    pub fn add(&mut self, row: Row, subject: &'static str, value: f64) {
        if self.counts {
            self.samples.entry((row, subject)).or_default().push(value);
        }
    }

    fn summaries(&self) -> impl Iterator<Item = (Row, &'static str, Summary)> {
        self.samples.iter().map(|((row, subject), samples)| (*row, *subject, Summary::of(samples)))
    }

    /// Our median over the subject's, if both were measured.
    fn ratio(&self, row: Row, subject: &str, median: f64) -> Option<f64> {
        let ours = self.samples.get(&(row, OURS)).filter(|_| subject != OURS)?;
        Some(Summary::of(ours).median / median)
    }

    /// The report for programs: milliseconds and KiB, one object per row and subject.
    #[must_use]
    pub fn json(&self) -> String {
        let rows: Vec<serde_json::Value> = self
            .summaries()
            .map(|(row, subject, summary)| {
                serde_json::json!({
                    "row": row.key(), "unit": row.unit(), "subject": subject,
                    "median": summary.median, "min": summary.min, "max": summary.max, "runs": summary.count,
                    "lilbox_ratio": self.ratio(row, subject, summary.median),
                    "samples": self.samples[&(row, subject)],
                })
            })
            .collect();
        serde_json::to_string_pretty(&rows).expect("numbers and words") + "\n"
    }
}

impl Summary {
    fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (half, count) = (sorted.len() / 2, sorted.len());
        let median = if count.is_multiple_of(2) {
            f64::midpoint(sorted[half - 1], sorted[half])
        } else {
            sorted[half]
        };
        Self { median, min: sorted[0], max: sorted[count - 1], count }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<34} {:<14} {:>10} {:>10} {:>10}  {:<4} {:>4}  lilbox is",
            "what", "subject", "median", "min", "max", "unit", "runs"
        )?;
        for (row, subject, Summary { median, min, max, count }) in self.summaries() {
            let ratio = self.ratio(row, subject, median).map(|ratio| format!("{ratio:.2} x"));
            writeln!(
                f,
                "{:<34} {subject:<14} {median:>10.1} {min:>10.1} {max:>10.1}  {:<4} {count:>4}  {}",
                row.title(),
                row.unit(),
                ratio.unwrap_or_default()
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios() {
        let mut report = Report::default();
        report.add(Row::ColdBoot, OURS, 1000.0); // the round that does not count
        report.counts = true;
        for value in [3.0, 1.0, 2.0] {
            report.add(Row::ColdBoot, OURS, value);
            report.add(Row::ColdBoot, "qemu", value * 2.0);
        }
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json[0]["median"], 2.0);
        assert_eq!((&json[1]["median"], &json[1]["lilbox_ratio"]), (&4.0.into(), &0.5.into()));
        assert!(report.to_string().contains("0.50 x"));
    }
}
