//! Two that publish the same dataset at once.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::scavenge::{Saved, by_anyone, dataset, node, sized};
use super::{PfsOutcome, PfsTask, carry_out, catalog, flush, prefix};
use crate::prefix::directory::PfsError;
use crate::prefix::scavenge::{Adoption, By, Outcome, Progress, adopt, adopt_all};

/// Steps of the one that is first: from the records in `dataset/` to the index entry, and after.
const POINTS: [&str; 9] = [
    "flush.summary",
    "scavenge.whole",
    "scavenge.swap",
    "flush.swapping",
    "flush.swapped",
    "flush.index",
    "flush.current",
    "flush.cleanup",
    "scavenge.published",
];

/// When the second one has looked at so many files, it waits for the first.
const LOOKED: [u32; 3] = [0, 1, 12];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Second {
    Person,
    Start,
    /// Of newer coordinators, which take over every lock.
    NewStart,
}

/// The first one begins when the second has looked, and stops at its step.
struct Gates {
    begin: Sender<()>,
    here: Receiver<()>,
    on: Sender<()>,
    looked: Receiver<()>,
    look_on: Sender<()>,
}

/// The second one, once it has looked at so many files.
fn second(
    root: &Path,
    saved: &Saved,
    which: Second,
    patience: Duration,
    looks: u32,
    (looked, on): (Sender<()>, Receiver<()>),
) -> Result<Adoption, PfsError> {
    let mut prefix = node(root, if which == Second::NewStart { 6 } else { 5 }, "second");
    prefix.patience = patience;
    let (left, said) = (Cell::new(looks), Cell::new(String::new()));
    let wait = || {
        let _ = looked.send(()).map(|()| on.recv());
    };
    let tell = |progress: Progress<'_>| match progress {
        Progress::Goes if left.get() == 1 => {
            left.set(0);
            wait();
        }
        Progress::Goes => left.set(left.get().saturating_sub(1)),
        Progress::Said(text) => said.set(said.take() + text),
    };
    if looks == 0 {
        wait();
    }
    let adoption = match which {
        Second::Person => adopt(&prefix, saved.age(), By::Person(&tell)),
        Second::Start | Second::NewStart => adopt_all(&prefix, &tell).map(|mut found| {
            found.pop().unwrap_or_else(|| Adoption {
                age: saved.age(),
                name: Vec::new(),
                outcome: Outcome::Stored,
                note: None,
            })
        }),
    };
    assert_eq!(said.take(), "", "nothing is bad");
    adoption
}

/// Both at once; `between` has the two stopped, and lets them go on.
fn race(
    point: &'static str,
    which: Second,
    looks: u32,
    patience: Duration,
    between: impl FnOnce(Gates) + Send,
    second_ends: bool,
) -> (Result<Adoption, PfsError>, Adoption) {
    let root = tempfile::tempdir().unwrap();
    let saved = sized(2, "ck", 50_000);
    let own = prefix(root.path(), 5);
    flush(&own, &catalog(1, b"ck"));
    saved.save_all_but(&own, &[]);
    let (say, here) = bounded(1);
    let (on, go) = bounded(1);
    let (begin, begun) = bounded::<()>(1);
    let (say_look, looked) = bounded(1);
    let (look_on, look_go) = bounded(1);
    let (first, other) = std::thread::scope(|scope| {
        let (root, saved) = (root.path(), &saved);
        let first = scope.spawn(move || {
            begun.recv().unwrap();
            let mut prefix = node(root, 5, "first");
            prefix.patience = Duration::from_mins(1);
            prefix.stop = Some((point, say, go));
            adopt(&prefix, saved.age(), By::Person(&|_| {}))
        });
        let keep = on.clone();
        let other = scope.spawn(move || second(root, saved, which, patience, looks, (say_look, look_go)));
        between(Gates { begin, here, on, looked, look_on });
        let other = if second_ends {
            // The first one is as good as dead until then.
            let other = other.join().unwrap();
            let _ = keep.send(());
            other
        } else {
            other.join().unwrap()
        };
        (first.join().unwrap(), other)
    });
    let other = other.unwrap_or_else(|error| panic!("{point} {which:?} {looks}: {error}"));
    assert!(
        matches!(&other.outcome, Outcome::Stored | Outcome::Published(_)),
        "{point} {which:?} {looks}: {other}"
    );
    saved.is_published(&own);
    (first, other)
}

