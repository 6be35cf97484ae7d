//! A swap that cannot be finished, or begun, costs nothing of what nodes have saved, whose caches
//! are gone.

use std::fs;

use super::scavenge::{by_anyone, dataset};
use super::{prefix, survey};
use crate::ids::DatasetId;
use crate::prefix::directory::Prefix;
use crate::prefix::scavenge::{Begun, Collection, Outcome};

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
    let Begun::Collect(_) = Collection::begin(&own, saved.age()).unwrap() else { panic!() };
    assert!(survey(&own).is_empty());
    assert!(at.join(".scr/summary.scr").exists() && !arrival.exists());
    fs::remove_dir(root.path().join("ck")).unwrap();
    assert_eq!(by_anyone(&own, &saved), Outcome::Published(Vec::new()));
    is_there(&own);
}

/// A restart that finds nothing else waits for the PFS then.
#[test]
fn what_only_the_pfs_keeps_from_being_published_is_told_apart() {
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 5);
    let (half, whole) = (dataset(2, "half"), dataset(3, "ck"));
    half.save_all_but(&prefix, &[2, 0]);
    whole.save_all_but(&prefix, &[]);
    let unpublished = || match super::carry_out(&prefix, &super::PfsTask::Survey).unwrap() {
        super::PfsOutcome::Surveyed(contents) => (contents.partial, contents.hindered),
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
