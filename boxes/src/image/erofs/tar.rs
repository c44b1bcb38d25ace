//! Reads a tar stream entry by entry: V7, ustar, PAX and GNU, including long names and sparse files.
//!
//! The `tar` crate gives the header layouts. Its iterator is not used because of what it does with hostile or merely
//! unusual input: extended headers are read into memory whatever their size, sparse maps have no bound, attribute
//! values end at a newline, sparse files in PAX form are not understood, and blank number fields are refused.
//!
//! # Trust
//!
//! Every byte is hostile. Sizes are checked before anything is allocated, and a file's content is only ever handed on
//! through a buffer of the caller's. Where archivers disagree this follows Go's `archive/tar`, as images are made with
//! it: the size field of an entry that cannot have content (links, devices, directories, fifos) is ignored.

use std::io::{self, Read};

use tar::Header;

use super::error::{ErofsError, quote};
use super::header::{Records, attributes, bad_field, checksum_matches, device, size_of, type_flag};
use super::inode::{Attributes, DeviceKind};
use super::pax;
use super::sparse::{self, Segment, SparseMap};

/// Archives are made of blocks of this size.
pub(super) const BLOCK_BYTES: usize = 512;

/// Cap of an extended header or long name. It holds one entry's attributes (at most 64 KiB each) and names; without a
/// cap a few bytes of compressed archive could claim all memory.
const EXTENSION_LIMIT_BYTES: u64 = 1 << 20;

/// Longest path or link target: Linux's `PATH_MAX` without the terminator.
const PATH_LIMIT_BYTES: usize = 4095;

/// One entry. Content, if it has any, is to be read from the archive before the next entry.
#[derive(Debug)]
pub(super) struct Entry {
    /// Path as written, any bytes but NUL.
    pub path: Vec<u8>,
    /// Owner, permissions, time, attributes.
    pub attributes: Attributes,
    /// Attributes that were left out, as Linux has no use for them.
    pub ignored_xattrs: u64,
    /// What it is.
    pub body: Body,
}

/// What an entry is.
#[derive(Debug)]
pub(super) enum Body {
    /// Directory.
    Directory,
    /// Regular file of this size whose content follows; with the map if only parts of it do.
    Regular { size: u64, map: Option<Vec<Segment>> },
    /// Symbolic link with its target.
    Symlink(Vec<u8>),
    /// Another name of the entry with this path.
    HardLink(Vec<u8>),
    /// Device with its encoded number.
    Device(DeviceKind, u32),
    /// Named pipe.
    Fifo,
}

/// What extended headers said about the entry that follows them.
#[derive(Debug, Default)]
struct Extensions {
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    records: Option<Records>,
    /// The offset/length pairs of a sparse map in the oldest PAX form, which repeats its keywords.
    pairs: Vec<u64>,
}

impl Extensions {
    fn is_empty(&self) -> bool {
        self.long_name.is_none() && self.long_link.is_none() && self.records.is_none()
    }
}

/// A tar stream.
pub(super) struct Archive<R> {
    reader: R,
    /// Bytes consumed.
    offset: u64,
    /// Content of the current entry that nobody has read yet.
    unread: u64,
    /// Padding behind it.
    padding: u64,
    globals: Records,
}

impl<R: Read> Archive<R> {
    pub fn new(reader: R) -> Self {
        Self { reader, offset: 0, unread: 0, padding: 0, globals: Records::new() }
    }

