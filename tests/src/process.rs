//! What a process holds: memory, descriptors, threads (from `/proc`, see `proc(5)`).

use std::fs;

/// Memory mappings of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Proportional set size of guest RAM, in KiB.
    pub guest_kib: u64,
    /// Proportional set size of everything else, in KiB.
    pub own_kib: u64,
}

/// Splits the proportional set size of a VMM into guest RAM and its own memory. Guest RAM is the anonymous mapping
/// (or mappings, around the gap below 4 GiB) of at least half the box's memory each.
///
/// # Panics
/// If the process is gone, or maps no guest RAM.
#[must_use]
pub fn memory(pid: u32, memory_mib: u64) -> Memory {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("read smaps of the VMM");
    let (mut memory, mut is_guest, mut anonymous) = (Memory::default(), false, false);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let (Some(key), value) = (words.next(), words.next()) else { continue };
        match key {
            "Size:" => is_guest = anonymous && kib(value) >= memory_mib * 1024 / 4,
            "Pss:" if is_guest => memory.guest_kib += kib(value),
            "Pss:" => memory.own_kib += kib(value),
            // A mapping's first line: `start-end perms offset device inode [path]`.
            _ if !key.ends_with(':') => anonymous = line.split_whitespace().nth(4) == Some("0"),
            _ => {}
        }
    }
    assert!(memory.guest_kib > 0, "process {pid} maps no guest RAM");
    memory
}

fn kib(value: Option<&str>) -> u64 {
    value.and_then(|text| text.parse().ok()).expect("a size in smaps")
}

/// Number of open descriptors.
///
/// # Panics
/// If the process is gone.
#[must_use]
pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("list descriptors").count()
}

/// Number of threads.
///
/// # Panics
/// If the process is gone.
#[must_use]
pub fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).expect("list threads").count()
}

/// Pids of all processes whose command line holds `needle`.
///
/// # Panics
/// If `/proc` cannot be listed.
#[must_use]
pub fn with_command_line(needle: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("list /proc");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        // A process may end while we look.
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(needle)
    })
    .collect()
}
