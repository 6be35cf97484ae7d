//! The mark of a run: which scrfs-run, on which host, started a process, and for which job.
//!
//! `<stamp>-<pid>@<host>/<user>/<job id>`, and `#<name>` of a run that works beside others: what
//! follows the `@` is equal for all scrfs-runs of one job and name on one host, of which only one
//! can be alive ([`Token::hold`]).

use std::fmt;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use scrfs::store::private;

use crate::{Failure, Outcome};

/// Where the lock of a job is, and where it is when there is no room there.
const BASES: [&str; 2] = ["/dev/shm", "/tmp"];

/// A run's mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// When it began, microseconds since 1970: a process number alone is used again.
    pub stamp: u128,
    /// Of scrfs-run.
    pub pid: u32,
    /// Where scrfs-run runs.
    pub host: String,
    /// `<user>/<job id>`.
    pub job: String,
    /// `scrfs-run --name`; empty: it is the only one of its job.
    pub name: String,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}@{}/{}", self.stamp, self.pid, self.host, self.job)?;
        // A job id may have the sign too.
        if self.name.is_empty() && !self.job.contains('#') { Ok(()) } else { write!(f, "#{}", self.name) }
    }
}

impl Token {
    /// As [`Token`] is displayed.
    pub fn parse(text: &str) -> Option<Self> {
        let (run, place) = text.split_once('@')?;
        let (stamp, pid) = run.split_once('-')?;
        let (place, name) = place.rsplit_once('#').unwrap_or((place, ""));
        let (host, job) = place.split_once('/')?;
        Some(Self {
            stamp: stamp.parse().ok()?,
            pid: pid.parse().ok()?,
            host: host.to_owned(),
            job: job.to_owned(),
            name: name.to_owned(),
        })
    }

    /// For `self` a lock is held, so whatever else its host has started for its job has lost its
    /// launcher.
    pub fn outlives(&self, other: &Self) -> bool {
        self.job == other.job && self.name == other.name && self.host == other.host
    }

    /// Makes this the only run of its job on this host, as long as the answer is kept. The lock is
    /// in a directory of this user's own, so nobody else can take it first; it is gone with the
    /// process, however that ends.
    ///
    /// # Errors
    /// Another holds it.
    pub fn hold(&self) -> Outcome<Held> {
        self.hold_in(BASES.map(Path::new))
    }

    fn hold_in(&self, bases: [&Path; 2]) -> Outcome<Held> {
        let no_lock = |e: &dyn fmt::Display| {
            Failure::new(format!("the job's lock: {e}"))
                .hint("a directory of yours in /dev/shm or /tmp must be usable")
        };
        // Names are short, job ids need not be.
        let mut hasher = DefaultHasher::new();
        self.job.hash(&mut hasher);
        self.name.hash(&mut hasher);
        let name = format!("{:016x}.lock", hasher.finish());
        let home = home();
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let open = |base: &Path| -> Result<(PathBuf, File), Box<dyn std::error::Error>> {
            let path = private::find_or_make(base, &home)?.join(&name);
            let file = options.open(&path)?;
            Ok((path, file))
        };
        let (path, mut opened) = open(bases[0]).or_else(|_| open(bases[1])).map_err(|e| no_lock(&e))?;
        let (file, locked) = loop {
            let file = opened;
            let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
            // Its last holder may have removed it since it was opened.
            if is_at(&file, &path) || locked.is_err() {
                break (file, locked);
            }
            opened = options.open(&path).map_err(|e| no_lock(&e))?;
        };
        // One that began when there was no room in the first has it in the second.
        let others = bases.iter().filter_map(|base| private::find(base, &home)).map(|home| home.join(&name));
        let other = others.filter(|other| *other != path).find_map(|other| held_by_another(&other));
        let (mut file, locked) = match other {
            Some(other) if locked.is_ok() => (other, Err(Errno::WOULDBLOCK)),
            _ => (file, locked),
        };
        match locked {
            Ok(()) => {
                let line = format!("{}\n", std::process::id());
                // For people: the lock itself is held.
                let _ = file.write_all(line.as_bytes()).and_then(|()| file.set_len(line.len() as u64));
                Ok(Held { _file: file, path })
            }
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let _ = file.take(32).read_to_string(&mut text);
                let pid = text.trim().parse::<u32>().ok();
                let (job, host) = (&self.job, &self.host);
                let who = pid.map_or_else(|| "of unknown pid".to_owned(), |pid| format!("pid {pid}"));
                let end = pid
                    .map_or_else(String::new, |pid| format!(" with `kill {pid}`: that ends its program too"));
                Err(Failure::new(format!("another scrfs-run of job {job} is alive on {host} ({who})")).hint(
                    format!("wait for its end, or end it{end}; on other nodes two can run at once, each with a --name"),
                ))
            }
            Err(error) => Err(no_lock(&error)),
        }
    }
}

