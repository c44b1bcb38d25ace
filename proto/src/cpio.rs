//! The `newc` cpio format of initramfs archives (kernel: `Documentation/driver-api/early-userspace/buffer-format.rst`).

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A directory.
    Directory,
    /// A regular file with this content.
    File(&'a [u8]),
    /// A symbolic link to this target.
    Symlink(&'a str),
    /// A character device (major, minor).
    CharDevice(u32, u32),
}

/// Writes an archive, entry by entry; owner root, time zero, so that equal input gives equal bytes.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// An empty archive.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry. `name` has no leading slash; parents must have been added before.
    ///
    /// # Panics
    /// If the content is 4 GiB or longer, which the format cannot express.
    pub fn add(&mut self, name: &str, permissions: u32, kind: Kind<'_>) {
        let (type_bits, content, device) = match kind {
            Kind::Directory => (0o040_000, &b""[..], (0, 0)),
            Kind::File(content) => (0o100_000, content, (0, 0)),
            Kind::Symlink(target) => (0o120_000, target.as_bytes(), (0, 0)),
            Kind::CharDevice(major, minor) => (0o020_000, &b""[..], (major, minor)),
        };
        let len = u32::try_from(content.len()).expect("an initramfs file is smaller than 4 GiB");
        self.entries += 1;
        self.header(self.entries, type_bits | permissions, len, device, name);
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    /// The archive, with its trailer, padded so that another archive may follow.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.header(0, 0, 0, (0, 0), "TRAILER!!!");
        while !self.bytes.len().is_multiple_of(512) {
            self.bytes.push(0);
        }
        self.bytes
    }

    fn header(&mut self, inode: u32, mode: u32, len: u32, (major, minor): (u32, u32), name: &str) {
        let name_len = u32::try_from(name.len() + 1).expect("a path is short");
        // ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
        let fields = [inode, mode, 0, 0, 1, 0, len, 0, 0, major, minor, name_len, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    fn pad(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_contents_are_aligned() {
        let mut archive = Archive::new();
        archive.add("dev", 0o755, Kind::Directory);
        archive.add("dev/console", 0o600, Kind::CharDevice(5, 1));
        archive.add("init", 0o755, Kind::File(b"12345"));
        let bytes = archive.finish();
        assert!(bytes.len().is_multiple_of(512));
        let magics = bytes.windows(6).enumerate().filter(|(_, window)| *window == b"070701");
        let offsets: Vec<usize> = magics.map(|(offset, _)| offset).collect();
        assert_eq!(offsets.len(), 4);
        assert!(offsets.iter().all(|offset| offset.is_multiple_of(4)));
        assert!(bytes.windows(5).any(|window| window == b"12345"));
    }
}
