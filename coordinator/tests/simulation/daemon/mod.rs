//! A model of a daemon: what it must remember, and how it answers commands. Contents of files are
//! numbers; size and CRC follow from them.

mod datasets;
mod directories;
pub(crate) mod loose;
mod member;

use std::collections::{BTreeMap, BTreeSet};

use scrfs::control::loose::Age;
use scrfs::control::{
    Advice, Command, DirOp, Event, FetchFailure, FrozenFile, HeldState, MarkerOutcome, Reason, Room,
    SealedFile,
};
use scrfs::dataset::{Catalog, Entry, EntryKind, Stamp};
use scrfs::ids::{DatasetId, Epoch, Member, RequestId};
use scrfs::path::RelPath;

pub(crate) use self::directories::{op_paths, rename, top_of};
pub(crate) use self::member::MemberData;
use crate::observer::Key;
use crate::prefix::{Curse, Prefix};
use crate::rng::Rng;

pub(crate) const EEXIST: i32 = 17;
const ENOENT: i32 = 2;
pub(crate) const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENOTEMPTY: i32 = 39;
const EROFS: i32 = 30;

pub(crate) fn size_of(content: u64) -> u64 {
    content % 1000
}

pub(crate) fn crc_of(content: u64) -> u32 {
    u32::try_from(content >> 32).expect("32 bits")
}

#[derive(Debug, Clone)]
pub(crate) struct Dataset {
    pub(crate) epoch: Epoch,
    pub(crate) name: Vec<u8>,
    pub(crate) state: HeldState,
    /// Of Frozen: who this node is, and its files.
    pub(crate) frozen: Option<(Member, MemberData)>,
    /// Of one that is listed: members that were fetched, and that no share of an encoding has
    /// finished yet. A node may be the place of several.
    pub(crate) fetched: BTreeMap<Member, MemberData>,
    pub(crate) members: BTreeMap<Member, MemberData>,
    pub(crate) catalog: Option<Catalog>,
    pub(crate) flushed: bool,
    pub(crate) listed: bool,
    pub(crate) failed: bool,
    /// Of one that is being sealed over another: that one, and what was changed and removed here.
    pub(crate) over: Option<(DatasetId, Next)>,
    /// Of one that was frozen here: when its first file was made.
    pub(crate) begun: u64,
}

impl Dataset {
    /// One of which nothing is here yet.
    pub(crate) fn begin(epoch: Epoch, name: Vec<u8>, state: HeldState) -> Self {
        Self {
            epoch,
            name,
            state,
            frozen: None,
            fetched: BTreeMap::new(),
            members: BTreeMap::new(),
            catalog: None,
            flushed: false,
            listed: false,
            failed: false,
            over: None,
            begun: 0,
        }
    }

    /// One of which members come here: its catalog is recorded before them.
    pub(crate) fn arriving(catalog: &Catalog) -> Self {
        let begun = Self::begin(catalog.epoch, catalog.name.clone(), HeldState::Complete);
        Self { catalog: Some(catalog.clone()), ..begun }
    }
}

/// What programs here did to a sealed dataset; paths are relative to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) changed: BTreeMap<RelPath, u64>,
    pub(crate) removed: BTreeSet<RelPath>,
}

/// How a program's request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answered {
    Directory(RequestId, DirOp, i32),
    Marker(Vec<u8>, Option<DatasetId>),
    /// All nodes are frozen: the marker's program waits for no more.
    Frozen(Vec<u8>, DatasetId),
    Fetch(SealedFile, i32),
}

