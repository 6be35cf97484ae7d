//! Pointer files when an epoch begins: the nodes tell what they have, what of it counts is worked
//! out, and every node gets it.

use std::collections::BTreeSet;

use scrfs::control::Command;
use scrfs::control::loose::{Age, Begun, LooseBase, LooseInventory, LooseOwner, LooseStamp, LooseVersion};
use scrfs::ids::{DatasetId, NodeRank};

use super::super::answers::Answers;
use super::super::cluster::Cluster;
use super::super::recover::Chosen;
use super::super::spread::Spread;
use super::super::versions::is_lost;
use super::{Loose, Now, age_of};

/// What the nodes have told, joined.
#[derive(Default)]
struct Joined {
    /// What each has.
    holders: Vec<(NodeRank, Vec<LooseVersion>)>,
    /// Datasets that some node takes for known, and of which others have forgotten versions.
    gaps: BTreeSet<Age>,
}

impl Loose {
    pub(in crate::lead) fn begin_epoch(cluster: &mut Cluster) -> Self {
        cluster.send_all(Command::LooseInventory);
        Self { telling: Some(Answers::of(cluster.nodes())), ..Self::default() }
    }

    /// What a node has; false when it has told before.
    pub(in crate::lead) fn inventory(&mut self, node: NodeRank, inventory: LooseInventory) -> bool {
        self.telling.as_mut().is_some_and(|telling| telling.put(node, inventory))
    }

    /// All nodes have told.
    pub(in crate::lead) fn told(&self) -> bool {
        self.telling.as_ref().is_none_or(Answers::all)
    }

    /// What they have told is taken in.
    pub(in crate::lead) fn joined(&self) -> bool {
        self.telling.is_none()
    }

    /// A node knows what is presented with the dataset of `age`.
    pub(in crate::lead) fn knows(&self, age: Age) -> bool {
        let told = self.telling.iter().flat_map(Answers::iter);
        told.into_iter().any(|(_, inventory)| inventory.began.iter().any(|(known, _)| *known == age))
    }

    /// Joins what the nodes have told. `shown`: what is about to be presented.
    fn join(&mut self, shown: Age) -> Joined {
        let Some(telling) = self.telling.take() else { return Joined::default() };
        let told: Vec<(NodeRank, LooseInventory)> = telling.into_answers().collect();
        for (_, inventory) in &told {
            self.versions.was(inventory.bound.clone());
        }
        let base = told.iter().map(|(_, inventory)| inventory.base).max().flatten();
        self.versions.based(base);
        // A node that took no part in the last restart may have versions that were forgotten since.
        // The nodes that took part know all versions that count of the branch that goes on.
        let (current, former): (Vec<_>, Vec<_>) =
            told.into_iter().partition(|(_, inventory)| inventory.base == base);
        for (_, inventory) in &current {
            self.sealed.extend(inventory.began.iter().copied());
            inventory.versions.iter().for_each(|version| self.versions.insert(version.clone()));
        }
        let knows = |inventory: &LooseInventory| inventory.began.iter().any(|(age, _)| *age == shown);
        // An exception: no node that took part knows the presented dataset.
        let alone = !current.iter().any(|(_, inventory)| knows(inventory));
        if alone {
            self.keep_branch(shown, former.iter().map(|(_, inventory)| inventory).filter(|i| knows(i)));
        }
        let gave_up = |age: Age| base.is_some_and(|base| base.gave_up_dataset(age));
        // The presented dataset is of a branch that the last restart gave up, and nodes of that
        // restart know it. Then an older dataset that was given up, and that none of these knows,
        // is of another branch.
        let comes_back = !alone && gave_up(shown);
        let mut gaps = BTreeSet::new();
        for (_, inventory) in &former {
            let counts = alone && knows(inventory);
            let may_come = |age: Age| gave_up(age) && !(comes_back && age <= shown);
            // Nobody is to take a dataset for known of whose versions some were forgotten.
            let is_known = |(age, _): &(Age, u64)| (counts && *age <= shown) || may_come(*age);
            let (known, forgotten): (Vec<_>, Vec<_>) = inventory.began.iter().copied().partition(is_known);
            self.sealed.extend(known);
            gaps.extend(forgotten.into_iter().map(|(age, _)| age));
            for version in &inventory.versions {
                let not_later = matches!(version.owner, LooseOwner::Sealed(age) if age <= shown);
                // What a restart had given up before that node left is of no branch that can come
                // back with it.
                let of_its_branch = !is_lost(inventory.base, version);
                let may_come = self.versions.is_lost(version) && !(comes_back && not_later);
                if self.versions.get(version.stamp).is_some()
                    || (of_its_branch && ((counts && not_later) || may_come))
                {
                    self.versions.insert(version.clone());
                }
            }
        }
        // The branch of what is presented, as those know it that were in it: what it had given up
        // is not of it.
        let of_branch = current.iter().chain(&former).map(|(_, inventory)| inventory).filter(|i| knows(i));
        let bases = of_branch.filter_map(|inventory| inventory.base).filter(|b| b.epoch <= shown.epoch);
        if let Some(branch) = bases.max() {
            self.versions.drop_lost(branch);
        }
        for (age, name) in std::mem::take(&mut self.dropped) {
            self.unseal(age, name);
        }
        let told = current.into_iter().chain(former);
        Joined { holders: told.map(|(node, inventory)| (node, inventory.versions)).collect(), gaps }
    }

