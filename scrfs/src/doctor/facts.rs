//! What is known of a node. Where something could not be found out, the fact says why.

use std::path::PathBuf;

use super::skew::Skew;
use crate::priority::threads::Means;

/// The reason why a fact is missing, or an operation failed.
pub type Reason = String;

/// Everything that [`super::checks`] look at.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// `uname -r`.
    pub kernel: String,
    /// Opening /dev/fuse for reading and writing.
    pub device: Result<(), Reason>,
    /// Who asks.
    pub rights: Rights,
    /// Parameters: what counts, or why they cannot be read.
    pub parameters: Result<Parameters, Reason>,
    /// mpirun, and srun where there is Slurm.
    pub launchers: Vec<Program>,
    /// What `srun` says to [`crate::allocation::PMIX_QUESTIONS`], if there is one.
    pub mpi_types: Option<Result<String, Reason>>,
    /// scrfs-coordinator, scrfs-ctl and scrfs-run, beside this program.
    pub programs: Vec<Program>,
    /// The version that these should have.
    pub version: &'static str,
    /// The prefix, if one is named: the working directory counts as none.
    pub prefix: Option<Prefix>,
    /// Entries of `SCR_CACHE_BASE`.
    pub stores: Vec<Store>,
    /// `SCR_CNTL_BASE`, or where control directories are made without it.
    pub control: Option<Store>,
    /// Bytes of the node's memory.
    pub memory: u64,
    /// The least bound that a cgroup puts on this process.
    pub cgroup: Option<u64>,
    /// What ended jobs have left.
    pub leftovers: Leftovers,
    /// How a daemon that this user starts may prefer itself while programs wait for it.
    pub priority: Result<Means, Reason>,
    /// RLIMIT_NOFILE: now, and at most.
    pub descriptors: (u64, u64),
    /// Clocks of other hosts against this one's, if they were asked for.
    pub clocks: Vec<(String, Result<Skew, Reason>)>,
    /// Seconds since 1970.
    pub now: u64,
}

/// What this process may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// It is root's.
    pub root: bool,
    /// It has CAP_SYS_ADMIN.
    pub admin: bool,
    /// Where fusermount3 is, and whether it runs with root's rights.
    pub helper: Option<(PathBuf, bool)>,
}

/// Of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// /etc/scrfs.conf is there.
    pub system_file: bool,
    /// What was not understood or has no effect.
    pub warnings: Vec<String>,
    /// The job's user.
    pub user: String,
    /// The job's id.
    pub job_id: String,
    /// A scheduler's job, or one that `SCR_JOB_ID` names.
    pub in_job: bool,
    /// When the job ends, seconds since 1970; `None`: never. Or why that is not known.
    pub end_time: Result<Option<u64>, Reason>,
    /// `SCRFS_CACHE_BYTES`.
    pub cache_bytes: u64,
}

/// A program, and the first line of what it says of its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// Where it is; `None`: nowhere.
    pub path: Option<PathBuf>,
    /// What it says, or why it says nothing.
    pub says: Result<String, Reason>,
}

/// The job's directory on the PFS.
#[derive(Debug, Clone, PartialEq)]
pub struct Prefix {
    /// Where.
    pub path: PathBuf,
    /// Whose rights it was tried with.
    pub user: String,
    /// The kind of file system.
    pub kind: Result<Kind, Reason>,
    /// What of it others than root and that user have made, or can put something else in the place
    /// of.
    pub strange: Vec<String>,
    /// Making, and removing, a file there; its time against this node's clock.
    pub write: Result<Skew, Reason>,
}

/// File systems, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// All nodes may see it.
    Shared(&'static str),
    /// Of this node only, as far as one can tell.
    Local(&'static str),
    /// By its number.
    Unknown(u64),
}

/// One store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// Where.
    pub path: PathBuf,
    /// How it is.
    pub room: Result<Room, Reason>,
}

/// Of a store's file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// It is memory.
    pub memory: bool,
    /// This process may write there.
    pub writable: bool,
    /// Bytes.
    pub size: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Inodes; 0: the file system makes them when they are needed.
    pub inodes: u64,
    /// Inodes that are free.
    pub free_inodes: u64,
    /// The path is the file system's top: nothing else has its room.
    pub own: bool,
    /// The path is not there: the directory above it that is.
    pub made_in: Option<PathBuf>,
}

/// Of ended jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Directories of jobs that no daemon holds.
    pub directories: Vec<PathBuf>,
    /// Mounts that nobody serves.
    pub mounts: Vec<PathBuf>,
    /// Looking did not come to its end.
    pub cut_short: Option<Reason>,
}
