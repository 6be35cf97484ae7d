//! From facts to findings. Pure: a table of facts is all that its tests need.

use std::path::Path;

use super::facts::{Facts, Kind, Parameters, Prefix, Program, Reason, Room, Store};
use super::{Finding, Grade, Report};
use crate::allocation::has_pmix;
use crate::priority::threads::Means;
use crate::status::people::bytes_for_people;

/// The kernel has to have pidfd_getfd(2).
const LEAST_KERNEL: (u32, u32) = (5, 6);
/// Passthrough and FUSE_NOTIFY_RESEND.
const GOOD_KERNEL: (u32, u32) = (6, 9);
/// Seconds by which clocks may differ before people are confused by times of files and events.
const SKEW_MAX: f64 = 2.0;
/// Fewer descriptors than this, and programs with many open files meet the limit.
const DESCRIPTORS_MIN: u64 = 4096;
/// Free bytes of control directories below which a job of some hundred thousand files may meet the
/// end of them.
const CONTROL_BYTES_MIN: u64 = 64 << 20;
/// A control directory has some dozen files, a dataset a few more.
const CONTROL_INODES_MIN: u64 = 1000;
/// Names in one finding.
const NAMES_MAX: usize = 4;

/// Everything that can be said.
pub fn all(facts: &Facts) -> Report {
    let mut findings = vec![kernel(facts), device(facts), rights(facts)];
    findings.extend(configuration(facts));
    findings.extend(launchers(facts));
    findings.extend(facts.programs.iter().map(|program| own(program, facts.version)));
    findings.extend(prefix(facts.prefix.as_ref(), facts));
    findings.extend(facts.parameters.as_ref().map(|parameters| time_limit(parameters, facts.now)));
    findings.extend(stores(facts));
    findings.extend(facts.control.as_ref().map(|control| control_room(control, facts.rights.root)));
    findings.extend(leftovers(facts));
    findings.push(priority(facts));
    findings.push(descriptors(facts));
    findings.extend(facts.clocks.iter().map(|(host, skew)| clock(host, skew.as_ref())));
    Report::new(findings)
}

fn ok(name: &'static str, says: impl Into<String>) -> Finding {
    Finding { name, grade: Grade::Ok, says: says.into(), remedy: None }
}

fn warn(name: &'static str, says: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { name, grade: Grade::Warn, says: says.into(), remedy: Some(remedy.into()) }
}

fn fail(name: &'static str, says: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { name, grade: Grade::Fail, says: says.into(), remedy: Some(remedy.into()) }
}

fn kernel(facts: &Facts) -> Finding {
    let release = &facts.kernel;
    let newer = "run Linux 6.9 or newer on the nodes";
    match version(release) {
        None => warn("kernel", format!("{release}: no version can be read from this"), newer),
        Some(found) if found < LEAST_KERNEL => {
            fail("kernel", format!("{release}: older than Linux 5.6"), newer)
        }
        Some(found) if found < GOOD_KERNEL => warn(
            "kernel",
            format!(
                "{release}: data passes through the daemon, and a daemon that dies takes open files with it"
            ),
            newer,
        ),
        Some(_) if !facts.rights.admin => {
            ok("kernel", format!("{release}: a worker's death goes unseen (passthrough needs root)"))
        }
        Some(_) => ok("kernel", format!("{release}: passthrough, and a worker's death goes unseen")),
    }
}

/// `6.12.3-1-amd64`
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn device(facts: &Facts) -> Finding {
    match &facts.device {
        Ok(()) => ok("/dev/fuse", "can be opened"),
        Err(reason) => fail(
            "/dev/fuse",
            format!("cannot be opened: {reason}"),
            "modprobe fuse; in a container, give it --device /dev/fuse; mode 0666 for mounts without root",
        ),
    }
}

fn rights(facts: &Facts) -> Finding {
    let rights = &facts.rights;
    match &rights.helper {
        _ if rights.root && rights.admin => ok("rights", "root, with CAP_SYS_ADMIN"),
        _ if rights.root => fail(
            "rights",
            "root, but without CAP_SYS_ADMIN",
            "give the container or service that capability, or mount as an ordinary user",
        ),
        Some((path, true)) => {
            ok("rights", format!("no root: {} mounts, in mode plain, for this user only", path.display()))
        }
        Some((path, false)) => fail(
            "rights",
            format!("no root, and {} is not set-uid root", path.display()),
            format!("chown root {0} && chmod u+s {0}", path.display()),
        ),
        None => {
            fail("rights", "no root, and no fusermount3", "install the package fuse3, or run this as root")
        }
    }
}

