//! Jobs as the model carries them out, a share at a time.

use std::collections::BTreeSet;

use scrfs::control::{HeldState, MemberPart, NoRoom};
use scrfs::dataset::{Catalog, Scheme};
use scrfs::ids::{DatasetId, Member};
use scrfs::path::RelPath;
use scrfs_coordinator::job::{Fresh, Job, JobFailure, JobId, JobOutput, JobResult, SetMember};

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
    /// The lead's word on a rebuild in a restart that was made to fail: twice
    /// `dataset ID: is rebuilt once more, as HOST: injected`, and then
    /// `dataset ID is not in the caches: HOST: injected`.
    pub(super) fn spoilt(&mut self, text: &str) {
        let said = text.strip_prefix("dataset ").and_then(|rest| rest.strip_suffix(": injected"));
        let Some(said) = said.filter(|_| !self.ready) else { return };
        let id = said.split([':', ' ']).next().and_then(|id| id.parse().ok());
        let rebuilds =
            said.contains(": is rebuilt once more, as ") || said.contains(" is not in the caches: ");
        if let Some(id) = id.filter(|_| rebuilds) {
            *self.spoilt.entry(DatasetId(id)).or_default() += 1;
        }
    }

    pub(super) fn share(&mut self, share: &Share) -> JobResult {
        if share.fails {
            return passing("injected");
        }
        match &share.job {
            Job::Encode { id, set, encoding, fresh, .. } if *encoding != 0 => {
                self.encode_anew(share, *id, (set, *encoding), fresh.as_ref())
            }
            Job::Encode { id, set, .. } if self.is_listed(share.node, *id) => {
                self.encode_listed(share, *id, set)
            }
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
            Job::Rebuild { catalog, set, lost } => self.rebuild(share, (catalog, set, lost)),
            Job::Send { file, from, to, .. } => {
                let (from, to) = (from.0 as usize, to.0 as usize);
                let Some(held) = self.nodes[from].datasets.get(&file.id) else { return passing("gone") };
                let key = (held.epoch, file.id);
                let whole = held.members.values().any(|d| !d.bad && d.files.contains_key(&file.path));
                let bad =
                    self.found_bad.entry(share.id).or_insert_with(|| if whole { vec![] } else { vec![0] });
                if !bad.is_empty() {
                    let bad = if share.node == from { vec![0] } else { Vec::new() };
                    return Err(JobFailure { bad, ..JobFailure::passing("no such file") });
                }
                if share.node == to {
                    if !self.nodes[to].datasets.contains_key(&file.id) {
                        return passing("it was removed");
                    }
                    let content = self.truth[&key][&file.path];
                    if let Some(full) = self.no_room(to, content) {
                        let reason = "the cache is full".to_owned();
                        return Err(JobFailure { full: Some(full), ..JobFailure::passing(reason) });
                    }
                    self.nodes[to].copies.insert((file.id, file.path.clone()), content);
                }
                Ok(JobOutput::Done)
            }
        }
    }

    fn is_listed(&self, node: usize, id: DatasetId) -> bool {
        self.nodes[node].datasets.get(&id).is_some_and(|dataset| dataset.listed)
    }

    /// A share of the encoding of a set whose members have come from the prefix. All shares need
    /// all of the set, so where one member is bad none of them makes redundancy data.
    fn encode_listed(&mut self, share: &Share, id: DatasetId, set: &[SetMember]) -> JobResult {
        for (at, SetMember { member, node, .. }) in (0..).zip(set) {
            let here = node.0 as usize == share.node;
            let dataset = self.nodes[node.0 as usize].datasets.get_mut(&id);
            let Some(dataset) = dataset else { return passing("it was removed") };
            let is_fetched = is_to_come(dataset, *member, here);
            match dataset.members.get(member) {
                Some(data) if data.bad && !is_fetched => return not_as_sealed(here.then_some(at)),
                None if !is_fetched => return passing("a peer is gone"),
                Some(_) | None => {}
            }
        }
        let mut output = JobOutput::Done;
        let here = set.iter().filter(|member| member.node.0 as usize == share.node);
        for &SetMember { member, .. } in here {
            let dataset = self.nodes[share.node].datasets.get_mut(&id).expect("it was looked at");
            dataset.members.get_mut(&member).expect("it is there").encodings.insert(0);
            output = JobOutput::Part(Box::new(MemberPart { member, entries: Vec::new(), taken: 0 }));
        }
        Ok(output)
    }

    /// A share of the encoding of a complete dataset's set.
    fn encode_anew(
        &mut self,
        share: &Share,
        id: DatasetId,
        (set, encoding): (&[SetMember], u32),
        fresh: Option<&Fresh>,
    ) -> JobResult {
        for (at, SetMember { member, node, .. }) in (0..).zip(set) {
            let here = node.0 as usize == share.node;
            let node = &mut self.nodes[node.0 as usize];
            let fresh = fresh.filter(|fresh| fresh.members.contains(member));
            if let Some(fresh) = fresh {
                let catalog = &fresh.catalog;
                assert!(catalog.files_of(*member).next().is_none(), "{member} has files, and begins anew");
                if here {
                    let dataset = node.datasets.entry(id).or_insert_with(|| Dataset::arriving(catalog));
                    dataset.members.insert(*member, MemberData::default());
                    self.counts.begun_anew += 1;
                }
            }
            let Some(dataset) = node.datasets.get_mut(&id) else {
                // Its own share begins it.
                if fresh.is_some() {
                    continue;
                }
                return passing("it was removed");
            };
            let is_fetched = is_to_come(dataset, *member, here);
            match dataset.members.get_mut(member) {
                Some(data) if data.bad && !is_fetched => return not_as_sealed(here.then_some(at)),
                // Its own share makes it, or takes what was fetched.
                None if fresh.is_some() || is_fetched => {}
                None => return passing("a peer is gone"),
                Some(data) if here => drop(data.encodings.insert(encoding)),
                Some(_) => {}
            }
        }
        self.counts.reencoded += 1;
        let here = set.iter().find(|member| member.node.0 as usize == share.node).expect("its share");
        let (member, entries) = (here.member, Vec::new());
        Ok(JobOutput::Part(Box::new(MemberPart { member, entries, taken: 0 })))
    }

    /// A share of the rebuild of these members of a set.
    fn rebuild(
        &mut self,
        share: &Share,
        (catalog, set, lost): (&Catalog, &[SetMember], &[u32]),
    ) -> JobResult {
        let set_lost = lost.len();
        let is_lost = |at: usize| lost.iter().any(|lost| *lost as usize == at);
        let is_target = |node: usize| (0..set.len()).any(|at| is_lost(at) && set[at].node.0 as usize == node);
        let partner = catalog.layout.scheme() == Scheme::Partner;
        let neighbour = |at: usize, by: usize| is_lost((at + by) % set.len());
        // A member's copy is at its right neighbour.
        let gives_copy = |at: usize| !partner || neighbour(at, set.len() - 1);
        let gives = |at: &usize| !is_lost(*at) && (gives_copy(*at) || neighbour(*at, 1));
        let gone_or_bad = |at: &usize| {
            let peer = self.nodes[set[*at].node.0 as usize].datasets.get(&catalog.id);
            let data = peer.and_then(|dataset| dataset.members.get(&set[*at].member));
            if gives_copy(*at)
                && let Some(stored) = peer.and_then(|peer| peer.catalog.as_ref())
            {
                assert_eq!(stored.layout.encoding, catalog.layout.encoding, "they have not caught up");
            }
            let guards = |data: &MemberData| data.guards(&catalog.layout, set[*at].member);
            data.is_none_or(|data| data.bad || (gives_copy(*at) && !guards(data)))
        };
        let bad = || (0..set.len()).filter(gives).filter(gone_or_bad).collect();
        let bad: &Vec<usize> = self.found_bad.entry(share.id).or_insert_with(bad);
        let of_share = bad.iter().filter(|at| set[**at].node.0 as usize == share.node);
        let mut of_share: Vec<u32> = of_share.filter_map(|at| u32::try_from(*at).ok()).collect();
        if !of_share.is_empty() || (is_target(share.node) && !bad.is_empty()) {
            if !self.nodes[share.node].datasets.contains_key(&catalog.id) {
                of_share.clear();
            }
            let bad = of_share;
            return Err(JobFailure { bad, ..JobFailure::passing("a member is bad") });
        }
        if is_target(share.node) && self.ready && !self.nodes[share.node].datasets.contains_key(&catalog.id) {
            return passing("it was removed");
        }
        let mut output = JobOutput::Done;
        for lost in (0..set.len()).filter(|at| is_lost(*at)).map(|at| &set[at]) {
            if lost.node.0 as usize != share.node {
                continue;
            }
            if self.is_cramped(share.node, (catalog, set_lost), lost.member) {
                let full = Some(NoRoom::default());
                return Err(JobFailure { full, ..JobFailure::passing("the cache is full") });
            }
            let truth = &self.truth[&(catalog.epoch, catalog.id)];
            let files = catalog.files_of(lost.member).map(|(entry, _)| entry.path.clone());
            let files = files.map(|path| (path.clone(), truth[&path])).collect();
            let here = &mut self.nodes[share.node].datasets;
            let dataset = here.entry(catalog.id).or_insert_with(|| Dataset::arriving(catalog));
            assert_eq!(dataset.epoch, catalog.epoch, "another dataset has this id, and is still there");
            if dataset.catalog.as_ref().is_none_or(|stored| stored.revision < catalog.revision) {
                (dataset.catalog, dataset.state) = (Some(catalog.clone()), HeldState::Complete);
            }
            let encodings = BTreeSet::from([catalog.layout.encoding]);
            dataset.members.insert(lost.member, MemberData { files, bad: false, encodings });
            self.counts.mended += u64::from(self.ready);
            let entries = Vec::new();
            output = JobOutput::Part(Box::new(MemberPart { member: lost.member, entries, taken: 0 }));
        }
        Ok(output)
    }
}

/// What was fetched of a member is it from its own share on. True while that has not begun.
fn is_to_come(dataset: &mut Dataset, member: Member, here: bool) -> bool {
    if here && let Some(data) = dataset.fetched.remove(&member) {
        dataset.members.insert(member, data);
    }
    dataset.fetched.contains_key(&member)
}

/// A share has read bad bytes, its own ones where a position is given.
fn not_as_sealed(own: Option<u32>) -> JobResult {
    let bad = own.into_iter().collect();
    Err(JobFailure { bad, ..JobFailure::passing("its bytes are bad".to_owned()) })
}

fn passing(reason: &str) -> JobResult {
    Err(JobFailure::passing(reason))
}
