//! Versions of pointer files that the lead knows of: which of them a dataset is presented with, and
//! which must be kept.
//!
//! A version belongs to the newest dataset that had begun when it was made. While that one is not
//! sealed, the version is later than all that are. What was made before a restart and belongs to
//! anything later than what that restart presented is of a branch that was given up: it counts only
//! if a dataset of that branch comes back.

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::loose::{Age, Begun, LooseBase, LooseOwner, LooseSet, LooseStamp, LooseVersion};

/// Datasets that are not sealed and whose versions of one name are kept: programs may begin
/// directories without end that they never seal.
const OPEN_MAX: usize = 8;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Versions {
    by_stamp: BTreeMap<LooseStamp, LooseVersion>,
    base: Option<LooseBase>,
    /// Of those that were bound to a dataset: whose they were before.
    bound: BTreeMap<LooseStamp, (Age, LooseOwner)>,
    /// Of these some node could not be given the bytes: what they overrule stays.
    lacking: BTreeSet<LooseStamp>,
}

impl Versions {
    /// What a daemon says it presented last; the newest restart's word counts.
    pub(super) fn based(&mut self, base: Option<LooseBase>) {
        self.base = self.base.max(base);
    }

    /// A version, or what another node knows of it: bytes are kept where they come, and a sealed
    /// owner is the later word.
    pub(super) fn insert(&mut self, version: LooseVersion) {
        match self.by_stamp.get_mut(&version.stamp) {
            None => drop(self.by_stamp.insert(version.stamp, version)),
            Some(known) => {
                known.owner = match (&known.owner, version.owner) {
                    (LooseOwner::Sealed(one), LooseOwner::Sealed(other)) => {
                        LooseOwner::Sealed((*one).min(other))
                    }
                    (LooseOwner::Begun { .. }, owner @ LooseOwner::Sealed(_)) => owner,
                    (owner, _) => owner.clone(),
                };
                if known.entry.bytes.is_empty() {
                    known.entry.bytes = version.entry.bytes;
                }
            }
        }
    }

    /// Who has the versions that `had` says has all that a dataset of `age` is presented with.
    pub(super) fn is_whole_with(&self, age: Age, had: impl Fn(LooseStamp) -> bool) -> bool {
        let of = |v: &&LooseVersion| matches!(v.owner, LooseOwner::Sealed(owner) if owner <= age);
        self.iter().filter(of).all(|version| had(version.stamp))
    }