    /// The next entry; `None` at the end of the archive.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, ErofsError> {
        let mut extensions = Extensions::default();
        loop {
            self.skip_content()?;
            let header_offset = self.offset;
            let Some(header) = self.read_header()? else {
                if extensions.is_empty() {
                    return Ok(None);
                }
                return Err(ErofsError::DanglingExtension { offset: header_offset });
            };
            let twice = || ErofsError::DanglingExtension { offset: header_offset };
            match type_flag(&header) {
                b'L' => {
                    let name = self.read_extension(&header)?;
                    if extensions.long_name.replace(without_terminator(name)).is_some() {
                        return Err(twice());
                    }
                }
                b'K' => {
                    let link = self.read_extension(&header)?;
                    if extensions.long_link.replace(without_terminator(link)).is_some() {
                        return Err(twice());
                    }
                }
                b'x' => {
                    let mut records = self.globals.clone();
                    self.read_records(&header, &mut records, &mut extensions.pairs)?;
                    if extensions.records.replace(records).is_some() {
                        return Err(twice());
                    }
                }
                b'g' => {
                    let mut globals = std::mem::take(&mut self.globals);
                    self.read_records(&header, &mut globals, &mut Vec::new())?;
                    self.globals = globals;
                }
                // A volume label: its name is not a path.
                b'V' => self.expect_content(size_of(&header, b"")?),
                _ => {
                    if extensions.records.is_none() && !self.globals.is_empty() {
                        extensions.records = Some(self.globals.clone());
                    }
                    return self.finish_entry(&header, extensions).map(Some);
                }
            }
        }
    }

    /// Reads the next bytes of the current entry's content.
    ///
    /// The caller never asks for more than the entry has; if it did, that would be an archive that ends early.
    pub fn read_content(&mut self, buffer: &mut [u8]) -> Result<(), ErofsError> {
        let wanted = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        self.unread =
            self.unread.checked_sub(wanted).ok_or(ErofsError::Truncated { offset: self.offset })?;
        self.read_exact(buffer)
    }

    fn finish_entry(
        &mut self,
        header: &Header,
        extensions: Extensions,
    ) -> Result<Entry, ErofsError> {
        let Extensions { long_name, long_link, records, pairs } = extensions;
        let records = records.unwrap_or_default();
        let record =
            |key: &[u8]| records.get(key).map(Vec::as_slice).filter(|value| !value.is_empty());
        let mut path = match (record(b"path"), long_name) {
            (Some(path), _) => path.to_vec(),
            (None, Some(name)) => name,
            (None, None) => header.path_bytes().into_owned(),
        };
        if let Some(name) = record(b"GNU.sparse.name") {
            path = name.to_vec();
        }
        check_path(&path)?;
        let link = || {
            let link = match (record(b"linkpath"), long_link) {
                (Some(link), _) => link.to_vec(),
                (None, Some(link)) => link,
                (None, None) => {
                    header.link_name_bytes().map(|link| link.into_owned()).unwrap_or_default()
                }
            };
            check_path(&link).map(|()| link)
        };
        let size = match record(b"size") {
            Some(text) => pax::decimal(text).ok_or_else(|| bad_field("size", &path))?,
            None => size_of(header, &path)?,
        };
        let body = match type_flag(header) {
            // Before ustar there was no type for directories.
            b'0' | 0 if path.ends_with(b"/") => Body::Directory,
            b'0' | 0 | b'7' => {
                self.expect_content(size);
                match sparse::pax_form(&records, &pairs, &path)? {
                    None => Body::Regular { size, map: None },
                    Some(SparseMap::Known { size, map }) => self.sparse(size, map, &path)?,
                    Some(SparseMap::InContent { size }) => {
                        let map = sparse::read_map(self, &path)?;
                        self.sparse(size, map, &path)?
                    }
                }
            }
            b'S' => {
                self.expect_content(size);
                let (size, map) = sparse::read_gnu_map(self, header, &path)?;
                self.sparse(size, map, &path)?
            }
            b'1' => Body::HardLink(link()?),
            b'2' => Body::Symlink(link()?),
            b'3' => Body::Device(DeviceKind::Character, device(header, &path)?),
            b'4' => Body::Device(DeviceKind::Block, device(header, &path)?),
            b'5' => Body::Directory,
            b'6' => Body::Fifo,
            kind => return Err(ErofsError::UnsupportedEntry { path: quote(&path), kind }),
        };
        let (attributes, ignored_xattrs) = attributes(header, &records, &path)?;
        Ok(Entry { path, attributes, ignored_xattrs, body })
    }

    /// Checks a map against the content that the entry really has.
    fn sparse(&self, size: u64, map: Vec<Segment>, path: &[u8]) -> Result<Body, ErofsError> {
        sparse::check(&map, size, self.unread, path)?;
        Ok(Body::Regular { size, map: Some(map) })
    }

    /// One raw block that belongs to the headers, not to any content.
    pub fn read_block(&mut self) -> Result<[u8; BLOCK_BYTES], ErofsError> {
        let mut block = [0; BLOCK_BYTES];
        self.read_exact(&mut block)?;
        Ok(block)
    }

    fn read_header(&mut self) -> Result<Option<Header>, ErofsError> {
        let mut header = Header::new_old();
        let start = self.offset;
        let mut filled = 0_usize;
        while let Some(rest) =
            header.as_mut_bytes().get_mut(filled..).filter(|rest| !rest.is_empty())
        {
            let count = read_some(&mut self.reader, rest)?;
            if count == 0 {
                break;
            }
            filled = filled.saturating_add(count);
        }
        self.advance(filled);
        // Nothing at all is no archive but what a failed program leaves in a pipe; later on, a missing end mark is common.
        if filled == 0 && start > 0 {
            return Ok(None);
        }
        if filled < BLOCK_BYTES {
            return Err(ErofsError::Truncated { offset: self.offset });
        }
        if header.as_bytes().iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        if !checksum_matches(&header) {
            return Err(ErofsError::BadChecksum { offset: start });
        }
        Ok(Some(header))
    }

    fn read_extension(&mut self, header: &Header) -> Result<Vec<u8>, ErofsError> {
        let size = size_of(header, b"")?;
        if size > EXTENSION_LIMIT_BYTES {
            return Err(ErofsError::ExtensionTooLarge {
                offset: self.offset,
                size,
                limit: EXTENSION_LIMIT_BYTES,
            });
        }
        self.expect_content(size);
        let mut data = vec![0; usize::try_from(size).unwrap_or_default()];
        self.read_content(&mut data)?;
        Ok(data)
    }

    fn read_records(
        &mut self,
        header: &Header,
        records: &mut Records,
        pairs: &mut Vec<u64>,
    ) -> Result<(), ErofsError> {
        let data = self.read_extension(header)?;
        let bad = ErofsError::BadPaxRecord { offset: self.offset };
        for record in pax::records(&data) {
            let Some(record) = record else { return Err(bad) };
            if record.key == b"GNU.sparse.offset" || record.key == b"GNU.sparse.numbytes" {
                let Some(number) = pax::decimal(record.value) else { return Err(bad) };
                pairs.push(number);
            }
            records.insert(record.key.to_vec(), record.value.to_vec());
        }
        // Records of one archive add up to no more than an entry's: the global ones are copied for each entry.
        let total = records
            .iter()
            .fold(0_usize, |sum, (k, v)| sum.saturating_add(k.len()).saturating_add(v.len()));
        if u64::try_from(total).unwrap_or(u64::MAX) > EXTENSION_LIMIT_BYTES.saturating_mul(2) {
            let size = u64::try_from(total).unwrap_or(u64::MAX);
            return Err(ErofsError::ExtensionTooLarge {
                offset: self.offset,
                size,
                limit: EXTENSION_LIMIT_BYTES,
            });
        }
        Ok(())
    }

    /// Notes that content of this size follows, padded to whole blocks.
    fn expect_content(&mut self, size: u64) {
        const BLOCK: u64 = BLOCK_BYTES as u64;
        self.unread = size;
        self.padding = BLOCK.wrapping_sub(size % BLOCK) % BLOCK;
    }

    fn skip_content(&mut self) -> Result<(), ErofsError> {
        let mut scratch = [0; 16 * 1024];
        let mut left = self.unread.saturating_add(self.padding);
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(scratch.len());
            let Some(part) = scratch.get_mut(..length) else { break };
            self.read_exact(part)?;
            left = left.saturating_sub(u64::try_from(length).unwrap_or(u64::MAX));
        }
        self.unread = 0;
        self.padding = 0;
        Ok(())
    }

    fn read_exact(&mut self, mut buffer: &mut [u8]) -> Result<(), ErofsError> {
        while !buffer.is_empty() {
            let count = read_some(&mut self.reader, buffer)?;
            self.advance(count);
            match buffer.get_mut(count..) {
                Some(rest) if count > 0 => buffer = rest,
                _ => return Err(ErofsError::Truncated { offset: self.offset }),
            }
        }
        Ok(())
    }

    fn advance(&mut self, count: usize) {
        self.offset = self.offset.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
    }
}

fn read_some(reader: &mut impl Read, buffer: &mut [u8]) -> Result<usize, ErofsError> {
    loop {
        match reader.read(buffer) {
            Ok(count) => return Ok(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(ErofsError::ReadArchive { source }),
        }
    }
}

fn check_path(path: &[u8]) -> Result<(), ErofsError> {
    if path.contains(&0) {
        return Err(ErofsError::NulInName { path: quote(path) });
    }
    if path.len() > PATH_LIMIT_BYTES {
        return Err(ErofsError::PathTooLong { path: quote(path) });
    }
    Ok(())
}

/// GNU long names end with a NUL that is not part of them.
fn without_terminator(mut name: Vec<u8>) -> Vec<u8> {
    if name.last() == Some(&0) {
        name.pop();
    }
    name
}
