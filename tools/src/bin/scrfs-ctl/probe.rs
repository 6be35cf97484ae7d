//! `scrfs-ctl probe`: see [`scrfs_tools::probe`]. Its exit code is 0 whenever there is an answer.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use scrfs::allocation::SLURM_JOB;
use scrfs::ids::Epoch;
use scrfs::status::{Changed, DatasetStatus, NodeStatus};
use scrfs_tools::ended::Process;
use scrfs_tools::node::Node;
use scrfs_tools::probe::{Living, RUN_VARIABLE, Report, Stage, Unsealed};
use scrfs_tools::session;
use scrfs_tools::token::Token;
use scrfs_tools::{Failure, Outcome, output};

/// A daemon that takes longer is not fit. With [`SWEEP`] below what scrfs-run waits for the whole
/// probe.
const ANSWER: Duration = Duration::from_secs(4);
/// At a job's end it is asked no longer than this.
const END_ANSWER: Duration = Duration::from_secs(1);
/// A mount that is to serve by the job's checkpoint path has so long for it.
const RELOAD: Duration = Duration::from_secs(2);
/// While a mount is there, and its worker has died, a successor has so long to answer.
const SUCCESSION: Duration = Duration::from_secs(2);
/// Until it is asked again.
const PAUSE: Duration = Duration::from_millis(50);
/// So long after KILL one answer waits for processes to end. What takes longer is told; scrfs-run
/// asks again.
const SWEEP: Duration = Duration::from_secs(2);
/// Looks for what was started while others were being ended.
const ROUNDS_MAX: u32 = 20;
/// Where Slurm's Prolog leaves what `scrfs mount` said (`deploy/slurm/hooks.sh`).
const PROLOG_NOTES: &str = "/run/scrfs-slurm";
/// Bytes of that; its first line is shorter.
const SAID_MAX: u64 = 4 << 10;
/// Processes named of each kind; more say nothing more.
const NAMED_MAX: usize = 8;
/// About processes that do not end; scrfs-run leaves their node out.
const HUNG: &str = "see what it waits for: ps, dmesg; the node is left out";

pub(crate) fn probe(mount: &Path, sweep: Option<&str>, checkpoint_path: Option<&OsStr>) -> Outcome {
    let mut report = Report { host: host()?, ..Report::default() };
    let token = sweep.and_then(Token::parse);
    if let Some(token) = &token {
        swept(token, &mut report);
    }
    let begun = Instant::now();
    match status_of(mount, checkpoint_path) {
        Ok(status) => {
            report.problem = report.problem.or_else(|| not_ours(token.as_ref()?, &status));
            if let Some(dataset) = newest(&status) {
                (report.epoch, report.newest) = (status.epoch, dataset.id);
                (report.held_by, report.expendable) = held(dataset, &status.host);
            }
            (report.unsealed, report.more_unsealed) = unsealed(&status);
            report.unsaved = unsaved(&status);
            let attached = status.coordinator;
            let pid = attached.and_then(|attached| u32::try_from(attached.pid).ok());
            if let (Some(token), Some(pid)) = (&token, pid) {
                add_attached(token, pid, &mut report.foreign);
            }
        }
        Err(failure) => {
            let job = std::env::var_os("SLURM_JOB_ID");
            let said = job.and_then(|job| said_by_prolog(Path::new(PROLOG_NOTES), &job));
            let reason = said.map(|said| format!(" ({said})")).unwrap_or_default();
            report.late = report.problem.is_none() && begun.elapsed() >= ANSWER;
            report.ending = None;
            report.problem = Some(failure.message + &reason);
        }
    }
    // Last: what holds files open and is this job's was ended, or is named already.
    if let (Some(_), None) = (&token, &report.problem) {
        report.writers = writers(mount);
    }
    report.foreign.truncate(NAMED_MAX);
    report.writers.truncate(NAMED_MAX);
    output::data(&report.line())
}

