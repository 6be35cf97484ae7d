//! From frozen members to a catalog: an *encode* job per set, the parts joined.

use std::sync::Arc;

use scrfs::control::{FrozenFile, Reason};
use scrfs::dataset::{Catalog, Layout, Protection};
use scrfs::ids::NodeRank;
use scrfs::redundancy::sets::lay_out;

use super::catalog::{self, Joining, Making};
use super::cluster::Cluster;
use super::jobs::{Ended, Jobs, ShareEnd};
use crate::job::{Job, JobId, JobOutput, SetMember};

/// The jobs that run. Member = node rank.
#[derive(Debug)]
pub(super) struct Encoding {
    joining: Joining,
    jobs: Jobs,
}

/// How far an encoding is.
#[derive(Debug)]
pub(super) enum Encoded {
    Running,
    Done(Arc<Catalog>),
    /// With host and reason.
    Failed(Reason),
}

impl Encoding {
    /// Starts the jobs. `frozen` has one list per node.
    pub(super) fn start(cluster: &mut Cluster, mut making: Making, mut frozen: Vec<Vec<FrozenFile>>) -> Self {
        assert_eq!(frozen.len(), cluster.hosts.len(), "one member per node");
        making.about.files = frozen.iter().map(|files| files.len() as u64).sum();
        making.about.bytes = frozen.iter().flatten().fold(0, |sum, file| sum.saturating_add(file.size));
        let protection = cluster.settings.protections.of(making.id.0).clone();
        let Protection { scheme, set_size, hop_distance, .. } = protection;
        let sets = lay_out(&cluster.groups_of(&protection), set_size as usize, hop_distance as usize);
        let members = u32::try_from(frozen.len()).unwrap_or(u32::MAX);
        let mut jobs = Jobs::default();
        for ring in &sets {
            let (mut set, mut paths) = (Vec::with_capacity(ring.len()), Vec::with_capacity(ring.len()));
            for &member in ring {
                let files = std::mem::take(&mut frozen[member.0 as usize]);
                let sizes = files.iter().map(|file| file.size).collect();
                set.push(SetMember { member, node: NodeRank(member.0), sizes });
                paths.push(files.into_iter().map(|file| file.path).collect());
            }
            let job = Job::Encode {
                id: making.id,
                scheme,
                about: making.about.clone(),
                paths,
                set,
                members,
                encoding: 0,
                fresh: None,
            };
            jobs.start(cluster, job);
        }
        let layout = Layout { protection, members: catalog::places(&cluster.hosts), sets, encoding: 0 };
        Self { joining: Joining::new(making, layout), jobs }
    }

    /// It is one of these jobs.
    pub(super) fn has(&self, job: JobId) -> bool {
        self.jobs.has(job)
    }

    /// A share ended; `None` when it is no share of these jobs. The first failure is the
    /// encoding's: what still runs ends for nothing.
    pub(super) fn job(&mut self, cluster: &Cluster, mut share: ShareEnd) -> Option<Encoded> {
        let (node, output) = (share.node, share.take_output());
        let ended = self.jobs.ended(cluster, share)?;
        if let Some(output) = output
            && let Err(reason) = self.join(cluster, node, output)
        {
            return Some(Encoded::Failed(reason));
        }
        Some(match ended {
            Ended::Running => Encoded::Running,
            Ended::Failing(reason) | Ended::Failed(reason) => Encoded::Failed(reason),
            Ended::Done(_) => match self.joining.joined(cluster.settings.list_max) {
                Ok(catalog) => Encoded::Done(Arc::new(catalog)),
                Err(reason) => Encoded::Failed(reason),
            },
        })
    }

    fn join(&mut self, cluster: &Cluster, node: NodeRank, output: JobOutput) -> Result<(), Reason> {
        match output {
            JobOutput::Part(part) if part.member.0 == node.0 => self.joining.add(*part),
            _ => {
                let host = cluster.host(node);
                Err(format!("{host} ended its share without its part of the catalog").into())
            }
        }
    }
}
