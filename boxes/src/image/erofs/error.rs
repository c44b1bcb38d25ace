//! What can go wrong while an image is built: one variant for each way in which an archive is refused.

use std::io;

/// Longest part of a name that is quoted in a message: names come from the archive and may be thousands of bytes.
const QUOTED_NAME_CHARS: usize = 200;

/// Reason why no image was built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErofsError {
    /// The stream failed.
    #[error("cannot read the archive")]
    ReadArchive {
        /// What the reader said.
        source: io::Error,
    },
    /// The output file failed.
    #[error("cannot write the image ({operation})")]
    WriteImage {
        /// What was being done.
        operation: &'static str,
        /// What the file said.
        source: io::Error,
    },
    /// The stream ends inside a header or inside a file.
    #[error("archive ends early, at byte {offset}")]
    Truncated {
        /// Bytes read so far.
        offset: u64,
    },
    /// The header's checksum does not match: not an archive, or a damaged one.
    #[error("header checksum mismatch at byte {offset} of the archive")]
    BadChecksum {
        /// Where the header starts.
        offset: u64,
    },
    /// A header field or a PAX record does not hold what its name promises.
    #[error("bad {field} in the header of {path}")]
    BadField {
        /// Field or record.
        field: &'static str,
        /// The entry, as far as its name is known.
        path: String,
    },
    /// An extended header is not a list of length-prefixed records.
    #[error("malformed PAX record at byte {offset} of the archive")]
    BadPaxRecord {
        /// Where the extended header ends.
        offset: u64,
    },
    /// An extended header or a long name is larger than any sensible one.
    #[error("extended header of {size} bytes at byte {offset} of the archive exceeds {limit}")]
    ExtensionTooLarge {
        /// Where it starts.
        offset: u64,
        /// Its declared size.
        size: u64,
        /// The cap.
        limit: u64,
    },
    /// Extended headers that describe an entry which never comes, or the same entry twice.
    #[error("extended header without an entry of its own at byte {offset} of the archive")]
    DanglingExtension {
        /// Where this was noticed.
        offset: u64,
    },
    /// The entry's type has no meaning in a file system.
    #[error("unsupported entry type {kind:#04x} for {path}")]
    UnsupportedEntry {
        /// The entry.
        path: String,
        /// Its type flag.
        kind: u8,
    },
    /// A path or a hard link's target has a `..` component.
    #[error("{path} climbs out of its directory")]
    ParentComponent {
        /// The offending path.
        path: String,
    },
    /// A name or a link target holds a NUL byte.
    #[error("{path} holds a NUL byte")]
    NulInName {
        /// The offending path.
        path: String,
    },
    /// A component is longer than 255 bytes.
    #[error("{path} has a component of more than 255 bytes")]
    NameTooLong {
        /// The offending path.
        path: String,
    },
    /// A path or a link target is longer than Linux can open.
    #[error("{path} is too long")]
    PathTooLong {
        /// The offending path.
        path: String,
    },
    /// A symbolic link points at nothing at all.
    #[error("symbolic link {path} has an empty target")]
    EmptyLinkTarget {
        /// The link.
        path: String,
    },
    /// A parent of the entry is a file.
    #[error("a parent of {path} is not a directory")]
    NotADirectory {
        /// The entry.
        path: String,
    },
    /// Symbolic links among the entry's parents lead round in circles.
    #[error("too many symbolic links on the way to {path}")]
    SymlinkLoop {
        /// The entry.
        path: String,
    },
    /// The root is something else than a directory.
    #[error("the archive's root is not a directory")]
    RootNotDirectory,
    /// A hard link's target is not in the archive, or comes after the link.
    #[error("hard link {path} points at {target}, which is not there")]
    MissingLinkTarget {
        /// The link.
        path: String,
        /// What it names.
        target: String,
    },
    /// A hard link to a directory would make a cycle.
    #[error("hard link {path} points at the directory {target}")]
    LinkToDirectory {
        /// The link.
        path: String,
        /// What it names.
        target: String,
    },
    /// The owner does not fit Linux's 32 bits.
    #[error("owner {id} of {path} is out of range")]
    OwnerOutOfRange {
        /// The entry.
        path: String,
        /// User or group.
        id: u64,
    },
    /// The device number does not fit Linux's 12 + 20 bits.
    #[error("device number {major}:{minor} of {path} is out of range")]
    DeviceOutOfRange {
        /// The entry.
        path: String,
        /// Major number.
        major: u64,
        /// Minor number.
        minor: u64,
    },
    /// An extended attribute's name is empty, too long or holds a NUL byte.
    #[error("extended attribute of {path} has a bad name")]
    BadXattrName {
        /// The entry.
        path: String,
    },
    /// An extended attribute's value, or all of them together, are larger than an inode can carry.
    #[error("extended attributes of {path} are too large")]
    XattrTooLarge {
        /// The entry.
        path: String,
    },
    /// A sparse file's map is out of order, overlaps, or disagrees with the file's size.
    #[error("bad sparse map of {path}")]
    BadSparseMap {
        /// The entry.
        path: String,
    },
    /// More entries than allowed, directories that are only implied included.
    #[error("archive has more than {limit} entries")]
    TooManyEntries {
        /// The cap.
        limit: u64,
    },
    /// Names, link targets and extended attributes exceed what may be kept in memory.
    #[error("names and attributes of the archive exceed {limit} bytes")]
    TooMuchMetadata {
        /// The cap.
        limit: u64,
    },
    /// The image would exceed its cap.
    #[error("image exceeds {limit} bytes")]
    ImageTooLarge {
        /// The cap.
        limit: u64,
    },
}

/// Renders a name from the archive for a message: quoted, escaped and cut.
pub(super) fn quote(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let cut: String = text.chars().take(QUOTED_NAME_CHARS).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("{cut:?}{dots}")
}
