//! Nodes that are lost between two runs, and what must outlive that.

use std::collections::BTreeSet;

use scrfs::dataset::{Catalog, Scheme};
use scrfs::ids::Member;

use super::World;
use crate::daemon::Daemon;
use crate::observer::{self, Key};

impl World {
    /// Loses nodes between two runs. The newest promised dataset must be there before, and after
    /// the loss of any node that its scheme promises to survive.
    pub(crate) fn lose_nodes(&mut self) {
        assert!(self.lead.is_none());
        let promise = self.newest_promise();
        // Of what rotted in the prefix nobody knows yet: it may have left the caches for it.
        let rotted =
            |key| self.prefix.datasets.get(&key).is_some_and(|stored| stored.bad || stored.unreadable);
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
                self.nodes.push(back);
            }
        }
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

    fn lose_one(&mut self, promise: Option<Key>) {
        let at = self.rng.below(self.nodes.len());
        let host = self.nodes[at].host.clone();
        self.say(|| format!("=== loses {host}"));
        let survives = promise.is_some_and(|key| {
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
            let hosts = layout.map(|layout| scrfs::status::survives(layout, false)).unwrap_or_default();
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
                let origin = self.next_host + 1000;
                self.next_host += 1;
                Some(std::mem::replace(&mut self.nodes[at], Daemon::new(&host, origin)))
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

    pub(super) fn can_give(&self, key: Key) -> bool {
        let prefix = observer::in_prefix(&self.prefix, key) && self.settings.fetch;
        // Without SCR_DISTRIBUTE the caches promise nothing.
        observer::in_caches(&self.nodes, key) || prefix || !self.settings.distribute
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
        self.promised.get(&found).filter(|name| stays(&found, name)).map(|_| found)
    }

    fn newest_promise(&self) -> Option<Key> {
        // After a loss beyond the promise nothing is promised until the next restart has found
        // something.
        let (key, name) = self.promised.last_key_value().filter(|_| self.ready || self.programs)?;
        (!self.removing.contains(name)).then_some(*key)
    }
}
