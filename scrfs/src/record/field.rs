//! How a record's fields are read from a tree and written to one, with the tree's order kept.
//!
//! A record is a table: field, type, key, and the other words that releases have had for the key.
//! [`record!`] makes the struct and both directions from it. What a table does not know stays in
//! the record's [`Shape`], and so does the order; but every known value is written from the typed
//! field.

use super::ordered::Ordered;
use crate::hash::{FieldError, FieldProblem, Hash, Text};
use crate::ids::{DatasetId, Member};

/// Order and spelling of the keys as they were read, and the elements that are not ours: they are
/// written back.
///
/// A record that was not read has the default shape and is written in SCR's order (2013). Shapes
/// are equal when their foreign elements are: order says nothing to a reader.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    slots: Vec<Slot>,
}

#[derive(Debug, Clone)]
enum Slot {
    /// A field of the record, by its first word, and the word that was read.
    Known { field: &'static str, spelled: &'static str },
    /// An element of someone else's.
    Foreign { key: Text, below: Hash },
}

impl Shape {
    /// The elements that are not fields of the record.
    pub fn foreign(&self) -> impl Iterator<Item = (&Text, &Hash)> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Known { .. } => None,
            Slot::Foreign { key, below } => Some((key, below)),
        })
    }

    fn has(&self, name: &str) -> bool {
        self.slots.iter().any(|slot| matches!(slot, Slot::Known { field, .. } if *field == name))
    }
}

impl PartialEq for Shape {
    fn eq(&self, other: &Self) -> bool {
        let sorted = |shape: &Self| {
            let mut foreign: Vec<_> =
                shape.foreign().map(|(key, below)| (key.clone(), below.clone())).collect();
            foreign.sort_by(|(a, _), (b, _)| a.cmp(b));
            foreign
        };
        sorted(self) == sorted(other)
    }
}

impl Eq for Shape {}

/// A tree being taken apart.
pub(super) struct Fields<'a> {
    tree: &'a Hash,
    taken: Vec<(&'static str, &'static str)>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(tree: &'a Hash) -> Self {
        Self { tree, taken: Vec::new() }
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.tree.has(key)
    }

    /// The one value of `key`, which must be there.
    pub(super) fn need<T: Value>(&mut self, key: &'static str) -> Result<T, FieldError> {
        Option::read(self, &[key])?.ok_or_else(|| FieldError::at(key, FieldProblem::Missing))
    }

    /// What is below the first of `words` that is there, and that word.
    fn take(&mut self, words: &[&'static str]) -> Option<(&'static str, &'a Hash)> {
        let (&spelled, below) = words.iter().find_map(|word| Some((word, self.tree.get(word)?)))?;
        self.taken.push((words[0], spelled));
        Some((spelled, below))
    }

    /// Order, spelling and what nobody took.
    pub(super) fn shape(self) -> Shape {
        let slot = |(key, below): (&Text, &Hash)| {
            let known = self.taken.iter().find(|(_, spelled)| *key == *spelled);
            match known {
                Some(&(field, spelled)) => Slot::Known { field, spelled },
                None => Slot::Foreign { key: key.clone(), below: below.clone() },
            }
        };
        Shape { slots: self.tree.iter().map(slot).collect() }
    }
}

/// A tree being put together.
pub(super) struct Writer<'a> {
    shape: &'a Shape,
    fields: Vec<(&'static str, Option<Hash>)>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(shape: &'a Shape) -> Self {
        Self { shape, fields: Vec::new() }
    }

    /// `words` as in [`Field`].
    fn put(&mut self, words: &[&'static str], below: Hash) {
        self.fields.extend(words.first().map(|&field| (field, Some(below))));
    }

    /// New fields first, in the table's order; then, in the order that was read, what is still
    /// there.
    pub(super) fn finish(mut self) -> Hash {
        let mut tree = Hash::new();
        for (field, below) in &mut self.fields {
            if !self.shape.has(field) {
                tree.append((*field).into(), below.take().unwrap_or_default());
            }
        }
        for slot in &self.shape.slots {
            match slot {
                Slot::Foreign { key, below } => tree.append(key.clone(), below.clone()),
                Slot::Known { field, spelled } => {
                    let below = self.fields.iter_mut().find(|(name, _)| name == field);
                    if let Some(below) = below.and_then(|(_, below)| below.take()) {
                        tree.append((*spelled).into(), below);
                    }
                }
            }
        }
        tree
    }
}

/// A field of a record, with the words of its key, the one that is written first. A field of
/// several keys knows them itself, and has no words.
pub(super) trait Field: Sized {
    fn read(fields: &mut Fields<'_>, words: &[&'static str]) -> Result<Self, FieldError>;
    fn write(&self, writer: &mut Writer<'_>, words: &[&'static str]);
}

/// What can be below a key.
pub(super) trait Value: Sized {
    fn from_below(below: &Hash) -> Result<Self, FieldError>;
    fn to_below(&self) -> Hash;
}

/// What can be a key of many, or the one plain value of a key.
pub(crate) trait Word: Sized {
    fn from_word(word: &Text) -> Result<Self, FieldProblem>;
    fn to_word(&self) -> Text;
}

/// At most one value.
impl<T: Value> Field for Option<T> {
    fn read(fields: &mut Fields<'_>, words: &[&'static str]) -> Result<Self, FieldError> {
        let Some((spelled, below)) = fields.take(words) else { return Ok(None) };
        T::from_below(below).map(Some).map_err(|error| error.under(spelled))
    }

    fn write(&self, writer: &mut Writer<'_>, words: &[&'static str]) {
        if let Some(value) = self {
            writer.put(words, value.to_below());
        }
    }
}