/// The job has ended: so does what carries its mark here, and its daemon hears of it. One that does
/// not keeps its mount until somebody says so: `scrfs umount --force`.
pub(crate) fn ended(mount: &Path, sweep: Option<&str>) -> Outcome {
    let mut report = Report { host: host()?, ..Report::default() };
    if let Some(token) = sweep.and_then(Token::parse) {
        swept(&token, &mut report);
        // One that is frozen would hold up the end of all.
        if let Ok(node) = Node::at(mount).map(|node| node.within(END_ANSWER))
            && let Ok(status) = node.status()
            && status.coordinator.is_none()
            && not_ours(&token, &status).is_none()
        {
            let _ = node.job_ended(Epoch(status.epoch));
        }
    }
    output::data(&report.line())
}

/// What carries the mark is ended.
fn swept(token: &Token, report: &mut Report) {
    match end_all(token, SWEEP) {
        Ok(Swept { own, orphans, ending }) => {
            (report.ended, report.orphans) = (own, orphans);
            report.ending = ending;
            report.problem = ending.map(|pid| format!("process {pid} of the former run does not end"));
        }
        Err(failure) => report.problem = Some(failure.message),
    }
    report.foreign = foreign(token);
    session::sweep();
}

pub(crate) fn host() -> Outcome<String> {
    let host = nix::unistd::gethostname().map_err(|e| Failure::system("host name", &e.into()))?;
    Ok(host.to_string_lossy().into_owned())
}

/// Of the mount at `dir`, once its datasets are where the job has them.
fn status_of(dir: &Path, checkpoint_path: Option<&OsStr>) -> Outcome<NodeStatus> {
    let begun = Instant::now();
    // All questions together take no longer than one may.
    let left = |node: Node| node.within(ANSWER.saturating_sub(begun.elapsed()));
    loop {
        let node = left(Node::at(dir)?);
        let chosen =
            checkpoint_path.map_or(Ok(()), |path| node.choose_checkpoint_path(path.as_bytes(), RELOAD));
        match chosen.and_then(|()| node.status()) {
            Err(_) if begun.elapsed() < SUCCESSION => std::thread::sleep(PAUSE),
            answer => return answer,
        }
    }
}

/// Why the Prolog could not mount, in a line: the job's output has it of the batch host alone.
fn said_by_prolog(notes: &Path, job: &OsStr) -> Option<String> {
    let id = job.to_str().filter(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit()))?;
    let mut bytes = Vec::new();
    fs::File::open(notes.join(format!(".said.{id}"))).ok()?.take(SAID_MAX).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines().map(str::trim);
    // Warnings may come before it.
    let line = lines.clone().find_map(|line| line.strip_prefix("scrfs: "));
    let line = line.or_else(|| lines.find(|line| !line.is_empty()))?;
    Some(line.chars().filter(|c| !c.is_control()).collect())
}

/// The mount is another job's.
fn not_ours(token: &Token, status: &NodeStatus) -> Option<String> {
    let (user, job) = status.job.split_once(' ')?;
    let theirs = format!("{user}/{job}");
    (theirs != token.job).then(|| format!("its mount is job {theirs}'s, not {}'s", token.job))
}

/// The complete one of the highest id.
fn newest(status: &NodeStatus) -> Option<&DatasetStatus> {
    status.datasets.iter().filter(|d| d.is_complete()).max_by_key(|d| d.id)
}

/// On how many nodes it is, if `host` is one of them, and whether it outlives the loss of that one.
fn held(dataset: &DatasetStatus, host: &str) -> (u32, bool) {
    let nodes = if dataset.hosts.iter().any(|holder| holder == host) { dataset.hosts.len() } else { 0 };
    let outlives = dataset.survives.iter().any(|(lost, kept)| lost == host && *kept);
    (u32::try_from(nodes).unwrap_or(u32::MAX), outlives)
}

