//! The node: its parts, its lanes, its start from what is on storage, and its end.

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::checkpoint_path::Chosen;
use crate::control::server::{Heard, Server, Service};
use crate::dataset::lifecycle::Step;
use crate::ids::Epoch;
use crate::lane::{Hands, Lane};
use crate::lock::{Condvar, Mutex, Rank};
use crate::store::{Store, StoreError};
use crate::stores::{PRIMARY, Stores};

use super::bound::{Bound, bound_of};
use super::cache::Cache;
use super::copies::Arriving;
use super::core::desk::{Desk, Input};
use super::core::seals::Seals;
use super::disk::Disk;
use super::events::Events;
use super::eyes::Advised;
use super::freeze::Freezes;
use super::generation::Generations;
use super::journal::Journal;
use super::loose::Loose;
use super::loose_store::LooseStore;
use super::priority::Priority;
use super::requests::RequestIds;
use super::reserve::KeptBack;
use super::rounds::Rounds;
use super::service::ended_job;
use super::state::{Origin, State};
use super::stores::CacheStore;
use super::verification::Comparisons;
use super::wishes::Wishes;
use crate::boundary::MountedTree;

/// Where a node lives and for whom.
#[derive(Clone)]
pub struct NodeConfig {
    /// The mount is new: this is its first worker.
    pub is_new: bool,
    /// `<cntl_base>/<user>/scr.<jobid>`; made if it is not there.
    pub control_directory: PathBuf,
    /// Where the cache is; each `<cache_base>/<user>/scr.<jobid>` is made if it is not there.
    pub in_use: Arc<Stores>,
    /// Where datasets are, relative to the mount's root.
    pub checkpoint_path: Chosen,
    /// Where the tree is mounted; for status.
    pub mount_point: PathBuf,
    /// The job's user.
    pub job_user: String,
    /// Who may speak on the socket, beside root.
    pub job_uid: u32,
    /// That user's group.
    pub job_gid: u32,
    /// The group of `SCRFS_OPERATOR_GROUP`.
    pub operators: Option<u32>,
    /// `SCR_JOB_ID`.
    pub job_id: String,
    /// This node's name, as in catalogs.
    pub host: String,
    /// `SCRFS_COORDINATOR_WAIT` until a coordinator brings the job's.
    pub coordinator_wait: Duration,
    /// `SCRFS_CACHE_BYTES` of the mount, which a job may lower; 0: no limit.
    pub cache_bytes: u64,
    /// What the cache's places were chosen from; for status.
    pub stores: Vec<CacheStore>,
    /// Who does what this node puts off.
    pub hands: Hands,
    /// Called for [`Ask::Stop`](crate::control::Ask::Stop): unmount and end. Must not block.
    pub on_stop: Arc<dyn Fn() + Send + Sync>,
    /// Called when another worker is to take over, which serves by another checkpoint path; false
    /// where nobody can start one. Must not block.
    pub on_reload: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A directory cannot be made or opened.
    #[error("{}: {source}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its state cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A thread or the socket cannot be had.
    #[error("cannot start: {0}")]
    Start(#[source] io::Error),
}

/// One thread per kind of work that takes long.
pub(super) struct Lanes {
    /// Records and commits, in the lead's order.
    pub(super) records: Lane,
    /// Flush, verify, fetch of members, and what nodes save in the prefix.
    pub(super) transfers: Lane,
    /// Scrubs, and unread files that no program waits for.
    pub(super) scrubs: Lane,
    /// Files that a program waits for.
    pub(super) opens: Lane,
    /// Removal of datasets.
    pub(super) evictions: Lane,
    /// Directory operations without a coordinator, those that a round still owes, and the release
    /// of names that a round holds whose lead has no successor.
    pub(super) local: Lane,
    /// Sealed files that programs are about to change.
    pub(super) generations: Lane,
    /// The cache's size, the reserve, and words on priority.
    pub(super) room: Lane,
}

/// The node's half of the daemon. [`Node::stop`] ends it; dropping it does not.
pub struct Node {
    pub(super) config: NodeConfig,
    pub(super) tree: Arc<dyn MountedTree>,
    pub(super) cache: Arc<Cache>,
    pub(super) bound: Bound,
    pub(super) arriving: Arriving,
    /// These locks have a [`Rank`].
    pub(super) disk: Mutex<Disk>,
    pub(super) rounds: Mutex<Rounds>,
    /// Rounds have directories to make that could not be made.
    pub(super) owes: AtomicBool,
    pub(super) generations: Mutex<Generations>,
    pub(super) journal: Mutex<Journal>,
    pub(super) loose: Mutex<Loose>,
    pub(super) state: Mutex<State>,
    /// Something began to wait, or what waits has to be looked at anew.
    pub(super) wake: Condvar,
    pub(super) freezes: Freezes,
    pub(super) events: Events,
    /// Room for what `disk`, `rounds`, `journal`, `loose` and `events` write.
    pub(super) kept_back: KeptBack,
    pub(super) priority: Priority,
    pub(super) lanes: Lanes,
    pub(super) me: Weak<Self>,
    pub(super) ids: RequestIds,
    pub(super) comparisons: Comparisons,
    server: Mutex<Option<Server>>,
    watcher: Mutex<Option<JoinHandle<()>>>,
}

impl Node {
    /// Starts from what is in the directories, listens on the socket. Datasets whose seal is in
    /// doubt are frozen again, complete ones are listed in `tree` as before.
    pub fn start(config: NodeConfig, tree: Arc<dyn MountedTree>) -> Result<Arc<Self>, NodeError> {
        let node = Self::begin(config, tree)?;
        let watching = Arc::clone(&node);
        let watcher = std::thread::Builder::new()
            .name("scrfs-waiting".into())
            .spawn(move || watching.watch())
            .map_err(NodeError::Start)?;
        *node.watcher.lock() = Some(watcher);
        let service: Arc<dyn Service> = Arc::clone(&node) as _;
        let heard = Heard { job_uid: node.config.job_uid, operators: node.config.operators };
        let directory = &node.config.control_directory;
        let server = node.kept_back.with_room(|| Server::start(directory, heard, Arc::clone(&service)));
        match server {
            Ok(server) => *node.server.lock() = Some(server),
            Err(error) => {
                node.stop();
                return Err(NodeError::Start(error));
            }
        }
        Ok(node)
    }

