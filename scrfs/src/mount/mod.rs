//! Mounting: three processes and what they hand to one another.
//!
//! * [`launch`]: `scrfs mount` starts the supervisor, waits until the mount answers, and ends.
//! * [`unmount`]: `scrfs umount` ends a mount and its processes; `server` says who serves one.
//! * [`jobs`]: the same by the job's id, and what a job has left.
//! * [`stores`]: in which stores the cache is.
//! * [`read_ahead`]: how far the kernel reads ahead where the worker serves the data.
//! * [`service`]: what systemd is told.
//! * [`terms`]: the settings that a mount began with.
//! * [`supervisor`]: opens /dev/fuse, mounts, and holds both for as long as the mount is to live.
//!   It does nothing that can fail in the meantime: it starts workers and waits.
//! * [`worker`]: serves requests. It gets the device as its standard input and tells on its
//!   standard output that it is ready.
//!
//! When a worker dies the supervisor starts another on the same connection. It takes over what
//! [`crate::keep`] has, and programs see nothing but a pause. `scrfs reload` is the same step on
//! purpose, with the program file that is there then. If workers die again and again by their own
//! fault, the supervisor unmounts lazily, mounts afresh and starts another: programs' open files
//! are lost to them (ENOTCONN), names are not. Where the node is short of memory, processes,
//! descriptors, room or inodes, it tries again until there are some: the mount stays, and programs
//! wait.

pub mod device;
pub mod jobs;
pub mod launch;
mod limits;
mod lives;
pub(crate) mod lock;
mod mount_point;
pub mod places;
pub mod read_ahead;
mod records;
mod rights;
mod server;
pub mod service;
pub mod stores;
pub mod supervisor;
mod sweep;
pub mod terms;
pub mod unmount;
pub mod worker;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use crate::mounted as table;

use crate::control::directory::options_of;
use crate::control::question::Living;
use crate::daemon::NodeError;
use crate::dataset::Protections;
use crate::path::RelPath;
use crate::remedy;
use crate::status::people::printable;
use crate::store::StoreError;
use crate::store::private::Problem;

/// What a mount is made from; the same in all three processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where programs see it.
    pub mount_point: PathBuf,
    /// The job's user.
    pub user: String,
    /// That user's number.
    pub uid: u32,
    /// That user's group.
    pub gid: u32,
    /// `SCRFS_MODE`.
    pub mode: u32,
    /// `SCRFS_OPERATOR_GROUP`.
    pub operator_group: Option<String>,
    /// The job's id.
    pub job_id: String,
    /// `SCR_CNTL_BASE`.
    pub control_base: PathBuf,
    /// `SCR_CACHE_BASE`; never empty. Workers get the primary first ([`stores`]).
    pub cache_bases: Vec<PathBuf>,
    /// `CKPT=` lines, until a coordinator brings the job's.
    pub protections: Protections,
    /// `SCRFS_CACHE_BYTES` until a coordinator brings the job's; 0: no limit.
    pub cache_bytes: u64,
    /// `SCRFS_CHECKPOINT_PATH`, relative to the mount's root.
    pub checkpoint_path: RelPath,
    /// Use kernel passthrough where it can be had.
    pub passthrough: bool,
    /// `SCRFS_COORDINATOR_WAIT` until a coordinator brings the job's.
    pub coordinator_wait: Duration,
    /// `SCRFS_SEAL_TIMEOUT`, likewise.
    pub seal_timeout: Duration,
}

impl Options {
    /// The primary store, once it is chosen.
    pub fn cache_base(&self) -> &Path {
        self.cache_bases.first().map_or(Path::new("/dev/shm"), PathBuf::as_path)
    }
}

/// What is being done when a job's directories cannot be recorded.
const RECORD: &str = "cannot record";

