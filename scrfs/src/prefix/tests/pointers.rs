//! Pointer files of what nodes have saved: published with it, or named.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::scavenge::{Saved, dataset, node, pointers};
use super::{PfsOutcome, PfsTask, carry_out, nothing_left_over, prefix, survey};
use crate::prefix::Known;
use crate::prefix::directory::Prefix;
use crate::prefix::loose;
use crate::prefix::scavenge::{Adoption, Begun, By, Collection, Outcome, adopt};

/// All members, and pointer files.
fn save(prefix: &Prefix) -> Saved {
    let saved = dataset(2, "ck");
    saved.save_all_but(prefix, &[]);
    let Begun::Collect(collection) = Collection::begin(prefix, &Known::by_age(saved.age())).unwrap() else {
        panic!()
    };
    collection.put_pointers(prefix, &pointers(saved.age(), 4, "ck")).unwrap();
    saved
}

fn by_person(prefix: &Prefix, saved: &Saved) -> Adoption {
    adopt(prefix, saved.age(), By::Person(&|_| {})).unwrap()
}

type Harm = fn(&Path);

const HARMS: [(Harm, &str); 5] = [
    (|at| fs::write(at, &fs::read(at).unwrap()[1..]).unwrap(), "has a wrong CRC"),
    (|at| fs::write(at, "").unwrap(), "is too short"),
    (
        |at| {
            fs::remove_file(at).unwrap();
            nix::unistd::mkfifo(at, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        },
        "it is no regular file",
    ),
    (
        |at| {
            fs::remove_file(at).unwrap();
            fs::create_dir(at).unwrap();
            fs::write(at.join("in it"), "").unwrap();
        },
        "it is no regular file",
    ),
    (
        |at| {
            fs::remove_file(at).unwrap();
            symlink("pointers", at).unwrap();
        },
        "symbolic links",
    ),
];

#[test]
fn those_that_are_lost_are_named_to_a_person_and_in_the_events_of_a_start() {
    for (harm, why) in HARMS {
        let root = tempfile::tempdir().unwrap();
        let own = prefix(root.path(), 5);
        let saved = save(&own);
        harm(&saved.place(&own).join("pointers"));
        let adoption = by_person(&own, &saved);
        assert_eq!(adoption.outcome, Outcome::Published(Vec::new()));
        let told = adoption.to_string();
        let begins = format!(
            "ck (dataset 2): published; its pointer files are lost: {}",
            saved.place(&own).join("pointers").display()
        );
        assert!(told.starts_with(&begins) && told.contains(why), "{told}");
        nothing_left_over(&own);
        // There is nothing more to be told then.
        assert_eq!((by_person(&own, &saved).note, survey(&own).len()), (None, 1));

        let root = tempfile::tempdir().unwrap();
        let own = prefix(root.path(), 5);
        harm(&save(&own).place(&own).join("pointers"));
        let said = std::cell::RefCell::new(String::new());
        crate::prefix::worker::carry_out(&own, &PfsTask::Survey, &|outcome| {
            if let PfsOutcome::Busy(Some(text)) = outcome {
                said.borrow_mut().push_str(&text);
            }
        })
        .unwrap();
        let said = said.take();
        assert!(said.contains("scavenged: ck (dataset 2): published; its pointer files are lost"), "{said}");
    }
}

#[test]
fn those_that_cannot_be_put_there_yet_are_named_and_stay_until_they_can() {
    let root = tempfile::tempdir().unwrap();
    let own = prefix(root.path(), 5);
    let saved = save(&own);
    fs::write(own.state("loose"), "").unwrap();
    let told = by_person(&own, &saved).to_string();
    assert!(told.contains("published; its pointer files are not in the prefix yet: "), "{told}");
    assert!(saved.place(&own).join("pointers").exists());
    let told = by_person(&own, &saved).to_string();
    assert!(told.contains("on the PFS already; its pointer files are not in the prefix yet: "), "{told}");
    fs::remove_file(own.state("loose")).unwrap();
    match carry_out(&own, &PfsTask::Survey).unwrap() {
        PfsOutcome::Surveyed(contents) => assert_eq!(contents.datasets.len(), 1),
        other => panic!("{other:?}"),
    }
    assert_eq!(loose::read(&own, saved.age()).unwrap(), Some(pointers(saved.age(), 4, "ck")));
    assert!(!saved.place(&own).exists());
}

/// A set that is damaged in the prefix does not keep out the sound one that was saved.
#[test]
fn a_damaged_set_in_the_prefix_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    let own = prefix(root.path(), 5);
    let saved = save(&own);
    loose::put(&own, &pointers(saved.age(), 4, "ck")).unwrap();
    fs::write(own.state("loose/5.2.5.4/files/latest"), "no").unwrap();
    assert_eq!(by_person(&own, &saved).note, None);
    assert_eq!(loose::read(&own, saved.age()).unwrap(), Some(pointers(saved.age(), 4, "ck")));
}

/// Each writes them under a name of its own.
#[test]
fn two_that_put_them_there_at_once_do_not_mix() {
    for _ in 0..20 {
        let root = tempfile::tempdir().unwrap();
        let saved = save(&prefix(root.path(), 5));
        std::thread::scope(|scope| {
            for host in ["one", "two", "three"] {
                let (root, saved) = (root.path(), &saved);
                scope.spawn(move || {
                    let mut own = node(root, 5, host);
                    own.patience = std::time::Duration::from_mins(1);
                    let adoption = by_person(&own, saved);
                    assert_eq!(adoption.note, None, "{adoption}");
                });
            }
        });
        let own = prefix(root.path(), 5);
        assert_eq!(loose::read(&own, saved.age()).unwrap(), Some(pointers(saved.age(), 4, "ck")));
        assert_eq!(fs::read_dir(own.state("loose")).unwrap().count(), 1);
        assert!(!saved.place(&own).exists());
    }
}
