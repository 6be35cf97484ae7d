//! The complete datasets that the lead knows of in its epoch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use scrfs::control::Settings;
use scrfs::dataset::{Catalog, Scheme};
use scrfs::ids::{DatasetId, Epoch, Member};

use super::policy::Cached;

/// A dataset of which every node has recorded COMPLETE.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) catalog: Arc<Catalog>,
    /// It is on the PFS.
    pub(super) flushed: bool,
    /// Its copy on the PFS was found bad: what else is good of it is read, nothing is counted on.
    pub(super) bad_there: bool,
    /// Times that it was published in this epoch: each makes another copy on the PFS.
    pub(super) published: u32,
    /// A newer generation has, or had, its place: no node lists it any more.
    pub(super) replaced: bool,
    /// Members that no node has; the others can give them back.
    pub(super) absent: BTreeSet<Member>,
    /// The sets that these are of, by their places in the layout: each step of the lead looks at
    /// them, and there may be thousands of others.
    lacking_sets: Vec<usize>,
}

impl Known {
    /// The PFS may give files of it.
    pub(super) fn in_prefix(&self) -> bool {
        self.flushed || self.bad_there
    }

    /// The absent members, set by set; with each, whether the others of its set give it back.
    pub(super) fn given_back(&self) -> impl Iterator<Item = (Member, bool)> {
        let layout = &self.catalog.layout;
        let sets = self.lacking_sets.iter().filter_map(|at| layout.sets.get(*at));
        sets.flat_map(move |set| {
            let lost: Vec<usize> = (0..set.len()).filter(|at| self.absent.contains(&set[*at])).collect();
            let together = (layout.scheme() != Scheme::Partner).then(|| layout.survives(set, &lost));
            let survives = move |at| layout.survives(set, &self.rebuilt_with(set, at));
            lost.into_iter().map(move |at| (set[at], together.unwrap_or_else(|| survives(at))))
        })
    }

    /// The positions in a set that are rebuilt with the one at `at`, itself and absent ones,
    /// ascending. With PARTNER: the absent members in an unbroken row to its left and right. Other
    /// absent members are left out: nothing is needed of them, and their rebuild may read bytes
    /// that are bad.
    pub(super) fn rebuilt_with(&self, set: &[Member], at: usize) -> Vec<usize> {
        let count = set.len();
        let is_lost = |other: &usize| *other == at || self.absent.contains(&set[*other]);
        if self.catalog.layout.scheme() != Scheme::Partner {
            return (0..count).filter(is_lost).collect();
        }
        let to_the_right = (0..count).map(|by| (at + by) % count).take_while(is_lost);
        let to_the_left = (0..count).map(|by| (at + count - by) % count).take_while(is_lost);
        let all: BTreeSet<usize> = to_the_right.chain(to_the_left).collect();
        all.into_iter().collect()
    }

    /// No node has these.
    fn lacks(&mut self, absent: BTreeSet<Member>) {
        let sets = self.catalog.layout.sets.iter().enumerate();
        let lacking = sets.filter(|(_, set)| set.iter().any(|member| absent.contains(member)));
        self.lacking_sets = lacking.map(|(at, _)| at).collect();
        self.absent = absent;
    }

    /// These are on their nodes; false if none of them was absent.
    fn restored(&mut self, members: &[Member]) -> bool {
        let before = self.absent.len();
        self.absent.retain(|member| !members.contains(member));
        let (sets, absent) = (&self.catalog.layout.sets, &self.absent);
        let lacks = |at: &usize| sets.get(*at).is_some_and(|set| set.iter().any(|of| absent.contains(of)));
        self.lacking_sets.retain(lacks);
        self.absent.len() < before
    }

    /// As the rules of the caches see it.
    pub(super) fn cached(&self, settings: &Settings) -> Cached<'_> {
        let flushed = self.flushed && settings.fetch;
        Cached { id: self.catalog.id, layout: &self.catalog.layout, whole: self.absent.is_empty(), flushed }
    }
}

/// The known datasets.
#[derive(Debug, Default)]
pub(super) struct Datasets {
    listed: BTreeMap<DatasetId, Known>,
    /// Listed, but of some file no source has the right bytes: what can be read of them is read,
    /// nothing else is done with them, and nothing is counted on.
    failed: BTreeMap<DatasetId, Known>,
    /// Still in caches, but not listed: a restart could not or would not present them.
    aside: BTreeSet<DatasetId>,
    /// The highest id that is known to be on the PFS; 0 = none.
    highest_flushed: u64,
    /// The newest that is known to be there.
    newest_flushed: Option<(Epoch, DatasetId)>,
}

