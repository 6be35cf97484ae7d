//! What a daemon takes to record a dataset of 10,000 nodes, of which it has next to nothing, and
//! how long programs wait meanwhile. The daemon and its mount are real; the lead is this program.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scrfs::control::client::{Link, find_control_directory};
use scrfs::control::{Command, Event, Role, Start};
use scrfs::dataset::{Catalog, Entry, EntryKind, FileCopy, Layout, MemberPlace, Protection, Scheme, Stamp};
use scrfs::ids::{DatasetId, Epoch, Member, NodeRank};
use scrfs::path::RelPath;
use scrfs_harness::settings;

use crate::backing::{Backing, Kind};
use crate::mount::{Mode, Mount};
use crate::table::{Bound, Measure, Row};

/// What `--only` takes for it.
pub(crate) const NAME: &str = "commit";

const NODES: u32 = 10_000;
/// Of each node.
const FILES: u32 = 32;
/// As many as a cache keeps by default, and the one that is new.
const DATASETS: u64 = 3;
const WAIT: Duration = Duration::from_mins(1);

pub(crate) fn rows() -> io::Result<Vec<Row>> {
    eprintln!("{NAME}");
    let backing = Backing::new(Kind::Tmpfs, 2048)?;
    let mount = Mount::new(&backing, Mode::Passthrough)?;
    let own = mount.directory("own")?;
    let mut link = attach(&mount, backing.path())?;
    let quiet = longest_of(&own, &AtomicBool::new(true))?;
    let (mut first, mut longest, mut seconds) = (0.0, Duration::ZERO, 0.0_f64);
    for id in 1..=DATASETS {
        let (catalog, before) = (Arc::new(catalog(id)?), mount.cpu_seconds()?);
        let is_over = AtomicBool::new(false);
        let waited = std::thread::scope(|scope| {
            let waits = scope.spawn(|| longest_of(&own, &is_over));
            let done = commit(&mut link, catalog);
            is_over.store(true, Ordering::Release);
            done.and(waits.join().unwrap_or_else(|_| Err(io::Error::other("the program died"))))
        })?;
        longest = longest.max(waited);
        seconds = seconds.max(mount.cpu_seconds()? - before);
        if id == 1 {
            first = mount.peak_mib()?;
        }
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let row = |measure, peer: String, scr: String, figure, bound| Row {
        measure,
        backing: Kind::Tmpfs,
        mode: Mode::Passthrough,
        peer,
        scr,
        figure,
        bound,
    };
    let at_most = |gate, goal| Some(Bound::AtMost { gate, goal });
    let (all, wait) = (mount.peak_mib()?, ms(longest));
    Ok(vec![
        row(Measure::CommitMemory(1), "-".into(), format!("{first:.0}"), first, at_most(150.0, 120.0)),
        row(Measure::CommitMemory(DATASETS), "-".into(), format!("{all:.0}"), all, None),
        row(Measure::CommitTime, "-".into(), format!("{seconds:.2} s"), seconds, None),
        row(
            Measure::CommitWait,
            format!("{:.1} ms", ms(quiet)),
            format!("{wait:.1} ms"),
            wait,
            at_most(20.0, 10.0),
        ),
    ])
}

fn attach(mount: &Mount, prefix: &Path) -> io::Result<Link> {
    let control = find_control_directory(mount.point()).map_err(io::Error::other)?;
    let settings = settings::of_little("root", prefix.join("prefix")).map_err(io::Error::other)?;
    let settings = Box::new(scrfs::control::Settings { job_id: Mode::Passthrough.name().into(), ..settings });
    let (hosts, epoch) = ((0..NODES).map(host).collect(), Epoch(1));
    let role = Role::Coordinator { epoch, rank: NodeRank(0), hosts, start: Start::Attach, settings };
    let mut link = Link::connect(&control, role, WAIT).map_err(io::Error::other)?;
    link.commands.send(&Command::Serve).map_err(io::Error::other)?;
    Ok(link)
}

/// Until the daemon has recorded COMPLETE.
fn commit(link: &mut Link, catalog: Arc<Catalog>) -> io::Result<()> {
    let id = catalog.id;
    link.commands.send(&Command::Commit(catalog)).map_err(io::Error::other)?;
    loop {
        match link.events.receive(Some(WAIT)).map_err(io::Error::other)? {
            Some(Event::Committed { id: of, result, .. }) if of == id => {
                return result.map_err(io::Error::other);
            }
            Some(_) => {}
            None => return Err(io::Error::other("the daemon does not answer")),
        }
    }
}

/// The longest that an operation of a program takes, at least a hundred times each, until
/// `is_over`.
fn longest_of(own: &Path, is_over: &AtomicBool) -> io::Result<Duration> {
    let (file, mut longest, mut rounds) = (own.join("file"), Duration::ZERO, 0);
    let mut timed = |operation: &dyn Fn() -> io::Result<()>| {
        let begun = Instant::now();
        let done = operation();
        longest = longest.max(begun.elapsed());
        done
    };
    while rounds < 100 || !is_over.load(Ordering::Acquire) {
        timed(&|| fs::write(&file, b"state"))?;
        timed(&|| fs::metadata(&file).map(drop))?;
        timed(&|| fs::read_dir(own)?.try_for_each(|name| name.map(drop)))?;
        timed(&|| fs::remove_file(&file))?;
        rounds += 1;
    }
    Ok(longest)
}

fn host(node: u32) -> String {
    format!("node{node:05}")
}

/// Of a program that writes into one directory.
fn catalog(id: u64) -> io::Result<Catalog> {
    let stamp = Stamp { secs: 1_700_000_000, nsecs: 123_456_789 };
    let entry =
        |path, kind| Entry { path, kind, mode: 0o644, uid: 1000, gid: 1000, atime: stamp, mtime: stamp };
    let mut entries = vec![Entry { mode: 0o755, ..entry(RelPath::root(), EntryKind::Directory) }];
    for (member, file) in (0..NODES).flat_map(|member| (0..FILES).map(move |file| (member, file))) {
        let path = RelPath::new(format!("rank.{member:05}.{file:03}.ckpt")).map_err(io::Error::other)?;
        let crc = member ^ file << 20;
        let copy = FileCopy { size: 1 << 30, crc, member: Member(member), program_rank: Some(member) };
        entries.push(entry(path, EntryKind::File(copy)));
    }
    let place =
        |node| MemberPlace { host: host(node), files: FILES.into(), bytes: 32 << 30, taken: Some(33 << 30) };
    let members: Vec<_> = (0..NODES).map(Member).collect();
    let layout = Layout {
        protection: Protection::by(Scheme::Xor),
        members: (0..NODES).map(place).collect(),
        sets: members.chunks(8).map(<[Member]>::to_vec).collect(),
        encoding: 0,
    };
    Ok(Catalog {
        id: DatasetId(id),
        epoch: Epoch(1),
        revision: 0,
        name: format!("ck.{id}").into_bytes(),
        created_us: 1,
        user: "root".to_owned(),
        job_id: Mode::Passthrough.name().to_owned(),
        layout,
        entries,
    })
}
