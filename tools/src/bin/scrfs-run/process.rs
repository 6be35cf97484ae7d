//! Starting and ending process groups.
//!
//! Every mpirun leads a group of its own. It is ended by TERM, which it passes on to its ranks, and
//! by KILL when that has no effect. A process is reaped only by [`Group::reap`], so its number
//! cannot be another's while it is signalled. What a killed mpirun leaves behind on this host
//! becomes a child of this process ([`adopt_orphans`]) and is ended by [`end_orphans`]. A batch
//! script that becomes this program (`exec scrfs-run`) leaves it the script's children: those are
//! none of ours.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpgid, getpgrp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};
use scrfs::config::ending;
use scrfs::lock::Mutex;
use scrfs_tools::ended;
use scrfs_tools::probe::RUN_VARIABLE;

use crate::launcher::CommandLine;
use crate::talk;

/// Between TERM and KILL.
pub(crate) const GRACE: Duration = ending::KILL;

/// So long after KILL a process is waited for. One that waits for a device or a file system in the
/// kernel (state D) may never end.
const AFTER_KILL: Duration = Duration::from_secs(5);

/// Between two looks at a process for which there is no descriptor.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// A started command and the group that it leads.
#[derive(Debug)]
pub(crate) struct Group {
    child: Child,
    id: Pid,
}

/// Where a command's input comes from and its output goes.
#[derive(Debug)]
pub(crate) enum Streams {
    /// Output is this program's; errors through [`Group::take_errors`] if they are wanted, else
    /// this program's too.
    Program { input: Stdio, errors: bool },
    /// No input, no output; errors through [`Group::take_errors`].
    Talk,
    /// No input; output and errors through [`Group::take_output`] and [`Group::take_errors`].
    Piped,
    /// No input; output to a file, with errors or without.
    Into(File, bool),
}

/// Groups that were started and not reaped: what else is a child of this process is an orphan.
static GROUPS: Mutex<BTreeSet<Pid>> = Mutex::leaf(BTreeSet::new());

/// All groups that were ever started.
static STARTED: Mutex<BTreeSet<Pid>> = Mutex::leaf(BTreeSet::new());

/// What was there before anything was started.
static FORMER: OnceLock<Former> = OnceLock::new();

/// A batch script's processes.
#[derive(Debug)]
struct Former {
    /// Children of this process: they are not reaped, so their numbers stay theirs.
    children: BTreeSet<Pid>,
    /// Their process groups and those of what comes from them, and this one's own.
    groups: BTreeSet<Pid>,
    /// What all carry in their environment that is of this run, as `NAME=value`.
    mark: Vec<u8>,
}