/// What of its datasets is not sealed, and how many others there are.
fn unsealed(status: &NodeStatus) -> (Vec<Unsealed>, u64) {
    let begun = status.datasets.iter().filter_map(|d| {
        let stage = match d.state.as_str() {
            "open" if d.files > 0 => Stage::Open,
            "sealing" | "encoding" => Stage::Sealing,
            _ => return None,
        };
        Some(Unsealed { name: d.name.clone(), stage, files: d.files, bytes: d.bytes })
    });
    let changed = status.datasets.iter().filter_map(|d| {
        let Changed { files, bytes, .. } = *d.changed.as_ref()?;
        Some(Unsealed { name: d.name.clone(), stage: Stage::Changed, files, bytes })
    });
    let mut all: Vec<Unsealed> = begun.chain(changed).collect();
    let more = all.len().saturating_sub(NAMED_MAX) as u64 + status.more_open;
    all.truncate(NAMED_MAX);
    (all, more)
}

/// The newest protected dataset, in words, if it is not on the PFS.
fn unsaved(status: &NodeStatus) -> Option<String> {
    let newest = status.datasets.iter().find(|dataset| dataset.current && !dataset.flushed)?;
    let bytes = output::bytes_for_people(newest.bytes);
    Some(format!("{} (dataset {}, {bytes})", output::escaped(&newest.name), newest.id))
}

/// What became of the processes of a run.
#[derive(Debug, PartialEq, Eq)]
struct Swept {
    /// Processes of this run that have ended.
    own: u32,
    /// The same of runs that are dead.
    orphans: u32,
    /// A process that was killed and has not ended in time: giving much memory back takes long.
    ending: Option<u32>,
}

/// Kills every process of this run, and every one whose run is dead, until none is left, or one
/// takes longer than `limit` to end.
fn end_all(token: &Token, limit: Duration) -> Outcome<Swept> {
    // From the first KILL: on a busy machine the look at all processes alone takes long.
    let mut begun = None;
    let (mut own, mut orphans) = (BTreeSet::new(), BTreeSet::new());
    let count = |set: &BTreeSet<u32>| u32::try_from(set.len()).unwrap_or(u32::MAX);
    for _ in 0..ROUNDS_MAX {
        let left: Vec<_> = marked().into_iter().filter(|found| token.outlives(&found.mark)).collect();
        if left.is_empty() {
            await_exiting();
            return Ok(Swept { own: count(&own), orphans: count(&orphans), ending: None });
        }
        for found in &left {
            found.process.kill();
        }
        // While they end they may have started others: one more look.
        let begun = *begun.get_or_insert_with(Instant::now);
        for Marked { pid, process, mark } in left {
            if !process.wait(limit.saturating_sub(begun.elapsed())) {
                return Ok(Swept { own: count(&own), orphans: count(&orphans), ending: Some(pid) });
            }
            if mark == *token {
                own.insert(pid)
            } else {
                orphans.insert(pid)
            };
        }
    }
    Err(Failure::new("processes of the former run start others faster than they can be ended").hint(HUNG))
}

/// Processes of this job that another host's scrfs-run started: whether that one is alive cannot be
/// seen from here.
fn foreign(token: &Token) -> Vec<Living> {
    let others = marked().into_iter().filter(|found| {
        found.mark.job == token.job && found.mark.name == token.name && !token.outlives(&found.mark)
    });
    others
        .map(|Marked { pid, mark, .. }| Living {
            pid,
            what: format!("{}, of scrfs-run {} on {}", command(pid), mark.pid, mark.host),
        })
        .collect()
}

/// Waits for what is about to end, as what its launcher has just killed: such a process has neither
/// an environment nor a mark any more, but may still have its files open. One that does not get
/// there is named, if it matters.
fn await_exiting() {
    let begun = Instant::now();
    let user = nix::unistd::getuid().as_raw();
    for pid in processes().filter(|&pid| owner(pid) == Some(user)) {
        let process = i32::try_from(pid).ok().and_then(|pid| Process::open(Pid::from_raw(pid)));
        // Opened before the look: what is waited for is what was looked at.
        if let Some(process) = process.filter(|_| is_exiting(pid)) {
            process.wait(SWEEP.saturating_sub(begun.elapsed()));
        }
    }
}

