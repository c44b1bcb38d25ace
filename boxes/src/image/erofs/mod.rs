//! Makes a read-only EROFS image from tar streams, without root and without mounting anything.
//!
//! One pass: a file's content goes to the output as it is read, at ever higher block numbers, while names, owners and
//! attributes are kept in memory and written behind the content at the end. Memory is bounded by [`Limits`], never by
//! the size of files. The same archives make the same image, byte for byte.
//!
//! The image is uncompressed with 4 KiB blocks, so that the kernel maps file pages straight from the page cache of the
//! block device, and needs no feature newer than Linux 5.4. Short tails of files are stored beside their inodes.
//!
//! Kept: owner, permissions with setuid, setgid and sticky, modification time to the nanosecond, hard links, symbolic
//! links, devices, fifos, extended attributes, names of any bytes, sparse files. Times of access and change are not
//! kept, as EROFS has one time only. Content of files that a later entry replaces stays behind as unused blocks.
//!
//! # Trust
//!
//! Archives are hostile: they come from registries and strangers. Nothing in them reaches the host's file system but
//! bytes of the one output file. Whatever an archive holds ends in an image or in an [`ErofsError`], never in a panic;
//! the lints below hold for all files of this module.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod dirent;
mod error;
mod format;
mod header;
mod inode;
mod pax;
mod sink;
mod sparse;
mod tar;
#[cfg(test)]
mod tests;
mod tree;
mod write;
mod xattr;

use std::fs::File;
use std::io::Read;

pub use self::error::ErofsError;
use self::inode::{Attributes, FileData, tail_is_inline, tail_of};
use self::sink::Sink;
use self::sparse::Segment;
use self::tar::{Archive, Body};
use self::tree::{Kind, Tree};

/// Content is moved in pieces of this size.
const COPY_BYTES: usize = 64 * 1024;

/// What an archive may cost. Each is an error when exceeded, unless it says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Files, counting directories that are only implied and files that are later replaced.
    pub entries: u64,
    /// Names, link targets and extended attributes, kept in memory.
    pub metadata_bytes: u64,
    /// Tails of files, kept in memory to be stored beside their inodes; further tails get a block of their own.
    pub inline_bytes: u64,
    /// Length of the image, holes of sparse files included.
    pub image_bytes: u64,
}

impl Default for Limits {
    /// Several times what the largest images in use need, and still well below a gigabyte of memory.
    fn default() -> Self {
        Self {
            entries: 1 << 20,
            metadata_bytes: 256 << 20,
            inline_bytes: 64 << 20,
            image_bytes: 1 << 40,
        }
    }
}

/// How to build an image.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildOptions {
    /// Caps.
    pub limits: Limits,
    /// The volume's UUID; derived from the content if not given.
    pub uuid: Option<[u8; 16]>,
}

/// What was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Entries read.
    pub entries: u64,
    /// Files in the image.
    pub inodes: u64,
    /// Bytes of content read, replaced files included.
    pub content_bytes: u64,
    /// Length of the image.
    pub image_bytes: u64,
    /// Extended attributes left out: other systems' namespaces, and what the overlay file system would take for its own.
    pub ignored_xattrs: u64,
    /// SHA-256 of all that the image holds. The same content gives the same digest; it is not that of the file.
    pub content_digest: [u8; 32],
}

/// Builds an image from one plain (not compressed) tar stream.
///
/// The output file is emptied first. On an error it holds rubbish, which is the caller's to remove. The stream is read
/// up to the archive's end mark, so a caller who wants the rest (a pipe, a digest) passes `&mut reader` and reads on.
pub fn build_from_tar(
    tar: impl Read,
    out: &File,
    options: &BuildOptions,
) -> Result<Summary, ErofsError> {
    let mut builder = Builder::new(out, options)?;
    builder.add_tar(tar)?;
    builder.finish()
}

/// An image in the making.
pub struct Builder<'a> {
    tree: Tree,
    sink: Sink<'a>,
    uuid: Option<[u8; 16]>,
    inline_bytes_left: u64,
    buffer: Vec<u8>,
    entries: u64,
    content_bytes: u64,
    ignored_xattrs: u64,
}

impl<'a> Builder<'a> {
    /// Starts an image with an empty root.
    pub fn new(out: &'a File, options: &BuildOptions) -> Result<Self, ErofsError> {
        let limits = options.limits;
        Ok(Self {
            tree: Tree::new(limits.entries, limits.metadata_bytes),
            sink: Sink::new(out, limits.image_bytes)?,
            uuid: options.uuid,
            inline_bytes_left: limits.inline_bytes,
            buffer: vec![0; COPY_BYTES],
            entries: 0,
            content_bytes: 0,
            ignored_xattrs: 0,
        })
    }

