//! A swap that cannot be finished, or begun, costs nothing of what nodes have saved, whose caches
//! are gone.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use crossbeam_channel::bounded;

use super::scavenge::{by_anyone, dataset};
use super::{begin_and_copy, carry_out, catalog, content_is, flush, nothing_left_over, prefix, survey};
use crate::dataset::Catalog;
use crate::ids::{DatasetId, Epoch};
use crate::prefix::directory::Prefix;
use crate::prefix::scavenge::{Begun, Collection, Outcome};
use crate::prefix::{Known, PfsOutcome, PfsTask};

fn is_there(prefix: &Prefix) {
    let found = survey(prefix);
    assert_eq!(found.iter().map(|d| (d.id, d.usable)).collect::<Vec<_>>(), [(DatasetId(2), true)]);
}

#[test]
fn what_was_saved_stays_until_its_name_is_free() {
    let root = tempfile::tempdir().unwrap();
    let own = prefix(root.path(), 5);
    let saved = dataset(2, "ck");
    saved.save_all_but(&own, &[]);
    fs::create_dir(root.path().join("ck")).unwrap();
    fs::write(root.path().join("ck/precious"), b"data").unwrap();
    for _ in 0..2 {
        assert!(matches!(by_anyone(&own, &saved), Outcome::Waits { .. }));
        assert!(survey(&own).is_empty());
    }
    fs::rename(root.path().join("ck"), root.path().join("precious")).unwrap();
    assert_eq!(by_anyone(&own, &saved), Outcome::Published(Vec::new()));
    is_there(&own);
    assert_eq!(fs::read(root.path().join("precious/precious")).unwrap(), b"data");
}

/// A node dies between the two renames of its swap; before the next look another node begins to
/// save its part again.
#[test]
fn a_late_node_costs_nothing_of_it() {
    let root = tempfile::tempdir().unwrap();
    let own = prefix(root.path(), 5);
    let saved = dataset(2, "ck");
    saved.save_all_but(&own, &[]);
    fs::create_dir(root.path().join("ck")).unwrap();
    let (at, arrival) = (saved.place(&own).join("dataset"), own.state("flush.5.2"));
    assert!(matches!(by_anyone(&own, &saved), Outcome::Waits { .. }));
    assert!(at.join(".scr/summary.scr").exists() && !arrival.exists());
    fs::rename(&at, &arrival).unwrap();
    std::os::unix::fs::symlink("ck", own.state("swap.5.2")).unwrap();
    let Begun::Collect(_) = Collection::begin(&own, &Known::by_age(saved.age())).unwrap() else { panic!() };
    assert!(survey(&own).is_empty());
    assert!(at.join(".scr/summary.scr").exists() && !arrival.exists());
    fs::remove_dir(root.path().join("ck")).unwrap();
    assert_eq!(by_anyone(&own, &saved), Outcome::Published(Vec::new()));
    is_there(&own);
}

/// Coordinators of epoch 5 died in a rename that the PFS carries out when those of epoch 6 have
/// finished their swap, or published another dataset.
#[test]
fn a_rename_that_comes_late_hides_no_published_dataset() {
    let root = tempfile::tempdir().unwrap();
    let (former, own) = (prefix(root.path(), 5), prefix(root.path(), 6));
    flush(&former, &catalog(1, b"ck"));
    let newer = Catalog { epoch: Epoch(6), ..catalog(2, b"ck") };
    flush(&own, &newer);
    let (place, old) = (root.path().join("ck"), own.state("old.5.2"));
    for index in ["as it is", "damaged", "missing"] {
        fs::rename(&place, &old).unwrap();
        match index {
            "damaged" => fs::write(own.state("index.scr"), b"no index").unwrap(),
            "missing" => fs::remove_file(own.state("index.scr")).unwrap(),
            _ => {}
        }
        assert!(survey(&own)[0].usable, "{index}");
        content_is(&own, &newer);
        assert!(!old.exists(), "{index}");
    }
    // One that the index does not list any more is of no use, whether its name is taken or free.
    let aside = root.path().join("aside");
    fs::rename(&place, &aside).unwrap();
    let newest = Catalog { epoch: Epoch(6), ..catalog(3, b"ck") };
    flush(&own, &newest);
    for name_is_free in [false, true] {
        Command::new("cp").arg("-r").args([&aside, &old]).status().unwrap();
        if name_is_free {
            fs::remove_dir_all(&place).unwrap();
        }
        survey(&own);
        assert!(!old.exists() && place.exists() != name_is_free);
    }
}

