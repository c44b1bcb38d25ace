//! Extended attributes: names split into EROFS's namespaces, the shared area, and the body behind an inode.
//!
//! # Trust
//!
//! Names and values come from the archive. [`Xattr::parse`] and [`normalise`] are the only ways in, and cap both.

use std::collections::BTreeMap;

use super::error::{ErofsError, quote};

/// Header of an inode's attribute body.
pub(super) const BODY_HEADER_BYTES: usize = 12;

/// Cap of one inode's attributes as stored. The on-disk length field ends at 256 KiB; Linux lists at most 64 KiB of
/// names; without a cap each entry could make us hold megabytes.
const INODE_XATTRS_BYTES: usize = 128 * 1024;

/// One inode refers to at most this many shared attributes, as the count is a byte.
const SHARED_PER_INODE: usize = 255;

/// A namespace: its prefix, its on-disk index, and whether that is a whole name (the two ACLs) which nothing follows.
type Namespace = (&'static [u8], u8, bool);

const NAMESPACES: [Namespace; 5] = [
    (b"user.", 1, false),
    (b"system.posix_acl_access", 2, true),
    (b"system.posix_acl_default", 3, true),
    (b"trusted.", 4, false),
    (b"security.", 6, false),
];

/// Attributes that the overlay file system would take for its own (an opaque directory, a redirect to another path).
/// No honest image has them, since the overlay hides them from whoever makes an archive.
const OVERLAY_PREFIX: &[u8] = b"trusted.overlay.";

/// One attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Xattr {
    /// On-disk index of the namespace.
    pub namespace: u8,
    /// Name behind the namespace's prefix, at most 255 bytes.
    pub suffix: Box<[u8]>,
    /// Value, at most 65,535 bytes.
    pub value: Box<[u8]>,
}

impl Xattr {
    /// Takes an attribute as the archive has it; `None` if it is of no use on Linux (another system's namespace) or
    /// must not reach the overlay.
    pub fn parse(name: &[u8], value: &[u8], path: &[u8]) -> Result<Option<Self>, ErofsError> {
        if name.contains(&0) || name.is_empty() {
            return Err(ErofsError::BadXattrName { path: quote(path) });
        }
        if name.starts_with(OVERLAY_PREFIX) {
            return Ok(None);
        }
        let Some((suffix, namespace, whole)) =
            NAMESPACES.iter().find_map(|(prefix, index, whole)| {
                name.strip_prefix(*prefix).map(|suffix| (suffix, *index, *whole))
            })
        else {
            return Ok(None);
        };
        if suffix.is_empty() != whole || suffix.len() > 255 {
            return Err(ErofsError::BadXattrName { path: quote(path) });
        }
        if value.len() > usize::from(u16::MAX) {
            return Err(ErofsError::XattrTooLarge { path: quote(path) });
        }
        Ok(Some(Self { namespace, suffix: suffix.into(), value: value.into() }))
    }

    /// Bytes on disk, padding included.
    pub fn stored_bytes(&self) -> usize {
        self.suffix.len().saturating_add(self.value.len()).saturating_add(4).next_multiple_of(4)
    }

    fn store(&self, into: &mut Vec<u8>) {
        // Both lengths were capped by `parse`.
        into.push(u8::try_from(self.suffix.len()).unwrap_or(u8::MAX));
        into.push(self.namespace);
        into.extend(u16::try_from(self.value.len()).unwrap_or(u16::MAX).to_le_bytes());
        into.extend(&self.suffix);
        into.extend(&self.value);
        into.resize(into.len().next_multiple_of(4), 0);
    }
}

/// Sorts an inode's attributes, keeps the last of each name, and checks their sum.
pub(super) fn normalise(xattrs: Vec<Xattr>, path: &[u8]) -> Result<Vec<Xattr>, ErofsError> {
    let by_name: BTreeMap<_, _> =
        xattrs.into_iter().map(|x| ((x.namespace, x.suffix), x.value)).collect();
    let xattrs: Vec<Xattr> = by_name
        .into_iter()
        .map(|((namespace, suffix), value)| Xattr { namespace, suffix, value })
        .collect();
    let stored = xattrs.iter().fold(0_usize, |sum, xattr| sum.saturating_add(xattr.stored_bytes()));
    if stored > INODE_XATTRS_BYTES {
        return Err(ErofsError::XattrTooLarge { path: quote(path) });
    }
    Ok(xattrs)
}

/// The attributes that several inodes have alike, stored once.
#[derive(Debug, Default)]
pub(super) struct SharedXattrs<'a> {
    ids: BTreeMap<&'a Xattr, u32>,
    area: Vec<u8>,
}

