//! `scrfs-ctl jobs`: the jobs whose mounts this node has, and this user's jobs by the scheduler; for
//! root all users' jobs that have left a status in their prefix.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use comfy_table::{Table, presets};
use scrfs::beside::beside;
use scrfs::bounded;
use scrfs::control::client::scrfs_mounts;
use scrfs::status::last;
use scrfs::status::{DatasetStatus, NodeStatus};
use scrfs::store::private;
use scrfs_tools::node::Node;
use scrfs_tools::scheduler::{self, ScheduledJob, Whose};
use scrfs_tools::{Failure, Outcome, output};
use serde::Serialize;

use crate::place::{Place, age_for_people};

/// Where control directories are, beside those that mounts name: `<base>/<user>/scr.<job>`.
const BASES: [&str; 2] = ["/run/scrfs", "/dev/shm"];
/// Directories looked at in each.
const ENTRIES_MAX: usize = 1000;
/// A daemon that does not answer is shown as one that does not.
const LIMIT: Duration = Duration::from_secs(2);
/// So is a job's directory.
const PREFIX_LIMIT: Duration = Duration::from_secs(5);
/// Directories that are asked together.
const AT_ONCE: usize = 64;

/// A job in the table.
#[derive(Debug, Serialize)]
struct Row {
    job: String,
    user: String,
    /// Its mount on this node; `None`: it is known by the scheduler.
    mount: Option<String>,
    /// How it is.
    state: String,
    /// The newest dataset that the loss of any one node leaves whole.
    newest_protected: Option<String>,
    /// What a restart presents.
    current: Option<String>,
}

pub(crate) fn jobs(json: bool) -> Outcome {
    let mut rows: Vec<Row> = here().into_iter().map(|(mount, control)| mounted(&mount, &control)).collect();
    // Without a scheduler there are those of this node. One that fails is told of at the end, and
    // where there is nothing else to tell, that is a failure.
    let is_root = rustix::process::getuid().is_root();
    let asked = scheduler::jobs(if is_root { Whose::All } else { Whose::Mine });
    if let Ok(jobs) = &asked {
        let known: BTreeSet<String> = rows.iter().map(|row| row.job.clone()).collect();
        let others: Vec<_> = jobs.iter().filter(|job| !known.contains(&job.id)).cloned().collect();
        rows.extend(all_scheduled(&others, is_root));
    }
    if json {
        let text = serde_json::to_string_pretty(&rows).map_err(|e| Failure::system("JSON", &e.into()))?;
        output::data(&format!("{text}\n"))?;
    } else if !rows.is_empty() {
        output::data(&table(&rows))?;
    }
    match asked {
        Err(failure) if rows.is_empty() => return Err(failure),
        Err(failure) => output::talk(&format!("scrfs-ctl: {}\nhint: {}", failure.message, failure.hint)),
        Ok(_) if rows.is_empty() && !json => {
            let whose = if is_root { "none with a status in its directory" } else { "none of yours" };
            output::talk(&format!("no scrfs job is mounted here, and the scheduler knows {whose}"));
        }
        Ok(_) => {}
    }
    Ok(())
}

/// Mount points and control directories: of this mount namespace, then of others where their
/// sockets can be seen. Each directory once, by the uppermost mount that names it.
fn here() -> Vec<(PathBuf, PathBuf)> {
    listed(&fs::read("/proc/self/mountinfo").unwrap_or_default(), &BASES.map(Path::new))
}

fn listed(table: &[u8], bases: &[&Path]) -> Vec<(PathBuf, PathBuf)> {
    let mut known = BTreeSet::new();
    let mut found: Vec<_> = scrfs_mounts(table).into_iter().rev().collect();
    found.retain(|(_, control)| known.insert(control.clone()));
    found.reverse();
    let others = bases.iter().flat_map(|base| control_directories(base));
    found.extend(
        others.filter(|control| known.insert(control.clone())).map(|control| (PathBuf::new(), control)),
    );
    found
}