#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Daemon {
    pub(crate) host: String,
    pub(crate) origin: u64,
    pub(crate) serial: u64,
    /// The last epoch in which programs were served.
    pub(crate) served: Epoch,
    pub(crate) epoch: Epoch,
    pub(crate) highest_id: u64,
    pub(crate) directories: BTreeSet<RelPath>,
    /// Unsealed files, relative to the root.
    pub(crate) files: BTreeMap<RelPath, u64>,
    pub(crate) waiting: BTreeMap<RequestId, DirOp>,
    /// With the sealed dataset that was listed here before.
    pub(crate) markers: BTreeMap<Vec<u8>, (RequestId, Option<DatasetId>)>,
    /// Markers of `background` as this lead was told of them.
    pub(crate) owed: BTreeMap<RequestId, Vec<u8>>,
    /// Markers that hold a directory, and count everywhere.
    pub(crate) renamed: BTreeSet<Vec<u8>>,
    /// All markers wait only until all are frozen.
    pub(crate) unhurried: bool,
    /// Markers that were answered then; what they are of stays frozen.
    pub(crate) background: BTreeSet<Vec<u8>>,
    /// Datasets with `.invalid`, and those in which it waits to be made.
    pub(crate) invalid: BTreeSet<Vec<u8>>,
    pub(crate) invalidating: BTreeSet<Vec<u8>>,
    pub(crate) fetches: BTreeMap<RequestId, SealedFile>,
    pub(crate) serving: bool,
    /// This epoch began with a restart.
    restarts: bool,
    /// What a restart presents is verified afterwards.
    pub(crate) lazy: bool,
    pub(crate) prepared: Option<(u64, Vec<(RequestId, DirOp)>)>,
    pub(crate) unfinished: BTreeMap<RequestId, DirOp>,
    /// Exchanges that were done here since the last round was applied: they may be asked for again.
    exchanged: BTreeSet<RequestId>,
    pub(crate) datasets: BTreeMap<DatasetId, Dataset>,
    pub(crate) next: BTreeMap<DatasetId, Next>,
    /// Those of `next` of which the lead is told.
    pub(crate) overwritten: BTreeSet<DatasetId>,
    /// What of each name was the newest when programs removed its directory last, and when that
    /// was.
    pub(crate) removed: BTreeMap<Vec<u8>, (Key, Epoch)>,
    /// Sealed datasets of which programs here have unlinked every name.
    pub(crate) emptied: BTreeSet<DatasetId>,
    /// Sealed files that were brought here.
    pub(crate) copies: BTreeMap<(DatasetId, RelPath), u64>,
    pub(crate) pointers: loose::Pointers,
    /// What the lead advised last.
    pub(crate) advised: Option<Advice>,
    /// What programs were told, for the checks.
    pub(crate) answered: Vec<Answered>,
}

/// What may go wrong in a daemon, per 10,000 commands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trouble(pub(crate) u64);

fn root() -> Entry {
    entry(RelPath::root(), EntryKind::Directory)
}

pub(crate) fn entry(path: RelPath, kind: EntryKind) -> Entry {
    let (atime, mtime) = (Stamp::default(), Stamp::default());
    Entry { path, kind, mode: 0o755, uid: 1, gid: 1, atime, mtime }
}

fn listing(files: &BTreeMap<RelPath, u64>) -> Vec<FrozenFile> {
    files.iter().map(|(path, content)| FrozenFile { path: path.clone(), size: size_of(*content) }).collect()
}

impl Daemon {
    pub(crate) fn new(host: &str, origin: u64) -> Self {
        Self { host: host.to_owned(), origin, ..Self::default() }
    }

    /// A new coordinator of `epoch` attaches.
    pub(crate) fn attach(&mut self, epoch: Epoch) {
        assert!(epoch > self.epoch, "epochs rise");
        self.epoch = epoch;
        self.serving = false;
        self.restarts = false;
        self.pointers.ordered.clear();
    }

    /// The dataset of that id here.
    pub(crate) fn key(&self, id: DatasetId) -> Option<Key> {
        self.datasets.get(&id).map(|dataset| (dataset.epoch, id))
    }

    pub(crate) fn listed(&self, name: &[u8]) -> Option<(DatasetId, &Dataset)> {
        let mine = |dataset: &&Dataset| dataset.listed && dataset.state == HeldState::Complete;
        self.datasets
            .iter()
            .filter(|(_, dataset)| dataset.name == name && mine(dataset))
            .map(|(id, dataset)| (*id, dataset))
            .next_back()
    }

