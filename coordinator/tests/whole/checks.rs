//! What a restart presents, and what is read then, is what was sealed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::channel;

use scrfs::errno::Errno;
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

/// All that is in the mount.
pub(crate) fn all(fs: &FileSystem) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    names(fs, ROOT, "", &mut found);
    found
}

/// The files of datasets that are listed in the mount, by their datasets. Markers are not data.
fn files(fs: &FileSystem) -> BTreeMap<String, BTreeSet<String>> {
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in all(fs) {
        let Some((name, inner)) = path.split_once('/') else { continue };
        let files = files.entry(name.to_owned()).or_default();
        if !inner.is_empty() && !inner.ends_with('/') && inner != ".complete" {
            files.insert(inner.to_owned());
        }
    }
    files
}

impl Programs {
    /// A restart presents this dataset, in a version that `began` then. What was promised last and
    /// can be had must be it, or be older. True: something was.
    pub(crate) fn present(&mut self, current: Option<&str>, began: Option<u64>, lazy: bool) -> bool {
        self.flipped.clear();
        let is_sure = |name: &&String| !self.marked[*name].removing;
        let mut is_bound = false;
        if let Some(newest) = self.promises.iter().rfind(is_sure) {
            let marked = &self.marked[newest];
            is_bound = marked.lost <= self.survives[newest.as_bytes()];
            if is_bound {
                let promised = marked.began[marked.promised.expect("promised")];
                assert!(
                    began >= Some(promised),
                    "{newest} was promised, {} nodes were lost since, and {current:?} is presented as it was \
                     at {began:?}, and not at {promised} or later",
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
        is_bound
    }

    /// Of what was promised last, this version or a newer one is to be seen.
    fn oldest(&self, name: &str) -> usize {
        let marked = &self.marked[name];
        let is_newest = self.promises.last().is_some_and(|newest| newest == name);
        marked.promised.filter(|_| is_newest).unwrap_or(0).max(marked.gone())
    }

    /// Files that no source has any more cannot be opened, and all others are right.
    fn may_lack(&self, name: &str) -> bool {
        let marked = &self.marked[name];
        marked.flips > 0 && marked.lost > self.survives[name.as_bytes()]
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

    /// A restart presents `current`: what it lists was sealed, whole, and is what was promised.
    pub(crate) fn check_presented(&mut self, current: Option<&str>) {
        let listed = self.listed_versions();
        let version = current.map(|name| {
            let versions = listed.get(name).unwrap_or_else(|| panic!("{name} is presented, and not listed"));
            *versions.last().expect("one at least")
        });
        let began = current.zip(version).map(|(name, version)| self.programs.marked[name].began[version]);
        let published = self.newest_published().filter(|_| self.settings.fetch);
        assert!(
            began >= published.as_ref().map(|(began, _)| *began),
            "{published:?} is in the prefix, and {current:?} is presented as it was at {began:?}"
        );
        let is_bound = self.programs.present(current, began, self.settings.restart.lazy);
        self.counts.owed += u64::from(is_bound || published.is_some());
        self.counts.fallbacks += u64::from(!is_bound && published.is_some());
        for (name, versions) in &listed {
            let oldest = self.programs.oldest(name);
            assert!(
                versions.last() >= Some(&oldest),
                "{name} is listed as it was in version {versions:?}, and {oldest} was promised"
            );
        }
    }

    /// Which versions the datasets may be that are listed: the same names on all nodes, and the
    /// bytes of one version in all files that are in some mounted tree.
    fn listed_versions(&mut self) -> BTreeMap<String, Vec<usize>> {
        let first = all(&self.machines[0].worker.fs);
        for machine in &self.machines {
            let here = all(&machine.worker.fs);
            let differ: Vec<_> = here.symmetric_difference(&first).collect();
            assert!(differ.is_empty(), "{differ:?} not on all of {} and the first node", machine.host);
        }
        let mut listed = BTreeMap::new();
        for (name, paths) in files(&self.machines[0].worker.fs) {
            let marked = self.programs.marked.get(&name);
            let marked = marked.unwrap_or_else(|| panic!("{name} is listed, and its marker was never set"));
            // A lazy restart has read nothing yet.
            let is_read = !self.settings.restart.lazy || marked.flips == 0;
            let mut local = Vec::new();
            for machine in self.machines.iter().filter(|_| is_read) {
                let read = |path: &String| Some((path.clone(), machine.in_tree(&format!("{name}/{path}"))?));
                local.extend(paths.iter().filter_map(read));
            }
            let is_of = |(version, files): (usize, &Contents)| {
                let is_there = |(path, bytes): &(String, Vec<u8>)| files.get(path) == Some(bytes);
                let is_it = files.keys().eq(&paths) && local.iter().all(is_there);
                is_it.then_some(version)
            };
            let versions = marked.versions.iter().enumerate().skip(marked.gone());
            let versions: Vec<usize> = versions.filter_map(is_of).collect();
            let known: Vec<String> = marked.versions.iter().map(shown).collect();
            let local_shown: Vec<String> =
                local.iter().map(|(path, bytes)| format!("{path}:{:x}", crc32fast::hash(bytes))).collect();
            assert!(
                !versions.is_empty(),
                "{name} has {paths:?}, on their nodes {local_shown:?}, which is none of {known:#?}"
            );
            self.counts.compared += local.len() as u64;
            listed.insert(name, versions);
        }
        listed
    }

    /// When the newest began of what was published and nobody has removed.
    fn newest_published(&self) -> Option<(u64, String)> {
        let is_known = |name: &str| {
            let marked = &self.programs.marked[name];
            !marked.removing && !marked.is_odd && marked.removed.is_none()
        };
        let known = self.programs.published.iter().filter(|(name, _)| is_known(name));
        known.map(|(name, began)| (*began, name.clone())).max()
    }

    /// With everything at rest: each sealed dataset that is listed is read whole, from every node.
    pub(crate) fn read_all(&mut self) {
        self.programs.read.clear();
        for at in 0..self.machines.len() {
            for (name, paths) in files(&self.machines[at].worker.fs) {
                for path in &paths {
                    self.read(at, &name, path);
                }
            }
        }
    }

    /// What was read is of one version each, which is not older than what was promised. All that is
    /// listed was read.
    pub(crate) fn check_read(&self) {
        for machine in &self.machines {
            for (name, paths) in files(&machine.worker.fs) {
                let read = self.programs.read.get(&(machine.host.clone(), name.clone()));
                let unread =
                    paths.iter().filter(|path| read.is_none_or(|read| !read.contains_key(path.as_str())));
                let unread: Vec<_> = unread.collect();
                let may_lack = self.programs.may_lack(&name);
                assert!(
                    unread.is_empty() || may_lack,
                    "{unread:?} of {name} cannot be read on {}",
                    machine.host
                );
            }
        }
        for ((host, name), contents) in &self.programs.read {
            let marked = &self.programs.marked[name];
            let (oldest, may_lack) = (self.programs.oldest(name), self.programs.may_lack(name));
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

    /// A sealed file could not be opened. It may be gone by now; that no source has it needs a
    /// cause.
    pub(crate) fn check_unread(&self, id: u64, (host, name, path): (&str, &str, &str), error: Errno) {
        let marked = &self.programs.marked[name];
        let is_fine = !self.failing() && self.lead.is_some() && id >= self.programs.since;
        let is_still = !marked.changed && !marked.broken && !marked.removing && marked.lost == 0;
        let is_gone = matches!(error, Errno(libc::ENOENT | libc::ESTALE));
        assert!(!is_fine || !is_still || is_gone, "{name}/{path} on {host} ({id}): {error}");
    }

    pub(crate) fn check_answered(&self) {
        let open: Vec<_> = self.programs.asked.values().collect();
        assert!(open.is_empty(), "never answered: {open:?}");
    }
}
