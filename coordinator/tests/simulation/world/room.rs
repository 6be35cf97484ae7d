//! Caches that have no room for every file that programs open: nothing leaves them for one that
//! cannot come.

use scrfs::control::{NoRoom, SealedFile, Start};
use scrfs::dataset::{Catalog, Scheme};
use scrfs::ids::{DatasetId, Member};

use super::World;
use crate::daemon::size_of;

/// What programs are answered when there is no room.
pub(super) const ENOSPC: i32 = 28;

/// What the lead lets go in one step for one file.
#[derive(Debug)]
pub(super) struct Going {
    host: String,
    wanted: u64,
    free: u64,
    ids: Vec<DatasetId>,
}

impl World {
    /// Some seeds have caches with little room, of their own as with `SCRFS_CACHE_BYTES`.
    pub(super) fn capacity(seed: u64) -> Option<u64> {
        (seed % 10 == 7).then_some(500 + seed % 5003)
    }

    /// Some nodes have no room for members that a restart rebuilds there.
    pub(super) fn cramp(&mut self) {
        let number = |host: &str| host.trim_start_matches('n').parse::<u64>().expect("n and a number");
        let is_cramped = |host: &String| self.cramps && (number(host) + self.epoch).is_multiple_of(3);
        self.cramped = self.nodes.iter().map(|node| node.host.clone()).filter(is_cramped).collect();
        // Of some it is what is not sealed that takes the room, in every third epoch.
        let is_littered = |_: &&String| self.epoch.is_multiple_of(3);
        self.littered = self.cramped.iter().filter(is_littered).cloned().collect();
    }

    /// What is not sealed is removed from a node: whether there was something.
    pub(super) fn remove_unsealed(&mut self, at: usize) -> bool {
        let host = &self.nodes[at].host;
        let removed = self.littered.remove(host);
        if removed {
            self.cramped.remove(host);
            self.counts.tidied += 1;
        }
        removed
    }

    /// A member cannot be fetched before what is not sealed is removed.
    pub(super) fn is_littered(&self, at: usize) -> bool {
        !self.ready && self.littered.contains(&self.nodes[at].host)
    }

    /// Somebody makes room, and the coordinators are started again.
    pub(super) fn room_is_made(&mut self) {
        self.counts.starved += 1;
        self.kill();
        let cramps = std::mem::replace(&mut self.cramps, false);
        self.start(Start::Restart);
        self.cramps = cramps;
    }

    /// Whether a member of a dataset cannot be rebuilt on this node. Where others can take it the
    /// restart must find the same datasets.
    pub(super) fn is_cramped(
        &mut self,
        at: usize,
        (catalog, lost): (&Catalog, usize),
        member: Member,
    ) -> bool {
        let node = &self.nodes[at];
        if self.ready || !self.cramped.contains(&node.host) {
            return false;
        }
        let is_here = node.datasets.get(&catalog.id).is_some_and(|held| held.members.contains_key(&member));
        let may_move = catalog.layout.scheme() == Scheme::Xor && lost == 1 && !is_here;
        self.calm &= self.is_littered(at) || may_move && self.cramped.len() < self.nodes.len();
        self.counts.crowded += 1;
        true
    }

    /// Why a file cannot be brought to a node, if there is no room for it.
    pub(super) fn no_room(&mut self, at: usize, content: u64) -> Option<NoRoom> {
        let (wanted, node) = (size_of(content), &self.nodes[at]);
        let room = node.room(self.capacity?);
        let full = NoRoom { wanted, room };
        if full.wanted <= full.room.free {
            return None;
        }
        self.shortages.push((node.host.clone(), full.clone()));
        Some(full)
    }

    /// The lead's word on room for a file that is opened:
    /// `HOST: ... it takes WANTED bytes, and FREE are free; dataset ID leaves the caches early`.
    pub(super) fn going(&mut self, text: &str) {
        self.check_early(text);
        let Some((host, rest)) = text.split_once(": room is short for a file that is opened: it takes ")
        else {
            return;
        };
        let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok());
        let (Some(wanted), Some(free), Some(id)) = (numbers.next(), numbers.next(), numbers.next()) else {
            panic!("{text}");
        };
        let same = |going: &&mut Going| (&*going.host, going.wanted, going.free) == (host, wanted, free);
        match self.going.last_mut().filter(same) {
            Some(going) => going.ids.push(DatasetId(id)),
            None => self.going.push(Going { host: host.to_owned(), wanted, free, ids: vec![DatasetId(id)] }),
        }
    }

    /// What went for a file in this step is enough for it, and each of them was needed.
    pub(super) fn check_going(&mut self) {
        for Going { host, wanted, free, ids } in std::mem::take(&mut self.going) {
            self.counts.made_room += 1;
            let told = self
                .shortages
                .iter()
                .filter(|(on, full)| *on == host && (full.wanted, full.room.free) == (wanted, free));
            let enough = |full: &NoRoom, ids: &mut dyn Iterator<Item = DatasetId>| {
                let held =
                    |id| full.room.held.iter().find(|(of, _)| *of == id).map_or(0, |(_, bytes)| *bytes);
                free + ids.map(held).sum::<u64>() >= wanted
            };
            let fits = told.into_iter().any(|(_, full)| {
                let spares =
                    |id: &DatasetId| enough(full, &mut ids.iter().copied().filter(|other| other != id));
                enough(full, &mut ids.iter().copied()) && !ids.iter().any(spares)
            });
            assert!(fits, "{ids:?} go from {host}, where {free} bytes are free and {wanted} are wanted");
        }
    }

    /// A program is told that there is no room for a file only where a cache said so.
    pub(super) fn check_full(&mut self, at: usize, file: &SealedFile) {
        assert!(self.capacity.is_some(), "{file:?} has room");
        let node = &self.nodes[at];
        assert!(self.shortages.iter().any(|(host, _)| *host == node.host), "{file:?} has room");
        self.counts.full += 1;
    }
}
