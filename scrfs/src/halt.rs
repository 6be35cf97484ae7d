//! When a job is to stop: the halt file in the prefix, which SCR's tools write too, and the
//! allocation's end.
//!
//! What holds when is decided by [`due`], a function of the file, the rules and the time
//! (scr_halt.c decides alike). SCR looks only when a checkpoint is complete; so do we, but for what
//! cannot wait for the next one.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Gid, Mode, OFlags, ResolveFlags, Uid, flock};
use rustix::io::Errno;

use crate::control::AdviceRules;
use crate::hash::Text;
use crate::plain::{self, STATE, mounted};
use crate::prefix::{stamp, strangers};
use crate::record::{Halt, Record, RecordError};

/// More than any halt file has.
const BYTES_MAX: u64 = 1 << 16;
/// Between two tries for the lock: the kernel tells nobody when a lock on a PFS is free.
const PAUSE: Duration = Duration::from_millis(20);
/// The reason that SCR leaves when a program has ended well.
const FINALIZED: &[u8] = b"SCR_FINALIZE_CALLED";

/// The end of the year 9999.
const SHOWN_MAX: u64 = 253_402_300_799;

/// How reasons begin that the allocation's end gives.
const ALLOCATION: &str = "the allocation ends ";

/// Whether a [`Stop::reason`] is the allocation's end: no halt file can take that back.
pub fn is_of_allocation(reason: &str) -> bool {
    reason.starts_with(ALLOCATION)
}

/// When a condition that holds ends the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// When its next dataset is sealed.
    AtSeal,
    /// It cannot wait for that.
    Now,
}

/// A condition that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// In words.
    pub reason: String,
    /// When it ends the program.
    pub when: When,
}

/// Which condition holds at `now` (seconds since 1970), if any does: first those that cannot wait.
/// `flush`: seconds that a flush of the newest dataset is expected to take.
pub fn due(halt: &Halt, rules: &AdviceRules, now: u64, flush: u64) -> Option<Stop> {
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    urgent(halt, rules, now, flush)
        .map(|reason| Stop { reason, when: When::Now })
        .or_else(|| at_seal(halt, rules, now).map(|reason| Stop { reason, when: When::AtSeal }))
}

fn urgent(halt: &Halt, rules: &AdviceRules, now: i64, flush: u64) -> Option<String> {
    if let Some(reason) = reason_of(halt).filter(|_| halt.immediate == Some(1)) {
        return Some(format!("the halt file says {reason}, at once"));
    }
    if let Some(before) = halt.exit_before.filter(|before| *before <= now) {
        return Some(format!("the halt file says before {}", moment(before)));
    }
    let end = i64::try_from(rules.end_time).unwrap_or(i64::MAX);
    let needed = i64::try_from(rules.end_reserve.saturating_add(flush)).unwrap_or(i64::MAX);
    let ends = rules.end_time > 0 && rules.end_reserve > 0 && end.saturating_sub(needed) <= now;
    ends.then(|| format!("{ALLOCATION}in {} s, and saving the newest dataset may take {needed} s", end - now))
}

fn at_seal(halt: &Halt, rules: &AdviceRules, now: i64) -> Option<String> {
    if let Some(reason) = reason_of(halt) {
        return Some(format!("the halt file says {reason}"));
    }
    if halt.checkpoints_left.is_some_and(|left| left <= 0) {
        return Some("no checkpoints are left by the halt file".to_owned());
    }
    if let Some(after) = halt.exit_after.filter(|after| *after <= now) {
        return Some(format!("the halt file says after {}", moment(after)));
    }
    let set = i64::try_from(rules.halt_seconds).unwrap_or(i64::MAX);
    let early = halt.halt_seconds.unwrap_or(set).max(0);
    if let Some(before) = halt.exit_before.filter(|before| before.saturating_sub(early) <= now) {
        return Some(format!("the halt file says before {}", moment(before)));
    }
    let end = i64::try_from(rules.end_time).unwrap_or(i64::MAX);
    let ends = rules.end_time > 0 && early > 0 && end.saturating_sub(early) <= now;
    ends.then(|| format!("{ALLOCATION}within {early} s"))
}

/// A time of the file, for people.
fn moment(seconds: i64) -> String {
    match u64::try_from(seconds) {
        Ok(seconds) if seconds <= SHOWN_MAX => format!("{} UTC", stamp(seconds)),
        _ => seconds.to_string(),
    }
}

/// The reason that the file gives, if it is one to stop for.
fn reason_of(halt: &Halt) -> Option<String> {
    let reason = halt.exit_reason.as_ref().map(Text::as_bytes)?;
    let counts = !reason.is_empty() && reason != FINALIZED;
    counts.then(|| String::from_utf8_lossy(reason).into_owned())
}

