//! A second opinion: reads an image by the format's description and shares no code or constant with the writer.
//!
//! Whatever the kernel's driver or `fsck.erofs` would object to is an assertion here.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use sha2::{Digest, Sha256};

/// A file as the image has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub nid: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: (i64, u32),
    pub links: u32,
    pub rdev: u32,
    pub size: u64,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Target of a link; SHA-256 of a file's content, or of its last MiB if it has more than a GiB.
    pub content: Vec<u8>,
}

/// The image's files by path, the root being the empty path.
pub type Listing = BTreeMap<Vec<u8>, Found>;

struct Reader<'a> {
    file: &'a File,
    meta: u64,
    xattr: u64,
    length: u64,
    /// Every byte range in use, to find overlaps.
    ranges: BTreeMap<u64, u64>,
    seen: BTreeMap<u64, Found>,
    /// Directories yet to be read, with parent and path: trees are deeper than the stack.
    pending: Vec<(u64, u64, Vec<u8>)>,
}

struct Inode {
    found: Found,
    first: u64,
    inline_at: Option<u64>,
}

fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Reads everything and checks everything.
pub fn list(file: &File) -> Listing {
    let length = file.metadata().unwrap().len();
    let mut block = vec![0; 4096];
    file.read_exact_at(&mut block, 0).unwrap();
    assert!(block[..1024].iter().all(|&b| b == 0), "boot area");
    let sb = &block[1024..];
    assert_eq!(le(&sb[0..4]), 0xE0F5_E1E2, "magic");
    let mut summed = sb.to_vec();
    summed[4..8].fill(0);
    assert_eq!(le(&sb[4..8]), u64::from(checksum(&summed)), "superblock checksum");
    assert_eq!(le(&sb[8..12]) & 1, 1, "checksum feature");
    assert_eq!(sb[12], 12, "block size");
    assert_eq!(le(&sb[80..84]), 0, "incompatible features");
    assert_eq!(le(&sb[36..40]) * 4096, length, "blocks");
    assert_eq!(length % 4096, 0);
    let root = le(&sb[14..16]);
    let mut reader = Reader {
        file,
        meta: le(&sb[40..44]) * 4096,
        xattr: le(&sb[44..48]) * 4096,
        length,
        ranges: BTreeMap::from([(0, 4096)]),
        seen: BTreeMap::new(),
        pending: vec![(root, root, Vec::new())],
    };
    let mut listing = Listing::new();
    while let Some((nid, parent, path)) = reader.pending.pop() {
        reader.directory(nid, parent, path, &mut listing);
    }
    assert_eq!(le(&sb[16..24]), reader.seen.len() as u64, "inode count");
    check_links(&listing);
    let mut end = 0;
    for (start, stop) in reader.ranges {
        assert!(start >= end, "overlap at {start}");
        end = stop;
    }
    listing
}

/// Link counts against names.
fn check_links(listing: &Listing) {
    let mut names: BTreeMap<u64, u32> = BTreeMap::new();
    for (path, found) in listing {
        if found.mode & 0o170_000 == 0o040_000 {
            let inside = |p: &Vec<u8>| {
                let rest = if path.is_empty() {
                    Some(&p[..])
                } else {
                    p.strip_prefix(&[path, &b"/"[..]].concat()[..])
                };
                rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(&b'/'))
            };
            let subdirectories = listing
                .iter()
                .filter(|(p, f)| inside(p) && f.mode & 0o170_000 == 0o040_000)
                .count();
            assert_eq!(found.links as usize, 2 + subdirectories, "links of {path:?}");
        } else {
            *names.entry(found.nid).or_default() += 1;
        }
    }
    for found in listing.values().filter(|f| f.mode & 0o170_000 != 0o040_000) {
        assert_eq!(found.links, names[&found.nid]);
    }
}

