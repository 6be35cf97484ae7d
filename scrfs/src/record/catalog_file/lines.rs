//! A name of a catalog as one line: what a record has most of, so it is short.
//!
//! `KIND MODE UID GID ATIME MTIME ... PATH`: fields with a blank between them, and the path to the
//! end of the line, whatever bytes it has; a time is `SECONDS.NANOSECONDS`, both plain numbers.
//! What `...` is depends on the kind:
//!
//! - `D`, a directory: nothing.
//! - `F`, a file: size, CRC32, member, and the program's rank or `-`.
//! - `L`, a link: how many bytes its target has; the target is before the path, and a blank behind
//!   it.

use std::io::Write;

use super::{CatalogError, crc_of, crc_text, wrong};
use crate::dataset::{Entry, EntryKind, FileCopy, Stamp};
use crate::hash::Text;
use crate::ids::Member;
use crate::path::RelPath;

/// What a line takes beside its path, about, with its number and counts.
pub(super) const LINE_BYTES: usize = 112;

/// Appends the line of `entry`.
pub(super) fn put_line(entry: &Entry, line: &mut Vec<u8>) {
    let (Entry { mode, uid, gid, atime, mtime, .. }, kind) = (entry, letter(&entry.kind));
    let mut put = |text: std::fmt::Arguments<'_>| {
        // A Vec takes all that is written into it.
        let _ = line.write_fmt(text);
    };
    put(format_args!("{kind} {mode:o} {uid} {gid} "));
    put(format_args!("{}.{} {}.{} ", atime.secs, atime.nsecs, mtime.secs, mtime.nsecs));
    match &entry.kind {
        EntryKind::Directory => {}
        EntryKind::File(copy) => {
            put(format_args!("{} {} {} ", copy.size, crc_text(copy.crc), copy.member.0));
            match copy.program_rank {
                Some(rank) => put(format_args!("{rank} ")),
                None => put(format_args!("- ")),
            }
        }
        EntryKind::Symlink(target) => {
            put(format_args!("{} ", target.len()));
            line.extend_from_slice(target);
            line.push(b' ');
        }
    }
    line.extend_from_slice(entry.path.as_bytes());
}

fn letter(kind: &EntryKind) -> char {
    match kind {
        EntryKind::Directory => 'D',
        EntryKind::File(_) => 'F',
        EntryKind::Symlink(_) => 'L',
    }
}

/// Reads a line.
pub(super) fn entry_of(line: &[u8]) -> Result<Entry, CatalogError> {
    let mut rest = Fields { rest: line, line };
    let kind = rest.next("kind")?;
    let mode = u32::from_str_radix(rest.text("mode")?, 8).ok().filter(|mode| *mode <= 0o7777);
    let mode = mode.map_or_else(|| rest.refused("mode"), Ok)?;
    let (uid, gid) = (rest.number("uid")?, rest.number("gid")?);
    let (atime, mtime) = (rest.stamp("atime")?, rest.stamp("mtime")?);
    let kind = match kind {
        b"D" => EntryKind::Directory,
        b"F" => EntryKind::File(FileCopy {
            size: rest.number("size")?,
            crc: crc_of(&Text::new(rest.next("CRC")?)?)?,
            member: Member(rest.number("member")?),
            program_rank: rest.rank()?,
        }),
        b"L" => EntryKind::Symlink(rest.target()?.to_vec()),
        _ => return rest.refused("kind"),
    };
    let path = RelPath::new(rest.rest).or_else(|error| wrong(error.to_string()))?;
    Ok(Entry { path, kind, mode, uid, gid, atime, mtime })
}

/// What is left of a line.
struct Fields<'a> {
    rest: &'a [u8],
    /// All of it, for errors.
    line: &'a [u8],
}

