//! Programs that remove datasets, as `rm -r` does, and make others of the same names. Beside it,
//! what must come of that.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use scrfs::errno::Errno;
use scrfs::fs::Done;
use scrfs::ids::DatasetId;

use crate::checks::names;
use crate::markers::touch;
use crate::programs::{Asked, Marked, Programs, Stage, find};
use crate::world::World;

const ENOENT: Errno = Errno(libc::ENOENT);
/// Datasets that the caches keep for sure.
const KEPT: usize = 2;

/// A removal that runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) name: String,
    /// Where the directories are removed.
    host: String,
    /// Hosts and the files that they have yet to remove.
    files: Vec<(String, String)>,
    /// What is removed then, with the last one first.
    directories: Vec<String>,
    /// How much has not been answered yet.
    asked: usize,
    /// Its marker waited when it began: what is sealed may lack some files already.
    races: bool,
    /// What some host knew the dataset's directory by.
    known: (String, u64),
}

/// Of a dataset whose removal was answered.
#[derive(Debug)]
pub(crate) struct Removed {
    /// So many of its versions are gone.
    gone: usize,
    /// The highest id that was known then.
    id: Option<DatasetId>,
    /// Who was there then.
    witnesses: BTreeSet<String>,
}

/// All that was or is removed.
#[derive(Default)]
pub(crate) struct Removals {
    pub(crate) running: Option<Running>,
    /// Markers that had not been answered when their dataset's removal was, or were set afterwards.
    pub(crate) late: BTreeSet<u64>,
    /// A removal met a marker since the last restart. What is left then may be sealed: a next
    /// generation that began with the removal.
    pub(crate) raced: bool,
    /// What no newer datasets have taken from the caches.
    kept: BTreeMap<DatasetId, String>,
}

impl Marked {
    /// A marker of its next generation may wait. Where one node has changed a file and another one
    /// removes it, the change wins, so what is sealed then is not known.
    fn is_next(&self) -> bool {
        self.promised.is_some_and(|promised| promised != self.newest)
    }

    /// So many of its versions are not to be seen again.
    pub(crate) fn gone(&self) -> usize {
        self.removed.as_ref().map_or(0, |removed| removed.gone)
    }
}

impl Programs {
    /// A dataset is sealed, so the oldest ones leave the caches.
    pub(crate) fn keeps(&mut self, id: DatasetId, name: Vec<u8>) {
        let name = String::from_utf8(name).expect("its name");
        let kept = &mut self.removals.kept;
        if kept.iter().any(|(newer, other)| *other == name && *newer > id) {
            return;
        }
        kept.retain(|_, other| *other != name);
        kept.insert(id, name);
        while kept.len() > KEPT {
            kept.pop_first();
        }
        self.promises.retain(|name| kept.values().any(|other| other == name));
    }

    /// By which id it was sealed last, while the caches keep it.
    pub(crate) fn kept(&self, name: &str) -> Option<DatasetId> {
        self.removals.kept.iter().find(|(_, kept)| *kept == name).map(|(id, _)| *id)
    }

    /// A dataset other than the newest may leave the caches for want of room.
    pub(crate) fn evicts(&mut self, id: DatasetId) {
        let kept = &mut self.removals.kept;
        if kept.last_key_value().is_some_and(|(newest, _)| *newest != id)
            && let Some(name) = kept.remove(&id)
        {
            self.promises.retain(|other| *other != name);
        }
    }

    /// Nobody is to see it again.
    fn remove(&mut self, name: &str, witnesses: BTreeSet<String>) {
        let id = self.names.keys().next_back().copied();
        if let Some(marked) = self.marked.get_mut(name) {
            let gone = marked.versions.len();
            let removed = Some(Removed { gone, id, witnesses });
            let versions = std::mem::take(&mut marked.versions);
            let began = std::mem::take(&mut marked.began);
            *marked = Marked { versions, began, removed, is_odd: true, ..Marked::default() };
        }
        self.promises.retain(|other| other != name);
        self.removals.kept.retain(|_, other| other != name);
        let of_it = |asked: &Asked| matches!(asked, Asked::Marker(of, _) if of == name);
        let late = self.asked.iter().filter(|(_, (_, asked))| of_it(asked)).map(|(id, _)| *id);
        self.removals.late.extend(late);
        if self.pointed.as_ref().is_some_and(|(pointed, _)| pointed == name) {
            self.pointed = None;
        }
    }
}

