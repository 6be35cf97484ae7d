//! Several members of a set are missing in what was scavenged.

use std::fs;

use super::prefix;
use super::scavenge::{by_anyone, by_node, protected};
use crate::dataset::{Protection, Scheme};
use crate::ids::Member;
use crate::prefix::scavenge::{By, Collection, MemberRecord, Outcome, adopt, digest};

#[test]
fn reed_solomon_gives_back_several_members_of_a_set() {
    // Sets of three and two, of which one member must be left.
    let scheme = Scheme::ReedSolomon { failures: 2 };
    for lost in [&[0][..], &[3], &[2, 4], &[0, 4], &[0, 2, 1], &[2, 4, 3]] {
        let root = tempfile::tempdir().unwrap();
        let saved = protected(scheme, 7, "ck", 1 << 20);
        let nodes = prefix(root.path(), 5);
        saved.save_all_but(&nodes, lost);
        let Outcome::Published(rebuilt) = by_anyone(&nodes, &saved) else { panic!("{lost:?}") };
        // Member 1 has no files.
        assert_eq!(rebuilt.len(), lost.iter().filter(|lost| **lost != 1).count(), "{rebuilt:?}");
        saved.is_published(&nodes);
    }

    // Who rebuilds dies between two members: the first counts as lost for the second.
    let root = tempfile::tempdir().unwrap();
    let saved = protected(scheme, 7, "ck", 1 << 20);
    let nodes = prefix(root.path(), 5);
    saved.save_all_but(&nodes, &[0, 4]);
    saved.save(&nodes, 4).unwrap();
    let collection = Collection::of(&nodes, saved.age());
    let sum = digest(saved.catalog.files_of(Member(4)).map(|(entry, copy)| (&entry.path, copy)));
    let host = nodes.host.clone();
    let rebuilt =
        MemberRecord { age: saved.age(), member: Member(4), host, digest: sum, redundancy: Vec::new() };
    collection.record(&nodes, &rebuilt).unwrap();
    fs::remove_file(saved.place(&nodes).join(&saved.redundancy[4].0)).unwrap();
    let Outcome::Published(missing) = by_anyone(&nodes, &saved) else { panic!() };
    assert_eq!(missing.len(), 1);
    saved.is_published(&nodes);

    // One more than was promised.
    let root = tempfile::tempdir().unwrap();
    let saved = protected(scheme, 7, "ck", 1 << 20);
    let nodes = prefix(root.path(), 5);
    saved.save_all_but(&nodes, &[1, 3]);
    let told = adopt(&nodes, saved.age(), By::Person(&|_| {})).unwrap().to_string();
    assert!(told.ends_with("their redundancy set can give back 1 of its members"), "{told}");
}

#[test]
fn a_partner_gives_back_the_members_whose_copies_it_has() {
    for lost in [&[0][..], &[2], &[4], &[3], &[1, 2], &[0, 3]] {
        let root = tempfile::tempdir().unwrap();
        let saved = protected(Scheme::Partner, 7, "ck", 1 << 20);
        let nodes = prefix(root.path(), 5);
        saved.save_all_but(&nodes, lost);
        let Outcome::Published(rebuilt) = by_anyone(&nodes, &saved) else { panic!("{lost:?}") };
        // Member 1 has no files.
        assert_eq!(rebuilt.len(), lost.iter().filter(|lost| **lost != 1).count(), "{rebuilt:?}");
        saved.is_published(&nodes);
    }

    // Member 0's partner is member 4; of sets of three, no two members can be lost.
    for lost in [&[0, 4][..], &[2, 0], &[1, 3]] {
        let root = tempfile::tempdir().unwrap();
        let saved = protected(Scheme::Partner, 7, "ck", 1 << 20);
        let nodes = prefix(root.path(), 5);
        saved.save_all_but(&nodes, lost);
        let told = adopt(&nodes, saved.age(), By::Person(&|_| {})).unwrap().to_string();
        assert!(told.ends_with("the copy of one of them was on another of them"), "{told}");
    }

    // A copy that has rotted is found, and nothing of it is published.
    let root = tempfile::tempdir().unwrap();
    let saved = protected(Scheme::Partner, 7, "ck", 1 << 20);
    let nodes = prefix(root.path(), 5);
    saved.save_all_but(&nodes, &[0]);
    let copy = saved.place(&nodes).join(&saved.redundancy[4].0);
    let mut bytes = fs::read(&copy).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&copy, bytes).unwrap();
    let told = adopt(&nodes, saved.age(), By::Person(&|_| {})).unwrap().to_string();
    assert!(told.ends_with("redundancy data of their set is not there, or bad"), "{told}");
    assert!(!nodes.root().join("ck").exists());
}

#[test]
fn a_member_without_files_is_not_missed() {
    for scheme in [Scheme::Partner, Scheme::Xor, Scheme::Single] {
        let root = tempfile::tempdir().unwrap();
        let prefix = prefix(root.path(), 5);
        let mut saved = protected(Scheme::Xor, 2, "ck", 20_000);
        if scheme == Scheme::Single {
            saved.catalog.layout.protection = Protection::by(scheme);
            saved.catalog.layout.sets = (0..5).map(|member| vec![Member(member)]).collect();
        }
        saved.save_all_but(&prefix, &[1]);
        assert!(matches!(by_node(&prefix, &saved), Outcome::Waits { .. }), "it may still come");
        assert_eq!(by_anyone(&prefix, &saved), Outcome::Published(Vec::new()));
        saved.is_published(&prefix);
    }
}

/// Coordinators died while nodes recorded a new encoding: one has, and has dropped the former data;
/// the others have the data of both. Then the node that had recorded it first is lost, or another.
#[test]
fn of_two_encodings_the_one_counts_that_a_node_has_recorded() {
    for (recorded, lost) in [(&[1, 4][..], 3), (&[0, 1, 4], 2), (&[], 2)] {
        let root = tempfile::tempdir().unwrap();
        let old = protected(Scheme::Xor, 7, "ck", 1 << 20);
        let new = old.encoded_anew();
        let nodes = prefix(root.path(), 5);
        for member in (0..5).filter(|member| *member != lost) {
            if recorded.contains(&member) {
                new.save(&nodes, member).unwrap();
            } else {
                let both = [&old.redundancy, &new.redundancy].map(|of| &of[member as usize]);
                old.save_with(&nodes, member, &both).unwrap();
            }
        }
        let Outcome::Published(rebuilt) = by_anyone(&nodes, &old) else { panic!("{recorded:?}") };
        assert_eq!(rebuilt.len(), 1, "{rebuilt:?}");
        old.is_published(&nodes);
    }
}
