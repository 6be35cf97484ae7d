//! A tree as packed bytes: a big-endian `u32` count, then that many elements; an element is its
//! key, a NUL, and the packed tree below it. A leaf is the count 0.
//!
//! Bounds: a count is checked against the bytes that are left, less what the lists around it still
//! need, before anything is allocated; so memory is at most a small multiple of the input. Depth is
//! limited, so recursion is.

use std::collections::HashSet;

use super::error::FormatError;
use super::{Hash, NulInText, Text};

/// Deepest tree that is read. The deepest that any release writes is 10 (a filemap's META values).
pub const DEPTH_MAX: usize = 64;

/// Bytes of a count.
const COUNT_BYTES: usize = 4;
/// Bytes of the smallest element: the NUL of an empty key and a count.
const ELEMENT_BYTES_MIN: usize = 1 + COUNT_BYTES;
/// Lists up to this length are searched key by key for equal ones; longer ones get a set.
const SHORT_LIST: usize = 16;

/// Appends `tree`'s packed form to `out`.
pub fn pack(tree: &Hash, out: &mut Vec<u8>) {
    // Stack rather than recursion: a tree that was built, not read, may have any depth.
    put_count(tree, out);
    let mut levels = vec![tree.iter()];
    while let Some(level) = levels.last_mut() {
        let Some((key, below)) = level.next() else {
            levels.pop();
            continue;
        };
        out.extend_from_slice(key);
        out.push(0);
        put_count(below, out);
        if !below.is_empty() {
            levels.push(below.iter());
        }
    }
}

/// Appends the packed form of `tree` and of one element more, `name`: below it are `count` numbered
/// values (`0 = ...`, `1 = ...`), which `put` appends one after the other. So a long list is packed
/// without a tree of it.
///
/// # Errors
/// A value has a NUL.
pub fn pack_with_values(
    tree: &Hash,
    name: &Text,
    count: usize,
    mut put: impl FnMut(usize, &mut Vec<u8>),
    out: &mut Vec<u8>,
) -> Result<(), NulInText> {
    let begin = out.len();
    pack(tree, out);
    out[begin..begin + COUNT_BYTES].copy_from_slice(&count_bytes(tree.len() + 1));
    out.extend_from_slice(name);
    out.push(0);
    out.extend_from_slice(&count_bytes(count));
    for number in 0..count {
        out.extend_from_slice(number.to_string().as_bytes());
        out.push(0);
        out.extend_from_slice(&count_bytes(1));
        let value = out.len();
        put(number, out);
        if let Some(position) = out[value..].iter().position(|&b| b == 0) {
            return Err(NulInText { position });
        }
        out.push(0);
        out.extend_from_slice(&count_bytes(0));
    }
    Ok(())
}

/// Reads one packed tree from the start of `bytes`; returns it and its size. `base` is the offset
/// of `bytes` in the record, for errors.
pub fn unpack(bytes: &[u8], base: usize) -> Result<(Hash, usize), FormatError> {
    let mut reader = Reader { bytes, at: 0, base, pending: 0, values: None };
    let tree = reader.list(0)?;
    Ok((tree, reader.at))
}

/// As [`unpack`], of what [`pack_with_values`] made: `each` is given the values below `name`, in
/// order, and the tree is without them.
pub fn unpack_with_values(
    bytes: &[u8],
    base: usize,
    name: &[u8],
    each: &mut dyn FnMut(&[u8]),
) -> Result<(Hash, usize), FormatError> {
    let mut reader = Reader { bytes, at: 0, base, pending: 0, values: Some((name, each)) };
    let tree = reader.list(0)?;
    Ok((tree, reader.at))
}

fn put_count(tree: &Hash, out: &mut Vec<u8>) {
    out.extend_from_slice(&count_bytes(tree.len()));
}

fn count_bytes(count: usize) -> [u8; COUNT_BYTES] {
    // Four billion elements would be hundreds of gigabytes in memory: no tree of ours gets there.
    assert!(u32::try_from(count).is_ok(), "a list has at most 2^32 - 1 elements");
    let [_, _, _, _, bytes @ ..] = (count as u64).to_be_bytes();
    bytes
}

struct Reader<'a, 'v> {
    bytes: &'a [u8],
    at: usize,
    base: usize,
    /// Elements that the lists around the current place have announced and not yet begun.
    pending: usize,
    /// Of the top list: the element that has numbered values, and who takes them.
    values: Option<Values<'v>>,
}

/// The name of a list of numbered values, and who takes them.
type Values<'v> = (&'v [u8], &'v mut dyn FnMut(&[u8]));

impl<'a> Reader<'a, '_> {
    fn list(&mut self, depth: usize) -> Result<Hash, FormatError> {
        if depth > DEPTH_MAX {
            return Err(FormatError::Depth { offset: self.offset(), limit: DEPTH_MAX });
        }
        let count = self.count()?;
        let mut list = Hash::new();
        let mut seen = HashSet::new();
        self.pending += count;
        for _ in 0..count {
            self.pending -= 1;
            let offset = self.offset();
            let key = self.key()?;
            let again = if count <= SHORT_LIST { list.has(key) } else { !seen.insert(key) };
            let key = Text::without_nul(key);
            if again {
                return Err(FormatError::EqualKeys { offset, key });
            }
            if depth == 0 && self.values.as_ref().is_some_and(|(name, _)| *name == key.as_bytes()) {
                self.numbered_values()?;
                continue;
            }
            let below = self.list(depth + 1)?;
            list.append(key, below);
        }
        Ok(list)
    }

    fn numbered_values(&mut self) -> Result<(), FormatError> {
        let Some((_, each)) = self.values.take() else { return Ok(()) };
        let count = self.count()?;
        self.pending += count;
        for number in 0..count {
            self.pending -= 1;
            let offset = self.offset();
            let is_next = self.key()? == number.to_string().as_bytes() && self.count()? == 1;
            let value = self.key()?;
            if !is_next || self.count()? != 0 {
                return Err(FormatError::NotNumbered { offset, number });
            }
            each(value);
        }
        Ok(())
    }

    fn count(&mut self) -> Result<usize, FormatError> {
        let offset = self.offset();
        let rest = &self.bytes[self.at..];
        let Some((&count, after)) = rest.split_first_chunk::<COUNT_BYTES>() else {
            return Err(FormatError::Truncated { offset, needed: COUNT_BYTES as u64, left: rest.len() });
        };
        self.at += COUNT_BYTES;
        let announced = u32::from_be_bytes(count);
        let room = after.len() / ELEMENT_BYTES_MIN;
        match usize::try_from(announced) {
            Ok(count) if count <= room.saturating_sub(self.pending) => Ok(count),
            _ => Err(FormatError::Count { offset, count: announced, left: after.len() }),
        }
    }

    fn key(&mut self) -> Result<&'a [u8], FormatError> {
        let rest = &self.bytes[self.at..];
        let Some(length) = rest.iter().position(|&b| b == 0) else {
            return Err(FormatError::MissingNul { offset: self.offset() });
        };
        self.at += length + 1;
        Ok(&rest[..length])
    }

    fn offset(&self) -> usize {
        self.base + self.at
    }
}
