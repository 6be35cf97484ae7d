//! /proc/thread-self/mountinfo: what is mounted where.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::store::private;

/// Type of our mounts.
pub const FS_TYPE: &str = "fuse.scrfs";
/// What it is read from: a thread may have a mount namespace of its own.
pub(crate) const TABLE: &str = "/proc/thread-self/mountinfo";
/// Begins the source of our mounts; the control directory follows. No colon: programs that read the
/// table, df and du among them, take a source with one for another machine's.
const SOURCE_PREFIX: &str = "scrfs@";

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// The kernel's number of it, which another mount may get once this one is gone.
    pub id: u64,
    /// Where.
    pub mount_point: PathBuf,
    /// Its device, `MAJOR:MINOR`.
    pub device: String,
    /// File system type.
    pub fs_type: String,
    /// What.
    pub source: OsString,
    /// Of a FUSE mount: the user who mounted it.
    pub owner: Option<u32>,
    /// Nothing there can be executed: who mounts can ask for that.
    pub noexec: bool,
}

impl Mounted {
    /// The control directory, if it is ours, and mounted by root or by this process's user. Users
    /// who mount may call it what they like: that path is not even looked at, as a file system of
    /// theirs may lie on it that never answers.
    pub fn control_directory(&self) -> Option<PathBuf> {
        self.named().filter(|_| self.is_trusted())
    }

    /// The same of a mount that somebody has named. Root may name one of another user, which is
    /// believed of a directory of that user, to which root's and that user's directories lead, on
    /// file systems that are not that user's.
    pub fn control_directory_asked_for(&self) -> Option<PathBuf> {
        let (path, owner) = (self.named()?, self.owner);
        let is_theirs = || {
            let owner = owner.filter(|_| rustix::process::geteuid().is_root());
            owner.is_some_and(|owner| private::is_of(&path, owner))
        };
        (self.is_trusted() || is_theirs()).then_some(path)
    }

    /// It is ours by type and source, and `control` is in the source, whoever wrote that.
    pub fn names(&self, control: &Path) -> bool {
        self.named().is_some_and(|path| path == control)
    }

    /// It is ours by type and source, whoever wrote these.
    pub fn is_scrfs(&self) -> bool {
        self.named().is_some()
    }

    fn named(&self) -> Option<PathBuf> {
        let path = self.source.as_bytes().strip_prefix(SOURCE_PREFIX.as_bytes())?;
        (self.fs_type == FS_TYPE && path.first() == Some(&b'/'))
            .then(|| PathBuf::from(OsString::from_vec(path.to_vec())))
    }

    /// Root mounted it, or this process's user. Others can mount nothing but FUSE.
    pub fn is_trusted(&self) -> bool {
        self.owner.is_none_or(|owner| owner == 0) || self.is_ours()
    }

    /// This process's user mounted it.
    pub fn is_ours(&self) -> bool {
        self.owner == Some(rustix::process::geteuid().as_raw())
    }
}

/// The source of a mount with this control directory.
pub fn source_of(control: &Path) -> OsString {
    let mut source = OsString::from(SOURCE_PREFIX);
    source.push(control);
    source
}

/// What is mounted at `mount_point` (an absolute path without symlinks): the uppermost mount.
pub fn mounted_at(mount_point: &Path) -> io::Result<Option<Mounted>> {
    let table = std::fs::read(TABLE)?;
    Ok(parse(&table).filter(|mount| mount.mount_point == mount_point).last())
}

/// All mounts of this mount namespace.
pub fn all() -> io::Result<Vec<Mounted>> {
    Ok(parse(&std::fs::read(TABLE)?).collect())
}

/// All mounts of a process's mount namespace; none where this user may not look.
pub fn of_process(pid: u32) -> Vec<Mounted> {
    let table = std::fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    parse(&table).collect()
}

/// A mount that `wanted` accepts in another mount namespace, and a process there; one that this
/// user may not look at is passed over.
pub fn elsewhere(wanted: impl Fn(&Mounted) -> bool) -> Option<(u32, Mounted)> {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let mut seen = BTreeSet::from([namespace("thread-self")?]);
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find_map(|pid| {
        if !seen.insert(namespace(&pid.to_string())?) {
            return None;
        }
        of_process(pid).into_iter().find(&wanted).map(|mount| (pid, mount))
    })
}

