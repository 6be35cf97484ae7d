//! The tree.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::error::{FieldError, FieldProblem, NulInText};
use crate::path::RelPath;

/// Bytes without NUL: a key or a value. File names are such, so it need not be UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Text(Vec<u8>);

impl Text {
    /// Takes bytes that have no NUL.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, NulInText> {
        let bytes = bytes.into();
        match bytes.iter().position(|&b| b == 0) {
            None => Ok(Self(bytes)),
            Some(position) => Err(NulInText { position }),
        }
    }

    /// Takes bytes that the caller knows to have no NUL.
    pub(super) fn without_nul(bytes: &[u8]) -> Self {
        debug_assert!(!bytes.contains(&0), "a key ends at its first NUL");
        Self(bytes.to_vec())
    }

    /// Takes text of ours, which has no NUL.
    pub(crate) fn ascii(text: &str) -> Self {
        Self::without_nul(text.as_bytes())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes as a path.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// The bytes as a `str`, where they are one.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// A plain decimal number: digits with at most a leading minus, in `T`'s range.
    pub fn number<T: std::str::FromStr>(&self) -> Option<T> {
        let digits = self.0.strip_prefix(b"-").unwrap_or(&self.0);
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        self.as_str()?.parse().ok()
    }
}

impl Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Text {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl fmt::Display for Text {
    /// Printable as it is, other bytes as `\xNN`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        super::text::write_escaped(&self.0, f)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl From<&'static str> for Text {
    /// For words of the formats; panics where such a constant has a NUL.
    fn from(word: &'static str) -> Self {
        assert!(!word.as_bytes().contains(&0), "the formats have no word with a NUL");
        Self(word.as_bytes().to_vec())
    }
}

impl From<&Self> for Text {
    fn from(text: &Self) -> Self {
        text.clone()
    }
}

impl From<&RelPath> for Text {
    fn from(path: &RelPath) -> Self {
        // A RelPath has been checked for NUL.
        Self(path.as_bytes().to_vec())
    }
}

macro_rules! text_from_number {
    ($($number:ty),*) => {$(
        impl From<$number> for Text {
            fn from(number: $number) -> Self {
                Self(number.to_string().into_bytes())
            }
        }
    )*};
}
text_from_number!(u32, u64, usize, i64);

/// A list of elements, in order: key, and the tree below it. No key is in one list twice.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Hash {
    elements: Vec<(Text, Self)>,
}

impl Hash {
    /// The empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// The tree of one plain value: `VALUE` with nothing below it.
    pub fn value(value: impl Into<Text>) -> Self {
        Self { elements: vec![(value.into(), Self::new())] }
    }

    /// How many elements the top list has.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// The elements, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Text, &Self)> {
        self.elements.iter().map(|(key, below)| (key, below))
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &Text> {
        self.elements.iter().map(|(key, _)| key)
    }

    /// What is below `key`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<&Self> {
        self.position(key.as_ref()).map(|at| &self.elements[at].1)
    }

    /// Whether `key` is in the top list.
    pub fn has(&self, key: impl AsRef<[u8]>) -> bool {
        self.position(key.as_ref()).is_some()
    }

    /// Puts `below` under `key` at the head of the list, in place of what was there: as SCR's set
    /// does, so that what is set last comes first in the file.
    pub fn set(&mut self, key: impl Into<Text>, below: Self) {
        let key = key.into();
        self.remove(&key);
        self.elements.insert(0, (key, below));
    }

    /// Sets `KEY = VALUE` at the head of the list.
    pub fn set_value(&mut self, key: impl Into<Text>, value: impl Into<Text>) {
        self.set(key, Self::value(value));
    }

    /// Sets a bare word at the head of the list.
    pub fn set_flag(&mut self, key: impl Into<Text>) {
        self.set(key, Self::new());
    }

    /// What is below `key`, made at the head if it is not there.
    pub fn child(&mut self, key: impl Into<Text>) -> &mut Self {
        let key = key.into();
        let at = self.position(&key).unwrap_or_else(|| {
            self.elements.insert(0, (key, Self::new()));
            0
        });
        &mut self.elements[at].1
    }

    /// Removes `key` and returns what was below it.
    pub fn remove(&mut self, key: &[u8]) -> Option<Self> {
        self.position(key).map(|at| self.elements.remove(at).1)
    }

    /// Puts all of `other` into this tree, level by level, keys of both united.
    pub fn merge(&mut self, other: &Self) {
        let mut places: HashMap<Text, usize> =
            self.elements.iter().enumerate().map(|(at, (key, _))| (key.clone(), at)).collect();
        for (key, below) in &other.elements {
            if let Some(&at) = places.get(key) {
                self.elements[at].1.merge(below);
            } else {
                places.insert(key.clone(), self.elements.len());
                self.elements.push((key.clone(), below.clone()));
            }
        }
    }

    /// Adds an element at the end. The caller knows that `key` is not in the list; the decoder has
    /// checked it, and records have each of their keys once.
    pub(crate) fn append(&mut self, key: Text, below: Self) {
        self.elements.push((key, below));
    }

    /// The value of `KEY = VALUE`, or `None` where there is no `KEY`.
    pub fn text(&self, key: &'static str) -> Result<Option<&Text>, FieldError> {
        let Some(below) = self.get(key) else { return Ok(None) };
        match below.elements.as_slice() {
            [(value, under)] if under.is_empty() => Ok(Some(value)),
            elements => Err(FieldError::at(key, FieldProblem::NotOneValue(elements.len()))),
        }
    }

    /// The number of `KEY = NUMBER`, or `None` where there is no `KEY`.
    pub fn number<T: std::str::FromStr>(&self, key: &'static str) -> Result<Option<T>, FieldError> {
        let Some(value) = self.text(key)? else { return Ok(None) };
        let number = value.number();
        number.map(Some).ok_or_else(|| FieldError::at(key, FieldProblem::NotANumber(value.clone())))
    }

    fn position(&self, key: &[u8]) -> Option<usize> {
        self.elements.iter().position(|(have, _)| have.as_bytes() == key)
    }
}

impl fmt::Display for Hash {
    /// The printable form, see [`super::text`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        super::text::write_tree(self, f)
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
