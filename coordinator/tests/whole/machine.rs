//! A simulated node: the real daemon's two halves over real files, without threads, socket and
//! kernel. Its worker can die between any two pieces of work, and at any fault point within one.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use scrfs::checkpoint_path::in_force;
use scrfs::control::server::{Greeting, LinkHandle, Peer, Service};
use scrfs::control::{Command, Event};
use scrfs::daemon::{Node, NodeConfig};
use scrfs::fs::FileSystem;
use scrfs::keep::Keep;
use scrfs::lane::{Agenda, Hands};
use scrfs::path::RelPath;
use scrfs::stores::Stores;

/// A node with its directories.
pub(crate) struct Machine {
    pub(crate) host: String,
    directory: PathBuf,
    pub(crate) worker: Worker,
    link: Option<(u64, Receiver<Event>)>,
    links: u64,
}

/// Regular files with bytes in them.
fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let meta = entry.metadata().expect("a file");
        match meta.is_dir() {
            true => collect(&entry.path(), files),
            false if meta.is_file() && meta.len() > 0 => files.push(entry.path()),
            false => {}
        }
    }
}

/// One life of its daemon.
pub(crate) struct Worker {
    pub(crate) agenda: Arc<Agenda>,
    pub(crate) fs: Arc<FileSystem>,
    pub(crate) node: Arc<Node>,
}

impl Worker {
    fn start(directory: &Path, host: &str, is_new: bool) -> Self {
        let agenda = Arc::new(Agenda::default());
        let hands = Hands::Agenda(Arc::clone(&agenda));
        let (control, cache) = (directory.join("control"), directory.join("cache"));
        let stores = Arc::new(Stores::one(&cache));
        for place in [&control, &cache.join("tree")] {
            std::fs::create_dir_all(place).expect("a directory");
        }
        let chosen = in_force(&control, &RelPath::root()).expect("a checkpoint path");
        let keep = Arc::new(Keep::alone().expect("memory"));
        let (path, over) = (chosen.path.clone(), Arc::clone(&stores));
        let fs = FileSystem::with_stores(path, keep, over, hands.clone()).expect("a tree");
        fs.begin().expect("a tree");
        let config = NodeConfig {
            is_new,
            control_directory: control,
            in_use: stores,
            checkpoint_path: chosen,
            mount_point: "/scr".into(),
            job_user: "u".into(),
            job_uid: rustix::process::geteuid().as_raw(),
            job_gid: rustix::process::getegid().as_raw(),
            operators: None,
            job_id: "j".into(),
            host: host.to_owned(),
            coordinator_wait: Duration::from_secs(10),
            cache_bytes: 0,
            stores: Vec::new(),
            hands,
            on_stop: Arc::new(|| {}),
            on_reload: Arc::new(|| false),
        };
        let node = Node::begin(config, Arc::clone(&fs) as _).expect("a node");
        fs.connect(&(Arc::clone(&node) as _));
        fs.restore_sealed();
        Self { agenda, fs, node }
    }
}

impl Machine {
    /// With nothing in it yet.
    pub(crate) fn new(host: &str, directory: PathBuf) -> Self {
        let worker = Worker::start(&directory, host, true);
        Self { host: host.to_owned(), directory, worker, link: None, links: 0 }
    }

    /// Flips a bit of one of the files in these directories of its cache, if any has bytes.
    pub(crate) fn flip(&self, seed: u64, below: &[String]) -> Option<PathBuf> {
        let mut files = Vec::new();
        for directory in below.iter().map(|below| self.directory.join("cache").join(below)) {
            if directory.exists() {
                collect(&directory, &mut files);
            }
        }
        files.sort();
        let pick = |bound: usize| usize::try_from(seed % bound as u64).expect("below usize");
        let path = (!files.is_empty()).then(|| files[pick(files.len())].clone())?;
        let mut bytes = std::fs::read(&path).expect("a file");
        let at = pick(bytes.len());
        bytes[at] ^= 1 << (seed >> 32 & 7);
        let file = std::fs::File::options().write(true).open(&path).expect("a file");
        file.write_all_at(&bytes, 0).expect("a write");
        path.strip_prefix(self.directory.join("cache")).ok().map(Path::to_owned)
    }

    /// Its worker is dead, and another one takes over.
    pub(crate) fn succeed(&mut self) {
        self.link = None;
        self.worker = Worker::start(&self.directory, &self.host, false);
    }

    /// All that it had is gone for good.
    pub(crate) fn destroy(self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }

    pub(crate) fn attach(&mut self, greeting: Greeting) {
        self.links += 1;
        let (link, events) = LinkHandle::simulated(self.links);
        let attached = self.worker.node.attach(greeting, &Peer::own(), &link);
        attached.unwrap_or_else(|refusal| panic!("{} refuses: {refusal:?}", self.host));
        self.link = Some((self.links, events));
    }

    /// Its coordinator is gone.
    pub(crate) fn detach(&mut self) {
        if let Some((link, _)) = self.link.take() {
            self.worker.node.detached(link, "the coordinator died");
        }
    }

    /// The number of its coordinator's link, be it gone or not.
    pub(crate) fn link(&self) -> u64 {
        self.links
    }

    pub(crate) fn command(&self, command: Command) {
        let (link, _) = self.link.as_ref().expect("attached");
        self.worker.node.command(*link, command);
    }

    /// By a link that may be gone.
    pub(crate) fn command_of(&self, link: u64, command: Command) {
        self.worker.node.command(link, command);
    }

    /// How much it has to say.
    pub(crate) fn events(&self) -> usize {
        self.link.as_ref().map_or(0, |(_, events)| events.len())
    }

    /// What the mounted tree itself has at this path on this node.
    pub(crate) fn in_tree(&self, path: &str) -> Option<Vec<u8>> {
        let path = self.directory.join("cache/tree").join(path);
        let is_file = std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file());
        is_file.then(|| std::fs::read(&path).expect("a file"))
    }

    /// It has something to say.
    pub(crate) fn speaks(&self) -> bool {
        self.link.as_ref().is_some_and(|(_, events)| !events.is_empty())
    }

    pub(crate) fn event(&self) -> Option<Event> {
        self.link.as_ref()?.1.try_recv().ok()
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.worker.agenda.pass(time);
        self.worker.node.look();
        self.worker.fs.look();
    }
}
