//! Two jobs use one prefix at once, with the same ids and names: what the newer epoch publishes is
//! its own, and stays.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::scavenge::{by_anyone, by_node, sized};
use super::{bytes, carry_out, catalog, content_is, flush, nothing_left_over, prefix, survey};
use crate::dataset::{Catalog, EntryKind};
use crate::ids::{DatasetId, Epoch};
use crate::prefix::directory::{PfsError, Prefix, Result};
use crate::prefix::scavenge::{By, Outcome, adopt};
use crate::prefix::{PfsOutcome, PfsTask};

const ID: u64 = 8;
const OLDER: u64 = 5;
const NEWER: u64 = 6;

/// A job's coordinators and daemons.
struct Job {
    prefix: Prefix,
    catalog: Catalog,
}

impl Job {
    fn new(root: &Path, epoch: u64, name: &str) -> Self {
        let catalog = Catalog { epoch: Epoch(epoch), ..catalog(ID, name.as_bytes()) };
        Self { prefix: prefix(root, epoch), catalog }
    }

    /// The older and the newer of one name.
    fn both(root: &Path) -> [Self; 2] {
        [OLDER, NEWER].map(|epoch| Self::new(root, epoch, "ck.8"))
    }

    fn begin(&self) -> Result<PathBuf> {
        match carry_out(&self.prefix, &PfsTask::BeginFlush(Arc::new(self.catalog.clone())))? {
            PfsOutcome::FlushBegun(_, directory) => Ok(String::from_utf8(directory).unwrap().into()),
            other => panic!("{other:?}"),
        }
    }

    /// What daemons do; the older job's files have the same sizes and other bytes.
    fn copy(&self, directory: &Path) {
        for entry in &self.catalog.entries {
            let EntryKind::File(file) = &entry.kind else { continue };
            let mut data = bytes(ID, file.member.0);
            if self.catalog.epoch == Epoch(OLDER) {
                data.make_ascii_uppercase();
            }
            // The directory may be gone: then their copy fails.
            let _ = fs::write(directory.join(entry.path.as_path()), data);
        }
    }

    fn publish(&self) -> Result<PfsOutcome> {
        carry_out(&self.prefix, &PfsTask::Publish(Arc::new(self.catalog.clone())))
    }

    fn flush(&self) -> Result<PfsOutcome> {
        self.copy(&self.begin()?);
        self.publish()
    }
}

/// The newer epoch has begun.
fn announce(newer: &Job) {
    crate::prefix::make(newer.prefix.root()).unwrap();
    fs::write(newer.prefix.state(format!("epoch.{NEWER}")), b"").unwrap();
}

#[track_caller]
fn is_refused<T: std::fmt::Debug>(result: Result<T>) {
    match result {
        Err(error @ PfsError::Newer { epoch: Epoch(OLDER), newer: Epoch(NEWER), .. }) => {
            let told = error.to_string();
            assert!(told.contains("of epoch 5") && told.ends_with("is there, of epoch 6"), "{told}");
        }
        other => panic!("{other:?}"),
    }
}

/// The next start sees the newer one, with its own bytes.
#[track_caller]
fn newer_is_there(newer: &Job) {
    let next = prefix(newer.prefix.root(), NEWER + 1);
    let found = survey(&next);
    assert_eq!(
        found.iter().map(|d| (d.epoch.0, d.id.0, d.usable, d.current)).collect::<Vec<_>>(),
        [(NEWER, ID, true, true)]
    );
    content_is(&next, &newer.catalog);
    let _ = fs::remove_file(next.state(format!("epoch.{NEWER}")));
    nothing_left_over(&next);
}

#[test]
fn older_daemons_that_copy_late_write_into_no_newer_directory() {
    for told in [true, false] {
        let root = tempfile::tempdir().unwrap();
        let [older, newer] = Job::both(root.path());
        let late = older.begin().unwrap();
        if told {
            announce(&newer);
        }
        let directory = newer.begin().unwrap();
        newer.copy(&directory);
        older.copy(&late);
        if told {
            assert!(matches!(older.publish(), Err(PfsError::Superseded(Epoch(NEWER), Epoch(OLDER)))));
        }
        newer.publish().unwrap();
        if !told {
            // Its file system has not shown it the newer epoch yet.
            is_refused(older.publish());
            is_refused(older.begin());
        }
        newer_is_there(&newer);
    }
}