fn configuration(facts: &Facts) -> Vec<Finding> {
    match &facts.parameters {
        Err(reason) => {
            vec![fail("parameters", reason, "correct that line; the parameters are in scrfs.conf(5)")]
        }
        Ok(parameters) if parameters.warnings.is_empty() => {
            let source = if parameters.system_file { "/etc/scrfs.conf" } else { "defaults" };
            let Parameters { user, job_id, .. } = parameters;
            vec![ok("parameters", format!("{source}; for user {user}, job {job_id}"))]
        }
        Ok(parameters) => {
            let told = |text: &String| warn("parameters", text, "correct or remove it; see scrfs.conf(5)");
            parameters.warnings.iter().map(told).collect()
        }
    }
}

fn launchers(facts: &Facts) -> Vec<Finding> {
    let one = |program: &Program| match &program.says {
        Ok(version) => ok("launcher", format!("{}: {version}", program.name)),
        Err(reason) => warn(
            "launcher",
            format!("{}: {reason}", program.name),
            match program.name {
                "srun" => "see that Slurm's configuration can be read here (SLURM_CONF)",
                _ => "load the module of the MPI that scrfs was built with, or put its programs into PATH",
            },
        ),
    };
    let there = facts.launchers.iter().filter(|program| program.path.is_some());
    let mut found: Vec<Finding> = there.map(one).collect();
    if found.iter().any(|finding| finding.grade == Grade::Ok) {
        found.extend(facts.mpi_types.as_ref().and_then(pmix));
        return found;
    }
    let names: Vec<&str> = facts.launchers.iter().map(|program| program.name).collect();
    let mut all = found;
    all.push(fail(
        "launcher",
        format!("none that answers: {}", names.join(", ")),
        "install openmpi-bin, or load the module of the MPI that scrfs was built with",
    ));
    all
}

/// That srun cannot start coordinators. Why it says nothing is in its own finding.
fn pmix(types: &Result<String, Reason>) -> Option<Finding> {
    let types = types.as_ref().ok()?;
    (!has_pmix(types)).then(|| {
        warn(
            "launcher",
            "srun has no pmix that can be used: `scrfs-run` starts programs with mpirun in its place",
            "if srun is to be the launcher, install Slurm's PMIx plugin (mpi_pmix.so), and on Debian libpmix-dev, on every node",
        )
    })
}

/// One of our own programs. The coordinator's version can be had only when its MPI can be loaded.
fn own(program: &Program, version: &str) -> Finding {
    let Program { name, path, says } = program;
    match (path, says) {
        (None, _) => fail(
            name,
            "is not beside this program",
            "scrfs, scrfs-run, scrfs-ctl and scrfs-coordinator belong in one directory: install the package again",
        ),
        (Some(path), Err(reason)) if reason.contains("shared librar") => fail(
            name,
            format!("{}: {reason}", path.display()),
            "load the module of the MPI that scrfs was built with, or build scrfs against this one's",
        ),
        (Some(path), Err(reason)) => {
            fail(name, format!("{}: {reason}", path.display()), "install the package again")
        }
        (Some(_), Ok(said)) if said.split_whitespace().last() != Some(version) => fail(
            name,
            format!("is {said:?}, and this is version {version}"),
            "install all programs of one version, on every node",
        ),
        (Some(_), Ok(said)) => ok(name, said.clone()),
    }
}

