//! From a started transport to the end of the process: settings, log, daemon, opening, loop, end.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use scrfs::config::{self, Config, ConfigError, Sources};
use scrfs::control::client::ClientError;
use scrfs::control::ready::{Failed, Met};
use scrfs::control::{Role, Start};
use scrfs::ids::{Epoch, NodeRank};
use scrfs::prefix::{self, Prefix, Worker, status::Reporter};
use scrfs::run;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::bell::{Bell, Ringer};
use crate::comm::Transport;
use crate::inbox::Inbox;
use crate::lead::Lack;
use crate::message::{EpochSecret, Greeting, Opening};
use crate::node::{self, NodeError, Pulse};
use crate::open::{self, Asked, OpenError};
use crate::ready;
use crate::run::{Coordinator, Ended, Parts, RunError, Wake};
use crate::settings;
use crate::watch::Watched;

/// What the command line says.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where scrfs is mounted.
    pub mount: PathBuf,
    /// How to start.
    pub start: Start,
    /// Over `SCR_PREFIX`.
    pub prefix: Option<PathBuf>,
    /// Over `SCR_JOB_ID`.
    pub job_id: Option<String>,
    /// The hosts on which the program runs; none: all that take part.
    pub program_hosts: Vec<String>,
    /// A restart presents no dataset of an earlier epoch.
    pub not_before: u64,
    /// Which of several scrfs-runs of the job this belongs to; empty: it has only one.
    pub name: String,
}

/// A transport that a process leaves at its end.
pub trait Leave: Transport {
    /// Ends the whole job of coordinators.
    fn abort(&self, code: i32) -> !;
    /// Sends what is under way and leaves, at most for `limit`.
    fn finish(self, limit: Duration) -> Result<(), crate::comm::CommError>;
}

#[cfg(feature = "mpi")]
impl Leave for crate::comm::mpi::MpiTransport {
    fn abort(&self, code: i32) -> ! {
        Self::abort(self, code)
    }
    fn finish(self, limit: Duration) -> Result<(), crate::comm::CommError> {
        Self::finish(self, limit)
    }
}

/// Exit code when the coordinators cannot go on; their starter may try again (EX_TEMPFAIL).
const EXIT_FAILED: u8 = 75;
/// Exit code when starting again is of no use: settings, and a daemon that is for another job or
/// run, or of another version (EX_CONFIG).
const EXIT_SETTINGS: u8 = 78;
/// Exit code when a restart waits for room in the caches, or for the prefix (EX_UNAVAILABLE).
const EXIT_LACKS: u8 = 69;
/// The end must come even if a peer no longer answers.
const END_LIMIT: Duration = Duration::from_secs(3);

/// Why a coordinator fails.
#[derive(Debug, thiserror::Error)]
enum ServiceError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("this process's user or directory is unknown: {0}")]
    Process(io::Error),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(
        "{found} of {wanted} coordinators have found one another: the launcher and the MPI library of scrfs-coordinator do \
         not go together"
    )]
    Apart { found: u32, wanted: usize },
    #[error("no thread for {0}: {1}")]
    Thread(&'static str, io::Error),
}

impl ServiceError {
    /// What a person can do about it; of what is not theirs to mend, nothing: scrfs-run starts
    /// coordinators again.
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Config(error) => error.hint(),
            Self::Process(_) => config::PROCESS_HINT.to_owned(),
            Self::Node(NodeError::Absent { source, .. }) if node::is_closed(source) => {
                "it is another user's: name the one of this job with --mount or SCRFS_MOUNT".to_owned()
            }
            Self::Node(NodeError::Absent { mount, .. }) => {
                format!(
                    "mount it: scrfs mount {}; or name another with --mount or SCRFS_MOUNT",
                    mount.display()
                )
            }
            Self::Node(NodeError::Version { mount, .. }) => {
                let at = mount.display();
                format!("mount it anew: scrfs umount {at}, scrfs mount {at}; or, as root: scrfs reload {at}")
            }
            Self::Open(OpenError::Settings(_)) => {
                "set it in the job script or in the prefix's .scrconf, which all nodes see".to_owned()
            }
            Self::Open(OpenError::Groups(_)) => {
                "name the node in a GROUPS line of /etc/scrfs.conf or of the .scrconf, or ask for no groups (SCR_GROUP, GROUP of CKPT lines)".to_owned()
            }
            Self::Open(OpenError::SameHost(_)) => "name each host once".to_owned(),
            Self::Run(RunError::Lacks(Lack::Prefix, _)) => {
                "start again when the PFS can be read and written; `scrfs-run --fresh` begins anew".to_owned()
            }
            Self::Run(RunError::Lacks(Lack::Room, _)) => {
                "make room in the caches of these nodes, or name other hosts, then start again; `scrfs-run --fresh` begins anew".to_owned()
            }
            Self::Apart { .. } => "`scrfs-run --launcher` names another launcher".to_owned(),
            Self::Node(_) | Self::Open(_) | Self::Run(_) | Self::Thread(..) => return None,
        })
    }
}