/// Removes the locks of this user's runs on this node that were killed: nobody holds them.
pub fn sweep() {
    sweep_in(BASES.map(Path::new));
}

fn sweep_in(bases: [&Path; 2]) {
    let homes = bases.iter().filter_map(|base| private::find(base, &home()));
    for entry in homes.filter_map(|home| fs::read_dir(home).ok()).flatten().flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "lock") {
            continue;
        }
        let Ok(file) = File::open(&path) else { continue };
        // As its holder does it: while it is locked.
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && is_at(&file, &path) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// The directory of this user's locks, in each base.
fn home() -> String {
    format!("scrfs-run.{}", rustix::process::getuid().as_raw())
}

/// This file is the one that `path` names.
fn is_at(file: &File, path: &Path) -> bool {
    let same =
        |there: fs::Metadata, ours: fs::Metadata| (there.dev(), there.ino()) == (ours.dev(), ours.ino());
    fs::metadata(path).is_ok_and(|there| file.metadata().is_ok_and(|ours| same(there, ours)))
}

/// A lock file, if somebody holds it.
fn held_by_another(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
    (locked == Err(Errno::WOULDBLOCK)).then_some(file)
}

/// The job's lock, held until this is dropped.
#[derive(Debug)]
pub struct Held {
    _file: File,
    path: PathBuf,
}

impl Drop for Held {
    fn drop(&mut self) {
        // While it is locked: whoever has opened it by now sees that it is gone, and makes another.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(job: &str) -> Token {
        Token {
            stamp: 17,
            pid: std::process::id(),
            host: "login-1.site".into(),
            job: job.into(),
            name: String::new(),
        }
    }

    #[test]
    fn where_there_is_no_room_for_the_lock_another_place_has_it_and_both_are_looked_at() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let bases = [first.path(), second.path()];
        let one = token("ann/77");
        let held = one.hold_in(bases).unwrap();
        assert!(held.path.starts_with(first.path()));
        let path = held.path.clone();
        drop(held);
        // It cannot be opened there, as if there were no room.
        fs::create_dir(&path).unwrap();
        let held = one.hold_in(bases).unwrap();
        assert!(held.path.starts_with(second.path()));
        assert!(one.hold_in(bases).is_err());
        // Now there would be room, and the job has its run all the same.
        fs::remove_dir(&path).unwrap();
        let refused = one.hold_in(bases).unwrap_err().message;
        assert!(refused.contains("is alive on"), "{refused}");
        drop(held);
        one.hold_in(bases).unwrap();
    }

    #[test]
    fn locks_of_killed_runs_go_and_that_of_a_living_one_stays() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let bases = [first.path(), second.path()];
        let held = token("ann/77").hold_in(bases).unwrap();
        let killed = token("ann/78").hold_in(bases).unwrap();
        let path = killed.path.clone();
        // A process that is killed drops nothing.
        fs::copy(&path, path.with_file_name("x.lock")).unwrap();
        fs::write(path.with_file_name("mine"), b"").unwrap();
        drop(killed);
        sweep_in(bases);
        let names = ["x.lock", "mine"].map(|name| path.with_file_name(name).exists());
        assert_eq!((names, held.path.exists()), ([false, true], true));
    }

    #[test]
    fn what_is_written_is_read() {
        for job in ["ann/77", "a@b/x-y/z"] {
            let one = token(job);
            assert_eq!(Token::parse(&one.to_string()), Some(one));
        }
        for (job, name) in [("ann/77", "left"), ("ann/7#7", ""), ("ann/7#7", "x")] {
            let one = Token { name: name.into(), ..token(job) };
            assert_eq!(Token::parse(&one.to_string()), Some(one));
        }
        for bad in ["", "1-2", "1-2@h", "x-2@h/u/j", "1-x@h/u/j", "12@h/u/j"] {
            assert_eq!(Token::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn one_run_of_a_job_holds_it_and_a_dead_one_does_not() {
        let one = token(&format!("test/{}", std::process::id()));
        let held = one.hold().unwrap();
        let failure = one.hold().unwrap_err();
        assert!(failure.message.contains(&format!("login-1.site (pid {})", std::process::id())), "{failure}");
        assert!(failure.hint.contains("kill"));
        let other = token(&format!("test/{}x", std::process::id()));
        drop(other.hold().unwrap());
        let beside = Token { name: "b".into(), ..one.clone() };
        assert!(!beside.outlives(&one) && !one.outlives(&beside));
        drop(beside.hold().unwrap());
        drop(held);
        drop(one.hold().unwrap());
    }

    #[test]
    fn only_what_this_host_started_for_this_job_is_known_to_be_orphaned() {
        let (ours, mut former) = (token("ann/77"), token("ann/77"));
        former.pid = 1;
        assert!(ours.outlives(&former));
        former.host = "login-2".into();
        assert!(!ours.outlives(&former));
        assert!(!ours.outlives(&token("ann/78")) && !ours.outlives(&token("bob/77")));
    }
}