/// A flag: the key is there or not.
impl Field for bool {
    fn read(fields: &mut Fields<'_>, words: &[&'static str]) -> Result<Self, FieldError> {
        Ok(fields.take(words).is_some())
    }

    fn write(&self, writer: &mut Writer<'_>, words: &[&'static str]) {
        if *self {
            writer.put(words, Hash::new());
        }
    }
}

/// Any number of keys, each with a value.
impl<K: Word + Clone + Eq + std::hash::Hash, V: Value> Field for Ordered<K, V> {
    fn read(fields: &mut Fields<'_>, words: &[&'static str]) -> Result<Self, FieldError> {
        let Some((spelled, below)) = fields.take(words) else { return Ok(Self::new()) };
        let mut map = Self::new();
        for (word, below) in below.iter() {
            let here = |error: FieldError| error.under(word).under(spelled);
            let key = K::from_word(word).map_err(|problem| here(FieldError::here(problem)))?;
            let value = V::from_below(below).map_err(here)?;
            // "1" and "01" are two keys of the tree, but one number.
            if map.set_last(key, value).is_some() {
                return Err(here(FieldError::here(FieldProblem::Duplicate)));
            }
        }
        Ok(map)
    }

    fn write(&self, writer: &mut Writer<'_>, words: &[&'static str]) {
        if self.is_empty() && !words.iter().any(|word| writer.shape.has(word)) {
            return;
        }
        let mut below = Hash::new();
        for (key, value) in self.iter() {
            below.append(key.to_word(), value.to_below());
        }
        writer.put(words, below);
    }
}

/// A bare word has nothing below it.
impl Value for () {
    fn from_below(below: &Hash) -> Result<Self, FieldError> {
        if below.is_empty() { Ok(()) } else { Err(FieldError::here(FieldProblem::NotPlain)) }
    }

    fn to_below(&self) -> Hash {
        Hash::new()
    }
}

macro_rules! plain_values {
    ($($word:ty),*) => {$(
        impl Value for $word {
            fn from_below(below: &Hash) -> Result<Self, FieldError> {
                match below.iter().next() {
                    Some((word, under)) if below.len() == 1 && under.is_empty() => {
                        Self::from_word(word).map_err(FieldError::here)
                    }
                    _ => Err(FieldError::here(FieldProblem::NotOneValue(below.len()))),
                }
            }

            fn to_below(&self) -> Hash {
                Hash::value(self.to_word())
            }
        }
    )*};
}
plain_values!(
    Text,
    u32,
    u64,
    i64,
    bool,
    DatasetId,
    Member,
    super::Crc32,
    super::Decimal,
    super::meta::FileKind
);

impl Word for Text {
    fn from_word(word: &Text) -> Result<Self, FieldProblem> {
        Ok(word.clone())
    }

    fn to_word(&self) -> Text {
        self.clone()
    }
}

macro_rules! number_words {
    ($($number:ty),*) => {$(
        impl Word for $number {
            fn from_word(word: &Text) -> Result<Self, FieldProblem> {
                word.number().ok_or_else(|| FieldProblem::NotANumber(word.clone()))
            }

            fn to_word(&self) -> Text {
                (*self).into()
            }
        }
    )*};
}
number_words!(u32, u64, i64);

impl Word for bool {
    fn from_word(word: &Text) -> Result<Self, FieldProblem> {
        match word.as_bytes() {
            b"0" => Ok(false),
            b"1" => Ok(true),
            _ => Err(FieldProblem::NotABool(word.clone())),
        }
    }

    fn to_word(&self) -> Text {
        u32::from(*self).into()
    }
}

impl Word for DatasetId {
    fn from_word(word: &Text) -> Result<Self, FieldProblem> {
        u64::from_word(word).map(Self)
    }

    fn to_word(&self) -> Text {
        self.0.into()
    }
}

impl Word for Member {
    fn from_word(word: &Text) -> Result<Self, FieldProblem> {
        u32::from_word(word).map(Self)
    }

    fn to_word(&self) -> Text {
        self.0.into()
    }
}

/// Makes a record of a table: struct, reading and writing. Fields are written in the table's order
/// where the record was not read from a file.
macro_rules! record {
    (
        $(#[$about:meta])*
        $name:ident {
            $($(#[$field_about:meta])* $field:ident: $type:ty = [$($word:literal),*],)*
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct $name {
            $($(#[$field_about])* pub $field: $type,)*
            /// Order of the keys, and what others keep here. Use the default for what was not read.
            pub shape: $crate::record::Shape,
        }

        impl $crate::record::Record for $name {
            fn from_hash(tree: &$crate::hash::Hash) -> Result<Self, $crate::hash::FieldError> {
                let mut fields = $crate::record::field::Fields::new(tree);
                Ok(Self {
                    $($field: $crate::record::field::Field::read(&mut fields, &[$($word),*])?,)*
                    shape: fields.shape(),
                })
            }

            fn to_hash(&self) -> $crate::hash::Hash {
                let mut writer = $crate::record::field::Writer::new(&self.shape);
                $($crate::record::field::Field::write(&self.$field, &mut writer, &[$($word),*]);)*
                writer.finish()
            }
        }

        impl $crate::record::field::Value for $name {
            fn from_below(below: &$crate::hash::Hash) -> Result<Self, $crate::hash::FieldError> {
                <Self as $crate::record::Record>::from_hash(below)
            }

            fn to_below(&self) -> $crate::hash::Hash {
                <Self as $crate::record::Record>::to_hash(self)
            }
        }
    };
}
pub(super) use record;
