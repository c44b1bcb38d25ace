//! PAX extended header records: `<length> <key>=<value>\n`.
//!
//! # Trust
//!
//! Every byte is hostile. Values are binary (extended attributes may hold newlines and NULs), so records are cut by
//! their length prefix and never by looking for a newline, which is what the `tar` crate's own iterator does.

use super::inode::Timestamp;

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    /// Keyword, such as `path`.
    pub key: &'a [u8],
    /// Value, any bytes. Empty means that the keyword is withdrawn.
    pub value: &'a [u8],
}

/// Iterates over the records of an extended header; yields `None` inside for a malformed one, and then ends.
pub(super) fn records(mut data: &[u8]) -> impl Iterator<Item = Option<Record<'_>>> {
    std::iter::from_fn(move || {
        if data.is_empty() {
            return None;
        }
        let parsed = split_record(data);
        data = parsed.map_or(&[], |(_, rest)| rest);
        Some(parsed.map(|(record, _)| record))
    })
}

fn split_record(data: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let space = data.iter().take(20).position(|&b| b == b' ')?;
    let length = usize::try_from(decimal(data.get(..space)?)?).ok()?;
    let body_start = space.checked_add(1)?;
    let body_end = length.checked_sub(1)?;
    let body = data.get(body_start..body_end)?;
    if data.get(body_end) != Some(&b'\n') {
        return None;
    }
    let equals = body.iter().position(|&b| b == b'=')?;
    let key = body.get(..equals).filter(|key| !key.is_empty())?;
    let value = body.get(equals.checked_add(1)?..)?;
    Some((Record { key, value }, data.get(length..)?))
}

/// Reads an unsigned decimal number; nothing but digits is accepted.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Reads a time: seconds with an optional sign and an optional fraction, cut (towards the past) to nanoseconds.
pub(super) fn timestamp(text: &[u8]) -> Option<Timestamp> {
    let (negative, text) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        _ => (false, text),
    };
    let (whole, fraction) = match text.iter().position(|&b| b == b'.') {
        Some(dot) => (text.get(..dot)?, text.get(dot.checked_add(1)?..)?),
        None => (text, &[][..]),
    };
    let whole = i64::try_from(decimal(whole)?).ok()?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanos =
        digits.fold(0_u32, |n, d| n.wrapping_mul(10).wrapping_add(u32::from(d.wrapping_sub(b'0'))));
    let beyond = fraction.get(9..).is_some_and(|rest| rest.iter().any(|&d| d != b'0'));
    if !negative {
        return Some(Timestamp { seconds: whole, nanos });
    }
    let nanos = nanos.checked_add(u32::from(beyond))?;
    if nanos == 0 {
        return Some(Timestamp { seconds: whole.checked_neg()?, nanos: 0 });
    }
    let seconds = whole.checked_neg()?.checked_sub(1)?;
    Some(Timestamp { seconds, nanos: 1_000_000_000_u32.checked_sub(nanos)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(data: &[u8]) -> Vec<Option<(Vec<u8>, Vec<u8>)>> {
        records(data).map(|r| r.map(|r| (r.key.to_vec(), r.value.to_vec()))).collect()
    }

    #[test]
    fn values_may_hold_newlines_equal_signs_and_nuls() {
        let parsed = all(b"12 k=a\nb=\0c\n6 x=1\n");
        assert_eq!(
            parsed,
            [Some((b"k".to_vec(), b"a\nb=\0c".to_vec())), Some((b"x".to_vec(), b"1".to_vec()))]
        );
    }

    #[test]
    fn malformed_records_end_the_list() {
        for bad in [
            &b"5 k=1\n"[..],
            b"7 k=1\n",
            b"6 k=1 ",
            b"6k=1\n",
            b"0 k=1\n",
            b"-6 k=1\n",
            b"5 =1\n",
            b"6 k:1\n",
            b"6 ",
            b"9",
        ] {
            assert_eq!(all(bad), [None], "{bad:?}");
        }
        assert_eq!(all(b"99999999999999999999 k=1\n"), [None]);
        assert_eq!(all(b"18446744073709551615 k=1\n"), [None]);
    }

    #[test]
    fn times() {
        let time = |text: &[u8]| timestamp(text).map(|t| (t.seconds, t.nanos));
        assert_eq!(time(b"12"), Some((12, 0)));
        assert_eq!(time(b"12.5"), Some((12, 500_000_000)));
        assert_eq!(time(b"12.1234567899"), Some((12, 123_456_789)));
        assert_eq!(time(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time(b"-1"), Some((-1, 0)));
        assert_eq!(time(b"-0.0000000001"), Some((-1, 999_999_999)));
        for bad in [&b""[..], b"-", b".5", b"1.x", b"+1", b"9223372036854775808", b"1 "] {
            assert_eq!(time(bad), None, "{bad:?}");
        }
    }
}
