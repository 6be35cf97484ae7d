//! The simulated cluster: nodes as namespaces of one machine.
//!
//! How it holds together, and why nothing is left behind:
//! - The harness starts one *keeper* per cluster and holds a pipe to it. When the pipe closes, for
//!   whatever reason (drop, panic, the harness killed), the keeper ends the cluster and removes its
//!   directory.
//! - The keeper's child is the *head*, process 1 of a PID namespace that all nodes are nested in:
//!   when it dies, the kernel ends every process of the cluster, and with them go the mounts and
//!   networks. The head dies with the keeper.
//! - Every node has a PID namespace in that one, so killing its process 1 is the node's death, all
//!   at once.
//!
//! All state is in files of the state directory, so a cluster can also be worked on by its
//! directory ([`Control`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde_json::{Value, json};

use crate::mpirun::{MpiRun, SITE_PARAMETERS};
use crate::place::{INSIDE, MAX_NODES, Place, State, USERS};
use crate::shell::{Ran, Shell};
use crate::wait;

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many nodes are booted.
    pub nodes: usize,
    /// Size of each node's cache, as tmpfs takes it.
    pub cache_size: String,
    /// Size of each node's `/dev/shm`.
    pub shm_size: String,
    /// Size of each node's `/tmp`.
    pub tmp_size: String,
    /// Whether a node's cache outlives its reboot, like a disk (it is then a directory of the
    /// host).
    pub keep_cache: bool,
    /// Host directories below `/tmp` or `/run` that all nodes are to see (the workspace always is).
    pub share: Vec<PathBuf>,
    /// The directory with the programs that stand in [`BIN`](crate::place::BIN).
    pub bin: PathBuf,
}

impl Config {
    /// `nodes` nodes with the usual sizes.
    pub fn new(nodes: usize) -> Self {
        Self {
            nodes,
            cache_size: "512m".into(),
            shm_size: "256m".into(),
            tmp_size: "256m".into(),
            keep_cache: false,
            share: Vec::new(),
            bin: bin_dir(),
        }
    }
}

/// A running cluster; dropping it ends it and everything in it.
#[derive(Debug)]
pub struct Cluster {
    control: Control,
    nodes: usize,
}

impl Cluster {
    /// Starts the head and `nodes` nodes. Panics if that is not possible here: it needs root.
    #[track_caller]
    pub fn up(nodes: usize) -> Self {
        Self::start(&Config::new(nodes)).unwrap_or_else(|e| panic!("no cluster: {e}"))
    }

    /// Starts the head and the nodes that `config` asks for.
    pub fn start(config: &Config) -> io::Result<Self> {
        if config.nodes > MAX_NODES {
            return Err(io::Error::other(format!("at most {MAX_NODES} nodes")));
        }
        if !rustix::process::getuid().is_root() {
            return Err(io::Error::other("a simulated cluster needs root"));
        }
        listen();
        // A signal waits until the keeper is known, which removes the directory.
        let starting = ENDING.read().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::Builder::new().prefix("scrfs-sim-").tempdir()?;
        let state = State::at(dir.path());
        furnish(&state, config)?;
        let keeper = Keeper::start(&state)?;
        // From here on the keeper removes the directory.
        let dir = dir.keep();
        let cluster = Self { control: Control { state }, nodes: config.nodes };
        clusters().insert(dir, keeper);
        drop(starting);
        thread::scope(|scope| {
            let cluster = &cluster;
            let boots: Vec<_> = (0..config.nodes).map(|k| scope.spawn(move || cluster.boot(k))).collect();
            boots.into_iter().try_for_each(|t| t.join().map_err(|_| io::Error::other("a boot panicked"))?)
        })?;
        Ok(cluster)
    }

    /// How many nodes it was started with.
    pub fn size(&self) -> usize {
        self.nodes
    }

    /// Ends it now; what dropping does too.
    pub fn down(self) {}
}

impl std::ops::Deref for Cluster {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.control
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let keeper = clusters().remove(self.state().dir());
        if let Some(keeper) = keeper {
            keeper.end();
        }
    }
}

/// What can be done with a cluster that is known by its state directory.
#[derive(Clone, Debug)]
pub struct Control {
    state: State,
}

impl Control {
    /// The cluster in this directory.
    pub fn of(state: State) -> Self {
        Self { state }
    }

