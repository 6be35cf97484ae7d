//! `scrfs mount`: starts the supervisor and waits until the mount answers; `scrfs reload`.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::places::Places;
use super::server::{is_here, open_process, server_of};
use super::supervisor::{READY, first_line, readable, say};
use super::table::{self, Mounted, TABLE};
use super::unmount::{END_SECONDS, KILL_BOUND, clean_stale, mounted};
use super::{MountError, Options, failed, mount_point, stores, supervisor};
use crate::bounded;
use crate::checkpoint_path;
use crate::control::directory::{
    SUPERVISOR_LOCK, WORKER_LOCK, holder, options_of, supervisor_of, was_killed,
};
use crate::control::question::is_not_stopped;
use crate::daemon::CacheStore;
use crate::store::private;

/// Bound on a mount's start: the worker's and some more.
const START_SECONDS: u64 = 60;

/// Mounts, and returns when the mount answers; with `foreground` when it is gone again, and that
/// runs when it answers.
pub fn mount<F: FnOnce()>(mut options: Options, foreground: Option<F>) -> Result<(), MountError> {
    clean_stale();
    mount_point::is_passable(&options.mount_point)?;
    let made = mount_point::make(&options.mount_point)?;
    let prepared = prepare(&mut options, &made);
    let places = match prepared {
        Ok(Prepared::Fresh(places)) => places,
        Ok(Prepared::Mounted(places)) => {
            is_not_stopped(&places.control)?;
            answers(&options.mount_point)?;
            tracing::info!(mount_point = %options.mount_point.display(), "this job is mounted there already");
            warn_of_path(&options, &places);
            return Ok(());
        }
        Err(error) => {
            mount_point::remove(made);
            return Err(error);
        }
    };
    if let Some(ready) = foreground {
        return supervisor::run(&options, &places.control, ready);
    }
    start(&options, &places)
}

enum Prepared {
    Fresh(Places),
    /// A prolog that runs again finds its work done.
    Mounted(Places),
}

/// The mount point is real and free, the control directory there.
fn prepare(options: &mut Options, made: &[PathBuf]) -> Result<Prepared, MountError> {
    options.mount_point = mount_point::find(&options.mount_point)?;
    Places::are_reached(options)?;
    let places = Places::of(options)?;
    Places::are_apart(options)?;
    let is_ours = private::is_ours_below(&options.control_base, &places.control);
    if is_ours {
        killed_have_ended(&places.control)?;
    }
    // A worker that has lost its supervisor serves all the same.
    let server = || supervisor_of(&places.control).or_else(|| holder(&places.control, WORKER_LOCK));
    if let Some(pid) = is_ours.then(server).flatten() {
        return served(options, places, pid);
    }
    mount_point::check(&options.mount_point)?;
    let places = Places::make_control(options)?;
    mount_point::remember_made(&places.control, made)?;
    Ok(Prepared::Fresh(places))
}

/// A daemon, process `pid`, has the control directory.
fn served(options: &Options, places: Places, pid: u32) -> Result<Prepared, MountError> {
    let all = table::all().map_err(failed("cannot read", TABLE))?;
    let of_this_job = |mount: &&Mounted| mount.is_ours() && mount.names(&places.control);
    let uppermost = all.iter().rfind(|mount| mount.mount_point == options.mount_point);
    if uppermost.as_ref().is_some_and(of_this_job) {
        if supervisor_of(&places.control).is_none() {
            tracing::warn!(pid, "its supervisor was killed: no other worker takes over if this one dies");
        }
        return Ok(Prepared::Mounted(places));
    }
    is_here(&places.control, pid)?;
    Err(match all.iter().find(of_this_job) {
        Some(mount) => MountError::MountedElsewhere {
            job_id: options.job_id.clone(),
            user: options.user.clone(),
            at: mount.mount_point.clone(),
        },
        None => MountError::Busy { directory: places.control, pid },
    })
}

/// A killed process has the job's locks until it has ended, which a file system that does not
/// answer can delay.
fn killed_have_ended(control: &Path) -> Result<(), MountError> {
    let until = Instant::now() + KILL_BOUND;
    let holders = [SUPERVISOR_LOCK, WORKER_LOCK].map(|name| holder(control, name));
    for pid in holders.into_iter().flatten().filter(|pid| was_killed(*pid)) {
        if open_process(pid).is_some_and(|process| !readable(process.as_fd(), until)) {
            return Err(MountError::Stuck { directory: control.to_owned(), pid });
        }
    }
    Ok(())
}

