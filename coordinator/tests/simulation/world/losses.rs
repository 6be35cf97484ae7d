//! Nodes that are lost between two runs, and what must outlive that.

use std::collections::BTreeSet;

use scrfs::control::HeldState;
use scrfs::dataset::{Catalog, Scheme};
use scrfs::ids::Member;

use super::World;
use crate::daemon::{Daemon, Dataset};
use crate::observer::{self, Key};

impl World {
    /// Loses nodes between two runs. The newest promised dataset must be there before, and after
    /// the loss of any node that its scheme promises to survive.
    pub(crate) fn lose_nodes(&mut self) {
        assert!(self.lead.is_none());
        let promise = self.newest_promise();
        let rotted = |key| self.prefix.has_rotted(key);
        if let Some(key) = promise.filter(|key| !rotted(*key)) {
            assert!(self.can_give(key), "the newest promised dataset {key:?} is gone without a loss");
        }
        if let Some(key) = promise.and_then(|_| self.guarded(|_| true)).filter(|key| !rotted(*key)) {
            assert!(self.can_give(key), "the newest protected dataset {key:?} is gone without a loss");
        }
        let stale = self.graveyard.iter().position(|node| self.removed_on(node) > 0);
        if self.rng.chance(if stale.is_some() { 60 } else { 10 }) && !self.graveyard.is_empty() {
            let at = stale.unwrap_or_else(|| self.rng.below(self.graveyard.len()));
            let back = self.graveyard.remove(at);
            if self.nodes.iter().all(|node| node.host != back.host) {
                self.say(|| format!("=== {} comes back", back.host));
                self.comes_back(&back);
                let gave = promise.filter(|key| self.can_give(*key));
                self.nodes.push(back);
                let stays = gave.is_none_or(|key| self.can_give(key) || self.gives_newer(key));
                assert!(stays, "{gave:?} is gone with a node that comes back, and nothing newer is there");
            }
        }
        self.hold(promise);
        let losses = *self.rng.pick(&[0, 1, 1, 1, 1, 2, 3]).expect("some");
        for _ in 0..losses.min(self.nodes.len()) {
            self.lose_one(if losses == 1 { promise } else { None });
        }
        if self.rng.chance(10) {
            let all: Vec<Key> = self.prefix.datasets.keys().copied().collect();
            if let Some(key) = self.rng.pick(&all) {
                let stored = self.prefix.datasets.get_mut(key).expect("there");
                *(if self.rng.chance(50) { &mut stored.bad } else { &mut stored.unreadable }) = true;
                self.promised.remove(key);
            }
        }
        if self.nodes.is_empty() {
            self.add_node();
        }
        self.forget_removals();
    }

    /// The job is held: the sweep saves what some nodes have, and removes it there.
    fn hold(&mut self, promise: Option<Key>) {
        if !self.held || !self.rng.chance(50) {
            return;
        }
        let gives = |world: &Self| promise.filter(|key| world.can_give(*key) && world.settings.fetch);
        let before = gives(self);
        let is_newest = |node: &Daemon| {
            let complete = |dataset: &Dataset| dataset.state == HeldState::Complete && !dataset.failed;
            let newest = node.datasets.iter().filter(|(_, dataset)| complete(dataset) && dataset.listed);
            newest.map(|(id, dataset)| (dataset.epoch, *id)).max() == promise
        };
        let is_needed = before.is_some_and(|key| !self.prefix.has_newer(key) && !self.prefix.has_rotted(key));
        let is_saved = is_needed && self.nodes.iter().all(is_newest);
        for at in 0..self.nodes.len() {
            if !self.rng.chance(50) {
                continue;
            }
            let node = &self.nodes[at];
            let host = node.host.clone();
            if node.unsaved().into_iter().all(|key| self.prefix.save(node, key).is_ok()) {
                self.say(|| format!("=== {host} is saved and purged"));
                self.nodes[at] = self.booted(&host);
            }
        }
        assert!(!is_saved || gives(self).is_some(), "{promise:?} is gone with nodes that have saved theirs");
    }