    /// Changes below this name wait for a seal.
    pub(crate) fn is_frozen(&self, name: &[u8]) -> bool {
        self.background.contains(name) || self.is_sealing(name)
    }

    pub(crate) fn is_sealing(&self, name: &[u8]) -> bool {
        self.datasets.values().any(|dataset| dataset.name == name && dataset.state != HeldState::Complete)
    }

    /// A request that waited for the end of a seal makes `.invalid` now. Where a round holds the
    /// directory its program gives up instead of waiting on.
    pub(crate) fn thawed(&mut self, name: &[u8]) {
        if self.invalidating.remove(name) && !self.is_held(&RelPath::new(name).expect("a name")) {
            self.invalidate(name);
        }
    }

    pub(crate) fn invalidate(&mut self, name: &[u8]) {
        if let Some((id, _)) = self.listed(name) {
            self.next.entry(id).or_default();
        }
        self.invalid.insert(name.to_vec());
    }

    pub(crate) fn next_request(&mut self) -> RequestId {
        self.serial += 1;
        RequestId { origin: self.origin, serial: self.serial }
    }

    /// The marker of `name` that waits, as the lead is told of it.
    pub(crate) fn marker(&self, name: &[u8]) -> Event {
        let (request, base) = self.markers[name];
        Event::Marker { request, name: name.to_vec(), base, everywhere: self.renamed.contains(name) }
    }

    /// What is owed for markers that were answered, as the lead is told of it.
    fn owe(&mut self) -> Vec<Event> {
        self.owed.clear();
        let owed = self.background.clone().into_iter().map(|name| {
            let request = self.next_request();
            self.owed.insert(request, name.clone());
            Event::Marker { request, name, base: None, everywhere: true }
        });
        owed.collect()
    }

    fn markers_end(&mut self, name: &[u8], requests: &[RequestId], outcome: &MarkerOutcome) {
        let sealed = match outcome {
            MarkerOutcome::Sealed(id) => Some(*id),
            MarkerOutcome::NotSealed(_) | MarkerOutcome::Refused(_) => None,
            MarkerOutcome::Waived => panic!("{name:?} is to be protected"),
        };
        for request in requests {
            if self.owed.remove(request).is_some() && !self.is_sealing(name) {
                self.background.remove(name);
                if !self.is_frozen(name) {
                    self.thawed(name);
                }
            }
            if self.markers.get(name).is_some_and(|(waits, _)| waits == request) {
                self.markers.remove(name);
                self.renamed.remove(name);
                self.answered.push(Answered::Marker(name.to_vec(), sealed));
            }
        }
    }

