//! Whom to ask: the daemon of a mount, or, where there is no mount, what the coordinators have left
//! in the prefix.

use std::collections::HashSet;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use scrfs::beside::beside;
use scrfs::bounded;
use scrfs::config::hosts;
use scrfs::control::client::scrfs_mounts;
use scrfs::status::last::{self, LastError, LastStatus, RENEWED};
use scrfs::status::people::hosts_for_people;
use scrfs::status::{NodeStatus, show, show_ended};
use scrfs_tools::node::{Node, mount_point};
use scrfs_tools::scheduler::{self, ScheduledJob, Whose};
use scrfs_tools::{Failure, Outcome, output};

use crate::living::{Living, living};

/// slurmd's port: a node that answers there, even by refusing, lives.
const NODE_PORT: u16 = 6818;
/// How long a node may take to answer.
const REACH: Duration = Duration::from_secs(1);
/// A PFS that takes longer has a problem.
const PFS_LIMIT: Duration = Duration::from_secs(20);
/// Nodes that are tried.
const REACHED_MAX: usize = 4;

/// What the command line says of the place.
#[derive(Debug, clap::Args)]
pub(crate) struct At {
    /// Where scrfs is mounted
    /// [default: SCRFS_MOUNT, else /scr; without a mount: SCR_PREFIX, this directory, your running
    /// job].
    #[arg(long, value_name = "DIR", conflicts_with_all = ["job", "prefix"])]
    mount: Option<PathBuf>,
    /// A job, mounted here or known to the scheduler.
    #[arg(long, value_name = "ID", conflicts_with = "prefix")]
    job: Option<String>,
    /// The job's directory on the PFS: its coordinators' last word there, also when its nodes are
    /// gone.
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
}

/// Who answers.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Mounted(Node),
    Left { prefix: PathBuf, job: Option<ScheduledJob> },
}

/// A status and where it is from.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) status: NodeStatus,
    /// Of a last status: when it was written, whether the coordinators ended then, its age, the
    /// job.
    pub(crate) left: Option<Left>,
}

#[derive(Debug)]
pub(crate) struct Left {
    last: PathBuf,
    pub(crate) written_us: u64,
    pub(crate) ended: bool,
    pub(crate) age: Duration,
    pub(crate) job: Option<ScheduledJob>,
}

impl At {
    /// The one that answers. Where several runs with a name live in a prefix, these are named.
    pub(crate) fn place(&self) -> Outcome<Place> {
        let found = self.find()?;
        let (runs, living) = found.runs();
        match (found, runs) {
            (Place::Left { prefix, job }, mut runs) if !living.names.is_empty() => {
                if living.itself {
                    let others = living.options(&prefix);
                    output::talk(&format!("scrfs-ctl: runs with a name live there too: {others}"));
                    return Ok(Place::Left { prefix, job });
                }
                let one = runs.pop().filter(|_| runs.is_empty());
                one.ok_or_else(|| several(&prefix, &living))
            }
            (found, _) => Ok(found),
        }
    }

    /// All that live there; the one that was named where none does.
    pub(crate) fn places(&self) -> Outcome<Vec<Place>> {
        Ok(self.find()?.runs().0)
    }

    fn find(&self) -> Outcome<Place> {
        if let Some(mount) = &self.mount {
            return Node::at(mount).map(Place::Mounted);
        }
        if let Some(prefix) = &self.prefix {
            return Ok(Place::Left { prefix: prefix.clone(), job: None });
        }
        let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mounts: Vec<_> =
            scrfs_mounts(&table).into_iter().filter(|(_, control)| may_ask(control)).collect();
        match &self.job {
            Some(id) => of_job(id, &mounts),
            None => by_itself(&mounts),
        }
    }
}

fn of_job(id: &str, mounts: &[(PathBuf, PathBuf)]) -> Outcome<Place> {
    let directory = format!("scr.{id}");
    let here = mounts.iter().find(|(_, control)| control.file_name().is_some_and(|name| name == &*directory));
    if let Some((mount, control)) = here {
        return Ok(Place::Mounted(Node::of(mount.clone(), control.clone())));
    }
    match scheduler::job(id)? {
        Some(job) => Ok(Place::Left { prefix: job.prefix.clone(), job: Some(job) }),
        None => {
            Err(Failure::new(format!("job {id}: it is not mounted here, and no scheduler here knows it"))
                .hint("name its directory on the PFS: --prefix DIR"))
        }
    }
}

