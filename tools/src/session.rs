//! The directories in which Open MPI's processes of one scrfs-run keep their small files
//! (`scrfs-run` names one on every node), and the end of those that killed runs have left.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use scrfs::store::private::{self, Problem};

use crate::token;

/// Where they are, on every node.
const BASE: &str = "/tmp";
/// A younger one may not be in anybody's environment yet.
const AGE: Duration = Duration::from_mins(1);
/// What makes one names it to its process at once.
const SETTLED: Duration = Duration::from_secs(5);

/// This run's directory on this host, gone with this. On other nodes [`on_this_node`] makes it.
#[derive(Debug)]
pub struct Session {
    path: PathBuf,
    /// Says to [`sweep`] that its owner lives; the kernel takes it back at the owner's end.
    _lock: File,
}

impl Session {
    /// Makes it, with a name that nobody can know before.
    ///
    /// # Errors
    /// The base cannot be relied upon, or nothing can be made there.
    pub fn make() -> Result<Self, Problem> {
        Self::make_in(Path::new(BASE))
    }

    fn make_in(base: &Path) -> Result<Self, Problem> {
        let path = private::make_new(base, name().trim_end_matches('.'))?;
        match lock(&path) {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(source) => {
                let _ = fs::remove_dir(&path);
                Err(Problem::Io { path, source })
            }
        }
    }

    /// Where it is, on every node.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The directory of a run on this node, if the run calls it `named` there: another user may have
/// read that name elsewhere and made it here first.
///
/// # Errors
/// The directory around it cannot be relied upon, or nothing can be made there.
pub fn on_this_node(named: &Path) -> Result<PathBuf, Problem> {
    let parts = named.parent().zip(named.file_name().and_then(OsStr::to_str));
    let Some((base, name)) = parts.filter(|(_, file)| file.starts_with(&name())) else {
        // Some other place that the user has chosen.
        return Ok(named.to_owned());
    };
    private::find_or_make(base, name)
}

impl Drop for Session {
    fn drop(&mut self) {
        // What Open MPI leaves when it is ended by a signal: tens of megabytes each time. No
        // process of this run is here any more.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes this user's directories on this host that belong to no run any more: nobody holds their
/// lock, and no process has them in its environment or among its arguments.
pub fn sweep() {
    sweep_in(Path::new(BASE), AGE);
}

/// The same where a job of this user has ended on this node, and the locks of its runs that were
/// killed. A directory that nobody seems to use may be another job's, made a moment ago: it is
/// looked at again once its maker must have named it.
pub fn sweep_after_job() {
    token::sweep();
    let base = Path::new(BASE);
    let young = unused(base, Duration::ZERO);
    if !young.is_empty() {
        std::thread::sleep(SETTLED);
        let still = unused(base, SETTLED);
        remove(young.into_iter().filter(|path| still.contains(path)));
    }
}

fn sweep_in(base: &Path, age: Duration) {
    remove(unused(base, age));
}

/// Those that are older than `age` and are in nobody's environment or arguments.
fn unused(base: &Path, age: Duration) -> Vec<PathBuf> {
    let mut left = left(base, age);
    if left.is_empty() {
        return left;
    }
    let me = rustix::process::getuid().as_raw();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        // Others' processes do not use these, and their memory may be of a file that never answers.
        if process.metadata().is_ok_and(|meta| meta.uid() != me) {
            continue;
        }
        // Open MPI's daemons on other nodes have them as arguments.
        for words in ["environ", "cmdline"] {
            let words = fs::read(process.path().join(words)).unwrap_or_default();
            left.retain(|path| {
                let bytes = path.as_os_str().as_bytes();
                !words.split(|byte| *byte == 0).any(|word| word.ends_with(bytes))
            });
        }
    }
    left
}

fn remove(unused: impl IntoIterator<Item = PathBuf>) {
    for path in unused {
        if let Ok(_lock) = lock(&path)
            && let Err(error) = fs::remove_dir_all(&path)
        {
            tracing::debug!(path = %path.display(), %error, "a killed run's directory stays");
        }
    }
}

/// Those that are older than `age`.
fn left(base: &Path, age: Duration) -> Vec<PathBuf> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().as_bytes().starts_with(name().as_bytes()));
    let is_left = |path: &PathBuf| {
        // Others can make such names too, and mount there what never answers.
        if !private::is_ours(path) {
            return None;
        }
        let meta = fs::symlink_metadata(path).ok()?;
        let old = meta.modified().ok()?.elapsed().ok()? >= age;
        Some(meta.is_dir() && meta.uid() == rustix::process::getuid().as_raw() && old)
    };
    ours.map(|entry| entry.path()).filter(|path| is_left(path).unwrap_or(false)).collect()
}

/// How the names of this user's begin.
fn name() -> String {
    format!("scrfs-mpi.{}.", rustix::process::getuid().as_raw())
}

fn lock(directory: &Path) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(directory, flags, Mode::empty())?);
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn what_killed_runs_have_left_goes_and_what_somebody_uses_stays() {
        let base = tempfile::tempdir().unwrap();
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let held = Session::make_in(base.path()).unwrap();
        assert!(private::is_ours(held.path()));
        let make = |suffix: &str| {
            let path = base.path().join(format!("{}{suffix}", name()));
            fs::create_dir_all(path.join("ompi.n0.1000")).unwrap();
            path
        };
        let (used, gone) = (make("used"), make("gone"));
        let foreign = base.path().join("scrfs-mpi.x");
        fs::create_dir(&foreign).unwrap();
        let mut user =
            Command::new("sleep").arg("60").env("OMPI_MCA_orte_tmpdir_base", &used).spawn().unwrap();
        // Until it is `sleep` it has this process's environment.
        while !fs::read_to_string(format!("/proc/{}/comm", user.id())).unwrap().starts_with("sleep") {
            std::thread::yield_now();
        }
        sweep_in(base.path(), Duration::from_hours(1));
        assert!(gone.exists(), "it is young");
        sweep_in(base.path(), Duration::ZERO);
        assert_eq!([held.path(), &used, &foreign, &gone].map(Path::exists), [true, true, true, false]);
        user.kill().unwrap();
        user.wait().unwrap();
        sweep_in(base.path(), Duration::ZERO);
        assert_eq!([held.path(), &used].map(Path::exists), [true, false]);
        let path = held.path().to_owned();
        drop(held);
        assert!(!path.exists());
    }
}
