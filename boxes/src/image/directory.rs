//! A directory as a tar stream, so that it takes the same way into an image as any archive.

use crate::{Error, Result};
use rustix::fs::{lgetxattr, llistxattr};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tar::{Builder, EntryType, Header, HeaderMode};

/// Who owns the files in the image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owners {
    /// This user's files become root's: whoever unpacked the directory without being root meant them so.
    mapped: Option<(u32, u32)>,
}

impl Owners {
    /// The rule for this process.
    pub(super) fn of_this_user() -> Self {
        let user = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self { mapped: (user.0 != 0).then_some(user) }
    }

    fn of(self, metadata: &Metadata) -> (u64, u64) {
        let (uid, gid) = (metadata.uid(), metadata.gid());
        match self.mapped {
            Some((user, group)) => {
                let map = |id: u32, own: u32| if id == own { 0 } else { u64::from(id) };
                (map(uid, user), map(gid, group))
            }
            None => (uid.into(), gid.into()),
        }
    }
}

/// Entries below a directory, parents first, in the order of their names.
fn walk(root: &Path) -> Result<Vec<(PathBuf, Metadata)>> {
    let mut entries = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(relative) = pending.pop() {
        let path = root.join(&relative);
        let describe = || format!("read {}", path.display());
        let metadata = path.symlink_metadata().map_err(Error::io(describe()))?;
        if metadata.is_dir() {
            let names = std::fs::read_dir(&path).map_err(Error::io(describe()))?;
            let mut children = names
                .map(|entry| Ok(relative.join(entry?.file_name())))
                .collect::<io::Result<Vec<_>>>()
                .map_err(Error::io(describe()))?;
            children.sort_unstable_by(|left, right| right.cmp(left));
            pending.append(&mut children);
        }
        entries.push((relative, metadata));
    }
    Ok(entries)
}

/// What stands for the state of a directory: changes whenever a file below it does.
pub(super) fn fingerprint(root: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    for (path, metadata) in walk(root)? {
        hash.update(path.as_os_str().as_bytes());
        hash.update([0]);
        for number in [metadata.ino(), metadata.size(), u64::from(metadata.mode())] {
            hash.update(number.to_le_bytes());
        }
        for number in
            [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()]
        {
            hash.update(number.to_le_bytes());
        }
    }
    Ok(crate::hex::digits(&hash.finalize()))
}

/// Writes what is below a directory as a tar archive.
pub(super) fn write_tar(root: &Path, owners: Owners, out: impl Write) -> Result<()> {
    let failed = |path: &Path| Error::io(format!("pack {}", path.display()));
    let mut builder = Builder::new(out);
    let mut inodes: HashMap<(u64, u64), PathBuf> = HashMap::new();
    for (relative, metadata) in walk(root)? {
        let path = root.join(&relative);
        let kind = metadata.file_type();
        if kind.is_socket() {
            // A socket is of no use without the program that listens on it; archives have no word for it.
            continue;
        }
        let name = if relative.as_os_str().is_empty() { PathBuf::from(".") } else { relative };
        let mut header = Header::new_gnu();
        header.set_metadata_in_mode(&metadata, HeaderMode::Complete);
        let (uid, gid) = owners.of(&metadata);
        header.set_uid(uid);
        header.set_gid(gid);
        header.set_size(0);
        if !metadata.is_dir() && metadata.nlink() > 1 {
            if let Some(first) = inodes.get(&(metadata.dev(), metadata.ino())) {
                header.set_entry_type(EntryType::Link);
                builder.append_link(&mut header, &name, first).map_err(failed(&path))?;
                continue;
            }
            inodes.insert((metadata.dev(), metadata.ino()), name.clone());
        }
        append_xattrs(&mut builder, &path)?;
        if metadata.is_file() {
            // The file may have been replaced since it was looked at: a link in its place is not followed.
            let no_follow =
                i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).expect("a flag fits");
            let file = File::options()
                .read(true)
                .custom_flags(no_follow)
                .open(&path)
                .map_err(failed(&path))?;
            let size = file.metadata().map_err(failed(&path))?.len();
            header.set_size(size);
            // A file that grows or shrinks while it is read must not shift what follows it.
            let content = io::Read::take(io::Read::chain(file, io::repeat(0)), size);
            builder.append_data(&mut header, &name, content).map_err(failed(&path))?;
        } else if kind.is_symlink() {
            let target = path.read_link().map_err(failed(&path))?;
            builder.append_link(&mut header, &name, target).map_err(failed(&path))?;
        } else {
            if kind.is_block_device() || kind.is_char_device() {
                let (major, minor) =
                    (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
                header
                    .set_device_major(major)
                    .and_then(|()| header.set_device_minor(minor))
                    .map_err(failed(&path))?;
            }
            builder.append_data(&mut header, &name, io::empty()).map_err(failed(&path))?;
        }
    }
    builder.into_inner().and_then(|mut out| out.flush()).map_err(Error::io("finish the archive"))
}

