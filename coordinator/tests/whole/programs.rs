//! A parallel program: its ranks make one checkpoint after another, set markers, read what is
//! sealed from other nodes, and change it. Beside it, what must come of all that.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use scrfs::caller::Caller;
use scrfs::dataset::{Catalog, Layout, Revision};
use scrfs::errno::Errno;
use scrfs::fs::ROOT;
use scrfs::fs::{Done, FileSystem, Opened};
use scrfs::ids::{DatasetId, Epoch};
use scrfs::redundancy::sets::at_risk;

use crate::machine::Machine;
use crate::removals::{Removals, Removed};
use crate::rng::Rng;
use crate::world::World;

/// open(2) for writing, of a file that may not be there.
pub(crate) const MAKE: i32 = libc::O_RDWR | libc::O_CREAT;
/// Names the dataset whose marker was answered last.
pub(crate) const POINTER: &str = "latest";

/// What is in a dataset, by path.
pub(crate) type Contents = BTreeMap<String, Vec<u8>>;

/// A request that waits for its answer.
#[derive(Debug, Clone)]
pub(crate) enum Asked {
    Mkdir(String),
    /// Of this version of a dataset.
    Marker(String, usize),
    /// Of a file of a dataset that is being removed.
    Unlink(String, String),
    /// Of a directory of a dataset, or of its own.
    Rmdir(String),
    /// Read all of `path` in a dataset.
    Read(String, String),
    /// Make a file of a sealed dataset anew with these bytes, or remove it.
    Change(String, String, Option<Vec<u8>>),
    /// Exchange two directories, of which this one has a third in it.
    Exchange(String),
    /// Have the pointer file name this dataset.
    Point(String),
}

pub(crate) type Answer = (u64, Result<u64, Errno>);

/// How far the checkpoint that is being written is.
#[derive(Debug, PartialEq)]
pub(crate) enum Stage {
    /// Its directories are being made: how many are left, and is one asked for?
    Making(Vec<String>, bool),
    /// Hosts and the files that they have yet to write.
    Writing(Vec<(usize, String)>),
    /// What is yet to be changed in a sealed dataset, and is one change asked for?
    Changing(Vec<String>, bool),
    /// How many markers are to be answered, and has one of them succeeded?
    Marking(usize, bool),
    /// Its marker has been answered; is the pointer file asked for?
    Pointing(bool),
}

#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) name: String,
    pub(crate) stage: Stage,
    pub(crate) files: Contents,
    /// How often its markers have failed.
    pub(crate) failed: usize,
}

