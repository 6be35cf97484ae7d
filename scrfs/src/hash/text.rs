//! The printable form: one key a line, two blanks for each level, as SCR's own printing tool has
//! it. Order is the file's. Bytes that would break a line or a terminal are written `\xNN`, a
//! backslash `\\`.

use std::fmt::{self, Write};

use super::Hash;

/// Blanks for each level.
const INDENT: usize = 2;

/// Writes `tree`, its top keys indented once.
pub(super) fn write_tree(tree: &Hash, f: &mut impl Write) -> fmt::Result {
    // A stack of iterators rather than recursion: a tree that was built, not read, may have any
    // depth.
    let mut levels: Vec<Box<dyn Iterator<Item = _>>> = vec![Box::new(tree.iter())];
    while let Some(level) = levels.last_mut() {
        let Some((key, below)) = level.next() else {
            levels.pop();
            continue;
        };
        let width = levels.len() * INDENT;
        writeln!(f, "{:width$}{key}", "")?;
        if !below.is_empty() {
            levels.push(Box::new(below.iter()));
        }
    }
    Ok(())
}

/// Writes `bytes` so that a person can read them and no two differ only unseen.
pub(super) fn write_escaped(bytes: &[u8], f: &mut impl Write) -> fmt::Result {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                c if c.is_control() => {
                    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                        write!(f, "\\x{byte:02x}")?;
                    }
                }
                c => f.write_char(c)?,
            }
        }
        for byte in chunk.invalid() {
            write!(f, "\\x{byte:02x}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Text;

    #[test]
    fn prints_as_scr_does() {
        let mut tree = Hash::new();
        tree.set_value("NODES", 4_u64);
        tree.child("FILE").set_flag("a b");
        assert_eq!(tree.to_string(), "  FILE\n    a b\n  NODES\n    4\n");
    }

    #[test]
    fn escapes_what_cannot_be_shown() {
        let text = Text::new(*b"a\n\xff\\\x1b[0m\xc3\xa4").unwrap();
        assert_eq!(text.to_string(), "a\\x0a\\xff\\\\\\x1b[0m\u{e4}");
    }
}
