//! What `scrfs-ctl status` shows of one node, and what a node's loss would cost.

pub mod last;
mod losses;
pub mod people;
mod show;

pub use self::losses::{Loss, Lost, LostPart, Presented, losses};
pub use self::show::{show, show_ended};

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::dataset::Layout;
use crate::ids::Member;

/// One node's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "facts, each of its own")]
pub struct NodeStatus {
    /// Version of the status form.
    pub version: u32,
    /// Host name.
    pub host: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// `passthrough` or `plain`.
    pub mode: String,
    /// Why that mode.
    pub mode_reason: String,
    /// The job's user and id.
    pub job: String,
    /// The control directory.
    pub control_directory: String,
    /// The cache directory.
    pub cache_directory: String,
    /// What the cache's place was chosen from when it was mounted.
    #[serde(default)]
    pub stores: Vec<StoreStatus>,
    /// Bytes that the cache has taken and may take (`SCRFS_CACHE_BYTES`), if there is such a bound.
    pub cache_bytes: Option<(u64, u64)>,
    /// While the control directory's file system is full: bytes left of those kept back for
    /// records, and how many there should be.
    pub reserve: Option<(u64, u64)>,
    /// `None`: no coordinator is attached now.
    pub coordinator: Option<CoordinatorStatus>,
    /// A coordinator was attached once.
    pub was_attached: bool,
    /// A coordinator is awaited: the last one was lost, or this worker is new, and a successor has
    /// not stayed away for `SCRFS_COORDINATOR_WAIT` yet.
    #[serde(default)]
    pub awaited: bool,
    /// No job is known to run in this mount: none has begun, or its `scrfs-run` has said that it
    /// ended.
    #[serde(default)]
    pub job_ended: bool,
    /// The supervisor, if it is stopped, as by SIGSTOP: nobody would replace the worker.
    #[serde(default)]
    pub supervisor_stopped: Option<u32>,
    /// The highest epoch seen.
    pub epoch: u64,
    /// The job's directory on the PFS; empty while no coordinator has told it.
    #[serde(default)]
    pub prefix: String,
    /// `SCR_ENABLE` of the job: without it nothing is protected. True also while no coordinator has
    /// told it.
    pub enabled: bool,
    /// `SCR_FLUSH` of the job; 0 also while no coordinator has told it.
    pub flush_every: u32,
    /// Newest first.
    pub datasets: Vec<DatasetStatus>,
    /// What was due for the PFS, could not be flushed, and has left the caches since; until a newer
    /// dataset is on the PFS, or the worker is another. Newest last.
    #[serde(default)]
    pub unsaved: Vec<Unsaved>,
    /// The newest dataset that has left the caches and is on the PFS, from where a restart would
    /// fetch it; as far as this worker knows.
    #[serde(default)]
    pub on_pfs: Option<Elsewhere>,
    /// Open datasets of this node beyond those listed.
    #[serde(default)]
    pub more_open: u64,
    /// Requests of programs that wait now.
    #[serde(default)]
    pub waiting: u32,
    /// Whether the daemon and the coordinator go before the program.
    #[serde(default)]
    pub priority: PriorityStatus,
}

/// How the kernel prefers the daemon and the coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PriorityStatus {
    /// They are preferred now.
    pub raised: bool,
    /// For what; empty while they are not.
    pub why: String,
    /// The means, or why there is none; empty before it was needed.
    pub how: String,
}

impl PriorityStatus {
    /// Why they are not preferred although somebody may wait for them; `None`: they are, or will
    /// be.
    pub fn hindrance(&self) -> Option<&str> {
        let hindered =
            |how: &str| ["cannot be raised", "stepped back"].iter().any(|why| how.starts_with(why));
        Some(self.how.as_str()).filter(|how| !self.raised && hindered(how))
    }
}

/// One entry of `SCR_CACHE_BASE`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoreStatus {
    /// Its path.
    pub path: String,
    /// The cache is in it.
    pub used: bool,
    /// Why it is used, or what is wrong with it.
    pub note: String,
    /// Bytes that can be written to its file system, and that file system's size; `None`: it does
    /// not tell.
    pub room: Option<(u64, u64)>,
}

/// The attached coordinator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoordinatorStatus {
    /// Its rank.
    pub rank: u32,
    /// Host names of all, by rank.
    pub hosts: Vec<String>,
    /// Process id on this node.
    pub pid: i32,
}