fn prefix(prefix: Option<&Prefix>, facts: &Facts) -> Vec<Finding> {
    let Some(Prefix { path, user, kind, strange, write }) = prefix else {
        let named = facts.parameters.is_ok();
        return named.then(|| ok("prefix", "none named; --prefix DIR checks one")).into_iter().collect();
    };
    let at = path.display();
    let mut found = vec![match kind {
        Ok(Kind::Shared(name)) => ok("prefix", format!("{at} is on {name}")),
        Ok(Kind::Local(name)) => warn(
            "prefix",
            format!("{at} is on {name}, which seems to be of this node only"),
            "name a directory of the parallel file system with SCR_PREFIX or --prefix",
        ),
        Ok(Kind::Unknown(number)) => warn(
            "prefix",
            format!("{at} is on a file system of unknown kind ({number:#x})"),
            "see that all nodes have it",
        ),
        Err(reason) => fail(
            "prefix",
            format!("{at}: {reason}"),
            "make the directory, or name another with SCR_PREFIX or --prefix; is the file system mounted here?",
        ),
    }];
    found.extend(strange.iter().map(|what| {
        warn(
            "prefix",
            format!("{what}: others can read or exchange what the job keeps there"),
            format!("make a directory of {user}'s own, or name another with SCR_PREFIX or --prefix"),
        )
    }));
    if kind.is_ok() {
        found.push(match write {
            Err(reason) => fail(
                "prefix",
                format!("{user} cannot write to {at}: {reason}"),
                format!("give it to {user}, or name another with SCR_PREFIX or --prefix"),
            ),
            Ok(skew) if skew.certain() > SKEW_MAX => warn(
                "prefix",
                format!("its server's clock is {:.1} s from this node's", skew.certain()),
                "set both by NTP",
            ),
            Ok(_) => ok("prefix", format!("{user} can write there; its clock is right")),
        });
    }
    found
}

fn time_limit(parameters: &Parameters, now: u64) -> Finding {
    let set =
        "set SCRFS_END_TIME (seconds since 1970) in the job script, for SCR_HALT_SECONDS and should_exit";
    match &parameters.end_time {
        Ok(Some(end)) if *end <= now => {
            warn("time limit", format!("SCRFS_END_TIME is {end}, which is past: it has no effect"), set)
        }
        Ok(Some(end)) => ok("time limit", format!("the job ends in {} min", (end - now) / 60)),
        _ if !parameters.in_job => ok("time limit", "not in a job"),
        Ok(None) => ok("time limit", "the job has none"),
        Err(reason) => warn("time limit", format!("when the job ends is not known: {reason}"), set),
    }
}

fn stores(facts: &Facts) -> Vec<Finding> {
    let bound = facts.parameters.as_ref().map_or(0, |parameters| parameters.cache_bytes);
    facts.stores.iter().map(|store| one_store(store, bound, facts)).collect()
}

fn one_store(store: &Store, bound: u64, facts: &Facts) -> Finding {
    let at = store.path.display();
    let elsewhere = "name another store in SCR_CACHE_BASE";
    let room = match &store.room {
        Ok(room) => room,
        Err(reason) => return fail("cache", format!("{at}: {reason}"), elsewhere),
    };
    let Room { memory, writable, size, free, .. } = *room;
    if !writable {
        return fail("cache", format!("{at} cannot be written to"), elsewhere);
    }
    if let Some(there) = &room.made_in {
        return missing(store, there, facts);
    }
    let takes = if bound > 0 { bound.min(size) } else { size };
    let takes_text = bytes_for_people(takes);
    let limit = facts.cgroup.map_or(facts.memory, |cgroup| cgroup.min(facts.memory));
    if memory && takes >= limit && limit > 0 {
        let whose = if limit < facts.memory { "the cgroup's limit" } else { "the node's memory" };
        return warn(
            "cache",
            format!(
                "{at} is memory and may take {takes_text}; {whose} is {}: programs are killed before it is full",
                bytes_for_people(limit)
            ),
            format!("SCRFS_CACHE_BYTES={} leaves half of it to the program", limit / 2),
        );
    }
    if free < size / 10 {
        return warn(
            "cache",
            format!("{at}: {} of {} are free", bytes_for_people(free), bytes_for_people(size)),
            "remove what is there and nobody needs (du -x), or name another store in SCR_CACHE_BASE",
        );
    }
    let what = if memory { "memory" } else { "disk" };
    ok("cache", format!("{at} is {what}: may take {takes_text}, {} are free", bytes_for_people(free)))
}

/// One that is not there. Of a list the mount passes such a one over.
fn missing(store: &Store, there: &Path, facts: &Facts) -> Finding {
    let at = store.path.display();
    let is_there = |store: &Store| store.room.as_ref().is_ok_and(|room| room.made_in.is_none());
    match facts.stores.len() {
        0 | 1 => warn(
            "cache",
            format!("{at} is not there: a mount makes it on the file system of {}", there.display()),
            "mount the file system that the store is to be on, make the directory, or name another in SCR_CACHE_BASE",
        ),
        _ => {
            let text = format!("{at}: no such directory: a mount does not use it");
            let remedy = "mount its file system, make it, or take it out of SCR_CACHE_BASE";
            let others = facts.stores.iter().any(is_there);
            if others { warn("cache", text, remedy) } else { fail("cache", text, remedy) }
        }
    }
}

