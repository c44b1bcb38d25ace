//! The guest's `/etc/resolv.conf`, from the host's.

use std::net::IpAddr;
use std::path::Path;

/// Where hosts keep theirs. With systemd-resolved the first only names its stub on the host's loopback, and the second
/// the real servers.
const FILES: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

/// Longest file that is believed to be one.
const MAX_BYTES: usize = 16 << 10;

/// Content for the guest; `None` if the host has no server that a guest could reach.
#[must_use]
pub fn for_guest() -> Option<String> {
    FILES.iter().find_map(|path| filter(&std::fs::read_to_string(Path::new(path)).ok()?))
}

/// Keeps the lines that mean the same in a guest: its loopback is not the host's, and comments are nobody's business.
fn filter(text: &str) -> Option<String> {
    if text.len() > MAX_BYTES {
        return None;
    }
    let reachable = |address: &str| {
        let address = address.split('%').next().unwrap_or_default();
        address
            .parse::<IpAddr>()
            .is_ok_and(|address| !address.is_loopback() && !address.is_unspecified())
    };
    let mut servers = 0;
    let mut kept = String::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let keep = match words.next() {
            Some("nameserver") => {
                let reachable = words.next().is_some_and(reachable);
                servers += u32::from(reachable);
                reachable
            }
            Some("search" | "domain" | "options") => true,
            _ => false,
        };
        if keep {
            kept.push_str(line.trim());
            kept.push('\n');
        }
    }
    (servers > 0).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_servers_that_a_guest_can_reach_are_kept() {
        let text = "# made by hand\nnameserver 127.0.0.53\nnameserver 10.1.2.3\nnameserver ::1\n\
                    nameserver fe80::1%eth0\nsearch example.org\noptions edns0\nsortlist 1.2.3.4\n";
        let expected =
            "nameserver 10.1.2.3\nnameserver fe80::1%eth0\nsearch example.org\noptions edns0\n";
        assert_eq!(filter(text).as_deref(), Some(expected));
        assert_eq!(filter("nameserver 127.0.0.53\nsearch example.org\n"), None);
        assert_eq!(filter(""), None);
        assert_eq!(filter(&"nameserver 1.1.1.1\n".repeat(2000)), None);
    }
}
