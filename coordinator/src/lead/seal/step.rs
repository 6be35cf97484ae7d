//! One seal: where it is, and what it means for what else happens meanwhile.

use std::sync::Arc;

use nix::errno::Errno;
use scrfs::control::{Command, DirOp, FrozenFile};
use scrfs::ids::{DatasetId, Member};
use scrfs::path::RelPath;

use crate::lead::answers::Answers;
use crate::lead::catalog::Making;
use crate::lead::cluster::Cluster;
use crate::lead::committing::Committing;
use crate::lead::directories::Hold;
use crate::lead::encoding::Encoding;
use crate::lead::generation::Merging;
use crate::lead::markers::Marker;

/// Where it is.
#[derive(Debug)]
pub(super) enum Step {
    /// A round with operations in the dataset runs.
    Holding,
    /// Was this complete dataset changed anywhere? With the number of its markers by then: the
    /// answers speak of all that was changed before these.
    Asking(DatasetId, Answers<bool>, usize),
    Freezing(DatasetId, Answers<()>, Box<Merging>),
    /// The nodes are told what they carry on; then the members' files.
    Merging(DatasetId, Answers<()>, Vec<Vec<FrozenFile>>),
    /// All know their parts; the seal before is not over yet.
    Frozen(Making, Vec<Vec<FrozenFile>>),
    Encoding(DatasetId, Box<Encoding>),
    /// The flag: the dataset is on the PFS already. Only a seal of an earlier epoch can have it.
    Committing(Committing, bool),
    Dropping(DatasetId, Answers<()>),
}

/// A seal that runs.
#[derive(Debug)]
pub(super) struct Seal {
    pub(super) name: Vec<u8>,
    /// The complete dataset of which this is the next generation.
    pub(super) base: Option<DatasetId>,
    /// These markers get the outcome of this seal.
    pub(super) markers: Vec<Marker>,
    /// Microseconds that programs have waited until all was frozen.
    pub(super) waited: u64,
    pub(super) step: Step,
}

impl Step {
    /// The dataset that is being made, where it has its id.
    pub(super) fn dataset(&self) -> Option<DatasetId> {
        match self {
            Self::Holding | Self::Asking(..) => None,
            Self::Freezing(id, ..)
            | Self::Merging(id, ..)
            | Self::Encoding(id, _)
            | Self::Dropping(id, _) => Some(*id),
            Self::Frozen(making, _) => Some(making.id),
            Self::Committing(committing, _) => Some(committing.catalog.id),
        }
    }
}

impl Seal {
    /// What it means for a directory operation.
    pub(super) fn hold(&self, op: &DirOp) -> Hold {
        let mine = |path: &RelPath| path.split_first().is_some_and(|(top, _)| top == self.name);
        let top = |path: &RelPath| path.as_bytes() == self.name;
        match op {
            DirOp::Rename { from, to, .. } if top(from) || top(to) => Hold::Refuse(Errno::EBUSY as i32),
            DirOp::Rename { from, to, .. } if mine(from) || mine(to) => Hold::Wait,
            DirOp::Make { path, .. } if top(path) => Hold::Free,
            // Only an empty dataset can be removed before it is sealed; the daemons' votes tell. A
            // sealed one can be removed whatever other nodes see in it: not while its next
            // generation is being made from it.
            DirOp::Remove { path } if top(path) && self.may_be_removed() => Hold::Free,
            DirOp::Make { path, .. } | DirOp::Remove { path } if mine(path) => Hold::Wait,
            _ => Hold::Free,
        }
    }

    /// A program was told, or is about to be, that it will be sealed as it is.
    pub(super) fn is_promised(&self, cluster: &Cluster) -> bool {
        let told = cluster.settings.sealing.background && matches!(self.step, Step::Frozen(..));
        told || self.markers.iter().any(|marker| marker.everywhere)
    }

    pub(super) fn may_be_removed(&self) -> bool {
        self.base.is_none() && !matches!(self.step, Step::Asking(..) | Step::Committing(..))
    }

    pub(super) fn freeze(&mut self, cluster: &mut Cluster, base: Option<DatasetId>) {
        let id = cluster.next_id();
        for node in cluster.nodes() {
            let (name, member) = (self.name.clone(), Member(node.0));
            cluster.send(node, Command::Freeze { id, name, member, base });
        }
        self.base = base;
        let sealed = base.and_then(|base| cluster.datasets.any(base)).map(|known| Arc::clone(&known.catalog));
        let merging = Box::new(Merging::over(sealed));
        self.step = Step::Freezing(id, Answers::of(cluster.nodes()), merging);
    }
}

/// Names that no dataset can have.
pub(super) fn bad_name(name: &[u8]) -> Option<String> {
    let reserved = name == b".scrfs" || name == b".scr";
    let single = RelPath::new(name).is_ok_and(|path| path.names().count() == 1);
    (reserved || !single).then(|| format!("{:?} is no dataset's name", String::from_utf8_lossy(name)))
}