/// The daemon of a control directory hears this user, or is away. Other users' mounts are not what
/// a user means who names none.
fn may_ask(control: &Path) -> bool {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let socket = control.join(scrfs::control::stream::SOCKET_NAME);
    accessat(CWD, socket, Access::WRITE_OK, AtFlags::EACCESS) != Err(rustix::io::Errno::ACCESS)
}

/// Nothing was named: the usual mount, the only one, the prefix that we are in, the only job that
/// runs.
fn by_itself(mounts: &[(PathBuf, PathBuf)]) -> Outcome<Place> {
    let usual = mount_point(None)?;
    let absent = match Node::at(&usual) {
        Ok(node) if may_ask(node.control()) => {
            return Ok(Place::Mounted(node));
        }
        // Another user's: it may say so itself where there is nothing else.
        Ok(node) => Ok(Place::Mounted(node)),
        Err(absent) => Err(absent),
    };
    if let [(mount, control)] = mounts {
        return Ok(Place::Mounted(Node::of(mount.clone(), control.clone())));
    }
    let named = std::env::var_os("SCR_PREFIX").filter(|path| !path.is_empty()).map(PathBuf::from);
    let here = named.or_else(|| std::env::current_dir().ok());
    let has_run = |prefix: &PathBuf| {
        let prefix = prefix.clone();
        let look = move || {
            let named = || living(&prefix).is_ok_and(|living| !living.names.is_empty());
            Ok(last::is_kept(&prefix) || last::has_state(&prefix)? && named())
        };
        bounded::within(PFS_LIMIT, look).unwrap_or(false)
    };
    if let Some(prefix) = here.filter(has_run) {
        return Ok(Place::Left { prefix, job: None });
    }
    let Ok(jobs) = scheduler::jobs(Whose::Mine) else { return absent };
    let mut running: Vec<ScheduledJob> = jobs.into_iter().filter(ScheduledJob::runs).collect();
    match running.len() {
        0 => absent,
        1 => {
            let job = running.remove(0);
            Ok(Place::Left { prefix: job.prefix.clone(), job: Some(job) })
        }
        _ => {
            let ids: Vec<&str> = running.iter().map(|job| job.id.as_str()).collect();
            Err(Failure::new(format!(
                "{} is not an scrfs mount, and {} jobs of yours run",
                usual.display(),
                ids.len()
            ))
            .hint(format!("name one: --job {}", ids.join(", --job "))))
        }
    }
}

fn several(prefix: &Path, living: &Living) -> Failure {
    let (shown, names) = (prefix.display(), living.names.join(", "));
    Failure::new(format!("what runs in {shown} has names ({names}), and a status and events of its own"))
        .hint(format!("name one: {}", living.options(prefix)))
}

impl Place {
    /// Of a prefix, the runs that live in it, with a name or without; itself where none lives. Also
    /// what was found.
    pub(crate) fn runs(&self) -> (Vec<Self>, Living) {
        let Self::Left { prefix, job } = self else { return (vec![self.clone()], Living::default()) };
        // One that cannot be looked through may still have a status.
        let living = living(prefix).unwrap_or_default();
        let of = |prefix| Self::Left { prefix, job: job.clone() };
        let itself = (living.itself || living.names.is_empty()).then(|| self.clone());
        let runs = itself.into_iter().chain(living.prefixes(prefix).into_iter().map(of)).collect();
        (runs, living)
    }

    /// The `--name` of a run in the prefix of its job.
    pub(crate) fn name_in(&self, job: &Path) -> Option<String> {
        let Self::Left { prefix, .. } = self else { return None };
        let name = prefix.strip_prefix(job).ok()?;
        (!name.as_os_str().is_empty()).then(|| name.display().to_string())
    }

