//! Serves a mount.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use caps::{CapSet, Capability};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};

use super::lock::Lock;
use super::places::Places;
use super::supervisor::{READY, TAKEN, say};
use super::table::Mounted;
use super::{MountError, Options, failed, limits, rights};
use crate::checkpoint_path::{self, Chosen};
use crate::control::directory::{WORKER_LOCK, supervisor_of};
use crate::daemon::{Node, NodeConfig};
use crate::errno::Errno;
use crate::fs::FileSystem;
use crate::fuse;
use crate::keep::Keep;
use crate::keep::keeper::{self, Keepers};
use crate::keep::memory;
use crate::lane::Hands;
use crate::stores::Stores;

/// Bound on the end of predecessors' keepers.
const KEEPER_BOUND: std::time::Duration = std::time::Duration::from_secs(10);

/// Serves the connection on standard input until it is unmounted, going on where a predecessor has
/// left the state memory `state`, an inherited descriptor.
pub fn run(options: &Options, state: i32) -> Result<(), MountError> {
    let connection = Arc::new(take_connection()?);
    crate::faults::hit("worker.start").map_err(failed("cannot begin with", &options.mount_point))?;
    let state = std::path::PathBuf::from(format!("/proc/self/fd/{state}"));
    let keep = Arc::new(Keep::open(&state).map_err(failed("cannot map the state memory", &state))?);
    let kept = prepare_process();
    let places = Places::of(options)?;
    crate::log::keep_bounded(&places.log());
    let tree = places.tree();
    let failing = |doing| {
        let tree = tree.clone();
        move |e: Errno| failed(doing, tree)(std::io::Error::from_raw_os_error(e.0))
    };
    // Numbers of descriptors are a predecessor's: nothing else is opened before they are taken.
    let keepers = Keepers::find(&keep).map_err(failed("cannot look for", "a keeper"))?;
    let chosen = checkpoint_path::in_force(&places.control, &options.checkpoint_path)
        .map_err(|e| MountError::Node(e.into()))?;
    let stores = super::stores::in_use(options, &places.control)?;
    let fs =
        FileSystem::with_stores(chosen.path.clone(), Arc::clone(&keep), Arc::clone(&stores), Hands::Threads)
            .map_err(failing("cannot open the tree"))?;
    fs.restore(&keepers).map_err(failing("cannot take over the tree"))?;
    // Much was needed for the records of many inodes.
    memory::trim();
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().cast_unsigned());
    if parent <= 1 && supervisor_of(&places.control) != Some(parent) {
        // There will be no successor, and nobody would end the keeper.
        tracing::warn!("the supervisor is gone: there is no keeper of what is open");
    } else {
        keeper::start(&keep, parent).map_err(failed("cannot start", "a keeper"))?;
    }
    say(TAKEN);
    // They hold a predecessor's lock and sockets too.
    if !keepers.wait(KEEPER_BOUND) {
        return Err(MountError::Timeout { what: "the end of a keeper", seconds: KEEPER_BOUND.as_secs() });
    }
    drop(keepers);
    fs.begin().map_err(failing("cannot begin with the tree"))?;
    let _lock = Lock::take(&places.control, WORKER_LOCK)?;
    // Not by its mount point: something else may be mounted there by now.
    let is_this = |mount: &Mounted| mount.is_ours() && mount.names(&places.control);
    if let Some(mount) = super::table::all().unwrap_or_default().into_iter().find(is_this) {
        fs.set_device(mount.device);
    }
    fs.set_wait_bound(options.coordinator_wait.saturating_add(options.seal_timeout));
    fuse::remember_names(&fs, &connection);
    let is_new = keep.mode().is_none();
    let node = start_node(options, &places, &stores, &fs, (chosen, is_new))?;
    for text in &kept {
        node.warn(text);
    }
    if let Some(warning) = unknown_group(options) {
        node.warn(&warning);
    }
    fs.connect(&(Arc::clone(&node) as _));
    fs.restore_sealed();
    // A successor serves with what there is: what programs have open may take all the rest.
    if is_new {
        let few = failed("has too few descriptors left to serve", &options.mount_point);
        limits::has_descriptors().map_err(few)?;
    }
    let adapter = fuse::Options { passthrough: options.passthrough };
    let served = fuse::serve(&fs, &connection, adapter, || say(READY));
    node.stop();
    served.map_err(failed("cannot serve", &tree))
}