impl Reader<'_> {
    fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        assert!(offset + length <= self.length, "{offset}+{length} beyond the image");
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        self.file.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    fn claim(&mut self, start: u64, length: u64) {
        if length > 0 {
            assert_eq!(self.ranges.insert(start, start + length), None, "two uses of byte {start}");
        }
    }

    fn inode(&mut self, nid: u64) -> Inode {
        let at = self.meta + nid * 32;
        assert!(at % 4096 + 64 <= 4096, "inode {nid} crosses a block");
        let raw = self.read(at, 64);
        let format = le(&raw[0..2]);
        assert_eq!(format & 1, 1, "extended");
        let count = le(&raw[2..4]);
        let xattr_bytes = if count == 0 { 0 } else { 12 + 4 * (count - 1) };
        let size = le(&raw[8..16]);
        let mode = u32::try_from(le(&raw[4..6])).unwrap();
        let device = matches!(mode & 0o170_000, 0o020_000 | 0o060_000);
        let address = le(&raw[16..20]);
        let tail_at = at + 64 + xattr_bytes;
        let inline = match format >> 1 {
            0 => false,
            2 => true,
            other => panic!("layout {other}"),
        };
        assert!(!inline || !size.is_multiple_of(4096), "inline inode without a tail");
        let tail = if inline { size % 4096 } else { 0 };
        assert!(tail_at % 4096 + tail <= 4096, "inline data of {nid} crosses a block");
        if !self.seen.contains_key(&nid) {
            self.claim(at, 64 + xattr_bytes + tail);
            if !device {
                self.claim(address * 4096, (size - tail).next_multiple_of(4096));
            }
        }
        let found = Found {
            nid,
            mode,
            uid: u32::try_from(le(&raw[24..28])).unwrap(),
            gid: u32::try_from(le(&raw[28..32])).unwrap(),
            mtime: (le(&raw[32..40]).cast_signed(), u32::try_from(le(&raw[40..44])).unwrap()),
            links: u32::try_from(le(&raw[44..48])).unwrap(),
            rdev: if device { u32::try_from(address).unwrap() } else { 0 },
            size,
            xattrs: self.xattrs(at + 64, xattr_bytes),
            content: Vec::new(),
        };
        Inode { found, first: address * 4096, inline_at: inline.then_some(tail_at) }
    }

    fn xattrs(&self, at: u64, bytes: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut found = BTreeMap::new();
        if bytes == 0 {
            return found;
        }
        assert!(bytes > 12, "an attribute body of nothing but a header");
        let body = self.read(at, bytes);
        let shared = usize::from(body[4]);
        for id in body[12..12 + 4 * shared].chunks(4) {
            let entry = self.read(self.xattr + 4 * le(id), 4);
            let whole =
                self.read(self.xattr + 4 * le(id), 4 + u64::from(entry[0]) + le(&entry[2..4]));
            self.xattr(&whole, &mut found);
        }
        let mut rest = &body[12 + 4 * shared..];
        while !rest.is_empty() {
            let used = self.xattr(rest, &mut found);
            rest = &rest[used.next_multiple_of(4)..];
        }
        found
    }

    fn xattr(&self, entry: &[u8], found: &mut BTreeMap<Vec<u8>, Vec<u8>>) -> usize {
        let (name, value) = (usize::from(entry[0]), usize::try_from(le(&entry[2..4])).unwrap());
        let prefix = match entry[1] {
            1 => "user.",
            2 => "system.posix_acl_access",
            3 => "system.posix_acl_default",
            4 => "trusted.",
            6 => "security.",
            other => panic!("namespace {other}"),
        };
        let full = [prefix.as_bytes(), &entry[4..4 + name]].concat();
        assert_eq!(
            found.insert(full, entry[4 + name..4 + name + value].to_vec()),
            None,
            "attribute twice"
        );
        4 + name + value
    }

    fn each_piece(&self, inode: &Inode, mut take: impl FnMut(&[u8])) {
        let size = inode.found.size;
        let blocks = if inode.inline_at.is_some() { size - size % 4096 } else { size };
        let mut offset = if size > 1 << 30 { size - (1 << 20) } else { 0 };
        while offset < blocks {
            let length = (blocks - offset).min(1 << 20);
            take(&self.read(inode.first + offset, length));
            offset += length;
        }
        if let Some(at) = inode.inline_at {
            take(&self.read(at, size % 4096));
        }
    }

    fn whole(&self, inode: &Inode) -> Vec<u8> {
        let mut all = Vec::new();
        self.each_piece(inode, |piece| all.extend(piece));
        all
    }

    fn directory(&mut self, nid: u64, parent: u64, path: Vec<u8>, listing: &mut Listing) {
        let inode = self.inode(nid);
        assert_eq!(inode.found.mode & 0o170_000, 0o040_000, "{path:?} is a directory");
        assert_eq!(
            self.seen.insert(nid, inode.found.clone()),
            None,
            "directory {path:?} reached twice"
        );
        let content = self.whole(&inode);
        listing.insert(path.clone(), inode.found);
        let mut last: Option<Vec<u8>> = None;
        let (mut dot, mut dotdot) = (false, false);
        for block in content.chunks(4096) {
            let count = usize::try_from(le(&block[8..10])).unwrap() / 12;
            assert!(count > 0 && le(&block[8..10]).is_multiple_of(12), "directory block");
            for i in 0..count {
                let entry = &block[12 * i..12 * i + 12];
                let start = usize::try_from(le(&entry[8..10])).unwrap();
                let end = if i + 1 < count {
                    usize::try_from(le(&block[12 * i + 20..12 * i + 22])).unwrap()
                } else {
                    block.len()
                };
                let name: Vec<u8> =
                    block[start..end].iter().copied().take_while(|&b| b != 0).collect();
                assert!(
                    !name.is_empty() && name.len() <= 255 && !name.contains(&b'/'),
                    "name {name:?}"
                );
                assert!(last.as_ref().is_none_or(|last| *last < name), "order of {name:?}");
                last = Some(name.clone());
                let child = le(&entry[0..8]);
                match &name[..] {
                    b"." => {
                        assert_eq!((child, entry[10]), (nid, 2));
                        dot = true;
                    }
                    b".." => {
                        assert_eq!((child, entry[10]), (parent, 2));
                        dotdot = true;
                    }
                    _ => {
                        let below =
                            if path.is_empty() { name } else { [&path, &b"/"[..], &name].concat() };
                        self.entry(child, nid, entry[10], below, listing);
                    }
                }
            }
        }
        assert!(dot && dotdot, "{path:?} lacks . or ..");
    }

    fn entry(&mut self, nid: u64, parent: u64, kind: u8, path: Vec<u8>, listing: &mut Listing) {
        if kind == 2 {
            return self.pending.push((nid, parent, path));
        }
        let mut inode = self.inode(nid);
        let expected = match inode.found.mode & 0o170_000 {
            0o100_000 => 1,
            0o020_000 => 3,
            0o060_000 => 4,
            0o010_000 => 5,
            0o120_000 => 7,
            other => panic!("type {other:o}"),
        };
        assert_eq!(kind, expected, "type in the directory of {path:?}");
        if kind == 7 {
            inode.found.content = self.whole(&inode);
        } else if kind == 1 {
            let mut hash = Sha256::new();
            self.each_piece(&inode, |piece| hash.update(piece));
            inode.found.content = hash.finalize().to_vec();
        } else {
            assert_eq!(inode.found.size, 0);
        }
        self.seen.insert(nid, inode.found.clone());
        listing.insert(path, inode.found);
    }
}

/// CRC-32C by the textbook: division of a bit string.
fn checksum(data: &[u8]) -> u32 {
    let mut remainder: u32 = !0;
    for byte in data {
        for bit in 0..8 {
            let feed = (remainder & 1) ^ u32::from(byte >> bit & 1);
            remainder >>= 1;
            if feed == 1 {
                remainder ^= 0x82F6_3B78;
            }
        }
    }
    remainder
}