impl Datasets {
    pub(super) fn insert(&mut self, catalog: Arc<Catalog>, flushed: bool) {
        if flushed {
            self.on_pfs(age(&catalog));
        }
        self.aside.remove(&catalog.id);
        self.failed.remove(&catalog.id);
        let mut replaced = false;
        let others = self.listed.values_mut().chain(self.failed.values_mut());
        for known in others.filter(|known| known.catalog.name == catalog.name) {
            replaced |= age(&known.catalog) > age(&catalog);
            known.replaced |= age(&known.catalog) < age(&catalog);
        }
        self.listed.insert(
            catalog.id,
            Known {
                catalog,
                flushed,
                bad_there: false,
                published: 0,
                replaced,
                absent: BTreeSet::new(),
                lacking_sets: Vec::new(),
            },
        );
    }

    /// No node has these members of it.
    pub(super) fn lacks(&mut self, id: DatasetId, members: BTreeSet<Member>) {
        if let Some(known) = self.listed.get_mut(&id) {
            known.lacks(members);
        }
    }

    /// Those with absent members, in no order; without those that have failed.
    pub(super) fn lacking(&self) -> impl Iterator<Item = &Known> {
        self.listed.values().filter(|known| !known.absent.is_empty())
    }

    /// Members are on their nodes; what is still absent, if some of these were.
    pub(super) fn restored(&mut self, id: DatasetId, members: &[Member]) -> Option<&BTreeSet<Member>> {
        let known = self.listed.get_mut(&id).or_else(|| self.failed.get_mut(&id))?;
        known.restored(members).then_some(&known.absent)
    }

    pub(super) fn put_aside(&mut self, id: DatasetId) {
        if !self.listed.contains_key(&id) {
            self.aside.insert(id);
        }
    }

    /// A newer dataset is complete: what is put aside, and what has failed and is older, can go.
    /// Not what is `busy`.
    pub(super) fn take_left_over(
        &mut self,
        busy: impl Fn(&Known) -> bool,
    ) -> BTreeMap<DatasetId, Option<Known>> {
        let newest = self.newest_first().first().map(|known| age(&known.catalog));
        let old = |known: &Known| Some(age(&known.catalog)) < newest && !busy(known);
        let failed = self.failed.extract_if(.., |_, known| old(known)).map(|(id, known)| (id, Some(known)));
        failed.chain(std::mem::take(&mut self.aside).into_iter().map(|id| (id, None))).collect()
    }

    /// No source has the right bytes of one of its files; false when that was known, or there is no
    /// such dataset.
    pub(super) fn fail(&mut self, id: DatasetId) -> bool {
        let known = self.listed.remove(&id);
        let found = known.is_some();
        self.failed.extend(known.map(|known| (id, known)));
        found
    }

