//! SCR's hash files: an ordered tree of keys, and its bytes.
//!
//! Every piece of metadata that SCR keeps is one tree. A tree is a list of elements; an element is
//! a key and the tree below it; `KEY = VALUE` is a key with one child that has no children. In
//! reading order:
//!
//! - [`tree`]: [`struct@Hash`], the tree, and [`Text`], its keys and values; building and reading
//!   it.
//! - [`error`]: what can be wrong with bytes ([`FormatError`]) and with a tree ([`FieldError`]).
//! - [`codec`]: a tree as packed bytes (big-endian counts, keys ending in NUL).
//! - [`file`](mod@file): a record: header, packed tree, CRC32. A file is one record, several, or
//!   one and a payload.
//! - [`text`]: the form that people read.
//!
//! Order is kept: decoding and encoding again gives the same bytes. (SCR puts elements at the head
//! when it reads, so what it reads and writes again comes out reversed; no reader may depend on
//! order.)

pub mod codec;
pub mod error;
pub mod file;
pub mod text;
pub mod tree;

pub use error::{FieldError, FieldProblem, FormatError, NulInText};
pub use file::{decode_file, decode_file_with_values, decode_record, encode, framed, record_size};
pub use tree::{Hash, Text};

#[cfg(test)]
mod tests;