/// What the older coordinators still try after the newer ones' rename is not taken for a swap that
/// a crash left half done.
#[test]
fn a_swap_that_is_finished_later_takes_nothing_of_an_older_epoch() {
    for steps in 0..=6 {
        let root = tempfile::tempdir().unwrap();
        let [older, newer] = Job::both(root.path());
        announce(&newer);
        newer.copy(&newer.begin().unwrap());
        newer.prefix.steps_left.set(steps);
        let published = newer.publish();
        assert_eq!(published.is_ok(), steps == 6, "{published:?}");
        older.flush().unwrap_err();
        // The copy has its records, or the next start would rightly take it for none.
        if steps > 0 {
            newer_is_there(&newer);
        }
    }
}

/// The older coordinators are killed at any step, and the newer ones publish before anybody cleans
/// up.
#[test]
fn a_half_done_swap_of_an_older_epoch_is_undone_where_a_newer_one_is() {
    for former in [false, true] {
        for steps in 0..8 {
            let root = tempfile::tempdir().unwrap();
            let [older, newer] = Job::both(root.path());
            if former {
                flush(&older.prefix, &Catalog { epoch: Epoch(4), ..catalog(3, b"ck.8") });
            }
            older.copy(&older.begin().unwrap());
            older.prefix.steps_left.set(steps);
            let _ = older.publish();
            newer.flush().unwrap();
            newer_is_there(&newer);
        }
    }
}

#[test]
fn leftovers_of_former_releases_are_settled_and_a_newer_epochs_stay() {
    for steps in 0..6 {
        let root = tempfile::tempdir().unwrap();
        let before = Job::new(root.path(), NEWER, "ck.8");
        let former = Catalog { epoch: Epoch(4), ..catalog(3, b"ck.8") };
        flush(&before.prefix, &former);
        before.copy(&before.begin().unwrap());
        before.prefix.steps_left.set(steps);
        let _ = before.publish();
        for word in ["flush", "old", "swap"] {
            let at = |name: &str| before.prefix.state(format!("{word}.{name}"));
            let _ = fs::rename(at("6.8"), at("8"));
        }
        let other = before.prefix.state("flush.9.8");
        fs::create_dir(&other).unwrap();
        assert!(before.prefix.is_flushing(DatasetId(ID)).unwrap());
        let next = prefix(root.path(), NEWER + 1);
        let found = survey(&next);
        let there = if found[0].epoch == Epoch(4) { &former } else { &before.catalog };
        assert_eq!((found.len(), found[0].usable, found[0].id), (1, true, there.id), "{steps}");
        content_is(&next, there);
        fs::remove_dir(other).expect("it is not this epoch's to remove");
        nothing_left_over(&next);
    }
}

#[test]
fn a_name_is_what_is_refused_and_one_that_has_failed_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    let [older, newer] = Job::both(root.path());
    newer.flush().unwrap();
    // Of the same id and another name: neither is in the other's place.
    Job::new(root.path(), OLDER, "other").flush().unwrap();
    let found = survey(&newer.prefix);
    assert_eq!(found.iter().map(|d| (d.epoch.0, d.id.0)).collect::<Vec<_>>(), [(NEWER, ID), (OLDER, ID)]);
    assert!(found[0].current && found[1].usable);
    // Of the same name and another id.
    let another = Job { catalog: Catalog { id: DatasetId(9), ..older.catalog.clone() }, ..older };
    is_refused(another.begin());
    carry_out(&newer.prefix, &PfsTask::MarkFailed(found[0].clone())).unwrap();
    let [older, _] = Job::both(root.path());
    older.flush().unwrap();
    // Who goes by a former survey marks nothing that has taken its place.
    assert!(carry_out(&newer.prefix, &PfsTask::MarkFailed(found[0].clone())).is_err());
    let found = survey(&newer.prefix);
    assert!(found.iter().all(|dataset| dataset.usable && dataset.epoch == Epoch(OLDER)), "{found:?}");
}

/// A dataset of the older job that its nodes have saved.
#[test]
fn an_older_jobs_scavenge_takes_nothing_from_a_newer_one() {
    for told in [true, false] {
        let root = tempfile::tempdir().unwrap();
        let [older, newer] = Job::both(root.path());
        let saved = sized(ID, "ck.8", 50_000);
        saved.save_all_but(&older.prefix, &[]);
        if told {
            announce(&newer);
        }
        newer.flush().unwrap();
        let adoption = adopt(&older.prefix, saved.age(), By::Node).unwrap();
        let outcome = Outcome::Superseded { epoch: Epoch(OLDER), newer: Epoch(NEWER) };
        assert_eq!(adoption.outcome, outcome);
        let told = adoption.to_string();
        assert!(told.contains("a newer one is on the PFS, of epoch 6; this is of epoch 5"), "{told}");
        assert!(!saved.place(&older.prefix).exists());
        newer_is_there(&newer);
    }
}