/// Serves until a signal or an error.
pub fn serve(mut transport: impl Leave, options: &Options) -> ExitCode {
    let sources = match sources(options) {
        Ok(sources) => sources,
        Err(error) => {
            start_log(transport.rank(), "?", 0);
            return fail(&transport, "?", &ServiceError::Process(error));
        }
    };
    let config = match Config::load(&sources, config::read_file) {
        Ok(config) => config,
        Err(error) => {
            start_log(transport.rank(), &sources.host, 0);
            return fail(&transport, &sources.host, &error.into());
        }
    };
    start_log(transport.rank(), &sources.host, config.debug);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let wakes = Inbox::new();
    let mut session = Session::new(options, &config, &sources);
    let mut wakes_now = wakes.clone();
    let mut served = watch_signals(wakes.lasting(), Arc::clone(&session.is_to_end)).map(|()| Ended::Lost);
    while matches!(served, Ok(Ended::Lost)) {
        (transport, served) = session.serve(transport, &wakes_now);
        transport.next_session();
        wakes_now = wakes.next_session();
    }
    match served {
        Ok(Ended::AskedEarly) => leave(transport, ExitCode::from(EXIT_FAILED)),
        // Who waits for the mounts is not to take the former for a coordinator's usual end.
        Ok(Ended::Asked | Ended::Lost) => leave(transport, ExitCode::SUCCESS),
        Err(error) => fail(&transport, &sources.host, &error),
    }
}

fn sources(options: &Options) -> io::Result<Sources> {
    let mut sources = Sources::of_process(std::env::vars_os())?;
    let over = [("SCR_PREFIX", options.prefix.as_ref().map(|p| p.as_os_str().to_owned()))];
    let over = over.into_iter().chain([("SCR_JOB_ID", options.job_id.as_ref().map(Into::into))]);
    for (name, value) in over {
        if let Some(value) = value {
            sources.environment.insert(name.to_owned(), value);
        }
    }
    Ok(sources)
}

/// How a coordinator serves from the opening of an epoch until it ends, or a daemon is lost. Then
/// the epoch is opened anew: the programs run, and go on.
struct Session<'a> {
    options: &'a Options,
    config: &'a Config,
    sources: &'a Sources,
    /// Epoch and secret of the session before.
    before: Option<(Epoch, EpochSecret)>,
    /// The daemon that it is or was attached to.
    daemon: Option<node::Questions>,
    watched: Door<Watched>,
    bell: Door<Bell>,
    ringer: Ringer,
    pulse: Arc<Pulse>,
    /// A signal asked for the end.
    is_to_end: Arc<AtomicBool>,
}

/// Where others come, from the first session to the last.
struct Door<T> {
    /// 0: nowhere.
    port: u16,
    /// Until the first epoch is open.
    closed: Option<T>,
}

impl<T> Door<T> {
    /// A node that cannot be watched or rung is one: it hears of others later.
    fn new(opened: io::Result<T>, port: impl Fn(&T) -> u16, lacks: &str) -> Self {
        let closed = opened.map_err(|error| tracing::warn!(%error, "this node {lacks}")).ok();
        Self { port: closed.as_ref().map_or(0, port), closed }
    }
}

/// A coordinator after the opening, without its transport.
struct Attached {
    node: node::Node,
    connect: crate::jobs::link::Connector,
    questions: node::Questions,
    opening: Opening,
    early: open::Early,
}

impl<'a> Session<'a> {
    fn new(options: &'a Options, config: &'a Config, sources: &'a Sources) -> Self {
        Self {
            options,
            config,
            sources,
            before: None,
            daemon: None,
            watched: Door::new(Watched::begin(), Watched::port, "is not watched"),
            bell: Door::new(Bell::begin(), Bell::port, "has no bell"),
            ringer: Ringer::silent(),
            pulse: Arc::default(),
            is_to_end: Arc::default(),
        }
    }

