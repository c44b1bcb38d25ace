//! Archives: an image comes from a registry, and whoever pushed it chose every byte.

use crate::input::Input;
use boxes::image::erofs::{BuildOptions, Limits, build_from_tar};

/// Far below what a real image needs, so that limits are reached too.
const LIMITS: Limits =
    Limits { entries: 64, metadata_bytes: 16 << 10, inline_bytes: 16 << 10, image_bytes: 4 << 20 };

const BLOCK: usize = 512;

/// Builds an image from an archive: from the bytes as they are, or from headers whose checksums are right and whose
/// other fields are the bytes'.
///
/// # Panics
/// When an image is longer than allowed, or the same archive makes another image the second time.
pub fn erofs_tar(data: &[u8]) {
    let mut input = Input::new(data);
    let archive = if input.flag() { archive(&mut input) } else { input.rest().to_vec() };
    let options = BuildOptions { limits: LIMITS, uuid: None };
    let mut images = Vec::new();
    for _ in 0..2 {
        let file = tempfile::tempfile().expect("a temporary file");
        let summary = build_from_tar(archive.as_slice(), &file, &options).ok();
        if let Some(summary) = &summary {
            assert!(summary.image_bytes <= LIMITS.image_bytes);
            assert_eq!(file.metadata().expect("a file of our own").len(), summary.image_bytes);
        }
        images.push(summary);
    }
    assert_eq!(images[0], images[1], "the same archive makes the same image");
}

fn archive(input: &mut Input<'_>) -> Vec<u8> {
    let mut archive = Vec::new();
    while !input.is_empty() && archive.len() < 1 << 20 {
        entry(input, &mut archive);
    }
    if archive.len() & 1 << 9 == 0 {
        archive.resize(archive.len() + 2 * BLOCK, 0);
    }
    archive
}

fn entry(input: &mut Input<'_>, archive: &mut Vec<u8>) {
    let mut header = [0; BLOCK];
    let name = name(input);
    header[..name.len().min(100)].copy_from_slice(&name[..name.len().min(100)]);
    let target = if input.below(4) == 0 { self::name(input) } else { Vec::new() };
    header[157..157 + target.len().min(100)].copy_from_slice(&target[..target.len().min(100)]);
    octal(&mut header[100..108], input.u16().into());
    octal(&mut header[108..116], input.u16().into());
    octal(&mut header[116..124], input.u16().into());
    octal(&mut header[136..148], input.u32().into());
    octal(&mut header[329..337], input.u8().into());
    octal(&mut header[337..345], input.u8().into());
    header[257..265].copy_from_slice(if input.flag() { b"ustar\x0000" } else { b"ustar  \0" });
    let kinds = b"0123456gxLKS\0";
    header[156] = kinds[usize::from(input.below(13))];
    // What follows, and what the header says of it, which may be less or more, or in base 256.
    let content = if matches!(header[156], b'g' | b'x') { records(input) } else { content(input) };
    match input.below(16) {
        0 => header[124..136].copy_from_slice(&{
            let mut size = [0x80; 12];
            size[4..].copy_from_slice(&input.u64().to_be_bytes());
            size
        }),
        1 => octal(&mut header[124..136], input.u32().into()),
        _ => octal(&mut header[124..136], content.len() as u64),
    }
    // Single bytes anywhere, then a checksum that is right.
    for _ in 0..input.below(3) {
        let at = usize::from(input.u16()) % BLOCK;
        header[at] = input.u8();
    }
    header[148..156].fill(b' ');
    let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
    octal(&mut header[148..155], sum);
    archive.extend(header);
    archive.extend(&content);
    archive.resize(archive.len().next_multiple_of(BLOCK), 0);
}

/// A path of few parts, so that entries meet each other.
fn name(input: &mut Input<'_>) -> Vec<u8> {
    let parts: [&[u8]; 12] = [
        b"a",
        b"b",
        b"c",
        b"..",
        b".",
        b"",
        b".wh.a",
        b".wh..wh..opq",
        b"\xff\xfe",
        b"etc",
        b"dev",
        b"a",
    ];
    let mut name = Vec::new();
    for _ in 0..=input.below(4) {
        name.extend(parts[usize::from(input.below(12))]);
        name.push(b'/');
    }
    if input.flag() {
        name.pop();
    }
    if input.below(32) == 0 {
        name.extend([b'n'; 300]);
    }
    name
}

fn content(input: &mut Input<'_>) -> Vec<u8> {
    match input.below(4) {
        0 => Vec::new(),
        1 => vec![0; usize::from(input.u16())],
        2 => name(input),
        _ => short_bytes(input, u8::MAX),
    }
}

fn short_bytes(input: &mut Input<'_>, below: u8) -> Vec<u8> {
    let count = usize::from(input.below(below));
    input.take(count).to_vec()
}

/// Extended header records: mostly with right lengths.
fn records(input: &mut Input<'_>) -> Vec<u8> {
    let keys = [
        "path",
        "linkpath",
        "size",
        "uid",
        "gid",
        "mtime",
        "SCHILY.xattr.user.a",
        "SCHILY.xattr.security.capability",
        "SCHILY.xattr.trusted.overlay.opaque",
        "GNU.sparse.major",
        "GNU.sparse.minor",
        "GNU.sparse.realsize",
        "GNU.sparse.map",
        "GNU.sparse.name",
        "hdrcharset",
        "",
    ];
    let mut records = Vec::new();
    for _ in 0..input.below(5) {
        let key = keys[usize::from(input.below(16))];
        let value = match input.below(4) {
            0 => name(input),
            1 => input.u64().to_string().into_bytes(),
            2 => input.u8().to_string().into_bytes(),
            _ => short_bytes(input, 40),
        };
        let body = [b" ", key.as_bytes(), b"=", &value, b"\n"].concat();
        let mut len = body.len() + 1;
        while len.to_string().len() + body.len() != len {
            len = len.to_string().len() + body.len();
        }
        if input.below(16) == 0 {
            len = len.wrapping_add(usize::from(input.u8())).wrapping_sub(128);
        }
        records.extend(len.to_string().into_bytes());
        records.extend(body);
    }
    records
}

/// A number as tar writes it: octal, ended by a zero byte; cut on the left if it does not fit.
fn octal(field: &mut [u8], mut value: u64) {
    let (last, digits) = field.split_last_mut().expect("fields are not empty");
    *last = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b"01234567"[usize::from(value.to_le_bytes()[0] & 7)];
        value >>= 3;
    }
}
