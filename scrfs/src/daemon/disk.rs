//! The node's state on storage, and the one way to change it.
//!
//! | file | what |
//! |---|---|
//! | `node.scrinfo` | highest epoch and id, last epoch served; per dataset: name, epoch, home, flags, which members are recorded; seals without an outcome; removed datasets |
//! | `filemap_0.scrinfo` | members' files ([`super::filemap`]); `filemap.scrinfo` names that file |
//! | `settings.json` | what the last coordinator brought: it holds until another one attaches, also for the next worker |
//! | `advice.json` | what programs are advised: a worker that dies takes nothing of it back |
//! | `dataset.<id>.scrinfo` | COMPLETE and the catalog ([`crate::record::catalog_file`]) |
//!
//! Other parts of the node have files of their own: [`super::journal`], [`super::rounds`],
//! [`super::loose_store`], [`super::events`].
//!
//! A change is made to a copy of the table, written, and then made to the table itself: what
//! programs and the lead are told never runs ahead of storage. [`Table`] says what changes in
//! memory alone. The filemap goes first, so that a member said to be recorded is always in it.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::are_reasons;
use crate::control::{Advice, Settings};
use crate::dataset::lifecycle::{Files, Life, Refused, Step};
use crate::dataset::{Catalog, CatalogIndex, Protections};
use crate::hash::{self, Hash, Text};
use crate::ids::{DatasetId, Epoch, Member};
use crate::lock::Mutex;
use crate::record::Record;
use crate::store::{Store, StoreError};

use super::cache::Cache;
use super::filemap::{self, CacheNames, Filemap};
use super::state::{Dataset, Origin, Part, State, Table, Trust};
use crate::record::catalog_file::{self, need, put};

const NODE: &str = "node.scrinfo";
pub(crate) const FILEMAP: &str = "filemap_0.scrinfo";
const SETTINGS: &str = "settings.json";
const ADVICE: &str = "advice.json";
const MASTER: &str = "filemap.scrinfo";
/// Largest file of each kind, bytes.
const FILE_MAX: u64 = 1 << 30;
/// Largest file of settings or advice, bytes.
const KEPT_MAX: u64 = 1 << 24;

/// See the module. Its lock is taken before the state's.
pub(super) struct Disk {
    store: Arc<Store>,
    cache: Arc<Cache>,
    /// What `node.scrinfo` and the filemap hold for certain.
    written: [Option<Vec<u8>>; 2],
}

/// What was found at start, and what was wrong with it.
pub(super) struct Loaded {
    pub(super) table: Table,
    pub(super) problems: Vec<String>,
}

/// Why a step was not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error("dataset {0}: {1}")]
    Refused(DatasetId, Refused),
    #[error(transparent)]
    Store(StoreError),
}

are_reasons!(StepError);

