//! scrfs.
