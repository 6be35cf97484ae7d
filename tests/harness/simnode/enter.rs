//! The way into a place: join its namespaces, become a user there, run a program.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sched::{CloneFlags, setns};
use nix::unistd::{Gid, Uid, chdir, setgroups, setresgid, setresuid};
use rustix::process::{Pid, PidfdFlags, Signal};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use super::{Outcome, While};
use crate::cluster::{Record, has_ended};
use crate::place::{BIN, INSIDE, Place, State};
use crate::shell::code;

/// Runs a program in a place and returns its exit code; 255 if the place is down.
pub(super) fn enter(state: &State, place: Place, uid: u32, program: &[&str]) -> Outcome<u8> {
    // Whoever kills `timeout`, or whatever else waits for this, means the program inside.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).during("binding to the parent")?;
    let down = || format!("{place} is down");
    let record = Record::read(&state.record(place)).ok_or_else(down)?;
    // Inside the cluster, pids are the head's.
    let init = if state.dir() == std::path::Path::new(INSIDE) {
        let pid = Pid::from_raw(record.inside).ok_or_else(down)?;
        let fd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|_| down())?;
        let link = std::fs::read_link(format!("/proc/{}/ns/pid", record.inside)).map_err(|_| down())?;
        (link.to_string_lossy() == record.namespace && !has_ended(&fd)).then_some(fd)
    } else {
        record.open()
    };
    let init = init.ok_or_else(down)?;
    let here = std::env::current_dir();
    let all = CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWNET;
    setns(&init, all).during(format!("entering {place}"))?;
    drop(init);
    if here.is_err() || here.is_ok_and(|dir| chdir(&dir).is_err()) {
        chdir("/").during("entering /")?;
    }
    let mut command = Command::new(format!("{BIN}/scrfs-simnode"));
    command.arg("become").arg(uid.to_string()).args(program);
    let mut signals =
        signal_hook::iterator::Signals::new([SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2])
            .during("listening for signals")?;
    let mut child = command.spawn().during(format!("starting in {place}"))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let inside =
        rustix::process::pidfd_open(pid.ok_or("no pid")?, PidfdFlags::empty()).during("its handle")?;
    // One thread only: a process that has joined a PID namespace cannot start another.
    loop {
        for signal in signals.wait().filter(|&s| s != SIGCHLD).filter_map(Signal::from_named_raw) {
            let _ = rustix::process::pidfd_send_signal(&inside, signal);
        }
        if let Some(status) = child.try_wait().during("waiting")? {
            return Ok(u8::try_from(code(status)).unwrap_or(255));
        }
    }
}

/// Binds this process to its parent's life, gives up root if asked to, and becomes the program.
pub(super) fn become_program(uid: u32, program: &[&str]) -> Outcome<u8> {
    if uid != 0 {
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
        setgroups(&[group]).during("giving up groups")?;
        setresgid(group, group, group).during("giving up the group")?;
        setresuid(user, user, user).during("giving up root")?;
    }
    // After the change of user, which would undo it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).during("binding to the parent")?;
    let error = Command::new(program[0]).args(&program[1..]).exec();
    eprintln!("{}: {error}", program[0]);
    Ok(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}