    fn serve<T: Leave>(&mut self, mut transport: T, wakes: &Inbox<Wake>) -> (T, Result<Ended, ServiceError>) {
        let is_next = self.before.is_some();
        let attached = match self.attach(&mut transport, wakes) {
            Ok(attached) => attached,
            Err(error) => return (transport, Err(error)),
        };
        let Attached { node, connect, questions, opening, early } = attached;
        let (pfs, reporter) = match lead_threads(&transport, &opening, questions, wakes) {
            Ok(threads) => threads.unzip(),
            Err(error) => return (transport, Err(error)),
        };
        let (wakes, ringer) = (wakes.clone(), std::mem::replace(&mut self.ringer, Ringer::silent()));
        let parts = Parts { transport, node, connect, ringer, wakes, opening, pfs, reporter, is_next };
        let (transport, ringer, result) = Coordinator::start(parts, early);
        self.ringer = ringer;
        (transport, result.map_err(ServiceError::from))
    }

    fn attach(&mut self, transport: &mut impl Leave, wakes: &Inbox<Wake>) -> Result<Attached, ServiceError> {
        // With a launcher that it does not know, each process takes itself for the only one.
        let (found, wanted) = (transport.size(), self.options.program_hosts.len());
        if found == 1 && wanted > 1 {
            return Err(ServiceError::Apart { found, wanted });
        }
        let me = transport.rank();
        let limit = if self.before.is_some() { node::SUCCESSOR_LIMIT } else { node::MOUNT_LIMIT };
        let daemon = node::find(&self.options.mount, limit, || self.is_to_end.load(Ordering::Relaxed))?;
        self.pulse.pause();
        let mut early = Vec::new();
        let start = if self.before.is_some() { Start::Attach } else { self.options.start };
        let asked = Asked { start, fanout: self.config.fanout, before: self.before };
        let opening = open::introduce(transport, self.greeting(me, daemon.epoch), asked, &mut early)?;
        tracing::info!(epoch = opening.epoch.0, nodes = opening.hosts.len(), start = ?opening.start, "the epoch opens");
        if me == NodeRank(0)
            && self.before.is_none()
            && let Err(error) = ready::announce(&mut io::stdout().lock(), &Met { epoch: opening.epoch })
        {
            // Whoever waited for it is gone, or never was.
            tracing::debug!(%error, "nobody was told that the coordinators have met");
        }
        self.before = Some((opening.epoch, opening.secret));
        let role = Role::Coordinator {
            epoch: opening.epoch,
            rank: me,
            hosts: opening.hosts.clone(),
            start: opening.start,
            settings: Box::new(opening.settings.clone()),
        };
        let (connect, questions) = (daemon.connector(opening.epoch), daemon.questions());
        self.daemon = Some(questions.clone());
        let up = wakes.clone();
        let pulse = Arc::clone(&self.pulse);
        self.pulse.resume();
        let node = daemon.attach(role, pulse, move |from| up.send(Wake::Daemon(from)))?;
        if let Some(bell) = self.bell.closed.take() {
            let rings = wakes.lasting();
            let hung = bell.hang(me, &opening, move || rings.send(Wake::Rung));
            let hung = hung.map_err(|error| tracing::warn!(%error, "this node rings nobody"));
            self.ringer = hung.unwrap_or_else(|()| Ringer::silent());
        }
        if me != NodeRank(0) {
            // So the lead learns where to ring without asking for names.
            self.ringer.sends(NodeRank(0));
        }
        // Before others are waited for: whoever watches this node has begun by now.
        if let Some(watched) = self.watched.closed.take() {
            self.watch(watched, me, &opening)?;
        }
        open::attached(transport, &mut early)?;
        Ok(Attached { node, connect, questions, opening, early })
    }

    /// From now on this node watches others, and tells those that watch it that it lives: while its
    /// daemon answers, and while the next epoch is opened.
    fn watch(&self, watched: Watched, me: NodeRank, opening: &Opening) -> Result<(), ServiceError> {
        let pulse = Arc::clone(&self.pulse);
        let mark = self.sources.environment.get(run::VARIABLE);
        let run_host = mark.and_then(|mark| run::host(mark.to_str()?));
        let watch = watched.watch(me, opening, run_host, self.config.node_timeout, move || pulse.is_felt());
        watch.map_err(|error| ServiceError::Thread("the watch", error))
    }

