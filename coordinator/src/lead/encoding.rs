//! From frozen members to a catalog: an *encode* job per set, the parts joined.

use std::collections::BTreeMap;

use scrfs::control::{FrozenFile, MemberPart, Reason};
use scrfs::dataset::{Catalog, Layout, Protection};
use scrfs::ids::{Member, NodeRank};
use scrfs::redundancy::sets::lay_out;

use super::catalog::{self, Making};
use super::cluster::Cluster;
use super::jobs::{Ended, Jobs, Share};
use crate::job::{Job, JobOutput, SetMember};

/// The jobs that run. Member = node rank.
#[derive(Debug)]
pub(super) struct Encoding {
    making: Making,
    layout: Layout,
    jobs: Jobs,
}

/// How far an encoding is.
#[derive(Debug)]
pub(super) enum Encoded {
    Running,
    Done(Box<Catalog>),
    /// With host and reason.
    Failed(Reason),
}

impl Encoding {
    /// Starts the jobs. `frozen` has one list per node.
    pub(super) fn start(cluster: &mut Cluster, mut making: Making, frozen: &[Vec<FrozenFile>]) -> Self {
        assert_eq!(frozen.len(), cluster.hosts.len(), "one member per node");
        making.about.files = frozen.iter().map(|files| files.len() as u64).sum();
        making.about.bytes = frozen.iter().flatten().fold(0, |sum, file| sum.saturating_add(file.size));
        let protection = cluster.settings.protections.of(making.id.0).clone();
        let Protection { scheme, set_size, hop_distance, .. } = protection;
        let sets = lay_out(&cluster.groups_of(&protection), set_size as usize, hop_distance as usize);
        let members = u32::try_from(frozen.len()).unwrap_or(u32::MAX);
        let mut jobs = Jobs::default();
        for set in &sets {
            let files = |member: &Member| &frozen[member.0 as usize];
            let job = Job::Encode {
                id: making.id,
                scheme,
                about: making.about.clone(),
                paths: set.iter().map(|m| files(m).iter().map(|file| file.path.clone()).collect()).collect(),
                set: set
                    .iter()
                    .map(|m| SetMember {
                        member: *m,
                        node: NodeRank(m.0),
                        sizes: files(m).iter().map(|file| file.size).collect(),
                    })
                    .collect(),
                members,
                encoding: 0,
                fresh: None,
            };
            jobs.start(cluster, job);
        }
        let layout = Layout { protection, members: catalog::places(&cluster.hosts), sets, encoding: 0 };
        Self { making, layout, jobs }
    }

    /// A share ended; `None` when it is no share of these jobs. The first failure is the
    /// encoding's: what still runs ends for nothing.
    pub(super) fn job(&mut self, cluster: &Cluster, share: Share) -> Option<Encoded> {
        Some(match self.jobs.ended(cluster, share)? {
            Ended::Running => Encoded::Running,
            Ended::Failing(reason) | Ended::Failed(reason) => Encoded::Failed(reason),
            Ended::Done(outputs) => match self.joined(cluster, outputs) {
                Ok(catalog) => Encoded::Done(Box::new(catalog)),
                Err(reason) => Encoded::Failed(reason),
            },
        })
    }

    fn joined(&self, cluster: &Cluster, outputs: Vec<(NodeRank, JobOutput)>) -> Result<Catalog, Reason> {
        let mut parts: BTreeMap<Member, MemberPart> = BTreeMap::new();
        for (node, output) in outputs {
            match output {
                JobOutput::Part(part) if part.member.0 == node.0 => parts.insert(part.member, *part),
                _ => {
                    let host = cluster.host(node);
                    return Err(format!("{host} ended its share without its part of the catalog").into());
                }
            };
        }
        catalog::join(&self.making, self.layout.clone(), parts, cluster.settings.list_max)
    }
}