/// Adds the extended attributes of a file, which belong to the entry that follows.
fn append_xattrs(builder: &mut Builder<impl Write>, path: &Path) -> Result<()> {
    let failed =
        |errno: Errno| Error::sys(format!("read the attributes of {}", path.display()))(errno);
    let mut names = vec![0; 64 << 10]; // the kernel's own limit (XATTR_LIST_MAX)
    let len = match llistxattr(path, &mut names) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(failed(errno)),
    };
    let mut attributes = Vec::new();
    for name in names[..len].split_inclusive(|byte| *byte == 0) {
        let Some(name) = CStr::from_bytes_with_nul(name).ok().and_then(|name| name.to_str().ok())
        else {
            continue;
        };
        let mut value = vec![0; 64 << 10]; // likewise (XATTR_SIZE_MAX)
        match lgetxattr(path, name, &mut value) {
            Ok(len) => value.truncate(len),
            // Gone meanwhile, or not for this user to read.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => continue,
            Err(errno) => return Err(failed(errno)),
        }
        attributes.push((format!("SCHILY.xattr.{name}"), value));
    }
    if attributes.is_empty() {
        return Ok(());
    }
    let pairs = attributes.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
    builder.append_pax_extensions(pairs).map_err(Error::io(format!("pack {}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_directory_becomes_an_archive_with_links_and_modes() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        std::fs::create_dir_all(at("usr/bin")).unwrap();
        std::fs::write(at("usr/bin/sh"), "#!").unwrap();
        std::fs::hard_link(at("usr/bin/sh"), at("usr/bin/dash")).unwrap();
        symlink("usr/bin", at("bin")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let mut bytes = Vec::new();
        write_tar(root.path(), Owners { mapped: None }, &mut bytes).unwrap();
        let mut archive = tar::Archive::new(&*bytes);
        let entries: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let link = entry.link_name().unwrap().map(|link| link.display().to_string());
                (entry.path().unwrap().display().to_string(), entry.header().entry_type(), link)
            })
            .collect();
        let expected =
            |path: &str, kind, link: Option<&str>| (path.to_owned(), kind, link.map(String::from));
        assert_eq!(
            entries,
            [
                expected(".", EntryType::Directory, None),
                expected("bin", EntryType::Symlink, Some("usr/bin")),
                expected("usr", EntryType::Directory, None),
                expected("usr/bin", EntryType::Directory, None),
                expected("usr/bin/dash", EntryType::Regular, None),
                expected("usr/bin/sh", EntryType::Link, Some("usr/bin/dash")),
            ]
        );
    }

    #[test]
    fn a_change_anywhere_changes_the_fingerprint() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("d")).unwrap();
        std::fs::write(root.path().join("d/file"), "one").unwrap();
        let before = fingerprint(root.path()).unwrap();
        assert_eq!(fingerprint(root.path()).unwrap(), before);
        std::fs::write(root.path().join("d/file"), "other").unwrap();
        assert_ne!(fingerprint(root.path()).unwrap(), before);
    }

    #[test]
    fn files_of_an_ordinary_user_become_roots() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = file.path().metadata().unwrap();
        let own = Owners { mapped: Some((metadata.uid(), metadata.gid())) };
        assert_eq!(own.of(&metadata), (0, 0));
        let other = Owners { mapped: Some((metadata.uid() + 1, metadata.gid() + 1)) };
        assert_eq!(other.of(&metadata), (metadata.uid().into(), metadata.gid().into()));
    }
}
