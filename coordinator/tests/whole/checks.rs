//! What a restart presents, and what is read then, is what was sealed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::channel;

use scrfs::fs::ROOT;
use scrfs::fs::{Done, FileSystem, Kind, Opened, Taken};
use scrfs::ids::DatasetId;

use crate::machine::Machine;
use crate::programs::{Contents, POINTER, Programs, caller, find};
use crate::world::World;

/// For people.
pub(crate) fn shown(contents: &Contents) -> String {
    let shown = contents.iter().map(|(path, bytes)| format!("{path}:{:x}", crc32fast::hash(bytes)));
    shown.collect::<Vec<_>>().join(" ")
}

/// All names below a directory, by path. Those of directories end with a slash.
pub(crate) fn names(fs: &FileSystem, directory: u64, prefix: &str, found: &mut BTreeSet<String>) {
    let handle = fs.opendir(caller(), directory).expect("a directory");
    let mut below = Vec::new();
    let listed = fs.readdir(handle, 0, true, &mut |listed, entry, _| {
        let name = String::from_utf8(listed.name.clone()).expect("text");
        if name == "." || name == ".." {
            return Taken::Name;
        }
        let path = format!("{prefix}{name}");
        match entry {
            Some(entry) if entry.attr.kind == Kind::Directory => {
                below.push((entry.attr.nodeid, format!("{path}/")));
            }
            _ => drop(found.insert(path)),
        }
        Taken::Name
    });
    listed.expect("a listing");
    fs.releasedir(handle);
    for (inode, path) in below {
        names(fs, inode, &path, found);
        found.insert(path);
    }
}

/// All files in the mount, by path.
fn files(fs: &FileSystem) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    names(fs, ROOT, "", &mut found);
    found.retain(|path| !path.ends_with('/'));
    found
}

impl Programs {
    /// A restart presents this dataset. What was promised last and can be had must be it, or be
    /// older.
    pub(crate) fn present(&mut self, current: Option<&str>, lazy: bool) {
        self.flipped.clear();
        if let Some(name) = current {
            assert!(self.marked.contains_key(name), "{name} is presented, and its marker was never set");
        }
        let is_sure = |name: &&String| !self.marked[*name].removing;
        if let Some(newest) = self.promises.iter().rfind(is_sure) {
            let marked = &self.marked[newest];
            if marked.lost <= self.survives[newest.as_bytes()] {
                let promised = marked.began[marked.promised.expect("promised")];
                let is_as_new = |name: &str| self.marked[name].began.last() >= Some(&promised);
                assert!(
                    current.is_some_and(is_as_new),
                    "{newest} was promised, {} nodes were lost since, and {current:?} is presented",
                    marked.lost
                );
            } else {
                self.promises.clear();
                self.pointed = None;
            }
        }
        // What is presented is whole again, or will be. Older ones are not sure to be. Where
        // nothing was read, bytes that have gone bad may be found with the next ones.
        if !lazy {
            self.marked.values_mut().for_each(|marked| marked.flips = 0);
        }
        let is_whole = |name: &&str| !self.absent.contains(name.as_bytes());
        if let Some(marked) = current.filter(is_whole).and_then(|name| self.marked.get_mut(name)) {
            marked.lost = marked.flips;
        }
        // What is presented was not removed after all.
        if let Some(marked) = current.and_then(|name| self.marked.get_mut(name)) {
            marked.removing = false;
        }
    }

    /// Members of a dataset are on no node, or each is on its own again.
    pub(crate) fn lacks(&mut self, id: DatasetId, any: bool) {
        let name = self.names[&id].clone();
        if any {
            self.absent.insert(name);
        } else if self.absent.remove(&name)
            && let Some(marked) = std::str::from_utf8(&name).ok().and_then(|name| self.marked.get_mut(name))
        {
            marked.lost = marked.flips;
        }
    }
}