    /// Where everything is.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The parallel file system as the host sees it (in the nodes it is
    /// [`PFS`](crate::place::PFS)).
    pub fn pfs(&self) -> PathBuf {
        self.state.pfs()
    }

    /// Commands on a node, as root if not told otherwise.
    pub fn on(&self, node: usize) -> Shell {
        Shell::at(&self.state, Place::Node(node))
    }

    /// Commands on the login node.
    pub fn head(&self) -> Shell {
        Shell::at(&self.state, Place::Head)
    }

    /// `mpirun` in the head with this many ranks over these nodes, one after the other.
    pub fn mpirun(&self, hosts: &[usize], ranks: usize) -> MpiRun {
        MpiRun::new(self.head(), hosts, ranks)
    }

    /// Powers a node on; its memory (and its cache, unless that is kept) is empty. Fails if it is
    /// on.
    pub fn boot(&self, node: usize) -> io::Result<()> {
        let place = Place::Node(node);
        if self.is_up(node) {
            return Err(io::Error::other(format!("{place} is up already")));
        }
        let shell = Shell::at(&self.state, Place::Head).limit(Duration::from_mins(1));
        let ran = Ran::of(
            shell.cmd(&format!("{}/scrfs-simnode", crate::place::BIN)).arg("node").arg(place.to_string()),
        );
        let fail = |why: &str| {
            let log = fs::read_to_string(self.state.log(place)).unwrap_or_default();
            io::Error::other(format!("{place} did not boot: {why}\n{ran}\n{log}"))
        };
        let inside: i32 = ran.out.trim().parse().map_err(|_| fail("no pid"))?;
        let head = self.record(Place::Head).ok_or_else(|| fail("the head is down"))?;
        let record = Record::find(head.host, inside).ok_or_else(|| fail("its init is gone"))?;
        let _ = fs::remove_file(self.state.cut(place));
        record.write(&self.state.record(place))
    }

    /// Whether a node is on (frozen and cut off ones are).
    pub fn is_up(&self, node: usize) -> bool {
        self.record(Place::Node(node)).is_some_and(|r| r.open().is_some())
    }

    /// Kills a node as a kernel crash with a reset does: its sockets are closed, so peers are told.
    pub fn kill(&self, node: usize) {
        let Some(record) = self.record(Place::Node(node)) else { return };
        let Some(init) = record.open() else { return };
        let _ = rustix::process::pidfd_send_signal(&init, Signal::KILL);
        wait::until_true(&format!("the end of node{node}"), Duration::from_secs(20), || has_ended(&init));
    }

    /// Takes a node's power: it dies, and its peers hear nothing.
    pub fn poweroff(&self, node: usize) {
        self.cut(node);
        self.kill(node);
    }

    /// Pulls a node's network cable; everything on it goes on.
    pub fn cut(&self, node: usize) {
        let _ = fs::write(self.state.cut(Place::Node(node)), "");
        self.link(node, "down");
    }

    /// Puts the cable back.
    pub fn uncut(&self, node: usize) {
        self.link(node, "up");
        let _ = fs::remove_file(self.state.cut(Place::Node(node)));
    }

    /// Stops every process of a node: it hangs, and its kernel still answers on the network.
    pub fn freeze(&self, node: usize) {
        self.signal_all(node, Signal::STOP);
    }

    /// Lets a frozen node go on.
    pub fn thaw(&self, node: usize) {
        self.signal_all(node, Signal::CONT);
    }

    /// Host pids of all processes of a node.
    pub fn processes(&self, node: usize) -> Vec<i32> {
        let Some(record) = self.record(Place::Node(node)) else { return Vec::new() };
        host_pids().filter(|&pid| namespace(pid).as_ref() == Some(&record.namespace)).collect()
    }

    /// One line per node: name, address, host pid of its process 1, `up`, `cut` or `down`.
    pub fn list(&self) -> String {
        let mut lines = String::new();
        let nodes = read_conf(&self.state).ok().and_then(|c| c["nodes"].as_u64()).unwrap_or(0);
        for k in 0..usize::try_from(nodes).unwrap_or(0) {
            let place = Place::Node(k);
            let record = self.record(place).filter(|r| r.open().is_some());
            let word = match (&record, self.state.cut(place).exists()) {
                (None, _) => "down",
                (Some(_), true) => "cut",
                (Some(_), false) => "up",
            };
            let pid = record.map_or_else(|| "-".to_owned(), |r| r.host.to_string());
            let _ = writeln!(lines, "{place} {} {pid} {word}", place.address());
        }
        lines
    }

