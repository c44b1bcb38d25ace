//! Makes archives for tests, odd and broken ones included: every byte is the test's choice.

use tar::Header;

/// An archive in the making.
#[derive(Clone, Debug, Default)]
pub struct Tar(pub Vec<u8>);

/// One entry's header, with defaults of a root-owned file of mode 0644.
#[derive(Clone, Debug)]
pub struct Item {
    pub kind: u8,
    pub path: Vec<u8>,
    pub link: Vec<u8>,
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    pub mtime: u64,
    pub device: (u32, u32),
    pub content: Vec<u8>,
    /// Records of an extended header before the entry.
    pub pax: Vec<(Vec<u8>, Vec<u8>)>,
}

/// An entry of this type at this path.
pub fn item(kind: u8, path: impl AsRef<[u8]>) -> Item {
    Item {
        kind,
        path: path.as_ref().to_vec(),
        link: Vec::new(),
        mode: if kind == b'5' { 0o755 } else { 0o644 },
        uid: 0,
        gid: 0,
        mtime: 1_700_000_000,
        device: (0, 0),
        content: Vec::new(),
        pax: Vec::new(),
    }
}

/// A file.
pub fn file(path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> Item {
    Item { content: content.as_ref().to_vec(), ..item(b'0', path) }
}

/// A directory.
pub fn dir(path: impl AsRef<[u8]>) -> Item {
    item(b'5', path)
}

/// A symbolic link.
pub fn symlink(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Item {
    Item { mode: 0o777, link: target.as_ref().to_vec(), ..item(b'2', path) }
}

/// A hard link.
pub fn hardlink(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Item {
    Item { link: target.as_ref().to_vec(), ..item(b'1', path) }
}

impl Item {
    pub fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    pub fn record(mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.pax.push((key.as_ref().to_vec(), value.as_ref().to_vec()));
        self
    }

    pub fn xattr(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.record(format!("SCHILY.xattr.{name}"), value)
    }

    /// The header of the entry itself. Long names go to PAX records, see [`Tar::add`].
    pub fn header(&self) -> Header {
        let mut header = Header::new_ustar();
        let old = header.as_old_mut();
        let length = self.path.len().min(100);
        old.name[..length].copy_from_slice(&self.path[..length]);
        let length = self.link.len().min(100);
        old.linkname[..length].copy_from_slice(&self.link[..length]);
        old.linkflag = [self.kind];
        header.set_mode(self.mode);
        header.set_uid(self.uid);
        header.set_gid(self.gid);
        header.set_mtime(self.mtime);
        header.set_size(self.content.len() as u64);
        header.set_device_major(self.device.0).unwrap();
        header.set_device_minor(self.device.1).unwrap();
        header.set_cksum();
        header
    }
}

/// An extended header's records.
pub fn records(list: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut data = Vec::new();
    for (key, value) in list {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        data.extend(length.to_string().into_bytes());
        data.push(b' ');
        data.extend(key);
        data.push(b'=');
        data.extend(value);
        data.push(b'\n');
    }
    data
}

impl Tar {
    /// The archive of these entries, with its end mark.
    pub fn of(items: &[Item]) -> Vec<u8> {
        items.iter().fold(Self::default(), |tar, item| tar.add(item)).end()
    }

    /// An entry with its extended header, if it has records or a name too long for the plain one.
    pub fn add(self, item: &Item) -> Self {
        let mut pax = item.pax.clone();
        if item.path.len() > 100 {
            pax.push((b"path".to_vec(), item.path.clone()));
        }
        if item.link.len() > 100 {
            pax.push((b"linkpath".to_vec(), item.link.clone()));
        }
        let tar = if pax.is_empty() { self } else { self.extension(b'x', &records(&pax)) };
        tar.header(&item.header()).content(&item.content)
    }

    /// A header of an extension (`x`, `g`, `L`, `K`) and its content.
    pub fn extension(self, kind: u8, data: &[u8]) -> Self {
        let item = Item { content: data.to_vec(), ..item(kind, "ext") };
        self.header(&item.header()).content(data)
    }

    pub fn header(mut self, header: &Header) -> Self {
        self.0.extend(header.as_bytes());
        self
    }

    pub fn content(mut self, content: &[u8]) -> Self {
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}
