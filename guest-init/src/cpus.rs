//! Brings the vCPUs online that the kernel did not.

use std::fs;
use std::io;

const CPU_DIRECTORY: &str = "/sys/devices/system/cpu";

/// Brings CPUs online until `wanted` are, as far as there are so many.
///
/// # Errors
/// If the kernel does not tell its CPUs or refuses one.
pub fn bring_online(wanted: u8) -> io::Result<()> {
    let wanted = usize::from(wanted);
    let online = parse_list(&fs::read_to_string(format!("{CPU_DIRECTORY}/online"))?);
    if online.len() >= wanted {
        return Ok(());
    }
    let present = parse_list(&fs::read_to_string(format!("{CPU_DIRECTORY}/present"))?);
    let offline = present.into_iter().filter(|cpu| !online.contains(cpu));
    for cpu in offline.take(wanted - online.len()) {
        fs::write(format!("{CPU_DIRECTORY}/cpu{cpu}/online"), "1")?;
    }
    Ok(())
}

/// Parses the kernel's list format, such as `0-2,5`. What is not a number is left out.
fn parse_list(text: &str) -> Vec<u32> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::parse_list;

    #[test]
    fn cpu_lists_of_the_kernel_are_understood() {
        assert_eq!(parse_list("0\n"), [0]);
        assert_eq!(parse_list("0-3\n"), [0, 1, 2, 3]);
        assert_eq!(parse_list("0-1,4,6-7"), [0, 1, 4, 6, 7]);
        assert_eq!(parse_list("\n"), []);
    }
}
