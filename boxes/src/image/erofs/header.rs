//! What a header says, field by field, with the PAX records that overrule it.
//!
//! # Trust
//!
//! Fields are text or binary numbers of the archive's choice; each is checked before it is believed.

use std::collections::BTreeMap;

use tar::Header;

use super::error::{ErofsError, quote};
use super::inode::{Attributes, Timestamp, encode_device};
use super::pax;
use super::xattr::{Xattr, normalise};

/// Records that apply to an entry: PAX keywords with their values, those of the entry over the archive's.
pub(super) type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// The error for a field that makes no sense.
pub(super) fn bad_field(field: &'static str, path: &[u8]) -> ErofsError {
    ErofsError::BadField { field, path: quote(path) }
}

/// What kind of entry this is, as written.
pub(super) fn type_flag(header: &Header) -> u8 {
    header.as_old().linkflag[0]
}

/// The sum of all bytes with the checksum field taken as blanks. Old archivers summed signed bytes, hence two sums.
pub(super) fn checksum_matches(header: &Header) -> bool {
    let Some(stored) = number(&header.as_old().cksum) else { return false };
    let bytes = header.as_bytes().iter().enumerate();
    let bytes = bytes.map(|(at, &byte)| if (148..156).contains(&at) { b' ' } else { byte });
    let (unsigned, signed) = bytes.fold((0_i64, 0_i64), |(unsigned, signed), byte| {
        (
            unsigned.saturating_add(i64::from(byte)),
            signed.saturating_add(i64::from(byte.cast_signed())),
        )
    });
    i64::try_from(stored).is_ok_and(|stored| stored == unsigned || stored == signed)
}

/// Reads a number field: octal digits between blanks and NULs, or big-endian binary if the top bit is set. A blank
/// field is zero, as some archivers leave fields blank that an entry has no use for.
pub(super) fn number(field: &[u8]) -> Option<u64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        return std::iter::once(first & 0x7f)
            .chain(rest.iter().copied())
            .try_fold(0_u64, |number, byte| number.checked_mul(256)?.checked_add(u64::from(byte)));
    }
    let text = field.split(|&byte| byte == 0).next()?.trim_ascii();
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 7)?;
        number.checked_mul(8)?.checked_add(u64::from(digit))
    })
}

/// Reads the time field, which alone may be negative: then it is binary and starts with a byte of ones.
fn time(field: &[u8; 12]) -> Option<i64> {
    if field.first() != Some(&0xff) {
        return i64::try_from(number(field)?).ok();
    }
    let (high, low) = field.split_last_chunk::<8>()?;
    let seconds = i64::from_be_bytes(*low);
    (high.iter().all(|&byte| byte == 0xff) && seconds < 0).then_some(seconds)
}

/// Length of the content that follows.
pub(super) fn size_of(header: &Header, path: &[u8]) -> Result<u64, ErofsError> {
    number(&header.as_old().size).ok_or_else(|| bad_field("size", path))
}

/// A device's number in EROFS's encoding.
pub(super) fn device(header: &Header, path: &[u8]) -> Result<u32, ErofsError> {
    // Both formats have the numbers at the same place; V7 has no devices.
    let (major, minor) = if let Some(ustar) = header.as_ustar() {
        (number(&ustar.dev_major), number(&ustar.dev_minor))
    } else if let Some(gnu) = header.as_gnu() {
        (number(&gnu.dev_major), number(&gnu.dev_minor))
    } else {
        (None, None)
    };
    let (major, minor) = major.zip(minor).ok_or_else(|| bad_field("device number", path))?;
    encode_device(major, minor).ok_or_else(|| ErofsError::DeviceOutOfRange {
        path: quote(path),
        major,
        minor,
    })
}

/// Owner, permissions, time and extended attributes, and how many of the latter were left out.
pub(super) fn attributes(
    header: &Header,
    records: &Records,
    path: &[u8],
) -> Result<(Attributes, u64), ErofsError> {
    let old = header.as_old();
    let record = |key: &[u8]| records.get(key).map(Vec::as_slice).filter(|value| !value.is_empty());
    let owner = |key: &'static str, field: &[u8]| -> Result<u32, ErofsError> {
        let id = match record(key.as_bytes()) {
            Some(text) => pax::decimal(text),
            None => number(field),
        };
        let id = id.ok_or_else(|| bad_field(key, path))?;
        // All ones is "no owner" to the kernel.
        let fits = u32::try_from(id).ok().filter(|id| *id != u32::MAX);
        fits.ok_or_else(|| ErofsError::OwnerOutOfRange { path: quote(path), id })
    };
    let mtime = match record(b"mtime") {
        Some(text) => pax::timestamp(text),
        None => time(&old.mtime).map(|seconds| Timestamp { seconds, nanos: 0 }),
    };
    let mode = number(&old.mode).ok_or_else(|| bad_field("mode", path))?;
    let (xattrs, ignored) = xattrs(records, path)?;
    let attributes = Attributes {
        permissions: u16::try_from(mode & 0o7777).unwrap_or_default(),
        uid: owner("uid", &old.uid)?,
        gid: owner("gid", &old.gid)?,
        mtime: mtime.ok_or_else(|| bad_field("mtime", path))?,
        xattrs,
    };
    Ok((attributes, ignored))
}

fn xattrs(records: &Records, path: &[u8]) -> Result<(Vec<Xattr>, u64), ErofsError> {
    const PREFIX: &[u8] = b"SCHILY.xattr.";
    let mut xattrs = Vec::new();
    let mut ignored = 0_u64;
    for (key, value) in records {
        let Some(name) = key.strip_prefix(PREFIX) else { continue };
        match Xattr::parse(name, value, path)? {
            Some(xattr) => xattrs.push(xattr),
            None => ignored = ignored.saturating_add(1),
        }
    }
    Ok((normalise(xattrs, path)?, ignored))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"  644 \0\0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0"), Some(0));
        assert_eq!(number(b"        "), Some(0));
        assert_eq!(number(b"77777777777"), Some(0o77_777_777_777));
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]), Some(2 << 32));
        assert_eq!(number(&[0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        for bad in [&b"8"[..], b"-1", b"1 2", b"0x1", b"", &[0xff; 12]] {
            assert_eq!(number(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn binary_times_before_1970() {
        assert_eq!(time(&[0xff; 12]), Some(-1));
        assert_eq!(time(b"00000000012\0"), Some(10));
        let mut low = [0xff; 12];
        low[1] = 0;
        assert_eq!(time(&low), None);
    }
}
