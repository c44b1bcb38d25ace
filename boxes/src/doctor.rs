//! Examines whether boxes can run here, and says what to do where not.

use crate::install::Install;
use crate::paths::Dirs;
use crate::probe::{Verdict, probe_now};
use crate::store::Store;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// QEMU, which runs the machine.
const QEMU: &str = "qemu-system-x86_64";

/// Free space below which boxes soon fail to write.
const LITTLE_SPACE_MIB: u64 = 2 << 10;

/// Free memory below which a box of the default size does not fit.
const LITTLE_MEMORY_MIB: u64 = 768;

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grade {
    /// As it should be.
    Ok,
    /// Boxes run, but not as well as they could.
    Warn,
    /// Boxes do not run.
    Fail,
}

impl Grade {
    /// One word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// How it is.
    pub grade: Grade,
    /// What was found.
    pub detail: String,
    /// What to do about it.
    pub fix: Option<String>,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What KVM can do.
    pub kvm: Verdict,
    /// Everything else, and KVM.
    pub checks: Vec<Check>,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, grade: Grade::Ok, detail: detail.into(), fix: None }
    }

    fn warn(name: &'static str, detail: impl Into<String>, fix: &str) -> Self {
        Self { name, grade: Grade::Warn, detail: detail.into(), fix: Some(fix.into()) }
    }

    fn fail(name: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, grade: Grade::Fail, detail: detail.into(), fix: Some(fix.into()) }
    }
}

