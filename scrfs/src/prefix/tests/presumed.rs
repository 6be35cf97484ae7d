//! Records of what nodes have saved that are damaged: what other records, the bytes and the
//! redundancy still say is used, and what is lost is named.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;

use super::audit::{flip, keep, publishes, spoil};
use super::scavenge::{Saved, by_anyone, by_node, dataset, protected};
use super::{prefix, survey};
use crate::dataset::Scheme;
use crate::ids::Member;
use crate::prefix::directory::Prefix;
use crate::prefix::scavenge::audit::{Audit, read};
use crate::prefix::scavenge::{Collection, DATASET, Outcome, Progress, adopt_all};

/// Half of the record of each of these members.
fn tear(prefix: &Prefix, saved: &Saved, members: &[u32]) {
    for member in members {
        let at = saved.place(prefix).join(format!("member.{member}"));
        let record = fs::read(&at).unwrap();
        fs::write(&at, &record[..record.len() / 2]).unwrap();
    }
}

#[test]
fn members_whose_files_are_sound_need_no_record() {
    for torn in [&[0, 2, 4][..], &[0, 1, 2, 3, 4]] {
        let root = tempfile::tempdir().unwrap();
        let (own, saved) = (prefix(root.path(), 5), dataset(2, "ck"));
        saved.save_all_but(&own, &[]);
        tear(&own, &saved, torn);
        // Who does not read does not publish.
        assert!(matches!(by_node(&own, &saved), Outcome::Waits { .. }));
        let said = publishes(&own, &saved, &[]);
        let named = "ck (dataset 2): the record of member 4 (node4) is damaged, or not there: its files are";
        assert!(said.contains(named), "{said}");
    }
    // A start; and a node that died before it made its record.
    let root = tempfile::tempdir().unwrap();
    let (own, saved) = (prefix(root.path(), 5), dataset(2, "ck"));
    saved.save_all_but(&own, &[]);
    tear(&own, &saved, &[0, 2]);
    fs::remove_file(saved.place(&own).join("member.4")).unwrap();
    assert_eq!(adopt_all(&own, &|_| {}).unwrap()[0].outcome, Outcome::Published(Vec::new()));
    saved.is_published(&own);
}

#[test]
fn a_lost_member_is_rebuilt_from_those_without_records() {
    for scheme in [Scheme::Xor, Scheme::Partner, Scheme::ReedSolomon { failures: 1 }] {
        let root = tempfile::tempdir().unwrap();
        let own = prefix(root.path(), 5);
        let saved = protected(scheme, 2, "ck", 1 << 20);
        saved.save_all_but(&own, &[0, 3]);
        tear(&own, &saved, &[1, 2, 4]);
        publishes(&own, &saved, &[0, 3]);
    }
}

#[test]
fn bytes_that_are_bad_and_have_no_record_are_rebuilt_or_named() {
    let root = tempfile::tempdir().unwrap();
    let (own, saved) = (prefix(root.path(), 5), dataset(2, "ck"));
    saved.save_all_but(&own, &[]);
    tear(&own, &saved, &[0, 4]);
    spoil(&own, &saved, 4);
    publishes(&own, &saved, &[4]);

    let root = tempfile::tempdir().unwrap();
    let own = prefix(root.path(), 5);
    saved.save_all_but(&own, &[]);
    tear(&own, &saved, &[0, 4]);
    spoil(&own, &saved, 4);
    spoil(&own, &saved, 0);
    let outcome = by_anyone(&own, &saved);
    let Outcome::Waits { missing, reason } = &outcome else { panic!("{outcome:?}") };
    assert_eq!(missing.len(), 2);
    assert!(reason.contains("what was saved of member 0 (node0), member 4 (node4) is bad"), "{reason}");
    assert_eq!(survey(&own), []);
}