impl World {
    /// After a restart that presents `current`: the pointer file says the same everywhere, and
    /// names that dataset if that was the last that programs had it say.
    pub(crate) fn check_pointer(&self, current: Option<&str>) {
        let read = |machine: &Machine| {
            let fs = &machine.worker.fs;
            let inode = find(fs, POINTER).ok()?;
            let (tell, told) = channel();
            let done: Done<Opened> = Box::new(move |opened| drop(tell.send(opened)));
            fs.open(caller(), inode, libc::O_RDONLY, done);
            let opened = told.try_recv().expect("at once").expect("a pointer file");
            let mut bytes = vec![0; 64];
            let filled = fs.read(opened.fh, 0, &mut bytes).expect("a read");
            fs.release(opened.fh);
            Some(String::from_utf8(bytes[..filled].to_vec()).expect("text"))
        };
        let all: Vec<_> = self.machines.iter().map(read).collect();
        assert!(all.windows(2).all(|two| two[0] == two[1]), "{POINTER} differs: {all:?}");
        let said = all.first().cloned().flatten();
        if let Some((name, version)) = &self.programs.pointed
            && current == Some(name.as_str())
            && self.programs.marked[name].promised == Some(*version)
        {
            assert_eq!(said.as_deref(), current, "{POINTER}");
        }
        let first = |name: &str| self.programs.marked[name].began.first();
        let last = |name: &str| self.programs.marked[name].began.last();
        // A pointer to what was removed belongs to what was the newest before that.
        let is_known = |name: &&str| self.programs.marked.get(*name).is_none_or(|said| !said.is_odd);
        if let (Some(said), Some(current)) = (said.as_deref().filter(is_known), current.filter(is_known)) {
            assert!(self.programs.marked.contains_key(said), "{POINTER} has {said:?}");
            assert!(first(said) <= last(current), "{POINTER} has {said}, and {current} is presented");
        }
    }

    /// What a restart lists on each node is what was sealed, whole.
    pub(crate) fn check_listed(&self) {
        for machine in &self.machines {
            let fs = &machine.worker.fs;
            let found = files(fs);
            let mut by_name: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            for path in &found {
                if let Some((name, inner)) = path.split_once('/') {
                    by_name.entry(name).or_default().insert(inner);
                }
            }
            for (name, mut paths) in by_name {
                paths.remove(".complete");
                let marked = self.programs.marked.get(name);
                let marked = marked.unwrap_or_else(|| panic!("{name} is on {}", machine.host));
                let is_one =
                    marked.versions.iter().skip(marked.gone()).any(|files| files.keys().eq(paths.iter()));
                let versions: Vec<String> = marked.versions.iter().map(shown).collect();
                assert!(is_one, "{name} has {paths:?} on {}, not {versions:#?}", machine.host);
            }
        }
    }

    /// With everything at rest: each sealed dataset that is listed is read whole, from every node.
    pub(crate) fn read_all(&mut self) {
        self.programs.read.clear();
        for at in 0..self.machines.len() {
            for path in files(&self.machines[at].worker.fs) {
                if let Some((name, inner)) = path.split_once('/')
                    && inner != ".complete"
                {
                    self.read(at, name, inner);
                }
            }
        }
    }

    /// What was read is of one version each, which is not older than what was promised.
    pub(crate) fn check_read(&self) {
        for ((host, name), contents) in &self.programs.read {
            let marked = &self.programs.marked[name];
            let is_newest = self.programs.promises.last() == Some(name);
            let oldest = marked.promised.filter(|_| is_newest).unwrap_or(0).max(marked.gone());
            // Files that no source has any more cannot be opened, and all others are right.
            let may_lack = marked.flips > 0 && marked.lost > self.programs.survives[name.as_bytes()];
            let is_of = |version: &Contents| {
                let is_there = |(path, bytes): (&String, &Vec<u8>)| version.get(path) == Some(bytes);
                version == contents || may_lack && contents.iter().all(is_there)
            };
            let is_one = marked.versions.iter().skip(oldest).any(is_of);
            let versions: Vec<String> = marked.versions.iter().map(shown).collect();
            let read = shown(contents);
            assert!(is_one, "{name} is of no one version on {host}: {read}, not {oldest}.. of {versions:#?}");
        }
    }

    pub(crate) fn check_answered(&self) {
        let open: Vec<_> = self.programs.asked.values().collect();
        assert!(open.is_empty(), "never answered: {open:?}");
    }
}
