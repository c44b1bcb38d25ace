//! Directory blocks: an array of 12-byte entries, then their names, both in byte order of the names.

use super::format::BLOCK_BYTES;

const ENTRY_BYTES: usize = 12;
const BLOCK: usize = 4096;
const _: () = assert!(BLOCK as u64 == BLOCK_BYTES, "one block size, in both types");

/// File types as directories state them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileType {
    Regular = 1,
    Directory = 2,
    Character = 3,
    Block = 4,
    Fifo = 5,
    Symlink = 7,
}

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dirent<'a> {
    pub name: &'a [u8],
    pub nid: u64,
    pub file_type: FileType,
}

/// Bytes of a directory that holds these names, which need not be sorted for this: the last block counts as far as it
/// is used.
///
/// How names fall into blocks depends on their order, so this wants them in the order in which they will be stored.
pub(super) fn directory_bytes<'a>(names: impl Iterator<Item = &'a [u8]>) -> u64 {
    let mut full_blocks = 0_u64;
    let mut used = 0_usize;
    for name in names {
        let cost = name.len().saturating_add(ENTRY_BYTES);
        if used.saturating_add(cost) > BLOCK {
            full_blocks = full_blocks.saturating_add(1);
            used = 0;
        }
        used = used.saturating_add(cost);
    }
    full_blocks.saturating_mul(BLOCK_BYTES).saturating_add(u64::try_from(used).unwrap_or(u64::MAX))
}

/// The directory's content; the names must be sorted, `.` and `..` among them.
pub(super) fn directory_content(entries: &[Dirent<'_>]) -> Vec<u8> {
    let mut content = Vec::new();
    let mut rest = entries;
    while !rest.is_empty() {
        content.resize(content.len().next_multiple_of(BLOCK), 0);
        let count = entries_in_block(rest);
        let (now, later) = rest.split_at_checked(count).unwrap_or((rest, &[]));
        store_block(now, &mut content);
        rest = later;
    }
    content
}

fn entries_in_block(entries: &[Dirent<'_>]) -> usize {
    let mut used = 0_usize;
    let fits = entries.iter().take_while(|entry| {
        used = used.saturating_add(entry.name.len()).saturating_add(ENTRY_BYTES);
        used <= BLOCK
    });
    // A name has at most 255 bytes, so one always fits; never return zero, or the caller would not end.
    fits.count().max(1)
}

fn store_block(entries: &[Dirent<'_>], into: &mut Vec<u8>) {
    let mut name_offset = entries.len().saturating_mul(ENTRY_BYTES);
    for entry in entries {
        into.extend(entry.nid.to_le_bytes());
        into.extend(u16::try_from(name_offset).unwrap_or(u16::MAX).to_le_bytes());
        into.extend([entry.file_type as u8, 0]);
        name_offset = name_offset.saturating_add(entry.name.len());
    }
    for entry in entries {
        into.extend(entry.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_and_content_agree_at_block_edges() {
        for count in [1_usize, 2, 15, 16, 17, 31, 32, 200, 341, 342, 1000] {
            for length in [1_usize, 2, 100, 244, 255] {
                let names: Vec<Vec<u8>> =
                    (0..count).map(|i| format!("{i:0length$}").into_bytes()).collect();
                let entries: Vec<Dirent<'_>> = names
                    .iter()
                    .map(|name| Dirent { name, nid: 1, file_type: FileType::Fifo })
                    .collect();
                let size = directory_bytes(names.iter().map(Vec::as_slice));
                assert_eq!(
                    directory_content(&entries).len() as u64,
                    size,
                    "{count} names of {length}"
                );
            }
        }
    }
}