    /// All that are listed, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Catalog> {
        self.listed.values().chain(self.failed.values()).map(|known| &*known.catalog)
    }

    /// Also one that has failed.
    pub(super) fn any(&self, id: DatasetId) -> Option<&Known> {
        self.listed.get(&id).or_else(|| self.failed.get(&id))
    }

    pub(super) fn get(&self, id: DatasetId) -> Option<&Known> {
        self.listed.get(&id)
    }

    pub(super) fn remove(&mut self, id: DatasetId) -> Option<Known> {
        self.aside.remove(&id);
        self.listed.remove(&id).or_else(|| self.failed.remove(&id))
    }

    /// The one that nodes list under that name, also one that has failed: the base of its next
    /// generation.
    pub(super) fn named(&self, name: &[u8]) -> Option<DatasetId> {
        let listed = |id: &DatasetId| self.any(*id).is_some_and(|known| !known.replaced);
        self.all_named(name).into_iter().filter(listed).max()
    }

    pub(super) fn has_failed(&self, id: DatasetId) -> bool {
        self.failed.contains_key(&id)
    }

    /// Ids of all of that name.
    pub(super) fn all_named(&self, name: &[u8]) -> Vec<DatasetId> {
        self.listed
            .values()
            .chain(self.failed.values())
            .filter(|known| known.catalog.name == name)
            .map(|known| known.catalog.id)
            .collect()
    }

    pub(super) fn flushed(&mut self, id: DatasetId) {
        self.highest_flushed = self.highest_flushed.max(id.0);
        let listed = self.listed.get_mut(&id);
        if let Some(known) = listed.or_else(|| self.failed.get_mut(&id)) {
            (known.flushed, known.bad_there) = (true, false);
            known.published += 1;
            let age = age(&known.catalog);
            self.on_pfs(age);
        }
    }

    /// Its copy on the PFS is bad; false when that was known, or there is no such dataset. What has
    /// members that only the PFS gives back cannot be flushed again: it goes on from what is there.
    pub(super) fn bad_there(&mut self, id: DatasetId) -> bool {
        let listed = self.listed.get_mut(&id);
        let Some(known) = listed.or_else(|| self.failed.get_mut(&id)) else { return false };
        if known.given_back().all(|(_, by_its_set)| by_its_set) {
            known.flushed = false;
        }
        !std::mem::replace(&mut known.bad_there, true)
    }

    /// The PFS has a dataset of this age.
    pub(super) fn on_pfs(&mut self, age: (Epoch, DatasetId)) {
        self.highest_flushed = self.highest_flushed.max(age.1.0);
        self.newest_flushed = self.newest_flushed.max(Some(age));
    }

    /// The highest id on the PFS of which the flush of `catalog` takes account; 0 = none. Ids go on
    /// lower where nothing that is found has a higher one: a dataset of such a later branch is not
    /// behind those of a former one.
    pub(super) fn highest_flushed(&self, catalog: &Catalog) -> u64 {
        let is_of_later_branch =
            catalog.id.0 <= self.highest_flushed && Some(age(catalog)) > self.newest_flushed;
        if is_of_later_branch { 0 } else { self.highest_flushed }
    }

    /// It is older than `catalog`, though its id is higher: ids went on below it while no node had
    /// it.
    pub(super) fn is_of_former_branch(&self, id: DatasetId, catalog: &Catalog) -> bool {
        id > catalog.id && self.any(id).is_some_and(|other| age(&other.catalog) < age(catalog))
    }

    /// Those in whose place a newer one of the same name is, or was until it left: they go,
    /// whatever there is room for. Not one whose successor has failed since: a restart presents it.
    pub(super) fn superseded(&self) -> Vec<DatasetId> {
        let newer = |known: &Known, other: &Known| {
            other.catalog.name == known.catalog.name && age(&other.catalog) > age(&known.catalog)
        };
        let any =
            |all: &BTreeMap<DatasetId, Known>, known: &Known| all.values().any(|other| newer(known, other));
        let old = |known: &&Known| known.replaced && (any(&self.listed, known) || !any(&self.failed, known));
        self.listed.values().chain(self.failed.values()).filter(old).map(|known| known.catalog.id).collect()
    }

    /// Newest first; without those that have failed.
    pub(super) fn newest_first(&self) -> Vec<&Known> {
        let mut all: Vec<&Known> = self.listed.values().collect();
        all.sort_by_key(|known| std::cmp::Reverse(age(&known.catalog)));
        all
    }
}

/// Newest = highest: the epoch counts before the id.
pub(super) fn age(catalog: &Catalog) -> (Epoch, DatasetId) {
    (catalog.epoch, catalog.id)
}

#[cfg(test)]
mod tests {
    use scrfs::dataset::{Layout, MemberPlace, Protection};

    use super::super::flush::tests::catalog;
    use super::*;

    fn generation(datasets: &mut Datasets, id: u64) {
        datasets.insert(Arc::new(Catalog { name: b"ck".to_vec(), ..catalog(id) }), false);
    }

