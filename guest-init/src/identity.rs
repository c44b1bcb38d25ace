//! Who the guest is to its own programs: host name, `/etc/hosts`, `/etc/resolv.conf`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Lines between these two in `/etc/hosts` are ours and replaced at every boot; all others are the user's.
const BEGIN: &str = "# lilbox: begin";
const END: &str = "# lilbox: end";

/// Why the guest does not know who it is.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The kernel refuses the host name.
    #[error("cannot set the host name `{name}`")]
    HostName {
        /// The name.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file cannot be written or put in place.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// What the files are written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The guest's own root.
    Root,
    /// A tmpfs, bind-mounted over a root that belongs to somebody else.
    Cover,
}

/// Sets the host name and writes the files that tell it.
///
/// # Errors
/// [`IdentityError`] if one of them cannot be written.
pub fn assume(
    hostname: &str,
    hosts: &[(String, String)],
    resolv_conf: Option<&str>,
    place: Place,
) -> Result<(), IdentityError> {
    rustix::system::sethostname(hostname.as_bytes())
        .map_err(|errno| IdentityError::HostName { name: hostname.into(), source: errno.into() })?;
    let existing = fs::read_to_string("/etc/hosts").unwrap_or_default();
    place.write("hostname", &format!("{hostname}\n"))?;
    place.write("hosts", &merge_hosts(&existing, hostname, hosts))?;
    resolv_conf.map_or(Ok(()), |content| place.write("resolv.conf", content))
}

impl Place {
    fn write(self, name: &str, content: &str) -> Result<(), IdentityError> {
        let path = Path::new("/etc").join(name);
        let written = match self {
            Self::Root => write_unless_equal(&path, content),
            Self::Cover => cover(&path, name, content),
        };
        written.map_err(|source| IdentityError::Write { path, source })
    }
}

/// Replaces a symbolic link (images point `/etc/resolv.conf` to files of services that do not run here), and leaves
/// a file alone that is right already: each write costs a copy in the writable layer.
fn write_unless_equal(path: &Path, content: &str) -> io::Result<()> {
    let is_file = path.symlink_metadata().is_ok_and(|metadata| metadata.is_file());
    if is_file && fs::read(path).is_ok_and(|existing| existing == content.as_bytes()) {
        return Ok(());
    }
    if !is_file && path.symlink_metadata().is_ok() {
        fs::remove_file(path)?;
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, content)
}

fn cover(path: &Path, name: &str, content: &str) -> io::Result<()> {
    let directory = Path::new("/run/lilbox");
    fs::create_dir_all(directory)?;
    let own = directory.join(name);
    fs::write(&own, content)?;
    match rustix::mount::mount_bind(&own, path) {
        Err(rustix::io::Errno::NOENT) => write_through_link(path, content),
        result => Ok(result?),
    }
}

/// A file that is missing under somebody else's root stays missing: it is not ours to make. But a link into `/run`,
/// where services that do not run here keep it, leads to a tmpfs of ours.
fn write_through_link(path: &Path, content: &str) -> io::Result<()> {
    let Ok(link) = fs::read_link(path) else { return Ok(()) };
    let target = Path::new("/etc").join(link);
    let below_run = target.strip_prefix("/etc/../run").or_else(|_| target.strip_prefix("/run"));
    let Ok(below_run) = below_run else { return Ok(()) };
    let target = Path::new("/run").join(below_run);
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(target, content)
}

/// The content of `/etc/hosts`: what was there, with our block at its end, or in place of its predecessor.
fn merge_hosts(existing: &str, hostname: &str, hosts: &[(String, String)]) -> String {
    let mut merged = String::new();
    let mut in_our_block = false;
    for line in existing.lines() {
        match line.trim() {
            BEGIN => in_our_block = true,
            END if in_our_block => in_our_block = false,
            _ if in_our_block => {}
            _ => {
                merged.push_str(line);
                merged.push('\n');
            }
        }
    }
    let names_localhost =
        |line: &str| line.split('#').next().is_some_and(|line| line.contains("localhost"));
    let has_localhost = merged.lines().any(names_localhost);
    merged.push_str(BEGIN);
    merged.push('\n');
    if !has_localhost {
        merged.push_str("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n");
    }
    merged.push_str(&format!("127.0.1.1 {hostname}\n"));
    for (address, names) in hosts {
        merged.push_str(&format!("{address} {names}\n"));
    }
    merged.push_str(END);
    merged.push('\n');
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_file_keeps_the_users_lines_and_replaces_ours() {
        let first = merge_hosts("", "one", &[("10.0.0.1".into(), "gateway gw".into())]);
        assert_eq!(
            first,
            "# lilbox: begin\n127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n\
             127.0.1.1 one\n10.0.0.1 gateway gw\n# lilbox: end\n"
        );
        let edited = format!("127.0.0.1 localhost\n{first}1.2.3.4 mine\n");
        let second = merge_hosts(&edited, "two", &[]);
        assert_eq!(
            second,
            "127.0.0.1 localhost\n1.2.3.4 mine\n# lilbox: begin\n127.0.1.1 two\n# lilbox: end\n"
        );
        assert_eq!(merge_hosts(&second, "two", &[]), second);
    }

    #[test]
    fn a_link_is_replaced_and_an_equal_file_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("etc/resolv.conf");
        write_unless_equal(&path, "a\n").unwrap();
        let written = path.metadata().unwrap().modified().unwrap();
        write_unless_equal(&path, "a\n").unwrap();
        assert_eq!(path.metadata().unwrap().modified().unwrap(), written);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/nowhere", &path).unwrap();
        write_unless_equal(&path, "b\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "b\n");
        assert!(path.symlink_metadata().unwrap().is_file());
    }
}
