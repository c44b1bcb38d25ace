//! The second half of an image: directories, inodes and shared attributes, once the tree is complete.
//!
//! File content already lies in the blocks behind the first one. Behind it come, in this order: the blocks of large
//! directories and links, the metadata area (inodes, each with its attributes and its inline bytes), and the shared
//! attributes. The metadata area starts with the root, because the superblock has 16 bits for the root's number.
//! A directory's children lie side by side, so that listing it with attributes reads few blocks.

use super::dirent::{Dirent, FileType, directory_bytes, directory_content};
use super::error::ErofsError;
use super::format::{
    BLOCK_BYTES, DataLayout, FIRST_NID, INODE_BYTES, InodeRecord, SLOT_BYTES, Superblock,
};
use super::inode::{DeviceKind, tail_is_inline, tail_of};
use super::sink::Sink;
use super::tree::{Children, Kind, Node, NodeId, Tree};
use super::xattr::SharedXattrs;

/// What the writer found out about a file; all lists run parallel to the tree's.
struct Plan<'t> {
    tree: &'t Tree,
    /// Reachable files in the order in which they are stored.
    order: Vec<NodeId>,
    facts: Vec<Facts>,
    shared: SharedXattrs<'t>,
}

#[derive(Clone, Copy, Debug)]
struct Facts {
    /// Names in the tree; for a directory its own, `.`, and the `..` of each subdirectory.
    links: u32,
    /// A directory's parent.
    parent: NodeId,
    /// Bytes of content.
    size: u64,
    /// First block of what is not inline.
    first_block: u32,
    /// Offset in the metadata area.
    offset: u64,
}

/// Facts about a file of which nothing is known.
const NOTHING: Facts = Facts { links: 0, parent: Tree::ROOT, size: 0, first_block: 0, offset: 0 };

/// Writes everything behind the file content, and returns the superblock that describes it.
pub(super) fn write_metadata(tree: &Tree, sink: &mut Sink<'_>) -> Result<Superblock, ErofsError> {
    let mut plan = Plan::new(tree);
    sink.align()?;
    plan.place_blocks(sink)?;
    plan.place_inodes();
    plan.write_blocks(sink)?;
    let metadata_block = sink.block()?;
    plan.write_inodes(sink)?;
    let xattr_block = if plan.shared.area().is_empty() { 0 } else { sink.block()? };
    sink.write(plan.shared.area())?;
    sink.align()?;
    let newest = plan.order.iter().map(|&id| tree.node(id).attributes.mtime.seconds).max();
    Ok(Superblock {
        inodes: u64::try_from(plan.order.len()).unwrap_or(u64::MAX),
        built_seconds: newest.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0),
        blocks: sink.block()?,
        metadata_block,
        xattr_block,
        root_nid: plan.nid(Tree::ROOT),
        uuid: [0; 16],
    })
}

impl<'t> Plan<'t> {
    fn new(tree: &'t Tree) -> Self {
        let mut plan = Self {
            tree,
            order: vec![Tree::ROOT],
            facts: vec![NOTHING; tree.len()],
            shared: SharedXattrs::default(),
        };
        plan.fact_mut(Tree::ROOT).links = 2;
        let mut directories = vec![Tree::ROOT];
        while let Some(directory) = directories.pop() {
            plan.visit(directory, &mut directories);
        }
        plan.shared = SharedXattrs::collect(
            plan.order.iter().map(|&id| &tree.node(id).attributes.xattrs[..]),
        );
        plan
    }

