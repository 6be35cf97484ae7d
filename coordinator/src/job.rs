//! Jobs: work that moves bytes between nodes. The lead starts them, each coordinator taking part
//! runs its share in a worker thread, and reports once.

use std::collections::BTreeSet;
use std::sync::Arc;

use scrfs::control::{MemberPart, NoRoom, Reason, SealedFile};
use scrfs::dataset::{Catalog, Scheme};
use scrfs::ids::{DatasetId, Member, NodeRank};
use serde::{Deserialize, Serialize};

/// Names a job in its epoch; the same number on all nodes that take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub u64);

/// A member of the set that a job works on: where its data is (or will be) and how much.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetMember {
    /// Index in the dataset.
    pub member: Member,
    /// The coordinator that reads or writes for it.
    pub node: NodeRank,
    /// Its files, in the order of the logical file: sizes in bytes.
    pub sizes: Vec<u64>,
}

/// What a coordinator is to do. Every node named in it gets the same value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Job {
    /// Read the member's files once, take their CRCs, make the set's redundancy data, finish the
    /// member at the daemon. A set of one member, and SINGLE, only take CRCs.
    Encode {
        /// Dataset.
        id: DatasetId,
        /// What to make.
        scheme: Scheme,
        /// The directory's name, the time of the seal, user and job: for the header's dataset
        /// descriptor.
        about: About,
        /// Paths of the files, by position in `set`.
        paths: Vec<Vec<scrfs::path::RelPath>>,
        /// In ring order.
        set: Vec<SetMember>,
        /// Members of the dataset altogether.
        members: u32,
        /// [`scrfs::dataset::Layout::encoding`]; 0 in a seal. Else the dataset is complete, and its
        /// former redundancy data counts until a catalog with this encoding is committed.
        encoding: u32,
        /// Members of the set that are not on their nodes yet.
        fresh: Option<Fresh>,
    },
    /// Compute the lost members of a set and write their files and redundancy files on their (new)
    /// nodes.
    Rebuild {
        /// The dataset; its layout says sets and sizes.
        catalog: Arc<Catalog>,
        /// In ring order; a lost member's node is the one that will hold it.
        set: Vec<SetMember>,
        /// Positions in `set`, ascending; no more than the scheme survives.
        lost: Vec<u32>,
    },
    /// Copy one sealed file from one node to another.
    Send {
        /// Which.
        file: SealedFile,
        /// Bytes.
        size: u64,
        /// CRC32.
        crc: u32,
        /// Holder.
        from: NodeRank,
        /// Asker.
        to: NodeRank,
    },
}

/// Members without files that were lost beyond what their set gives back: there is nothing to
/// bring, and they begin anew with what they guard for others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fresh {
    /// The dataset's.
    pub catalog: Arc<Catalog>,
    /// Which.
    pub members: Vec<Member>,
}

impl Fresh {
    /// Those of `fresh` that are of this set.
    pub fn of(catalog: &Arc<Catalog>, set: &[Member], fresh: &BTreeSet<Member>) -> Option<Self> {
        let members: Vec<Member> = set.iter().filter(|member| fresh.contains(member)).copied().collect();
        (!members.is_empty()).then(|| Self { catalog: Arc::clone(catalog), members })
    }
}

/// For the dataset descriptor in redundancy headers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The directory's name.
    pub name: Vec<u8>,
    /// Microseconds since 1970.
    pub created_us: u64,
    /// The job's user.
    pub user: String,
    /// The job's id.
    pub job_id: String,
    /// Files of the whole dataset (all sets), without redundancy files.
    pub files: u64,
    /// Bytes of those files.
    pub bytes: u64,
}

impl About {
    /// Of a dataset that is complete.
    pub fn of(catalog: &Catalog) -> Self {
        Self {
            name: catalog.name.clone(),
            created_us: catalog.created_us,
            user: catalog.user.clone(),
            job_id: catalog.job_id.clone(),
            files: catalog.layout.members.iter().map(|m| m.files).sum(),
            bytes: catalog.bytes(),
        }
    }
}

/// What a job's share ended with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum JobOutput {
    /// Nothing to tell.
    Done,
    /// Encode and rebuild: a member that was finished here.
    Part(Box<MemberPart>),
}

/// Why a share failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}")]
pub struct JobFailure {
    /// With path, dataset or member, for the log and the events.
    pub reason: Reason,
    /// Positions in the job whose data is gone or not what was sealed, or would be rebuilt with
    /// other bytes: no other try will find that.
    /// None for what may pass: a full cache, a lost link, a failure of another share.
    pub bad: Vec<u32>,
    /// A program has begun to change a file while it was read: the next try finds its sealed bytes.
    pub moved: bool,
    /// The cache on this node has no room for what it was to get.
    pub full: Option<NoRoom>,
}

impl JobFailure {
    /// What may pass.
    pub fn passing(reason: impl Into<Reason>) -> Self {
        Self { reason: reason.into(), bad: Vec::new(), moved: false, full: None }
    }

    /// Data that it was to give is gone or wrong.
    pub fn is_bad(&self) -> bool {
        !self.bad.is_empty()
    }
}

/// How a share ended.
pub type JobResult = Result<JobOutput, JobFailure>;

impl Job {
    /// The nodes that take part.
    pub fn nodes(&self) -> Vec<NodeRank> {
        match self {
            Self::Encode { set, .. } | Self::Rebuild { set, .. } => set.iter().map(|m| m.node).collect(),
            Self::Send { from, to, .. } => vec![*from, *to],
        }
    }
}