impl<'a> Fields<'a> {
    fn next(&mut self, field: &str) -> Result<&'a [u8], CatalogError> {
        let Some(end) = self.rest.iter().position(|&b| b == b' ') else { return self.refused(field) };
        let found = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(found)
    }

    fn text(&mut self, field: &str) -> Result<&'a str, CatalogError> {
        let found = self.next(field)?;
        std::str::from_utf8(found).or_else(|_| self.refused(field))
    }

    /// Digits, with a minus before them where `T` has such numbers.
    fn number<T: std::str::FromStr>(&mut self, field: &str) -> Result<T, CatalogError> {
        let text = self.text(field)?;
        self.parsed(field, text)
    }

    fn parsed<T: std::str::FromStr>(&self, field: &str, text: &str) -> Result<T, CatalogError> {
        let is_plain = !text.starts_with('+');
        text.parse().ok().filter(|_| is_plain).map_or_else(|| self.refused(field), Ok)
    }

    fn stamp(&mut self, field: &str) -> Result<Stamp, CatalogError> {
        let text = self.text(field)?;
        let Some((secs, nsecs)) = text.split_once('.') else { return self.refused(field) };
        let (secs, nsecs) = (self.parsed(field, secs)?, self.parsed(field, nsecs)?);
        if nsecs > 999_999_999 { self.refused(field) } else { Ok(Stamp { secs, nsecs }) }
    }

    fn rank(&mut self) -> Result<Option<u32>, CatalogError> {
        match self.text("rank")? {
            "-" => Ok(None),
            rank => self.parsed("rank", rank).map(Some),
        }
    }

    fn target(&mut self) -> Result<&'a [u8], CatalogError> {
        let length = self.number::<usize>("length of its target")?;
        match self.rest.split_at_checked(length) {
            Some((target, [b' ', rest @ ..])) => {
                self.rest = rest;
                Ok(target)
            }
            _ => self.refused("target"),
        }
    }

    fn refused<T>(&self, field: &str) -> Result<T, CatalogError> {
        wrong(format!("{field} of an entry is missing or wrong: {}", self.line.escape_ascii()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kinds() -> impl Strategy<Value = EntryKind> {
        let rank = prop_oneof![Just(None), any::<u32>().prop_map(Some)];
        let file = (any::<u64>(), any::<u32>(), any::<u32>(), rank);
        let bytes = proptest::collection::vec(1_u8.., 0..12);
        prop_oneof![
            Just(EntryKind::Directory),
            file.prop_map(|(size, crc, member, program_rank)| {
                EntryKind::File(FileCopy { size, crc, member: Member(member), program_rank })
            }),
            bytes.prop_map(EntryKind::Symlink),
        ]
    }

    fn stamps() -> impl Strategy<Value = Stamp> {
        (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(secs, nsecs)| Stamp { secs, nsecs })
    }

    fn paths() -> impl Strategy<Value = RelPath> {
        let names = prop_oneof!["[ -.0-~]{1,8}", Just("\n \u{1b}".to_owned())];
        proptest::collection::vec(names, 0..3)
            .prop_filter_map("no path", |names| RelPath::new(names.join("/")).ok())
    }

    proptest! {
        #[test]
        fn any_entry_is_the_same_again(
            (path, kind, mode) in (paths(), kinds(), 0..0o10000_u32),
            (uid, gid, atime, mtime) in (any::<u32>(), any::<u32>(), stamps(), stamps()),
        ) {
            let entry = Entry { path, kind, mode, uid, gid, atime, mtime };
            let mut line = Vec::new();
            put_line(&entry, &mut line);
            prop_assert_eq!(entry_of(&line).unwrap(), entry);
        }
    }

    #[test]
    fn a_damaged_line_is_refused_with_the_field_and_the_line() {
        let refused = |line: &str| entry_of(line.as_bytes()).unwrap_err().to_string();
        let whole = "F 644 0 0 1.0 1.0 5 0x1 0 - a";
        entry_of(whole.as_bytes()).unwrap();
        for (from, to, field) in [
            ("F", "X", "kind"),
            ("644", "10000", "mode"),
            ("644", "888", "mode"),
            ("1.0 5", "1.1000000000 5", "mtime"),
            ("1.0 5", "1 5", "mtime"),
            (" 5 ", " +5 ", "size"),
            (" - a", " ? a", "rank"),
            (" 0 - a", "", "CRC"),
        ] {
            let line = whole.replacen(from, to, 1);
            let told = refused(&line);
            assert!(told.starts_with(&format!("{field} of an entry")) && told.ends_with(&line), "{told}");
        }
        assert!(refused("L 777 0 0 1.0 1.0 9 short a").starts_with("target"), "longer than its line");
        assert!(refused("D 755 0 0 1.0 1.0 ../a").contains(".."), "a path that leaves its dataset");
    }
}