    /// Counts a directory's names and queues the files that were not seen before, and its subdirectories so that they
    /// are visited in order.
    fn visit(&mut self, directory: NodeId, directories: &mut Vec<NodeId>) {
        let first = directories.len();
        for &child in children(self.tree.node(directory)).into_iter().flat_map(Children::values) {
            if matches!(self.tree.node(child).kind, Kind::Directory(_)) {
                let above = self.fact_mut(directory);
                above.links = above.links.saturating_add(1);
                *self.fact_mut(child) = Facts { links: 2, parent: directory, ..NOTHING };
                self.order.push(child);
                directories.push(child);
                continue;
            }
            let fact = self.fact_mut(child);
            fact.links = fact.links.saturating_add(1);
            if fact.links == 1 {
                self.order.push(child);
            }
        }
        if let Some(new) = directories.get_mut(first..) {
            new.reverse();
        }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "the list is as long as the tree, whose ids these are"
    )]
    fn fact(&self, id: NodeId) -> &Facts {
        &self.facts[id.index()]
    }

    #[expect(clippy::indexing_slicing, reason = "as in `fact`")]
    fn fact_mut(&mut self, id: NodeId) -> &mut Facts {
        &mut self.facts[id.index()]
    }

    fn nid(&self, id: NodeId) -> u64 {
        self.fact(id).offset / SLOT_BYTES
    }

    /// A directory's names, `.` and `..` where byte order puts them.
    fn listing(&self, id: NodeId) -> Vec<Dirent<'t>> {
        let tree = self.tree;
        let dirent = |name, id: NodeId| Dirent {
            name,
            nid: self.nid(id),
            file_type: file_type(&tree.node(id).kind),
        };
        let names = children(tree.node(id)).into_iter().flatten();
        let mut listing: Vec<Dirent<'t>> =
            names.map(|(name, &child)| dirent(name, child)).collect();
        listing.push(dirent(&b"."[..], id));
        listing.push(dirent(&b".."[..], self.fact(id).parent));
        listing.sort_unstable_by_key(|entry| entry.name);
        listing
    }

    fn measure(&self, id: NodeId) -> u64 {
        match &self.tree.node(id).kind {
            Kind::Directory(_) => directory_bytes(self.listing(id).iter().map(|entry| entry.name)),
            Kind::Symlink(target) => u64::try_from(target.len()).unwrap_or(u64::MAX),
            Kind::Regular(data) => data.size,
            Kind::Device(..) | Kind::Fifo => 0,
        }
    }

    /// Bytes that are stored with the inode.
    fn inline_bytes(&self, id: NodeId) -> u64 {
        let size = self.fact(id).size;
        let node = self.tree.node(id);
        match &node.kind {
            Kind::Regular(data) => u64::try_from(data.tail.len()).unwrap_or(u64::MAX),
            _ if tail_is_inline(size, &node.attributes) => tail_of(size),
            _ => 0,
        }
    }

    /// Content of a directory or a link; that of files is in the image already.
    fn content(&self, id: NodeId) -> Vec<u8> {
        match &self.tree.node(id).kind {
            Kind::Directory(_) => directory_content(&self.listing(id)),
            Kind::Symlink(target) => target.to_vec(),
            Kind::Regular(data) => data.tail.to_vec(),
            Kind::Device(..) | Kind::Fifo => Vec::new(),
        }
    }

    fn has_content_to_write(&self, id: NodeId) -> bool {
        matches!(self.tree.node(id).kind, Kind::Directory(_) | Kind::Symlink(_))
    }

    /// Measures all content, and gives blocks to what is not inline.
    fn place_blocks(&mut self, sink: &Sink<'_>) -> Result<(), ErofsError> {
        let mut next = sink.block()?;
        for id in self.order.clone() {
            self.fact_mut(id).size = self.measure(id);
            if let Kind::Regular(data) = &self.tree.node(id).kind {
                self.fact_mut(id).first_block = data.first_block;
                continue;
            }
            let size = self.fact(id).size;
            let blocks = size.saturating_sub(self.inline_bytes(id)).div_ceil(BLOCK_BYTES);
            if blocks == 0 {
                continue;
            }
            self.fact_mut(id).first_block = next;
            let blocks = u32::try_from(blocks).ok();
            next = blocks
                .and_then(|blocks| next.checked_add(blocks))
                .ok_or_else(|| sink.too_large())?;
        }
        Ok(())
    }

    /// Gives each inode its place. An inode does not cross a block boundary, and neither does what is inline, which
    /// must be in the inode's last block; attributes may.
    fn place_inodes(&mut self) {
        let mut next = FIRST_NID.saturating_mul(SLOT_BYTES);
        for id in self.order.clone() {
            let body = self.shared.body(&self.tree.node(id).attributes.xattrs).len();
            let head = INODE_BYTES.saturating_add(u64::try_from(body).unwrap_or(u64::MAX));
            let inline = self.inline_bytes(id);
            let undivided = if inline > 0 { head.saturating_add(inline) } else { INODE_BYTES };
            let mut offset = next.next_multiple_of(SLOT_BYTES);
            if (offset % BLOCK_BYTES).saturating_add(undivided) > BLOCK_BYTES {
                offset = offset.next_multiple_of(BLOCK_BYTES);
            }
            self.fact_mut(id).offset = offset;
            next = offset.saturating_add(head).saturating_add(inline);
        }
    }

    fn write_blocks(&self, sink: &mut Sink<'_>) -> Result<(), ErofsError> {
        for &id in self.order.iter().filter(|&&id| self.has_content_to_write(id)) {
            let size = self.fact(id).size;
            let in_blocks =
                usize::try_from(size.saturating_sub(self.inline_bytes(id))).unwrap_or(usize::MAX);
            if in_blocks > 0 {
                sink.write(self.content(id).get(..in_blocks).unwrap_or_default())?;
                sink.align()?;
            }
        }
        Ok(())
    }

    fn write_inodes(&self, sink: &mut Sink<'_>) -> Result<(), ErofsError> {
        let start = sink.position();
        let mut bytes = Vec::new();
        for (serial, &id) in (1_u32..).zip(&self.order) {
            let gap = self.fact(id).offset.saturating_sub(sink.position().saturating_sub(start));
            sink.skip(gap)?;
            bytes.clear();
            self.store_inode(id, serial, &mut bytes);
            sink.write(&bytes)?;
        }
        sink.align()
    }

    fn store_inode(&self, id: NodeId, serial: u32, into: &mut Vec<u8>) {
        let Node { attributes, kind } = self.tree.node(id);
        let size = self.fact(id).size;
        let inline = usize::try_from(self.inline_bytes(id)).unwrap_or_default();
        let body = self.shared.body(&attributes.xattrs);
        let record = InodeRecord {
            layout: if inline > 0 { DataLayout::Inline } else { DataLayout::Plain },
            xattr_bytes: body.len(),
            mode: type_bits(kind) | attributes.permissions,
            size,
            address: if let Kind::Device(_, number) = kind {
                *number
            } else {
                self.fact(id).first_block
            },
            serial,
            uid: attributes.uid,
            gid: attributes.gid,
            seconds: attributes.mtime.seconds,
            nanos: attributes.mtime.nanos,
            links: self.fact(id).links,
        };
        record.store(into);
        into.extend(body);
        if inline > 0 {
            let content = self.content(id);
            into.extend(content.get(content.len().saturating_sub(inline)..).unwrap_or_default());
        }
    }
}

fn children(node: &Node) -> Option<&Children> {
    match &node.kind {
        Kind::Directory(children) => Some(children),
        _ => None,
    }
}

fn file_type(kind: &Kind) -> FileType {
    match kind {
        Kind::Directory(_) => FileType::Directory,
        Kind::Regular(_) => FileType::Regular,
        Kind::Symlink(_) => FileType::Symlink,
        Kind::Device(DeviceKind::Character, _) => FileType::Character,
        Kind::Device(DeviceKind::Block, _) => FileType::Block,
        Kind::Fifo => FileType::Fifo,
    }
}

/// The type as the mode's upper bits have it.
fn type_bits(kind: &Kind) -> u16 {
    match file_type(kind) {
        FileType::Fifo => 0o010_000,
        FileType::Character => 0o020_000,
        FileType::Directory => 0o040_000,
        FileType::Block => 0o060_000,
        FileType::Regular => 0o100_000,
        FileType::Symlink => 0o120_000,
    }
}
