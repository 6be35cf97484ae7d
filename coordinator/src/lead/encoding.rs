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
    /// It has failed: what its shares give is of no use.
    failed: Option<Reason>,
}

/// How far an encoding is.
#[derive(Debug)]
pub(super) enum Encoded {
    Running,
    Done(Arc<Catalog>),
    /// With host and reason. Shares are awaited, which have been told to end.
    Failing(Reason),
    /// The same, and all shares have ended.
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
        Self { joining: Joining::new(making, layout), jobs, failed: None }
    }

    /// It is one of these jobs.
    pub(super) fn has(&self, job: JobId) -> bool {
        self.jobs.has(job)
    }

    /// A share ended; `None` when it is no share of these jobs. The first failure is the
    /// encoding's: the shares of all sets that still run are told to end.
    pub(super) fn job(&mut self, cluster: &mut Cluster, mut share: ShareEnd) -> Option<Encoded> {
        let (node, output) = (share.node, share.take_output());
        let ended = self.jobs.ended(cluster, share)?;
        let joined = match output {
            Some(output) if self.failed.is_none() => self.join(cluster, node, output),
            _ => Ok(()),
        };
        let (is_over, failure) = match ended {
            Ended::Running => (false, joined.err()),
            Ended::Failing(reason) => (false, Some(reason)),
            Ended::Failed(reason) => (true, Some(reason)),
            Ended::Done(_) => (true, joined.err()),
        };
        if let Some(reason) = failure.filter(|_| self.failed.is_none()) {
            self.jobs.abort(cluster, &reason);
            self.failed = Some(reason);
        }
        Some(match (&self.failed, is_over) {
            (Some(reason), true) => Encoded::Failed(reason.clone()),
            (Some(reason), false) => Encoded::Failing(reason.clone()),
            (None, false) => Encoded::Running,
            (None, true) => match self.joining.joined(cluster.settings.list_max) {
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

#[cfg(test)]
mod tests {
    use scrfs::dataset::{Protections, Scheme};
    use scrfs::ids::Epoch;

    use super::*;
    use crate::job::JobFailure;
    use crate::lead::Output;
    use crate::lead::catalog::tests::making;
    use crate::settings::tests::settings;

    #[test]
    fn a_failure_ends_the_shares_of_all_sets_and_is_over_when_they_have_ended() {
        let mut settings = settings();
        let usual = Protection { set_size: 2, ..Protection::by(Scheme::Xor) };
        settings.protections = Protections::all(usual);
        let hosts = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let mut cluster = Cluster::new(Epoch(1), hosts, settings, 100);
        let mut encoding = Encoding::start(&mut cluster, making(), vec![Vec::new(); 4]);
        let started = cluster.take_outputs().into_iter().filter_map(|output| match output {
            Output::Start(id, job) => Some((id, job.nodes())),
            _ => None,
        });
        let jobs: Vec<(JobId, Vec<NodeRank>)> = started.collect();
        assert_eq!(jobs.len(), 2);
        let mut ends = |cluster: &mut Cluster, set: usize, at: usize, result| {
            let (job, nodes) = &jobs[set];
            let ended = encoding.job(cluster, ShareEnd { node: nodes[at], job: *job, result });
            let aborted = cluster.take_outputs().into_iter().filter_map(|output| match output {
                Output::Abort(id, nodes, reason) => Some((id, nodes, reason.words().to_owned())),
                _ => None,
            });
            (ended, aborted.collect::<Vec<_>>())
        };
        let full = || Err(JobFailure::passing("no room"));
        let (ended, aborted) = ends(&mut cluster, 0, 1, full());
        assert!(matches!(ended, Some(Encoded::Failing(_))), "{ended:?}");
        let (set, other) = (jobs[0].1[0], jobs[1].1.clone());
        let told: Vec<_> = aborted.iter().map(|(id, nodes, _)| (*id, nodes.clone())).collect();
        assert_eq!(told, [(jobs[0].0, vec![set]), (jobs[1].0, other)]);
        assert!(aborted.iter().all(|(_, _, reason)| reason.contains("no room")));
        // Those that had ended by themselves, and those that end now.
        for (set, at, result) in [(0, 0, full()), (1, 1, Ok(JobOutput::Done))] {
            let (ended, aborted) = ends(&mut cluster, set, at, result);
            assert!(matches!(ended, Some(Encoded::Failing(_))) && aborted.is_empty(), "{ended:?}");
        }
        let (ended, _) = ends(&mut cluster, 1, 0, full());
        assert!(matches!(ended, Some(Encoded::Failed(reason)) if reason.words().contains("no room")));
    }
}