impl<'a> SharedXattrs<'a> {
    /// Finds what is worth sharing among the attributes of all inodes, each inode's list once.
    pub fn collect(inodes: impl Iterator<Item = &'a [Xattr]>) -> Self {
        let mut uses: BTreeMap<&Xattr, u32> = BTreeMap::new();
        for xattr in inodes.flatten() {
            let count = uses.entry(xattr).or_default();
            *count = count.saturating_add(1);
        }
        let mut shared = Self::default();
        for (xattr, count) in uses {
            if count < 2 {
                continue;
            }
            // An id counts 4-byte units; beyond 16 GiB (never: metadata is capped) attributes simply stay inline.
            let Ok(id) = u32::try_from(shared.area.len() / 4) else { break };
            shared.ids.insert(xattr, id);
            xattr.store(&mut shared.area);
        }
        shared
    }

    /// Bytes of the shared area.
    pub fn area(&self) -> &[u8] {
        &self.area
    }

    /// The body behind an inode: header, ids of shared attributes, then the inode's own ones; empty if there are none.
    pub fn body(&self, xattrs: &[Xattr]) -> Vec<u8> {
        if xattrs.is_empty() {
            return Vec::new();
        }
        let mut ids = Vec::new();
        let mut own = Vec::new();
        for xattr in xattrs {
            match self.ids.get(xattr) {
                Some(id) if ids.len() < SHARED_PER_INODE => ids.push(*id),
                _ => xattr.store(&mut own),
            }
        }
        // The name filter (all zero: nothing is said to be absent) is a feature bit that we do not set.
        let mut body = vec![0; 4];
        body.push(u8::try_from(ids.len()).unwrap_or(u8::MAX));
        body.resize(BODY_HEADER_BYTES, 0);
        for id in ids {
            body.extend(id.to_le_bytes());
        }
        body.extend(own);
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &[u8]) -> Result<Option<(u8, Vec<u8>)>, ErofsError> {
        Xattr::parse(name, b"v", b"p").map(|x| x.map(|x| (x.namespace, x.suffix.to_vec())))
    }

    #[test]
    fn namespaces() {
        assert_eq!(parse(b"user.a").unwrap(), Some((1, b"a".to_vec())));
        assert_eq!(parse(b"trusted.x.y").unwrap(), Some((4, b"x.y".to_vec())));
        assert_eq!(parse(b"security.capability").unwrap(), Some((6, b"capability".to_vec())));
        assert_eq!(parse(b"system.posix_acl_access").unwrap(), Some((2, vec![])));
        assert_eq!(parse(b"system.posix_acl_default").unwrap(), Some((3, vec![])));
        assert_eq!(parse(b"com.apple.provenance").unwrap(), None);
        assert_eq!(parse(b"trusted.overlay.opaque").unwrap(), None);
        for bad in [
            &b""[..],
            b"user.",
            b"user.a\0b",
            b"system.posix_acl_accessx",
            &[&b"user."[..], &[b'a'; 256]].concat(),
        ] {
            assert!(matches!(parse(bad), Err(ErofsError::BadXattrName { .. })), "{bad:?}");
        }
    }

    #[test]
    fn sizes_are_capped() {
        assert!(Xattr::parse(b"user.a", &[0; 65535], b"p").unwrap().is_some());
        assert!(matches!(
            Xattr::parse(b"user.a", &[0; 65536], b"p"),
            Err(ErofsError::XattrTooLarge { .. })
        ));
        let many = (0..3_u8)
            .map(|i| Xattr { namespace: 1, suffix: [i].into(), value: vec![0; 60_000].into() })
            .collect();
        assert!(matches!(normalise(many, b"p"), Err(ErofsError::XattrTooLarge { .. })));
    }

    #[test]
    fn the_last_of_a_name_wins() {
        let x = |v: u8| Xattr { namespace: 1, suffix: (*b"a").into(), value: [v].into() };
        assert_eq!(normalise(vec![x(1), x(2)], b"p").unwrap(), [x(2)]);
    }

    #[test]
    fn more_shared_attributes_than_the_count_can_say_stay_inline() {
        let list: Vec<Xattr> = (0..300_u16)
            .map(|i| Xattr { namespace: 1, suffix: i.to_be_bytes().into(), value: [].into() })
            .collect();
        let shared = SharedXattrs::collect([&list[..], &list[..]].into_iter());
        let body = shared.body(&list);
        assert_eq!(body[4], 255);
        assert_eq!(body.len(), BODY_HEADER_BYTES + 255 * 4 + 45 * 8);
        assert_eq!(shared.area().len(), 300 * 8);
    }
}
