//! What programs do in the mounts.

use scrfs::control::{DirOp, Event, HeldState, MarkerScope, SealedFile};
use scrfs::dataset::EntryKind;
use scrfs::path::RelPath;

use super::World;
use crate::daemon::{Daemon, Dataset, op_paths, top_of};

impl World {
    /// A program does something on some node.
    pub(super) fn act(&mut self) {
        let at = self.rng.below(self.nodes.len());
        if self.rng.chance(12) {
            self.point(at);
        }
        match self.rng.below(27) {
            0..=4 => {
                let path = self.some_path();
                self.directory(at, DirOp::Make { path, mode: 0o755, uid: 1, gid: 1 });
            }
            5 => {
                let path = self.some_path();
                self.directory(at, DirOp::Remove { path });
            }
            6 => {
                let (from, to) = (self.some_path(), self.some_path());
                let is_top = |path: &RelPath| path.names().count() == 1;
                // Two datasets, or two directories of one.
                let alike = is_top(&from) && is_top(&to)
                    || !is_top(&from) && !is_top(&to) && top_of(&from) == top_of(&to);
                let exchange = from != to && alike && self.rng.chance(40);
                // The kernel answers by itself where both are the same.
                let no_replace = from == to || !exchange && self.rng.chance(50);
                self.directory(at, DirOp::Rename { from, to, no_replace, exchange });
            }
            7..=11 => self.write(at),
            12..=14 => self.change(at),
            15..=17 => {
                let name = self.some_name();
                let renamed = self.rng.chance(10);
                self.mark(at, &name, renamed);
                if self.settings.sealing.scope == MarkerScope::All && !renamed && self.rng.chance(80) {
                    (0..self.nodes.len()).for_each(|other| self.mark(other, &name, false));
                }
            }
            24..=25 => {
                let name = self.some_name();
                self.invalidate(at, &name);
            }
            18..=21 => self.open(at),
            22 => self.rot(at),
            // Seldom, or nothing would stay in the caches.
            26 if self.nodes[at].serving && self.rng.chance(20) => {
                let begins = self.rng.chance(50);
                self.send_up(at, Event::RoomShort { free: 1, wanted: 2, begins, helps: None });
            }
            26 => {}
            _ => {
                let name = self.some_name();
                self.remove_dataset(at, &name);
            }
        }
    }

    fn mark(&mut self, at: usize, name: &[u8], renamed: bool) {
        let path = RelPath::new(name).expect("a name");
        let node = &mut self.nodes[at];
        let base = node.listed(name).map(|(id, _)| id);
        if node.directories.contains(&path) && !node.markers.contains_key(name) {
            let request = node.next_request();
            node.markers.insert(name.to_vec(), (request, base));
            if renamed {
                node.renamed.insert(name.to_vec());
            }
            if node.serving {
                let event = node.marker(name);
                self.send_up(at, event);
            }
        }
    }

    /// Makes `.invalid` in a dataset, or removes it.
    fn invalidate(&mut self, at: usize, name: &[u8]) {
        let path = RelPath::new(name).expect("a name");
        let node = &mut self.nodes[at];
        if !node.directories.contains(&path) || node.is_held(&path) {
            return;
        }
        if !node.is_frozen(name) {
            if !node.invalid.remove(name) && self.rng.chance(30) {
                self.nodes[at].invalidate(name);
            }
        } else if node.invalidating.insert(name.to_vec()) && node.serving {
            self.send_up(at, Event::Invalid { name: name.to_vec() });
        }
    }

    fn some_name(&mut self) -> Vec<u8> {
        vec![*self.rng.pick(b"abcdef").expect("some")]
    }

    fn some_path(&mut self) -> RelPath {
        let mut bytes = self.some_name();
        if self.rng.chance(40) {
            bytes.extend_from_slice(self.rng.pick(&[b"/x", b"/y"]).expect("some").as_slice());
        }
        RelPath::new(bytes).expect("a path")
    }

    pub(super) fn directory(&mut self, at: usize, op: DirOp) {
        let node = &mut self.nodes[at];
        if node.waiting.len() >= 3 {
            return;
        }
        // In a frozen dataset the mount makes these wait.
        let below = |path: &RelPath| path.names().count() > 1 && node.is_frozen(top_of(path));
        if op_paths(&op).into_iter().any(below) {
            return;
        }
        let request = node.next_request();
        node.waiting.insert(request, op.clone());
        self.ops.insert(request, op.clone());
        if node.serving {
            self.send_up(at, Event::DirRequest { request, op: op.clone() });
            if self.rng.chance(3) {
                self.send_up(at, Event::DirRequest { request, op });
            }
        }
    }