/// The same between the index entry and the end of the swap.
#[test]
fn a_rename_that_comes_late_in_a_swap_hides_nothing_either() {
    let root = tempfile::tempdir().unwrap();
    let own = prefix(root.path(), 6);
    flush(&prefix(root.path(), 5), &catalog(1, b"ck"));
    let newer = Catalog { epoch: Epoch(6), ..catalog(2, b"ck") };
    begin_and_copy(&own, &newer);
    let mut late = prefix(root.path(), 6);
    let ((here, waits), (go, on)) = (bounded(1), bounded(1));
    late.stop = Some(("flush.cleanup", here, on));
    let task = PfsTask::Publish(Arc::new(newer.clone()));
    let published = std::thread::spawn(move || carry_out(&late, &task).unwrap());
    waits.recv().unwrap();
    fs::remove_dir_all(own.state("old.6.2")).unwrap();
    fs::rename(root.path().join("ck"), own.state("old.6.2")).unwrap();
    go.send(()).unwrap();
    published.join().unwrap();
    content_is(&own, &newer);
    nothing_left_over(&own);
}

/// A prefix that two jobs have used may have two datasets of one age.
#[test]
fn another_jobs_dataset_of_the_same_age_is_not_taken_for_it() {
    let root = tempfile::tempdir().unwrap();
    let own = prefix(root.path(), 5);
    let saved = dataset(2, "ck");
    flush(&own, &catalog(2, b"other"));
    saved.save_all_but(&own, &[]);
    assert_eq!(by_anyone(&own, &saved), Outcome::Published(Vec::new()));
    let names: Vec<_> = survey(&own).into_iter().map(|stored| stored.name).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    saved.is_published(&own);
}

/// A restart that finds nothing else waits for the PFS then.
#[test]
fn what_only_the_pfs_keeps_from_being_published_is_told_apart() {
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 5);
    let (half, whole) = (dataset(2, "half"), dataset(3, "ck"));
    half.save_all_but(&prefix, &[2, 0]);
    whole.save_all_but(&prefix, &[]);
    let unpublished = || match carry_out(&prefix, &PfsTask::Survey).unwrap() {
        PfsOutcome::Surveyed(contents) => (contents.partial, contents.hindered),
        other => panic!("{other:?}"),
    };
    // Nobody can write the index.
    let lock = prefix.state("index.lock");
    fs::create_dir(&lock).unwrap();
    assert_eq!(unpublished(), (vec![half.age()], vec![whole.age()]));
    fs::remove_dir(lock).unwrap();
    assert_eq!(unpublished(), (Vec::new(), Vec::new()));
    whole.is_published(&prefix);
}

/// A program removed a dataset while it was copied, or its flush was given up: on a full PFS what
/// was copied of it may be the room that the next one needs.
#[test]
fn a_flush_takes_away_what_others_of_its_epoch_have_left() {
    let root = tempfile::tempdir().unwrap();
    let own = prefix(root.path(), 5);
    let is_there = |id: u64| own.state(format!("flush.5.{id}")).exists();
    begin_and_copy(&own, &catalog(1, b"a"));
    let newer = own.state("flush.6.1");
    fs::create_dir(&newer).unwrap();
    begin_and_copy(&own, &catalog(2, b"b"));
    assert_eq!([is_there(1), is_there(2), newer.exists()], [false, true, true]);
    // It is on its way to its name.
    std::os::unix::fs::symlink("b", own.state("swap.5.2")).unwrap();
    begin_and_copy(&own, &catalog(3, b"c"));
    assert_eq!([is_there(2), is_there(3)], [true, true]);
}
