//! What this node tells operators of itself.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;

use crate::control::{HeldState, directory};
use crate::ids::{DatasetId, Epoch};
use crate::path::RelPath;
use crate::status::last::VERSION;
use crate::status::{
    Changed, CoordinatorStatus, DatasetStatus, FAILED, HIDDEN, NodeStatus, SEALED, is_protected, survives,
};
use crate::store::beneath;
use crate::stores::PRIMARY;

use super::members::size_of;
use super::node::Node;
use super::state::Dataset;

/// Open datasets shown; each costs a walk of its directory.
const OPEN_MAX: usize = 16;

impl Node {
    pub(super) fn status(&self) -> NodeStatus {
        // The tree is asked without the state's lock: it may be asking us.
        let (mode, mode_reason) = self.tree.mode();
        let (open, more_open) = self.open_datasets();
        let changed = self.changed_datasets();
        let stores = self.stores();
        let limit = self.bound.limit();
        let taken = (limit > 0).then(|| self.cache.free().ok()).flatten().map(|free| self.bound.taken(free));
        let supervisor_stopped = directory::stopped_parent();
        let openers = self.comparisons.unread.lock().waiters();
        let state = self.state.lock();
        let fetches = state.settings.as_ref().is_none_or(|settings| settings.fetch);
        let floor = state.settings.as_ref().map(|settings| Epoch(settings.restart.not_before));
        let on_pfs = floor.filter(|_| fetches).and_then(|floor| state.losses.on_pfs(floor));
        let cached = state.presented_now();
        let current = cached.filter(|id| on_pfs.as_ref().is_none_or(|gone| gone.id < id.0));
        let mut sealed: Vec<&Dataset> = state.present().collect();
        sealed.sort_by_key(|dataset| std::cmp::Reverse((dataset.epoch, dataset.id)));
        let sealing = state.seals.freezing().map(|(id, name)| blank(id.0, name, "sealing"));
        let mut datasets: Vec<DatasetStatus> = open;
        datasets.extend(sealing);
        datasets.extend(sealed.into_iter().map(|dataset| DatasetStatus {
            changed: changed.get(&dataset.id).cloned(),
            ..self.describe_dataset(dataset, current, fetches)
        }));
        let config = &self.config;
        NodeStatus {
            version: VERSION,
            host: config.host.clone(),
            mount_point: config.mount_point.display().to_string(),
            mode,
            mode_reason,
            job: format!("{} {}", config.job_user, config.job_id),
            control_directory: config.control_directory.display().to_string(),
            cache_directory: config.in_use.places()[PRIMARY].cache.display().to_string(),
            stores,
            reserve: self.kept_back.shortage().map(|level| (level.held, level.wanted)),
            cache_bytes: taken.map(|taken| (taken, limit)),
            coordinator: state.attached.as_ref().map(|attached| CoordinatorStatus {
                rank: attached.greeting.rank.0,
                hosts: attached.greeting.hosts.clone(),
                pid: attached.pid,
            }),
            was_attached: state.desk.was_attached(),
            awaited: state.awaits(),
            job_ended: state.job_has_ended(),
            supervisor_stopped,
            prefix: state
                .settings
                .as_ref()
                .map_or(String::new(), |settings| String::from_utf8_lossy(&settings.prefix).into_owned()),
            enabled: state.settings.as_ref().is_none_or(|settings| settings.enable),
            flush_every: state.settings.as_ref().map_or(0, |settings| settings.flush_every),
            epoch: state.table.epoch.0,
            priority: self.priority_status(&state),
            datasets,
            unsaved: state.losses.list(),
            on_pfs,
            more_open,
            waiting: u32::try_from(state.desk.waiting().len() + openers).unwrap_or(u32::MAX),
        }
    }

    /// `fetches`: a restart would fetch from the PFS what the caches do not have.
    fn describe_dataset(
        &self,
        dataset: &Dataset,
        current: Option<DatasetId>,
        fetches: bool,
    ) -> DatasetStatus {
        let mut status = blank(dataset.id.0, &dataset.name, state_word(dataset));
        status.bytes = dataset.bytes();
        status.flushed = dataset.flushed;
        status.flush_failed = dataset.told.flush_failed.clone().filter(|_| !dataset.flushed);
        status.restoring = dataset.told.absent.len() as u64;
        status.unread = self.comparisons.unread.lock().left(dataset.id) as u64;
        status.scrubbed.clone_from(&dataset.told.scrubbed);
        status.current = current == Some(dataset.id);
        let encoded = dataset.encoded.filter(|_| status.state == "encoding");
        status.progress = dataset.transfer.as_ref().map(|(_, monitor)| monitor.progress()).or(encoded);
        if let Some(index) = dataset.life.catalog() {
            let layout = &index.catalog().layout;
            status.scheme = layout.scheme().to_string();
            status.files = layout.members.iter().map(|place| place.files).sum();
            // Of a hidden one the catalog says where its members were, and no more.
            if !dataset.life.is_hidden() {
                // One may hold several members.
                let mut seen = HashSet::new();
                let hosts = layout.members.iter().map(|place| &place.host);
                status.hosts = hosts.filter(|host| seen.insert(*host)).cloned().collect();
                status.survives = survives(layout, &dataset.told.absent, dataset.flushed && fetches);
            }
            // What is bad here no restart presents from here.
            if dataset.failed.is_some() || dataset.is_bad() || dataset.has_bad_bytes() && !fetches {
                status.survives.iter_mut().for_each(|(_, kept)| *kept = false);
            }
        } else {
            status.files = dataset.parts.values().map(|part| part.files.len() as u64).sum();
            status.hosts = vec![self.config.host.clone()];
        }
        status
    }

