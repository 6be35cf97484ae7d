//! The locks of a control directory are taken. Who holds them: [`crate::control::directory`].

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::FlockOperation;

use super::{MountError, failed};
use crate::control::directory::read_pid;

/// Held as long as its process lives.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock `name` in the control directory and writes this process's id into it.
    pub(super) fn take(control: &Path, name: &str) -> Result<Self, MountError> {
        let path = control.join(name);
        let io = |doing| failed(doing, &path);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(libc::O_NOFOLLOW);
        let mut file = loop {
            let mut file = options.open(&path).map_err(io("cannot open"))?;
            // Former versions' could be locked by everybody.
            file.set_permissions(Permissions::from_mode(0o600)).map_err(io("cannot chmod"))?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Who had it may have removed it since it was opened: it would guard nothing.
                Ok(()) if is_at(&file, &path) => break file,
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err(MountError::Busy { directory: control.to_owned(), pid: read_pid(&mut file) });
                }
                Err(error) => return Err(io("cannot lock")(error.into())),
            }
        };
        let write = |file: &mut File| {
            // Never empty: others read it.
            let line = format!("{}\n", std::process::id());
            file.write_all(line.as_bytes())?;
            file.set_len(line.len() as u64)
        };
        write(&mut file).map_err(io("cannot write"))?;
        Ok(Self { _file: file })
    }
}

/// This file is the one that `path` names.
fn is_at(file: &File, path: &Path) -> bool {
    let same = |one: Metadata, other: Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
    path.symlink_metadata().is_ok_and(|there| file.metadata().is_ok_and(|ours| same(there, ours)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::directory::{SUPERVISOR_LOCK, supervisor_of};
    use crate::patience::until;

    #[test]
    fn one_lock_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path(), SUPERVISOR_LOCK).unwrap();
        assert!(matches!(
            Lock::take(dir.path(), SUPERVISOR_LOCK),
            Err(MountError::Busy { pid, .. }) if pid == std::process::id()
        ));
        assert_eq!(supervisor_of(dir.path()), Some(std::process::id()));
        drop(lock);
        until("the lock's end", || supervisor_of(dir.path()).is_none());
    }
}
