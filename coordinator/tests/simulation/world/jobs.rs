//! Jobs as the model carries them out, a share at a time.

use std::collections::BTreeMap;

use scrfs::control::HeldState;
use scrfs::dataset::Scheme;
use scrfs::path::RelPath;
use scrfs_coordinator::job::{Job, JobFailure, JobId, JobOutput, JobResult, SetMember};

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
            return passing("injected");
        }
        match &share.job {
            Job::Encode { id, paths, set, .. } => {
                for (member, paths) in set.iter().zip(paths) {
                    let frozen = self.nodes[member.node.0 as usize].datasets.get(id);
                    let frozen = frozen
                        .and_then(|dataset| dataset.frozen.as_ref())
                        .ok_or_else(|| JobFailure::passing("a peer is gone"))?;
                    let files: Vec<&RelPath> = frozen.1.files.keys().collect();
                    let sizes: Vec<u64> = frozen.1.files.values().map(|content| size_of(*content)).collect();
                    assert_eq!((files, &sizes), (paths.iter().collect(), &member.sizes), "what was frozen");
                }
                let part = self.nodes[share.node].finish_member(*id).map_err(JobFailure::passing)?;
                Ok(JobOutput::Part(Box::new(part)))
            }
            Job::Rebuild { catalog, set, lost } => {
                let around = |by: usize| set[(*lost as usize + by) % set.len()].member;
                let (right, left) = (around(1), around(set.len() - 1));
                let lost = &set[*lost as usize];
                let target = lost.node.0 as usize;
                let partner = catalog.layout.scheme == Scheme::Partner;
                let gives = |m: &&SetMember| {
                    if partner { m.member == right || m.member == left } else { m.member != lost.member }
                };
                let gone_or_bad = |member: &&SetMember| {
                    let peer = self.nodes[member.node.0 as usize].datasets.get(&catalog.id);
                    peer.and_then(|d| d.members.get(&member.member)).is_none_or(|data| data.bad)
                };
                let bad =
                    || set.iter().filter(gives).filter(gone_or_bad).map(|m| m.node.0 as usize).collect();
                let bad: &Vec<usize> = self.found_bad.entry(share.id).or_insert_with(bad);
                if bad.contains(&share.node) || (share.node == target && !bad.is_empty()) {
                    let here = self.nodes[share.node].datasets.contains_key(&catalog.id);
                    let bad = here && bad.contains(&share.node);
                    return Err(JobFailure { reason: "a member is bad".to_owned(), bad, full: None });
                }
                if share.node != target {
                    return Ok(JobOutput::Done);
                }
                if self.ready && !self.nodes[target].datasets.contains_key(&catalog.id) {
                    return passing("it was removed");
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
                    failed: false,
                    over: None,
                    begun: 0,
                });
                dataset.members.insert(lost.member, MemberData { files, bad: false });
                self.mended += u64::from(self.ready);
                let entries = Vec::new();
                let part = scrfs::control::MemberPart { member: lost.member, entries, taken: 0 };
                Ok(JobOutput::Part(Box::new(part)))
            }
            Job::Send { file, from, to, .. } => {
                let (from, to) = (from.0 as usize, to.0 as usize);
                let Some(held) = self.nodes[from].datasets.get(&file.id) else { return passing("gone") };
                let key = (held.epoch, file.id);
                let whole = held.members.values().any(|d| !d.bad && d.files.contains_key(&file.path));
                let bad =
                    self.found_bad.entry(share.id).or_insert_with(|| if whole { vec![] } else { vec![from] });
                if !bad.is_empty() {
                    let bad = share.node == from;
                    return Err(JobFailure { reason: "no such file".to_owned(), bad, full: None });
                }
                if share.node == to {
                    if !self.nodes[to].datasets.contains_key(&file.id) {
                        return passing("it was removed");
                    }
                    let content = self.truth[&key][&file.path];
                    if let Some(full) = self.no_room(to, content) {
                        let reason = "the cache is full".to_owned();
                        return Err(JobFailure { reason, bad: false, full: Some(full) });
                    }
                    self.nodes[to].copies.insert((file.id, file.path.clone()), content);
                }
                Ok(JobOutput::Done)
            }
        }
    }
}

fn passing(reason: &str) -> JobResult {
    Err(JobFailure::passing(reason))
}