#[test]
fn a_second_one_finds_it_published_whenever_it_looks() {
    for point in POINTS {
        for which in [Second::Person, Second::Start] {
            for looks in LOOKED {
                let go = |gates: Gates| {
                    gates.looked.recv().unwrap();
                    gates.begin.send(()).unwrap();
                    gates.here.recv().unwrap();
                    gates.look_on.send(()).unwrap();
                    gates.on.send(()).unwrap();
                };
                let (first, _) = race(point, which, looks, Duration::from_mins(1), go, false);
                let first = first.unwrap_or_else(|error| panic!("{point} {which:?} {looks}: {error}"));
                assert!(
                    matches!(&first.outcome, Outcome::Stored | Outcome::Published(_)),
                    "{point} {which:?} {looks}: {first}"
                );
            }
        }
    }
}

#[test]
fn one_that_is_stopped_holds_up_nobody_and_takes_nothing_away_later() {
    for point in POINTS {
        for which in [Second::Person, Second::Start, Second::NewStart] {
            for looks in LOOKED {
                let go = |gates: Gates| {
                    gates.looked.recv().unwrap();
                    gates.begin.send(()).unwrap();
                    gates.here.recv().unwrap();
                    gates.look_on.send(()).unwrap();
                };
                let (first, _) = race(point, which, looks, Duration::from_millis(20), go, true);
                match first {
                    Ok(Adoption { outcome: Outcome::Stored | Outcome::Published(_), .. }) => {}
                    other => panic!("{point} {which:?} {looks}: {other:?}"),
                }
            }
        }
    }
}

/// The one that had the lock before has given it its other name after all was undone.
#[test]
fn what_has_gone_astray_is_taken_back() {
    for by_start in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let (own, saved) = (prefix(root.path(), 5), dataset(2, "ck"));
        saved.save_all_but(&own, &[]);
        // So that its records are there.
        fs::create_dir(root.path().join("ck")).unwrap();
        assert!(matches!(by_anyone(&own, &saved), Outcome::Waits { .. }));
        fs::remove_dir(root.path().join("ck")).unwrap();
        fs::rename(saved.place(&own).join("dataset"), own.state("flush.5.2")).unwrap();
        if by_start {
            let next = prefix(root.path(), 6);
            match carry_out(&next, &PfsTask::Survey).unwrap() {
                PfsOutcome::Surveyed(contents) => {
                    assert!(contents.hindered.is_empty() && contents.partial.is_empty(), "{contents:?}");
                }
                other => panic!("{other:?}"),
            }
        } else {
            assert_eq!(by_anyone(&own, &saved), Outcome::Published(Vec::new()));
        }
        saved.is_published(&own);
    }
}

/// Of a copy that is not whole nothing is taken back.
#[test]
fn a_copy_without_its_summary_is_none() {
    let root = tempfile::tempdir().unwrap();
    let (own, saved) = (prefix(root.path(), 5), dataset(2, "ck"));
    saved.save_all_but(&own, &[]);
    fs::remove_dir_all(saved.place(&own).join("dataset")).unwrap();
    fs::create_dir(own.state("flush.5.2")).unwrap();
    assert!(matches!(by_anyone(&own, &saved), Outcome::Waits { .. }));
    assert!(!saved.place(&own).join("dataset").exists());
    symlink("ck", own.state("swap.5.2")).unwrap();
    assert!(matches!(by_anyone(&own, &saved), Outcome::Waits { .. }));
}