/// Coordinator `pid`, which the daemon obeys, if this run did not start it, by whatever it was
/// started.
fn add_attached(token: &Token, pid: u32, to: &mut Vec<Living>) {
    let known = to.iter().any(|living| living.pid == pid);
    let ours = mark_of(pid).is_some_and(|mark| token.outlives(&mark));
    // Looked at last: the daemon may not know yet that it was ended just now, which has taken its
    // environment too. Its number may be another's.
    if !known && !ours && command(pid).starts_with("scrfs-coordinat") && lives(pid) {
        to.push(Living { pid, what: "an attached coordinator that this scrfs-run did not start".to_owned() });
    }
}

/// A process that has ended and that nobody has waited for does not.
fn lives(pid: u32) -> bool {
    let process = i32::try_from(pid).ok().and_then(|pid| Process::open(Pid::from_raw(pid)));
    process.is_some_and(|process| !process.wait(Duration::ZERO))
}

struct Marked {
    pid: u32,
    process: Process,
    mark: Token,
}

/// Processes of this user that a scrfs-run started. Others' environments cannot be read, nor are
/// they ours.
fn marked() -> Vec<Marked> {
    processes()
        .filter_map(|pid| {
            // Opened before the look: what is killed is what was looked at.
            let process = Process::open(Pid::from_raw(i32::try_from(pid).ok()?))?;
            Some(Marked { pid, process, mark: mark_of(pid)? })
        })
        .collect()
}

/// All processes but this one.
pub(crate) fn processes() -> impl Iterator<Item = u32> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()).filter(move |&pid| pid != own)
}

/// A zombie's environment is empty: it has ended already.
fn mark_of(pid: u32) -> Option<Token> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    mark_in(&environ, std::env::var(SLURM_JOB).ok().as_deref())
}

/// A program that submits a job gives it its own environment, and the mark with that: what runs in
/// another job than `job` is not marked.
fn mark_in(environ: &[u8], job: Option<&str>) -> Option<Token> {
    let value = |name: &str| {
        let mut entries = environ.split(|&b| b == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
        entries.find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='))
    };
    let token = Token::parse(value(RUN_VARIABLE)?)?;
    let is_anothers = job.zip(value(SLURM_JOB)).is_some_and(|(ours, theirs)| ours != theirs);
    (!is_anothers).then_some(token)
}

fn owner(pid: u32) -> Option<u32> {
    Some(fs::metadata(format!("/proc/{pid}")).ok()?.uid())
}

/// The kernel has begun to take it down; it says so before it takes the environment
/// (proc_pid_stat(5), `flags`).
fn is_exiting(pid: u32) -> bool {
    const PF_EXITING: u32 = 4;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may have spaces and parentheses; after it come state, five numbers, and the flags.
    let flags =
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6)?.parse::<u32>().ok());
    flags.is_some_and(|flags| flags & PF_EXITING != 0)
}

fn command(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    output::escaped(String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)))
}

/// Processes of this user that have a file below a directory of the mount open for writing.
fn writers(mount: &Path) -> Vec<Living> {
    let Some(device) = device(mount) else { return Vec::new() };
    processes()
        .filter_map(|pid| {
            let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
            let file = open.map(|fd| fd.path()).find_map(|fd| {
                let file = fs::read_link(&fd).ok()?;
                let inner = file.strip_prefix(mount).ok()?.components().count() > 1;
                (inner && is_writable(pid, &fd) && self::device(&fd) == Some(device)).then_some(file)
            })?;
            Some(Living { pid, what: format!("{} writes {}", command(pid), output::escaped(file.display())) })
        })
        .collect()
}

fn is_writable(pid: u32, fd: &Path) -> bool {
    let number = fd.file_name().unwrap_or_default().display();
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
    let flags =
        text.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_some_and(|flags| flags & 3 != 0)
}

