//! How large the machine is: from what the host has, and from what the user set.

/// Most CPUs a machine gets by default: emulation of more than that is held back by QEMU's own locks.
const MAX_DEFAULT_CPUS: u8 = 8;

/// Most memory a machine gets by default.
const MAX_DEFAULT_MEMORY_MIB: u32 = 8192;

/// Below this a box has no room beside the machine's own kernel.
const MIN_MEMORY_MIB: u32 = 512;

/// Size of a new disk. It is sparse: what counts is what is written.
const DEFAULT_DISK_MIB: u64 = 64 << 10;

/// Smallest disk that holds the base image and a box.
const MIN_DISK_MIB: u64 = 1024;

/// The size of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// CPUs.
    pub cpus: u8,
    /// Memory.
    pub memory_mib: u32,
    /// The disk, when it is made.
    pub disk_mib: u64,
}

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Not a number in the range.
    #[error("LILBOX_MACHINE_{name}: `{value}` is not a number from {min} to {max}")]
    OutOfRange {
        /// Which.
        name: &'static str,
        /// What was written.
        value: String,
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
}

/// What the user set, as written; what is absent follows the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    /// `LILBOX_MACHINE_CPUS`.
    pub cpus: Option<String>,
    /// `LILBOX_MACHINE_MEMORY`, in MiB.
    pub memory_mib: Option<String>,
    /// `LILBOX_MACHINE_DISK`, in MiB.
    pub disk_mib: Option<String>,
}

impl Settings {
    /// The size for a host with so many CPUs and so much memory.
    ///
    /// # Errors
    /// [`SettingsError`] if a wish is not a number, or not a possible one.
    pub fn choose(
        wishes: &Wishes,
        host_cpus: usize,
        host_memory_mib: u64,
    ) -> Result<Self, SettingsError> {
        let cpus = number("CPUS", wishes.cpus.as_deref(), 1, 64)?;
        let memory =
            number("MEMORY", wishes.memory_mib.as_deref(), u64::from(MIN_MEMORY_MIB), 1 << 20)?;
        let disk_mib = number("DISK", wishes.disk_mib.as_deref(), MIN_DISK_MIB, 16 << 20)?;
        let default_cpus = u8::try_from(host_cpus).unwrap_or(u8::MAX).clamp(1, MAX_DEFAULT_CPUS);
        let default_memory = u32::try_from(host_memory_mib / 2)
            .unwrap_or(u32::MAX)
            .clamp(MIN_MEMORY_MIB, MAX_DEFAULT_MEMORY_MIB);
        Ok(Self {
            cpus: cpus.and_then(|cpus| u8::try_from(cpus).ok()).unwrap_or(default_cpus),
            memory_mib: memory.and_then(|mib| u32::try_from(mib).ok()).unwrap_or(default_memory),
            disk_mib: disk_mib.unwrap_or(DEFAULT_DISK_MIB),
        })
    }

    /// The size for this host.
    ///
    /// # Errors
    /// As [`Settings::choose`].
    pub fn for_this_host(wishes: &Wishes) -> Result<Self, SettingsError> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let info = rustix::system::sysinfo();
        let memory_mib = (info.totalram.saturating_mul(u64::from(info.mem_unit))) >> 20;
        Self::choose(wishes, cpus, memory_mib)
    }
}

fn number(
    name: &'static str,
    value: Option<&str>,
    min: u64,
    max: u64,
) -> Result<Option<u64>, SettingsError> {
    let Some(text) = value else { return Ok(None) };
    match text.parse() {
        Ok(number) if (min..=max).contains(&number) => Ok(Some(number)),
        _ => Err(SettingsError::OutOfRange { name, value: text.into(), min, max }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_sets_the_size_within_limits() {
        let choose = |cpus, mib| Settings::choose(&Wishes::default(), cpus, mib).unwrap();
        assert_eq!(choose(2, 6000), Settings { cpus: 2, memory_mib: 3000, disk_mib: 64 << 10 });
        assert_eq!(
            choose(128, 1 << 20),
            Settings { cpus: 8, memory_mib: 8192, disk_mib: 64 << 10 }
        );
        assert_eq!(choose(0, 600).memory_mib, 512);
        assert_eq!(choose(0, 600).cpus, 1);
    }

    #[test]
    fn wishes_win_and_nonsense_is_refused() {
        let wishes = Wishes {
            cpus: Some("3".into()),
            memory_mib: Some("2048".into()),
            disk_mib: Some("4096".into()),
        };
        let settings = Settings::choose(&wishes, 1, 100).unwrap();
        assert_eq!(settings, Settings { cpus: 3, memory_mib: 2048, disk_mib: 4096 });
        for nonsense in ["", "0", "65", "-1", "2x"] {
            let wishes = Wishes { cpus: Some(nonsense.into()), ..Wishes::default() };
            let error = Settings::choose(&wishes, 1, 100).unwrap_err().to_string();
            assert!(error.contains("LILBOX_MACHINE_CPUS") && error.contains("1 to 64"), "{error}");
        }
    }
}
