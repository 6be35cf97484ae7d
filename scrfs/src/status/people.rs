//! Sizes, host names and lines for people.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Of a text that is longer, people get the beginning and the end. The longest path (4,096 bytes)
/// fits.
const CHARS_MAX: usize = 5000;
/// So much of each is left.
const CHARS_LEFT: usize = 200;

/// A text that may have any path in it as one line that no terminal obeys.
pub fn printable(text: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    shortened(text).chars().map(escaped).collect()
}

/// A text that may have a value of any length in it, as an argument or a variable is: what is wrong
/// with the value, which stands before it or after it, can still be found.
pub fn shortened(text: &str) -> Cow<'_, str> {
    let chars = text.chars().count();
    if chars <= CHARS_MAX {
        return text.into();
    }
    let at = |nth: usize| text.char_indices().nth(nth).map_or(text.len(), |(at, _)| at);
    let (begin, end) = (&text[..at(CHARS_LEFT)], &text[at(chars - CHARS_LEFT)..]);
    format!("{begin} [{} characters] {end}", chars - 2 * CHARS_LEFT).into()
}

/// Bytes for people: three digits and a unit.
pub fn bytes_for_people(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut tenths, mut unit) = (u128::from(bytes) * 10 / 1024, 0);
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    if tenths < 1000 {
        format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
    } else {
        format!("{} {}", tenths / 10, UNITS[unit])
    }
}

/// Host names for people, as schedulers write them: `login node[0-3,7]`. Each once, in order of
/// name and number.
pub fn hosts_for_people<'a>(hosts: impl IntoIterator<Item = &'a str>) -> String {
    // Names that differ in their last number only: prefix and number of digits, for numbers with
    // leading zeros.
    let mut groups: BTreeMap<(&str, usize), BTreeSet<u64>> = BTreeMap::new();
    let mut single = BTreeSet::new();
    for host in hosts {
        let prefix = host.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &host[prefix.len()..];
        match digits.parse() {
            Ok(number) => {
                let width = if digits.starts_with('0') { digits.len() } else { 1 };
                groups.entry((prefix, width)).or_default().insert(number);
            }
            Err(_) => drop(single.insert(host.to_owned())),
        }
    }
    let mut all: Vec<String> = single.into_iter().collect();
    all.extend(groups.iter().map(|((prefix, width), numbers)| {
        let ranges = ranges(numbers, *width);
        if numbers.len() == 1 { format!("{prefix}{ranges}") } else { format!("{prefix}[{ranges}]") }
    }));
    all.join(" ")
}

fn ranges(numbers: &BTreeSet<u64>, width: usize) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let runs = runs.iter().map(|&(low, high)| {
        if low == high { format!("{low:0width$}") } else { format!("{low:0width$}-{high:0width$}") }
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for (list, text) in [
            (&["node0"][..], "node0"),
            (&["node10", "node1", "node0", "node4", "node3", "node0"], "node[0-1,3-4,10]"),
            (&["n08", "n09", "n10", "login"], "login n10 n[08-09]"),
            (&["a1", "b", "18446744073709551616"], "18446744073709551616 b a1"),
            (&[], ""),
        ] {
            assert_eq!(hosts_for_people(list.iter().copied()), text);
            let expanded: BTreeSet<String> = crate::config::expand_hosts(text).unwrap().into_iter().collect();
            assert_eq!(expanded, list.iter().map(|host| (*host).to_owned()).collect());
        }
    }

    #[test]
    fn no_terminal_obeys_a_path() {
        assert_eq!(printable("a \"b\" 'c' \u{e9}\\"), "a \"b\" 'c' \u{e9}\\");
        assert_eq!(printable("/a\u{1b}[31m\nb\u{9b}c\r"), "/a\\u{1b}[31m\\nb\\u{9b}c\\r");
    }

    #[test]
    fn of_a_long_text_begin_and_end_are_left() {
        let text = |filler: usize| format!("name=\"{}\": expected", "\u{e9}".repeat(filler));
        assert_eq!(shortened(&text(4983)), text(4983));
        let short = shortened(&text(200_000)).into_owned();
        assert!(short.starts_with("name=\"\u{e9}") && short.ends_with("\u{e9}\": expected"), "{short}");
        assert!(short.contains(" [199617 characters] ") && short.chars().count() < 500, "{short}");
    }

    #[test]
    fn sizes() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (300_000, "292 KiB"),
            (1 << 30, "1.0 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(bytes_for_people(bytes), text);
        }
    }
}