    /// Adds an archive; its entries replace those of the same path that came before, in this archive or an earlier one.
    pub fn add_tar(&mut self, tar: impl Read) -> Result<(), ErofsError> {
        let mut archive = Archive::new(tar);
        while let Some(entry) = archive.next_entry()? {
            self.entries = self.entries.saturating_add(1);
            self.ignored_xattrs = self.ignored_xattrs.saturating_add(entry.ignored_xattrs);
            let (path, attributes) = (&entry.path[..], entry.attributes);
            match entry.body {
                Body::Directory => self.tree.insert_directory(path, attributes)?,
                Body::HardLink(target) => self.tree.link(path, &target)?,
                Body::Symlink(target) => {
                    self.tree.insert(path, attributes, Kind::Symlink(target.into()))?
                }
                Body::Device(kind, number) => {
                    self.tree.insert(path, attributes, Kind::Device(kind, number))?
                }
                Body::Fifo => self.tree.insert(path, attributes, Kind::Fifo)?,
                Body::Regular { size, map } => {
                    let data = self.store(&mut archive, size, map.as_deref(), &attributes)?;
                    self.tree.insert(path, attributes, Kind::Regular(data))?;
                }
            }
        }
        Ok(())
    }

    /// Writes the metadata and the superblock.
    pub fn finish(mut self) -> Result<Summary, ErofsError> {
        let mut superblock = write::write_metadata(&self.tree, &mut self.sink)?;
        let content_digest = self.sink.digest();
        superblock.uuid = self.uuid.unwrap_or_else(|| uuid_from(&content_digest));
        let image_bytes = self.sink.position();
        self.sink.finish(&superblock.first_block())?;
        Ok(Summary {
            entries: self.entries,
            inodes: superblock.inodes,
            content_bytes: self.content_bytes,
            image_bytes,
            ignored_xattrs: self.ignored_xattrs,
            content_digest,
        })
    }

    /// Moves a file's content to the image, all but a short tail.
    fn store<R: Read>(
        &mut self,
        archive: &mut Archive<R>,
        size: u64,
        map: Option<&[Segment]>,
        attributes: &Attributes,
    ) -> Result<FileData, ErofsError> {
        // At once, rather than after a terabyte of it.
        self.sink.check_room(size)?;
        let first_block = self.sink.block()?;
        let mut tail = Vec::new();
        if let Some(map) = map {
            let mut position = 0_u64;
            for segment in map {
                self.sink.skip(segment.offset.saturating_sub(position))?;
                self.copy(archive, segment.length)?;
                position = segment.offset.saturating_add(segment.length);
            }
            self.sink.skip(size.saturating_sub(position))?;
        } else {
            let inline =
                tail_is_inline(size, attributes) && tail_of(size) <= self.inline_bytes_left;
            let inline_bytes = if inline { tail_of(size) } else { 0 };
            self.copy(archive, size.saturating_sub(inline_bytes))?;
            self.inline_bytes_left = self.inline_bytes_left.saturating_sub(inline_bytes);
            self.content_bytes = self.content_bytes.saturating_add(inline_bytes);
            tail.resize(usize::try_from(inline_bytes).unwrap_or_default(), 0);
            archive.read_content(&mut tail)?;
        }
        self.sink.align()?;
        Ok(FileData { size, first_block, tail: tail.into() })
    }

    fn copy<R: Read>(&mut self, archive: &mut Archive<R>, count: u64) -> Result<(), ErofsError> {
        let mut left = count;
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
            let Some(piece) = self.buffer.get_mut(..length) else { break };
            archive.read_content(piece)?;
            self.sink.write(piece)?;
            left = left.saturating_sub(u64::try_from(length).unwrap_or(u64::MAX));
        }
        self.content_bytes = self.content_bytes.saturating_add(count);
        Ok(())
    }
}

/// A UUID of version 8 (RFC 9562: any bits one likes) from the head of the digest.
fn uuid_from(digest: &[u8; 32]) -> [u8; 16] {
    let mut uuid = [0; 16];
    for (to, from) in uuid.iter_mut().zip(digest) {
        *to = *from;
    }
    uuid[6] = (uuid[6] & 0x0f) | 0x80;
    uuid[8] = (uuid[8] & 0x3f) | 0x80;
    uuid
}