    /// How this coordinator introduces itself to the lead; `epoch` is the highest that its daemon
    /// has seen.
    fn greeting(&self, me: NodeRank, epoch: Epoch) -> Greeting {
        let environment = &self.sources.environment;
        let by_hand = settings::set_by_hand(|name| environment.get(name).is_some_and(|v| !v.is_empty()));
        let mut settings = self.config.settings();
        // Only the lead's count, and they are as many as there are nodes.
        if me == NodeRank(0) {
            settings.sealing.program_hosts.clone_from(&self.options.program_hosts);
        }
        settings.restart.not_before = self.options.not_before;
        settings.restart.name.clone_from(&self.options.name);
        Greeting {
            host: self.sources.host.clone(),
            epoch,
            watch_port: self.watched.port,
            bell_port: self.bell.port,
            groups: self.config.groups.clone(),
            settings,
            by_hand,
        }
    }
}

/// Rank 0's, which work in the prefix.
fn lead_threads(
    transport: &impl Transport,
    opening: &Opening,
    questions: node::Questions,
    wakes: &Inbox<Wake>,
) -> Result<Option<(Worker, Reporter)>, ServiceError> {
    if transport.rank() != NodeRank(0) {
        return Ok(None);
    }
    let host = opening.hosts.first().map_or("", String::as_str);
    let prefix = || Prefix::new(&opening.settings.prefix, opening.epoch, host);
    let wakes = wakes.clone();
    let pfs = prefix::start(prefix(), move |outcome| wakes.send(Wake::Pfs(Box::new(outcome))));
    let pfs = pfs.map_err(|error| ServiceError::Thread("the PFS", error))?;
    let reporter = Reporter::start(prefix(), questions);
    let reporter = reporter.map_err(|error| ServiceError::Thread("the last status", error))?;
    Ok(Some((pfs, reporter)))
}

/// All coordinators were asked to end.
fn leave(transport: impl Leave, code: ExitCode) -> ExitCode {
    step_back();
    end_at_the_latest();
    if let Err(error) = transport.finish(END_LIMIT) {
        tracing::warn!(%error, "left without the others");
    }
    code
}

/// This coordinator cannot go on, so none can.
fn fail(transport: &impl Leave, host: &str, error: &ServiceError) -> ExitCode {
    tracing::error!("{error}");
    if let Some(hint) = error.hint() {
        tracing::error!("hint: {hint}");
    }
    step_back();
    end_at_the_latest();
    let settings = matches!(
        error,
        ServiceError::Config(_)
            | ServiceError::Apart { .. }
            | ServiceError::Open(OpenError::Settings(_) | OpenError::Groups(_))
            | ServiceError::Node(
                NodeError::Version { .. } | NodeError::Client(ClientError::Refused { lasting: true, .. })
            )
    );
    let code = match error {
        _ if settings => EXIT_SETTINGS,
        ServiceError::Run(RunError::Lacks(..)) => EXIT_LACKS,
        _ => EXIT_FAILED,
    };
    if code == EXIT_FAILED {
        // The other codes say all that their starter needs to know.
        let reason = format!("{host}: {error}");
        if let Err(error) = ready::announce(&mut io::stdout().lock(), &Failed { reason }) {
            tracing::debug!(%error, "nobody was told of the failure");
        }
    }
    transport.abort(code.into())
}

/// The daemon that preferred this process may be gone.
fn step_back() {
    if let Err(error) = scrfs::priority::threads::step_back() {
        tracing::debug!(%error, "the priority stays raised until the end");
    }
}

/// MPI may wait for peers that are gone: then this process dies of a signal, which mpirun takes as
/// the job's end.
fn end_at_the_latest() {
    let spawned = std::thread::Builder::new().name("last-resort".to_owned()).spawn(|| {
        std::thread::sleep(END_LIMIT + END_LIMIT);
        let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "no thread to bound the end");
    }
}

/// A second signal does not wait for anything.
fn watch_signals(wakes: Inbox<Wake>, is_to_end: Arc<AtomicBool>) -> Result<(), ServiceError> {
    let thread = |error| ServiceError::Thread("signals", error);
    // USR1 is what srun passes on.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1]).map_err(thread)?;
    let watch = move || {
        for (nth, signal) in (&mut signals).into_iter().enumerate() {
            is_to_end.store(true, Ordering::Relaxed);
            wakes.send(Wake::Signal(signal));
            if nth == 0 {
                end_at_the_latest();
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map(drop).map_err(thread)
}

fn start_log(rank: NodeRank, host: &str, debug: u64) {
    let level = match debug {
        0 => tracing::Level::INFO,
        1 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    // mpirun mixes the lines of all nodes.
    let started = scrfs::log::builder(format!("[{rank} {host}] "))
        .with_max_level(level)
        .with_ansi(false)
        .with_target(false)
        .try_init();
    // Tests have a log already.
    drop(started);
}