fn start(options: &Options, places: &Places) -> Result<(), MountError> {
    let log = places.log();
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&log)
        .map_err(failed("cannot open", &log))?;
    let this = |doing| failed(doing, "/proc/self/exe");
    let until = Instant::now() + Duration::from_secs(START_SECONDS);
    let mut child = Command::new(program())
        .arg("supervise")
        .args(arguments(options))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::from(log))
        .current_dir("/")
        .spawn()
        .map_err(this("cannot start"))?;
    let said = match child.stdout.take() {
        Some(out) => first_line(out.into(), Duration::from_secs(START_SECONDS)),
        None => String::new(),
    };
    match said.trim_end() {
        READY => {
            for warning in stores::recorded(&places.control).iter().filter_map(CacheStore::warning) {
                tracing::warn!("{warning}");
            }
            warn_of_path(options, places);
            answers(&options.mount_point)
        }
        "" => {
            // It has closed its output, and may not have ended yet.
            let ends = Instant::now() < until;
            let _ = child.kill();
            let _ = child.wait();
            let log = places.log();
            Err(if ends {
                MountError::told("", "the daemon ended at its start", &log)
            } else {
                MountError::Timeout { what: "the start of the daemon", seconds: START_SECONDS }
            })
        }
        reason => {
            let _ = child.wait();
            Err(MountError::told(reason, "", &places.log()))
        }
    }
}

/// Who names another path than the one that holds hears of that one.
fn warn_of_path(options: &Options, places: &Places) {
    let wanted = &options.checkpoint_path;
    if let Ok(chosen) = checkpoint_path::in_force(&places.control, wanted)
        && chosen.path != *wanted
        && !wanted.is_root()
    {
        let (path, job) = (checkpoint_path::shown(&chosen.path), &options.job_id);
        tracing::warn!("job {job}: its datasets are in {path}, which holds, not {wanted}");
    }
}

/// Also where a stopped daemon would keep who asks waiting for ever.
fn answers(mount_point: &Path) -> Result<(), MountError> {
    let asked = mount_point.to_owned();
    let ask = move || Ok(rustix::fs::statfs(asked).map(drop)?);
    bounded::within(Duration::from_secs(START_SECONDS), ask).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => {
            MountError::Silent { mount_point: mount_point.to_owned(), seconds: START_SECONDS }
        }
        _ => failed("no answer from", mount_point)(error),
    })
}

/// The supervisor's own process: leaves the session of who started it, and tells how the start
/// went.
pub fn supervise(options: &Options) -> Result<(), MountError> {
    let started = (|| {
        // Fails only for the leader of a process group, which is left alone already.
        let _ = rustix::process::setsid();
        let places = Places::of(options)?;
        crate::log::keep_bounded(&places.log());
        supervisor::run(options, &places.control, || {
            say(READY);
            if let Ok(null) = File::options().write(true).open("/dev/null") {
                let _ = rustix::stdio::dup2_stdout(&null);
            }
        })
    })();
    if let Err(error) = &started {
        say(&error.line());
    }
    started
}

/// Has the supervisor replace its worker by one from the program file that is there now; returns
/// when that answers.
pub fn reload(mount_point: &Path) -> Result<(), MountError> {
    let (mount, control) = mounted(mount_point)?;
    let point = mount.mount_point.clone();
    let nobody = || MountError::Start {
        reason: "its supervisor is gone".into(),
        hint: format!("unmount it and mount it again: scrfs umount --force {}", point.display()),
    };
    let supervisor = server_of(&mount, &control).and_then(open_process).ok_or_else(nobody)?;
    is_not_stopped(&control)?;
    let worker = holder(&control, WORKER_LOCK).and_then(open_process);
    rustix::process::pidfd_send_signal(&supervisor, Signal::HUP)
        .map_err(|e| failed("cannot reload", &point)(e.into()))?;
    if let Some(worker) = worker
        && !readable(worker.as_fd(), Instant::now() + Duration::from_secs(END_SECONDS))
    {
        let job = Some(options_of(&control));
        return Err(MountError::Lives { process: "worker", seconds: END_SECONDS, job });
    }
    // Asked while there is no worker, this waits for the new one.
    answers(&point)
}

/// This program, by its name where that still leads to it: `ps` then shows what it is.
pub(super) fn program() -> PathBuf {
    std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| "/proc/self/exe".into())
}

/// Command-line arguments that give another process of this program the same options.
pub(super) fn arguments(options: &Options) -> Vec<OsString> {
    // In one word: a value may look like an option.
    let option = |name: &str, value: &OsStr| {
        let mut word = OsString::from(format!("--{name}="));
        word.push(value);
        word
    };
    let bases: Vec<&OsStr> = options.cache_bases.iter().map(|base| base.as_os_str()).collect();
    let mut arguments = vec![
        option("user", options.user.as_ref()),
        option("uid", options.uid.to_string().as_ref()),
        option("gid", options.gid.to_string().as_ref()),
        option("job-id", options.job_id.as_ref()),
        option("control-base", options.control_base.as_os_str()),
        option("cache-base", &bases.join(OsStr::new(","))),
    ];
    if !options.checkpoint_path.is_root() {
        arguments.push(option("checkpoint-path", OsStr::from_bytes(options.checkpoint_path.as_bytes())));
    }
    if !options.passthrough {
        arguments.push("--no-passthrough".into());
    }
    arguments.push(options.mount_point.as_os_str().to_owned());
    arguments
}
