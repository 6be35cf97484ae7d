//! The syntax of user and system file, SCR's: `KEY=VALUE` lines, `#` begins a comment.

use std::path::Path;

use super::{ConfigError, Layers, Origin, Rank, defs, descriptors, groups};

impl Layers {
    pub(super) fn add_file(
        &mut self,
        path: &Path,
        text: Option<&str>,
        rank: Rank,
    ) -> Result<(), ConfigError> {
        let Some(text) = text else { return Ok(()) };
        for line in parse(text) {
            let line = match line {
                Ok(line) => line,
                Err(Bad { number: line, text, problem }) => {
                    let error = ConfigError::Line { path: path.to_owned(), line, problem };
                    self.unless_essential(|name| text.contains(name), error)?;
                    continue;
                }
            };
            let origin = Origin::File { path: path.to_owned(), line: line.number };
            if let Some(parameter) = defs::find(&line.key) {
                self.add(parameter, &line.value, origin, rank, rank == Rank::System);
                continue;
            }
            let lists = [descriptors::CHECKPOINT, descriptors::STORE, groups::GROUPS];
            match lists.iter().find(|word| **word == line.key) {
                Some(word) => self.lines.entry(rank).or_default().push((word, line.value, origin)),
                None => self.warn_unknown(&line.key, &origin),
            }
        }
        Ok(())
    }

    /// What was read for `parameter`; nothing where that is wrong and not essential.
    pub(super) fn or_none<T: Default>(
        &self,
        parameter: &str,
        read: Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        read.or_else(|error| {
            self.unless_essential(|name| name == parameter, error)?;
            Ok(T::default())
        })
    }

    /// What is wrong is noted, unless it is about something essential.
    pub(super) fn unless_essential(
        &self,
        about: impl Fn(&str) -> bool,
        error: ConfigError,
    ) -> Result<(), ConfigError> {
        if self.essential.is_none_or(|names| names.iter().any(|name| about(name))) {
            return Err(error);
        }
        self.doubts.borrow_mut().push(format!("{error}; it has no effect on this command"));
        Ok(())
    }
}

/// One setting of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// Counted from 1.
    pub(super) number: usize,
    pub(super) key: String,
    pub(super) value: String,
}

/// A line that is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bad<'a> {
    /// Counted from 1.
    pub(super) number: usize,
    pub(super) text: &'a str,
    pub(super) problem: String,
}

/// Reads a file's text, line by line.
pub(super) fn parse(text: &str) -> impl Iterator<Item = Result<Line, Bad<'_>>> {
    let lines = text.lines().map(|raw| without_comment(raw).trim()).zip(1..);
    lines.filter(|(line, _)| !line.is_empty()).map(|(text, number)| {
        setting(text).map(|(key, value)| Line { number, key, value }).map_err(|problem| Bad {
            number,
            text,
            problem,
        })
    })
}

/// Key and value of a line. What is wrong is said without the line's text: the file may be another
/// one than its reader believes, with secrets in it.
fn setting(line: &str) -> Result<(String, String), String> {
    let (key, value) = line.split_once('=').ok_or("expected NAME=VALUE")?;
    let key = key.trim();
    if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err("what is before the = is no parameter's name".to_owned());
    }
    let value = value.trim();
    let value = match value.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"').ok_or("the closing quote is missing")?,
        None => value,
    };
    Ok((key.to_owned(), value.to_owned()))
}

/// A `#` at the start or after a blank, outside quotes, begins a comment.
pub(super) fn without_comment(line: &str) -> &str {
    let (mut quoted, mut after_blank) = (false, true);
    for (at, c) in line.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '#' if !quoted && after_blank => return &line[..at],
            _ => {}
        }
        after_blank = c.is_whitespace();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_quotes_and_blanks() {
        let text = "# all\n\n SCR_PREFIX = \"/p fs/#1\" # here\nA=b#c\nE=\n";
        let lines: Vec<Line> = parse(text).collect::<Result<_, _>>().unwrap();
        let seen: Vec<_> = lines.iter().map(|l| (l.number, l.key.as_str(), l.value.as_str())).collect();
        assert_eq!(seen, [(3, "SCR_PREFIX", "/p fs/#1"), (4, "A", "b#c"), (5, "E", "")]);
    }

    #[test]
    fn errors_name_the_line() {
        let bad = |text| {
            let bad = parse(text).find_map(Result::err)?;
            assert!(!bad.problem.contains("nonsense"), "{bad:?}");
            Some((bad.number, bad.text))
        };
        assert_eq!(bad("A=1\nnonsense # x"), Some((2, "nonsense")));
        assert_eq!(bad("=1"), Some((1, "=1")));
        assert_eq!(bad("non:sense=1"), Some((1, "non:sense=1")));
        assert_eq!(bad("A=\"1"), Some((1, "A=\"1")));
    }
}
