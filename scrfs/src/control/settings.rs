//! The job's settings as the lead has them: the same for all daemons.

use serde::{Deserialize, Serialize};

use crate::dataset::Protections;

/// The job's settings that daemons follow; they reach them when coordinators attach.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The job's directory on the PFS, absolute.
    pub prefix: Vec<u8>,
    /// The job's user and id, for records.
    pub user: String,
    /// `SCR_JOB_ID`.
    pub job_id: String,
    /// `SCRFS_CHECKPOINT_PATH` as the job has set it; `None`: as the mount was made.
    #[serde(default)]
    pub checkpoint_path: Option<Vec<u8>>,
    /// `SCRFS_COORDINATOR_WAIT`, milliseconds.
    pub coordinator_wait_ms: u64,
    /// `SCRFS_SEAL_TIMEOUT`, milliseconds.
    pub seal_timeout_ms: u64,
    /// `SCR_CACHE_SIZE`: sealed datasets kept.
    pub cache_size: u32,
    /// `SCRFS_CACHE_BYTES`: bytes that a node's cache may take; 0 = no limit.
    #[serde(default)]
    pub cache_bytes: u64,
    /// `SCR_COPY_TYPE`, `SCR_SET_SIZE`, `SCR_HOP_DISTANCE`, and the `CKPT=` lines.
    pub protections: Protections,
    /// `SCR_FLUSH`: every n-th checkpoint is flushed; 0 = none.
    pub flush_every: u32,
    /// `SCRFS_SCRUB_INTERVAL`, milliseconds; 0 = never.
    #[serde(default)]
    pub scrub_interval_ms: u64,
    /// `SCR_FETCH`: may fetch from the PFS at restart.
    pub fetch: bool,
    /// `SCR_DISTRIBUTE`: may use the cache at restart.
    pub distribute: bool,
    /// `SCRFS_LIST_MAX`: files of one dataset, and directories.
    pub list_max: u64,
    /// How data is encoded and sent.
    pub jobs: JobRules,
    /// How datasets are marked and sealed.
    pub sealing: SealRules,
    /// What loose files in the checkpoint path mean.
    pub loose: LooseRules,
    /// What a restart goes on from, and what becomes of the rest.
    pub restart: RestartRules,
    /// When programs are advised to write checkpoints, and to end.
    pub advice: AdviceRules,
    /// `SCR_ENABLE`: datasets are sealed and protected; without it directories are global all the
    /// same.
    #[serde(default = "enabled")]
    pub enable: bool,
}

/// How coordinators encode data and send it to one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRules {
    /// `SCR_MPI_BUF_SIZE`: bytes of one block, at most.
    pub block_bytes: u32,
    /// `SCRFS_ENCODE_THREADS`: strips in which a member is encoded at a time, at most. Each has a
    /// thread that reads, and one that makes and writes redundancy data.
    pub encode_threads: u32,
}

fn enabled() -> bool {
    true
}

/// How datasets are marked and sealed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealRules {
    /// `SCRFS_MARKER`: names of markers beside `.complete`.
    pub markers: Vec<Vec<u8>>,
    /// `SCRFS_MARKER_SCOPE`.
    pub scope: MarkerScope,
    /// `SCRFS_SEAL=background`: markers wait only until all nodes are frozen.
    pub background: bool,
    /// `SCRFS_COMMIT_ON_RENAME`: a [`crate::pattern::NamePattern`]'s text.
    pub commit_on_rename: Option<String>,
    /// Where scrfs-run started the program; empty: on all nodes.
    pub program_hosts: Vec<String>,
}

/// On which nodes a marker has to be set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MarkerScope {
    /// On one of them.
    #[default]
    Any,
    /// On all that run the program.
    All,
}

/// What loose files in the checkpoint path mean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LooseRules {
    /// `SCRFS_DATASET_PATTERN`: a capturing [`crate::pattern::NamePattern`]'s text.
    pub pattern: Option<String>,
    /// `SCRFS_LOOSE_MAX`: bytes of a pointer file.
    pub max_bytes: u64,
    /// `SCRFS_LOOSE_FILES`: pointer files.
    pub max_names: u32,
}

impl Default for LooseRules {
    fn default() -> Self {
        Self { pattern: None, max_bytes: 1 << 20, max_names: 64 }
    }
}

/// What a restart goes on from, and what becomes of the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartRules {
    /// `SCRFS_KEEP_UNSEALED`: what is not sealed is moved aside, not removed.
    pub keep_unsealed: bool,
    /// `SCRFS_RESTART`: programs start before lost members are rebuilt.
    pub lazy: bool,
    /// `SCRFS_FETCH`: they start before what only the prefix has is fetched.
    pub lazy_fetch: bool,
    /// Datasets of earlier epochs are not presented; `u64::MAX`: none is (`scrfs-run --fresh`).
    pub not_before: u64,
    /// Several scrfs-runs work side by side in one job, each under a name of its own
    /// (`scrfs-run --name`); else empty.
    pub name: String,
}

/// Rules for what programs are advised; 0 = not set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdviceRules {
    /// `SCR_CHECKPOINT_INTERVAL`: a checkpoint at every n-th question.
    pub interval: u32,
    /// `SCR_CHECKPOINT_SECONDS`: a checkpoint so long after the last.
    pub seconds: u64,
    /// `SCR_CHECKPOINT_OVERHEAD`: percent of the time that programs may wait at markers.
    pub overhead: u32,
    /// `SCR_HALT_SECONDS`: end so long before the allocation does.
    pub halt_seconds: u64,
    /// `SCRFS_END_TIME`: when the allocation ends, seconds since 1970.
    pub end_time: u64,
    /// Seconds that ending the program and saving its newest dataset may take of the allocation,
    /// beside the flush itself ([`Ending::reserve`](crate::config::Ending::reserve)). 0: nothing is
    /// saved at the end, and the job is not stopped for it.
    #[serde(default)]
    pub end_reserve: u64,
}
