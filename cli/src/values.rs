//! Values of options: durations, sizes, environment variables.

use crate::context::variable;
use std::time::Duration;

/// A duration: a whole number with an optional `s`, `m`, `h` or `d`; seconds without one.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, seconds) = match text.char_indices().last() {
        Some((index, 's')) => (&text[..index], 1),
        Some((index, 'm')) => (&text[..index], 60),
        Some((index, 'h')) => (&text[..index], 60 * 60),
        Some((index, 'd')) => (&text[..index], 24 * 60 * 60),
        _ => (text, 1),
    };
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let total = number
        .parse::<u64>()
        .ok()
        .filter(|_| digits)
        .and_then(|number| number.checked_mul(seconds));
    total
        .map(Duration::from_secs)
        .ok_or_else(|| "give a duration such as 30, 30s, 5m, 2h or 1d".into())
}

/// A size in MiB: a number with an optional `M`, `G` or `T`; MiB without one. Decimals are fine if the result is a whole
/// number of MiB.
pub fn mebibytes(text: &str) -> Result<u32, String> {
    let text = text.trim();
    let (number, unit) = match text.char_indices().last() {
        Some((index, 'M' | 'm')) => (&text[..index], 1),
        Some((index, 'G' | 'g')) => (&text[..index], 1 << 10),
        Some((index, 'T' | 't')) => (&text[..index], 1 << 20),
        _ => (text, 1),
    };
    whole_multiple(number, unit)
        .filter(|mib| *mib > 0)
        .ok_or_else(|| "give a size such as 512, 512M, 2G or 1.5G: a whole number of MiB".into())
}

/// `number`, a decimal fraction, times `unit`, if that is a whole number.
fn whole_multiple(number: &str, unit: u128) -> Option<u32> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    // Twelve digits of each are beyond any size, and far from an overflow.
    if whole.is_empty()
        || !digits(whole)
        || !digits(fraction)
        || whole.len() > 12
        || fraction.len() > 12
    {
        return None;
    }
    if number.contains('.') && fraction.is_empty() {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let scaled: u128 = format!("{whole}{fraction}").parse::<u128>().ok()? * unit;
    scaled
        .is_multiple_of(scale)
        .then_some(scaled / scale)
        .and_then(|value| u32::try_from(value).ok())
}

/// `NAME=value`, or `NAME` for the value it has here.
pub fn environment(text: &str) -> Result<(String, String), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => match variable(text).map(std::ffi::OsString::into_string) {
            Some(Ok(value)) => (text, value),
            Some(Err(_)) => return Err(format!("the value of `{text}` here is not UTF-8")),
            None => return Err(format!("`{text}` is not set here: give {text}=VALUE")),
        },
    };
    if name.is_empty() {
        return Err("a variable needs a name: NAME=VALUE".into());
    }
    Ok((name.into(), value))
}

/// Bytes for people: powers of 1024, one decimal.
#[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
pub fn human_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["", "K", "M", "G"] {
        if value < 1024.0 {
            return if unit.is_empty() { format!("{bytes}B") } else { format!("{value:.1}{unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1}T")
}

/// A span of time for people: its largest unit.
pub fn human_span(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, seconds) in
            [("30", 30), ("30s", 30), ("5m", 300), ("2h", 7200), ("1d", 86_400), ("0", 0)]
        {
            assert_eq!(duration(text).unwrap(), Duration::from_secs(seconds), "{text}");
        }
        for text in [
            "soon",
            "",
            "s",
            "-1",
            "+1",
            "1.5h",
            "1 h",
            "1h30m",
            "5M",
            "99999999999999999999",
            "999999999999999999d",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, mib) in [
            ("512", 512),
            ("512M", 512),
            ("512m", 512),
            ("2G", 2048),
            ("0.5G", 512),
            ("1.5g", 1536),
            ("16T", 16 << 20),
            (" 1G ", 1024),
            ("1.0M", 1),
        ] {
            assert_eq!(mebibytes(text), Ok(mib), "{text}");
        }
        for text in [
            "1.9M", "0.1G", "lots", "", "0", "0M", "M", "512MB", "512MiB", "1K", "-1G", "1.G",
            ".5G", "1e3", "4096T",
        ] {
            assert!(mebibytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn environment_variables() {
        assert_eq!(environment("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert_eq!(environment("A="), Ok(("A".into(), String::new())));
        assert!(environment("=x").is_err() && environment("").is_err());
        assert!(environment("LILBOX_NO_SUCH_VARIABLE").is_err());
        assert!(environment("PATH").is_ok_and(|(name, value)| name == "PATH" && !value.is_empty()));
    }

    #[test]
    fn quantities_for_people() {
        assert_eq!(human_bytes(1023), "1023B");
        assert_eq!(human_bytes(1536), "1.5K");
        assert_eq!(human_bytes(3 << 40), "3.0T");
        assert_eq!(human_span(Duration::from_secs(119)), "119s");
        assert_eq!(human_span(Duration::from_secs(7200)), "2h");
        assert_eq!(human_span(Duration::from_secs(200_000)), "2d");
    }
}
