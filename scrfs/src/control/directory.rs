//! A job's control directory: the names in it, and who holds its locks, as far as the kernel and
//! the files' owners tell.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FlockOperation;

/// Begins the name of a job's directories; its id follows.
pub(crate) const JOB_PREFIX: &str = "scr.";
/// The daemon's log.
pub(crate) const LOG: &str = "daemon.log";
/// The supervisor's lock file.
pub(crate) const SUPERVISOR_LOCK: &str = "supervisor.lock";
/// The worker's: a worker that has lost its supervisor keeps others away.
pub(crate) const WORKER_LOCK: &str = "worker.lock";

/// The options by which `scrfs umount` finds the job of a control directory,
/// `<base>/<user>/scr.<job>`.
pub(crate) fn options_of(control: &Path) -> String {
    let name = control.file_name().unwrap_or_default().to_string_lossy();
    let job = name.strip_prefix(JOB_PREFIX).unwrap_or(&name);
    let base = control.ancestors().nth(2).map(Path::display).map(|base| base.to_string());
    match base.as_deref() {
        None | Some("" | "/run/scrfs" | "/dev/shm") => format!("--job-id {job}"),
        Some(base) => format!("--job-id {job} --control-base {base}"),
    }
}

/// The supervisor that holds the lock of a control directory; `None` when none does.
pub(crate) fn supervisor_of(control: &Path) -> Option<u32> {
    holder(control, SUPERVISOR_LOCK)
}

/// The process that holds the lock `name` of a control directory. Believed of the directory's owner
/// only, and only of a process that is that user's.
pub(crate) fn holder(control: &Path, name: &str) -> Option<u32> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(control.join(name)).ok()?;
    let (owner, meta) = (control.symlink_metadata().ok()?.uid(), file.metadata().ok()?);
    if !meta.is_file() || meta.uid() != owner {
        return None;
    }
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => Some(read_pid(&mut file)).filter(|&pid| is_of(pid, owner)),
        _ => None,
    }
}

/// Whether a process was killed and has not ended: a system call of one of its threads does not
/// return, on a file system that does not answer. Until then the process has its locks; but it does
/// nothing more than end that call.
pub(crate) fn was_killed(pid: u32) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_pending = |name| {
        let signals = field(name).and_then(|set| u64::from_str_radix(set, 16).ok());
        signals.is_some_and(|signals| signals & KILL != 0)
    };
    // The first thread has ended and others have not, or SIGKILL is pending.
    field("State:").is_some_and(|state| state.starts_with(['Z', 'X']))
        || is_pending("SigPnd:")
        || is_pending("ShdPnd:")
}

/// Whether a process is stopped, as by SIGSTOP: it does nothing before it is continued.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| state.trim_start().starts_with(['T', 't']))
}

/// The process that has started this one, if it is stopped.
pub(crate) fn stopped_parent() -> Option<u32> {
    let parent = rustix::process::getppid()?.as_raw_nonzero().get().cast_unsigned();
    Some(parent).filter(|parent| is_stopped(*parent))
}

/// The process that has started another; of one that is gone none.
pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

fn is_of(pid: u32, user: u32) -> bool {
    std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|meta| pid != 0 && meta.uid() == user)
}

pub(crate) fn read_pid(file: &mut File) -> u32 {
    let mut text = String::new();
    if file.take(32).read_to_string(&mut text).is_err() {
        return 0;
    }
    text.lines().next().unwrap_or_default().parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patience::until;

    #[test]
    fn who_was_killed_does_nothing_any_more() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!was_killed(child.id()) && !was_killed(std::process::id()));
        let id = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(id, rustix::process::Signal::STOP).unwrap();
        until("the stop", || is_stopped(child.id()));
        rustix::process::kill_process(id, rustix::process::Signal::CONT).unwrap();
        until("the end of the stop", || !is_stopped(child.id()));
        child.kill().unwrap();
        // Nobody waits for it: it stays.
        until("the signal", || was_killed(child.id()));
        child.wait().unwrap();
        assert!(!was_killed(u32::MAX));
    }

    const STRANGER: u32 = 54_321;

    #[test]
    fn a_foreign_file_or_process_holds_nothing() {
        use std::os::unix::process::CommandExt;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(WORKER_LOCK);
        let held = || {
            let file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
            file
        };
        let says = |pid: u32| std::fs::write(&path, format!("{pid}\n")).unwrap();
        let file = held();
        says(std::process::id());
        assert_eq!(holder(dir.path(), WORKER_LOCK), Some(std::process::id()));
        // A process that is another user's, one that is not there, and none.
        let mut child = std::process::Command::new("sleep").arg("60").uid(STRANGER).spawn().unwrap();
        says(child.id());
        assert_eq!(holder(dir.path(), WORKER_LOCK), None, "a stranger's process");
        child.kill().unwrap();
        child.wait().unwrap();
        for text in ["", "0\n", "-1\n", "no number\n", "99999999999999999999\n"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(holder(dir.path(), WORKER_LOCK), None, "{text:?}");
        }
        // A file that is another user's, a pipe, and a link to the right one.
        says(std::process::id());
        std::os::unix::fs::chown(&path, Some(STRANGER), None).unwrap();
        assert_eq!(holder(dir.path(), WORKER_LOCK), None, "a stranger's file");
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
        assert_eq!(holder(dir.path(), "link"), None);
        let pipe = nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU);
        pipe.unwrap();
        assert_eq!(holder(dir.path(), "pipe"), None);
        drop(file);
        until("the lock's end", || holder(dir.path(), WORKER_LOCK).is_none());
    }
}