impl Group {
    pub(crate) fn start(line: &CommandLine, streams: Streams) -> io::Result<Self> {
        let mut command = Command::new(&line.program);
        command.args(&line.arguments).env_clear().envs(&line.environment).process_group(0);
        if let Some(directory) = &line.directory {
            command.current_dir(directory);
        }
        match streams {
            Streams::Program { input, errors } => {
                command.stdin(input);
                if errors {
                    command.stderr(Stdio::piped());
                }
            }
            Streams::Talk => {
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            }
            Streams::Piped => {
                command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            Streams::Into(file, errors) => {
                let errors = if errors { file.try_clone()?.into() } else { Stdio::null() };
                command.stdin(Stdio::null()).stderr(errors).stdout(file);
            }
        }
        // Held until the child is known as ours.
        let mut known = GROUPS.lock();
        let child = command.spawn()?;
        let id = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        known.insert(id);
        drop(known);
        STARTED.lock().insert(id);
        Ok(Self { child, id })
    }

    /// Names the group, for [`signal`] and [`await_end`].
    pub(crate) fn id(&self) -> Pid {
        self.id
    }

    /// The other end of its output, once, if it was started so.
    pub(crate) fn take_output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// The same for its errors.
    pub(crate) fn take_errors(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Takes the exit code, and the signal that ended it, if one did; what is left of the group is
    /// killed. It has ended, or was killed: one that does not end soon after that is left as it is.
    pub(crate) fn reap(self) -> (u8, Option<i32>) {
        let id = self.id;
        self.reap_within(AFTER_KILL).unwrap_or_else(|| {
            let what = format!("process {id} does not end though it was killed: it is left to the system");
            talk::tell(&what);
            (128 + Signal::SIGKILL as u8, Some(Signal::SIGKILL as i32))
        })
    }

    /// `None`: it has not ended by then.
    fn reap_within(mut self, limit: Duration) -> Option<(u8, Option<i32>)> {
        // Before the leader is reaped: as long as it is a zombie, the group's number is taken.
        let has_ended = ends_within(self.id, limit);
        signal(self.id, Signal::SIGKILL);
        if !has_ended {
            return None;
        }
        let ended = self.child.wait().map_or((255, None), |status| (exit_code(status), status.signal()));
        GROUPS.lock().remove(&self.id);
        Some(ended)
    }
}

/// To all of a group whose leader was not reaped. That all have ended already is no failure.
pub(crate) fn signal(group: Pid, signal: Signal) {
    let _ = killpg(group, signal);
}

/// To the leader alone, which was not reaped: launchers pass a signal on to their ranks, and what
/// they reach nodes by may not stand it.
pub(crate) fn signal_leader(group: Pid, signal: Signal) {
    let _ = kill(group, signal);
}

/// Returns when the process has ended, without reaping it.
pub(crate) fn await_end(pid: Pid) -> io::Result<()> {
    loop {
        match waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
            Err(nix::errno::Errno::EINTR) => {}
            other => return other.map(drop).map_err(io::Error::from),
        }
    }
}

/// Whether the process, a child that is not reaped, ends within `limit`. It needs no thread: those
/// may be what is short.
pub(crate) fn ends_within(pid: Pid, limit: Duration) -> bool {
    let raw = rustix::process::Pid::from_raw(pid.as_raw());
    let process = raw.and_then(|raw| pidfd_open(raw, PidfdFlags::empty()).ok());
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let ended = process.as_ref().and_then(|process| is_readable(process, left)).unwrap_or_else(|| {
            // Descriptors or memory are short.
            std::thread::sleep(left.min(BETWEEN_LOOKS));
            let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
            !matches!(waitid(Id::Pid(pid), flags), Ok(WaitStatus::StillAlive))
        });
        if ended || left.is_zero() {
            return ended;
        }
    }
}

/// Within `limit`; `None`: that cannot be told.
fn is_readable(fd: &OwnedFd, limit: Duration) -> Option<bool> {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let limit = Timespec::try_from(limit).unwrap_or_default();
    match poll(&mut fds, Some(&limit)) {
        Ok(ready) => Some(ready > 0),
        Err(rustix::io::Errno::INTR) => Some(false),
        Err(_) => None,
    }
}

/// Kills a process that has not ended by then. Whether it ends because of that is for
/// [`Group::reap`] to see.
pub(crate) fn kill_after(pid: Pid, limit: Duration) {
    if !ends_within(pid, limit) {
        signal(pid, Signal::SIGKILL);
    }
}

/// As shells do it: 128 + signal.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(255)
}

/// Orphans of what this process starts become its children. Before anything is started: what is a
/// child already, or comes from one, is not this program's. `mark`: see [`RUN_VARIABLE`].
pub(crate) fn adopt_orphans(mark: &str) -> io::Result<()> {
    FORMER.get_or_init(|| {
        let own = children(Pid::this());
        let mut found = own.clone();
        let mut groups = BTreeSet::from([getpgrp()]);
        while let Some(pid) = found.pop() {
            groups.extend(getpgid(Some(pid)));
            found.extend(children(pid));
        }
        let mark = format!("{RUN_VARIABLE}={mark}").into_bytes();
        Former { children: own.into_iter().collect(), groups, mark }
    });
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(io::Error::from)
}

