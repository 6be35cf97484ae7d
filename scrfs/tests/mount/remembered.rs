//! Names that the kernel remembers and another node changes: none is stale once the change has been
//! answered.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::AtFlags;
use scrfs::control::{Command, DirOp, Event};
use scrfs::ids::RequestId;
use scrfs::path::RelPath;

use super::lead::Lead;
use super::{Mounted, both_modes, in_namespace};

fn path(text: &str) -> RelPath {
    RelPath::new(text).unwrap()
}

fn remove(text: &str) -> DirOp {
    DirOp::Remove { path: path(text) }
}

fn rename(from: &str, to: &str, exchange: bool) -> DirOp {
    DirOp::Rename { from: path(from), to: path(to), no_replace: false, exchange }
}

fn make(text: &str) -> DirOp {
    DirOp::Make { path: path(text), mode: 0o755, uid: 0, gid: 0 }
}

/// The other node's operations, one round each.
struct Other {
    lead: Lead,
    round: u64,
}

impl Other {
    fn attach(m: &Mounted, epoch: u64) -> Self {
        let mut lead = Lead::attach(&m.control(), epoch);
        lead.inventory();
        lead.send(&Command::Serve);
        Self { lead, round: 0 }
    }

    fn prepare(&mut self, op: &DirOp) -> RequestId {
        self.round += 1;
        let request = RequestId { origin: 77, serial: self.lead.epoch.0 << 32 | self.round };
        self.lead.send(&Command::DirPrepare { round: self.round, ops: vec![(request, op.clone())] });
        self.answer(|event| match event {
            Event::DirPrepared { votes, .. } => Some(votes),
            _ => None,
        });
        request
    }

    /// When this returns, the other node's program may go on.
    fn does(&mut self, op: &DirOp) {
        let request = self.prepare(op);
        self.lead.send(&Command::DirApply { round: self.round, verdicts: vec![0] });
        self.applied();
        self.lead.finish(request, 0);
    }

    fn applied(&mut self) {
        self.answer(|event| match event {
            Event::DirApplied { results, .. } => Some(results),
            _ => None,
        });
    }

    fn answer(&mut self, pick: impl Fn(Event) -> Option<Vec<i32>>) {
        let results = loop {
            if let Some(results) = pick(self.lead.next()) {
                break results;
            }
        };
        assert_eq!(results, [0]);
    }
}

/// Programs that look at names all the time, so that answers are on their way whenever a name
/// changes.
struct Lookers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Lookers {
    fn start(top: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let look = |look: fn(&Path)| {
            let (stop, top) = (Arc::clone(&stop), top.to_owned());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    look(&top);
                }
            })
        };
        let stat: fn(&Path) = |top| {
            for name in ["a", "a/f", "b", "b/f"] {
                let _ = fs::metadata(top.join(name));
            }
        };
        let list: fn(&Path) = |top| {
            for entry in fs::read_dir(top).into_iter().flatten().flatten() {
                let _ = entry.metadata();
            }
        };
        Self { threads: vec![look(stat), look(list)], stop }
    }
}

impl Drop for Lookers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn gone(m: &Mounted, name: &str) {
    let error = fs::metadata(m.at(name)).expect_err(name);
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{name}");
}

fn number(m: &Mounted, name: &str) -> u64 {
    fs::metadata(m.at(name)).expect(name).ino()
}

/// Directories `a` and `b` of a dataset, with a file each.
fn dataset(m: &Mounted) {
    for dir in ["ck/a", "ck/b"] {
        fs::create_dir_all(m.at(dir)).unwrap();
        fs::write(m.at(dir).join("f"), dir).unwrap();
    }
}

#[test]
fn what_another_node_renames_and_removes() {
    both_modes(|m| {
        dataset(m);
        let mut other = Other::attach(m, 1);
        let lookers = Lookers::start(&m.at("ck"));
        let top = File::open(m.at("ck")).unwrap();
        for _ in 0..100 {
            let (a, b) = (number(m, "ck/a/f"), number(m, "ck/b/f"));
            other.does(&rename("ck/a", "ck/c", false));
            gone(m, "ck/a");
            gone(m, "ck/a/f");
            assert_eq!(
                rustix::fs::statat(&top, "a/f", AtFlags::empty()).unwrap_err(),
                rustix::io::Errno::NOENT
            );
            assert_eq!(number(m, "ck/c/f"), a);
            other.does(&rename("ck/c", "ck/a", false));
            gone(m, "ck/c");
            assert_eq!(number(m, "ck/a/f"), a);
            other.does(&rename("ck/a", "ck/b", true));
            assert_eq!((number(m, "ck/a/f"), number(m, "ck/b/f")), (b, a));
            // Removed with the files that only this node has, and made anew.
            other.does(&remove("ck/b"));
            gone(m, "ck/b");
            gone(m, "ck/b/f");
            other.does(&make("ck/b"));
            gone(m, "ck/b/f");
            fs::write(m.at("ck/b/f"), "anew").unwrap();
        }
        drop(lookers);
        // The dataset itself, and one of its name.
        for dir in ["ck/a", "ck/b", "ck"] {
            other.does(&remove(dir));
        }
        gone(m, "ck");
        assert_eq!(rustix::fs::statat(&top, "a/f", AtFlags::empty()).unwrap_err(), rustix::io::Errno::NOENT);
        other.does(&make("ck"));
        gone(m, "ck/a");
    });
}

#[test]
fn what_other_nodes_make_disturbs_nothing_that_is_known() {
    in_namespace(&[], |m| {
        dataset(m);
        let mut other = Other::attach(m, 1);
        let file = File::open(m.at("ck/a/f")).unwrap();
        let link = format!("/proc/thread-self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        for n in 0..20 {
            gone(m, &format!("d{n}"));
            other.does(&make(&format!("d{n}")));
            assert!(fs::metadata(m.at(&format!("d{n}"))).unwrap().is_dir());
            fs::metadata(m.at("ck/a/f")).unwrap();
            assert_eq!(fs::read_link(&link).unwrap(), m.at("ck/a/f"));
        }
    });
}

/// A worker dies with the round half done: its successor says that it is done, and no name is stale
/// then.
#[test]
fn a_death_between_a_change_and_its_answer() {
    in_namespace(&[], |m| {
        dataset(m);
        for turn in 0..20 {
            let mut other = Other::attach(m, 2 * turn + 1);
            let (from, to) = if turn % 2 == 0 { ("ck/b", "ck/c") } else { ("ck/c", "ck/b") };
            let kept = number(m, &format!("{from}/f"));
            let op = rename(from, to, false);
            let request = other.prepare(&op);
            let worker = m.pid("worker.lock");
            other.lead.send(&Command::DirApply { round: other.round, verdicts: vec![0] });
            // Somewhere before, in, or after it.
            std::thread::sleep(std::time::Duration::from_micros(turn * 40));
            kill(Pid::from_raw(worker), Signal::SIGKILL).unwrap();
            let mut lead = Lead::attach(&m.control(), 2 * turn + 2);
            lead.inventory();
            other = Other { lead, round: other.round + 1 };
            let replay = Command::DirReplay { round: other.round, ops: vec![(request, op)] };
            other.lead.send(&replay);
            other.applied();
            gone(m, from);
            gone(m, &format!("{from}/f"));
            assert_eq!(number(m, &format!("{to}/f")), kept);
        }
    });
}
