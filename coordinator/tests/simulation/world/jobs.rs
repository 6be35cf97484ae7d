//! Jobs as the model carries them out, a share at a time.

use std::collections::BTreeMap;

use scrfs::control::HeldState;
use scrfs::dataset::Scheme;
use scrfs::path::RelPath;
use scrfs_coordinator::job::{Job, JobId, JobOutput, JobResult, SetMember};

use super::World;
use crate::daemon::{Dataset, MemberData, size_of};

/// One node's share of a job.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) id: JobId,
    pub(super) job: Job,
    pub(super) node: usize,
    pub(super) fails: bool,
}

impl World {
    pub(super) fn share(&mut self, share: &Share) -> JobResult {
        if share.fails {
            return Err("injected".to_owned());
        }
        match &share.job {
            Job::Encode { id, paths, set, .. } => {
                for (member, paths) in set.iter().zip(paths) {
                    let frozen = self.nodes[member.node.0 as usize].datasets.get(id);
                    let frozen =
                        frozen.and_then(|dataset| dataset.frozen.as_ref()).ok_or("a peer is gone")?;
                    let files: Vec<&RelPath> = frozen.1.files.keys().collect();
                    let sizes: Vec<u64> = frozen.1.files.values().map(|content| size_of(*content)).collect();
                    assert_eq!((files, &sizes), (paths.iter().collect(), &member.sizes), "what was frozen");
                }
                let part = self.nodes[share.node].finish_member(*id)?;
                Ok(JobOutput::Part(Box::new(part)))
            }
            Job::Rebuild { catalog, set, lost } => {
                let copy = &set[(*lost as usize + 1) % set.len()];
                let lost = &set[*lost as usize];
                if share.node != lost.node.0 as usize {
                    return Ok(JobOutput::Done);
                }
                let partner = catalog.layout.scheme == Scheme::Partner;
                let gives = |m: &&SetMember| {
                    if partner { m.member == copy.member } else { m.member != lost.member }
                };
                for member in set.iter().filter(gives) {
                    let peer = self.nodes[member.node.0 as usize].datasets.get(&catalog.id);
                    let data = peer.and_then(|dataset| dataset.members.get(&member.member));
                    data.filter(|data| !data.bad).ok_or("a member is bad")?;
                }
                let truth = &self.truth[&(catalog.epoch, catalog.id)];
                let files = catalog.files_of(lost.member).map(|(entry, _)| entry.path.clone());
                let files = files.map(|path| (path.clone(), truth[&path])).collect();
                let dataset = self.nodes[share.node].datasets.entry(catalog.id).or_insert_with(|| Dataset {
                    epoch: catalog.epoch,
                    name: catalog.name.clone(),
                    state: HeldState::Recorded,
                    frozen: None,
                    members: BTreeMap::new(),
                    catalog: Some((**catalog).clone()),
                    flushed: false,
                    listed: false,
                });
                dataset.members.insert(lost.member, MemberData { files, bad: false });
                let entries = Vec::new();
                let part = scrfs::control::MemberPart { member: lost.member, entries };
                Ok(JobOutput::Part(Box::new(part)))
            }
            Job::Send { file, from, .. } => {
                let held = self.nodes[from.0 as usize].datasets.get(&file.id).ok_or("gone")?;
                let has = |data: &MemberData| !data.bad && data.files.contains_key(&file.path);
                let good = held.members.values().any(has);
                if good { Ok(JobOutput::Done) } else { Err("no such file".to_owned()) }
            }
        }
    }
}