/// A dataset whose marker was set.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "what a test knows of it")]
pub(crate) struct Marked {
    /// What may be sealed under this name: the newest last.
    pub(crate) versions: Vec<Contents>,
    /// That for which a marker was set last.
    pub(crate) newest: usize,
    /// The marker's close has returned 0 for all versions up to this one.
    pub(crate) promised: Option<usize>,
    /// When each version was complete; it counts up.
    pub(crate) began: Vec<u64>,
    /// Nodes lost since then.
    pub(crate) lost: u32,
    /// Of these, nodes with a bit that has flipped, and that a restart may have presented unread
    /// since.
    pub(crate) flips: u32,
    /// It is being changed, or nobody knows what of that was done.
    pub(crate) changed: bool,
    /// When a marker of it succeeded last, and of which version.
    pub(crate) succeeded: Option<(Epoch, usize)>,
    /// A marker that was set where nothing was changed, and in which epoch.
    pub(crate) again: Option<(u64, Epoch)>,
    /// A removal of it ended half-way: what programs see of it is not known.
    pub(crate) broken: bool,
    /// Its directory's removal was asked for, and has not failed: it may be gone.
    pub(crate) removing: bool,
    pub(crate) removed: Option<Removed>,
    /// It was removed, or its removal met a marker: when its versions began is not known.
    pub(crate) is_odd: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Programs {
    pub(crate) draft: Option<Draft>,
    pub(crate) removals: Removals,
    /// Hosts and the files there with bits that have flipped since the last restart. Who opens
    /// them there reads what is there.
    pub(crate) flipped: BTreeSet<(String, String)>,
    pub(crate) marked: BTreeMap<String, Marked>,
    /// The datasets whose marker's close has returned 0, in that order.
    pub(crate) promises: Vec<String>,
    pub(crate) asked: BTreeMap<u64, (String, Asked)>,
    pub(crate) next: u64,
    /// An exchange of directories may yet be done that nobody waits for.
    pub(crate) unsure: bool,
    /// What `next` was when this epoch began.
    pub(crate) since: u64,
    answers: Option<(Sender<Answer>, Receiver<Answer>)>,
    process: Option<Process>,
    /// How many nodes of those that have it may be lost, by the newest catalog.
    pub(crate) survives: BTreeMap<Vec<u8>, u32>,
    /// When what the prefix has of each name began, at least.
    pub(crate) published: BTreeMap<String, u64>,
    /// What was read, by host and dataset.
    pub(crate) read: BTreeMap<(String, String), Contents>,
    /// Of which datasets catalogs were committed, and which were said to be sealed.
    pub(crate) names: BTreeMap<DatasetId, Vec<u8>>,
    /// The same of all branches.
    branches: BTreeMap<(Epoch, DatasetId), Vec<u8>>,
    /// Names of datasets with members that no node has.
    pub(crate) absent: BTreeSet<Vec<u8>>,
    said: BTreeSet<DatasetId>,
    /// What programs had the pointer file say last, after which of its versions was marked; none:
    /// that is not known.
    pub(crate) pointed: Option<(String, usize)>,
}

impl Programs {
    /// All processes are gone.
    pub(crate) fn end(&mut self) {
        (self.draft, self.removals.running, self.unsure) = (None, None, false);
        self.removals.raced = false;
        self.asked.clear();
        (self.answers, self.process) = (None, None);
        for marked in self.marked.values_mut() {
            (marked.changed, marked.broken) = (false, false);
        }
    }

    pub(crate) fn run(&mut self) {
        self.answers.get_or_insert_with(channel);
        self.process.get_or_insert_with(Process::start);
    }

    /// What was asked on this host is never answered.
    pub(crate) fn forget(&mut self, host: &str) {
        let gone: Vec<u64> = self.asked.iter().filter(|(_, (on, _))| on == host).map(|(id, _)| *id).collect();
        for id in gone {
            match self.asked.remove(&id) {
                Some((_, Asked::Read(..))) | None => {}
                Some((_, Asked::Exchange(_))) => self.unsure = true,
                Some((_, Asked::Unlink(..) | Asked::Rmdir(_))) => self.removals.running = None,
                Some(_) => self.draft = None,
            }
        }
    }

    /// A marker of it has not been answered.
    pub(crate) fn is_marking(&self, name: &str) -> bool {
        self.asked.values().any(|(_, asked)| matches!(asked, Asked::Marker(of, _) if of == name))
    }

    /// This version of a dataset, or a newer one, survives from now on.
    pub(crate) fn promise(&mut self, name: &str, version: usize) {
        let marked = self.marked.get_mut(name).expect("its marker was set");
        // Nobody looks again at what was sealed before.
        if marked.promised != Some(version) {
            (marked.lost, marked.flips) = (0, 0);
        }
        marked.promised = Some(version);
        marked.changed = false;
        self.promises.retain(|other| other != name);
        self.promises.push(name.to_owned());
    }

    pub(crate) fn lost(&mut self) {
        self.marked.values_mut().for_each(|marked| marked.lost += 1);
    }

    pub(crate) fn commits(&mut self, catalog: &Catalog) {
        self.branches.insert((catalog.epoch, catalog.id), catalog.name.clone());
        self.protects(catalog.id, catalog.name.clone(), &catalog.layout);
    }

    /// It has other places or sets.
    pub(crate) fn revises(&mut self, revision: &Revision) {
        let name = self.branches.get(&(revision.epoch, revision.id)).cloned();
        self.protects(revision.id, name.expect("it was committed before"), &revision.layout);
    }