/// The mounts in the text of such a table.
pub fn parse(table: &[u8]) -> impl Iterator<Item = Mounted> {
    table.split(|&b| b == b'\n').filter_map(|line| {
        // Optional fields end with a lone hyphen; type and source follow.
        let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
        let end = fields.iter().position(|f| *f == b"-")?;
        Some(Mounted {
            id: std::str::from_utf8(fields.first()?).ok()?.parse().ok()?,
            mount_point: PathBuf::from(unescape(fields.get(4)?)),
            device: String::from_utf8_lossy(fields.get(2)?).into_owned(),
            fs_type: String::from_utf8_lossy(fields.get(end + 1)?).into_owned(),
            source: unescape(fields.get(end + 2)?),
            owner: fields.get(end + 3).and_then(|options| owner(options)),
            noexec: fields.get(5)?.split(|&b| b == b',').any(|option| option == b"noexec"),
        })
    })
}

fn owner(options: &[u8]) -> Option<u32> {
    options
        .split(|&b| b == b',')
        .find_map(|option| std::str::from_utf8(option.strip_prefix(b"user_id=")?).ok()?.parse().ok())
}

/// Blank, tab, newline and backslash are written as three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut at = 0;
    while let Some(&byte) = field.get(at) {
        let octal = field
            .get(at + 1..at + 4)
            .filter(|_| byte == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(octal.unwrap_or(byte));
        at += if octal.is_some() { 4 } else { 1 };
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_with_blanks_and_optional_fields() {
        let me = rustix::process::geteuid().as_raw();
        let table = format!(
            "36 35 98:0 / /a\\040b rw,noatime shared:1 master:2 - fuse.scrfs scrfs@/dev/shm/u/scr.1 rw,user_id={me}\n\
             broken line\n\
             37 35 0:4 / /proc rw - proc proc rw\n\
             38 35 0:5 / /with\\134slash rw - fuse.scrfs scrfs@/c rw\n\
             39 35 0:6 / /rel rw,noexec,relatime - fuse.scrfs scrfs@relative rw\n"
        );
        let mounts: Vec<Mounted> = parse(table.as_bytes()).collect();
        assert_eq!(mounts.len(), 4);
        assert_eq!((mounts[0].mount_point.as_path(), mounts[0].device.as_str()), (Path::new("/a b"), "98:0"));
        assert_eq!((mounts[0].id, mounts[3].id), (36, 39));
        assert!(mounts[3].noexec && !mounts[0].noexec);
        assert_eq!(mounts[0].control_directory(), Some(PathBuf::from("/dev/shm/u/scr.1")));
        assert_eq!(mounts[1].control_directory(), None);
        assert_eq!((mounts[0].owner, mounts[1].owner), (Some(me), None));
        assert_eq!(source_of(Path::new("/dev/shm/u/scr.1")), mounts[0].source);
        assert_eq!(mounts[2].mount_point, Path::new("/with\\slash"));
        assert!(mounts[2].names(Path::new("/c")) && mounts[3].control_directory().is_none());
    }

    #[test]
    fn what_another_user_calls_a_mount_is_not_believed() {
        const STRANGER: u32 = 54_321;
        let dir = tempfile::tempdir().unwrap();
        let named = |control: &Path, owner: u32| {
            let control = control.display();
            let line = format!("36 35 0:9 / /e rw - fuse.scrfs scrfs@{control} rw,user_id={owner}\n");
            parse(line.as_bytes()).next().unwrap()
        };
        let root = rustix::process::geteuid().is_root();
        // Neither what is nobody's, nor what is this user's, nor what is not there.
        for control in [dir.path(), &dir.path().join("none"), Path::new("/")] {
            let mount = named(control, STRANGER);
            assert_eq!((mount.control_directory(), mount.is_trusted()), (None, false));
            assert_eq!(mount.control_directory_asked_for(), None, "{control:?}");
            assert!(mount.names(control), "the text is what it is");
            assert_eq!(named(control, 0).control_directory().as_deref(), Some(control));
        }
        let theirs = dir.path().join("theirs");
        std::fs::create_dir(&theirs).unwrap();
        if root {
            std::os::unix::fs::chown(&theirs, Some(STRANGER), None).unwrap();
            assert_eq!(named(&theirs, STRANGER).control_directory_asked_for(), Some(theirs.clone()));
            assert_eq!(named(&theirs, STRANGER + 1).control_directory_asked_for(), None);
        }
        assert_eq!(named(&theirs, STRANGER).control_directory(), None);
    }
}