    fn lose_one(&mut self, promise: Option<Key>) {
        let at = self.rng.below(self.nodes.len());
        let host = self.nodes[at].host.clone();
        self.say(|| format!("=== loses {host}"));
        // A node that came back may have a newer one under its id, which stands, whoever is lost.
        let survives = promise.filter(|key| self.can_give(*key)).is_some_and(|key| {
            let layout = observer::catalog(&self.nodes, key).map(|catalog| &catalog.layout);
            // Members that an earlier loss took and that are not rebuilt yet do not count as
            // protected.
            let whole = layout.is_some_and(|layout| {
                (0..).map(Member).zip(&layout.members).all(|(member, place)| {
                    let holder = self.nodes.iter().find(|node| node.host == place.host);
                    let data = holder.and_then(|node| node.datasets.get(&key.1)?.members.get(&member));
                    data.is_some_and(|data| data.is_whole(layout, member))
                })
            });
            let hosts = layout
                .map(|layout| scrfs::status::survives(layout, &BTreeSet::new(), false))
                .unwrap_or_default();
            whole
                && self.settings.distribute
                && hosts.iter().all(|(name, survives)| *name != host || *survives)
        });
        let dead = match self.rng.below(4) {
            // Some bytes rot.
            0 => {
                let is_bare = self.bare;
                let datasets = self.nodes[at].datasets.values_mut();
                let members = datasets.flat_map(|dataset| dataset.members.values_mut());
                members.for_each(|data| data.rot(is_bare));
                None
            }
            // It boots again, empty.
            1 => {
                let booted = self.booted(&host);
                Some(std::mem::replace(&mut self.nodes[at], booted))
            }
            // A spare takes its place.
            2 => {
                self.add_node();
                Some(self.nodes.swap_remove(at))
            }
            _ => Some(self.nodes.swap_remove(at)),
        };
        self.graveyard.extend(dead);
        if self.nodes.is_empty() {
            self.add_node();
        }
        if let Some(key) = promise.filter(|_| survives) {
            assert!(self.can_give(key), "dataset {key:?} did not survive the loss of {host}");
        }
    }

    /// This host, empty.
    fn booted(&mut self, host: &str) -> Daemon {
        let origin = self.next_host + 1000;
        self.next_host += 1;
        Daemon::new(host, origin)
    }

    /// A restart finds a newer one.
    fn gives_newer(&self, key: Key) -> bool {
        observer::found(&self.nodes, &self.prefix, &self.settings).any(|newer| newer > key)
    }

    pub(super) fn can_give(&self, key: Key) -> bool {
        let prefix = observer::in_prefix(&self.prefix, key) && self.settings.fetch;
        // Without SCR_DISTRIBUTE the caches promise nothing.
        let joined = || self.settings.fetch && self.prefix.can_join(&self.nodes, key);
        observer::in_caches(&self.nodes, key) || prefix || joined() || !self.settings.distribute
    }

    /// The newest promised dataset that survives the loss of a node, where newer ones do not: one
    /// stays behind them, unless one is kept only.
    pub(super) fn guarded(&self, counts: impl Fn(Key) -> bool) -> Option<Key> {
        let is_protected = |key: &Key| {
            let of_key = |((of, _), _): &(&(Key, u32), &Catalog)| of == key;
            self.catalogs.iter().rev().find(of_key).is_some_and(|(_, catalog)| {
                catalog.layout.scheme() != Scheme::Single
                    && catalog.layout.sets.iter().all(|set| set.len() > 1)
            })
        };
        let stays = |key: &Key, name: &Vec<u8>| {
            let replaced = || self.promised.iter().any(|(newer, other)| newer > key && other == name);
            counts(*key) && !replaced() && !self.removing.contains(name)
        };
        if self.settings.cache_size <= 1
            || self.promised.last_key_value().is_none_or(|(key, _)| is_protected(key))
        {
            return None;
        }
        // One that has rotted, was replaced, or was removed stayed in its place until then.
        let all: BTreeSet<Key> = self.promised.keys().chain(&self.rotten).copied().collect();
        let found = all.into_iter().rev().find(is_protected)?;
        // As long as nobody has read that it protects nothing, none behind it is kept in its place.
        let name = self.promised.get(&found).filter(|_| !self.bared.contains(&found));
        name.filter(|name| stays(&found, name)).map(|_| found)
    }

    fn newest_promise(&self) -> Option<Key> {
        // After a loss beyond the promise nothing is promised until the next restart has found
        // something.
        let (key, name) = self.promised.last_key_value().filter(|_| self.ready || self.programs)?;
        (!self.removing.contains(name)).then_some(*key)
    }
}
