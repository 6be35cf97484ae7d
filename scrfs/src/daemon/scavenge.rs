//! The job has ended without its coordinators, which would have flushed: this node saves its part
//! of the newest dataset in the prefix ([`crate::prefix::scavenge`]), with the job user's rights,
//! before its cache is removed. Where the job goes on after some nodes did so, the others save
//! theirs for the lead of its restart.
//!
//! It works in the transfers' thread, which no program waits for; who asks is answered in time
//! whatever the PFS does.
//!
//! Fault points: those of a flush's files, `scavenge.copied`, `scavenge.saved`.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::control::loose::Age;
use crate::control::{Event, HeldState, Named, Reason, Scavenged};
use crate::dataset::{Entry, EntryKind, FileCopy, Stamp};
use crate::faults;
use crate::ids::{DatasetId, Epoch, Member};
use crate::path::RelPath;
use crate::prefix::scavenge::{
    Begun, By, Collection, DATASET, MemberRecord, Outcome, RedundancyCopy, adopt, digest,
};
use crate::prefix::{Known, PfsError, Prefix};
use crate::store::beneath;
use crate::transfer::pfs::PfsDirectory;
use crate::transfer::user::{Identity, UserThread};
use crate::transfer::{Monitor, TransferError};

use super::members::file_name;
use super::node::Node;
use super::state::{Dataset, Part, State};
use super::transfers::verify_file;

/// A coordinator that was killed is not gone at once: its socket is closed when its last process
/// is.
const GONE_WITHIN: Duration = Duration::from_secs(2);
/// The transfer, for status.
const SCAVENGING: &str = "scavenging";

/// The job's prefix, and with whose rights work is done there.
#[derive(Clone)]
struct Place {
    root: Vec<u8>,
    epoch: Epoch,
    host: String,
    identity: Identity,
}

impl Place {
    fn prefix(&self) -> Prefix {
        Prefix::new(&self.root, self.epoch, &self.host)
    }
}

/// Who wants a part saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asker {
    /// A person or the scheduler, while there are no coordinators.
    Operator,
    /// The lead whose link this is.
    Lead(u64),
}

/// The datasets of which this node is to save its part, or why there are none.
fn wanted(state: &State) -> Result<Vec<Named>, Reason> {
    // Without them the prefix is not known: what is here is named, and cannot be saved.
    let Some(settings) = &state.settings else {
        let datasets = state.present().filter(|dataset| dataset.life.is_complete());
        let named: Vec<Named> = datasets.map(named).collect();
        let nothing = Reason::from("no coordinator was ever here, so nothing is protected");
        return if named.is_empty() { Err(nothing) } else { Ok(named) };
    };
    if !settings.enable {
        return Err("SCR_ENABLE=0: nothing is protected".into());
    }
    if settings.advice.end_reserve == 0 {
        return Err("SCRFS_END_GRACE=0: nothing is saved at the end of the job".into());
    }
    let newest = state.current_now().and_then(|id| state.table.datasets.get(&id));
    let age = |dataset: &Dataset| (dataset.epoch, dataset.id);
    let newer = |dataset: &&Dataset| {
        newest.is_none_or(|newest| age(dataset) > age(newest)) && dataset.failed.is_none()
    };
    // Voted for here, and perhaps complete elsewhere.
    let in_doubt = state.present().filter(newer).filter(|dataset| dataset.state() == HeldState::Recorded);
    // A restart without the nodes that have the rest could not present it; they may save theirs.
    let hidden = state.present().filter(newer).filter(|dataset| dataset.life.is_hidden() && !dataset.flushed);
    let hidden = hidden.max_by_key(|dataset| age(dataset));
    let unsaved = newest.filter(|newest| !newest.flushed);
    let guard = unsaved.and_then(|newest| guard(state, newest));
    let wanted: Vec<Named> =
        unsaved.into_iter().chain(guard).chain(hidden).chain(in_doubt).map(named).collect();
    match newest {
        _ if !wanted.is_empty() => Ok(wanted),
        Some(newest) => Err(format!("{} (dataset {}) is on the PFS", newest.shown_name(), newest.id).into()),
        None => Err("no dataset is protected here".into()),
    }
}

fn named(dataset: &Dataset) -> Named {
    Named { id: dataset.id, name: dataset.name.clone() }
}