/// One dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatasetStatus {
    /// 0 until it is sealed.
    pub id: u64,
    /// Its directory's name.
    pub name: String,
    /// Its state in a word: open, sealing, encoding, protected, flushing, flushed, failed; sealed
    /// ([`SEALED`]): complete, and nothing protects it; hidden: complete, and the last restart did
    /// not present it.
    pub state: String,
    /// XOR, PARTNER, RS(k), SINGLE; empty until it is sealed.
    pub scheme: String,
    /// Bytes of all members (of this node's files until it is sealed).
    pub bytes: u64,
    /// Files, likewise.
    pub files: u64,
    /// Hosts that hold a member; none when that is not known (hidden).
    pub hosts: Vec<String>,
    /// It is on the PFS.
    pub flushed: bool,
    /// Why the last try to flush it failed, while it is not on the PFS.
    pub flush_failed: Option<FlushFailure>,
    /// Members that no node has yet: the others give them back while programs run.
    #[serde(default)]
    pub restoring: u64,
    /// Files on this node whose bytes nobody has compared with their checksums since a restart: an
    /// open does first (`SCRFS_RESTART=lazy`).
    #[serde(default)]
    pub unread: u64,
    /// How its last scrub under these coordinators ended.
    pub scrubbed: Option<Scrubbed>,
    /// What programs have changed on this node since it was sealed: nothing protects that until it
    /// is sealed again.
    pub changed: Option<Changed>,
    /// What a restart now would present.
    pub current: bool,
    /// Bytes done and to do on this node of what runs (encode, flush, fetch), if anything does.
    pub progress: Option<(u64, u64)>,
    /// Per host: does it survive the loss of that node alone.
    pub survives: Vec<(String, bool)>,
}

impl DatasetStatus {
    /// It is complete, whether or not anything protects it, and the last restart did not leave it
    /// out.
    pub fn is_complete(&self) -> bool {
        self.id != 0 && matches!(self.state.as_str(), SEALED | "protected" | "flushing" | "flushed")
    }
}

/// The state of a dataset that is complete, and that the loss of some node would take: "protected"
/// is never said of it.
pub const SEALED: &str = "sealed";

/// The state of a sealed dataset of which no source has the right bytes.
pub const FAILED: &str = "failed";

/// The state of a complete dataset that the last restart did not present.
pub const HIDDEN: &str = "hidden";

/// The next generation of a sealed dataset, as far as it is on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// When it began, microseconds since 1970; `None` where that is not known.
    pub since_us: Option<u64>,
    /// Files that were made or changed.
    pub files: u64,
    /// Their bytes: what the loss of this node would take.
    pub bytes: u64,
    /// Sealed names that were removed.
    pub removed: u64,
}

/// A try to flush a dataset that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushFailure {
    /// With the path on the PFS, or the host.
    pub reason: String,
    /// Nobody should wait for it: if it is tried again, then only now and then, unless somebody
    /// asks for it.
    pub given_up: bool,
}

/// A scrub that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrubbed {
    /// When, microseconds since 1970.
    pub at_us: u64,
    /// Members whose bytes were not those that were sealed.
    pub found: u32,
    /// What could not be given back, and why; `None`: all is as it was sealed.
    pub left: Option<String>,
}

/// A dataset that is not in the caches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// Its id.
    pub id: u64,
    /// Its name, printable.
    pub name: String,
}

/// A dataset that is neither on the PFS, for which it was due, nor in the caches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsaved {
    /// Its id.
    pub id: u64,
    /// Its directory's name.
    pub name: String,
    /// Bytes of all members.
    pub bytes: u64,
    /// Why its flush failed, with the path on the PFS, or the host.
    pub reason: String,
}

/// Per host of `layout`: would the dataset survive if that node died now.
///
/// A set survives when the members it has lost are at most what its scheme rebuilds; those that are
/// `absent` are lost already. On the PFS it survives anything.
pub fn survives(layout: &Layout, absent: &BTreeSet<Member>, flushed: bool) -> Vec<(String, bool)> {
    let mut hosts: Vec<&str> = layout.members.iter().map(|m| m.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let fatal: BTreeSet<&str> = if flushed { BTreeSet::new() } else { fatal(layout, absent).collect() };
    hosts.into_iter().map(|host| (host.to_owned(), !fatal.contains(host))).collect()
}

/// The loss of any one node leaves the dataset whole, the PFS left out of account. No node has the
/// `absent` members.
pub fn is_protected(layout: &Layout, absent: &BTreeSet<Member>) -> bool {
    fatal(layout, absent).next().is_none()
}

/// Hosts whose loss a set does not survive; one may come twice.
fn fatal<'a>(layout: &'a Layout, absent: &'a BTreeSet<Member>) -> impl Iterator<Item = &'a str> {
    layout.sets.iter().flat_map(move |set| {
        let places = set.iter().filter_map(|member| layout.members.get(member.0 as usize));
        places.map(|place| place.host.as_str()).filter(move |host| !set_survives(layout, absent, set, host))
    })
}

fn set_survives(layout: &Layout, absent: &BTreeSet<Member>, set: &[Member], host: &str) -> bool {
    let place = |member: &Member| layout.members.get(member.0 as usize);
    let is_lost =
        |member: &Member| absent.contains(member) || place(member).is_some_and(|place| place.host == host);
    let lost: Vec<usize> = (0..set.len()).filter(|&at| is_lost(&set[at])).collect();
    let nothing_to_lose = lost.iter().all(|&at| place(&set[at]).is_some_and(|place| place.files == 0));
    nothing_to_lose || layout.survives(set, &lost)
}