    fn write(&mut self, at: usize) {
        let node = &self.nodes[at];
        let free = |dir: &&RelPath| {
            let top = top_of(dir);
            node.listed(top).is_none() && !node.is_frozen(top) && !node.is_held(dir)
        };
        let dirs: Vec<&RelPath> = node.directories.iter().filter(free).collect();
        let Some(&dir) = self.rng.pick(&dirs) else { return };
        let shared = self.rng.chance(2);
        let name = if shared { "all".to_owned() } else { format!("{}.{}", node.host, self.rng.below(3)) };
        let path = dir.join(name.as_bytes()).expect("short");
        let content = self.rng.number();
        let moment = self.moment();
        self.nodes[at].begins(top_of(&path), None, moment);
        self.nodes[at].files.insert(path, content);
    }

    /// Changes, makes, removes or renames a file in a sealed dataset.
    fn change(&mut self, at: usize) {
        let node = &self.nodes[at];
        let free = |dataset: &Dataset| {
            let top = RelPath::new(dataset.name.clone()).expect("a name");
            dataset.listed
                && dataset.state == HeldState::Complete
                && !node.is_frozen(&dataset.name)
                && !node.is_held(&top)
        };
        let ids: Vec<_> = node.datasets.iter().filter(|(_, d)| free(d)).map(|(id, _)| *id).collect();
        let Some(&id) = self.rng.pick(&ids) else { return };
        let catalog = node.datasets[&id].catalog.as_ref().expect("complete");
        let mut next = node.next.get(&id).cloned().unwrap_or_default();
        let files = catalog.entries.iter().filter(|entry| matches!(entry.kind, EntryKind::File(_)));
        let mut paths: Vec<RelPath> =
            files.map(|entry| entry.path.clone()).filter(|path| !next.removed.contains(path)).collect();
        let sealed = paths.clone();
        paths.extend(next.changed.keys().cloned());
        // Rarely the same path as others.
        let own =
            paths.iter().filter(|path| path.as_bytes().starts_with(node.host.as_bytes())).cloned().collect();
        let some: Vec<RelPath> = if self.rng.chance(90) { own } else { paths };
        let content = self.rng.number();
        // Or the bytes that another node has given it, or as many others.
        let others = |path: &RelPath| {
            let of = |other: &Daemon| other.next.get(&id)?.changed.get(path).copied();
            self.nodes.iter().rev().find_map(of)
        };
        let picked = self.rng.pick(&some).cloned();
        let content = match picked.as_ref().and_then(others) {
            Some(same) if self.rng.chance(60) => same,
            Some(same) if self.rng.chance(50) => same ^ (1 << 40),
            _ => content,
        };
        match (self.rng.below(6), picked) {
            (0, Some(path)) => {
                next.changed.remove(&path);
                if sealed.contains(&path) {
                    next.removed.insert(path);
                }
            }
            (1, Some(path)) => {
                let moved = path
                    .split_last()
                    .expect("a file")
                    .0
                    .join(format!("{}.moved", self.nodes[at].host).as_bytes());
                next.changed.remove(&path);
                next.changed.insert(moved.expect("short"), content);
                if sealed.contains(&path) {
                    next.removed.insert(path);
                }
            }
            (2..=4, Some(path)) => drop(next.changed.insert(path, content)),
            _ => {
                let name = format!("{}.{}", self.nodes[at].host, self.rng.below(3));
                next.changed.insert(RelPath::new(name).expect("a name"), content);
            }
        }
        if !next.changed.is_empty() || !next.removed.is_empty() {
            let moment = self.moment();
            if !next.changed.is_empty() {
                let name = self.nodes[at].datasets[&id].name.clone();
                self.nodes[at].begins(&name, Some(id), moment);
            }
            let begins = self.nodes[at].next.insert(id, next).is_none();
            if begins && self.overwriting.is_some() {
                self.nodes[at].overwritten.insert(id);
                if self.nodes[at].serving {
                    self.send_up(at, Event::Overwritten(id));
                }
            }
        }
    }

    fn open(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let listed = node.datasets.iter().filter(|(_, d)| d.listed && d.state == HeldState::Complete);
        let mut files = Vec::new();
        for (id, dataset) in listed {
            let catalog = dataset.catalog.as_ref().expect("complete");
            for entry in catalog.entries.iter().filter(|entry| matches!(entry.kind, EntryKind::File(_))) {
                files.push(SealedFile { id: *id, path: entry.path.clone() });
            }
        }
        let Some(file) = self.rng.pick(&files).cloned() else { return };
        // What is here is opened here; save when it came after the mount had looked.
        if node.good(file.id, &file.path).is_some() && self.rng.chance(80) {
            return;
        }
        let request = node.next_request();
        node.fetches.insert(request, file.clone());
        if node.serving {
            self.send_up(at, Event::Fetch { request, file });
        }
    }
}