/// Where nothing protects the newest dataset, the nodes that are left may not have it whole: the
/// newest of the older ones that survives the loss of a node, which the lead kept for that.
fn guard<'a>(state: &'a State, newest: &Dataset) -> Option<&'a Dataset> {
    let age = |dataset: &Dataset| (dataset.epoch, dataset.id);
    let is_redundant =
        |dataset: &Dataset| dataset.life.catalog().is_some_and(|index| index.catalog().layout.is_redundant());
    let of_use = |dataset: &&Dataset| {
        age(dataset) < age(newest) && dataset.failed.is_none() && dataset.life.is_complete()
    };
    let older = state.present().filter(of_use).filter(|older| is_redundant(older));
    let guard = older.max_by_key(|dataset| age(dataset));
    guard.filter(|guard| !is_redundant(newest) && !guard.flushed)
}

impl Node {
    /// Saves this node's part within `limit`; answers by then.
    pub(super) fn scavenge(&self, limit: Duration, uid: u32) -> Scavenged {
        let begun = Instant::now();
        let until = begun.checked_add(limit).unwrap_or(begun);
        let wanted = {
            let mut state = self.state.lock();
            let gone = until.min(begun + GONE_WITHIN);
            while state.attached.is_some() && Instant::now() < gone {
                self.wake.wait_until(&mut state, gone);
            }
            if state.attached.is_some() {
                return Scavenged::Attached;
            }
            wanted(&state)
        };
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(why) => return Scavenged::Nothing(why),
        };
        let monitor = Monitor::default();
        let (give, done) = crossbeam_channel::unbounded();
        for named in &wanted {
            self.events.info(Some(named.id), &format!("user {uid} asked for this node's part to be saved"));
            let (me, monitor, give, id) = (self.me.clone(), monitor.clone(), give.clone(), named.id);
            self.lanes.transfers.run(move || {
                if let Some(node) = me.upgrade().filter(|_| !monitor.is_cancelled()) {
                    let saved = node.save_for_operator(id, &monitor);
                    node.end_transfer(id);
                    node.tell_saved(id, &saved);
                    let _ = give.send(saved);
                }
            });
        }
        drop(give);
        let late = || Err(format!("not done in {} s", limit.as_secs()).into());
        let tried = wanted.into_iter().map(|named| {
            let saved = done.recv_deadline(until).unwrap_or_else(|_| {
                monitor.cancel();
                late()
            });
            (named, saved)
        });
        Scavenged::Tried(tried.collect())
    }

    fn tell_saved(&self, id: DatasetId, saved: &Result<String, Reason>) {
        match saved {
            Ok(how) => self.events.info(Some(id), how),
            Err(reason) => self.events.error(Some(id), &format!("this node's part is not saved: {reason}")),
        }
    }

    /// What [`crate::control::Command::Save`] says.
    pub(super) fn save_for_lead(&self, link: u64, id: DatasetId) {
        let transfer = self.dataset(id).map_err(Reason::from).and_then(|dataset| {
            let bytes = dataset.parts.values().map(|part| part.bytes()).sum();
            let begun = self.begin_transfer(id, SCAVENGING, bytes);
            begun.ok_or_else(|| "the coordinator is gone".into())
        });
        let saved =
            transfer.and_then(|(monitor, identity)| self.save(Asker::Lead(link), identity, id, &monitor));
        self.end_transfer(id);
        self.tell_saved(id, &saved);
        let state = self.state.lock();
        // A successor of that lead has asked anew, and waits for what that gives.
        if state.is_attached(link) {
            state.send(Event::Saved { id, result: saved.map(drop) });
        }
    }

    fn save_for_operator(&self, id: DatasetId, monitor: &Monitor) -> Result<String, Reason> {
        let identity = {
            let mut state = self.state.lock();
            if let Some(dataset) = state.table.datasets.get_mut(&id) {
                dataset.transfer = Some((SCAVENGING, monitor.clone()));
            }
            state.identity.clone()
        };
        let identity = identity.unwrap_or_else(|| Identity::of(self.config.job_uid, self.config.job_gid));
        self.save(Asker::Operator, identity, id, monitor)
    }

    /// Says how it stands, if this node's part is safe.
    fn save(
        &self,
        asker: Asker,
        identity: Identity,
        id: DatasetId,
        monitor: &Monitor,
    ) -> Result<String, Reason> {
        let dataset = self.dataset(id)?;
        let place = {
            let state = self.state.lock();
            let settings = state.settings.as_ref().ok_or("no coordinator was ever here")?;
            let root = settings.prefix.clone();
            Place { root, epoch: state.table.epoch, host: self.config.host.clone(), identity }
        };
        let catalog = dataset.life.catalog().map(|index| index.catalog());
        let known = Known {
            age: Age { epoch: dataset.epoch, id },
            name: Some(dataset.name.clone()),
            created_us: catalog.map(|catalog| catalog.created_us),
        };
        let user = UserThread::start(&place.identity)
            .map_err(|e| Reason::from(e).on(format_args!("the rights of user {}", place.identity.uid)))?;
        let age = known.age;
        let begin = |place: Place| {
            let known = known.clone();
            move || Collection::begin(&place.prefix(), &known)
        };
        let collection = match flat(user.run(begin(place.clone())))? {
            Begun::Collect(collection) => collection,
            settled => return self.settled(asker, id, &settled),
        };
        let path = collection.path().as_os_str().as_encoded_bytes().to_vec();
        let pfs = PfsDirectory::of_user(user, &path)?;
        let saved = Saving { asker, place: &place, collection: &collection, pfs: &pfs, monitor }
            .parts(self, &dataset);
        if let Err(reason) = saved {
            // Others may have published it meanwhile, from what they have saved.
            let again = pfs.run(begin(place))?;
            return match again {
                Ok(settled @ (Begun::Stored | Begun::Newer(_))) => self.settled(asker, id, &settled),
                Ok(Begun::Collect(_)) | Err(_) => Err(reason),
            };
        }
        faults::hit("scavenge.saved")?;
        if let Asker::Lead(_) = asker {
            // The lead surveys the prefix when all nodes have answered: one of them looks at all
            // files then, instead of each.
            return Ok("saved, for the lead to publish".to_owned());
        }
        let published = pfs.run(move || adopt(&place.prefix(), age, By::Node));
        match published? {
            Ok(adoption) => match adoption.outcome {
                Outcome::Published(_) | Outcome::Stored => self.settled(asker, id, &Begun::Stored),
                outcome => Ok(format!("saved, and {outcome}")),
            },
            // Whoever looks next publishes it.
            Err(error) => Ok(format!("saved, and not published yet: {error}")),
        }
    }

    /// There is nothing more to be saved.
    fn settled(&self, asker: Asker, id: DatasetId, begun: &Begun) -> Result<String, Reason> {
        match begun {
            Begun::Stored => {
                let link = match asker {
                    Asker::Operator => None,
                    Asker::Lead(link) => Some(link),
                };
                self.mark_flushed(link, id);
                Ok("saved: it is on the PFS".to_owned())
            }
            Begun::Newer(newer) => {
                let name = String::from_utf8_lossy(&newer.name);
                Ok(format!(
                    "not needed: {name} (dataset {} of epoch {}), which is newer, is on the PFS",
                    newer.id, newer.epoch
                ))
            }
            Begun::Collect(_) => Err("it is not on the PFS".into()),
        }
    }
}