    pub(crate) fn look(&self) -> Outcome<Seen> {
        match self {
            Self::Mounted(node) => Ok(Seen { status: node.status()?, left: None }),
            Self::Left { prefix, job } => {
                let path = prefix.clone();
                let read = bounded::within(PFS_LIMIT, move || Ok(LastStatus::read(&path)))
                    .map_err(|e| Failure::system(prefix.display(), &e))?;
                let LastStatus { written_us, ended, status } = read.map_err(|e| explain(prefix, &e))?;
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let age = now.saturating_sub(Duration::from_micros(written_us));
                let id = status.job.split_once(' ').map_or("", |(_, id)| id);
                // Best effort: the scheduler has nothing to say of jobs that are not its own.
                let job = job.clone().or_else(|| scheduler::job(id).ok().flatten());
                let last = last::status_path(prefix);
                Ok(Seen { status, left: Some(Left { last, written_us, ended, age, job }) })
            }
        }
    }

    pub(crate) fn events(&self, most: u32) -> Outcome<Vec<String>> {
        match self {
            Self::Mounted(node) => node.events(most),
            Self::Left { prefix, .. } => last::events(prefix, usize::try_from(most).unwrap_or(usize::MAX))
                .map_err(|e| explain(prefix, &e)),
        }
    }
}

fn explain(prefix: &Path, error: &LastError) -> Failure {
    let failure = Failure::new(error);
    match error {
        LastError::Absent(_) => failure.hint(format!(
            "is {} the job's SCR_PREFIX? Name another with --prefix DIR; coordinators write there once they have begun",
            prefix.display()
        )),
        LastError::Io { source, .. } => failure.hint(scrfs::remedy::of(source)),
        LastError::Content { .. } => failure.hint("coordinators that live write it anew within a minute"),
    }
}

impl Seen {
    /// For people. A last status says how old it is, and who could tell more.
    pub(crate) fn text(&self) -> String {
        let Some(left) = &self.left else { return show(&self.status) };
        let lost = left.lost_for_people(&self.status).map(|lost| lost + "\n").unwrap_or_default();
        let text = if left.ended { show_ended(&self.status) } else { show(&self.status) };
        format!("{}\n{lost}{text}{}", left.heading(), left.reach(&self.status))
    }
}

impl Left {
    pub(crate) fn heading(&self) -> String {
        let job = self.job.as_ref().map_or_else(String::new, |job| {
            let on = if job.nodes.is_empty() { String::new() } else { format!(" on {}", job.nodes) };
            format!("the scheduler says of job {} of {}: {}{on}\n", job.id, job.user, job.state)
        });
        let (age, last) = (age_for_people(self.age), self.last.display());
        if self.ended {
            return format!("{job}its coordinators ended {age} ago, and left this ({last}):");
        }
        let silent = if self.age > 2 * RENEWED {
            format!(
                ": coordinators that live write every {} s, so they are gone, or cannot write there",
                RENEWED.as_secs()
            )
        } else {
            String::new()
        };
        format!("{job}as of {age} ago ({last}){silent}:")
    }

    /// Nodes of the coordinators that wrote it which the scheduler counts among the job's no more.
    pub(crate) fn lost_for_people(&self, status: &NodeStatus) -> Option<String> {
        let job = self.job.as_ref().filter(|job| job.runs() && !self.ended)?;
        let now = hosts::expand(&job.nodes).ok().filter(|nodes| !nodes.is_empty())?;
        let now: HashSet<&str> = now.iter().map(|host| scheduler::short(host)).collect();
        let hosts = status.coordinator.as_ref()?.hosts.iter().map(String::as_str);
        let gone: Vec<&str> = hosts.filter(|host| !now.contains(scheduler::short(host))).collect();
        (!gone.is_empty()).then(|| format!("no longer among the job's nodes: {}", hosts_for_people(gone)))
    }

    /// Where what holds now can be asked, if the job runs.
    fn reach(&self, status: &NodeStatus) -> String {
        let runs = self.job.as_ref().filter(|job| job.runs() && !self.ended);
        let Some(job) = runs else { return String::new() };
        let hosts = status.coordinator.as_ref().map(|c| c.hosts.clone()).unwrap_or_default();
        let tried: Vec<_> = hosts.into_iter().take(REACHED_MAX).collect();
        let found: Vec<&String> = std::thread::scope(|scope| {
            let asked: Vec<_> =
                tried.iter().map(|host| beside(scope, move || answers(host).then_some(host))).collect();
            asked.into_iter().filter_map(|asked| asked.join().flatten()).collect()
        });
        match found.first() {
            Some(host) => format!(
                "\n{host} answers; what holds now: srun --jobid {} --overlap -N1 -n1 -w {host} scrfs-ctl status\n",
                job.id
            ),
            None if tried.is_empty() => String::new(),
            None => format!("\nnone of {} can be reached from here\n", tried.join(", ")),
        }
    }
}