    /// As [`Node::start`], but nobody watches, and nobody listens: for simulations, which call
    /// [`Node::look`] and speak to the node as a [`Service`].
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn begin(config: NodeConfig, tree: Arc<dyn MountedTree>) -> Result<Arc<Self>, NodeError> {
        make_directory(&config.control_directory, 0o711)?;
        for place in config.in_use.places() {
            make_directory(&place.cache, 0o700)?;
            make_directory(&place.tree(), 0o755)?;
        }
        let opened = |path: &Path, source| NodeError::Directory { path: path.to_owned(), source };
        let store =
            Store::open(&config.control_directory).map_err(|e| opened(&config.control_directory, e))?;
        let cache = Cache::open(Arc::clone(&config.in_use), config.checkpoint_path.path.clone())
            .map_err(|e| opened(&config.in_use.places()[PRIMARY].cache, e))?;
        let node = Self::load(config, tree, store, Arc::new(cache))?;
        node.remember_new();
        node.watch_reserve(node.me.clone());
        node.cache.give_pages_back();
        node.take_up();
        Ok(node)
    }

    fn load(
        config: NodeConfig,
        tree: Arc<dyn MountedTree>,
        store: Store,
        cache: Arc<Cache>,
    ) -> Result<Arc<Self>, NodeError> {
        let (store, kept_back) = KeptBack::of(store);
        let store = &Arc::new(store);
        let events = Events::open(store.path(), kept_back.reserve().cloned());
        let mut disk = Disk::new(Arc::clone(store), Arc::clone(&cache));
        let mut loaded = disk.load()?;
        let settings = disk.settings(&mut loaded.problems)?;
        let advice = disk.advice(&mut loaded.problems)?;
        let (rounds, torn_rounds) = Rounds::load(store)?;
        let (mut journal, torn_journal) = Journal::load(store)?;
        super::checkpoint_path::rebase(&mut journal, &config.checkpoint_path, store)?;
        let place = store.path().join(super::loose_store::DIRECTORY);
        let (loose, bad) = LooseStore::open(&place, kept_back.reserve().cloned())
            .map_err(|source| NodeError::Directory { path: place.clone(), source })?;
        let loose = Loose::new(loose);
        loaded.problems.extend(bad);
        if let Some(problem) = kept_back.problem(store.path()) {
            events.warning(None, &problem);
        }
        for problem in &loaded.problems {
            events.error(None, &format!("a record could not be used: {problem}"));
        }
        for (what, torn) in [("directory operations", torn_rounds), ("new files", torn_journal)] {
            if torn > 0 {
                events.warning(None, &format!("{torn} bytes of an unfinished record of {what} were dropped"));
            }
        }
        let limit = bound_of(&config, settings.as_ref());
        // Whoever was here before, this mount has no job yet.
        let ended = if config.is_new { Some(loaded.table.epoch) } else { ended_job(store) };
        let state = State {
            former_epoch: loaded.table.epoch,
            desk: Desk::new(loaded.table.epoch > Epoch(0)),
            table: loaded.table,
            attached: None,
            settings,
            identity: None,
            ended,
            seals: Seals::default(),
            wishes: Wishes::default(),
            advised: Advised::found(advice),
            shortage: super::room::Shortage::default(),
            late: super::late::Late::default(),
            losses: super::losses::Losses::default(),
            stopping: false,
        };
        let lane = |name| Lane::start(&config.hands, name).map_err(NodeError::Start);
        let background = |name| Lane::start_nice(&config.hands, name).map_err(NodeError::Start);
        let lanes = Lanes {
            records: lane("scrfs-records")?,
            transfers: background("scrfs-transfer")?,
            scrubs: background("scrfs-scrub")?,
            opens: lane("scrfs-open")?,
            evictions: background("scrfs-evict")?,
            local: lane("scrfs-local")?,
            generations: lane("scrfs-change")?,
            room: background("scrfs-room")?,
        };
        Ok(Arc::new_cyclic(|me| Self {
            config,
            tree,
            cache,
            bound: Bound::new(limit),
            arriving: Arriving::default(),
            disk: Mutex::new(Rank::Disk, disk),
            rounds: Mutex::new(Rank::Rounds, rounds),
            owes: AtomicBool::new(false),
            generations: Mutex::new(Rank::Generations, Generations::default()),
            journal: Mutex::new(Rank::Journal, journal),
            loose: Mutex::new(Rank::Loose, loose),
            state: Mutex::new(Rank::State, state),
            wake: Condvar::default(),
            freezes: Freezes::default(),
            events,
            kept_back,
            priority: Priority::default(),
            lanes,
            me: me.clone(),
            ids: RequestIds::new(),
            comparisons: Comparisons::default(),
            server: Mutex::leaf(None),
            watcher: Mutex::leaf(None),
        }))
    }

