//! Restart: a dataset whose members have moved together is encoded anew, in sets of which no node
//! has two members; so is one of whose redundancy data more is gone than its sets give back. What
//! protects it now stays until a catalog with the new encoding is committed.

use std::collections::BTreeMap;
use std::sync::Arc;

use scrfs::control::Reason;
use scrfs::dataset::{Catalog, Protection};
use scrfs::ids::Member;
use scrfs::redundancy::sets::{at_risk, lay_out};

use super::super::cluster::Cluster;
use super::super::jobs::{Ended, Jobs, ShareEnd};
use super::places::{MemberFiles, Restored};
use crate::job::{About, Fresh, Job, JobOutput};

/// New sets, on their way.
#[derive(Debug)]
pub(in crate::lead) struct Reencoding {
    jobs: Jobs,
    sets: Vec<Vec<Member>>,
    /// That of the catalog to come.
    revision: u32,
}

/// How far it is.
#[derive(Debug)]
pub(in crate::lead) enum Reencoded {
    Running,
    /// All members have their new redundancy data.
    Done(NewSets),
    Failed(Reason),
}

/// What the catalog is to say.
#[derive(Debug)]
pub(in crate::lead) struct NewSets {
    sets: Vec<Vec<Member>>,
    encoding: u32,
    /// Bytes that each member takes of its cache.
    taken: BTreeMap<Member, u64>,
}

impl Reencoding {
    /// The sets to be encoded anew, and whether that is because members have moved together; `None`
    /// when the sets are as good as they can be, and nothing of their redundancy data is gone.
    pub(super) fn sets(
        cluster: &Cluster,
        catalog: &Catalog,
        restored: &Restored,
    ) -> Option<(Vec<Vec<Member>>, bool)> {
        let Restored { places, anew, .. } = restored;
        let Protection { scheme, set_size, hop_distance, .. } = catalog.layout.protection;
        let of_node = cluster.groups_of(&catalog.layout.protection);
        let group = |member: u32| places.get(&Member(member)).and_then(|node| of_node.get(node.0 as usize));
        let members = u32::try_from(catalog.layout.members.len()).ok()?;
        let groups: Vec<_> = (0..members).map(group).collect::<Option<_>>()?;
        let sets = lay_out(&groups, set_size as usize, hop_distance as usize);
        if at_risk(scheme, &sets, &groups) < at_risk(scheme, &catalog.layout.sets, &groups) {
            return Some((sets, true));
        }
        anew.then(|| (catalog.layout.sets.clone(), false))
    }

    /// Starts the jobs, if there is anything to encode.
    pub(super) fn start(
        cluster: &mut Cluster,
        catalog: &Arc<Catalog>,
        restored: &Restored,
        revision: u32,
    ) -> Option<Self> {
        let (sets, are_together) = Self::sets(cluster, catalog, restored)?;
        let Restored { places, fresh, .. } = restored;
        let members = u32::try_from(catalog.layout.members.len()).ok()?;
        let (mut jobs, about, files) = (Jobs::default(), About::of(catalog), MemberFiles::of_all(catalog));
        for set in &sets {
            let job = Job::Encode {
                id: catalog.id,
                scheme: catalog.layout.scheme(),
                about: about.clone(),
                paths: set.iter().map(|member| files.paths(*member)).collect(),
                set: set.iter().map(|member| files.on(*member, places[member])).collect(),
                members,
                encoding: revision,
                fresh: Fresh::of(catalog, set, fresh),
            };
            jobs.start(cluster, job);
        }
        let (name, id) = (String::from_utf8_lossy(&catalog.name), catalog.id);
        let why = if are_together {
            "members of one redundancy set are together on a node, or in a failure group"
        } else {
            "redundancy data is gone that its set cannot give back"
        };
        cluster.note(format!("{name} (dataset {id}): {why}; it is encoded anew, in {} sets", sets.len()));
        Some(Self { jobs, sets, revision })
    }

    /// A share ended; `None` when it is no share of these jobs.
    pub(in crate::lead) fn job(&mut self, cluster: &Cluster, share: ShareEnd) -> Option<Reencoded> {
        Some(match self.jobs.ended(cluster, share)? {
            Ended::Running | Ended::Failing(_) => Reencoded::Running,
            Ended::Failed(reason) => Reencoded::Failed(reason),
            Ended::Done(outputs) => {
                let part = |(_, output)| match output {
                    JobOutput::Part(part) => Some((part.member, part.taken)),
                    JobOutput::Done => None,
                };
                Reencoded::Done(NewSets {
                    sets: std::mem::take(&mut self.sets),
                    encoding: self.revision,
                    taken: outputs.into_iter().filter_map(part).collect(),
                })
            }
        })
    }
}

impl NewSets {
    /// Makes them the catalog's.
    pub(in crate::lead) fn put_into(self, catalog: &mut Catalog) {
        catalog.layout.sets = self.sets;
        catalog.layout.encoding = self.encoding;
        for (member, place) in (0..).map(Member).zip(&mut catalog.layout.members) {
            if let Some(taken) = self.taken.get(&member) {
                place.taken = Some(*taken);
            }
        }
    }
}