/// A node that refuses lives too.
fn answers(host: &str) -> bool {
    let host = host.to_owned();
    let asked = bounded::within(2 * REACH, move || {
        let address = (host.as_str(), NODE_PORT).to_socket_addrs()?.next();
        let address = address.ok_or(std::io::ErrorKind::NotFound)?;
        match TcpStream::connect_timeout(&address, REACH) {
            Err(e) if e.kind() != std::io::ErrorKind::ConnectionRefused => Err(e),
            _ => Ok(()),
        }
    });
    asked.is_ok()
}

/// `14 s`, `3 min`, `2 h`, `5 days`.
pub(crate) fn age_for_people(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::living::tests::leave;

    fn left(age: u64, ended: bool) -> Left {
        let job = ScheduledJob {
            id: "77".into(),
            user: "ann".into(),
            state: "RUNNING".into(),
            nodes: "node[0-3]".into(),
            prefix: "/p".into(),
        };
        let (last, age) = ("/p/.scr/status".into(), Duration::from_secs(age));
        Left { last, written_us: 0, ended, age, job: Some(job) }
    }

    #[test]
    fn a_last_status_says_how_old_it_is() {
        let job = "the scheduler says of job 77 of ann: RUNNING on node[0-3]\n";
        assert_eq!(left(14, false).heading(), format!("{job}as of 14 s ago (/p/.scr/status):"));
        assert!(
            left(300, false).heading().contains("5 min ago")
                && left(300, false).heading().contains("they are gone")
        );
        assert!(left(300, true).heading().contains("coordinators ended 5 min ago"));
    }

    #[test]
    fn nodes_that_the_scheduler_has_given_up_are_named() {
        let status = crate::status::tests::node(Vec::new());
        let lost = |nodes: &str, state: &str| {
            let mut left = left(14, false);
            let job = left.job.as_mut().unwrap();
            (job.nodes, job.state) = (nodes.into(), state.into());
            left.lost_for_people(&status)
        };
        assert_eq!(lost("node[0-3]", "RUNNING"), None);
        assert_eq!(lost("node[0-1].cluster", "RUNNING"), None, "they are the same without their domain");
        assert_eq!(lost("node[1-3]", "RUNNING").unwrap(), "no longer among the job's nodes: node0");
        // It has none at all, or cannot be read.
        assert_eq!((lost("", "PENDING"), lost("node[", "RUNNING")), (None, None));
    }

    #[test]
    fn runs_with_a_name_stand_for_their_jobs_prefix() {
        let place = tempfile::tempdir().unwrap();
        let prefix = place.path().to_owned();
        let at = At { mount: None, job: None, prefix: Some(prefix.clone()) };
        let found = || -> Vec<PathBuf> {
            let of = |place| match place {
                Place::Left { prefix, .. } => prefix,
                Place::Mounted(_) => PathBuf::new(),
            };
            at.places().unwrap().into_iter().map(of).collect()
        };
        let one = || match at.place() {
            Ok(Place::Left { prefix, .. }) => prefix.display().to_string(),
            other => other.unwrap_err().hint,
        };
        let [left, right] = ["left", "right"].map(|name| prefix.join(name));
        assert_eq!((found(), one()), (vec![prefix.clone()], prefix.display().to_string()));
        // The job's own status is an old one.
        leave(&prefix, true, 9000);
        leave(&left, false, 3);
        assert_eq!((found(), one()), (vec![left.clone()], left.display().to_string()));
        leave(&right, false, 3);
        assert_eq!(found(), [left.clone(), right.clone()]);
        assert_eq!(one(), format!("name one: --prefix {}, --prefix {}", left.display(), right.display()));
        leave(&prefix, false, 3);
        assert_eq!((found(), one()), (vec![prefix.clone(), left, right], prefix.display().to_string()));
    }

    #[test]
    fn ages() {
        for (seconds, text) in
            [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (400_000, "4 days")]
        {
            assert_eq!(age_for_people(Duration::from_secs(seconds)), text);
        }
    }
}