    /// Something about this process that whoever runs it should know.
    pub fn warn(&self, text: &str) {
        self.events.warning(None, text);
    }

    /// Brings the tree to where the records are.
    fn take_up(&self) {
        if let Some(settings) = self.state.lock().settings.clone() {
            self.tree.follow(&settings);
        }
        if self.config.checkpoint_path.former.is_some() {
            // Directories may have been made, and other names are global now.
            self.tree.names_changed();
        }
        self.tree.record_io(self.config.control_directory.join(super::service::RECORD_IO).exists());
        self.count_in_background();
        self.settle_all();
        let (frozen, listed, going) = {
            let mut state = self.state.lock();
            if state.desk.was_attached() {
                // A successor gets its time, also after this worker's start.
                drop(self.desk_step(&mut state, Input::Gone));
            }
            let mut frozen: Vec<Vec<u8>> = state.table.owed.names().cloned().collect();
            let (mut listed, mut going) = (Vec::new(), Vec::new());
            for dataset in state.table.datasets.values_mut() {
                dataset.life = dataset.life.found(self.cache.is_aside(dataset.id));
                if dataset.life.is_leaving() {
                    going.push(dataset.id);
                } else if dataset.step(&Step::Listed).is_ok() {
                    listed.push(dataset.id);
                } else if dataset.life.has_name() {
                    frozen.push(dataset.name.clone());
                }
            }
            (frozen, listed, going)
        };
        if let Err(error) = self.discard_half_made_copies() {
            self.events.warning(None, &format!("copies for seals cannot be removed: {error}"));
        }
        for id in listed {
            self.list_again(id);
            self.go_on_verifying(id);
        }
        for name in frozen {
            self.tree.freeze(&name);
        }
        for id in going {
            self.evict_in_background(id);
        }
    }