impl World {
    /// A restart presents this one. Nobody has removed it, or it was copied to the prefix before.
    pub(crate) fn check_removed(&mut self, id: DatasetId, name: &str) {
        let hosts: BTreeSet<&String> = self.machines.iter().map(|machine| &machine.host).collect();
        let knows = |removed: &Removed| removed.witnesses.iter().any(|host| hosts.contains(host));
        for marked in self.programs.marked.values_mut() {
            marked.removed.take_if(|removed| !knows(removed));
        }
        let is_published = self.directory.path().join("pfs").join(name).exists();
        let Some(marked) = self.programs.marked.get_mut(name) else { return };
        if marked.removed.take_if(|removed| Some(id) <= removed.id).is_some() {
            assert!(is_published, "{name} ({id:?}) was removed, and is presented");
        }
    }

    /// A name to use again.
    pub(crate) fn removed_before(&mut self) -> Option<String> {
        if !self.rng.chance(40) {
            return None;
        }
        let is_gone = |name: &String, marked: &Marked| {
            let made =
                |asked: &Asked| matches!(asked, Asked::Mkdir(path) if path.split('/').next() == Some(name));
            let is_over = marked.removed.is_some() && marked.versions.len() == marked.gone();
            is_over && !self.programs.asked.values().any(|(_, asked)| made(asked))
        };
        let marked = self.programs.marked.iter().filter(|(name, marked)| is_gone(name, marked));
        let gone: Vec<String> = marked.map(|(name, _)| name.clone()).collect();
        let name = self.rng.pick(&gone).cloned()?;
        self.counts.remade += 1;
        Some(name)
    }

    /// A removal goes on.
    pub(crate) fn remove_on(&mut self, at: usize) {
        let Some(mut running) = self.programs.removals.running.take() else { return self.begin_removal(at) };
        if let Some((host, path)) = running.files.pop_if(|_| running.asked == 0 || !running.races) {
            running.asked += usize::from(self.unlink(&host, &running, &path));
        } else if running.asked == 0
            && let Some(path) = running.directories.pop()
        {
            running.asked += 1;
            self.rmdir(&running.host, &path);
        }
        self.programs.removals.running = Some(running);
    }

    /// What a program on this node would remove: what it lists there, or all of the files at once
    /// that are on all nodes.
    fn begin_removal(&mut self, at: usize) {
        let draft = self.programs.draft.as_ref();
        let draft = draft.filter(|draft| !matches!(draft.stage, Stage::Making(..)));
        let mut all: BTreeSet<String> = self.programs.marked.keys().cloned().collect();
        all.extend(draft.map(|draft| draft.name.clone()));
        all.retain(|name| find(&self.machines[at].worker.fs, name).is_ok());
        let all: Vec<String> = all.into_iter().collect();
        let Some(name) = self.rng.pick(&all).cloned().filter(|_| self.rng.chance(40)) else { return };
        let races = self.programs.is_marking(&name);
        if races && self.programs.marked.get(&name).is_some_and(Marked::is_next) {
            return;
        }
        if self.programs.draft.as_ref().is_some_and(|draft| draft.name == name) {
            self.programs.draft = None;
        }
        let all = if self.rng.chance(40) { 0..self.machines.len() } else { at..at + 1 };
        let (files, directories) = self.listed(all, &name);
        let other = &self.machines[self.rng.below(self.machines.len())];
        let known = (other.host.clone(), find(&other.worker.fs, &name).unwrap_or_default());
        self.programs.removals.raced |= races;
        if let Some(marked) = self.programs.marked.get_mut(&name) {
            (marked.changed, marked.broken) = (true, true);
            marked.is_odd |= races;
        }
        let host = self.machines[at].host.clone();
        self.say(|| format!("program on {host}: removes {name}, {files:?}, {directories:?}, races: {races}"));
        let running = Running { name, host, files, directories, asked: 0, races, known };
        self.programs.removals.running = Some(running);
    }

    /// Files of a dataset by host, as these nodes list them, and its directories.
    fn listed(&self, machines: Range<usize>, name: &str) -> (Vec<(String, String)>, Vec<String>) {
        let (mut files, mut directories) = (Vec::new(), BTreeSet::from([name.to_owned()]));
        for machine in &self.machines[machines] {
            let Ok(top) = find(&machine.worker.fs, name) else { continue };
            let mut found = BTreeSet::new();
            names(&machine.worker.fs, top, "", &mut found);
            for path in found {
                match path.strip_suffix('/') {
                    Some(path) => drop(directories.insert(format!("{name}/{path}"))),
                    None => files.push((machine.host.clone(), path)),
                }
            }
        }
        (files, directories.into_iter().collect())
    }

