//! scrfs.
fn main() {}