/// Why something about a mount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point is missing or is no directory.
    #[error("mount point {path}: {reason}")]
    MountPoint {
        /// As given.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Something is mounted there.
    #[error("{path} is a mount point of {source_name} already")]
    Mounted {
        /// The mount point.
        path: PathBuf,
        /// What is mounted.
        source_name: String,
    },
    /// The list of jobs that live is empty.
    #[error("--alive {0:?}: there is no job id in it")]
    NobodyAlive(String),
    /// What is in that list is none.
    #[error("--alive {list:?}: {word:?} is no job id")]
    NoJobId {
        /// As given.
        list: String,
        /// What of it.
        word: String,
    },
    /// scrfs is not mounted there.
    #[error("{0} is not an scrfs mount")]
    NotMounted(PathBuf),
    /// Another supervisor lives.
    #[error("{directory} belongs to a running scrfs, process {pid}")]
    Busy {
        /// The control directory.
        directory: PathBuf,
        /// The supervisor, 0 if it did not tell.
        pid: u32,
    },
    /// A process of the job's former mount was killed, and has not ended.
    #[error(
        "{directory} belongs to process {pid}, which was killed and has not ended: a file system may not answer it"
    )]
    Stuck {
        /// The control directory.
        directory: PathBuf,
        /// The process.
        pid: u32,
    },
    /// The mount is gone here, and another mount namespace has it still.
    #[error(
        "{mount_point} is not mounted here now, but its daemon, process {pid}, lives on: {}, and is served until \
         it is gone there",
        holder.map_or("another mount namespace seems to have a copy".to_owned(), |holder| format!(
            "the mount namespace of process {holder} has a copy"
        ))
    )]
    Elsewhere {
        /// Where it was.
        mount_point: PathBuf,
        /// The supervisor.
        pid: u32,
        /// A process in that namespace, if this user may see one.
        holder: Option<u32>,
    },
    /// The mount is another user's.
    #[error("{path} was mounted by {owner}: others than that user and root may not unmount or reload it")]
    NotYours {
        /// The mount point.
        path: PathBuf,
        /// The user.
        owner: String,
    },
    /// The mount is in use.
    #[error("{0} is in use")]
    InUse(PathBuf),
    /// A coordinator is attached to its daemon: a job runs, though it may have nothing open now.
    #[error("{mount_point} is in use: a coordinator (process {pid}) is attached, so its job runs")]
    Served {
        /// The mount point.
        mount_point: PathBuf,
        /// The coordinator.
        pid: u32,
    },
    /// Coordinators are gone, and their job may run.
    #[error(
        "{mount_point} is in use: its coordinators are gone, and no scrfs-run has said that the job has ended"
    )]
    MayRun {
        /// The mount point.
        mount_point: PathBuf,
    },
    /// The job has a mount.
    #[error("job {job_id} of {user} is mounted at {} already", .at.display())]
    MountedElsewhere {
        /// The job.
        job_id: String,
        /// Its user.
        user: String,
        /// The mount point.
        at: PathBuf,
    },
    /// The job is mounted, and not there where somebody thinks.
    #[error(
        "job {job_id} is mounted at {}, and not at {}: nothing is unmounted or removed",
        .at.display(), .named.display()
    )]
    MountedAt {
        /// The job.
        job_id: String,
        /// The mount point.
        at: PathBuf,
        /// What was said.
        named: PathBuf,
    },
    /// fusermount3, which mounts for users without rights, says no.
    #[error("fusermount3 could not {doing} {path}: {words}")]
    Helper {
        /// What.
        doing: &'static str,
        /// The mount point.
        path: PathBuf,
        /// Its own.
        words: String,
    },
    /// The job's files would be in the mount, or the mount in them.
    #[error("{parameter}: {base}: {reason} {mount_point}")]
    NotApart {
        /// Parameter and option.
        parameter: &'static str,
        /// Its value.
        base: PathBuf,
        /// What would be.
        reason: &'static str,
        /// The mount point.
        mount_point: PathBuf,
    },
    /// A base is not safe from other users.
    #[error("{parameter}: {base}: {source}")]
    Shared {
        /// Parameter and option.
        parameter: &'static str,
        /// Its value.
        base: PathBuf,
        /// Why.
        source: Problem,
    },
    /// The mount point is missing and cannot be made.
    #[error("mount point {path} is missing, and is not made: {source}")]
    NotMade {
        /// As given.
        path: PathBuf,
        /// Why.
        source: Problem,
    },
    /// Another user's file system is at the mount point, or on the way; it is not asked.
    #[error("mount point {path}: {source}")]
    Strangers {
        /// As given.
        path: PathBuf,
        /// Whose.
        source: Problem,
    },
    /// Several users have a job of that id.
    #[error("job {job_id} is there of several users: {users}")]
    WhoseJob {
        /// The id.
        job_id: String,
        /// Their names.
        users: String,
    },
    /// Whether jobs live is not known.
    #[error("cannot ask the scheduler for its jobs: {0}")]
    Scheduler(String),
    /// Some things could not be cleared away.
    #[error("{what}")]
    Left {
        /// Of which jobs, and why.
        what: String,
        /// Some of them have datasets that are not on the PFS.
        unsaved: bool,
        /// Lines for people about what was cleared away.
        done: Vec<String>,
    },
    /// No entry of the list of stores can be used.
    #[error("SCR_CACHE_BASE: no entry can be used: {problems}")]
    NoStore {
        /// Each entry and what is wrong with it.
        problems: String,
    },
    /// A store with files of the job cannot be used.
    #[error("SCR_CACHE_BASE: {base}: {reason}; {what} of this job are there, and would be left behind")]
    StoreAway {
        /// The entry.
        base: PathBuf,
        /// Datasets, or files that no dataset has yet.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
        /// The control directory, which knows of the datasets.
        control: PathBuf,
    },
    /// The store with the job's files is not to be used any more.
    #[error("SCR_CACHE_BASE: {base} is not in the list, and has files of this job in {cache}")]
    StoreLeft {
        /// The store.
        base: PathBuf,
        /// The job's directory there.
        cache: PathBuf,
    },
    /// A record of the job's is there and cannot be read.
    #[error("{path}: {problem}")]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A name for a directory that would lead out of its base.
    #[error("{what} {name:?} cannot name a directory")]
    Name {
        /// What it names.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A system call on a path failed.
    #[error("{doing} {path}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The node could not be started.
    #[error("node: {0}")]
    Node(#[source] NodeError),
    /// A worker could not start; it has logged what is missing.
    #[error("the node is short of memory, processes, descriptors, room or inodes")]
    Short {
        /// Where.
        log: PathBuf,
    },
    /// The daemon did not come up.
    #[error("{reason}")]
    Start {
        /// In its own words.
        reason: String,
        /// What to do about it.
        hint: String,
    },
    /// What was to be saved first is not, so the job's mount stays.
    #[error("job {job_id}: not saved, so nothing is unmounted: {why}")]
    NotSaved {
        /// The job.
        job_id: String,
        /// What, and why.
        why: String,
    },
    /// A process does not end.
    #[error("the end of the {process} took longer than {seconds} s")]
    Lives {
        /// Which of the mount's.
        process: &'static str,
        /// The bound.
        seconds: u64,
        /// The options that name its job; `None`: it was to end whatever uses it, and no more can
        /// be done.
        job: Option<String>,
    },
    /// Its daemon lives, and does not answer.
    #[error(transparent)]
    Living(#[from] Living),
    /// A mount does not answer.
    #[error("no answer from {mount_point} in {seconds} s")]
    Silent {
        /// The mount point.
        mount_point: PathBuf,
        /// The bound.
        seconds: u64,
    },
    /// It took too long.
    #[error("{what} took longer than {seconds} s")]
    Timeout {
        /// What.
        what: &'static str,
        /// The bound.
        seconds: u64,
    },
}

/// What passes when others give something back.
const SHORTAGES: [i32; 6] =
    [libc::ENOMEM, libc::EAGAIN, libc::EMFILE, libc::ENFILE, libc::ENOSPC, libc::EDQUOT];

/// A call failed as the node, or this process, is short of memory, processes, descriptors, room or
/// inodes.
pub fn is_shortage(error: &(dyn std::error::Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.filter_map(|cause| cause.downcast_ref::<io::Error>()).any(|cause| {
        cause.raw_os_error().is_some_and(|errno| SHORTAGES.contains(&errno))
            || cause.kind() == io::ErrorKind::OutOfMemory
    })
}

/// Between an error's text and its hint, on the standard output of a supervisor.
const HINT: char = '\u{1f}';

impl MountError {
    /// It may pass by itself: a shortage, or a node that is slow.
    pub fn is_shortage(&self) -> bool {
        let is_late =
            matches!(self, Self::Timeout { .. } | Self::Lives { .. } | Self::Silent { .. } | Self::Living(_));
        is_late || matches!(self, Self::Short { .. }) || is_shortage(self)
    }

    /// For the process that started this one.
    fn line(&self) -> String {
        format!("{}{HINT}{}", printable(&self.to_string()), printable(&self.hint()))
    }

    /// The other end of [`MountError::line`]. `nothing`: what it means that nothing was said; the
    /// log may say more.
    fn told(line: &str, nothing: &str, log: &Path) -> Self {
        let line = line.trim_end();
        let (reason, hint) = match line.split_once(HINT) {
            Some((reason, hint)) => (reason, hint.to_owned()),
            None => (line, format!("its log may say why: {}", log.display())),
        };
        Self::Start { reason: if reason.is_empty() { nothing } else { reason }.to_owned(), hint }
    }

    /// What a person can do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::MountPoint { path, .. } => match path.symlink_metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    format!("make it: mkdir -p {}", path.display())
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
                    format!("nobody serves what is mounted there: umount {0}, or fusermount3 -u {0}", path.display())
                }
                _ => "name an empty directory".into(),
            },
            Self::Mounted { path, .. } => format!(
                "unmount it first: scrfs umount {0}; a trial ends with scrfs try --stop {0}",
                path.display()
            ),
            Self::NobodyAlive(_) => "nothing was touched; where no job lives, say --alive none".into(),
            Self::NoJobId { .. } => "nothing was touched; name job ids with commas, blanks or newlines between \
                 them; or `none` alone, where no job lives"
                .into(),
            Self::MayRun { mount_point } => format!(
                "see that nothing of the job runs, `scrfs-run` on its first node above all; then end its mount: scrfs umount --force {}",
                mount_point.display()
            ),
            Self::Served { mount_point, .. } => format!(
                "end the job first; or end its mount all the same: scrfs umount --force {}",
                mount_point.display()
            ),
            Self::MountedElsewhere { at, .. } => format!(
                "use that one; or unmount it first: scrfs umount {}; or mount for another job: --job-id",
                at.display()
            ),
            Self::MountedAt { at, .. } => {
                format!("leave the mount point out, or name that one: {}", at.display())
            }
            Self::Busy { directory, pid } => format!(
                "use another --job-id, or end it: kill {pid}; or where that has no effect: scrfs umount --force {}",
                options_of(directory)
            ),
            Self::Stuck { .. } => {
                "try again when that file system answers (see `dmesg`), or use another --job-id".into()
            }
            Self::StoreAway { control, .. } => {
                let control = control.display();
                format!(
                    "mend or mount it; or give this node's part up: rm -r {control}, and take the store out of the list"
                )
            }
            Self::StoreLeft { base, cache } => {
                format!("list {} too; or give the files up: rm -r {}", base.display(), cache.display())
            }
            Self::Record { path, .. } | Self::Node(NodeError::Store(StoreError::TooLarge { path, .. })) => {
                damaged(path)
            }
            Self::Elsewhere { pid, .. } => {
                format!("end the programs of that namespace; or end the daemon under them: kill {pid}")
            }
            Self::Shared { source: Problem::Io { source, .. }, .. } => remedy::of(source).into(),
            Self::Shared { .. } => {
                "name a directory of root's, or a shared one with a sticky bit (mode 1777), such as /dev/shm"
                    .into()
            }
            Self::Strangers { .. } => "name a mount point below a directory of root's".into(),
            Self::NotMade { path, .. } => {
                format!("make it: mkdir -p {}; or name one below a directory of root's", path.display())
            }
            Self::NotSaved { .. } => {
                "mend what is named and run this again; without --save this node's part is given up".into()
            }
            Self::WhoseJob { .. } => "name one with --user".into(),
            Self::Scheduler(_) => "or say which jobs live: scrfs sweep --alive ID,ID".into(),
            Self::NotMounted(_) => "see what is mounted: findmnt -t fuse.scrfs".into(),
            Self::Helper { words, .. } if words.contains("username") => {
                "this user has no account here (getent passwd), and fusermount3 asks for one".into()
            }
            Self::Helper { words, .. } if words.contains("/etc/mtab") => {
                "fusermount3 reads /etc/mtab; as root: ln -s /proc/self/mounts /etc/mtab".into()
            }
            Self::Helper { .. } => {
                "without root, fusermount3 and /dev/fuse must be usable for you, and the mount point be a \
                 directory that you may write to"
                    .into()
            }
            Self::NoStore { .. } => {
                "mount one of these stores, or name a directory that exists: --cache-base, SCR_CACHE_BASE"
                    .into()
            }
            Self::NotApart { .. } => "name a directory elsewhere, or another mount point".into(),
            Self::InUse(path) => format!(
                "see who uses it: fuser -vm {0}; or detach it: scrfs umount --force {0}",
                path.display()
            ),
            Self::Io { doing: RECORD, source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "another command has removed what this job had here at this moment: mount it once more".into()
            }
            Self::Io { path, source, .. } if path.starts_with("/dev/fuse") => match source.kind() {
                io::ErrorKind::NotFound => "load the kernel module: modprobe fuse".into(),
                _ => "/dev/fuse must be readable and writable for this user".into(),
            },
            Self::Io { source, .. }
            | Self::Node(
                NodeError::Directory { source, .. }
                | NodeError::Start(source)
                | NodeError::Store(StoreError::InDoubt { source, .. }),
            ) => remedy::of(source).into(),
            Self::NotYours { owner, .. } => format!("ask {owner}, or do it as root"),
            Self::Left { unsaved: true, .. } => "have them saved: scrfs sweep --save SECONDS, after scrfs mount \
                --user NAME --job-id ID DIR where they are not mounted; or give them up: scrfs sweep --discard"
                .into(),
            Self::Left { .. } => "end what uses these, see that they may be removed, and try again".into(),
            Self::Name { what, .. } => {
                format!("name another {what}: without `/`, not `.` or `..`, at most 255 bytes")
            }
            Self::Node(NodeError::Store(StoreError::Failed { path, source, .. })) => match source.kind() {
                io::ErrorKind::InvalidData => damaged(path),
                _ => remedy::of(source).into(),
            },
            Self::Short { log } => {
                let log = log.display();
                format!("{log} says what is short; make some of it free (free, df, df -i), or raise the limit (ulimit -a)")
            }
            Self::Start { hint, .. } => hint.clone(),
            Self::Lives { job: Some(job), .. } => format!(
                "it is stopped (see `ps`), the node is very busy, or a file system does not answer; all the same it is ended by: \
                 scrfs umount --force {job}"
            ),
            Self::Living(living) => living.hint(),
            Self::Silent { mount_point, .. } => format!(
                "its daemon is stopped (see `ps`), or the node is very busy; all the same it is ended by: scrfs umount --force {}",
                mount_point.display()
            ),
            Self::Lives { job: None, .. } | Self::Timeout { .. } => {
                "the node is very busy, or a file system does not answer: see `uptime` and `dmesg`, and try again"
                    .into()
            }
        }
    }
}

/// For a record in a control directory that cannot be read.
fn damaged(record: &Path) -> String {
    let control = record.parent().unwrap_or(record).display();
    format!("put it back as it was; or give this node's part up: rm -r {control}")
}

/// Makes a [`MountError::Io`].
pub(crate) fn failed(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> MountError {
    let path = path.into();
    move |source| MountError::Io { doing, path, source }
}