    fn record(&self, place: Place) -> Option<Record> {
        Record::read(&self.state.record(place))
    }

    fn link(&self, node: usize, way: &str) {
        let ran = Shell::at(&self.state, Place::Head).run(&format!("ip link set v{node} {way}"));
        assert!(ran.ok(), "{ran}");
    }

    fn signal_all(&self, node: usize, signal: Signal) {
        // Again until no process was born in between.
        let mut seen = Vec::new();
        loop {
            let now = self.processes(node);
            if now.iter().all(|pid| seen.contains(pid)) {
                return;
            }
            for pid in now.iter().filter(|pid| !seen.contains(pid)).filter_map(|&pid| Pid::from_raw(pid)) {
                let _ = rustix::process::kill_process(pid, signal);
            }
            seen = now;
        }
    }
}

/// Who a place's process 1 is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Its pid on the host.
    pub(crate) host: i32,
    /// Its pid as the head sees it.
    pub(crate) inside: i32,
    /// Its PID namespace, as /proc names it.
    pub(crate) namespace: String,
}

impl Record {
    /// The record of a process that the head knows as `inside`.
    fn find(head: i32, inside: i32) -> Option<Self> {
        let link = fs::read_link(format!("/proc/{head}/root/proc/{inside}/ns/pid")).ok()?;
        let namespace = link.to_string_lossy().into_owned();
        let host =
            host_pids().find(|&pid| is_first(pid) && self::namespace(pid).as_ref() == Some(&namespace))?;
        Some(Self { host, inside, namespace })
    }

    /// The record of the head.
    pub(crate) fn head(host: i32) -> Option<Self> {
        Some(Self { host, inside: 1, namespace: namespace(host)? })
    }

    pub(crate) fn read(path: &Path) -> Option<Self> {
        let text = fs::read_to_string(path).ok()?;
        let mut words = text.split_whitespace();
        Some(Self {
            host: words.next()?.parse().ok()?,
            inside: words.next()?.parse().ok()?,
            namespace: words.next()?.to_owned(),
        })
    }

    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let fresh = path.with_extension("new");
        fs::write(&fresh, format!("{} {} {}\n", self.host, self.inside, self.namespace))?;
        fs::rename(fresh, path)
    }

    /// The process, if it is still that one and has not ended; for use on the host.
    pub(crate) fn open(&self) -> Option<OwnedFd> {
        let fd = rustix::process::pidfd_open(Pid::from_raw(self.host)?, PidfdFlags::empty()).ok()?;
        (namespace(self.host).as_ref() == Some(&self.namespace) && !has_ended(&fd)).then_some(fd)
    }
}

/// Whether a process has ended, reaped or not.
pub(crate) fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    !matches!(rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
}

fn host_pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok())
}

fn namespace(pid: i32) -> Option<String> {
    Some(fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?.to_string_lossy().into_owned())
}

/// Whether it is process 1 of its namespace.
fn is_first(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:")).unwrap_or_default();
    line.split_whitespace().last() == Some("1")
}

/// The process that ends a cluster when its pipe closes.
#[derive(Debug)]
struct Keeper {
    child: Child,
    pipe: ChildStdin,
}