    /// Datasets that an earlier version, or a mount over one store, left get their own directories.
    fn settle_all(&self) {
        let datasets: Vec<_> = self.state.lock().table.datasets.values().cloned().collect();
        for dataset in datasets {
            let entries = dataset.life.catalog().map_or(&[][..], |index| &index.catalog().entries);
            if let Err(error) = self.cache.settle(dataset.id, &dataset.name, entries) {
                self.events.error(Some(dataset.id), &format!("its own directory cannot be made: {error}"));
            }
        }
    }

    /// Closes the socket and all links, answers all who wait (EIO), and ends the threads once their
    /// work is done.
    pub fn stop(&self) {
        self.priority.detached();
        let (attached, effects) = {
            let mut state = self.state.lock();
            state.stopping = true;
            self.give_up_seals(&mut state);
            let effects = self.desk_step(&mut state, Input::Stops);
            (state.attached.take(), effects)
        };
        self.wake.notify_all();
        if let Some(mut server) = self.server.lock().take() {
            server.stop();
        }
        if let Some(attached) = attached {
            attached.transfers.iter().for_each(crate::transfer::Monitor::cancel);
            attached.link.close();
        }
        self.carry_out_effects(effects);
        self.end_verification();
        let lanes = &self.lanes;
        for lane in [
            &lanes.transfers,
            &lanes.scrubs,
            &lanes.opens,
            &lanes.evictions,
            &lanes.local,
            &lanes.generations,
            &lanes.room,
            &lanes.records,
        ] {
            lane.stop();
        }
        if let Some(watcher) = self.watcher.lock().take()
            && watcher.thread().id() != std::thread::current().id()
        {
            let _ = watcher.join();
        }
    }

    /// How long requests wait for a coordinator that is gone.
    pub(super) fn coordinator_wait(&self, state: &State) -> Duration {
        state.settings.as_ref().map_or(self.config.coordinator_wait, |settings| {
            Duration::from_millis(settings.coordinator_wait_ms)
        })
    }

    /// By this node's clock.
    pub(super) fn now(&self) -> Instant {
        self.config.hands.now()
    }

    /// Removes what the former coordinator's jobs had begun and not finished.
    pub(super) fn discard_unfinished(&self) {
        self.cache.give_pages_back();
        let unfinished = self.disk.lock().change(&self.state, |table| {
            for dataset in table.datasets.values_mut() {
                dataset.rebuilding.clear();
                dataset.parts.retain(|_, part| part.recorded || part.origin == Origin::Here);
            }
            table.datasets.retain(|_, dataset| {
                dataset.life.is_complete() || dataset.life.is_leaving() || !dataset.parts.is_empty()
            });
        });
        if let Err(error) = unfinished {
            self.events.error(None, &format!("unfinished members could not be forgotten: {error}"));
        }
        let removed = self
            .cache
            .own_directories()
            .and_then(|ids| ids.into_iter().try_for_each(|id| self.cache.discard_staged(id, None)));
        self.arriving.forget_all();
        if let Err(error) = removed {
            self.events.warning(None, &format!("unfinished files could not be removed: {error}"));
        }
    }
}

fn make_directory(path: &Path, mode: u32) -> Result<(), NodeError> {
    let failed = |source| NodeError::Directory { path: path.to_owned(), source };
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(failed)?;
    }
    match std::fs::DirBuilder::new().mode(mode).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed(e)),
        _ => {}
    }
    // The umask may have taken bits away.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(failed)
}
