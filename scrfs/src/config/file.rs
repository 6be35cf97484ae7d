//! The syntax of user and system file, SCR's: `KEY=VALUE` lines, `#` begins a comment.

/// One setting of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// Counted from 1.
    pub(super) number: usize,
    pub(super) key: String,
    pub(super) value: String,
}

/// Reads a file's text; an error gives the line's number and what is wrong with it.
pub(super) fn parse(text: &str) -> Result<Vec<Line>, (usize, String)> {
    let mut lines = Vec::new();
    for (at, raw) in text.lines().enumerate() {
        let number = at + 1;
        let line = without_comment(raw).trim();
        if line.is_empty() {
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            return Err((number, format!("expected KEY=VALUE, found {line:?}")));
        };
        let key = key.trim();
        if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err((number, format!("{key:?} is no parameter name")));
        }
        let value = value.trim();
        let value = match value.strip_prefix('"') {
            Some(rest) => {
                rest.strip_suffix('"').ok_or_else(|| (number, "the closing quote is missing".to_owned()))?
            }
            None => value,
        };
        lines.push(Line { number, key: key.to_owned(), value: value.to_owned() });
    }
    Ok(lines)
}

/// A `#` at the start or after a blank, outside quotes, begins a comment.
fn without_comment(line: &str) -> &str {
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
        let lines = parse("# all\n\n SCR_PREFIX = \"/p fs/#1\" # here\nA=b#c\nE=\n").unwrap();
        let seen: Vec<_> = lines.iter().map(|l| (l.number, l.key.as_str(), l.value.as_str())).collect();
        assert_eq!(seen, [(3, "SCR_PREFIX", "/p fs/#1"), (4, "A", "b#c"), (5, "E", "")]);
    }

    #[test]
    fn errors_name_the_line() {
        assert_eq!(parse("A=1\nnonsense").unwrap_err().0, 2);
        assert_eq!(parse("=1").unwrap_err().0, 1);
        assert_eq!(parse("A=\"1").unwrap_err().0, 1);
    }
}