/// Major and minor number of the file system, without a question to whoever serves it.
fn device(path: &Path) -> Option<(u32, u32)> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_what_is_this_jobs_and_names_what_may_be_anothers() {
        let job = format!("test/{}", std::process::id());
        let token = |stamp, host: &str, job: &str| Token {
            stamp,
            pid: 1,
            host: host.into(),
            job: job.into(),
            name: String::new(),
        };
        let (ours, former) = (token(2, "h1", &job), token(1, "h1", &job));
        let (elsewhere, another) = (token(1, "h2", &job), token(1, "h1", &format!("{job}x")));
        let mut children = [&ours, &former, &elsewhere, &another].map(|mark| {
            std::process::Command::new("sleep").arg("60").env(RUN_VARIABLE, mark.to_string()).spawn().unwrap()
        });
        // Until it is `sleep`, a child has its parent's environment.
        for child in &children {
            while mark_of(child.id()).is_none() {
                std::thread::yield_now();
            }
        }
        assert_eq!(end_all(&ours, SWEEP).unwrap(), Swept { own: 1, orphans: 1, ending: None });
        let [one, two, third, fourth] = &mut children;
        one.wait().unwrap();
        two.wait().unwrap();
        let named = foreign(&ours);
        assert_eq!(named.len(), 1, "{named:?}");
        assert_eq!(named[0].to_string(), format!("pid {} (sleep, of scrfs-run 1 on h2)", third.id()));
        for child in [third, fourth] {
            assert!(child.try_wait().unwrap().is_none());
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn what_a_program_has_submitted_is_another_jobs() {
        let environ =
            |job: &str| format!("A=b\0{RUN_VARIABLE}=1-1@h1/u/77\0SLURM_JOB_ID={job}\0").into_bytes();
        assert!(mark_in(&environ("77"), Some("77")).is_some());
        assert_eq!(mark_in(&environ("78"), Some("77")), None);
        // Where nobody tells, the mark counts.
        let none = format!("{RUN_VARIABLE}=1-1@h1/u/77\0").into_bytes();
        assert!(mark_in(&environ("78"), None).is_some() && mark_in(&none, Some("77")).is_some());
    }

    /// No time at all: as one whose memory takes longer to be taken back than an answer may take.
    #[test]
    fn what_was_killed_and_has_not_ended_is_told_apart() {
        let job = format!("test/ending.{}", std::process::id());
        let token = Token { stamp: 1, pid: 1, host: "h1".into(), job, name: String::new() };
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .env(RUN_VARIABLE, token.to_string())
            .spawn()
            .unwrap();
        while mark_of(child.id()).is_none() {
            std::thread::yield_now();
        }
        let swept = end_all(&token, Duration::ZERO).unwrap();
        // The kernel may be quicker.
        assert!(swept.ending.is_none_or(|pid| pid == child.id()), "{swept:?}");
        assert_eq!(swept.own, u32::from(swept.ending.is_none()));
        child.wait().unwrap();
    }

    #[test]
    fn an_attached_coordinator_is_named_while_it_lives() {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("scrfs-coordinator");
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let token =
            Token { stamp: 1, pid: 1, host: "h1".into(), job: "test/attached".into(), name: String::new() };
        let start = |mark: &str| {
            std::process::Command::new(&program).arg("60").env(RUN_VARIABLE, mark).spawn().unwrap()
        };
        let named = |pid| {
            let mut found = Vec::new();
            add_attached(&token, pid, &mut found);
            found.len()
        };
        let (mut ours, mut strange) = (start(&token.to_string()), start(""));
        for child in [&ours, &strange] {
            while !command(child.id()).starts_with("scrfs-coordinat") {
                std::thread::yield_now();
            }
        }
        // The kernel gives a program its name before its environment.
        while mark_of(ours.id()).is_none() {
            std::thread::yield_now();
        }
        assert_eq!((named(ours.id()), named(strange.id())), (0, 1));
        for child in [&mut ours, &mut strange] {
            child.kill().unwrap();
            while lives(child.id()) {
                std::thread::yield_now();
            }
            assert_eq!(named(child.id()), 0, "ended, though nobody has waited for it");
            child.wait().unwrap();
        }
    }

    #[test]
    fn what_is_about_to_end_is_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("scrfs-coordinator");
        std::os::unix::fs::symlink("/usr/bin/perl", &program).unwrap();
        let token =
            Token { stamp: 1, pid: 1, host: "h1".into(), job: "test/exiting".into(), name: String::new() };
        // The kernel needs a while to take this much memory back.
        let line = "my $x = 'x' x (1 << 29); $| = 1; print 1; sleep 60";
        let mut child = std::process::Command::new(&program)
            .args(["-e", line])
            .env(RUN_VARIABLE, token.to_string())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        child.kill().unwrap();
        while mark_of(child.id()).is_some() {
            std::thread::yield_now();
        }
        let mut named = Vec::new();
        end_all(&token, SWEEP).unwrap();
        add_attached(&token, child.id(), &mut named);
        assert_eq!(named, [], "killed by its launcher, not yet ended");
        child.wait().unwrap();
    }

    #[test]
    fn all_that_is_not_sealed_is_told_or_counted() {
        use crate::status::tests::{dataset, node};
        let mut changed = dataset(3, "ck.3", "flushed", &["n1"]);
        changed.changed = Some(Changed { since_us: None, files: 1, bytes: 9, removed: 2 });
        let empty = DatasetStatus { files: 0, ..dataset(0, "made", "open", &["n1"]) };
        let mut status = node(vec![
            dataset(0, "ck.6", "open", &["n1"]),
            empty,
            dataset(5, "ck.5", "sealing", &["n1"]),
            dataset(4, "ck.4", "encoding", &["n1"]),
            changed,
            dataset(2, "ck.2", "protected", &["n1"]),
        ]);
        let (found, more) = unsealed(&status);
        let found: Vec<_> = found.iter().map(|u| (u.name.as_str(), u.stage)).collect();
        let expected = [
            ("ck.6", Stage::Open),
            ("ck.5", Stage::Sealing),
            ("ck.4", Stage::Sealing),
            ("ck.3", Stage::Changed),
        ];
        assert_eq!((found.as_slice(), more), (expected.as_slice(), 0));
        status.datasets = (0..20).map(|at| dataset(0, &format!("d{at}"), "open", &["n1"])).collect();
        status.more_open = 7;
        let (found, more) = unsealed(&status);
        assert_eq!((found.len(), more), (NAMED_MAX, 20 - NAMED_MAX as u64 + 7));
    }

    #[test]
    fn the_prologs_reason_is_one_line() {
        let notes = tempfile::tempdir().unwrap();
        let said = |job: &str| said_by_prolog(notes.path(), OsStr::new(job));
        fs::write(notes.path().join(".said.7"), "WARN x\nscrfs: /cache: read-only\u{1b}[0m\nhint: x\n")
            .unwrap();
        fs::write(notes.path().join(".said.6"), "no mount after 60 s\n").unwrap();
        fs::write(notes.path().join(".said.8"), "\n").unwrap();
        assert_eq!(said("7").as_deref(), Some("/cache: read-only[0m"));
        assert_eq!(said("6").as_deref(), Some("no mount after 60 s"));
        for job in ["8", "9", "", "../7", "7/x"] {
            assert_eq!(said(job), None, "{job}");
        }
    }

    #[test]
    fn names_who_writes_below_a_directory() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("ck")).unwrap();
        let file = place.path().join("ck/f");
        fs::write(&file, b"x").unwrap();
        let start =
            |stdin: fs::File| std::process::Command::new("sleep").arg("60").stdin(stdin).spawn().unwrap();
        let mut reader = start(fs::File::open(&file).unwrap());
        let mut loose = start(fs::File::create(place.path().join("log")).unwrap());
        assert_eq!(writers(place.path()), []);
        let mut writer = start(fs::OpenOptions::new().append(true).open(&file).unwrap());
        let found = writers(place.path());
        assert!(found.iter().any(|living| living.pid == writer.id()), "{found:?}");
        assert!(found.iter().all(|living| living.what.ends_with(&format!("writes {}", file.display()))));
        for child in [&mut reader, &mut loose, &mut writer] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