    /// Of each dataset whose next generation has begun here: what that has.
    fn changed_datasets(&self) -> HashMap<DatasetId, Changed> {
        let open: Vec<Dataset> = {
            let state = self.state.lock();
            state.present().filter(|dataset| dataset.life.is_overwritten()).cloned().collect()
        };
        open.iter().filter_map(|dataset| Some((dataset.id, self.changed(dataset)?))).collect()
    }

    /// What programs have done on this node to a dataset since it was sealed.
    pub(super) fn changed(&self, dataset: &Dataset) -> Option<Changed> {
        let top = RelPath::new(dataset.name.as_slice()).ok()?;
        let (files, removed, since_us) = {
            let mut journal = self.journal.lock();
            let since = journal.begun().into_iter().find(|(name, _)| *name == dataset.name);
            let removed = journal.removed_of(&top, dataset.id).len() as u64;
            (journal.files_of(&top), removed, since.map(|(_, since)| since).filter(|since| *since > 0))
        };
        if files.is_empty() && removed == 0 {
            return None;
        }
        let tree = self.cache.tree(dataset.id, &dataset.name).ok()?;
        let size = |path: &RelPath| size_of(&beneath::open_file(tree.as_fd(), path).ok()?).ok();
        let bytes = files.iter().filter_map(size).sum();
        Some(Changed { since_us, files: files.len() as u64, bytes, removed })
    }

    /// Directories that have files here and are not sealed, the first of them, and how many others
    /// there are.
    fn open_datasets(&self) -> (Vec<DatasetStatus>, u64) {
        let names = self.journal.lock().names();
        let known: Vec<Vec<u8>> = {
            let state = self.state.lock();
            let sealed = names.iter().filter(|name| state.by_name(name).is_some());
            let freezing = state.seals.freezing().map(|(_, name)| name);
            sealed.chain(freezing).cloned().collect()
        };
        let mut open = Vec::new();
        let begun: Vec<&Vec<u8>> = names.iter().filter(|name| !known.contains(name)).collect();
        let more = begun.len().saturating_sub(OPEN_MAX) as u64;
        for name in begun.into_iter().take(OPEN_MAX) {
            let Ok(files) = self.tree.files(name) else { continue };
            let mut status = blank(0, name, "open");
            status.files = files.len() as u64;
            status.bytes = files.iter().map(|file| file.size).sum();
            status.hosts = vec![self.config.host.clone()];
            open.push(status);
        }
        (open, more)
    }
}

fn blank(id: u64, name: &[u8], state: &str) -> DatasetStatus {
    DatasetStatus {
        id,
        name: String::from_utf8_lossy(name).into_owned(),
        state: state.into(),
        scheme: String::new(),
        bytes: 0,
        files: 0,
        hosts: Vec::new(),
        flushed: false,
        flush_failed: None,
        restoring: 0,
        unread: 0,
        scrubbed: None,
        changed: None,
        current: false,
        progress: None,
        survives: Vec::new(),
    }
}

/// The words of [`crate::status::DatasetStatus`] for a dataset's state, and what the last restart
/// left out.
pub(super) fn state_word(dataset: &Dataset) -> &'static str {
    if dataset.failed.is_some() {
        return FAILED;
    }
    if dataset.life.is_hidden() {
        return HIDDEN;
    }
    match (dataset.state(), &dataset.transfer) {
        (HeldState::Complete, Some(("flushing", _))) => "flushing",
        (HeldState::Complete, _) if dataset.flushed => "flushed",
        (HeldState::Complete, _) => match dataset.life.catalog() {
            Some(index)
                if is_protected(&index.catalog().layout, &dataset.told.absent) && !dataset.is_bad() =>
            {
                "protected"
            }
            _ => SEALED,
        },
        (HeldState::Frozen, Some((what, _))) => what,
        (HeldState::Frozen | HeldState::Recorded, _) => "encoding",
    }
}