    /// A ring of five: what its neighbours give back is not held up by others that nobody can.
    #[test]
    fn with_partner_absent_neighbours_are_rebuilt_together() {
        let place = || MemberPlace { host: "a".to_owned(), files: 1, bytes: 1, taken: None };
        let set: Vec<Member> = (0..5).map(Member).collect();
        let layout = Layout {
            encoding: 0,
            protection: Protection::by(Scheme::Partner),
            members: (0..5).map(|_| place()).collect(),
            sets: vec![set.clone()],
        };
        let absent = [1, 3, 4].map(Member).into();
        let catalog = Arc::new(Catalog { layout, ..catalog(1) });
        let mut datasets = Datasets::default();
        datasets.insert(catalog, false);
        datasets.lacks(DatasetId(1), absent);
        let known = datasets.get(DatasetId(1)).unwrap();
        let given_back = [(1, true), (3, false), (4, false)].map(|(member, is)| (Member(member), is));
        assert_eq!(known.given_back().collect::<Vec<_>>(), given_back);
        let together = [1, 3, 4, 0].map(|at| known.rebuilt_with(&set, at));
        assert_eq!(together, [vec![1], vec![3, 4], vec![3, 4], vec![0, 1, 3, 4]]);
    }

    #[test]
    fn only_the_sets_of_absent_members_are_looked_at() {
        let place = || MemberPlace { host: "a".to_owned(), files: 1, bytes: 1, taken: None };
        let layout = Layout {
            encoding: 0,
            protection: Protection::by(Scheme::Xor),
            members: (0..6).map(|_| place()).collect(),
            sets: [[0, 1], [2, 3], [4, 5]].map(|set| set.map(Member).into()).into(),
        };
        let mut datasets = Datasets::default();
        let id = DatasetId(1);
        datasets.insert(Arc::new(Catalog { layout, ..catalog(1) }), false);
        datasets.lacks(id, [0, 4, 5].map(Member).into());
        let looked_at = |datasets: &Datasets| {
            let known = datasets.get(id).unwrap();
            let given_back: Vec<(u32, bool)> = known.given_back().map(|(of, is)| (of.0, is)).collect();
            (known.lacking_sets.clone(), given_back)
        };
        assert_eq!(looked_at(&datasets), (vec![0, 2], vec![(0, true), (4, false), (5, false)]));
        assert!(datasets.restored(id, &[Member(2)]).is_none());
        assert!(datasets.restored(id, &[Member(0), Member(4)]).is_some());
        assert_eq!(looked_at(&datasets), (vec![2], vec![(5, true)]));
        assert!(datasets.restored(id, &[Member(5)]).is_some_and(BTreeSet::is_empty));
        assert_eq!(looked_at(&datasets), (vec![], vec![]));
    }

    /// All nodes were lost, and nothing was on the PFS: ids began anew, before a node of the former
    /// branch came back and flushed.
    #[test]
    fn a_dataset_of_a_later_branch_is_not_behind_a_higher_id_of_a_former_one() {
        let mut datasets = Datasets::default();
        let of = |epoch, id| Catalog { epoch: Epoch(epoch), ..catalog(id) };
        datasets.on_pfs((Epoch(1), DatasetId(7)));
        let highest =
            [of(1, 5), of(1, 8), of(3, 9), of(3, 2)].map(|catalog| datasets.highest_flushed(&catalog));
        assert_eq!(highest, [7, 7, 7, 0]);
        datasets.on_pfs((Epoch(3), DatasetId(2)));
        assert_eq!(datasets.highest_flushed(&of(3, 2)), 7);
    }

    #[test]
    fn a_former_generation_goes_also_when_its_successor_has_left() {
        let mut datasets = Datasets::default();
        let named = |datasets: &Datasets| datasets.named(b"ck").map(|id| id.0);
        for id in [1, 2] {
            generation(&mut datasets, id);
        }
        assert_eq!((named(&datasets), datasets.superseded()), (Some(2), vec![DatasetId(1)]));
        datasets.remove(DatasetId(2));
        assert_eq!((named(&datasets), datasets.superseded()), (None, vec![DatasetId(1)]));
        generation(&mut datasets, 3);
        assert_eq!((named(&datasets), datasets.superseded()), (Some(3), vec![DatasetId(1)]));
        // The former one is what a restart presents then.
        datasets.fail(DatasetId(3));
        assert_eq!((named(&datasets), datasets.superseded()), (Some(3), vec![]));
        generation(&mut datasets, 4);
        assert_eq!(datasets.superseded(), [DatasetId(1), DatasetId(3)]);
        // After a lead's death the newer one may be known first.
        let mut datasets = Datasets::default();
        for id in [2, 1] {
            generation(&mut datasets, id);
        }
        assert_eq!((named(&datasets), datasets.superseded()), (Some(2), vec![DatasetId(1)]));
    }
}
