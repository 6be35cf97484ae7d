//! From text to values: numbers, bytes, times, words, lists. Errors say what was expected.

use std::path::PathBuf;
use std::time::Duration;

use super::defs::{OTHER_SCHEMES, SCHEMES};
use crate::redundancy::Scheme;

/// Longest time that is accepted.
const TIME_MAX: Duration = Duration::from_hours(24);
/// Bytes of a file's name.
const NAME_MAX: usize = 255;
/// Further markers' names.
const MARKERS_MAX: usize = 16;

pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("expected 0 or 1".to_owned()),
    }
}

pub(super) fn count(text: &str, low: u64, high: u64) -> Result<u64, String> {
    digits(text)
        .filter(|n| (low..=high).contains(n))
        .ok_or_else(|| format!("expected a whole number from {low} to {high}"))
}

pub(super) fn bytes(text: &str, low: u64, high: u64) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let plain = lower.strip_suffix("ib").or_else(|| lower.strip_suffix('b')).unwrap_or(&lower);
    let (number, shift) = match plain.as_bytes().last() {
        Some(b'k') => (&plain[..plain.len() - 1], 10),
        Some(b'm') => (&plain[..plain.len() - 1], 20),
        Some(b'g') => (&plain[..plain.len() - 1], 30),
        Some(b't') => (&plain[..plain.len() - 1], 40),
        _ => (plain, 0),
    };
    digits(number.trim_end())
        .and_then(|n| n.checked_mul(1 << shift))
        .filter(|n| (low..=high).contains(n))
        .ok_or_else(|| format!("expected bytes from {low} to {high}, with k, m or g if you like"))
}

pub(super) fn time(text: &str) -> Result<Duration, String> {
    let parsed = if let Some(number) = text.strip_suffix("ms") {
        digits(number.trim_end()).map(Duration::from_millis)
    } else {
        digits(text.strip_suffix('s').unwrap_or(text).trim_end()).map(Duration::from_secs)
    };
    parsed
        .filter(|t| *t <= TIME_MAX)
        .ok_or_else(|| "expected a time up to a day, such as 30, 30s or 500ms".to_owned())
}

/// A time of at least `low` seconds.
pub(super) fn time_from(text: &str, low: u64) -> Result<Duration, String> {
    let time = time(text)?;
    if time >= Duration::from_secs(low) {
        Ok(time)
    } else {
        Err(format!("expected a time of {low} s or more"))
    }
}

/// The same, or none at all.
pub(super) fn zero_or_from(text: &str, low: u64) -> Result<Duration, String> {
    if time(text)?.is_zero() {
        return Ok(Duration::ZERO);
    }
    time_from(text, low).map_err(|wrong| format!("{wrong}, or 0"))
}

/// A number of at most `high`, which fits.
pub(super) fn small(text: &str, low: u64, high: u64) -> Result<u32, String> {
    count(text, low, high).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}

/// Permissions of a directory; its owner's must be among them.
pub(super) fn mode(text: &str) -> Result<u32, String> {
    let octal = !text.is_empty() && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    let mode = octal.then(|| u32::from_str_radix(text, 8).ok()).flatten();
    mode.filter(|mode| *mode <= 0o7777 && mode & 0o700 == 0o700)
        .ok_or_else(|| "expected octal digits with all rights for the owner, such as 0700 or 0750".to_owned())
}

pub(super) fn word(text: &str, words: &'static [&'static str]) -> Result<&'static str, String> {
    words
        .iter()
        .copied()
        .find(|w| w.eq_ignore_ascii_case(text))
        .ok_or_else(|| format!("expected one of {}", words.join(", ")))
}

/// A scheme that this version makes. Which word means which scheme [`Scheme::from_word`] alone
/// knows.
pub(super) fn scheme(text: &str, failures: u8) -> Result<Scheme, String> {
    let is_other = OTHER_SCHEMES.iter().any(|word| word.eq_ignore_ascii_case(text));
    match Scheme::from_word(text.to_ascii_uppercase().as_bytes(), failures) {
        Some(scheme) => Ok(scheme),
        None if is_other => Err("this version has XOR, PARTNER, RS and SINGLE".to_owned()),
        None => Err(format!("expected one of {}", SCHEMES.join(", "))),
    }
}