    /// False when that need not be asked.
    fn unlink(&mut self, host: &str, running: &Running, path: &str) -> bool {
        let Some(machine) = self.machines.iter().find(|machine| machine.host == *host) else { return false };
        let fs = Arc::clone(&machine.worker.fs);
        let full = format!("{}/{path}", running.name);
        let (above, last) = full.rsplit_once('/').expect("below its top");
        let Ok(parent) = find(&fs, above) else { return false };
        if running.races
            && let Some(marked) = self.programs.marked.get_mut(&running.name)
            && let Some(mut version) = marked.versions.last().cloned()
            && version.remove(path).is_some()
        {
            marked.versions.push(version);
            marked.began.push(self.programs.next);
        }
        let (id, tell) = self.ask(host.to_owned(), Asked::Unlink(running.name.clone(), path.to_owned()));
        let done: Done<()> = Box::new(move |gone| {
            let _ = tell.send((id, gone.map(|()| 0)));
        });
        let (me, last) = (self.caller(), last.as_bytes().to_vec());
        self.go(move || fs.unlink(me, parent, &last, done));
        true
    }

    pub(crate) fn unlinked(&mut self, name: &str, path: &str, outcome: Result<u64, Errno>) {
        let running = self.programs.removals.running.as_mut().filter(|running| running.name == name);
        let Some(running) = running else { return };
        running.asked -= 1;
        // Another process may have removed it first.
        if outcome.is_err_and(|error| error != ENOENT) {
            let path = path.to_owned();
            self.say(|| format!("the removal of {path} ends the whole"));
            self.programs.removals.running = None;
        }
    }

    fn rmdir(&mut self, host: &str, path: &str) {
        let (id, tell) = self.ask(host.to_owned(), Asked::Rmdir(path.to_owned()));
        let machine = self.machines.iter().find(|machine| machine.host == host);
        let fs = machine.map(|machine| Arc::clone(&machine.worker.fs));
        let (above, last) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = |fs: &Arc<_>| if above.is_empty() { Ok(scrfs::fs::ROOT) } else { find(fs, above) };
        let Some((fs, parent)) = fs.and_then(|fs| parent(&fs).ok().map(|parent| (fs, parent))) else {
            let _ = tell.send((id, Err(ENOENT)));
            return;
        };
        if above.is_empty()
            && let Some(marked) = self.programs.marked.get_mut(path)
        {
            marked.removing = true;
        }
        let done: Done<()> = Box::new(move |gone| {
            let _ = tell.send((id, gone.map(|()| 0)));
        });
        let (me, last) = (self.caller(), last.as_bytes().to_vec());
        self.go(move || fs.rmdir(me, parent, &last, done));
    }

    pub(crate) fn rmdir_ended(&mut self, path: &str, outcome: Result<u64, Errno>) {
        let Some(mut running) = self.programs.removals.running.take() else { return };
        running.asked -= 1;
        let is_top = path == running.name;
        match outcome {
            // Otherwise only this node has removed it.
            Ok(_) if is_top && self.lead.is_some() => self.removed(&running),
            Ok(_) if is_top => {}
            Ok(_) | Err(ENOENT) => self.programs.removals.running = Some(running),
            Err(Errno(libc::ENOTEMPTY | libc::EBUSY)) => {
                if let Some(marked) = self.programs.marked.get_mut(&running.name) {
                    marked.removing = false;
                }
            }
            Err(_) => {}
        }
    }

    /// A dataset is gone everywhere.
    fn removed(&mut self, running: &Running) {
        let name = &running.name;
        for machine in &self.machines {
            let found = find(&machine.worker.fs, name);
            assert_eq!(found, Err(ENOENT), "{name} was removed, and is on {}", machine.host);
        }
        let hosts = self.machines.iter().map(|machine| machine.host.clone()).collect();
        self.programs.remove(name, hosts);
        self.counts.removals += 1;
        let (host, inode) = &running.known;
        let machine = self.machines.iter().find(|machine| machine.host == *host);
        if let Some(machine) = machine
            && self.programs.marked.contains_key(name)
            && self.rng.chance(50)
        {
            // A process there is still in the directory.
            let fs = Arc::clone(&machine.worker.fs);
            let (id, tell) = self.ask(host.clone(), Asked::Marker(name.clone(), 0));
            self.programs.removals.late.insert(id);
            touch(&fs, self.caller(), *inode, (id, tell));
        }
    }
}