    /// Nobody who took part in the last restart knows the dataset of `shown`: of what goes before
    /// it only the versions of those who know it are of its branch.
    fn keep_branch<'a>(&mut self, shown: Age, knowing: impl Iterator<Item = &'a LooseInventory>) {
        let mut knowing = knowing.peekable();
        if knowing.peek().is_none() {
            return;
        }
        let of_branch: BTreeSet<LooseStamp> =
            knowing.flat_map(|inventory| inventory.versions.iter().map(|version| version.stamp)).collect();
        self.versions.drop_others(shown, &of_branch);
    }

    /// Attach: every node gets what the others have. `removed`: sealed datasets that programs have
    /// removed.
    pub(in crate::lead) fn attach(
        &mut self,
        cluster: &mut Cluster,
        doubts: &[(Vec<u8>, DatasetId)],
        removed: &[Age],
    ) {
        // Before any of it may be removed: what belonged to that belongs to what had begun before
        // it. What is complete on some nodes is sealed, also where that is not known yet.
        let sealed =
            |begun: &Begun| doubts.iter().any(|(name, id)| *name == begun.name && begun.base != Some(*id));
        let told = self.telling.iter().flat_map(Answers::iter);
        let begun = told.flat_map(|(_, inventory)| inventory.begun.iter().filter(|begun| !sealed(begun)));
        let begun: Vec<Begun> = begun.cloned().collect();
        self.learn(cluster, Now { committing: None }, begun.into_iter());
        let Joined { mut holders, gaps } = self.join(Age::default());
        // A dataset counts as the newest also when it is gone: with the lead before, and when it
        // goes with this one.
        let of_branch = removed.iter().filter(|age| !self.versions.is_lost_dataset(**age));
        let removed = of_branch.max().copied().unwrap_or_default();
        self.newest = self.newest.max(removed).max(self.newest_known(cluster));
        for version in self.versions.iter().filter(|version| !self.versions.is_lost(version)) {
            match &version.owner {
                LooseOwner::Begun { name, since_us, after } => {
                    self.begun.entry(name.clone()).or_insert(*since_us);
                    self.newest = self.newest.max(*after);
                }
                LooseOwner::Sealed(age) => self.newest = self.newest.max(*age),
            }
        }
        let kept = self.ages(cluster);
        for (_, versions) in &holders {
            let had: BTreeSet<LooseStamp> = versions.iter().map(|version| version.stamp).collect();
            let missing = self.versions.iter().map(|version| version.stamp);
            let missing: Vec<LooseStamp> = missing.filter(|stamp| !had.contains(stamp)).collect();
            self.versions.lack(missing);
        }
        // What is not needed any more too: the nodes have it until they are told to forget it.
        self.bind_first(cluster, &mut holders);
        self.forget_datasets(cluster, &kept, gaps);
        self.spread = Some(Spread::begin(cluster, &self.versions, holders, kept, true));
        self.spread_on(cluster);
    }

    /// Restart: the first of `chosen` is presented (none: nothing is), of which the prefix has what
    /// goes with it, if it is `stored` there. False until every node has what that takes.
    pub(in crate::lead) fn present(
        &mut self,
        cluster: &mut Cluster,
        chosen: &[Chosen],
        stored: bool,
    ) -> bool {
        if self.telling.is_some() {
            let set = self.sets.take_read();
            let shown = chosen.first().map(|first| age_of(&first.catalog)).unwrap_or_default();
            let known = shown == Age::default() || self.knows(shown);
            let Joined { holders, gaps } = self.join(shown);
            match set {
                Some(set) => {
                    // The nodes know of another branch, or of too little.
                    if !known {
                        self.versions.give_up(shown);
                    }
                    self.versions.add_set(set);
                    let created = chosen.first().map_or(0, |first| first.catalog.created_us);
                    self.sealed.entry(shown).or_insert(created);
                }
                // What the nodes have may be of another branch: who knew it left before the others
                // were told.
                None if !known => {
                    if !stored {
                        cluster.warn(format!(
                            "no node knows the pointer files of dataset {}: there are none",
                            shown.id
                        ));
                    }
                    self.versions.give_up(shown);
                }
                None => {}
            }
            let base = LooseBase { epoch: cluster.epoch, shown };
            self.versions.present(base, self.sealed.keys().copied());
            self.newest = shown;
            let chosen = chosen.iter().map(|one| age_of(&one.catalog));
            let ages: Vec<Age> = chosen.chain(self.held.iter().copied()).collect();
            self.forget_datasets(cluster, &ages, gaps);
            self.spread = Some(Spread::begin(cluster, &self.versions, holders, ages, false));
            self.spread_on(cluster);
        }
        if self.spread.is_some() {
            return false;
        }
        let shown = chosen.first().map(|first| age_of(&first.catalog)).unwrap_or_default();
        let mut versions = Vec::new();
        if shown != Age::default() {
            let there = |version: &&LooseVersion| !version.entry.is_gone();
            versions.extend(self.versions.shown(shown).into_iter().filter(there).map(|v| v.stamp));
        }
        self.tell_began(cluster);
        cluster.send_all(Command::LooseShow { versions, shown });
        true
    }

    /// Every node has what goes with the sealed datasets.
    fn tell_began(&self, cluster: &mut Cluster) {
        let began = self.sealed.iter().map(|(age, began)| (*age, *began)).collect();
        cluster.send_all(Command::LooseBind { bound: Vec::new(), began });
    }

    pub(super) fn spread_on(&mut self, cluster: &mut Cluster) {
        if let Some(spread) = &mut self.spread
            && spread.go_on(cluster, &mut self.versions)
        {
            let lacking: BTreeSet<LooseStamp> = spread.lacking(&self.versions).collect();
            if spread.is_of_attach() && lacking.is_empty() {
                // Who lacked some of them was not told before.
                self.tell_began(cluster);
            }
            self.versions.lack_only(lacking);
            self.spread = None;
            self.sets.changed(cluster, &self.versions);
        }
    }

    /// A node's copy of a version; false when it was not asked for one.
    pub(in crate::lead) fn read(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        stamp: LooseStamp,
        version: Option<LooseVersion>,
    ) -> bool {
        let Some(spread) = &mut self.spread else { return false };
        let awaited = spread.read(cluster, &mut self.versions, node, stamp, version);
        self.spread_on(cluster);
        awaited
    }
}