/// Those of root and of this user that have a socket: in a base where everybody may write,
/// another's may lie, or what another user has mounted, which is not asked.
fn control_directories(base: &Path) -> Vec<PathBuf> {
    let trusted = |path: &PathBuf| private::is_roots_or_ours(path);
    let list = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().take(ENTRIES_MAX);
        entries.flatten().map(|entry| entry.path()).filter(trusted).collect::<Vec<_>>()
    };
    let is_control = |path: &PathBuf| {
        let named = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("scr."));
        let socket = path.join(scrfs::control::stream::SOCKET_NAME);
        named && fs::symlink_metadata(socket).is_ok_and(|meta| meta.file_type().is_socket())
    };
    list(base).iter().flat_map(|user| list(user)).filter(is_control).collect()
}

fn mounted(mount: &Path, control: &Path) -> Row {
    let told = Node::of(mount.to_owned(), control.to_owned()).within(LIMIT).status();
    // `<base>/<user>/scr.<job>`, when it does not tell itself.
    let name = |path: Option<&Path>| {
        path.and_then(Path::file_name).map(OsStr::to_string_lossy).unwrap_or_default().into_owned()
    };
    let (user, job) = match &told {
        Ok(status) => status.job.split_once(' ').unwrap_or(("", &status.job)),
        Err(_) => ("", ""),
    };
    let by_name = name(Some(control));
    let row = Row {
        job: if job.is_empty() { by_name.trim_start_matches("scr.").to_owned() } else { job.to_owned() },
        user: if user.is_empty() { name(control.parent()) } else { user.to_owned() },
        mount: Some(mount.display().to_string()),
        state: String::new(),
        newest_protected: None,
        current: None,
    };
    match told {
        Ok(status) => {
            Row { mount: Some(status.mount_point.clone()), state: served(&status), ..row }.with(&status)
        }
        Err(failure) => Row { state: format!("no answer: {}", failure.message), ..row },
    }
}

/// Each in a thread of its own: the directory of one may hang. Most of all users' jobs have nothing
/// to do with scrfs: of those, with `used`, nothing is told.
fn all_scheduled(jobs: &[ScheduledJob], used: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for some in jobs.chunks(AT_ONCE) {
        let ask = |asked: ScheduledJob| {
            bounded::within(PREFIX_LIMIT, move || {
                let is_told = !used || last::has_state(&asked.prefix).unwrap_or(false);
                Ok(if is_told { scheduled(&asked) } else { Vec::new() })
            })
        };
        std::thread::scope(|scope| {
            let begin = |job: &ScheduledJob| {
                let job = job.clone();
                beside(scope, move || ask(job))
            };
            let asked: Vec<_> = some.iter().map(|job| (job, begin(job))).collect();
            for (job, asked) in asked {
                let silent = || format!("{}, {} does not answer", job.state, job.prefix.display());
                rows.extend(match asked.join() {
                    Some(Ok(rows)) => rows,
                    _ => vec![Row { state: silent(), ..bare(job) }],
                });
            }
        });
    }
    rows
}

/// As the scheduler knows it.
fn bare(job: &ScheduledJob) -> Row {
    Row {
        job: job.id.clone(),
        user: job.user.clone(),
        mount: None,
        state: job.state.clone(),
        newest_protected: None,
        current: None,
    }
}

/// A job elsewhere: what its coordinators have left in its prefix, if they have; a row for each run
/// with a name.
fn scheduled(job: &ScheduledJob) -> Vec<Row> {
    let (runs, _) = Place::Left { prefix: job.prefix.clone(), job: Some(job.clone()) }.runs();
    runs.iter().map(|place| of_run(job, place)).collect()
}

fn of_run(job: &ScheduledJob, place: &Place) -> Row {
    let row = bare(job);
    let Ok(seen) = place.look() else {
        return Row { state: format!("{}, no scrfs status in {}", job.state, job.prefix.display()), ..row };
    };
    let of_this = seen.status.job.split_once(' ').is_some_and(|(_, id)| id == job.id);
    if !of_this {
        return Row { state: format!("{}, the status there is of a former job", job.state), ..row };
    }
    let age = seen.left.as_ref().map(|left| age_for_people(left.age)).unwrap_or_default();
    let lost = seen.left.as_ref().and_then(|left| left.lost_for_people(&seen.status));
    let lost = lost.map(|lost| format!("; {lost}")).unwrap_or_default();
    let name = place.name_in(&job.prefix).map(|name| format!("{name}: ")).unwrap_or_default();
    Row { state: format!("{name}{}, as of {age} ago{lost}", job.state), ..row }.with(&seen.status)
}

