//! Settings of a new box: what the user asked for, completed with defaults. One pure function.

use crate::{BoxSpec, Error, Result, image};
use proto::spec::{MAX_CPUS, MIN_MEMORY_MIB};
use std::path::PathBuf;

/// vCPUs of a box whose user asked for no number.
const DEFAULT_CPUS: u8 = 1;

/// Memory of a box whose user asked for no size, in MiB.
const DEFAULT_MEMORY_MIB: u32 = 512;

/// Writable disk of a box whose user asked for no size, in MiB. It takes only the space that is written to.
const DEFAULT_DISK_MIB: u32 = 4096;

/// Least size of a writable disk: an ext4 with a journal and room for something.
pub const MIN_DISK_MIB: u32 = 64;

/// Most memory a box may have: what fits below the devices of a guest with 46-bit physical addresses, by far.
const MAX_MEMORY_MIB: u32 = 32 << 20;

/// What the user asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Image.
    pub image: Option<String>,
    /// vCPUs.
    pub cpus: Option<u8>,
    /// Memory in MiB.
    pub memory_mib: Option<u32>,
    /// Writable disk in MiB.
    pub disk_mib: Option<u32>,
    /// Environment.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub workdir: Option<String>,
    /// User.
    pub user: Option<String>,
    /// Whether the guest may run virtual machines.
    pub nested: bool,
    /// Kernel.
    pub kernel: Option<PathBuf>,
    /// Whether the guest's kernel writes all its messages to a serial port.
    pub debug_boot: bool,
}

/// Completes the settings.
///
/// # Errors
/// [`Error::InvalidValue`] if a value is out of range.
pub fn resolve(options: &Options) -> Result<BoxSpec> {
    let invalid = |what: &str, cause: String| Err(Error::InvalidValue { what: what.into(), cause });
    let cpus = options.cpus.unwrap_or(DEFAULT_CPUS);
    if !(1..=MAX_CPUS).contains(&cpus) {
        return invalid("cpus", format!("{cpus} is not between 1 and {MAX_CPUS}"));
    }
    let memory_mib = options.memory_mib.unwrap_or(DEFAULT_MEMORY_MIB);
    if !(MIN_MEMORY_MIB..=MAX_MEMORY_MIB).contains(&memory_mib) {
        return invalid(
            "memory",
            format!("{memory_mib} MiB is not between {MIN_MEMORY_MIB} and {MAX_MEMORY_MIB} MiB"),
        );
    }
    let disk_mib = options.disk_mib.unwrap_or(DEFAULT_DISK_MIB);
    if disk_mib < MIN_DISK_MIB {
        return invalid("disk", format!("{disk_mib} MiB is less than {MIN_DISK_MIB} MiB"));
    }
    if let Some((name, _)) =
        options.env.iter().find(|(name, _)| name.is_empty() || name.contains(['=', '\0']))
    {
        return invalid("environment", format!("`{name}` is not the name of a variable"));
    }
    if let Some(workdir) = options.workdir.as_deref().filter(|path| !path.starts_with('/')) {
        return invalid("workdir", format!("`{workdir}` is not an absolute path"));
    }
    if let Some(kernel) = options.kernel.as_deref().filter(|path| path.to_str().is_none()) {
        return Err(Error::not_utf8("kernel", kernel));
    }
    Ok(BoxSpec {
        image: options.image.clone().unwrap_or_else(|| image::BASE.into()),
        cpus,
        memory_mib,
        disk_mib,
        env: options.env.clone(),
        workdir: options.workdir.clone(),
        user: options.user.clone(),
        nested: options.nested,
        kernel: options.kernel.clone(),
        debug_boot: options.debug_boot,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn nothing_asked_for_gives_the_defaults() {
        let spec = resolve(&Options::default()).unwrap();
        assert_eq!((spec.cpus, spec.memory_mib, spec.disk_mib), (1, 512, 4096));
        assert_eq!(spec.image, "lilbox/base");
        assert!(!spec.nested && !spec.debug_boot && spec.env.is_empty());
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let options = Options::default;
        for bad in [
            Options { cpus: Some(0), ..options() },
            Options { cpus: Some(MAX_CPUS + 1), ..options() },
            Options { memory_mib: Some(MIN_MEMORY_MIB - 1), ..options() },
            Options { memory_mib: Some(u32::MAX), ..options() },
            Options { disk_mib: Some(1), ..options() },
            Options { env: vec![("".into(), "x".into())], ..options() },
            Options { workdir: Some("relative".into()), ..options() },
            Options { kernel: Some(OsStr::from_bytes(b"/k\xff").into()), ..options() },
        ] {
            assert!(matches!(resolve(&bad), Err(Error::InvalidValue { .. })), "{bad:?}");
        }
        let good = Options { cpus: Some(MAX_CPUS), memory_mib: Some(MIN_MEMORY_MIB), ..options() };
        assert!(resolve(&good).is_ok());
    }
}