impl Keeper {
    fn start(state: &State) -> io::Result<Self> {
        let mut command = Command::new(simnode());
        command
            .arg("keeper")
            .arg(state.dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Its own process group: a ^C at the terminal is for the harness, which closes the pipe in
        // time.
        command.process_group(0);
        let mut child = command
            .spawn()
            .map_err(|e| io::Error::new(e.kind(), format!("cannot start {}: {e}", simnode().display())))?;
        let pipe = child.stdin.take().ok_or_else(|| io::Error::other("no pipe"))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        if line.trim() != "ready" {
            drop(pipe);
            let output = child.wait_with_output()?;
            return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        Ok(Self { child, pipe })
    }

    /// Ends the cluster and returns when it is gone.
    fn end(mut self) {
        drop(self.pipe);
        let ended = wait::poll(Duration::from_secs(30), || self.child.try_wait().ok().flatten());
        if ended.is_none() {
            let _ = writeln!(
                io::stderr(),
                "the cluster's keeper, process {}, did not end in 30 s",
                self.child.id()
            );
        }
    }
}

fn clusters() -> std::sync::MutexGuard<'static, BTreeMap<PathBuf, Keeper>> {
    static ALL: OnceLock<Mutex<BTreeMap<PathBuf, Keeper>>> = OnceLock::new();
    ALL.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held for writing from a signal on: no cluster starts any more.
static ENDING: RwLock<()> = RwLock::new(());

/// From now on INT, TERM and HUP to this process end all its clusters before they do what they
/// usually do. (Without this they would end too, but a little after the process.)
fn listen() {
    static HANDLER: OnceLock<()> = OnceLock::new();
    HANDLER.get_or_init(|| {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
        thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                let _ending = ENDING.write().unwrap_or_else(PoisonError::into_inner);
                let all = std::mem::take(&mut *clusters());
                let ends: Vec<_> = all.into_values().map(|keeper| thread::spawn(|| keeper.end())).collect();
                for end in ends {
                    drop(end.join());
                }
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        });
    });
}

/// Makes the state directory's content.
fn furnish(state: &State, config: &Config) -> io::Result<()> {
    fs::set_permissions(state.dir(), fs::Permissions::from_mode(0o755))?;
    for name in ["bin", "etc", "root", "nodes", "log", "pfs", "ssd"] {
        fs::create_dir(state.dir().join(name))?;
    }
    fs::set_permissions(state.pfs(), fs::Permissions::from_mode(0o1777))?;
    let mut share = config.share.clone();
    share.push(workspace());
    share.push(config.bin.clone());
    let conf = json!({
        "nodes": config.nodes,
        "cache_size": config.cache_size,
        "shm_size": config.shm_size,
        "tmp_size": config.tmp_size,
        "keep_cache": config.keep_cache,
        "share": share.iter().map(|p| p.to_string_lossy()).collect::<Vec<_>>(),
        "bin": config.bin.to_string_lossy(),
        "state": state.dir().to_string_lossy(),
    });
    fs::write(state.conf(), conf.to_string())?;

    let mut hosts = format!("127.0.0.1 localhost\n{} head\n", Place::Head.address());
    for place in (0..config.nodes).map(Place::Node) {
        let _ = writeln!(hosts, "{} {place}", place.address());
    }
    fs::write(state.etc().join("hosts"), hosts)?;
    // Users must be known by name: Open MPI looks for their shell.
    let file = |name: &str, line: fn(&str, u32) -> String| {
        let old = fs::read_to_string(format!("/etc/{name}")).unwrap_or_default();
        let is_taken = |l: &&str| USERS.iter().any(|(_, id)| l.split(':').nth(2) == Some(&id.to_string()));
        let kept = old.lines().filter(|l| !is_taken(l)).map(str::to_owned);
        let lines: Vec<_> = kept.chain(USERS.iter().map(|&(user, id)| line(user, id))).collect();
        fs::write(state.etc().join(name), lines.join("\n") + "\n")
    };
    file("passwd", |user, id| format!("{user}:x:{id}:{id}::/tmp:/bin/sh"))?;
    file("group", |user, id| format!("{user}:x:{id}:"))?;
    // After what the distribution sets: without that each rank tries networks that are not there,
    // for a second.
    let mut site = fs::read_to_string("/etc/openmpi/openmpi-mca-params.conf").unwrap_or_default();
    for (name, value) in SITE_PARAMETERS {
        let _ = writeln!(site, "\n{name} = {value}");
    }
    fs::write(state.etc().join("openmpi-mca-params.conf"), site)
}

/// What [`furnish`] wrote down.
pub(crate) fn read_conf(state: &State) -> io::Result<Value> {
    serde_json::from_slice(&fs::read(state.conf())?).map_err(io::Error::other)
}

/// The directory that the workspace's programs are built into.
pub fn bin_dir() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    let dir = exe.parent().unwrap_or(Path::new("/"));
    if dir.ends_with("deps") { dir.parent().unwrap_or(dir).to_owned() } else { dir.to_owned() }
}

/// The workspace's directory.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The helper program: on the host in the build directory, inside a cluster in its place there.
pub(crate) fn simnode() -> PathBuf {
    let built = bin_dir().join("scrfs-simnode");
    if built.exists() { built } else { Path::new(INSIDE).join("bin/scrfs-simnode") }
}
