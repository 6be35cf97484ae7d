//! Mode, owner and times of a sealed name: seven keys of scrfs's own beside SCR's, in every record
//! that lists names. Other readers ignore them.

use super::field::{Field, Fields, Writer};
use crate::dataset::{Entry, EntryKind, Stamp};
use crate::hash::{FieldError, FieldProblem};

/// What a name had when it was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Permission and type bits (`st_mode`), decimal on storage.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: Stamp,
    /// Last change of the bytes.
    pub mtime: Stamp,
}

/// In the order in which they are written.
const KEYS: [&str; 7] = ["MODE", "UID", "GID", "ATIME_SECS", "ATIME_NSECS", "MTIME_SECS", "MTIME_NSECS"];
const NSECS: u32 = 1_000_000_000;

impl Attributes {
    /// Those of a catalog's entry.
    pub fn of(entry: &Entry) -> Self {
        let kind = match entry.kind {
            EntryKind::Directory => libc::S_IFDIR,
            EntryKind::File(_) => libc::S_IFREG,
            EntryKind::Symlink(_) => libc::S_IFLNK,
        };
        let Entry { uid, gid, atime, mtime, .. } = *entry;
        Self { mode: kind | entry.mode, uid, gid, atime, mtime }
    }

    /// A catalog's entry with these.
    pub fn entry(&self, path: crate::path::RelPath, kind: EntryKind) -> Entry {
        let Self { mode, uid, gid, atime, mtime } = *self;
        Entry { path, kind, mode: mode & 0o7777, uid, gid, atime, mtime }
    }
}

/// All seven keys, or none: where some are missing they are someone else's.
impl Field for Option<Attributes> {
    fn read(fields: &mut Fields<'_>, _: &[&'static str]) -> Result<Self, FieldError> {
        if !KEYS.iter().all(|key| fields.has(key)) {
            return Ok(None);
        }
        let [mode, uid, gid, atime, atime_nsecs, mtime, mtime_nsecs] = KEYS;
        let stamp = |fields: &mut Fields<'_>, secs, nsecs| {
            let stamp = Stamp { secs: fields.need(secs)?, nsecs: fields.need(nsecs)? };
            let within = FieldProblem::Other("is not within a second");
            if stamp.nsecs < NSECS { Ok(stamp) } else { Err(FieldError::at(nsecs, within)) }
        };
        Ok(Some(Attributes {
            mode: fields.need(mode)?,
            uid: fields.need(uid)?,
            gid: fields.need(gid)?,
            atime: stamp(fields, atime, atime_nsecs)?,
            mtime: stamp(fields, mtime, mtime_nsecs)?,
        }))
    }

    fn write(&self, writer: &mut Writer<'_>, _: &[&'static str]) {
        let Some(Attributes { mode, uid, gid, atime, mtime }) = self else { return };
        let [of_mode, of_uid, of_gid, ..] = KEYS;
        for (key, number) in [(of_mode, mode), (of_uid, uid), (of_gid, gid)] {
            Some(*number).write(writer, &[key]);
        }
        for (stamp, keys) in [atime, mtime].into_iter().zip(KEYS[3..].chunks_exact(2)) {
            Some(stamp.secs).write(writer, &keys[..1]);
            Some(stamp.nsecs).write(writer, &keys[1..]);
        }
    }
}