impl Row {
    fn with(self, status: &NodeStatus) -> Self {
        let name = |d: &DatasetStatus| d.name.clone();
        let newest_protected = status.datasets.iter().find(|d| is_protected(d)).map(name);
        let current = status.datasets.iter().find(|d| d.current).map(name);
        Self { newest_protected, current, ..self }
    }
}

fn is_protected(d: &DatasetStatus) -> bool {
    d.is_complete() && (d.flushed || d.survives.iter().all(|(_, kept)| *kept))
}

fn served(status: &NodeStatus) -> String {
    match (&status.coordinator, status.was_attached) {
        (Some(c), _) => format!("coordinators on {} nodes", c.hosts.len()),
        (None, _) if status.awaited => "coordinator awaited".to_owned(),
        (None, true) => "no coordinator now".to_owned(),
        (None, false) => "no coordinator yet".to_owned(),
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["job", "user", "mount", "state", "newest protected", "current"]);
    for row in rows {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let (mount, newest, current) =
            (or_none(&row.mount), or_none(&row.newest_protected), or_none(&row.current));
        let cells = [&row.job, &row.user, &mount, &row.state, &newest, &current].map(output::escaped);
        table.add_row(cells);
    }
    let lines =
        table.lines().map(|line| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned() + "\n");
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::{dataset, node};

    #[test]
    fn newest_protected_and_current_are_told_apart() {
        let mut sealed = dataset(3, "c", "sealed", &["a", "b"]);
        sealed.survives = vec![("a".to_owned(), false), ("b".to_owned(), true)];
        sealed.current = true;
        let status =
            node(vec![dataset(0, "d", "open", &[]), sealed, dataset(2, "b", "protected", &["a", "b"])]);
        let row = Row {
            job: "77".to_owned(),
            user: "ann".to_owned(),
            mount: Some("/scr".to_owned()),
            state: served(&status),
            newest_protected: None,
            current: None,
        };
        let text = table(&[row.with(&status)]);
        let expected = "\
job  user  mount  state                    newest protected  current
77   ann   /scr   coordinators on 2 nodes  b                 c
";
        assert_eq!(text, expected, "\n{text}");
        // Escaped once.
        let row = Row {
            job: "77".to_owned(),
            user: "ann".to_owned(),
            mount: None,
            state: "RUNNING".to_owned(),
            newest_protected: Some("a\nb".to_owned()),
            current: None,
        };
        assert!(table(&[row]).contains("RUNNING  a\\nb"));
    }

    #[test]
    fn a_control_directory_is_listed_once_and_a_strangers_mount_names_none() {
        let line = |point: &str, control: &str, owner: u32| {
            format!("36 35 0:9 / {point} rw - fuse.scrfs scrfs@{control} rw,user_id={owner}\n")
        };
        let table = line("/scr", "/run/scrfs/ann/scr.7", 0)
            + &line("/e", "/run/scrfs/ann/scr.7", 54_321)
            + &line("/e2", "/e3/none", 54_321)
            + &line("/copy", "/run/scrfs/ann/scr.7", 0)
            + &line("/mine", "/c", rustix::process::geteuid().as_raw());
        let pair = |point: &str, control: &str| (PathBuf::from(point), PathBuf::from(control));
        assert_eq!(
            listed(table.as_bytes(), &[]),
            [pair("/copy", "/run/scrfs/ann/scr.7"), pair("/mine", "/c")]
        );
    }

    #[test]
    fn a_daemon_that_is_away_is_told_by_its_directory() {
        let base = tempfile::tempdir().unwrap();
        let control = base.path().join("ann/scr.9");
        fs::create_dir_all(&control).unwrap();
        assert_eq!(control_directories(base.path()), Vec::<PathBuf>::new());
        let socket = control.join(scrfs::control::stream::SOCKET_NAME);
        drop(std::os::unix::net::UnixListener::bind(socket).unwrap());
        assert_eq!(control_directories(base.path()), std::slice::from_ref(&control));
        let row = mounted(Path::new(""), &control);
        assert_eq!((&*row.job, &*row.user), ("9", "ann"));
        assert!(row.state.starts_with("no answer"), "{}", row.state);
    }
}
