//! From a started transport to the end of the process: settings, log, daemon, opening, loop, end.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use scrfs::config::{self, Config, ConfigError, Sources};
use scrfs::control::client::ClientError;
use scrfs::control::ready::Met;
use scrfs::control::{Role, Start};
use scrfs::ids::NodeRank;
use scrfs::prefix::{self, Prefix, status::Reporter};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::bell::{Bell, Ringer};
use crate::comm::Transport;
use crate::inbox::Inbox;
use crate::message::Greeting;
use crate::node::{self, NodeError};
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
/// Exit code when a restart waits for room in the caches (EX_UNAVAILABLE).
const EXIT_NO_ROOM: u8 = 69;
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
            Self::Run(RunError::NoRoom(_)) => {
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
            return fail(&transport, &ServiceError::Process(error));
        }
    };
    let config = match Config::load(&sources, config::read_file) {
        Ok(config) => config,
        Err(error) => {
            start_log(transport.rank(), &sources.host, 0);
            return fail(&transport, &error.into());
        }
    };
    start_log(transport.rank(), &sources.host, config.debug);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let wakes = Inbox::new();
    let watching = watch_signals(wakes.clone());
    let opened = watching.and_then(|()| attach(&mut transport, options, &config, &sources, &wakes));
    let Attached { node, connect, questions, opening, ringer, early } = match opened {
        Ok(attached) => attached,
        Err(error) => return fail(&transport, &error),
    };
    let leads = transport.rank() == NodeRank(0);
    let prefix = || {
        let host = opening.hosts.first().map_or("", String::as_str);
        Prefix::new(&opening.settings.prefix, opening.epoch, host)
    };
    let worker = leads.then(|| {
        let wakes = wakes.clone();
        prefix::start(prefix(), move |outcome| wakes.send(Wake::Pfs(Box::new(outcome))))
    });
    let pfs = match worker.transpose() {
        Ok(pfs) => pfs,
        Err(error) => return fail(&transport, &ServiceError::Thread("the PFS", error)),
    };
    let reporter = leads.then(|| Reporter::start(prefix(), questions)).transpose();
    let reporter = match reporter {
        Ok(reporter) => reporter,
        Err(error) => return fail(&transport, &ServiceError::Thread("the last status", error)),
    };
    let parts = Parts { transport, node, connect, ringer, wakes, opening, pfs, reporter };
    let (transport, result) = Coordinator::start(parts, early);
    match result {
        Ok(Ended::Asked) => leave(transport, ExitCode::SUCCESS),
        // Who waits for the mounts is not to take this for a coordinator's usual end.
        Ok(Ended::AskedEarly) => leave(transport, ExitCode::from(EXIT_FAILED)),
        Err(error) => fail(&transport, &error.into()),
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

/// A coordinator after the opening, without its transport.
struct Attached {
    node: node::Node,
    connect: crate::jobs::link::Connector,
    questions: node::Questions,
    opening: crate::message::Opening,
    ringer: Ringer,
    early: open::Early,
}

fn attach(
    transport: &mut impl Leave,
    options: &Options,
    config: &Config,
    sources: &Sources,
    wakes: &Inbox<Wake>,
) -> Result<Attached, ServiceError> {
    // With a launcher that it does not know, each process takes itself for the only one.
    let (found, wanted) = (transport.size(), options.program_hosts.len());
    if found == 1 && wanted > 1 {
        return Err(ServiceError::Apart { found, wanted });
    }
    let daemon = node::find(&options.mount)?;
    let by_hand = settings::set_by_hand(|name| sources.environment.get(name).is_some_and(|v| !v.is_empty()));
    let mut settings = config.settings();
    settings.sealing.program_hosts.clone_from(&options.program_hosts);
    settings.restart.not_before = options.not_before;
    settings.restart.name.clone_from(&options.name);
    // A node that cannot be watched is one: its launcher may still notice.
    let watched = Watched::begin().map_err(|error| tracing::warn!(%error, "this node is not watched")).ok();
    let watch_port = watched.as_ref().map_or(0, Watched::port);
    let bell = Bell::begin().map_err(|error| tracing::warn!(%error, "this node has no bell")).ok();
    let bell_port = bell.as_ref().map_or(0, Bell::port);
    let greeting = Greeting {
        host: sources.host.clone(),
        epoch: daemon.epoch,
        watch_port,
        bell_port,
        groups: config.groups.clone(),
        settings,
        by_hand,
    };
    let mut early = Vec::new();
    let asked = Asked { start: options.start, fanout: config.fanout };
    let opening = open::introduce(transport, greeting, asked, &mut early)?;
    tracing::info!(epoch = opening.epoch.0, nodes = opening.hosts.len(), start = ?options.start, "the epoch opens");
    if transport.rank() == NodeRank(0)
        && let Err(error) = ready::announce(&mut io::stdout().lock(), &Met { epoch: opening.epoch })
    {
        // Whoever waited for it is gone, or never was.
        tracing::debug!(%error, "nobody was told that the coordinators have met");
    }
    let role = Role::Coordinator {
        epoch: opening.epoch,
        rank: transport.rank(),
        hosts: opening.hosts.clone(),
        start: opening.start,
        settings: Box::new(opening.settings.clone()),
    };
    let (connect, questions) = (daemon.connector(opening.epoch), daemon.questions());
    let up = wakes.clone();
    let node = daemon.attach(role, move |from| up.send(Wake::Daemon(from)))?;
    let rings = wakes.clone();
    let bell = bell.map(|bell| bell.hang(transport.rank(), &opening, move || rings.send(Wake::Rung)));
    let hung = bell.transpose().map_err(|error| tracing::warn!(%error, "this node rings nobody"));
    let mut ringer = hung.ok().flatten().unwrap_or_else(Ringer::silent);
    if transport.rank() != NodeRank(0) {
        // So the lead learns where to ring without asking for names.
        ringer.sends(NodeRank(0));
    }
    open::attached(transport, &mut early)?;
    let pulse = node.pulse();
    let lives = move || pulse.is_felt();
    let watch = watched.map(|watched| watched.watch(transport.rank(), &opening, config.node_timeout, lives));
    watch.transpose().map_err(|error| ServiceError::Thread("the watch", error))?;
    Ok(Attached { node, connect, questions, opening, ringer, early })
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
fn fail(transport: &impl Leave, error: &ServiceError) -> ExitCode {
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
        ServiceError::Run(RunError::NoRoom(_)) => EXIT_NO_ROOM,
        _ => EXIT_FAILED,
    };
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
fn watch_signals(wakes: Inbox<Wake>) -> Result<(), ServiceError> {
    let thread = |error| ServiceError::Thread("signals", error);
    // USR1 is what srun passes on.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1]).map_err(thread)?;
    let watch = move || {
        for (nth, signal) in (&mut signals).into_iter().enumerate() {
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
