//! Users and groups, looked up in the guest's own files: a static program has no name service.
//!
//! # Trust
//! The files belong to the guest and may hold anything; lines that are not entries are passed over.

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Files of more bytes are cut off: nobody has so many users.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Who a program runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Login name, if the user has an entry.
    pub name: Option<String>,
    /// Home directory; `/` if the user has no entry.
    pub home: String,
    /// Login shell, if the entry names one.
    pub shell: Option<String>,
}

/// Why there is no such identity.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// No such user.
    #[error("no user `{0}` in the guest's /etc/passwd")]
    User(String),
    /// No such group.
    #[error("no group `{0}` in the guest's /etc/group")]
    Group(String),
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PasswdEntry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
    shell: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct GroupEntry<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

/// Looks up `name`, `uid`, `name:group` or `uid:gid`; no text means root.
///
/// # Errors
/// [`UserError`] if a name is not in the files or they cannot be read.
pub fn look_up(text: Option<&str>) -> Result<Identity, UserError> {
    let passwd = read(Path::new("/etc/passwd"))?;
    let group = read(Path::new("/etc/group"))?;
    find(text.unwrap_or("0"), &passwd, &group)
}

/// A missing file is an empty one: images with a single program have neither.
fn read(path: &Path) -> Result<String, UserError> {
    let read = || {
        // Whatever lies there, opening it must not block.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            result => result?,
        };
        if !FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode).is_file() {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        let mut bytes = Vec::new();
        std::fs::File::from(file).take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|source| UserError::Read { path: path.into(), source })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn find(text: &str, passwd: &str, group: &str) -> Result<Identity, UserError> {
    let (user, explicit_group) =
        text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    // A name that consists of digits is a name first, as in chown(1).
    let entry = passwd_entries(passwd).find(|entry| entry.name == user).or_else(|| {
        user.parse().ok().and_then(|uid| passwd_entries(passwd).find(|entry| entry.uid == uid))
    });
    let mut identity = match entry {
        Some(entry) => Identity {
            uid: entry.uid,
            gid: entry.gid,
            groups: Vec::new(),
            name: Some(entry.name.into()),
            home: if entry.home.is_empty() { "/".into() } else { entry.home.into() },
            shell: (!entry.shell.is_empty()).then(|| entry.shell.into()),
        },
        None => without_entry(user)?,
    };
    match explicit_group {
        // An explicit group stands alone, as in container engines.
        Some(name) => identity.gid = find_group(name, group)?,
        None => {
            let name = identity.name.clone().unwrap_or_default();
            let is_member = |entry: &GroupEntry<'_>| {
                entry.members.split(',').any(|member| member.trim() == name)
            };
            identity.groups =
                group_entries(group).filter(is_member).map(|entry| entry.gid).collect();
            // Programs that look at the list alone expect to find the primary group in it.
            identity.groups.push(identity.gid);
            identity.groups.sort_unstable();
            identity.groups.dedup();
        }
    }
    Ok(identity)
}

fn without_entry(user: &str) -> Result<Identity, UserError> {
    let uid = parse_id(user).ok_or_else(|| UserError::User(user.into()))?;
    let root = uid == 0;
    Ok(Identity {
        uid,
        gid: 0,
        groups: Vec::new(),
        name: root.then(|| "root".into()),
        home: if root { "/root".into() } else { "/".into() },
        shell: None,
    })
}

fn find_group(name: &str, group: &str) -> Result<u32, UserError> {
    let entry = group_entries(group).find(|entry| entry.name == name).map(|entry| entry.gid);
    entry.or_else(|| parse_id(name)).ok_or_else(|| UserError::Group(name.into()))
}

/// The greatest number is no id: to the kernel it means "leave as it is".
fn parse_id(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|id| is_number && *id != u32::MAX)
}

fn passwd_entries(text: &str) -> impl Iterator<Item = PasswdEntry<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
        let _password = fields.next()?;
        let (uid, gid) = (parse_id(fields.next()?)?, parse_id(fields.next()?)?);
        let _comment = fields.next();
        let (home, shell) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        Some(PasswdEntry { name, uid, gid, home, shell })
    })
}

fn group_entries(text: &str) -> impl Iterator<Item = GroupEntry<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
        let _password = fields.next()?;
        let gid = parse_id(fields.next()?)?;
        Some(GroupEntry { name, gid, members: fields.next().unwrap_or_default() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
        # a comment\n\
        \n\
        broken\n\
        nologin:x:notanumber:1::/:/bin/false\n\
        +nis::::::\n\
        dev:x:1000:1000:Dev,,,:/home/dev:/bin/zsh\n\
        bare:x:1001:100\n\
        1002:x:1003:1003::/home/digits:\n\
        huge:x:4294967295:0::/:\n";
    const GROUP: &str = "root:x:0:\nusers:x:100:bare,dev\ndocker:x:998: dev ,other\nbroken:x\n:x:5:dev\nsudo:x:27:dev\n";

    fn found(text: &str) -> Identity {
        find(text, PASSWD, GROUP).unwrap()
    }

    #[test]
    fn users_are_found_by_name_and_by_number() {
        let dev = found("dev");
        assert_eq!((dev.uid, dev.gid, dev.home.as_str()), (1000, 1000, "/home/dev"));
        assert_eq!(dev.shell.as_deref(), Some("/bin/zsh"));
        assert_eq!(dev.groups, [27, 100, 998, 1000]);
        assert_eq!(found("1000"), dev);
        let bare = found("bare");
        assert_eq!((bare.uid, bare.home.as_str(), bare.shell.as_deref()), (1001, "/", None));
        assert_eq!(bare.groups, [100]);
    }

    #[test]
    fn digits_are_a_name_before_they_are_a_number() {
        assert_eq!(found("1002").uid, 1003);
    }

    #[test]
    fn an_explicit_group_replaces_all_others() {
        let dev = found("dev:docker");
        assert_eq!((dev.uid, dev.gid, dev.groups.len()), (1000, 998, 0));
        assert_eq!(found("dev:4711").gid, 4711);
        assert_eq!(found("7:8").uid, 7);
    }

    #[test]
    fn numbers_need_no_entry_and_names_do() {
        let nobody = found("65534");
        assert_eq!((nobody.uid, nobody.gid, nobody.home.as_str()), (65534, 0, "/"));
        assert_eq!(nobody.name, None);
        for missing in
            ["nosuch", "", "-1", "+1", "1e3", "huge", "4294967295", "nologin", "broken", "+nis"]
        {
            assert!(matches!(find(missing, PASSWD, GROUP), Err(UserError::User(_))), "{missing}");
        }
        assert!(matches!(find("dev:nosuch", PASSWD, GROUP), Err(UserError::Group(_))));
        assert!(matches!(find("dev:", PASSWD, GROUP), Err(UserError::Group(_))));
    }

    #[test]
    fn root_needs_no_files() {
        let root = find("0", "", "").unwrap();
        assert_eq!(
            (root.uid, root.gid, root.home.as_str(), root.name.as_deref()),
            (0, 0, "/root", Some("root"))
        );
        assert_eq!(
            find("root", "", "").unwrap_err().to_string(),
            "no user `root` in the guest's /etc/passwd"
        );
    }
}
