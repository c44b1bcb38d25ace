//! The wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970-01-01 UTC; zero before.
#[must_use]
pub fn unix_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Nanoseconds since 1970-01-01 UTC; zero before.
#[must_use]
pub fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A time as RFC 3339 writes it, in UTC to the second.
#[must_use]
pub fn to_utc(unix_millis: i64) -> String {
    let seconds = unix_millis.div_euclid(1000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Year, month and day of the proleptic Gregorian calendar, from days since 1970-01-01. Counted in eras of 400 years,
/// whose years begin in March, so that the leap day is a year's last.
fn civil(days: i64) -> (i64, i64, i64) {
    const DAYS_OF_ERA: i64 = 146_097;
    let days = days + 719_468; // from 0000-03-01
    let (era, day) = (days.div_euclid(DAYS_OF_ERA), days.rem_euclid(DAYS_OF_ERA));
    let year = (day - day / 1460 + day / 36_524 - day / (DAYS_OF_ERA - 1)) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // March is 0
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        assert_eq!(to_utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(to_utc(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(to_utc(1_709_251_199_999), "2024-02-29T23:59:59Z");
        assert_eq!(to_utc(1_709_251_200_000), "2024-03-01T00:00:00Z");
        assert_eq!(to_utc(1_798_761_599_000), "2026-12-31T23:59:59Z");
        assert_eq!(to_utc(-1), "1969-12-31T23:59:59Z");
    }
}