    /// Carries out a command.
    pub(crate) fn command(
        &mut self,
        command: Command,
        prefix: &mut Prefix,
        rng: &mut Rng,
        trouble: Trouble,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        if let Some(events) = self.pointer_command(&command, rng, trouble) {
            return events;
        }
        let mut trouble_now = || rng.rarely(trouble.0);
        match command {
            Command::Inventory => events.push(Event::Inventory(Box::new(self.inventory()))),
            Command::ReadCatalog(id) => {
                let complete = self.datasets.get(&id).filter(|d| d.state == HeldState::Complete);
                let catalog = complete.and_then(|d| d.catalog.clone()).map(Into::into);
                events.push(Event::Catalog { id, catalog });
            }
            Command::Serve => {
                self.serving = true;
                self.served = self.epoch;
                self.prepared = None;
                let requests = self.waiting.iter().map(|(id, op)| (*id, op.clone()));
                events.extend(requests.map(|(request, op)| Event::DirRequest { request, op }));
                events.extend(self.owe());
                events.extend(self.markers.keys().map(|name| self.marker(name)));
                self.overwritten.retain(|id| self.next.contains_key(id) && self.datasets.contains_key(id));
                events.extend(self.overwritten.iter().map(|id| Event::Overwritten(*id)));
                let fetches = self.fetches.iter().map(|(id, file)| (*id, file.clone()));
                events.extend(fetches.map(|(request, file)| Event::Fetch { request, file }));
                let loose = self.pointers.waiting.iter().map(|(id, entry)| (*id, vec![entry.clone()]));
                events.extend(loose.map(|(request, entries)| Event::LooseRequest { request, entries }));
                let listed = self.datasets.iter().filter(|(_, dataset)| self.lazy && dataset.listed);
                events.extend(listed.map(|(id, _)| Event::Verified { id: *id, members: self.verified(*id) }));
            }
            Command::DirPrepare { round, ops } => {
                assert!(self.serving && self.prepared.is_none(), "one round at a time");
                assert!(self.unfinished.is_empty(), "the last round was finished everywhere");
                let votes = ops.iter().map(|(id, op)| self.vote(*id, op)).collect();
                self.prepared = Some((round, ops));
                events.push(Event::DirPrepared { round, votes });
            }
            Command::DirApply { round, verdicts } => {
                let (prepared, ops) = self.prepared.take().expect("prepared");
                assert_eq!(prepared, round);
                self.exchanged.clear();
                for ((id, op), verdict) in ops.into_iter().zip(&verdicts) {
                    if *verdict == 0 {
                        self.apply(&op, &mut events);
                        self.note_exchange(id, &op);
                        self.unfinished.insert(id, op);
                    }
                }
                events.push(Event::DirApplied { round, results: vec![0; verdicts.len()] });
            }
            Command::DirReplay { round, ops } => {
                assert!(!self.serving);
                self.prepared = None;
                let results = vec![0; ops.len()];
                for (id, op) in ops {
                    if !self.exchanged.contains(&id) && self.vote(id, &op) == 0 {
                        self.apply(&op, &mut events);
                        self.note_exchange(id, &op);
                    }
                    self.unfinished.insert(id, op);
                }
                events.push(Event::DirApplied { round, results });
            }
            Command::DirFinish { results } => {
                for (id, errno) in results {
                    self.unfinished.remove(&id);
                    if let Some(op) = self.waiting.remove(&id) {
                        self.answered.push(Answered::Directory(id, op, errno));
                    }
                }
            }
            Command::DirUnite { directories } => {
                self.directories.extend(directories.into_iter().map(|directory| directory.path));
                events.push(Event::DirUnited);
            }
            Command::AskChanges(id) => {
                let changed = self.next.contains_key(&id);
                events.push(Event::Changes { id, changed });
            }
            Command::Freeze { id, name, member, base } => {
                assert!(id.0 > self.highest_id, "id {id} was seen before");
                assert!(!self.is_sealing(&name), "frozen twice");
                self.highest_id = id.0;
                let exists = self.directories.contains(&RelPath::new(name.clone()).expect("a name"));
                let here = self.listed(&name).map(|(id, _)| id);
                assert_eq!(here, base, "the base of {id}");
                let (mut part, files) = self.part(&name, base);
                part.begun_us = self.begun_at(&name);
                let begun = part.begun_us;
                let data = MemberData { files, ..MemberData::default() };
                let result = if !exists {
                    Err("no such directory".to_owned())
                } else if self.invalid.contains(&name) {
                    Err(".invalid is in it".to_owned())
                } else if trouble_now() {
                    Err("somebody writes".to_owned())
                } else {
                    Ok(part)
                };
                if result.is_ok() {
                    self.background.insert(name.clone());
                }
                let over = base.map(|base| (base, self.next.get(&base).cloned().unwrap_or_default()));
                let frozen = Some((member, data));
                let dataset = Dataset::begin(self.epoch, name, HeldState::Frozen);
                let dataset = Dataset { frozen, over, begun, ..dataset };
                self.datasets.insert(id, dataset);
                events.push(Event::Frozen { id, result: result.map_err(Reason::from) });
            }
            Command::Carry { id, dropped } => {
                let result =
                    if trouble_now() { Err("injected".to_owned()) } else { self.carry(id, &dropped) };
                events.push(Event::Carried { id, result: result.map_err(Reason::from) });
            }
            Command::AllFrozen(id) => {
                let name = self.datasets.get(&id).map(|dataset| dataset.name.clone());
                // Its `Commit` may have failed here: then the marker waits for the next one.
                let Some(name) = name else { return events };
                let waits = self.markers.get(&name).is_some_and(|(_, base)| *base != Some(id));
                if waits && (self.unhurried || self.renamed.contains(&name)) {
                    self.markers.remove(&name);
                    self.renamed.remove(&name);
                    self.answered.push(Answered::Frozen(name, id));
                }
            }
            Command::Drop { id, .. } => {
                if self.datasets.get(&id).is_some_and(|dataset| dataset.state == HeldState::Complete) {
                    // A restart had it caught up with the others, and does not go on from it.
                    assert!(!self.serving && self.restarts, "a complete dataset was dropped");
                } else if let Some(dataset) = self.datasets.remove(&id) {
                    // It may also be one that is being fetched.
                    if self.serving || !self.restarts {
                        self.unbind_pointers(Age { epoch: dataset.epoch, id }, &dataset.name);
                    }
                    if self.serving {
                        self.background.remove(&dataset.name);
                    }
                    if !self.is_frozen(&dataset.name) {
                        self.thawed(&dataset.name);
                    }
                }
                events.push(Event::Dropped(id));
            }
            Command::Commit(catalog) => events.push(self.committed(&catalog, &mut trouble_now)),
            Command::Revise(revision) => {
                let here = self.datasets.get(&revision.id).and_then(|dataset| dataset.catalog.as_ref());
                let revised = here.and_then(|catalog| revision.applied_to(catalog));
                let failure = || {
                    let result = Err(Reason::from("it is not here"));
                    Event::Committed { id: revision.id, result, decided: false }
                };
                let answer = revised.map(|catalog| self.committed(&catalog, &mut trouble_now));
                events.push(answer.unwrap_or_else(failure));
            }
            Command::Sealed(id) => {
                let name = self.datasets.get(&id).map(|dataset| dataset.name.clone());
                self.background.remove(&name.expect("sealed means complete here"));
            }
            Command::MarkersEnd { name, requests, outcome } => {
                self.markers_end(&name, &requests, &outcome);
            }
            Command::Evict(id) => {
                self.copies.retain(|(of, _), _| *of != id);
                self.next.remove(&id);
                if let Some(dataset) = self.datasets.remove(&id).filter(|dataset| dataset.listed) {
                    self.invalid.remove(&dataset.name);
                    let top = RelPath::new(dataset.name).expect("a name");
                    self.directories.retain(|dir| dir.strip(&top).is_none());
                }
                events.push(Event::Evicted(id));
            }
            Command::FlushMember { id, .. } => {
                let held = self.datasets.get(&id).filter(|d| d.state == HeldState::Complete);
                let mut bad = Vec::new();
                let result = match held.and_then(|d| d.catalog.as_ref().map(|c| (d, c))) {
                    None => Err("not here".to_owned()),
                    Some(_) if trouble_now() => Err("injected".to_owned()),
                    Some(_) if prefix.refuses(id, Curse::Copy) => Err("cursed".to_owned()),
                    Some((dataset, catalog)) => {
                        self.copy_out(id, dataset, catalog, prefix).map_err(|member| {
                            bad.push(member);
                            format!("member {member} is bad")
                        })
                    }
                };
                events.push(Event::FlushedMember { id, result: result.map_err(Reason::from), bad });
            }
            Command::Scrub { id, round, .. } => {
                let bad = self.bad_members(id);
                events.push(Event::Scrubbed { id, round, bad });
            }
            Command::MarkFlushed(id) => {
                if let Some(dataset) = self.datasets.get_mut(&id) {
                    dataset.flushed = true;
                }
            }
            Command::UnmarkFlushed(id) => {
                if let Some(dataset) = self.datasets.get_mut(&id) {
                    dataset.flushed = false;
                }
            }
            Command::MarkFailed { id, .. } => {
                if let Some(dataset) = self.datasets.get_mut(&id) {
                    dataset.failed = true;
                }
            }
            Command::Verify(id) => events.push(Event::Verified { id, members: self.verified(id) }),
            Command::FetchMember { id, epoch, name, member, entries, .. } => {
                self.highest_id = self.highest_id.max(id.0);
                let is_listed = self.datasets.get(&id).is_some_and(|dataset| dataset.listed);
                if !is_listed && self.served == self.epoch {
                    let reason = "it was removed".to_owned();
                    let failure = FetchFailure { reason, corrupt: false, full: None };
                    events.push(Event::FetchedMember { id, result: Err(failure) });
                    return events;
                }
                if !is_listed {
                    let fresh = Dataset::begin(epoch, name, HeldState::Frozen);
                    let former = self.datasets.insert(id, fresh);
                    assert!(former.is_none(), "an old version must be evicted before a fetch");
                }
                let result = self.fetch_member(prefix, rng, trouble, (epoch, id), member, &entries);
                events.push(Event::FetchedMember { id, result });
            }
            Command::Present { datasets } => {
                let result = if trouble_now() { Err("injected".to_owned()) } else { Ok(()) };
                if result.is_ok() {
                    self.present(&datasets);
                    self.present_pointers();
                }
                events.push(Event::Presented { result: result.map_err(Reason::from) });
            }
            Command::Fetched { request, errno } => {
                if let Some(file) = self.fetches.remove(&request) {
                    self.answered.push(Answered::Fetch(file, errno));
                }
            }
            Command::CopyFromPrefix { request, file, .. } => {
                let failure = |corrupt| FetchFailure { reason: "not good".to_owned(), corrupt, full: None };
                let key = self.key(file.id);
                let result = match key.map(|key| prefix.read(key, &file.path)) {
                    None => Err(failure(false)),
                    Some(None) => Err(failure(true)),
                    Some(Some(_)) if trouble_now() => Err(failure(false)),
                    Some(Some(content)) => {
                        self.copies.insert((file.id, file.path), content);
                        Ok(())
                    }
                };
                events.push(Event::CopiedFromPrefix { request, result });
            }
            Command::Save(id) => {
                let result = match self.key(id) {
                    None => Err("not here".to_owned()),
                    Some(_) if trouble_now() => Err("injected".to_owned()),
                    Some(key) => prefix.save(self, key),
                };
                events.push(Event::Saved { id, result: result.map_err(Reason::from) });
            }
            Command::Note { .. }
            | Command::FlushFailed { .. }
            | Command::MarkScrubbed { .. }
            | Command::MarkAbsent { .. } => {}
            Command::Advise(advice) => self.advised = Some(advice),
            other => unreachable!("{other:?}"),
        }
        events
    }

    /// What a cache of `capacity` bytes has room for: all that is sealed, and copies, count.
    pub(crate) fn room(&self, capacity: u64) -> Room {
        let bytes = |id: &DatasetId, dataset: &Dataset| -> u64 {
            let members = dataset.members.values().flat_map(|data| data.files.values());
            let copies = self.copies.iter().filter(|((of, _), _)| of == id).map(|(_, content)| content);
            members.chain(copies).copied().map(size_of).sum()
        };
        let taken: u64 = self.datasets.iter().map(|(id, dataset)| bytes(id, dataset)).sum();
        let complete = self.datasets.iter().filter(|(_, dataset)| dataset.state == HeldState::Complete);
        let held = complete.map(|(id, dataset)| (*id, bytes(id, dataset))).collect();
        Room { free: capacity.saturating_sub(taken), held }
    }

    /// Programs of this node are dead.
    pub(crate) fn forget_programs(&mut self) {
        self.restarts = true;
        self.waiting.clear();
        self.markers.clear();
        self.owed.clear();
        self.renamed.clear();
        self.background.clear();
        self.invalid.clear();
        self.invalidating.clear();
        self.fetches.clear();
        self.pointers.waiting.clear();
        self.emptied.clear();
        self.advised = None;
    }
}
