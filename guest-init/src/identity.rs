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
    /// A file that would be changed cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
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
    let path = Path::new("/etc/hosts");
    let existing =
        read_if_there(path).map_err(|source| IdentityError::Read { path: path.into(), source })?;
    place.write("hostname", format!("{hostname}\n").as_bytes())?;
    place.write("hosts", &merge_hosts(&existing, hostname, hosts))?;
    resolv_conf.map_or(Ok(()), |content| place.write("resolv.conf", content.as_bytes()))
}

impl Place {
    fn write(self, name: &str, content: &[u8]) -> Result<(), IdentityError> {
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
fn write_unless_equal(path: &Path, content: &[u8]) -> io::Result<()> {
    let is_file = path.symlink_metadata().is_ok_and(|metadata| metadata.is_file());
    if is_file && fs::read(path).is_ok_and(|existing| existing == content) {
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

fn cover(path: &Path, name: &str, content: &[u8]) -> io::Result<()> {
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
fn write_through_link(path: &Path, content: &[u8]) -> io::Result<()> {
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

/// The content of a file. None at all is no content; neither is a link that leads nowhere, as to where services keep it
/// that do not run here.
fn read_if_there(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path).or_else(|error| match rustix::io::Errno::from_io_error(&error) {
        Some(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP) => Ok(Vec::new()),
        _ => Err(error),
    })
}

/// The content of `/etc/hosts`: what was there, with our block at its end, or in place of its predecessor. The user's
/// lines are bytes: a comment in another encoding than UTF-8 is no reason to lose them.
fn merge_hosts(existing: &[u8], hostname: &str, hosts: &[(String, String)]) -> Vec<u8> {
    let mut merged = Vec::new();
    let mut in_our_block = false;
    let mut has_localhost = false;
    for line in existing.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        match line.trim_ascii() {
            line if line == BEGIN.as_bytes() => in_our_block = true,
            line if line == END.as_bytes() && in_our_block => in_our_block = false,
            _ if in_our_block => {}
            _ => {
                has_localhost |= names_localhost(line);
                merged.extend_from_slice(line);
                merged.push(b'\n');
            }
        }
    }
    let mut ours = format!("{BEGIN}\n");
    if !has_localhost {
        ours.push_str("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n");
    }
    ours.push_str(&format!("127.0.1.1 {hostname}\n"));
    for (address, names) in hosts {
        ours.push_str(&format!("{address} {names}\n"));
    }
    ours.push_str(&format!("{END}\n"));
    merged.extend_from_slice(ours.as_bytes());
    merged
}

/// Tells whether a line, but for its comment, speaks of localhost.
fn names_localhost(line: &[u8]) -> bool {
    let entry = line.split(|byte| *byte == b'#').next().unwrap_or_default();
    entry.windows(b"localhost".len()).any(|word| word == b"localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_file_keeps_the_users_lines_and_replaces_ours() {
        let merge_hosts = |existing: &str, hostname: &str, hosts: &[(String, String)]| {
            String::from_utf8(merge_hosts(existing.as_bytes(), hostname, hosts)).unwrap()
        };
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
    fn lines_that_are_not_utf_8_stay_as_they_are() {
        let merged = merge_hosts(b"1.2.3.4 mine # caf\xe9\n127.0.0.1 localhost", "box", &[]);
        assert_eq!(
            merged,
            b"1.2.3.4 mine # caf\xe9\n127.0.0.1 localhost\n# lilbox: begin\n127.0.1.1 box\n# lilbox: end\n"
        );
    }

    #[test]
    fn a_file_that_is_missing_is_empty_and_one_that_cannot_be_read_an_error() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read_if_there(&directory.path().join("hosts")).unwrap(), b"");
        assert!(read_if_there(directory.path()).is_err());
    }

    #[test]
    fn a_link_is_replaced_and_an_equal_file_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("etc/resolv.conf");
        write_unless_equal(&path, b"a\n").unwrap();
        let written = path.metadata().unwrap().modified().unwrap();
        write_unless_equal(&path, b"a\n").unwrap();
        assert_eq!(path.metadata().unwrap().modified().unwrap(), written);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/nowhere", &path).unwrap();
        write_unless_equal(&path, b"b\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "b\n");
        assert!(path.symlink_metadata().unwrap().is_file());
    }
}
