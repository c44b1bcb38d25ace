//! Images are built, read back by an independent reader and, where they are installed, by the tools of erofs-utils.

mod accepted;
mod generated;
mod maker;
mod reader;
mod refused;
mod tools;

use std::fs::File;

use sha2::{Digest, Sha256};

use super::{BuildOptions, ErofsError, Summary, build_from_tar};

fn sha256(data: &[u8]) -> Vec<u8> {
    Sha256::digest(data).to_vec()
}

fn build_with(tar: &[u8], options: &BuildOptions) -> Result<(File, Summary), ErofsError> {
    let file = tempfile::tempfile().unwrap();
    let summary = build_from_tar(tar, &file, options)?;
    Ok((file, summary))
}

fn build(tar: &[u8]) -> Result<(File, Summary), ErofsError> {
    build_with(tar, &BuildOptions::default())
}

/// Builds an image that must come out right and lists it.
fn listing(tar: &[u8]) -> reader::Listing {
    let (file, summary) = build(tar).unwrap();
    assert_eq!(summary.image_bytes, file.metadata().unwrap().len());
    reader::list(&file)
}