/// The node beside this tree: it lists what is sealed before the first request is served.
fn start_node(
    options: &Options,
    places: &Places,
    stores: &Arc<Stores>,
    fs: &Arc<FileSystem>,
    (checkpoint_path, is_new): (Chosen, bool),
) -> Result<Arc<Node>, MountError> {
    let host = nix::unistd::gethostname().map_err(|e| MountError::Start {
        reason: format!("no host name: {e}"),
        hint: "see that this node has one, in UTF-8: hostname".into(),
    })?;
    let mount_point = options.mount_point.clone();
    let supervisor = rustix::process::getppid();
    let config = NodeConfig {
        is_new,
        hands: Hands::Threads,
        control_directory: places.control.clone(),
        in_use: Arc::clone(stores),
        checkpoint_path,
        mount_point: options.mount_point.clone(),
        job_user: options.user.clone(),
        job_uid: places.uid,
        job_gid: places.gid,
        job_id: options.job_id.clone(),
        host: host.to_string_lossy().into_owned(),
        coordinator_wait: options.coordinator_wait,
        operators: options.operator_group.as_deref().and_then(group),
        cache_bytes: options.cache_bytes,
        stores: super::stores::recorded(&places.control),
        on_stop: Arc::new(move || stop(supervisor, &mount_point)),
        on_reload: Arc::new(move || reload(supervisor)),
    };
    Node::start(config, Arc::clone(fs) as _).map_err(MountError::Node)
}

/// What to say where this node does not know the operators' group.
pub fn unknown_group(options: &Options) -> Option<String> {
    let name = options.operator_group.as_ref().filter(|name| group(name).is_none())?;
    Some(format!(
        "SCRFS_OPERATOR_GROUP: there is no group {name:?} on this node: nobody but root is an operator"
    ))
}

fn group(name: &str) -> Option<u32> {
    nix::unistd::Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw())
}

/// The supervisor unmounts; a worker that has lost it does so itself.
fn stop(supervisor: Option<Pid>, mount_point: &Path) {
    match supervisor {
        Some(pid) if rustix::process::getppid() == supervisor && pid != Pid::INIT => {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        _ => {
            if let Err(error) = super::device::unmount(mount_point, true) {
                tracing::error!(%error, "told to stop");
            }
        }
    }
}

/// The supervisor replaces this worker. A worker that has lost its supervisor cannot be replaced.
fn reload(supervisor: Option<Pid>) -> bool {
    let reached = supervisor.filter(|pid| rustix::process::getppid() == supervisor && *pid != Pid::INIT);
    reached.is_some_and(|pid| rustix::process::kill_process(pid, Signal::HUP).is_ok())
}

/// The device came as standard input, the one descriptor that a child gets without further
/// agreement.
fn take_connection() -> Result<OwnedFd, MountError> {
    let io = |doing| failed(doing, "/dev/null");
    let connection = std::io::stdin().as_fd().try_clone_to_owned().map_err(io("cannot keep the device"))?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| io("cannot open")(e.into()))?;
    rustix::stdio::dup2_stdin(&null).map_err(|e| io("cannot use")(e.into()))?;
    Ok(connection)
}

/// A thread that panics ends the process: another worker takes over at once, where the others would
/// go on without it and its program wait for ever.
fn end_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        std::process::abort();
    }));
}

/// Before any thread is started, for they inherit it. Says what rights could not be given up.
fn prepare_process() -> Vec<String> {
    end_on_panic();
    // The kernel has applied the caller's.
    rustix::process::umask(Mode::empty());
    crate::priority::threads::be_prompt();
    limits::raise();
    limits::be_spared(limits::Part::Worker);
    let mut kept = rights::give_up(rights::Process::Worker);
    // With CAP_FSETID in effect, programs' writes through this process would keep suid and sgid
    // bits. The process raises CAP_FSETID for single calls only.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_FSETID).unwrap_or(false)
        && let Err(error) = caps::drop(None, CapSet::Effective, Capability::CAP_FSETID)
    {
        tracing::error!(%error, "CAP_FSETID cannot be dropped");
        kept.push(format!(
            "CAP_FSETID cannot be dropped: {error}; programs' writes do not clear suid bits here"
        ));
    }
    kept
}