    fn protects(&mut self, id: DatasetId, name: Vec<u8>, layout: &Layout) {
        let Layout { members, sets, .. } = layout;
        let scheme = layout.scheme();
        let hosts: Vec<&str> = members.iter().map(|member| member.host.as_str()).collect();
        let are_apart = hosts.iter().collect::<BTreeSet<_>>().len() == hosts.len();
        let survives = match sets.iter().map(Vec::len).min() {
            Some(smallest) if are_apart => scheme.losses(smallest),
            _ => usize::from(at_risk(scheme, sets, &hosts) == 0),
        };
        self.survives.insert(name.clone(), u32::try_from(survives).expect("few"));
        self.names.insert(id, name.clone());
        self.keeps(id, name);
    }

    /// All nodes have recorded it as complete, whether its marker was waited for or not.
    /// Coordinators that were started again may say so again.
    pub(crate) fn sealed(&mut self, id: DatasetId) {
        let name = &self.names[&id];
        if self.said.insert(id) && self.survives.contains_key(name) {
            let name = String::from_utf8(name.clone()).expect("its name");
            self.promise(&name, self.marked[&name].newest);
        }
    }
}

/// Of this process, which looks on.
pub(crate) fn caller() -> Caller {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Caller { tid: 0, uid, gid, unique: 0 }
}

/// Requests are a process's, so that nodes see it die.
struct Process(Child);

impl Process {
    fn start() -> Self {
        Self(std::process::Command::new("sleep").arg("infinity").spawn().expect("a process"))
    }