/// It is there while the newer job flushes: published, and replaced then.
#[test]
fn a_scavenge_in_a_newer_flush_leaves_its_copy() {
    let root = tempfile::tempdir().unwrap();
    let [older, newer] = Job::both(root.path());
    let saved = sized(ID, "ck.8", 50_000);
    saved.save_all_but(&older.prefix, &[]);
    newer.copy(&newer.begin().unwrap());
    // A person's, of the newest epoch; or a node's.
    assert_eq!(by_anyone(&newer.prefix, &saved), Outcome::Published(Vec::new()));
    assert_eq!(by_node(&older.prefix, &saved), Outcome::Stored);
    newer.publish().unwrap();
    newer_is_there(&newer);
}

/// Its copy is gone: neither nothing nor what the other job has published counts as its own.
#[test]
fn a_copy_that_is_gone_is_not_published() {
    for other in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let [older, newer] = Job::both(root.path());
        if other {
            older.flush().unwrap();
        }
        fs::remove_dir_all(newer.begin().unwrap()).unwrap();
        let told = newer.publish().unwrap_err().to_string();
        assert!(told.contains("flush.6.8"), "{told}");
        assert_eq!(survey(&newer.prefix).len(), usize::from(other));
        newer.flush().unwrap();
        newer.publish().expect("again, as it is there");
        newer_is_there(&newer);
    }
}

/// The directory of the newer one is away, its entry is not: nothing takes its place in the index.
#[test]
fn what_cannot_take_a_name_waits() {
    let root = tempfile::tempdir().unwrap();
    let [older, newer] = Job::both(root.path());
    newer.flush().unwrap();
    let (place, aside) = (root.path().join("ck.8"), root.path().join("aside"));
    fs::rename(&place, &aside).unwrap();
    let saved = sized(ID, "ck.8", 50_000);
    saved.save_all_but(&older.prefix, &[]);
    let Outcome::Waits { reason, .. } = by_node(&older.prefix, &saved) else { panic!() };
    assert!(
        reason.contains("of epoch 5 is not put there: a newer dataset of this name is there, of epoch 6"),
        "{reason}"
    );
    assert!(!place.exists());
    fs::rename(&aside, &place).unwrap();
    newer_is_there(&newer);
}

/// Generations of one name, of one epoch: what an interrupted swap left behind is older by now.
#[test]
fn an_interrupted_swap_takes_no_newer_generations_place() {
    let root = tempfile::tempdir().unwrap();
    let of = |id: u64| {
        let catalog = Catalog { epoch: Epoch(NEWER), ..catalog(id, b"ck") };
        (prefix(root.path(), NEWER), catalog)
    };
    let ((first, older), (second, newer)) = (of(3), of(5));
    flush(&first, &older);
    let begun = PfsTask::BeginFlush(Arc::new(older.clone()));
    let PfsOutcome::FlushBegun(_, directory) = carry_out(&first, &begun).unwrap() else { panic!() };
    // Announced, and whole.
    std::os::unix::fs::symlink("ck", first.state(format!("swap.{NEWER}.3"))).unwrap();
    flush(&second, &newer);
    let directory = PathBuf::from(String::from_utf8(directory).unwrap());
    for entry in &older.entries {
        if let EntryKind::File(file) = &entry.kind {
            fs::write(directory.join(entry.path.as_path()), bytes(3, file.member.0)).unwrap();
        }
    }
    let refused = carry_out(&first, &PfsTask::Publish(Arc::new(older)));
    assert!(matches!(refused, Err(PfsError::Newer { id: DatasetId(3), .. })), "{refused:?}");
    let next = prefix(root.path(), NEWER + 1);
    assert_eq!(survey(&next).iter().map(|found| found.id.0).collect::<Vec<_>>(), [5]);
    content_is(&next, &newer);
    nothing_left_over(&next);
}

#[test]
fn the_highest_epoch_is_known_without_the_records_of_the_prefix() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(crate::prefix::highest_epoch(root.path()).unwrap(), Epoch(0));
    Job::new(root.path(), NEWER, "ck.8").flush().unwrap();
    assert_eq!(crate::prefix::highest_epoch(root.path()).unwrap(), Epoch(NEWER));
    fs::remove_dir_all(root.path().join(".scr")).unwrap();
    assert_eq!(crate::prefix::highest_epoch(root.path()).unwrap(), Epoch(NEWER));
}