impl Disk {
    pub(super) fn new(store: Arc<Store>, cache: Arc<Cache>) -> Self {
        Self { store, cache, written: [None, None] }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// A step in a dataset's life, on storage first; of a dataset that is not here any more, none.
    pub(super) fn step(&mut self, state: &Mutex<State>, id: DatasetId, step: &Step) -> Result<(), StepError> {
        let now = state.lock().table.datasets.get(&id).map(|dataset| dataset.life.clone());
        if let Some(life) = now {
            life.after(step).map_err(|refused| StepError::Refused(id, refused))?;
        }
        self.change(state, |table| drop(table.step(id, step))).map_err(StepError::Store)
    }

    /// Changes the table, on storage first. `edit` is called twice: for the copy and for the table.
    pub(super) fn change(
        &mut self,
        state: &Mutex<State>,
        edit: impl Fn(&mut Table),
    ) -> Result<(), StoreError> {
        let (mut next, protections) = {
            let state = state.lock();
            (state.table.clone(), protections_of(&state))
        };
        edit(&mut next);
        self.write(&next, &protections)?;
        edit(&mut state.lock().table);
        Ok(())
    }

    /// As [`Disk::change`]; between storage and table comes `step`. When that fails, storage gets
    /// the former table back.
    pub(super) fn change_with(
        &mut self,
        state: &Mutex<State>,
        edit: impl Fn(&mut Table),
        step: impl FnOnce() -> std::io::Result<()>,
    ) -> Result<(), StoreError> {
        let (former, protections) = {
            let state = state.lock();
            (state.table.clone(), protections_of(&state))
        };
        let mut next = former.clone();
        edit(&mut next);
        self.write(&next, &protections)?;
        if let Err(source) = step() {
            self.write(&former, &protections)?;
            return Err(StoreError::Failed { path: self.store.path().into(), step: "change", source });
        }
        edit(&mut state.lock().table);
        Ok(())
    }

    /// Writes what differs from storage.
    pub(super) fn write(&mut self, table: &Table, protections: &Protections) -> Result<(), StoreError> {
        self.cache.stores.seen(table.highest_id);
        let names = |id| CacheNames::of(self.cache.place_of(id));
        let filemap = filemap::encode(table.datasets.values(), protections, names);
        let files = [(FILEMAP, filemap.encode()), (NODE, hash::encode(&encode_node(table)))];
        for (written, (name, bytes)) in self.written.iter_mut().zip(files) {
            if written.as_ref() != Some(&bytes) {
                *written = None;
                self.store.commit(name, &bytes)?;
                *written = Some(bytes);
            }
        }
        Ok(())
    }

    /// Keeps the job's settings.
    pub(super) fn record_settings(&self, settings: &Settings) -> Result<(), StoreError> {
        self.keep(SETTINGS, settings)
    }

    /// The settings that were kept.
    pub(super) fn settings(&self, problems: &mut Vec<String>) -> Result<Option<Settings>, StoreError> {
        self.kept(SETTINGS, problems)
    }

    /// Keeps what programs are advised.
    pub(super) fn record_advice(&self, advice: &Advice) -> Result<(), StoreError> {
        self.keep(ADVICE, advice)
    }

    /// It was for a program that is gone.
    pub(super) fn forget_advice(&self) -> Result<(), StoreError> {
        self.store.remove(ADVICE)
    }

    /// The advice that was kept.
    pub(super) fn advice(&self, problems: &mut Vec<String>) -> Result<Option<Advice>, StoreError> {
        self.kept(ADVICE, problems)
    }

    fn keep(&self, name: &str, what: &impl Serialize) -> Result<(), StoreError> {
        let bytes = serde_json::to_vec_pretty(what).map_err(|error| StoreError::Failed {
            path: self.store.path().join(name),
            step: "encode",
            source: error.into(),
        })?;
        self.store.commit(name, &bytes)
    }

    /// What cannot be read counts as nothing, and is told.
    fn kept<T: DeserializeOwned>(
        &self,
        name: &str,
        problems: &mut Vec<String>,
    ) -> Result<Option<T>, StoreError> {
        let Some(bytes) = self.store.read(name, KEPT_MAX)? else { return Ok(None) };
        let what = serde_json::from_slice(&bytes);
        Ok(what.map_err(|error| problems.push(format!("{name}: {error}"))).ok())
    }

    /// Records COMPLETE.
    pub(super) fn record_complete(&self, catalog: &Catalog) -> Result<(), StoreError> {
        let name = catalog_name(catalog.id);
        let wrong = |error: catalog_file::CatalogError| StoreError::Failed {
            path: self.store.path().join(&name),
            step: "encode",
            source: std::io::Error::new(std::io::ErrorKind::InvalidInput, error.to_string()),
        };
        self.store.commit(&name, &catalog_file::encode(catalog).map_err(wrong)?)
    }

    /// A COMPLETE record has this dataset's name on storage, or that cannot be known.
    pub(super) fn may_have_complete(&self, id: DatasetId) -> bool {
        !matches!(self.store.read(&catalog_name(id), FILE_MAX), Ok(None))
    }

    /// Takes a COMPLETE record back (eviction).
    pub(super) fn remove_complete(&self, id: DatasetId) -> Result<(), StoreError> {
        self.store.remove(&catalog_name(id))
    }

    /// Reads everything. What cannot be read is told and left out: a daemon that does not start
    /// helps nobody.
    pub(super) fn load(&mut self) -> Result<Loaded, StoreError> {
        let mut problems = Vec::new();
        let master = filemap::master(self.filemap_path()).encode();
        if self.store.read(MASTER, FILE_MAX)?.as_ref() != Some(&master) {
            self.store.commit(MASTER, &master)?;
        }
        let mut table = Table::default();
        let mut recorded = Vec::new();
        if let Some(tree) = self.read(NODE, 1, &mut problems)?
            && let Err(error) = decode_node(&tree, &mut table, &mut recorded)
        {
            problems.push(format!("{NODE}: {error}"));
        }
        let mut map = Filemap::new();
        if let Some(tree) = self.read(FILEMAP, 0, &mut problems)? {
            let (decoded, wrong) = filemap::decode(&tree);
            map = decoded;
            problems.extend(wrong.into_iter().map(|text| format!("{FILEMAP}: {text}")));
        }
        self.load_catalogs(&mut table, &mut problems)?;
        join(&mut table, map, &recorded, &mut problems);
        self.cache.stores.seen(table.highest_id);
        Ok(Loaded { table, problems })
    }

    fn read(
        &mut self,
        name: &'static str,
        slot: usize,
        problems: &mut Vec<String>,
    ) -> Result<Option<Hash>, StoreError> {
        let Some(bytes) = self.store.read(name, FILE_MAX)? else { return Ok(None) };
        match hash::decode_file(&bytes) {
            Ok(tree) => {
                self.written[slot] = Some(bytes);
                Ok(Some(tree))
            }
            Err(error) => {
                problems.push(format!("{name}: {error}"));
                Ok(None)
            }
        }
    }

    fn load_catalogs(&self, table: &mut Table, problems: &mut Vec<String>) -> Result<(), StoreError> {
        let listing = |source| StoreError::Failed { path: self.store.path().into(), step: "list", source };
        for name in crate::store::beneath::names(self.store.directory()).map_err(listing)? {
            let Some((name, id)) = dataset_of_file(&name) else { continue };
            let Some(bytes) = self.store.read(&name, FILE_MAX)? else { continue };
            match catalog_file::decode(&bytes) {
                Ok(catalog) if catalog.id == id => {
                    let (epoch, name) = (catalog.epoch, catalog.name.clone());
                    let dataset = table
                        .datasets
                        .entry(id)
                        .or_insert_with(|| Dataset::new(id, epoch, name, Files::Aside));
                    (dataset.epoch, dataset.name) = (catalog.epoch, catalog.name.clone());
                    table.epoch = table.epoch.max(catalog.epoch);
                    dataset.complete(&Arc::new(CatalogIndex::new(catalog)));
                }
                Ok(_) => problems.push(format!("{name}: holds another dataset")),
                Err(error) => problems.push(format!("{name}: {error}")),
            }
        }
        Ok(())
    }

    fn filemap_path(&self) -> Text {
        use std::os::unix::ffi::OsStrExt;
        Text::new(self.store.path().join(FILEMAP).as_os_str().as_bytes()).unwrap_or_default()
    }
}

/// How the job protects its datasets, once a coordinator has told.
pub(super) fn protections_of(state: &State) -> Protections {
    state.settings.as_ref().map(|settings| settings.protections.clone()).unwrap_or_default()
}

/// The file of the control directory with the catalog of a complete dataset.
fn catalog_name(id: DatasetId) -> String {
    format!("dataset.{id}.scrinfo")
}

/// Of which dataset a file of that name in the control directory is the catalog.
pub(crate) fn dataset_of_file(name: &[u8]) -> Option<(String, DatasetId)> {
    let name = std::str::from_utf8(name).ok()?;
    let id = name.strip_prefix("dataset.")?.strip_suffix(".scrinfo")?.parse().ok()?;
    Some((name.to_owned(), DatasetId(id)))
}

fn encode_node(table: &Table) -> Hash {
    let mut tree = Hash::new();
    put(&mut tree, "EPOCH", table.epoch.0);
    put(&mut tree, "SERVED", table.served.0);
    put(&mut tree, "ID", table.highest_id);
    let mut datasets = Hash::new();
    for dataset in table.datasets.values() {
        let mut below = Hash::new();
        // Names are checked where they come in.
        put(&mut below, "NAME", Text::new(dataset.name.clone()).unwrap_or_default());
        put(&mut below, "EPOCH", dataset.epoch.0);
        let (files, leaves) = dataset.life.record();
        put(&mut below, "HOME", files);
        put(&mut below, "GOING", u32::from(leaves));
        put(&mut below, "FLUSHED", u32::from(dataset.flushed));
        put(&mut below, "FAILED", u32::from(dataset.failed.is_some()));
        put(&mut below, "UNREAD", u32::from(dataset.trust == Trust::Unread));
        let mut members = Hash::new();
        for (member, part) in &dataset.parts {
            let mut record = Hash::new();
            put(&mut record, "RECORDED", u32::from(part.recorded));
            put(&mut record, "CRCS", u32::from(part.crcs_known));
            put(&mut record, "STAGED", u32::from(part.origin == Origin::Staged));
            put(&mut record, "MEMBERS", part.members);
            let mut set = Hash::new();
            for (position, member) in part.set.iter().enumerate() {
                set.append(Text::from(position), Hash::value(member.0));
            }
            record.append("SET".into(), set);
            members.append(Text::from(member.0), record);
        }
        below.append("MEMBER".into(), members);
        datasets.append(Text::from(dataset.id.0), below);
    }
    tree.append("DATASET".into(), datasets);
    let mut owed = Hash::new();
    for (name, id) in table.owed.iter() {
        let mut below = Hash::new();
        put(&mut below, "NAME", Text::new(name.clone()).unwrap_or_default());
        owed.append(Text::from(id.0), below);
    }
    if !owed.is_empty() {
        tree.append("BACKGROUND".into(), owed);
    }
    let mut removals = Hash::new();
    for (at, removed) in table.removed.all().into_iter().enumerate() {
        let mut below = Hash::new();
        put(&mut below, "NAME", Text::new(removed.name).unwrap_or_default());
        put(&mut below, "EPOCH", removed.epoch.0);
        put(&mut below, "ID", removed.id.0);
        put(&mut below, "DURING", removed.during.0);
        removals.append(Text::from(at), below);
    }
    if !removals.is_empty() {
        tree.append("REMOVED".into(), removals);
    }
    tree
}

/// What `node.scrinfo` tells of one member.
struct MemberRecord {
    key: (DatasetId, Member),
    recorded: bool,
    crcs_known: bool,
    staged: bool,
    members: u32,
    set: Vec<Member>,
}

fn decode_node(
    tree: &Hash,
    table: &mut Table,
    recorded: &mut Vec<MemberRecord>,
) -> Result<(), hash::FieldError> {
    table.epoch = Epoch(need(tree.number("EPOCH"), "EPOCH")?);
    // Former releases did not record SERVED.
    table.served = Epoch(tree.number("SERVED")?.unwrap_or(0));
    table.highest_id = need(tree.number("ID"), "ID")?;
    for (id, below) in tree.get("BACKGROUND").into_iter().flat_map(Hash::iter) {
        let Some(id) = id.number().map(DatasetId) else { continue };
        table.owed.frozen(need(below.text("NAME"), "NAME")?.as_bytes(), id);
    }
    for (_, below) in tree.get("REMOVED").into_iter().flat_map(Hash::iter) {
        let epoch = Epoch(need(below.number("EPOCH"), "EPOCH")?);
        let id = DatasetId(need(below.number("ID"), "ID")?);
        let during = Epoch(need(below.number("DURING"), "DURING")?);
        table.removed.add(need(below.text("NAME"), "NAME")?.as_bytes(), (epoch, id), during);
    }
    for (id, below) in tree.get("DATASET").into_iter().flat_map(Hash::iter) {
        let Some(id) = id.number().map(DatasetId) else { continue };
        let name = need(below.text("NAME"), "NAME")?.as_bytes().to_vec();
        let files = need(below.text("HOME"), "HOME")?;
        let leaves = below.number::<u32>("GOING")? == Some(1);
        let epoch = Epoch(need(below.number("EPOCH"), "EPOCH")?);
        let mut dataset = Dataset::new(id, epoch, name, Files::Aside);
        dataset.life = Life::from_record(files.as_bytes(), leaves);
        dataset.flushed = below.number::<u32>("FLUSHED")? == Some(1);
        let is_unread = below.number::<u32>("UNREAD")? == Some(1);
        dataset.trust = if is_unread { Trust::Unread } else { Trust::Given };
        if below.number::<u32>("FAILED")? == Some(1) {
            dataset.failed = Some("found bad before this daemon started".into());
        }
        for (member, record) in below.get("MEMBER").into_iter().flat_map(Hash::iter) {
            let Some(member) = member.number().map(Member) else { continue };
            let mut set: Vec<(usize, Member)> = record
                .get("SET")
                .into_iter()
                .flat_map(Hash::iter)
                .filter_map(|(at, m)| Some((at.number()?, Member(m.keys().next()?.number()?))))
                .collect();
            set.sort_unstable();
            recorded.push(MemberRecord {
                key: (id, member),
                recorded: record.number::<u32>("RECORDED")? == Some(1),
                crcs_known: record.number::<u32>("CRCS")? == Some(1),
                staged: record.number::<u32>("STAGED")? == Some(1),
                members: need(record.number("MEMBERS"), "MEMBERS")?,
                set: set.into_iter().map(|(_, member)| member).collect(),
            });
        }
        table.datasets.insert(id, dataset);
    }
    Ok(())
}

/// Puts the members that both files know into their datasets.
fn join(table: &mut Table, mut map: Filemap, recorded: &[MemberRecord], problems: &mut Vec<String>) {
    for record in recorded {
        let (id, member) = record.key;
        let (Some(dataset), Some(mapped)) = (table.datasets.get_mut(&id), map.remove(&record.key)) else {
            problems.push(format!("dataset {id}: member {member} is not in the filemap"));
            continue;
        };
        let origin = if record.staged { Origin::Staged } else { Origin::Here };
        let mut part = Part::new(origin, mapped.files, Vec::new());
        part.redundancy = mapped.redundancy.into_iter().map(|file| (file.encoding(), file)).collect();
        part.recorded = record.recorded;
        part.crcs_known = record.crcs_known;
        part.members = record.members;
        part.set.clone_from(&record.set);
        dataset.parts.insert(member, Arc::new(part));
    }
    // Entries without a record of their member: the worker died between the two commits; the lead
    // was told nothing.
    for ((id, member), _) in map {
        problems.push(format!("dataset {id}: member {member} was begun and not recorded, dropped"));
    }
    table.datasets.retain(|_, dataset| {
        dataset.life.is_complete() || dataset.life.is_leaving() || !dataset.parts.is_empty()
    });
    for dataset in table.datasets.values().filter(|dataset| dataset.life.is_complete()) {
        table.owed.sealed(&dataset.name, dataset.id);
    }
    table.highest_id = table.datasets.keys().map(|id| id.0).fold(table.highest_id, u64::max);
}