/// Where names of files, catalogs and pointer files are kept. Without root there are no other
/// users' jobs in it.
fn control_room(control: &Store, root: bool) -> Finding {
    let at = control.path.display();
    let elsewhere = "name another directory in SCR_CNTL_BASE";
    let room = match &control.room {
        Ok(room) if room.writable => room,
        Ok(_) => return fail("control", format!("{at} cannot be written to"), elsewhere),
        Err(reason) => return fail("control", format!("{at}: {reason}"), elsewhere),
    };
    let inodes = if room.inodes == 0 { String::new() } else { format!(" and {} inodes", room.free_inodes) };
    let free = format!("{at}: {}{inodes} are free", bytes_for_people(room.free));
    if room.free < CONTROL_BYTES_MIN || (room.inodes > 0 && room.free_inodes < CONTROL_INODES_MIN) {
        return warn(
            "control",
            format!("{free}: names of files are kept there"),
            "remove what is there and nobody needs (`scrfs sweep`), or give it a larger file system",
        );
    }
    let shared =
        if root && !room.own { "; on a node that jobs share, give it a tmpfs of its own" } else { "" };
    ok("control", format!("{free}{shared}"))
}

fn leftovers(facts: &Facts) -> Vec<Finding> {
    let names = |paths: &[std::path::PathBuf]| {
        let shown: Vec<String> =
            paths.iter().take(NAMES_MAX).map(|path| path.display().to_string()).collect();
        let more = paths.len().saturating_sub(NAMES_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        shown.join(", ") + &more
    };
    let found = &facts.leftovers;
    let mut findings = Vec::new();
    if !found.mounts.is_empty() {
        findings.push(warn(
            "leftovers",
            format!("nobody serves the mount {}", names(&found.mounts)),
            "scrfs umount DIR; the next mount clears it up, too",
        ));
    }
    if !found.directories.is_empty() {
        findings.push(warn(
            "leftovers",
            format!("no daemon holds {}", names(&found.directories)),
            "files of jobs that have ended, or will be requeued: `scrfs sweep`, as their owner, removes those of jobs that are gone; `--alive IDS` where no scheduler tells",
        ));
    }
    if let Some(reason) = &found.cut_short {
        findings.push(warn("leftovers", format!("looking was cut short: {reason}"), "look for hung mounts"));
    }
    if findings.is_empty() {
        findings.push(ok("leftovers", "none"));
    }
    findings
}

/// While every core runs a rank that spins, a marker waits for their time slices where this cannot
/// be had.
fn priority(facts: &Facts) -> Finding {
    let slow = "markers take several times as long while every core runs a rank that spins";
    match &facts.priority {
        Ok(Means::RoundRobin) => ok("priority", "goes first while a marker waits (SCHED_RR)"),
        Ok(Means::Nice) => warn(
            "priority",
            format!("SCHED_RR is refused, nice -20 is not: {slow}, or somewhat longer"),
            "give the control group a real-time budget (cpu.rt_runtime_us, kernel.sched_rt_runtime_us)",
        ),
        Err(_) if !facts.rights.root => ok("priority", format!("no root: {slow}")),
        Err(reason) => warn(
            "priority",
            format!("cannot be raised ({reason}): {slow}"),
            "give the container or service CAP_SYS_NICE",
        ),
    }
}

fn descriptors(facts: &Facts) -> Finding {
    let (soft, hard) = facts.descriptors;
    if soft.max(hard) < DESCRIPTORS_MIN {
        let says = format!("at most {hard}: programs that open many files at once meet the limit");
        return warn(
            "descriptors",
            says,
            "raise RLIMIT_NOFILE where the mount is made: LimitNOFILE=, ulimit -n",
        );
    }
    ok("descriptors", format!("{soft}, at most {hard}"))
}

fn clock(host: &str, skew: Result<&super::skew::Skew, &String>) -> Finding {
    match skew {
        Ok(skew) if skew.certain() > SKEW_MAX => warn(
            "clock",
            format!("{host}'s is {:.1} s from this node's", skew.certain()),
            "set all nodes' clocks by NTP",
        ),
        Ok(_) => ok("clock", format!("{host}'s is right")),
        Err(reason) => fail(
            "clock",
            format!("{host} does not answer: {reason}"),
            "see that it is up, and that it can be reached without a password",
        ),
    }
}

#[cfg(test)]
mod tests;