/// Where a job's halt file is.
pub fn path(prefix: &Path) -> PathBuf {
    prefix.join(".scr/halt.scr")
}

/// Why the halt file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HaltError {
    /// A system call.
    #[error("{}: {step}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// It is no halt file.
    #[error("{}: {source}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: RecordError,
    },
    /// Anybody can have made it.
    #[error("{}: another user has made it, where everybody may make files", path.display())]
    Strangers {
        /// The file.
        path: PathBuf,
    },
    /// It is too large for one.
    #[error("{}: more than {BYTES_MAX} bytes", path.display())]
    Size {
        /// The file.
        path: PathBuf,
    },
}

impl HaltError {
    fn io(path: &Path, step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), step, source }
    }
}

/// How a halt file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// To look.
    Read,
    /// To change it, if it is there.
    Write,
    /// To change it; it is made if it is not there.
    Create,
}

/// The halt file, locked as long as this lives. SCR's tools change it in place under the same lock.
#[derive(Debug)]
pub struct HaltFile {
    file: File,
    path: PathBuf,
    /// What it says; [`HaltFile::store`] writes it.
    pub halt: Halt,
}

/// Whoever can open it can lock it, and would keep the job from being halted.
const MODE: u32 = 0o600;

/// Opens a halt file, which may be another user's than this process's: neither it nor its directory
/// is a link, and a pipe in its place is refused.
fn open_plain(path: &Path, access: Access) -> io::Result<File> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let plain = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | plain;
    let above = directory_of(path);
    let opened = if above.file_name().is_some_and(|name| name == STATE) {
        plain::open_unmounted(above, flags, Mode::empty()).map(OwnedFd::from)
    } else {
        rustix::fs::open(above, flags, Mode::empty()).map_err(io::Error::from)
    };
    let directory = opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotADirectory => io::Error::new(
            error.kind(),
            format!("{} is no directory, and a link there is not followed", above.display()),
        ),
        _ => error,
    })?;
    let open = |access: OFlags| {
        let mode = Mode::from_raw_mode(MODE);
        let mode = if access.contains(OFlags::CREATE) { mode } else { Mode::empty() };
        // What a user has mounted there is not asked.
        let flags = access | OFlags::NONBLOCK | plain;
        rustix::fs::openat2(&directory, name, flags, mode, ResolveFlags::NO_XDEV)
    };
    let file = File::from(match access {
        Access::Read => open(OFlags::RDONLY).map_err(mounted)?,
        Access::Write => open(OFlags::RDWR).map_err(mounted)?,
        Access::Create => match open(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
            Err(Errno::EXIST) => open(OFlags::RDWR).map_err(mounted)?,
            made => {
                let made = made.map_err(mounted)?;
                give(&made, &directory)?;
                made
            }
        },
    });
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What root makes belongs to the directory's owner: the job's coordinators count in it, and its
/// user takes it back. A PFS may not let root do that: the file can then be read at least, and
/// locked by others.
fn give(file: impl AsFd, directory: impl AsFd) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let owner = rustix::fs::fstat(directory)?;
        let (user, group) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
        if let Err(error) = rustix::fs::fchown(&file, Some(user), Some(group)) {
            tracing::debug!(%error, "the halt file stays root's");
            rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
        }
    }
    Ok(())
}

impl HaltFile {
    /// Opens, locks and reads it; `None` when there is none. The lock is waited for no longer than
    /// `limit`: a tool that was stopped with it must not hold up others.
    ///
    /// # Errors
    /// Those of the system calls; it is no halt file.
    pub fn open(path: &Path, access: Access, limit: Duration) -> Result<Option<Self>, HaltError> {
        let mut file = match open_plain(path, access) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && access != Access::Create => return Ok(None),
            other => other.map_err(HaltError::io(path, "open"))?,
        };
        let made = file.metadata().and_then(|made| Ok((made, std::fs::metadata(directory_of(path))?)));
        let (made, above) = made.map_err(HaltError::io(path, "stat"))?;
        if strangers::is_planted(&made, &above) {
            return Err(HaltError::Strangers { path: path.to_owned() });
        }
        if made.uid() == above.uid() && made.mode() & 0o7777 != MODE {
            // SCR's tools make it as the umask is. A PFS may not let root do that.
            let _ = rustix::fs::fchmod(&file, Mode::from_raw_mode(MODE));
        }
        lock(&file, limit).map_err(HaltError::io(path, "lock"))?;
        let mut bytes = Vec::new();
        let read = Read::by_ref(&mut file).take(BYTES_MAX + 1).read_to_end(&mut bytes);
        if read.map_err(HaltError::io(path, "read"))? as u64 > BYTES_MAX {
            return Err(HaltError::Size { path: path.to_owned() });
        }
        let halt = if bytes.is_empty() {
            Halt::default()
        } else {
            Halt::decode(&bytes).map_err(|source| HaltError::Record { path: path.to_owned(), source })?
        };
        Ok(Some(Self { file, path: path.to_owned(), halt }))
    }

    /// Writes it again, in place.
    ///
    /// # Errors
    /// It would be too large to be read again; those of the system calls.
    pub fn store(&mut self) -> Result<(), HaltError> {
        let bytes = self.halt.encode();
        if bytes.len() as u64 > BYTES_MAX {
            return Err(HaltError::Size { path: self.path.clone() });
        }
        let mut write = || -> io::Result<()> {
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(&bytes)?;
            self.file.set_len(bytes.len() as u64)?;
            self.file.sync_all()
        };
        write().map_err(HaltError::io(&self.path, "write"))
    }
}

