//! The images that are here: listed, removed, and swept away when nobody refers to them any more.

use super::build::image_path;
use super::is_path;
use super::resolve::{BASE, base_description};
use crate::home::Home;
use crate::lock::Gate;
use crate::{Error, Result};
use std::path::PathBuf;

/// Longest tag.
const MAX_TAG_BYTES: usize = 128;

/// An image in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// What users call it.
    pub tag: String,
    /// What stands for its content.
    pub digest: String,
    /// Its file.
    pub path: PathBuf,
    /// Size of the file.
    pub size_bytes: u64,
    /// When it was made here; absent if it came with lilbox.
    pub created_at_ms: Option<i64>,
}

/// Checks a tag: what an image may be called when it is imported.
///
/// # Errors
/// What is wrong with it.
pub fn parse_tag(tag: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    if tag.is_empty() || tag.len() > MAX_TAG_BYTES || !tag.bytes().all(allowed) || is_path(tag) {
        return Err(format!(
            "`{tag}` is not a tag: use up to {MAX_TAG_BYTES} letters, digits and `._-/:@`, not beginning like a path"
        ));
    }
    if !tag.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        return Err(format!("`{tag}` is not a tag: begin with a letter or digit"));
    }
    if tag == BASE {
        return Err(format!("`{BASE}` is the image that comes with lilbox"));
    }
    Ok(tag.into())
}

/// All images, the base image first.
///
/// # Errors
/// If the database cannot be read.
pub fn list(home: &Home) -> Result<Vec<Listed>> {
    let mut images = Vec::new();
    let path = home.install.base_image();
    if let (Ok(description), Ok(metadata)) = (base_description(&home.install), path.metadata()) {
        images.push(Listed {
            tag: BASE.into(),
            digest: description.digest,
            path,
            size_bytes: metadata.len(),
            created_at_ms: None,
        });
    }
    images.extend(home.store.images()?.into_iter().map(|record| Listed {
        path: image_path(&home.dirs, &record.digest),
        tag: record.tag,
        digest: record.digest,
        size_bytes: record.size_bytes,
        created_at_ms: Some(record.created_at_ms),
    }));
    Ok(images)
}

/// Forgets a tag. The file goes when no box needs it.
///
/// # Errors
/// [`Error::ImageNotFound`] if there is no such tag.
pub fn remove(home: &Home, tag: &str) -> Result<()> {
    let writing = home.store.writing(true)?;
    let gate = Gate::exclusive(&home.dirs.gate())?;
    if !home.store.remove_image(tag)? {
        return Err(Error::ImageNotFound(tag.into()));
    }
    writing.commit()?;
    sweep(home, &gate)
}

/// Removes image files that no tag and no box refers to. New references are made with the gate to oneself.
pub(crate) fn sweep(home: &Home, _gate: &Gate) -> Result<()> {
    let needed = home.store.digests()?;
    let directory = home.dirs.images();
    let entries = std::fs::read_dir(&directory)
        .map_err(Error::io(format!("read {}", directory.display())))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(digest) = name.to_str().and_then(|name| name.strip_suffix(".img")) else {
            continue;
        };
        if !needed.contains(digest) {
            log::info!("removing the image {digest}, which nothing refers to");
            if let Err(error) = std::fs::remove_file(entry.path()) {
                log::warn!("cannot remove {}: {error}", entry.path().display());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_neither_paths_nor_ours() {
        for good in ["mine", "mine:1", "registry.example/a/b:1.2-3", "a@sha256:00"] {
            assert_eq!(parse_tag(good).as_deref(), Ok(good));
        }
        for bad in ["", "./x", "/x", "..", "-x", "a b", "a\nb", BASE, &"x".repeat(129)] {
            assert!(parse_tag(bad).is_err(), "{bad}");
        }
    }
}
