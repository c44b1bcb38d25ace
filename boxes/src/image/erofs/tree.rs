//! The tree of files as it grows entry by entry: paths, implied directories, replacement, links.
//!
//! Files live in a list and directories map names to indices in it, so hard links are two names with one index, and
//! whatever an entry replaces simply becomes unreachable. Link counts are not kept here; the writer counts names.
//! Several archives can be applied one after the other, since nothing here knows where an archive ends.
//!
//! # Trust
//!
//! Paths and link targets come from the archive. Nothing is followed outside the tree (there is no host path here at
//! all), the number of files and the bytes kept are capped, and each lookup has a bounded number of steps. Directories
//! cannot form a cycle, as each has one name only: hard links to them are refused.

use std::collections::BTreeMap;

use super::error::{ErofsError, quote};
use super::inode::{Attributes, DeviceKind, FileData};

/// Longest name in a directory.
const NAME_LIMIT_BYTES: usize = 255;

/// As many symbolic links are followed in one path as Linux follows.
const SYMLINK_LIMIT: u32 = 40;

/// Names looked up for one path, those in symbolic links included. A path of 4 KiB has at most 2,048; links could
/// multiply that by forty for each of a million entries.
const STEP_LIMIT: u32 = 4096;

/// What a file costs in memory beyond its names: rough, and only there to make the cap mean something.
const NODE_COST_BYTES: u64 = 64;

/// A file in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(u32);

impl NodeId {
    /// Position in lists that run parallel to the tree's.
    pub fn index(self) -> usize {
        // A u32 always fits: the crate supports 32-bit and 64-bit targets only.
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// Names in a directory, sorted by bytes as EROFS wants them.
pub(super) type Children = BTreeMap<Box<[u8]>, NodeId>;

/// One file.
#[derive(Debug)]
pub(super) struct Node {
    pub attributes: Attributes,
    pub kind: Kind,
}

/// What it is.
#[derive(Debug)]
pub(super) enum Kind {
    Directory(Children),
    Regular(FileData),
    Symlink(Box<[u8]>),
    Device(DeviceKind, u32),
    Fifo,
}

/// All files.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    kept_bytes: u64,
    entry_limit: u64,
    kept_limit: u64,
}

impl Tree {
    /// The root.
    pub const ROOT: NodeId = NodeId(0);

    /// A tree with nothing but a root, to hold at most so many files and so many bytes of names and attributes.
    pub fn new(entry_limit: u64, kept_limit: u64) -> Self {
        let root = Node {
            attributes: Attributes::implied_directory(),
            kind: Kind::Directory(Children::new()),
        };
        Self { nodes: vec![root], kept_bytes: 0, entry_limit, kept_limit }
    }