    pub(super) fn get(&self, stamp: LooseStamp) -> Option<&LooseVersion> {
        self.by_stamp.get(&stamp)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LooseVersion> {
        self.by_stamp.values()
    }

    pub(super) fn remove(&mut self, stamp: LooseStamp) {
        self.by_stamp.remove(&stamp);
    }

    /// The newest of all.
    pub(super) fn last(&self) -> Option<LooseStamp> {
        self.by_stamp.keys().next_back().copied()
    }

    /// Some node could not store them.
    pub(super) fn lack(&mut self, stamps: impl IntoIterator<Item = LooseStamp>) {
        self.lacking.extend(stamps);
    }

    /// All but these are on all nodes.
    pub(super) fn lack_only(&mut self, stamps: BTreeSet<LooseStamp>) {
        self.lacking = stamps;
    }

    /// Of a branch that a restart gave up.
    pub(super) fn is_lost(&self, version: &LooseVersion) -> bool {
        is_lost(self.base, version)
    }

    /// A dataset of a branch that a restart gave up.
    pub(super) fn is_lost_dataset(&self, age: Age) -> bool {
        self.base.is_some_and(|base| base.gave_up_dataset(age))
    }

    /// Forgets what the restart of `base` gave up.
    pub(super) fn drop_lost(&mut self, base: LooseBase) {
        self.by_stamp.retain(|_, version| !is_lost(Some(base), version));
    }

    /// Forgets what belongs to datasets up to `age` and is not among `of_branch`.
    pub(super) fn drop_others(&mut self, age: Age, of_branch: &BTreeSet<LooseStamp>) {
        let goes_before =
            |version: &LooseVersion| matches!(version.owner, LooseOwner::Sealed(owner) if owner <= age);
        self.by_stamp.retain(|stamp, version| !goes_before(version) || of_branch.contains(stamp));
    }

    /// May be presented with `age`.
    fn belongs(&self, version: &LooseVersion, age: Age) -> bool {
        let LooseOwner::Sealed(owner) = &version.owner else { return false };
        let old_branch = self.base.filter(|base| base.gave_up_dataset(age));
        let branch = match old_branch {
            Some(base) => version.stamp.epoch < base.epoch,
            None => !self.is_lost(version),
        };
        *owner <= age && branch
    }

    /// What is presented with the dataset of `age`: of each name the newest version that is not
    /// later, also one that says that the name is gone.
    pub(super) fn shown(&self, age: Age) -> Vec<&LooseVersion> {
        let mut newest: BTreeMap<&[u8], &LooseVersion> = BTreeMap::new();
        for version in self.by_stamp.values().filter(|version| self.belongs(version, age)) {
            newest.insert(&version.entry.name, version);
        }
        newest.into_values().collect()
    }

    /// Something was made since that restart: a version, or one of the `sealed` datasets.
    fn is_made_since(&self, base: LooseBase, mut sealed: impl Iterator<Item = Age>) -> bool {
        self.by_stamp.keys().any(|stamp| stamp.epoch >= base.epoch)
            || sealed.any(|age| age.epoch >= base.epoch)
    }

    /// A restart presents a dataset: what it is presented with is what stands from now on.
    /// `sealed`: the datasets that are known.
    pub(super) fn present(&mut self, base: LooseBase, sealed: impl Iterator<Item = Age>) {
        let shown: BTreeMap<Vec<u8>, LooseStamp> =
            self.shown(base.shown).into_iter().map(|v| (v.entry.name.clone(), v.stamp)).collect();
        let comes_back = self.base.is_some_and(|old| base.shown.epoch < old.epoch && base.shown > old.shown);
        // Where nothing was made since the last restart, what that one gave up and what this one
        // gives up are one branch, which may come back as well.
        let is_same = self.base.is_some_and(|old| !self.is_made_since(old, sealed.chain([base.shown])));
        let lost = self.iter().filter(|version| self.is_lost(version) && !comes_back && !is_same);
        let lost: BTreeSet<LooseStamp> = lost.map(|version| version.stamp).collect();
        self.base = Some(base);
        let newer = |v: &LooseVersion| shown.get(&v.entry.name).is_none_or(|shown| v.stamp > *shown);
        let overruled: Vec<LooseStamp> = self
            .iter()
            // What was given up before is not of this branch, however old what it belongs to.
            .filter(|v| (self.belongs(v, base.shown) && newer(v)) || lost.contains(&v.stamp))
            .map(|version| version.stamp)
            .collect();
        for stamp in overruled {
            self.by_stamp.remove(&stamp);
        }
    }

    /// Adds what the prefix has kept of a dataset: older versions that it does not name were
    /// overruled by then.
    pub(super) fn add_set(&mut self, set: LooseSet) {
        let named: BTreeSet<LooseStamp> = set.versions.iter().map(|version| version.stamp).collect();
        let overruled: Vec<LooseStamp> = self
            .iter()
            .filter(|v| self.belongs(v, set.age) && v.stamp <= set.as_of && !named.contains(&v.stamp))
            .map(|version| version.stamp)
            .collect();
        for stamp in overruled {
            self.by_stamp.remove(&stamp);
        }
        for version in set.versions {
            self.insert(version);
        }
    }

    /// What the prefix is to keep of a dataset.
    pub(super) fn set_of(&self, age: Age) -> LooseSet {
        let versions = self.shown(age).into_iter().filter(|version| !version.entry.is_gone()).cloned();
        LooseSet { age, as_of: self.last().unwrap_or_default(), versions: versions.collect() }
    }

    /// Names that are something now, or whose removal some node could not store.
    pub(super) fn names(&self) -> BTreeSet<&[u8]> {
        let mut names = BTreeSet::new();
        for version in self.by_stamp.values().filter(|version| !self.is_lost(version)) {
            let name = version.entry.name.as_slice();
            if !version.entry.is_gone() {
                names.insert(name);
            } else if !self.lacking.contains(&version.stamp) {
                names.remove(name);
            }
        }
        names
    }

    /// The dataset `name`, which began at `begun_us`, is sealed as `age`: versions that belong to
    /// it, or to what began before it and is not sealed, belong to that age from now on. Those that
    /// were made after that seal stay where they are.
    pub(super) fn bind(&mut self, name: &[u8], begun_us: u64, age: Age) -> Vec<(LooseStamp, LooseOwner)> {
        let former: BTreeMap<LooseStamp, LooseOwner> =
            self.by_stamp.iter().map(|(stamp, version)| (*stamp, version.owner.clone())).collect();
        let bound = self.rebind(|owner| match owner {
            LooseOwner::Begun { name: of, since_us, after } => {
                let goes_before = *since_us <= begun_us && *after < age;
                (of == name || goes_before).then_some(LooseOwner::Sealed(age))
            }
            LooseOwner::Sealed(_) => None,
        });
        for (stamp, _) in &bound {
            self.bound.extend(former.get(stamp).map(|former| (*stamp, (age, former.clone()))));
        }
        bound
    }

    /// What has begun has these names now. A directory may have got its name when the coordinators
    /// ended, before nodes heard whose its versions are: the time tells which one it is.
    pub(super) fn follow(&mut self, told: &[Begun]) -> Vec<(LooseStamp, LooseOwner)> {
        let mut names: BTreeMap<u64, BTreeSet<&[u8]>> = BTreeMap::new();
        for begun in told {
            names.entry(begun.since_us).or_default().insert(&begun.name);
        }
        self.rebind(|owner| {
            let LooseOwner::Begun { name, since_us, after } = owner else { return None };
            let names = names.get(since_us).filter(|names| names.len() == 1)?;
            let now = names.first().filter(|now| **now != name.as_slice())?;
            Some(LooseOwner::Begun { name: now.to_vec(), since_us: *since_us, after: *after })
        })
    }

    /// A node knows whose these were before they were bound.
    pub(super) fn was(&mut self, bound: Vec<(LooseStamp, Age, LooseOwner)>) {
        self.bound.extend(bound.into_iter().map(|(stamp, age, former)| (stamp, (age, former))));
    }

    /// A dataset that was never sealed is gone: as if it had never begun. `others` have begun and
    /// are not sealed; `sealed` tells when those did that are.
    pub(super) fn unbind(
        &mut self,
        name: &[u8],
        others: &BTreeMap<Vec<u8>, u64>,
        sealed: &BTreeMap<Age, u64>,
    ) -> Vec<(LooseStamp, LooseOwner)> {
        let base = self.base;
        let lost = |age: Age| base.is_some_and(|base| base.gave_up_dataset(age));
        self.rebind(|owner| {
            let LooseOwner::Begun { name: of, since_us, after } = owner else { return None };
            if of != name {
                return None;
            }
            let first = sealed.get(after).copied().unwrap_or_default();
            let before = |since: u64| since < *since_us && since >= first;
            let open = others.iter().filter(|(_, since)| before(**since)).map(|(name, since)| {
                let (name, since_us, after) = (name.clone(), *since, *after);
                (since_us, LooseOwner::Begun { name, since_us, after })
            });
            // What was sealed since then had begun before, and was not given up.
            let closed = sealed.iter().filter(|(age, since)| *age > after && !lost(**age) && before(**since));
            let closed = closed.map(|(age, since)| (*since, LooseOwner::Sealed(*age)));
            let newest = open.chain(closed).max_by_key(|(since, _)| *since);
            Some(newest.map_or(LooseOwner::Sealed(*after), |(_, owner)| owner))
        })
    }

    /// The seal of `age` has come to nothing: what was bound to it belongs to the unsealed dataset
    /// `name` again.
    pub(super) fn unseal(&mut self, age: Age, owner: &LooseOwner) {
        for version in self.by_stamp.values_mut().filter(|v| v.owner == LooseOwner::Sealed(age)) {
            let former = self.bound.remove(&version.stamp).filter(|(to, _)| *to == age);
            version.owner = former.map_or_else(|| owner.clone(), |(_, former)| former);
        }
    }

    /// What is presented with `age` is not known: nothing is.
    pub(super) fn give_up(&mut self, age: Age) {
        let belonging: Vec<LooseStamp> =
            self.iter().filter(|version| self.belongs(version, age)).map(|version| version.stamp).collect();
        for stamp in belonging {
            self.by_stamp.remove(&stamp);
        }
    }

    /// Its directory has another name.
    pub(super) fn renamed(
        &mut self,
        from: &[u8],
        to: &[u8],
        exchange: bool,
    ) -> Vec<(LooseStamp, LooseOwner)> {
        self.rebind(|owner| match owner {
            LooseOwner::Begun { name, since_us, after } => {
                let new = match name.as_slice() {
                    name if name == from => to,
                    name if exchange && name == to => from,
                    _ => return None,
                };
                Some(LooseOwner::Begun { name: new.to_vec(), since_us: *since_us, after: *after })
            }
            LooseOwner::Sealed(_) => None,
        })
    }

    fn rebind(
        &mut self,
        change: impl Fn(&LooseOwner) -> Option<LooseOwner>,
    ) -> Vec<(LooseStamp, LooseOwner)> {
        let mut changed = Vec::new();
        let base = self.base;
        for version in self.by_stamp.values_mut() {
            let lost = base.is_some_and(|base| version.stamp.epoch < base.epoch);
            if let Some(owner) = change(&version.owner).filter(|_| !lost) {
                version.owner = owner.clone();
                changed.push((version.stamp, owner));
            }
        }
        changed
    }

    /// Forgets what nobody can ask for any more: what is kept is, of each name, the newest version,
    /// that of each of `ages`, and those of datasets that are not sealed yet; while `lost`, a
    /// branch that was given up too.
    pub(super) fn prune(&mut self, ages: &[Age], lost: bool) -> Vec<LooseStamp> {
        let mut keep: BTreeSet<LooseStamp> = BTreeSet::new();
        if lost {
            let sealed = |v: &&LooseVersion| matches!(v.owner, LooseOwner::Sealed(_));
            keep.extend(self.iter().filter(|v| self.is_lost(v)).filter(sealed).map(|v| v.stamp));
        }
        let mut by_name: BTreeMap<&[u8], Vec<&LooseVersion>> = BTreeMap::new();
        for version in self.by_stamp.values().filter(|version| !self.is_lost(version)) {
            by_name.entry(&version.entry.name).or_default().push(version);
        }
        for versions in by_name.values() {
            let mut kept = self.kept(versions, ages);
            let (lacking, whole): (Vec<_>, Vec<_>) =
                versions.iter().partition(|version| self.lacking.contains(&version.stamp));
            if !lacking.is_empty() {
                kept.extend(self.kept(&whole, ages));
            }
            // A name that was nothing before is nothing without being told.
            let untold = |v: &LooseVersion| self.lacking.contains(&v.stamp);
            let nothing = versions.iter().filter(|v| kept.contains(&v.stamp));
            let nothing = nothing.take_while(|v| v.entry.is_gone() && !untold(v));
            let nothing: Vec<LooseStamp> = nothing.map(|version| version.stamp).collect();
            keep.extend(kept.into_iter().filter(|stamp| !nothing.contains(stamp)));
        }
        let gone: Vec<LooseStamp> =
            self.by_stamp.keys().filter(|stamp| !keep.contains(stamp)).copied().collect();
        for stamp in &gone {
            self.by_stamp.remove(stamp);
            self.lacking.remove(stamp);
            self.bound.remove(stamp);
        }
        gone
    }

    /// What must be kept of one name, oldest first.
    fn kept(&self, versions: &[&LooseVersion], ages: &[Age]) -> BTreeSet<LooseStamp> {
        let mut kept: BTreeSet<LooseStamp> = versions.last().map(|v| v.stamp).into_iter().collect();
        for age in ages {
            let of = versions.iter().rev().find(|version| self.belongs(version, *age));
            kept.extend(of.map(|version| version.stamp));
        }
        // What is sealed next may have begun before those that are not.
        let sealed = |v: &&&LooseVersion| matches!(v.owner, LooseOwner::Sealed(_));
        kept.extend(versions.iter().rev().find(sealed).map(|version| version.stamp));
        let mut owners: BTreeSet<&[u8]> = BTreeSet::new();
        for version in versions.iter().rev() {
            if let LooseOwner::Begun { name, .. } = &version.owner
                && owners.len() < OPEN_MAX
                && owners.insert(name)
            {
                kept.insert(version.stamp);
            }
        }
        kept
    }
}

/// Of a branch that the restart of `base` gave up.
pub(super) fn is_lost(base: Option<LooseBase>, version: &LooseVersion) -> bool {
    base.is_some_and(|base| base.gave_up(version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use scrfs::control::loose::{LooseEntry, LooseKind};
    use scrfs::ids::{DatasetId, Epoch, RequestId};

    fn age(id: u64) -> Age {
        if id == 0 { Age::default() } else { Age { epoch: Epoch(1), id: DatasetId(id) } }
    }

    fn stamp(epoch: u64, serial: u64) -> LooseStamp {
        LooseStamp { epoch: Epoch(epoch), serial }
    }

    fn begun(name: &str, since_us: u64) -> LooseOwner {
        LooseOwner::Begun { name: name.into(), since_us, after: age(1) }
    }

    fn add(versions: &mut Versions, at: LooseStamp, name: &str, owner: LooseOwner, says: Option<&str>) {
        let kind = says.map_or(LooseKind::Gone, |says| LooseKind::Symlink(says.into()));
        let entry = LooseEntry { kind, ..LooseEntry::gone(name.into()) };
        let request = RequestId { origin: 1, serial: at.serial };
        versions.insert(LooseVersion { stamp: at, request, owner, entry });
    }

    fn says(versions: &Versions, at: u64) -> Vec<String> {
        let text = |version: &&LooseVersion| match &version.entry.kind {
            LooseKind::Symlink(says) => Some(String::from_utf8(says.clone()).unwrap()),
            _ => None,
        };
        versions.shown(age(at)).iter().filter_map(text).collect()
    }

    #[test]
    fn both_orders_of_pointer_and_marker() {
        let mut versions = Versions::default();
        add(&mut versions, stamp(1, 1), "latest", LooseOwner::Sealed(age(1)), Some("ck.1"));
        // Before its dataset's marker.
        add(&mut versions, stamp(1, 2), "latest", begun("ck.2", 50), Some("ck.2"));
        assert_eq!((says(&versions, 1), says(&versions, 2)), (vec!["ck.1".into()], vec!["ck.1".into()]));
        assert_eq!(versions.bind(b"ck.2", 50, age(2)).len(), 1);
        assert_eq!((says(&versions, 1), says(&versions, 2)), (vec!["ck.1".into()], vec!["ck.2".into()]));
        assert!(says(&versions, 0).is_empty());
    }

    #[test]
    fn versions_follow_a_directory_whose_new_name_nobody_was_told() {
        let mut versions = Versions::default();
        add(&mut versions, stamp(1, 1), "latest", begun("f", 10), Some("b"));
        let told = |name: &str, since_us| Begun { name: name.into(), base: None, since_us };
        assert_eq!(versions.follow(&[told("b", 10), told("b", 20)]), [(stamp(1, 1), begun("b", 10))]);
        assert!(versions.follow(&[told("b", 10), told("f", 10)]).is_empty(), "it may be either");
        // Another one has the former name, and is written after it.
        add(&mut versions, stamp(2, 1), "latest", begun("f", 50), Some("f"));
        assert!(versions.prune(&[age(1)], false).is_empty());
        versions.bind(b"b", 10, age(2));
        assert_eq!(says(&versions, 2), ["b"]);
    }

    /// A restart has given dataset 2 up, which nodes may have still.
    #[test]
    fn nothing_comes_to_belong_to_a_dataset_that_was_given_up() {
        let mut versions = Versions::default();
        versions.based(Some(LooseBase { epoch: Epoch(2), shown: age(1) }));
        add(&mut versions, stamp(3, 1), "latest", begun("x", 50), Some("x"));
        let sealed = BTreeMap::from([(age(1), 10), (age(2), 20)]);
        let unbound = versions.unbind(b"x", &BTreeMap::new(), &sealed);
        assert_eq!(unbound, [(stamp(3, 1), LooseOwner::Sealed(age(1)))]);
    }

    #[test]
    fn what_began_before_a_sealed_dataset_is_not_later() {
        let mut versions = Versions::default();
        add(&mut versions, stamp(1, 1), "latest", begun("plot.1", 10), Some("plot.1"));
        add(&mut versions, stamp(1, 2), "latest", begun("ck.2", 30), Some("ck.2"));
        assert_eq!(versions.bind(b"ck.1", 20, age(2)).len(), 1);
        assert_eq!(says(&versions, 2), ["plot.1"]);
        // Removed without having been sealed.
        assert_eq!(
            versions.unbind(b"ck.2", &BTreeMap::new(), &BTreeMap::new()),
            [(stamp(1, 2), LooseOwner::Sealed(age(1)))]
        );
        assert_eq!(says(&versions, 2), ["ck.2"]);
    }

    #[test]
    fn what_was_made_after_a_seal_is_not_bound_to_it_when_another_dataset_goes() {
        let mut versions = Versions::default();
        // Made when dataset 1 had been sealed, which began at 30, after plot.1.
        add(&mut versions, stamp(1, 1), "latest", begun("plot.1", 10), Some("plot.1"));
        assert!(versions.bind(b"", 30, age(1)).is_empty());
        assert!(says(&versions, 1).is_empty());
    }

    #[test]
    fn a_renamed_directory_keeps_its_versions() {
        let mut versions = Versions::default();
        add(&mut versions, stamp(1, 1), "latest", begun("ck.tmp", 10), Some("x"));
        assert_eq!(versions.renamed(b"ck.tmp", b"ck.1", false).len(), 1);
        assert_eq!(versions.bind(b"ck.1", 5, age(1)).len(), 1);
        assert_eq!(says(&versions, 1), ["x"]);
    }

    #[test]
    fn what_is_kept_is_bounded_and_enough() {
        let mut versions = Versions::default();
        for id in 1..6 {
            let at = |serial| stamp(1, 10 * id + serial);
            add(&mut versions, at(0), "latest", LooseOwner::Sealed(age(id)), Some("early"));
            add(&mut versions, at(1), "latest", LooseOwner::Sealed(age(id)), Some(&format!("ck.{id}")));
            add(&mut versions, at(2), "tmp", LooseOwner::Sealed(age(id)), Some("t"));
            add(&mut versions, at(3), "tmp", LooseOwner::Sealed(age(id)), None);
        }
        versions.prune(&[age(4), age(5)], false);
        assert_eq!(versions.iter().count(), 2, "{versions:?}");
        assert_eq!((says(&versions, 4), says(&versions, 5)), (vec!["ck.4".into()], vec!["ck.5".into()]));
        for dir in 0..100 {
            let name = format!("plot.{dir}");
            add(&mut versions, stamp(1, 100 + dir), "latest", begun(&name, 100 + dir), Some(&name));
        }
        versions.prune(&[age(4), age(5)], false);
        assert_eq!(versions.iter().count(), 2 + OPEN_MAX, "{versions:?}");
        assert_eq!(versions.names().len(), 1);
    }

    #[test]
    fn what_a_node_could_not_store_overrules_nothing() {
        let mut versions = Versions::default();
        for (serial, says) in ["one", "two", "three"].into_iter().enumerate() {
            let owner = LooseOwner::Sealed(age(1));
            add(&mut versions, stamp(1, serial as u64), "latest", owner, Some(says));
        }
        versions.lack([stamp(1, 2)]);
        assert_eq!(versions.prune(&[age(1)], false), [stamp(1, 0)]);
        add(&mut versions, stamp(1, 3), "latest", LooseOwner::Sealed(age(1)), None);
        versions.lack([stamp(1, 3)]);
        assert_eq!(versions.names().len(), 1, "it is still to be removed");
        assert_eq!(versions.prune(&[age(1)], false), [stamp(1, 2)], "that it is gone is known");
        add(&mut versions, stamp(1, 4), "latest", LooseOwner::Sealed(age(1)), Some("four"));
        assert_eq!(versions.prune(&[age(1)], false), [stamp(1, 1), stamp(1, 3)]);
    }

    #[test]
    fn a_branch_that_was_given_up_counts_only_when_it_comes_back() {
        let mut versions = Versions::default();
        add(&mut versions, stamp(1, 1), "latest", LooseOwner::Sealed(age(1)), Some("ck.1"));
        add(&mut versions, stamp(1, 2), "latest", LooseOwner::Sealed(age(2)), Some("ck.2"));
        add(&mut versions, stamp(1, 3), "latest", begun("ck.3", 9), Some("ck.3"));
        versions.present(LooseBase { epoch: Epoch(2), shown: age(1) }, [age(1), age(2)].into_iter());
        assert_eq!(says(&versions, 1), ["ck.1"]);
        assert_eq!(says(&versions, 2), ["ck.2"], "it came back");
        assert_eq!(versions.prune(&[age(1)], true), [stamp(1, 3)]);
        let mut later = Versions { base: versions.base, ..Versions::default() };
        versions.iter().for_each(|version| later.insert(version.clone()));
        let other = Age { epoch: Epoch(3), id: DatasetId(4) };
        add(&mut later, stamp(3, 1), "latest", LooseOwner::Sealed(other), Some("ck.4"));
        later.present(LooseBase { epoch: Epoch(4), shown: other }, [other].into_iter());
        assert!(later.get(stamp(1, 2)).is_none(), "it was given up for good");
        add(&mut versions, stamp(2, 1), "other", LooseOwner::Sealed(age(1)), Some("new"));
        let new = Age { epoch: Epoch(2), id: DatasetId(3) };
        assert_eq!(versions.shown(new).len(), 2);
        assert!(versions.shown(new).iter().all(|version| version.stamp != stamp(1, 2)));
        assert_eq!(says(&versions, 2), ["ck.2"]);
        assert_eq!(versions.prune(&[new], false), [stamp(1, 2)]);
    }

    /// Coordinators may be started again and again until the node is there that has what the newest
    /// dataset lacks.
    #[test]
    fn a_branch_that_restarts_give_up_one_after_the_other_may_come_back() {
        let other = Age { epoch: Epoch(2), id: DatasetId(4) };
        for (sealed, stays) in [(vec![age(1)], true), (vec![age(1), other], false)] {
            let mut versions = Versions::default();
            add(&mut versions, stamp(1, 1), "latest", LooseOwner::Sealed(Age::default()), Some("none"));
            add(&mut versions, stamp(1, 2), "latest", LooseOwner::Sealed(age(1)), Some("ck.1"));
            for epoch in [2, 3] {
                let base = LooseBase { epoch: Epoch(epoch), shown: Age::default() };
                versions.present(base, sealed.iter().copied());
            }
            assert_eq!(says(&versions, 1) == ["ck.1"], stays, "{versions:?}");
        }
    }
}