    fn caller(&self) -> Caller {
        Caller { tid: self.0.id(), ..caller() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

pub(crate) fn find(fs: &FileSystem, path: &str) -> Result<u64, Errno> {
    path.split('/').try_fold(ROOT, |parent, name| Ok(fs.lookup(parent, name.as_bytes())?.attr.nodeid))
}

fn contents(rng: &mut Rng) -> Vec<u8> {
    let size = *rng.pick(&[0, 1, 700, 1024, 3000]).expect("some");
    let salt = rng.number();
    (0..size).map(|at: u64| (salt.wrapping_add(at * 131) >> 3).to_le_bytes()[0]).collect()
}

/// Makes a file with these bytes, in a directory that is there and not frozen.
fn write(machine: &Machine, directory: &str, name: &str, bytes: &[u8]) {
    let fs = &machine.worker.fs;
    let parent = find(fs, directory);
    let parent = parent.unwrap_or_else(|e| panic!("{directory} is not on {}: {e}", machine.host));
    let (tell, told) = channel();
    let done: Done<_> = Box::new(move |outcome| drop(tell.send(outcome)));
    fs.create(caller(), parent, name.as_bytes(), 0o644, MAKE, done);
    let outcome = told.try_recv().unwrap_or_else(|_| panic!("{directory}/{name} waits on {}", machine.host));
    let (_, opened) = outcome.unwrap_or_else(|e| panic!("{directory}/{name} on {}: {e}", machine.host));
    assert_eq!(fs.write(caller(), opened.fh, 0, bytes), Ok(bytes.len()));
    fs.release(opened.fh);
}

impl World {
    /// Of the program.
    pub(crate) fn caller(&self) -> Caller {
        self.programs.process.as_ref().expect("programs run").caller()
    }

    pub(crate) fn ask(&mut self, host: String, asked: Asked) -> (u64, Sender<Answer>) {
        let id = self.programs.next;
        self.programs.next += 1;
        self.say(|| format!("program on {host}: {asked:?} ({id})"));
        self.programs.asked.insert(id, (host, asked));
        (id, self.programs.answers.as_ref().expect("programs run").0.clone())
    }

    /// A rank does something.
    pub(crate) fn act(&mut self) {
        let at = self.rng.below(self.machines.len());
        match self.rng.below(11) {
            0..=5 => self.write_on(),
            6 | 7 => self.read_some(at),
            8 => self.remove_on(at),
            10 if self.rng.chance(50) => self.exchange(at),
            9 if self.flipping && self.rng.chance(30) => self.flip_sealed(at),
            9 if self.rng.chance(30) => self.mark_again(at),
            _ => {}
        }
    }

    /// The checkpoint goes on.
    pub(crate) fn write_on(&mut self) {
        let Some(mut draft) = self.programs.draft.take() else { return self.begin_checkpoint() };
        match &mut draft.stage {
            Stage::Making(left, asked) => {
                if let Some(path) = left.first().cloned().filter(|_| !*asked) {
                    *asked = true;
                    self.mkdir(&path);
                }
            }
            Stage::Writing(left) => match left.pop() {
                Some((at, path)) => {
                    let bytes = contents(&mut self.rng);
                    let machine = &self.machines[at % self.machines.len()];
                    let (directory, name) = path.rsplit_once('/').expect("in a directory");
                    write(machine, directory, name, &bytes);
                    let host = machine.host.clone();
                    self.say(|| format!("program on {host}: {path} has {} bytes", bytes.len()));
                    let inner = path.split_once('/').expect("below its top").1.to_owned();
                    draft.files.insert(inner, bytes);
                }
                None => self.end_draft(&mut draft),
            },
            Stage::Changing(left, asked) if !*asked => match left.pop() {
                Some(path) => {
                    *asked = true;
                    self.change(&draft.name, &path);
                }
                None => self.end_draft(&mut draft),
            },
            Stage::Pointing(asked) if !*asked => {
                *asked = true;
                self.point(&draft.name);
            }
            Stage::Changing(..) | Stage::Pointing(_) | Stage::Marking(..) => {}
        }
        self.programs.draft = Some(draft);
    }

    /// The next generation of what was sealed last.
    pub(crate) fn begin_generation(&mut self) -> Option<Draft> {
        let name = self.programs.promises.last()?.clone();
        if self.programs.is_marking(&name) {
            return None;
        }
        let marked = self.programs.marked.get_mut(&name)?;
        // Else it may not be what programs see.
        let is_newest = marked.promised.map(|promised| promised + 1) == Some(marked.versions.len());
        if marked.changed || marked.broken || marked.removing || !is_newest {
            return None;
        }
        marked.changed = true;
        let files = marked.versions.last().expect("one").clone();
        let mut paths: Vec<String> = files.keys().filter(|_| self.rng.chance(50)).cloned().collect();
        // A marker that is set where nothing was changed begins no generation.
        if paths.is_empty() || self.rng.chance(30) {
            paths.push(format!("new{}", self.programs.next));
        }
        Some(Draft { name, stage: Stage::Changing(paths, false), files, failed: 0 })
    }

    /// A rank makes a file of a sealed dataset anew, or removes it.
    fn change(&mut self, name: &str, path: &str) {
        let at = self.rng.below(self.machines.len());
        let stays = path.starts_with("new") || !self.rng.chance(20);
        let bytes = stays.then(|| contents(&mut self.rng));
        let machine = &self.machines[at];
        let (fs, host) = (Arc::clone(&machine.worker.fs), machine.host.clone());
        let asked = Asked::Change(name.to_owned(), path.to_owned(), bytes.clone());
        let (id, tell) = self.ask(host, asked);
        let full = format!("{name}/{path}");
        let (above, last) = full.rsplit_once('/').expect("below its top");
        let Ok(parent) = find(&fs, above) else {
            // It has left the caches.
            let _ = tell.send((id, Err(Errno(2))));
            return;
        };
        let (me, last) = (self.caller(), last.as_bytes().to_vec());
        if bytes.is_none() {
            let done: Done<()> = Box::new(move |gone| {
                let _ = tell.send((id, gone.map(|()| 0)));
            });
            self.go(move || fs.unlink(me, parent, &last, done));
        } else {
            let done: Done<(_, Opened)> = Box::new(move |created| {
                let _ = tell.send((id, created.map(|(_, opened)| opened.fh)));
            });
            let flags = MAKE | libc::O_TRUNC;
            self.go(move || fs.create(me, parent, &last, 0o644, flags, done));
        }
    }

    fn changed(
        &mut self,
        host: &str,
        (name, path): (&str, &str),
        bytes: Option<Vec<u8>>,
        done: Result<u64, Errno>,
    ) {
        let removed = bytes.is_none() && done == Err(Errno(2));
        let fh = match done {
            Ok(fh) => fh,
            Err(_) if removed => 0,
            Err(_) => return self.programs.draft = None,
        };
        let Some(machine) = self.machines.iter().find(|machine| machine.host == host) else { return };
        if let Some(bytes) = &bytes {
            let fs = &machine.worker.fs;
            assert_eq!(fs.write(caller(), fh, 0, bytes), Ok(bytes.len()));
            fs.release(fh);
        }
        let Some(draft) = self.programs.draft.as_mut().filter(|draft| draft.name == name) else { return };
        let Stage::Changing(_, asked) = &mut draft.stage else { return };
        *asked = false;
        match bytes {
            Some(bytes) => drop(draft.files.insert(path.to_owned(), bytes)),
            None => drop(draft.files.remove(path)),
        }
        self.counts.changes += 1;
    }

    fn begin_checkpoint(&mut self) {
        if self.rng.chance(35)
            && let Some(draft) = self.begin_generation()
        {
            self.programs.draft = Some(draft);
            return;
        }
        let name = self.removed_before().unwrap_or_else(|| format!("ck{}", self.programs.next));
        let mut directories = vec![name.clone()];
        if self.rng.chance(30) {
            directories.push(format!("{name}/d"));
        }
        let stage = Stage::Making(directories, false);
        self.programs.draft = Some(Draft { name, stage, files: Contents::new(), failed: 0 });
        self.write_on();
    }

    fn mkdir(&mut self, path: &str) {
        let at = self.rng.below(self.machines.len());
        let machine = &self.machines[at];
        let (fs, host) = (Arc::clone(&machine.worker.fs), machine.host.clone());
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = if above.is_empty() { Ok(ROOT) } else { find(&fs, above) };
        let parent = parent.unwrap_or_else(|e| panic!("{above} is not on {host}: {e}"));
        let (id, tell) = self.ask(host, Asked::Mkdir(path.to_owned()));
        let done: Done<_> = Box::new(move |made| {
            let _ = tell.send((id, made.map(|_| 0)));
        });
        fs.mkdir(self.caller(), parent, name.as_bytes(), 0o755, done);
    }

    /// Reads a file of a sealed dataset, where it was written or elsewhere.
    fn read_some(&mut self, at: usize) {
        let sealed = self.programs.marked.iter().filter(|(_, marked)| marked.promised.is_some());
        let names: Vec<String> = sealed.map(|(name, _)| name.clone()).collect();
        let Some(name) = self.rng.pick(&names).cloned() else { return };
        let marked = &self.programs.marked[&name];
        let paths: Vec<&String> = marked.versions.last().expect("one").keys().collect();
        if let Some(path) = self.rng.pick(&paths).map(|path| (*path).clone()) {
            self.read(at, &name, &path);
        }
    }

    pub(crate) fn read(&mut self, at: usize, name: &str, path: &str) {
        let machine = &self.machines[at];
        let (fs, host) = (Arc::clone(&machine.worker.fs), machine.host.clone());
        // It may have left the caches.
        let Ok(inode) = find(&fs, &format!("{name}/{path}")) else { return };
        let (id, tell) = self.ask(host, Asked::Read(name.to_owned(), path.to_owned()));
        let done: Done<_> = Box::new(move |opened: Result<Opened, Errno>| {
            let _ = tell.send((id, opened.map(|opened| opened.fh)));
        });
        fs.open(caller(), inode, libc::O_RDONLY, done);
    }

    /// Answers that have come.
    pub(crate) fn hear(&mut self) {
        while let Some((id, outcome)) =
            self.programs.answers.as_ref().and_then(|(_, answers)| answers.try_recv().ok())
        {
            let Some((host, asked)) = self.programs.asked.remove(&id) else { continue };
            self.say(|| format!("program on {host}: {asked:?} ({id}) is answered: {outcome:?}"));
            match asked {
                Asked::Mkdir(path) => self.made(&path, outcome),
                Asked::Marker(name, version) => self.marked(id, (&name, version), outcome),
                Asked::Unlink(name, path) => self.unlinked(&name, &path, outcome),
                Asked::Rmdir(path) => self.rmdir_ended(&path, outcome),
                Asked::Read(name, path) => self.opened(id, (&host, &name, &path), outcome),
                Asked::Exchange(from) => self.exchanged(&from, outcome),
                Asked::Point(name) => self.pointed(&name, outcome),
                Asked::Change(name, path, bytes) => self.changed(&host, (&name, &path), bytes, outcome),
            }
        }
    }

    fn made(&mut self, path: &str, outcome: Result<u64, Errno>) {
        let count = self.machines.len();
        let of_it = |draft: &&mut Draft| path.split('/').next() == Some(&draft.name);
        let Some(draft) = self.programs.draft.as_mut().filter(of_it) else { return };
        let Stage::Making(left, asked) = &mut draft.stage else { panic!("{path} was asked for once") };
        if outcome.is_err() {
            // Coordinators were away for too long.
            self.programs.draft = None;
            return;
        }
        *asked = false;
        left.retain(|other| other != path);
        if left.is_empty() {
            let mut all = Vec::new();
            for at in 0..count {
                for number in 0..self.rng.below(4) {
                    let below = if path.contains('/') && self.rng.chance(50) { "/d" } else { "" };
                    all.push((at, format!("{}{below}/f{at}.{number}", draft.name)));
                }
            }
            draft.stage = Stage::Writing(all);
        }
    }

    /// The pointer file names a dataset.
    fn point(&mut self, name: &str) {
        let at = self.rng.below(self.machines.len());
        let machine = &self.machines[at];
        let (fs, host) = (Arc::clone(&machine.worker.fs), machine.host.clone());
        self.programs.pointed = None;
        let (id, tell) = self.ask(host, Asked::Point(name.to_owned()));
        let me = self.caller();
        let (closes, text) = (Arc::clone(&fs), name.as_bytes().to_vec());
        let done: Done<(_, Opened)> = Box::new(move |created| match created {
            Ok((_, opened)) => {
                let (fh, files) = (opened.fh, Arc::clone(&closes));
                assert_eq!(closes.write(caller(), fh, 0, &text), Ok(text.len()));
                let done: Done<()> = Box::new(move |closed| {
                    files.release(fh);
                    let _ = tell.send((id, closed.map(|()| 0)));
                });
                closes.flush(me, fh, done);
            }
            Err(error) => drop(tell.send((id, Err(error)))),
        });
        let flags = MAKE | libc::O_TRUNC;
        fs.create(me, ROOT, POINTER.as_bytes(), 0o644, flags, done);
    }

    fn pointed(&mut self, name: &str, outcome: Result<u64, Errno>) {
        if self.programs.draft.as_ref().is_some_and(|draft| draft.name == name) {
            self.programs.draft = None;
        }
        let version = self.programs.marked[name].versions.len() - 1;
        // Else it may belong to what began later than this one.
        let is_sure = outcome.is_ok() && !self.programs.removals.raced;
        self.programs.pointed = is_sure.then(|| (name.to_owned(), version));
        self.counts.pointers += u64::from(outcome.is_ok());
    }

    fn opened(&mut self, id: u64, (host, name, path): (&str, &str, &str), outcome: Result<u64, Errno>) {
        let fh = match outcome {
            Ok(fh) => fh,
            Err(error) => return self.check_unread(id, (host, name, path), error),
        };
        let Some(machine) = self.machines.iter().find(|machine| machine.host == host) else { return };
        let mut bytes = vec![0; 8192];
        let filled = machine.worker.fs.read(fh, 0, &mut bytes).expect("a read");
        machine.worker.fs.release(fh);
        bytes.truncate(filled);
        let marked = &self.programs.marked[name];
        if marked.changed || self.programs.flipped.contains(&(host.to_owned(), format!("{name}/{path}"))) {
            return;
        }
        let known = marked.versions.iter().any(|version| version.get(path) == Some(&bytes));
        assert!(known, "{name}/{path} has other bytes on {host} than were sealed");
        self.counts.read += 1;
        let whole = self.programs.read.entry((host.to_owned(), name.to_owned())).or_default();
        whole.insert(path.to_owned(), bytes);
    }
}