    /// Number of files ever added: an upper bound of every [`NodeId::index`].
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// A file.
    #[expect(
        clippy::indexing_slicing,
        reason = "ids are made by `push` alone and no file is ever removed from the list"
    )]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    #[expect(clippy::indexing_slicing, reason = "as in `node`")]
    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.index()]
    }

    /// Puts a directory at a path; one that is there already keeps its children and takes the new attributes.
    pub fn insert_directory(
        &mut self,
        path: &[u8],
        attributes: Attributes,
    ) -> Result<(), ErofsError> {
        self.charge_attributes(&attributes)?;
        let Some((parent, name)) = self.locate(path, true)? else {
            self.node_mut(Self::ROOT).attributes = attributes;
            return Ok(());
        };
        if let Some(existing) = self.child(parent, name)
            && let Node { attributes: old, kind: Kind::Directory(_) } = self.node_mut(existing)
        {
            *old = attributes;
            return Ok(());
        }
        self.add(parent, name, Node { attributes, kind: Kind::Directory(Children::new()) })?;
        Ok(())
    }

    /// Puts anything but a directory at a path, in place of whatever is there.
    pub fn insert(
        &mut self,
        path: &[u8],
        attributes: Attributes,
        kind: Kind,
    ) -> Result<(), ErofsError> {
        if let Kind::Symlink(target) = &kind {
            if target.is_empty() {
                return Err(ErofsError::EmptyLinkTarget { path: quote(path) });
            }
            self.charge(target.len())?;
        }
        self.charge_attributes(&attributes)?;
        let (parent, name) = self.locate(path, true)?.ok_or(ErofsError::RootNotDirectory)?;
        self.add(parent, name, Node { attributes, kind })?;
        Ok(())
    }

    /// Gives the file at `target` another name.
    pub fn link(&mut self, path: &[u8], target: &[u8]) -> Result<(), ErofsError> {
        let to_directory =
            || ErofsError::LinkToDirectory { path: quote(path), target: quote(target) };
        let missing = || ErofsError::MissingLinkTarget { path: quote(path), target: quote(target) };
        let located = match self.locate(target, false) {
            Err(ErofsError::NotADirectory { .. }) => return Err(missing()),
            other => other?,
        };
        let (target_parent, target_name) = located.ok_or_else(to_directory)?;
        let id = self.child(target_parent, target_name).ok_or_else(missing)?;
        if matches!(self.node(id).kind, Kind::Directory(_)) {
            return Err(to_directory());
        }
        let (parent, name) = self.locate(path, true)?.ok_or(ErofsError::RootNotDirectory)?;
        self.charge_name(name)?;
        self.set_child(parent, name, id);
        Ok(())
    }

    /// Accounts for bytes that are kept in memory.
    pub fn charge(&mut self, bytes: usize) -> Result<(), ErofsError> {
        self.kept_bytes = self.kept_bytes.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        if self.kept_bytes > self.kept_limit {
            return Err(ErofsError::TooMuchMetadata { limit: self.kept_limit });
        }
        Ok(())
    }

    fn charge_attributes(&mut self, attributes: &Attributes) -> Result<(), ErofsError> {
        let stored = attributes
            .xattrs
            .iter()
            .fold(0_usize, |sum, xattr| sum.saturating_add(xattr.stored_bytes()));
        self.charge(stored)
    }

    fn charge_name(&mut self, name: &[u8]) -> Result<(), ErofsError> {
        self.charge(name.len())?;
        self.charge(usize::try_from(NODE_COST_BYTES).unwrap_or_default())
    }

    fn add(&mut self, parent: NodeId, name: &[u8], node: Node) -> Result<NodeId, ErofsError> {
        self.charge_name(name)?;
        let count = u64::try_from(self.nodes.len()).unwrap_or(u64::MAX);
        let id = u32::try_from(self.nodes.len()).ok().filter(|_| count <= self.entry_limit);
        let id = NodeId(id.ok_or(ErofsError::TooManyEntries { limit: self.entry_limit })?);
        self.nodes.push(node);
        self.set_child(parent, name, id);
        Ok(id)
    }

    fn child(&self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        match &self.node(directory).kind {
            Kind::Directory(children) => children.get(name).copied(),
            _ => None,
        }
    }

    fn set_child(&mut self, directory: NodeId, name: &[u8], id: NodeId) {
        if let Kind::Directory(children) = &mut self.node_mut(directory).kind {
            children.insert(name.into(), id);
        }
    }

    /// Finds the directory that holds a path's last component, following symbolic links on the way, and makes missing
    /// ones if asked to; `None` for the root itself.
    fn locate<'p>(
        &mut self,
        path: &'p [u8],
        create: bool,
    ) -> Result<Option<(NodeId, &'p [u8])>, ErofsError> {
        if path.contains(&0) {
            return Err(ErofsError::NulInName { path: quote(path) });
        }
        let mut parents = components(path).collect::<Vec<_>>();
        if parents.contains(&&b".."[..]) {
            return Err(ErofsError::ParentComponent { path: quote(path) });
        }
        if parents.iter().any(|name| name.len() > NAME_LIMIT_BYTES) {
            return Err(ErofsError::NameTooLong { path: quote(path) });
        }
        let Some(name) = parents.pop() else { return Ok(None) };
        match self.walk(&parents, create, path)? {
            Some(directory) => Ok(Some((directory, name))),
            None => Err(ErofsError::NotADirectory { path: quote(path) }),
        }
    }

    fn walk(
        &mut self,
        parents: &[&[u8]],
        create: bool,
        path: &[u8],
    ) -> Result<Option<NodeId>, ErofsError> {
        let mut ahead: Vec<Box<[u8]>> = parents.iter().rev().map(|&name| name.into()).collect();
        let mut behind: Vec<NodeId> = Vec::new();
        let (mut steps, mut links) = (0_u32, 0_u32);
        while let Some(name) = ahead.pop() {
            steps = steps.saturating_add(1);
            if steps > STEP_LIMIT {
                return Err(ErofsError::SymlinkLoop { path: quote(path) });
            }
            if *name == *b".." {
                behind.pop();
                continue;
            }
            let here = behind.last().copied().unwrap_or(Self::ROOT);
            let Some(next) = self.child(here, &name) else {
                if !create {
                    return Ok(None);
                }
                if name.len() > NAME_LIMIT_BYTES {
                    return Err(ErofsError::NameTooLong { path: quote(path) });
                }
                let kind = Kind::Directory(Children::new());
                behind.push(self.add(
                    here,
                    &name,
                    Node { attributes: Attributes::implied_directory(), kind },
                )?);
                continue;
            };
            match &self.node(next).kind {
                Kind::Directory(_) => behind.push(next),
                Kind::Symlink(target) => {
                    links = links.saturating_add(1);
                    if links > SYMLINK_LIMIT {
                        return Err(ErofsError::SymlinkLoop { path: quote(path) });
                    }
                    if target.starts_with(b"/") {
                        behind.clear();
                    }
                    let mut names: Vec<Box<[u8]>> = components(target).map(Into::into).collect();
                    names.reverse();
                    ahead.extend(names);
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(behind.last().copied().unwrap_or(Self::ROOT)))
    }
}

/// A path's components; empty ones and `.` mean nothing, and a leading slash neither, as all paths start at the root.
fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}
