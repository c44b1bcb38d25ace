//! `lilbox image …`.

use super::options::Quiet;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::output::{self, Table};
use crate::progress::Progress;
use crate::values::human_bytes;
use boxes::clock;
use boxes::image::{self, Listed, Source};
use boxes::progress::Step;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Manage images
#[derive(Debug, clap::Args)]
#[command(visible_alias = "images")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List images
    #[command(visible_alias = "list")]
    Ls {
        /// Print JSON
        #[arg(long, conflicts_with = "quiet")]
        json: bool,
        /// Print tags only
        #[arg(short, long)]
        quiet: bool,
    },
    /// Make an image of a root file system
    #[command(after_help = "Examples:
  lilbox image import rootfs.tar --tag mine:1
  docker export CONTAINER | lilbox image import - --tag mine:1
  lilbox image import ./rootfs --tag mine:1")]
    Import {
        /// A tar archive (not compressed), a directory, or - for an archive on standard input
        #[arg(value_name = "FILE")]
        source: PathBuf,
        /// What the image is to be called
        #[arg(short, long, value_parser = image::parse_tag)]
        tag: String,
        #[command(flatten)]
        quiet: Quiet,
    },
    /// Remove images; boxes made from them keep theirs
    Rm {
        /// Their tags
        #[arg(required = true, value_name = "TAG")]
        tags: Vec<String>,
    },
}

impl Args {
    /// Whether nothing is to be shown of what takes long.
    pub fn is_quiet(&self) -> bool {
        match &self.action {
            Action::Ls { quiet, .. } => *quiet,
            Action::Import { quiet, .. } => quiet.quiet,
            Action::Rm { .. } => false,
        }
    }

    /// Runs the command.
    pub fn run(self, context: Context) -> Result<ExitCode> {
        let home = context.open()?;
        match self.action {
            Action::Ls { json, quiet } => {
                let images = image::list(&home)?;
                if json {
                    output::json(&images.iter().map(to_json).collect::<Vec<_>>())?;
                } else if quiet {
                    output::data(
                        &images.iter().map(|image| format!("{}\n", image.tag)).collect::<String>(),
                    )?;
                } else {
                    let mut table = Table::new(&["TAG", "SIZE", "DIGEST"]);
                    for image in &images {
                        let digest = image.digest.chars().take(24).collect();
                        table.row(vec![image.tag.clone(), human_bytes(image.size_bytes), digest]);
                    }
                    output::data(&table.to_string())?;
                }
            }
            Action::Import { source, tag, quiet } => {
                import(&home, &source, &tag, quiet)?;
                output::data(&format!("{tag}\n"))?;
            }
            Action::Rm { tags } => {
                for tag in tags {
                    image::remove(&home, &tag)?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn import(home: &boxes::home::Home, source: &Path, tag: &str, quiet: Quiet) -> Result<()> {
    let progress = Progress::begin("importing image…", quiet.quiet);
    let mut tell = |step: Step<'_>| progress.step(step);
    let config = image::ImageConfig::default();
    let name = source.display().to_string();
    if source.is_dir() {
        image::import(home, Source::Directory(source), tag, &name, config, &mut tell)?;
        return Ok(());
    }
    let mut archive: Box<dyn Read> = if source == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(File::open(source).map_err(CliError::io(format!("open {name}")))?)
    };
    image::import(home, Source::Tar(&mut archive), tag, &name, config, &mut tell)?;
    Ok(())
}

fn to_json(image: &Listed) -> Value {
    json!({
        "tag": image.tag,
        "digest": image.digest,
        "size_bytes": image.size_bytes,
        "path": image.path,
        "created": image.created_at_ms.map(clock::to_utc),
    })
}
