//! Sparse files: the four ways in which GNU tar writes down where a file's content belongs.
//!
//! # Trust
//!
//! Maps are hostile. Their length is capped, and [`check`] makes sure that segments are in order, do not overlap, stay
//! within the file and use up exactly the content that the archive has.

use std::io::Read;

use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

use super::error::{ErofsError, quote};
use super::header::{Records, number};
use super::pax;
use super::tar::{Archive, BLOCK_BYTES};

/// Cap of one map. A segment costs 16 bytes here, and an archive can name millions in one entry.
const SEGMENT_LIMIT: usize = 1 << 18;

/// Some bytes of content and where in the file they belong; all else is zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// A sparse file as PAX records describe it.
#[derive(Debug)]
pub(super) enum SparseMap {
    /// The records hold the map (GNU formats 0.0 and 0.1).
    Known { size: u64, map: Vec<Segment> },
    /// The map is at the head of the content (GNU format 1.0).
    InContent { size: u64 },
}

/// Looks for a sparse file in an entry's records; `pairs` are the repeated keywords of format 0.0 in order.
pub(super) fn pax_form(
    records: &Records,
    pairs: &[u64],
    path: &[u8],
) -> Result<Option<SparseMap>, ErofsError> {
    let bad = || ErofsError::BadSparseMap { path: quote(path) };
    let value = |key: &str| records.get(key.as_bytes()).map(Vec::as_slice);
    let number = |key: &str| value(key).map(|text| pax::decimal(text).ok_or_else(bad)).transpose();
    if let Some(major) = number("GNU.sparse.major")? {
        let size = number("GNU.sparse.realsize")?.ok_or_else(bad)?;
        return match (major, number("GNU.sparse.minor")?) {
            (1, Some(0)) => Ok(Some(SparseMap::InContent { size })),
            _ => Err(bad()),
        };
    }
    let Some(size) = number("GNU.sparse.size")? else { return Ok(None) };
    let listed: Vec<u64> = match value("GNU.sparse.map") {
        Some([]) => Vec::new(),
        Some(text) => {
            text.split(|&b| b == b',').map(pax::decimal).collect::<Option<_>>().ok_or_else(bad)?
        }
        None => pairs.to_vec(),
    };
    if let Some(count) = number("GNU.sparse.numblocks")?
        && u64::try_from(listed.len() / 2) != Ok(count)
    {
        return Err(bad());
    }
    Ok(Some(SparseMap::Known { size, map: segments(&listed).ok_or_else(bad)? }))
}

/// Reads the map at the head of the content: a count, then offset and length of each segment, one decimal number per
/// line, padded to a whole block.
pub(super) fn read_map<R: Read>(
    archive: &mut Archive<R>,
    path: &[u8],
) -> Result<Vec<Segment>, ErofsError> {
    let bad = || ErofsError::BadSparseMap { path: quote(path) };
    let mut numbers = Vec::new();
    let mut wanted = None;
    let mut line = Vec::new();
    while wanted.is_none_or(|wanted| numbers.len() < wanted) {
        let mut block = [0; BLOCK_BYTES];
        archive.read_content(&mut block)?;
        for &byte in &block {
            if wanted.is_some_and(|wanted| numbers.len() >= wanted) {
                break;
            }
            if byte != b'\n' {
                line.push(byte);
                continue;
            }
            let number = pax::decimal(&line).ok_or_else(bad)?;
            line.clear();
            if wanted.is_some() {
                numbers.push(number);
            } else {
                let count = usize::try_from(number)
                    .ok()
                    .filter(|count| *count <= SEGMENT_LIMIT)
                    .ok_or_else(bad)?;
                wanted = Some(count.saturating_mul(2));
            }
        }
        // No number has this many digits; without the check a map without newlines would be read into memory whole.
        if line.len() > BLOCK_BYTES {
            return Err(bad());
        }
    }
    segments(&numbers).ok_or_else(bad)
}

/// Reads the map of the old GNU form, which starts in the header and goes on in further header blocks.
pub(super) fn read_gnu_map<R: Read>(
    archive: &mut Archive<R>,
    header: &Header,
    path: &[u8],
) -> Result<(u64, Vec<Segment>), ErofsError> {
    let bad = || ErofsError::BadSparseMap { path: quote(path) };
    let gnu = header.as_gnu().ok_or_else(bad)?;
    let size = number(&gnu.realsize).ok_or_else(bad)?;
    let mut map = Vec::new();
    append(&mut map, &gnu.sparse).ok_or_else(bad)?;
    let mut more = gnu.isextended[0] == 1;
    while more {
        let mut extension = GnuExtSparseHeader::new();
        *extension.as_mut_bytes() = archive.read_block()?;
        append(&mut map, &extension.sparse).ok_or_else(bad)?;
        more = extension.isextended[0] == 1;
    }
    Ok((size, map))
}

fn append(map: &mut Vec<Segment>, fields: &[GnuSparseHeader]) -> Option<()> {
    for field in fields {
        if field.offset[0] == 0 || field.numbytes[0] == 0 {
            continue;
        }
        if map.len() >= SEGMENT_LIMIT {
            return None;
        }
        map.push(Segment { offset: number(&field.offset)?, length: number(&field.numbytes)? });
    }
    Some(())
}

fn segments(numbers: &[u64]) -> Option<Vec<Segment>> {
    let (pairs, rest) = numbers.as_chunks::<2>();
    let fits = rest.is_empty() && pairs.len() <= SEGMENT_LIMIT;
    fits.then(|| pairs.iter().map(|&[offset, length]| Segment { offset, length }).collect())
}

/// Accepts a map only if it is in order, within the file and of the content's length.
pub(super) fn check(
    map: &[Segment],
    size: u64,
    content: u64,
    path: &[u8],
) -> Result<(), ErofsError> {
    let walk = map.iter().try_fold((0_u64, 0_u64), |(end, sum), segment| {
        if segment.offset < end {
            return None;
        }
        Some((segment.offset.checked_add(segment.length)?, sum.checked_add(segment.length)?))
    });
    match walk {
        Some((end, sum)) if end <= size && sum == content => Ok(()),
        _ => Err(ErofsError::BadSparseMap { path: quote(path) }),
    }
}
