//! Options of commands that make a box.

use crate::error::{CliError, Result};
use crate::values::{environment, mebibytes};
use boxes::{BoxSpec, spec};
use std::path::PathBuf;

/// Whether the user wants to see what takes long.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Quiet {
    /// Do not show on the terminal what is being done
    #[arg(short, long)]
    pub quiet: bool,
}

/// What the box is to be.
#[derive(Debug, Clone, clap::Args)]
pub struct BoxOptions {
    /// Image: a tag from `lilbox image ls`, or a path (beginning with /, ./ or ../) to a directory, a tar archive or a
    /// file system image
    #[arg(long, value_name = "IMAGE", default_value = boxes::image::BASE)]
    image: String,
    /// Number of virtual CPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(proto::spec::MAX_CPUS)))]
    cpus: Option<u8>,
    /// Memory, such as 512M or 2G [default: 512M]
    #[arg(short, long, value_name = "SIZE", value_parser = mebibytes)]
    memory: Option<u32>,
    /// Size of the writable disk, such as 4G; it takes only the space that is written to [default: 4G]
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    disk: Option<u32>,
    /// Set an environment variable; without a value, to the one it has here
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", value_parser = environment)]
    env: Vec<(String, String)>,
    /// Working directory of commands
    #[arg(short, long, value_name = "PATH")]
    workdir: Option<String>,
    /// User of commands: name or number, with an optional :group
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Let the box run virtual machines itself
    #[arg(long)]
    nested: bool,
    /// Boot this uncompressed ELF vmlinux instead of lilbox's kernel
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Let the guest's kernel write all its messages to the console log; slows the boot
    #[arg(long)]
    debug_boot: bool,
    #[command(flatten)]
    quiet: Quiet,
}

impl BoxOptions {
    /// Whether nothing is to be shown of what takes long.
    pub fn is_quiet(&self) -> bool {
        self.quiet.quiet
    }

    /// The complete settings.
    pub fn spec(self) -> Result<BoxSpec> {
        let kernel = self.kernel.map(|path| std::path::absolute(&path).unwrap_or(path));
        let options = spec::Options {
            image: Some(self.image),
            cpus: self.cpus,
            memory_mib: self.memory,
            disk_mib: self.disk,
            env: self.env,
            workdir: self.workdir,
            user: self.user,
            nested: self.nested,
            kernel,
            debug_boot: self.debug_boot,
        };
        // What is out of range was typed wrong.
        spec::resolve(&options).map_err(|error| CliError::Usage(error.to_string()))
    }
}
