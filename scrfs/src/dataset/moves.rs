//! Where the directories of a sealed dataset are in its next generation.
//!
//! Directory operations are the same on all nodes, in one order, so every node has the same word on them: which sealed
//! name a present path stands for, and where a sealed name is now. A directory that moves takes along what is sealed below
//! it, whoever has the bytes, and nobody has changed it by that.

use std::collections::BTreeMap;

use crate::path::RelPath;

/// See the module. Paths are relative to the dataset's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moves {
    /// What stands at a path, and below it as far as no longer path says otherwise; `None`: nothing that was sealed.
    sealed: BTreeMap<RelPath, Option<RelPath>>,
    /// The other way round.
    present: BTreeMap<RelPath, RelPath>,
}

impl Moves {
    /// Everything is where it was sealed.
    pub const fn new() -> Self {
        Self { sealed: BTreeMap::new(), present: BTreeMap::new() }
    }

    /// Everything is where it was sealed.
    pub fn is_empty(&self) -> bool {
        self.sealed.is_empty()
    }

    /// All that is not where it was sealed, with all below it: what stands there.
    pub fn iter(&self) -> impl Iterator<Item = (&RelPath, Option<&RelPath>)> {
        self.sealed.iter().map(|(path, sealed)| (path, sealed.as_ref()))
    }

    /// The sealed name that `path` stands for, if there is one of that name.
    pub fn origin(&self, path: &RelPath) -> Option<RelPath> {
        if self.sealed.is_empty() { Some(path.clone()) } else { self.origin_from(path, path.clone()) }
    }

    /// `at`: `path` or a directory above it, from which on entries are looked for.
    fn origin_from(&self, path: &RelPath, mut at: RelPath) -> Option<RelPath> {
        loop {
            if let Some(sealed) = self.sealed.get(&at) {
                return sealed.as_ref()?.concat(&path.strip(&at)?).ok();
            }
            match at.split_last() {
                Some((above, _)) => at = above,
                None => return Some(path.clone()),
            }
        }
    }

    /// What would stand at `path` by what stands above it.
    fn derived(&self, path: &RelPath) -> Option<RelPath> {
        match path.split_last() {
            Some((above, _)) => self.origin_from(path, above),
            None => Some(path.clone()),
        }
    }

    /// Where sealed name `sealed` is now; `None`: nowhere.
    pub fn present(&self, sealed: &RelPath) -> Option<RelPath> {
        if self.sealed.is_empty() {
            return Some(sealed.clone());
        }
        let mut at = Some(sealed.clone());
        let mut path = sealed.clone();
        while let Some(above) = at {
            if let Some(present) = self.present.get(&above) {
                path = present.concat(&sealed.strip(&above)?).ok()?;
                break;
            }
            at = above.split_last().map(|(above, _)| above);
        }
        (self.origin(&path).as_ref() == Some(sealed)).then_some(path)
    }

    /// A directory was renamed. What was at `to` is gone, or in the other's place.
    pub fn rename(&mut self, from: &RelPath, to: &RelPath, exchange: bool) {
        let (moved, replaced) = (self.take(from), self.take(to));
        self.put(to, moved);
        if exchange {
            self.put(from, replaced);
        } else {
            self.set(from.clone(), None);
        }
    }

    /// What was at `path` is gone, or something else was made there.
    pub fn remove(&mut self, path: &RelPath) {
        self.take(path);
        self.set(path.clone(), None);
    }

    /// Notes what stands at `path`.
    pub fn set(&mut self, path: RelPath, sealed: Option<RelPath>) {
        if let Some(sealed) = &sealed {
            self.present.insert(sealed.clone(), path.clone());
        }
        self.sealed.insert(path, sealed);
    }