fn lock(file: &File, limit: Duration) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if begun.elapsed() < limit => std::thread::sleep(PAUSE),
            other => return other.map_err(io::Error::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> AdviceRules {
        AdviceRules { end_time: 1000, end_reserve: 90, ..AdviceRules::default() }
    }

    fn at(halt: &Halt, rules: &AdviceRules, now: u64) -> Option<When> {
        due(halt, rules, now, 10).map(|stop| stop.when)
    }

    /// Who may make files there could halt anybody's job.
    #[test]
    fn a_strangers_file_where_everybody_makes_files_halts_nothing() {
        use std::fs::{Permissions, set_permissions};
        use std::os::unix::fs::{PermissionsExt, chown};
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("halt.scr");
        std::fs::write(&path, "").unwrap();
        let open = |access| HaltFile::open(&path, access, Duration::from_secs(1));
        for (owner, above, mode, counts) in
            [(7, 0, 0o1777, false), (7, 0, 0o775, true), (7, 7, 0o1777, true), (0, 7, 0o1777, true)]
        {
            chown(&path, Some(owner), None).unwrap();
            chown(place.path(), Some(above), None).unwrap();
            set_permissions(place.path(), Permissions::from_mode(mode)).unwrap();
            for access in [Access::Read, Access::Write, Access::Create] {
                let opened = open(access);
                assert_eq!(opened.is_ok(), counts, "{owner} {above} {mode:o}");
                assert!(counts || matches!(opened, Err(HaltError::Strangers { .. })));
            }
        }
    }

    #[test]
    fn what_cannot_wait_and_what_waits_for_a_seal() {
        let reason = |text: &[u8]| Halt { exit_reason: Text::new(text).ok(), ..Halt::default() };
        let cases = [
            (Halt::default(), 899, None),
            (Halt::default(), 900, Some(When::Now)),
            (reason(b"stop"), 0, Some(When::AtSeal)),
            (Halt { immediate: Some(1), ..reason(b"stop") }, 0, Some(When::Now)),
            (Halt { immediate: Some(0), ..reason(b"stop") }, 0, Some(When::AtSeal)),
            (Halt { immediate: Some(1), ..Halt::default() }, 0, None),
            (reason(b""), 0, None),
            (reason(FINALIZED), 0, None),
            (Halt { checkpoints_left: Some(1), ..Halt::default() }, 0, None),
            (Halt { checkpoints_left: Some(0), ..Halt::default() }, 0, Some(When::AtSeal)),
            (Halt { checkpoints_left: Some(-3), ..Halt::default() }, 0, Some(When::AtSeal)),
            (Halt { exit_after: Some(50), ..Halt::default() }, 49, None),
            (Halt { exit_after: Some(50), ..Halt::default() }, 50, Some(When::AtSeal)),
            (Halt { exit_before: Some(50), halt_seconds: Some(5), ..Halt::default() }, 44, None),
            (
                Halt { exit_before: Some(50), halt_seconds: Some(5), ..Halt::default() },
                45,
                Some(When::AtSeal),
            ),
            (Halt { exit_before: Some(50), halt_seconds: Some(5), ..Halt::default() }, 50, Some(When::Now)),
            (Halt { halt_seconds: Some(600), ..Halt::default() }, 399, None),
            (Halt { halt_seconds: Some(600), ..Halt::default() }, 400, Some(When::AtSeal)),
        ];
        for (halt, now, expected) in cases {
            assert_eq!(at(&halt, &rules(), now), expected, "{now}: {halt:?}");
        }
    }

    #[test]
    fn the_allocations_end_counts_where_it_is_known_and_something_is_to_be_saved() {
        assert_eq!(at(&Halt::default(), &AdviceRules { end_time: 0, ..rules() }, 999), None);
        assert_eq!(at(&Halt::default(), &AdviceRules { end_reserve: 0, ..rules() }, 999), None);
        let early = AdviceRules { halt_seconds: 300, ..rules() };
        assert_eq!(at(&Halt::default(), &early, 700), Some(When::AtSeal));
        assert_eq!(at(&Halt { halt_seconds: Some(0), ..Halt::default() }, &early, 700), None);
        let stop = due(&Halt::default(), &rules(), 950, 10).unwrap();
        assert_eq!(stop.reason, "the allocation ends in 50 s, and saving the newest dataset may take 100 s");
        assert!(
            is_of_allocation(&stop.reason)
                && is_of_allocation(&due(&Halt::default(), &early, 700, 0).unwrap().reason)
        );
        let word = Halt { exit_reason: Text::new(b"the allocation ends in 1 s").ok(), ..Halt::default() };
        assert!(!is_of_allocation(&due(&word, &rules(), 0, 0).unwrap().reason));
    }

    #[test]
    fn the_file_is_changed_in_place_and_under_the_lock() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("halt.scr");
        // A child of another test that has not executed its program yet holds the lock, too.
        let open = |access| HaltFile::open(&path, access, Duration::from_secs(10));
        assert!(open(Access::Read).unwrap().is_none() && open(Access::Write).unwrap().is_none());
        let mut held = open(Access::Create).unwrap().unwrap();
        held.halt.checkpoints_left = Some(3);
        held.store().unwrap();
        let locked = HaltFile::open(&path, Access::Read, Duration::from_millis(50)).unwrap_err();
        assert!(locked.to_string().contains("halt.scr: lock: "));
        drop(held);
        let mut again = open(Access::Write).unwrap().unwrap();
        assert_eq!(again.halt.checkpoints_left, Some(3));
        again.halt = Halt::default();
        again.store().unwrap();
        again.halt.exit_reason = Text::new("x".repeat(70_000)).ok();
        assert!(again.store().unwrap_err().to_string().contains("more than 65536 bytes"));
        drop(again);
        assert_eq!(open(Access::Read).unwrap().unwrap().halt, Halt::default());
        std::fs::write(&path, b"junk").unwrap();
        assert!(open(Access::Write).unwrap_err().to_string().contains("halt.scr: "));
        std::fs::write(&path, vec![0; 70_000]).unwrap();
        assert!(open(Access::Read).unwrap_err().to_string().contains("more than 65536 bytes"));
    }

    /// An administrator halts a job, and its user takes that back.
    #[test]
    fn what_root_makes_is_the_users_whose_the_directory_is() {
        use std::os::unix::fs::chown;
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("halt.scr");
        chown(place.path(), Some(4711), Some(4712)).expect("tests are root's");
        let make = || drop(HaltFile::open(&path, Access::Create, Duration::from_secs(10)).unwrap());
        make();
        let made = std::fs::metadata(&path).unwrap();
        assert_eq!((made.uid(), made.gid(), made.mode() & 0o777), (4711, 4712, 0o600));
        // Whoever may open it can keep its lock.
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        make();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        // One that is there stays as it is.
        chown(&path, Some(4713), Some(4714)).unwrap();
        make();
        let kept = std::fs::metadata(&path).unwrap();
        assert_eq!((kept.uid(), kept.gid()), (4713, 4714));
    }

    /// A prefix may be another user's than who calls a tool for it.
    #[test]
    fn no_link_is_followed_and_no_pipe_opened() {
        let dir = tempfile::tempdir().unwrap();
        let records = dir.path().join(".scr");
        std::fs::create_dir(&records).unwrap();
        let (file, elsewhere) = (records.join("halt.scr"), dir.path().join("elsewhere"));
        let open = |path: &Path, access| HaltFile::open(path, access, Duration::from_secs(10));
        let refused = |path: &Path| {
            for access in [Access::Read, Access::Write, Access::Create] {
                assert!(open(path, access).is_err(), "{access:?}");
            }
        };
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        refused(&file);
        assert!(!elsewhere.exists());
        std::fs::remove_file(&file).unwrap();
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        refused(&file);
        std::fs::remove_file(&file).unwrap();
        let linked = dir.path().join("linked");
        std::os::unix::fs::symlink(&records, &linked).unwrap();
        refused(&linked.join("halt.scr"));
        assert!(open(&file, Access::Read).unwrap().is_none());
        assert!(open(&file, Access::Create).unwrap().is_some());
        assert!(open(&file, Access::Read).unwrap().is_some());
    }
}
