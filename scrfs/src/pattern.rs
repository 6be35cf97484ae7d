//! Regular expressions in settings, matched with whole names as file systems have them: bytes, in
//! any encoding.

use regex::bytes::{Regex, RegexBuilder};

/// Longest text of a pattern, bytes.
pub const TEXT_MAX: usize = 1024;
/// Most memory that a compiled pattern may take, bytes.
const COMPILED_MAX: usize = 1 << 20;

/// A compiled regular expression that a whole name has to match.
#[derive(Debug, Clone)]
pub struct NamePattern {
    regex: Regex,
    /// The group that [`NamePattern::capture`] gives; 0 when there is none.
    group: usize,
}

impl NamePattern {
    /// Compiles `text`; else says what is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.len() > TEXT_MAX {
            return Err(format!("expected a regular expression of at most {TEXT_MAX} bytes"));
        }
        // By itself first: parentheses that do not match must not pair with those around it.
        let wrong = |error: regex::Error| {
            // Its last line says what is wrong; those before show where.
            let told = error.to_string();
            let last = told.lines().last().unwrap_or_default();
            format!("expected a regular expression: {}", last.trim_start_matches("error: "))
        };
        compile(text).map_err(wrong)?;
        let regex = compile(&format!(r"\A(?:{text})\z")).map_err(wrong)?;
        let named = regex.capture_names().position(|name| name == Some("dataset"));
        let group = named.unwrap_or(usize::from(regex.captures_len() > 1));
        Ok(Self { regex, group })
    }

    /// As [`NamePattern::new`], for patterns of which a part is wanted: the group called `dataset`,
    /// else the first one.
    pub fn capturing(text: &str) -> Result<Self, String> {
        let pattern = Self::new(text)?;
        if pattern.group == 0 {
            Err("expected a group, such as (.*), that names the dataset".into())
        } else {
            Ok(pattern)
        }
    }

    /// The whole of `name` matches.
    pub fn matches(&self, name: &[u8]) -> bool {
        self.regex.is_match(name)
    }

    /// The part that names the dataset, empty where the group took no part; `None` where `name`
    /// does not match.
    pub fn capture<'name>(&self, name: &'name [u8]) -> Option<&'name [u8]> {
        let captures = self.regex.captures(name)?;
        Some(captures.get(self.group).map_or(&[], |found| found.as_bytes()))
    }
}

fn compile(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text).size_limit(COMPILED_MAX).dfa_size_limit(COMPILED_MAX).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_names_match() {
        let pattern = NamePattern::new(r"ck\.\d+|final").unwrap();
        for (name, wanted) in
            [("ck.7", true), ("ck.77", true), ("final", true), ("ck.7x", false), ("xck.7", false)]
        {
            assert_eq!(pattern.matches(name.as_bytes()), wanted, "{name}");
        }
        assert!(!pattern.matches(b"ck.\xff"));
        assert!(!NamePattern::new(r"ck\..").unwrap().matches(b"ck.\xff"), "no character of UTF-8");
        assert!(NamePattern::new(r"ck\.(?-u:.)").unwrap().matches(b"ck.\xff"));
    }

    #[test]
    fn the_first_group_or_the_one_called_dataset_is_captured() {
        let pattern = NamePattern::capturing(r"melt\.(\d+)\.\d+\.restart").unwrap();
        assert_eq!(pattern.capture(b"melt.200.3.restart"), Some(b"200".as_slice()));
        assert_eq!(pattern.capture(b"melt.200.restart"), None);
        let pattern = NamePattern::capturing(r"(r|s)\.(?P<dataset>\d*)").unwrap();
        assert_eq!(pattern.capture(b"s.12"), Some(b"12".as_slice()));
        assert_eq!(pattern.capture(b"s."), Some(&b""[..]));
        assert_eq!(pattern.capture(b"t.1"), None);
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for bad in ["(", "a)(b", "[", &"a".repeat(TEXT_MAX + 1), r"(\w{200}){200}"] {
            assert!(NamePattern::new(bad).is_err(), "{bad}");
        }
        assert!(NamePattern::capturing("a.*").is_err());
    }
}