fn flat<T>(done: std::io::Result<Result<T, PfsError>>) -> Result<T, Reason> {
    Ok(done??)
}

/// What is needed to save one dataset's members.
struct Saving<'a> {
    asker: Asker,
    place: &'a Place,
    collection: &'a Collection,
    pfs: &'a PfsDirectory,
    monitor: &'a Monitor,
}

impl Saving<'_> {
    /// Work on the PFS in the user's thread.
    fn there<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Collection, &Prefix) -> Result<T, PfsError> + Send + 'static,
    ) -> Result<T, Reason> {
        let (collection, place) = (self.collection.clone(), self.place.clone());
        let done = self.pfs.run(move || work(&collection, &place.prefix()));
        Ok(done??)
    }

    fn parts(&self, node: &Node, dataset: &Dataset) -> Result<(), Reason> {
        if let Some(index) = dataset.life.catalog().cloned() {
            let age = Age { epoch: dataset.epoch, id: dataset.id };
            let pointers = node.loose.lock().store.set_of(age);
            let pointers = pointers
                .map_err(|reason| {
                    node.events
                        .warning(Some(dataset.id), &format!("its pointer files are not saved: {reason}"));
                })
                .ok()
                .filter(|set| !set.versions.is_empty());
            self.there(move |collection, prefix| {
                collection.put_catalog(prefix, index.catalog())?;
                pointers.map_or(Ok(()), |set| collection.put_pointers(prefix, &set))
            })?;
        }
        // A bad one keeps no other from being saved.
        let recorded = dataset.parts.iter().filter(|(_, part)| part.recorded);
        let recorded = recorded.take_while(|_| !self.monitor.is_cancelled());
        let mut failed = Vec::new();
        for (member, part) in recorded {
            match self.part(node, dataset, *member, part) {
                Ok(()) => {}
                Err(reason) if dataset.is_on(&node.config.host, *member) => failed.push(reason),
                // The node where it is saves it.
                Err(reason) => node.events.warning(
                    Some(dataset.id),
                    &format!("member {member}, which is on another node by now, is not saved here: {reason}"),
                ),
            }
        }
        match Reason::all(failed) {
            Some(reason) => Err(reason),
            None if self.monitor.is_cancelled() => Err(TransferError::Cancelled.into()),
            None => Ok(()),
        }
    }

    fn part(&self, node: &Node, dataset: &Dataset, member: Member, part: &Arc<Part>) -> Result<(), Reason> {
        let id = dataset.id;
        let digest = digest(part.files.iter().map(|(entry, copy)| (&entry.path, copy)));
        // Those of all encodings: the catalog of another node says which counts.
        let names = part.redundancy.values().map(|file| file_name(id, &file.name));
        let names = names.collect::<Result<Vec<RelPath>, _>>()?;
        if self.there({
            let names = names.clone();
            move |collection, _| collection.has(member, digest, &names)
        })? {
            return Ok(());
        }
        let temporary = format!("copy.{member}.{}.{}", self.place.host, std::process::id());
        let temporary = RelPath::new(temporary)?;
        let mut there = Vec::new();
        for (entry, copy) in &part.files {
            if self.asker == Asker::Operator && node.state.lock().attached.is_some() {
                return Err("coordinators have come: the flush is theirs".into());
            }
            let to = RelPath::new(DATASET).and_then(|top| top.concat(&entry.path))?;
            node.copy_out(id, &entry.path, |local| {
                self.pfs.put_whole(local, (entry, copy), (&temporary, &to), self.monitor)
            })?;
            there.push(to);
        }
        let mut redundancy = Vec::with_capacity(names.len());
        for (file, name) in part.redundancy.values().zip(names) {
            let copy = FileCopy { size: file.size, crc: file.crc, member, program_rank: None };
            if self.redundancy(node, id, (&name, &copy), &temporary)? {
                there.push(name.clone());
                redundancy.push(RedundancyCopy { name, size: file.size, crc: file.crc });
            }
        }
        self.pfs.sync_directories(there)?;
        faults::hit("scavenge.copied")?;
        let age = Age { epoch: dataset.epoch, id };
        let record = MemberRecord { age, member, host: self.place.host.clone(), digest, redundancy };
        self.there(move |collection, prefix| collection.record(prefix, &record))
    }

    /// Copies a redundancy file; false where it is bad here: the files are worth saving without.
    fn redundancy(
        &self,
        node: &Node,
        id: DatasetId,
        (name, copy): (&RelPath, &FileCopy),
        temporary: &RelPath,
    ) -> Result<bool, Reason> {
        let own = node.cache.own(id)?;
        let open = || beneath::open_file(own.as_fd(), name);
        let put = open().map_err(TransferError::io(name, "open")).and_then(|local| {
            let entry = plain(name, copy, &self.place.identity);
            self.pfs.put_whole(local, (&entry, copy), (temporary, name), self.monitor)
        });
        let Err(error) = put else { return Ok(true) };
        // The PFS's fault, or this cache's?
        match verify_file(&own, name, copy, self.monitor) {
            Err(bad) if bad.is_loss() => {
                node.events.warning(Some(id), &format!("a redundancy file is not saved: {bad}"));
                Ok(false)
            }
            _ => Err(error.into()),
        }
    }
}

/// The entry of a file that no program has made.
fn plain(path: &RelPath, copy: &FileCopy, owner: &Identity) -> Entry {
    let (uid, gid) = (owner.uid, owner.gid);
    let time = Stamp::default();
    Entry {
        path: path.clone(),
        kind: EntryKind::File(copy.clone()),
        mode: 0o600,
        uid,
        gid,
        atime: time,
        mtime: time,
    }
}
