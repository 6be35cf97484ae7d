//! The command line.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use scrfs::config::{Config, Sources, read_file};
use scrfs::mount::{MountError, Options, launch, worker};
use scrfs::path::RelPath;

use crate::trial::{self, TrialError};

/// A checkpoint file system: programs write checkpoints at node-local speed; sealed ones survive the loss of nodes.
#[derive(Debug, Parser)]
#[command(name = "scrfs", version)]
struct CommandLine {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Mount, and return when the mount answers.
    Mount {
        /// Stay in the foreground until it is unmounted.
        #[arg(long)]
        foreground: bool,
        #[command(flatten)]
        mount: MountArgs,
    },
    /// Unmount, and return when the daemon has ended.
    Umount {
        /// Even if the mount is in use.
        #[arg(long)]
        force: bool,
        /// Where it is mounted.
        mount_point: PathBuf,
    },
    /// Replace the running daemon by the program that is installed now; programs on the mount go on.
    Reload {
        /// Where it is mounted.
        mount_point: PathBuf,
    },
    /// A mount and a coordinator on this machine alone, without root, scheduler or launcher, to see what it is like.
    Try {
        /// End it, and remove what was written there.
        #[arg(long)]
        stop: bool,
        /// Stay until interrupted, and end it then.
        #[arg(long, conflicts_with = "stop")]
        foreground: bool,
        /// An empty directory; it is made if it is missing.
        directory: PathBuf,
    },
    #[command(hide = true)]
    Supervise(MountArgs),
    #[command(hide = true)]
    Worker {
        /// The state memory's descriptor.
        #[arg(long)]
        state: i32,
        #[command(flatten)]
        mount: MountArgs,
    },
}

#[derive(Debug, Args)]
struct MountArgs {
    /// The job's user [default: SCR_USER_NAME, else the scheduler's, else you].
    #[arg(long, value_name = "NAME")]
    user: Option<OsString>,
    /// The job's id [default: SCR_JOB_ID, else the scheduler's, else `local`].
    #[arg(long, value_name = "ID")]
    job_id: Option<OsString>,
    /// Where small state goes [default: SCR_CNTL_BASE, else /dev/shm].
    #[arg(long, value_name = "DIR")]
    control_base: Option<OsString>,
    /// Where files go, or a list of such stores: each dataset to one, by its descriptor, else by room
    /// [default: SCR_CACHE_BASE, else /dev/shm].
    #[arg(long, value_name = "DIR,...")]
    cache_base: Option<OsString>,
    /// The directory below the mount point that holds datasets [default: SCRFS_CHECKPOINT_PATH, else the mount point].
    #[arg(long, value_name = "P")]
    checkpoint_path: Option<OsString>,
    /// Do not let the kernel serve file data by itself.
    #[arg(long)]
    no_passthrough: bool,
    /// An empty directory.
    mount_point: PathBuf,
}

/// What goes wrong before anything is mounted.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Trial(#[from] TrialError),
    #[error(transparent)]
    Config(#[from] scrfs::config::ConfigError),
    #[error("cannot read this process's settings: {0}")]
    Process(#[from] std::io::Error),
    #[error("checkpoint path {0:?}: {1}")]
    CheckpointPath(PathBuf, String),
}

impl CommandError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Mount(error) => error.hint(),
            Self::Trial(error) => error.hint(),
            Self::CheckpointPath(..) => {
                Some("name a directory of its own, relative to the mount point".into())
            }
            Self::Config(_) => Some("the parameters are in scrfs/docs/operations.md".into()),
            Self::Process(_) => None,
        }
    }

    /// Wrong usage and refused parameters are 2, as scrfs-run's are.
    fn code(&self) -> ExitCode {
        match self {
            Self::Config(_) | Self::CheckpointPath(..) => ExitCode::from(2),
            Self::Mount(_) | Self::Trial(_) | Self::Process(_) => ExitCode::FAILURE,
        }
    }
}

pub(super) fn main() -> ExitCode {
    let line = CommandLine::parse();
    start_log();
    match act(line.action) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = format!("scrfs: {error}\n");
            if let Some(hint) = error.hint() {
                text.extend(["hint: ", &hint, "\n"]);
            }
            // Nobody reads it: the exit code stays.
            let _ = std::io::stderr().write_all(text.as_bytes());
            error.code()
        }
    }
}

/// Logs go to standard error, which is a daemon's log file; `SCRFS_LOG` filters them.
fn start_log() {
    use std::io::IsTerminal;
    let filter = tracing_subscriber::EnvFilter::try_from_env("SCRFS_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,scrfs=info"));
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
    debug_assert!(started.is_ok());
}

fn act(action: Action) -> Result<(), CommandError> {
    match action {
        Action::Mount { foreground, mount } => launch::mount(options(mount)?, foreground)?,
        Action::Umount { force, mount_point } => launch::unmount(&mount_point, force)?,
        Action::Try { stop: true, directory, .. } => trial::stop(&directory)?,
        Action::Try { foreground, directory, .. } => trial::start(&directory, foreground)?,
        Action::Supervise(mount) => launch::supervise(&options(mount)?)?,
        Action::Reload { mount_point } => launch::reload(&mount_point)?,
        Action::Worker { state, mount } => worker::run(&options(mount)?, state)?,
    }
    Ok(())
}

/// Options of the command line, over the environment, over files, over defaults.
fn options(args: MountArgs) -> Result<Options, CommandError> {
    let mut sources = Sources::of_process(std::env::vars_os())?;
    let given = [
        ("SCR_USER_NAME", "--user", args.user),
        ("SCR_JOB_ID", "--job-id", args.job_id),
        ("SCR_CNTL_BASE", "--control-base", args.control_base),
        ("SCR_CACHE_BASE", "--cache-base", args.cache_base),
        ("SCRFS_CHECKPOINT_PATH", "--checkpoint-path", args.checkpoint_path),
    ];
    for (name, option, value) in given {
        if let Some(value) = value {
            sources.give(name, option, value);
        }
    }
    let config = Config::load(&sources, read_file)?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let store_rules = config.store_rules();
    Ok(Options {
        checkpoint_path: checkpoint_path(config.checkpoint_path.as_deref(), &args.mount_point)?,
        mount_point: args.mount_point,
        user: config.user,
        job_id: config.job_id,
        control_base: config.control_base,
        store_rules,
        cache_bases: config.cache_bases,
        cache_bytes: config.cache_bytes,
        passthrough: !args.no_passthrough,
        coordinator_wait: config.coordinator_wait,
        seal_timeout: config.seal_timeout,
    })
}

/// Relative to the mount's root; an absolute path must lie below the mount point.
fn checkpoint_path(path: Option<&Path>, mount_point: &Path) -> Result<RelPath, CommandError> {
    let Some(path) = path else { return Ok(RelPath::root()) };
    let wrong = |reason: &str| CommandError::CheckpointPath(path.to_owned(), reason.to_owned());
    let below = if path.is_absolute() {
        path.strip_prefix(mount_point).map_err(|_| wrong("not below the mount point"))?
    } else {
        path
    };
    let trimmed = below.as_os_str().as_bytes();
    let trimmed = trimmed.strip_suffix(b"/").unwrap_or(trimmed);
    // The mount's own directory there: nothing can be made in it.
    if trimmed == b".scrfs" || trimmed.starts_with(b".scrfs/") {
        return Err(wrong("`.scrfs` is a reserved name"));
    }
    RelPath::new(trimmed).map_err(|e| wrong(&e.to_string()))
}