/// Nobody knows the CRC of a redundancy file without its record: what is made with a bad one is not
/// used, and another is, where there are more.
#[test]
fn a_redundancy_file_without_record_may_be_bad() {
    let rs = Scheme::ReedSolomon { failures: 2 };
    for (scheme, bad, rebuilt) in [(Scheme::Xor, &[2, 4][..], None), (rs, &[2], Some(0)), (rs, &[4], Some(0))]
    {
        let root = tempfile::tempdir().unwrap();
        let own = prefix(root.path(), 5);
        let saved = protected(scheme, 2, "ck", 1 << 20);
        saved.save_all_but(&own, &[0]);
        tear(&own, &saved, bad);
        for (name, data) in bad.iter().map(|member| &saved.redundancy[*member as usize]) {
            for at in (1..49).map(|at| data.len() - at * data.len() / 50) {
                flip(&saved.place(&own).join(name), at);
            }
        }
        if let Some(member) = rebuilt {
            publishes(&own, &saved, &[member]);
            continue;
        }
        let outcome = by_anyone(&own, &saved);
        let Outcome::Waits { reason, .. } = &outcome else { panic!("{outcome:?}") };
        assert!(reason.contains("something that was saved of its set is damaged"), "{reason}");
        assert_eq!(survey(&own), []);
    }
}

#[test]
fn a_start_that_has_no_time_to_read_presumes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (own, saved) = (prefix(root.path(), 5), dataset(2, "ck"));
    saved.save_all_but(&own, &[]);
    tear(&own, &saved, &[0, 3]);
    let collection = &Collection::of(&own, saved.age());
    let mut records = collection.members(&saved.catalog, &|| {}).unwrap();
    let presumed = &collection.presume(&saved.catalog, &mut records, &|| {}).unwrap();
    assert_eq!(*presumed, BTreeSet::from([Member(0), Member(3)]));
    assert!(records.iter().all(Option::is_some));
    let said = RefCell::default();
    let tell = &|progress: Progress<'_>| keep(&said, progress);
    let (prefix, catalog, until) = (&own, &saved.catalog, Some(Instant::now()));
    read(&Audit { collection, prefix, catalog, presumed, tell, until }, &mut records).unwrap();
    assert_eq!(records.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, true, false, true]);
}

#[test]
fn of_several_catalogs_one_that_is_sound_is_enough() {
    for damaged in [0, 7] {
        let root = tempfile::tempdir().unwrap();
        let (own, saved) = (prefix(root.path(), 5), dataset(2, "ck"));
        let anew = saved.encoded_anew();
        saved.save_all_but(&own, &[0, 1, 2, 3]);
        for member in 0..4 {
            let both = [&saved.redundancy[member as usize], &anew.redundancy[member as usize]];
            anew.save_with(&own, member, &both).unwrap();
        }
        let place = saved.place(&own);
        assert!(place.join("catalog.0").exists() && place.join("catalog.7").exists());
        flip(&place.join(format!("catalog.{damaged}")), 100);
        publishes(&own, if damaged == 0 { &anew } else { &saved }, &[]);
    }
}

#[test]
fn what_is_lost_with_the_only_catalog_is_said() {
    let root = tempfile::tempdir().unwrap();
    let (own, saved) = (prefix(root.path(), 5), dataset(2, "ck"));
    saved.save_all_but(&own, &[]);
    let at = saved.place(&own).join("catalog.0");
    let bytes = fs::read(&at).unwrap();
    let pipe = |at: &std::path::Path| {
        nix::unistd::mkfifo(at, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    };
    for harm in [true, false] {
        fs::remove_file(&at).unwrap();
        if harm {
            fs::write(&at, &bytes[..bytes.len() - 9]).unwrap();
        } else {
            pipe(&at);
        }
        let outcome = by_anyone(&own, &saved);
        let Outcome::Waits { missing, reason } = &outcome else { panic!("{outcome:?}") };
        assert_eq!(missing.len(), 0);
        let dataset = saved.place(&own).join(DATASET);
        for says in ["catalog.0: ", "writes it again", "the dataset is lost", &dataset.display().to_string()]
        {
            assert!(reason.contains(says), "{says}: {reason}");
        }
    }
    // The remedy is one.
    saved.save(&own, 1).unwrap();
    publishes(&own, &saved, &[]);
}