    /// Takes out what is at `path` and below it; what stands at `path` itself is the first.
    fn take(&mut self, path: &RelPath) -> Vec<(RelPath, Option<RelPath>)> {
        let mut taken = vec![(RelPath::root(), self.origin(path))];
        let keys: Vec<RelPath> = self
            .sealed
            .range(path..)
            .take_while(|(key, _)| key.as_bytes().starts_with(path.as_bytes()))
            .filter(|(key, _)| key.strip(path).is_some())
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            let sealed = self.sealed.remove(&key).flatten();
            if let Some(sealed) = &sealed {
                self.present.remove(sealed);
            }
            if let Some(below) = key.strip(path).filter(|below| !below.is_root()) {
                taken.push((below, sealed));
            }
        }
        taken
    }

    fn put(&mut self, path: &RelPath, taken: Vec<(RelPath, Option<RelPath>)>) {
        for (below, sealed) in taken {
            if let Ok(path) = path.concat(&below) {
                self.set(path, sealed);
            }
        }
    }

    /// Forgets what is noted of these paths where it says nothing. `known`: the name was sealed.
    pub fn prune<'a>(
        &mut self,
        paths: impl IntoIterator<Item = &'a RelPath>,
        known: impl Fn(&RelPath) -> bool,
    ) {
        for path in paths {
            let Some(sealed) = self.sealed.get(path) else { continue };
            let derived = self.derived(path);
            let says = |sealed: &Option<RelPath>| sealed.as_ref().filter(|sealed| known(sealed)).cloned();
            if says(sealed) == says(&derived) {
                let sealed = self.sealed.remove(path).flatten();
                if let Some(sealed) = sealed {
                    self.present.remove(&sealed);
                }
            }
        }
    }

    /// The same for all.
    pub fn prune_all(&mut self, known: impl Fn(&RelPath) -> bool) {
        // What is above others goes first: theirs may say nothing without it.
        let paths: Vec<RelPath> = self.sealed.keys().cloned().collect();
        self.prune(&paths, known);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    /// `a>b` renames, `a<>b` exchanges, `-a` removes.
    fn act(moves: &mut Moves, op: &str) {
        if let Some(gone) = op.strip_prefix('-') {
            moves.remove(&path(gone));
        } else if let Some((from, to)) = op.split_once("<>") {
            moves.rename(&path(from), &path(to), true);
        } else {
            let (from, to) = op.split_once('>').unwrap();
            moves.rename(&path(from), &path(to), false);
        }
    }

    /// Directories `d`, `d/s`, `q` were sealed, each with `x`, and `f`. The operations; then where each file is.
    #[test]
    fn sealed_names_follow_their_directories() {
        let table: &[(&[&str], [&str; 4])] = &[
            (&[], ["d/x", "d/s/x", "q/x", "f"]),
            (&["d>e"], ["e/x", "e/s/x", "q/x", "f"]),
            (&["d>e", "e>d"], ["d/x", "d/s/x", "q/x", "f"]),
            (&["d>e", "e>g/h", "g/h>k"], ["k/x", "k/s/x", "q/x", "f"]),
            (&["d/s>t", "d>e"], ["e/x", "t/x", "q/x", "f"]),
            (&["d>e", "e/s>t"], ["e/x", "t/x", "q/x", "f"]),
            (&["d>e", "e/s>q/s"], ["e/x", "q/s/x", "q/x", "f"]),
            (&["d>e", "e/s>q/s", "q>d"], ["e/x", "d/s/x", "d/x", "f"]),
            (&["d<>q"], ["q/x", "q/s/x", "d/x", "f"]),
            (&["d<>q", "q/s>d/s", "d<>q"], ["d/x", "q/s/x", "q/x", "f"]),
            (&["d/s<>q"], ["d/x", "q/x", "d/s/x", "f"]),
            (&["d/s>w", "-d"], ["", "w/x", "q/x", "f"]),
            (&["-d/s", "-d"], ["", "", "q/x", "f"]),
            (&["-d/s", "d>e"], ["e/x", "", "q/x", "f"]),
            (&["-q", "d>q"], ["q/x", "q/s/x", "", "f"]),
            (&["d>q"], ["q/x", "q/s/x", "", "f"]),
            (&["d>e", "new>d"], ["e/x", "e/s/x", "q/x", "f"]),
            (&["-f"], ["d/x", "d/s/x", "q/x", ""]),
        ];
        let sealed = ["d/x", "d/s/x", "q/x", "f"];
        let known = |name: &RelPath| {
            ["", "d", "d/s", "q"].map(path).contains(name) || sealed.map(path).contains(name)
        };
        for (ops, wanted) in table {
            for pruned in [false, true] {
                let mut moves = Moves::new();
                for op in *ops {
                    act(&mut moves, op);
                    if pruned {
                        moves.prune_all(known);
                    }
                }
                let found = sealed.map(|name| moves.present(&path(name)).map(|path| path.to_string()));
                assert_eq!(found.map(Option::unwrap_or_default), wanted.map(str::to_owned), "{ops:?}");
                for (name, at) in sealed.iter().zip(wanted).filter(|(_, at)| !at.is_empty()) {
                    assert_eq!(moves.origin(&path(at)), Some(path(name)), "{ops:?}");
                }
                let unmoved = sealed == *wanted;
                assert!(!pruned || moves.is_empty() == unmoved, "{ops:?}: {moves:?}");
            }
        }
    }

    /// Against a map of every single name, whatever the order of operations.
    #[test]
    fn any_operations_move_what_a_tree_moves() {
        let names: Vec<RelPath> = ["a", "b", "a/c", "b/c", "a/c/e", "n", "n/c"].map(path).to_vec();
        let known = |name: &RelPath| name.as_bytes().first().is_none_or(|first| *first != b'n');
        let mut seed = 7_u64;
        let mut next = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(seed >> 33).unwrap() % below
        };
        for _ in 0..2000 {
            let mut moves = Moves::new();
            let mut tree: BTreeMap<RelPath, RelPath> =
                names.iter().filter(|name| known(name)).map(|name| (name.clone(), name.clone())).collect();
            for _ in 0..=next(8) {
                let (from, to) = (names[next(names.len())].clone(), names[next(names.len())].clone());
                if from.strip(&to).is_some() || to.strip(&from).is_some() {
                    continue;
                }
                let exchange = next(3) == 0;
                moves.rename(&from, &to, exchange);
                let there = std::mem::take(&mut tree);
                for (at, name) in there {
                    let moved = match (at.strip(&from), at.strip(&to)) {
                        (Some(below), _) => Some(to.concat(&below).unwrap()),
                        (_, Some(below)) => exchange.then(|| from.concat(&below).unwrap()),
                        _ => Some(at),
                    };
                    tree.extend(moved.map(|at| (at, name)));
                }
                if next(2) == 0 {
                    moves.prune([&from, &to], known);
                }
            }
            for name in names.iter().filter(|name| known(name)) {
                let at = tree.iter().find(|(_, sealed)| *sealed == name).map(|(at, _)| at.clone());
                assert_eq!(moves.present(name), at, "{name}: {moves:?}");
            }
        }
    }
}