pub(super) fn paths(text: &str) -> Result<Vec<PathBuf>, String> {
    let paths: Vec<PathBuf> =
        text.split([',', ':']).map(str::trim).filter(|p| !p.is_empty()).map(PathBuf::from).collect();
    if paths.iter().all(|p| p.is_absolute()) && !paths.is_empty() {
        Ok(paths)
    } else {
        Err("expected absolute paths".to_owned())
    }
}

/// Markers' names: one path component each, none that means something else.
pub(super) fn markers(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let reserved = [".", "..", ".scr", ".scrfs", ".invalid"].contains(&name);
        if reserved || name.len() > NAME_MAX || name.contains(['/', '\0']) {
            return Err(format!("{name:?} cannot be a marker: expected names of files, separated by commas"));
        }
        if name != ".complete" && !names.iter().any(|known| known == name.as_bytes()) {
            names.push(name.as_bytes().to_vec());
        }
    }
    if names.len() > MARKERS_MAX { Err(format!("expected at most {MARKERS_MAX} names")) } else { Ok(names) }
}

/// ASCII digits only: no sign, no blanks, no overflow.
fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_units() {
        assert_eq!(bytes("128k", 0, u64::MAX), Ok(131_072));
        assert_eq!(bytes("1 MiB", 0, u64::MAX), Ok(1 << 20));
        assert_eq!(bytes("2G", 0, u64::MAX), Ok(2 << 30));
        assert_eq!(bytes("77", 0, u64::MAX), Ok(77));
        for bad in ["", "k", "-1", "1x", "99999999999999999999", "16777216t", "1kk"] {
            assert!(bytes(bad, 0, u64::MAX).is_err(), "{bad}");
        }
        assert!(bytes("1", 2, 3).is_err());
    }

    #[test]
    fn times() {
        assert_eq!(time("30"), Ok(Duration::from_secs(30)));
        assert_eq!(time("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(time("1500ms"), Ok(Duration::from_millis(1500)));
        for bad in ["", "s", "1m", "-1s", "86401", "1.5"] {
            assert!(time(bad).is_err(), "{bad}");
        }
        assert_eq!(time_from("2", 2), Ok(Duration::from_secs(2)));
        for bad in ["0", "1999ms", "1s"] {
            assert!(time_from(bad, 2).is_err(), "{bad}");
        }
        assert_eq!(zero_or_from("0", 2), Ok(Duration::ZERO));
        assert_eq!(zero_or_from("2s", 2), Ok(Duration::from_secs(2)));
        assert!(zero_or_from("100ms", 2).is_err() && zero_or_from("x", 2).is_err());
    }

    #[test]
    fn modes() {
        assert_eq!((mode("0700"), mode("750"), mode("1777")), (Ok(0o700), Ok(0o750), Ok(0o1777)));
        for bad in ["", "rwx", "800", "0070", "17777", "-700", "0o700"] {
            assert!(mode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_of_markers() {
        assert_eq!(
            markers(".metadata, done,.complete,done"),
            Ok(vec![b".metadata".to_vec(), b"done".to_vec()])
        );
        assert_eq!(markers(".complete"), Ok(Vec::new()));
        for bad in ["a/b", "..", ".invalid", "ok,.scr", &"x".repeat(256)] {
            assert!(markers(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_word_of_a_scheme_is_that_scheme_or_refused() {
        for named in SCHEMES {
            assert_eq!(
                scheme(&named.to_ascii_lowercase(), 3).ok(),
                Scheme::from_word(named.as_bytes(), 3),
                "{named}"
            );
            assert!(scheme(named, 3).is_ok(), "{named}");
        }
        for other in OTHER_SCHEMES {
            assert!(scheme(other, 3).unwrap_err().contains("this version has"), "{other}");
        }
        assert!(scheme("RAID", 3).unwrap_err().contains("SINGLE, PARTNER, XOR"));
    }

    #[test]
    fn words_and_booleans() {
        assert_eq!(word("xor", &["SINGLE", "XOR"]), Ok("XOR"));
        assert!(word("RAID", &["SINGLE", "XOR"]).unwrap_err().contains("SINGLE, XOR"));
        assert!(boolean("yes").is_err());
    }
}