/// Looks at everything. `search_path` is where programs are searched.
#[must_use]
pub fn examine(dirs: &Dirs, install: &Install, search_path: Option<&OsStr>) -> Report {
    // Without the cache: whoever asks the doctor has just changed something.
    let kvm = probe_now(&install.kvm);
    let qemu = find_program(QEMU, search_path);
    let checks = vec![
        check_kvm(&kvm, &install.kvm, qemu.is_some()),
        check_machine(&kvm, qemu.as_deref()),
        check_install(install),
        check_state(dirs),
        check_space(dirs),
        check_memory(&read("/proc/meminfo")),
        check_huge_pages(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
        check_landlock(&read("/sys/kernel/security/lsm")),
        check_namespaces(
            &read("/proc/sys/user/max_user_namespaces"),
            &read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        ),
    ];
    Report { kvm, checks }
}

/// A file of the kernel's; empty where this kernel does not have it.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn find_program(name: &str, search_path: Option<&OsStr>) -> Option<PathBuf> {
    std::env::split_paths(search_path?)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

fn check_kvm(verdict: &Verdict, device: &Path, has_machine: bool) -> Check {
    let Some(reason) = verdict.reason() else {
        return Check::ok("kvm", format!("{} runs boxes", device.display()));
    };
    let fix = match verdict {
        Verdict::Denied => {
            "add yourself to the group `kvm` and log in again: sudo usermod -aG kvm $USER"
        }
        _ => {
            "enable virtualisation in the firmware, or nested virtualisation where this is a virtual machine"
        }
    };
    if has_machine {
        let detail =
            format!("boxes run in an emulated machine, slowly, because of this computer: {reason}");
        return Check::warn("kvm", detail, fix);
    }
    Check::fail("kvm", format!("boxes cannot run on this computer: {reason}"), fix)
}

fn check_machine(kvm: &Verdict, qemu: Option<&Path>) -> Check {
    match (qemu, kvm.reason().is_none()) {
        (Some(path), true) => {
            Check::ok("machine", format!("not needed; {} is there", path.display()))
        }
        (Some(path), false) => {
            Check::ok("machine", format!("{} emulates what is missing", path.display()))
        }
        (None, true) => Check::ok("machine", "not needed"),
        (None, false) => Check::fail(
            "machine",
            format!("{QEMU} is not installed, so lilbox cannot bring its own machine either"),
            "sudo apt-get install qemu-system-x86",
        ),
    }
}

fn check_install(install: &Install) -> Check {
    match install.check() {
        Ok(()) => {
            Check::ok("install", format!("all files are there, in {}", install.share.display()))
        }
        Err(error) => Check::fail("install", error.to_string(), error.hint().unwrap_or_default()),
    }
}

fn check_state(dirs: &Dirs) -> Check {
    let opened = dirs
        .create()
        .and_then(|()| Store::open(&dirs.database()))
        .and_then(|store| store.version());
    match opened {
        Ok(version) => {
            Check::ok("state", format!("version {version}, in {}", dirs.state.display()))
        }
        Err(error) => {
            let fix = error.hint().unwrap_or_else(|| format!("look at {}", dirs.state.display()));
            let cause = std::error::Error::source(&error)
                .map(|source| format!(": {source}"))
                .unwrap_or_default();
            Check::fail("state", format!("{error}{cause}"), fix)
        }
    }
}

fn check_space(dirs: &Dirs) -> Check {
    let existing = dirs.data.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    match rustix::fs::statvfs(existing) {
        Ok(stat) => {
            let free_mib = stat.f_bavail.saturating_mul(stat.f_frsize) >> 20;
            let detail = format!("{free_mib} MiB free in {}", dirs.data.display());
            if free_mib < LITTLE_SPACE_MIB {
                return Check::warn(
                    "disk",
                    detail,
                    "free some space, or move LILBOX_HOME to a larger disk",
                );
            }
            Check::ok("disk", detail)
        }
        Err(errno) => Check::warn(
            "disk",
            format!("cannot look at {}: {errno}", existing.display()),
            "check the disk",
        ),
    }
}

fn check_memory(meminfo: &str) -> Check {
    let available = meminfo.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    match available.map(|kib| kib >> 10) {
        Some(mib) if mib < LITTLE_MEMORY_MIB => Check::warn(
            "memory",
            format!("{mib} MiB available"),
            "end other programs, or use --memory 256M",
        ),
        Some(mib) => Check::ok("memory", format!("{mib} MiB available")),
        None => {
            Check::warn("memory", "the kernel does not say how much is available", "mount /proc")
        }
    }
}

fn check_huge_pages(enabled: &str) -> Check {
    let chosen = enabled
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map(|(chosen, _)| chosen);
    let fix = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled";
    match chosen {
        Some(chosen @ ("always" | "madvise")) => {
            Check::ok("hugepages", format!("transparent huge pages: {chosen}"))
        }
        Some(chosen) => Check::warn(
            "hugepages",
            format!("transparent huge pages: {chosen}; boxes are slower"),
            fix,
        ),
        None => Check::warn(
            "hugepages",
            "this kernel has no transparent huge pages; boxes are slower",
            "use another kernel",
        ),
    }
}

fn check_landlock(lsm: &str) -> Check {
    if lsm.split(',').any(|name| name.trim() == "landlock") {
        return Check::ok("landlock", "VMMs are confined to the files they were given");
    }
    let detail = if lsm.is_empty() {
        "cannot tell whether this kernel has it"
    } else {
        "not enabled in this kernel"
    };
    Check::warn(
        "landlock",
        format!("{detail}; VMMs have one layer of isolation less"),
        "boot with lsm=landlock,… (see /sys/kernel/security/lsm)",
    )
}

fn check_namespaces(most: &str, restricted: &str) -> Check {
    let fix = "sudo sysctl user.max_user_namespaces=10000";
    match most.trim().parse::<u64>() {
        Ok(0) | Err(_) => Check::warn(
            "userns",
            "user namespaces are off; VMMs have one layer of isolation less",
            fix,
        ),
        Ok(_) if restricted.trim() == "1" => Check::warn(
            "userns",
            "AppArmor restricts user namespaces; VMMs have one layer of isolation less",
            "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for lilbox-vmm",
        ),
        Ok(_) => Check::ok("userns", "user namespaces are available"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_is_a_failure_only_without_a_machine() {
        let device = Path::new("/dev/kvm");
        assert_eq!(check_kvm(&Verdict::Usable, device, false).grade, Grade::Ok);
        assert_eq!(check_kvm(&Verdict::Missing, device, true).grade, Grade::Warn);
        assert_eq!(check_kvm(&Verdict::Denied, device, false).grade, Grade::Fail);
        assert_eq!(check_machine(&Verdict::Missing, None).grade, Grade::Fail);
        assert_eq!(check_machine(&Verdict::Usable, None).grade, Grade::Ok);
    }

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert_eq!(check_huge_pages("always [madvise] never\n").grade, Grade::Ok);
        assert_eq!(check_huge_pages("always madvise [never]\n").grade, Grade::Warn);
        assert_eq!(check_huge_pages("").grade, Grade::Warn);
        assert_eq!(check_landlock("lockdown,capability,landlock,yama\n").grade, Grade::Ok);
        assert_eq!(check_landlock("capability,nolandlock").grade, Grade::Warn);
        assert_eq!(check_namespaces("15000\n", "").grade, Grade::Ok);
        assert_eq!(check_namespaces("15000\n", "1\n").grade, Grade::Warn);
        assert_eq!(check_namespaces("0\n", "").grade, Grade::Warn);
        assert_eq!(
            check_memory("MemTotal: 1 kB\nMemAvailable:    4194304 kB\n").detail,
            "4096 MiB available"
        );
        assert_eq!(check_memory("MemAvailable: 1024 kB\n").grade, Grade::Warn);
    }
}
