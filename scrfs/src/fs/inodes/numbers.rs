//! Which numbers inodes have.

use super::inode::Key;

/// The root's number, as FUSE wants it.
pub const ROOT: u64 = 1;

/// Numbers from here on are not those of backing inodes. (xfs comes near it on file systems of an
/// exbibyte.)
pub(super) const OWN_BOUND: u64 = 1 << 56;

/// Where a number says in which other store its inode is: above those that are counted up from
/// [`OWN_BOUND`], and below [`EYES`].
pub(super) const STORE_SHIFT: u32 = 57;
const STORES_MAX: u64 = 1 << 5;

/// The number of a backing inode in the file system of a store, where it can be ours too.
pub(super) fn own_number(devices: &[u64], key: Key) -> Option<u64> {
    let store = devices.iter().position(|device| *device == key.0)? as u64;
    let fits = key.1 > ROOT && key.1 < OWN_BOUND && store < STORES_MAX;
    fits.then_some(store << STORE_SHIFT | key.1)
}

/// The number of the directory of files that are not there (`fs/eyes.rs`); the files have those
/// after it.
pub(crate) const EYES: u64 = 1 << 62;
/// How many files that are.
pub(crate) const EYES_COUNT: u64 = 8;

/// The inode is that directory, or one of its files.
pub(crate) fn is_eye(inode: u64) -> bool {
    (EYES..=EYES + EYES_COUNT).contains(&inode)
}
