//! From what the user wrote to a file that a box can start from.

use super::build::{FILE_DIGEST, file_fingerprint, from_path, image_path};
use super::{ImageConfig, ResolvedImage, detect};
use crate::home::Home;
use crate::install::Install;
use crate::paths::Dirs;
use crate::progress::Tell;
use crate::store::BoxRecord;
use crate::{Error, Result};
use serde::Deserialize;
use std::fs::File;
use std::path::Path;

/// The image that comes with lilbox, and the default.
pub const BASE: &str = "lilbox/base";

/// Description of the base image, made together with it.
#[derive(Debug, Deserialize)]
pub(super) struct BaseDescription {
    pub(super) digest: String,
    #[serde(default)]
    config: ImageConfig,
}

/// Tells whether a reference is a path: by how it is written, never by what happens to lie on the disk.
#[must_use]
pub fn is_path(reference: &str) -> bool {
    reference.starts_with(['/', '~'])
        || ["./", "../"].iter().any(|prefix| reference.starts_with(prefix))
        || [".", ".."].contains(&reference)
}

/// Finds the image of that reference, making it if it is a path to a directory or an archive; `tell` hears of
/// that.
///
/// # Errors
/// [`Error::ImageNotFound`], [`Error::ImageInvalid`], or [`Error::InstallBroken`] if the base image is missing.
pub fn resolve(home: &Home, reference: &str, tell: &mut Tell<'_>) -> Result<ResolvedImage> {
    let (dirs, install, store) = (&home.dirs, &home.install, &home.store);
    if reference == BASE {
        let description = base_description(install)?;
        let file = install.base_image();
        if !file.exists() {
            return Err(Error::InstallBroken { path: file });
        }
        return Ok(ResolvedImage { digest: description.digest, file, config: description.config });
    }
    if is_path(reference) {
        return resolve_path(home, reference, tell);
    }
    let record = store.image(reference)?.ok_or_else(|| Error::ImageNotFound(reference.into()))?;
    let file = image_path(dirs, &record.digest);
    if !file.exists() {
        return Err(Error::ImageNotFound(reference.into()));
    }
    Ok(ResolvedImage { digest: record.digest, file, config: record.config })
}

fn resolve_path(home: &Home, reference: &str, tell: &mut Tell<'_>) -> Result<ResolvedImage> {
    // A shell replaces a leading `~`; one that is left over is part of no path we know.
    let path = Path::new(reference).canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::ImageNotFound(reference.into()),
        _ => Error::io(format!("open the image {reference}"))(error),
    })?;
    if path.is_file() {
        let file = File::open(&path).map_err(Error::io(format!("open the image {reference}")))?;
        if detect(&file, &path)?.is_some() {
            let digest = file_fingerprint(&file, &path)?;
            return Ok(ResolvedImage { digest, file: path, config: ImageConfig::default() });
        }
    }
    let record = from_path(home, &path, tell)?;
    let file = image_path(&home.dirs, &record.digest);
    Ok(ResolvedImage { digest: record.digest, file, config: record.config })
}

pub(super) fn base_description(install: &Install) -> Result<BaseDescription> {
    let path = install.base_description();
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::InstallBroken { path });
        }
        result => result.map_err(Error::io(format!("read {}", path.display())))?,
    };
    serde_json::from_str(&text)
        .map_err(|error| Error::StateInvalid { path, cause: error.to_string() })
}

/// Keeps an image for a box that is to live: a file that a later installation replaces stays reachable under its digest
/// in the images directory. Where that is not possible (another disk, another owner) the box refers to the file itself.
pub(crate) fn pin(dirs: &Dirs, image: ResolvedImage) -> ResolvedImage {
    let pinned = image_path(dirs, &image.digest);
    if image.file.starts_with(dirs.images()) || image.digest.starts_with(FILE_DIGEST) {
        return image;
    }
    let Ok(file) = image.file.canonicalize() else { return image };
    match std::fs::hard_link(&file, &pinned) {
        Ok(()) => ResolvedImage { file: pinned, ..image },
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            ResolvedImage { file: pinned, ..image }
        }
        Err(error) => {
            log::debug!("{} is used where it is: {error}", file.display());
            image
        }
    }
}

/// Opens the image that a box was made from.
///
/// # Errors
/// [`Error::ImageNotFound`] if the file is gone, [`Error::ImageInvalid`] if it was replaced by another.
pub fn verify(dirs: &Dirs, install: &Install, record: &BoxRecord) -> Result<File> {
    let path = &record.image_file;
    let reference = &record.spec.image;
    let file = File::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::ImageNotFound(reference.clone()),
        _ => Error::io(format!("open the image {}", path.display()))(error),
    })?;
    if path.starts_with(dirs.images()) {
        return Ok(file);
    }
    let digest = if record.image_digest.starts_with(FILE_DIGEST) {
        file_fingerprint(&file, path)?
    } else {
        base_description(install)?.digest
    };
    if digest == record.image_digest {
        return Ok(file);
    }
    let cause = format!("{} was replaced since box '{}' was made", path.display(), record.name);
    Err(Error::ImageInvalid { reference: reference.clone(), cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_from_tags_by_how_they_are_written() {
        for path in ["/srv/root", "./root", "../x", ".", "..", "~/x"] {
            assert!(is_path(path), "{path}");
        }
        for tag in ["lilbox/base", "debian:12", "root", "a/b/c:1", ".hidden", "..x"] {
            assert!(!is_path(tag), "{tag}");
        }
    }
}