/// Kills and reaps all children that are orphans of what this process has started, and theirs, for
/// at most [`GRACE`].
pub(crate) fn end_orphans() {
    let begun = Instant::now();
    while begun.elapsed() < GRACE {
        // A child that is being started is in both or in neither.
        let (all, known) = {
            let known = GROUPS.lock();
            (children(Pid::this()), known.clone())
        };
        let orphans: Vec<Pid> = all.into_iter().filter(|pid| !known.contains(pid) && is_ours(*pid)).collect();
        if orphans.is_empty() {
            return;
        }
        for &pid in &orphans {
            let _ = kill(pid, Signal::SIGKILL);
        }
        for pid in orphans {
            // A child of ours keeps its number until it is reaped here.
            ended::wait(pid, GRACE.saturating_sub(begun.elapsed()));
            let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// All that is started here carries the run's mark, or is in a group that was started here. What a
/// batch script has started before may leave its group, and its parent, at any time.
fn is_ours(child: Pid) -> bool {
    let Some(former) = FORMER.get() else { return false };
    let Ok(group) = getpgid(Some(child)) else { return false };
    let is_former = former.children.contains(&child) || former.groups.contains(&group);
    !is_former && (STARTED.lock().contains(&group) || carries(child, &former.mark))
}

fn carries(pid: Pid, mark: &[u8]) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|entry| entry == mark)
}

/// Children of all threads of a process.
fn children(pid: Pid) -> Vec<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut found = Vec::new();
    for thread in threads {
        let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        found.extend(text.split_whitespace().filter_map(|word| word.parse().ok().map(Pid::from_raw)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleep(environment: &[(&str, &str)], seconds: &str) -> CommandLine {
        CommandLine {
            program: "/bin/sleep".into(),
            arguments: vec![seconds.into()],
            environment: environment.iter().map(|(name, value)| (name.into(), value.into())).collect(),
            directory: None,
        }
    }

    /// As one that waits for a device does not end at KILL.
    #[test]
    fn a_process_that_does_not_end_is_not_waited_for_without_limit() {
        let begun = Instant::now();
        let group = Group::start(&sleep(&[], "60"), Streams::Talk).unwrap();
        let id = group.id();
        assert_eq!(group.reap_within(Duration::from_millis(50)), None);
        assert!(begun.elapsed() < Duration::from_secs(30));
        await_end(id).unwrap();
        waitpid(id, None).unwrap();
        let group = Group::start(&sleep(&[], "0"), Streams::Talk).unwrap();
        assert_eq!(group.reap(), (0, None));
    }

    #[test]
    fn only_what_this_run_has_started_is_its_to_end() {
        adopt_orphans("17-4@h/u/j").unwrap();
        let start = |environment: &[(&str, &str)]| {
            let mut command = Command::new("/bin/sleep");
            command.arg("60").env_clear().envs(environment.iter().copied()).process_group(0).spawn().unwrap()
        };
        let mut children = [
            start(&[(RUN_VARIABLE, "17-4@h/u/j")]),
            start(&[(RUN_VARIABLE, "17-5@h/u/j")]),
            start(&[("A", "b")]),
        ];
        let pid = |child: &Child| Pid::from_raw(i32::try_from(child.id()).unwrap());
        // Until it is `sleep`, a child has its parent's environment.
        for (child, mark) in
            children.iter().zip(["SCRFS_RUN_TOKEN=17-4@h/u/j", "SCRFS_RUN_TOKEN=17-5@h/u/j", "A=b"])
        {
            while !carries(pid(child), mark.as_bytes()) {
                std::thread::yield_now();
            }
        }
        let ours: Vec<bool> = children.iter().map(|child| is_ours(pid(child))).collect();
        let started = Group::start(&sleep(&[], "60"), Streams::Talk).unwrap();
        let is_started = is_ours(started.id());
        end_orphans();
        let lives = !ends_within(started.id(), Duration::ZERO);
        signal(started.id(), Signal::SIGKILL);
        started.reap();
        let [own, others @ ..] = &mut children;
        // It was reaped.
        let was_ended = own.try_wait().is_err();
        let left = others.iter_mut().filter_map(|child| child.try_wait().ok()).flatten().count();
        for child in others {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!((ours, is_started), (vec![true, false, false], true));
        assert!(was_ended && lives && left == 0, "{was_ended} {lives} {left}");
    }
}
