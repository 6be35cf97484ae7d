//! What has gone bad, or was put there by strangers, since nodes saved it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;
use std::time::Instant;

use super::scavenge::{Saved, by_anyone, by_node, dataset, protected};
use super::{catalog, flush, prefix, survey};
use crate::dataset::Scheme;
use crate::prefix::directory::Prefix;
use crate::prefix::scavenge::audit::{Audit, read};
use crate::prefix::scavenge::{By, Collection, DATASET, MemberRecord, Outcome, Progress, adopt, adopt_all};

const EVE: u32 = 54_322;

pub(super) fn keep(said: &RefCell<Vec<String>>, progress: Progress<'_>) {
    if let Progress::Said(text) = progress {
        said.borrow_mut().push(text.to_owned());
    }
}

/// Published, with these members rebuilt, and what was said.
#[track_caller]
pub(super) fn publishes(prefix: &Prefix, saved: &Saved, rebuilt: &[u32]) -> String {
    let said = RefCell::default();
    let adoption = adopt(prefix, saved.age(), By::Person(&|progress| keep(&said, progress))).unwrap();
    let said: Vec<String> = said.take();
    let Outcome::Published(found) = &adoption.outcome else { panic!("{adoption}: {said:?}") };
    assert_eq!(found.iter().map(|(member, _)| member.0).collect::<Vec<_>>(), rebuilt, "{said:?}");
    saved.is_published(prefix);
    said.join("\n")
}

/// Another byte in the member's largest file.
pub(super) fn spoil(prefix: &Prefix, saved: &Saved, member: u32) -> String {
    let (path, data) = saved.files[member as usize].iter().max_by_key(|(_, data)| data.len()).unwrap();
    flip(&saved.place(prefix).join(DATASET).join(path.as_path()), data.len() / 2);
    path.to_string()
}

#[test]
fn bytes_that_have_gone_bad_are_named_and_rebuilt() {
    for scheme in [Scheme::Xor, Scheme::Partner, Scheme::ReedSolomon { failures: 1 }] {
        for member in [0, 2, 3, 4] {
            let root = tempfile::tempdir().unwrap();
            let prefix = prefix(root.path(), 5);
            let saved = protected(scheme, 2, "ck", 1 << 20);
            saved.save_all_but(&prefix, &[]);
            let bad = spoil(&prefix, &saved, member);
            let said = publishes(&prefix, &saved, &[member]);
            let named = format!("ck (dataset 2): {bad}, saved by node{member}: it has ");
            assert!(said.starts_with(&named), "{said}");
        }
    }
    // Coordinators that start, too; and where a member is lost as well.
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 5);
    let saved = protected(Scheme::ReedSolomon { failures: 2 }, 2, "ck", 1 << 20);
    saved.save_all_but(&prefix, &[0]);
    spoil(&prefix, &saved, 4);
    spoil(&prefix, &saved, 3);
    let adoptions = adopt_all(&prefix, &|_| {}).unwrap();
    let Outcome::Published(rebuilt) = &adoptions[0].outcome else { panic!("{adoptions:?}") };
    assert_eq!(rebuilt.iter().map(|(member, _)| member.0).collect::<Vec<_>>(), [0, 3, 4]);
    saved.is_published(&prefix);
}

#[test]
fn bad_redundancy_data_is_left_out() {
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 5);
    let saved = protected(Scheme::ReedSolomon { failures: 2 }, 2, "ck", 1 << 20);
    saved.save_all_but(&prefix, &[0]);
    flip(&saved.place(&prefix).join(&saved.redundancy[4].0), saved.redundancy[4].1.len() - 7);
    let said = publishes(&prefix, &saved, &[0]);
    assert!(said.contains(&format!("{}, saved by node4: it has", saved.redundancy[4].0)), "{said}");
}

#[test]
fn what_is_bad_beyond_repair_is_not_published() {
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 5);
    let saved = dataset(2, "ck");
    saved.save_all_but(&prefix, &[]);
    for member in [0, 4] {
        spoil(&prefix, &saved, member);
    }
    let told = adopt(&prefix, saved.age(), By::Person(&|_| {})).unwrap().to_string();
    assert_eq!(
        told,
        "ck (dataset 2): not published: member 0 (node0), member 4 (node4) missing: their redundancy set can \
         give back 1 of its members; what was saved of member 0 (node0), member 4 (node4) is bad"
    );
    // Nor by a node, which does not read what others have saved, nor by a start, which need not
    // again.
    for outcome in [by_node(&prefix, &saved), adopt_all(&prefix, &|_| {}).unwrap()[0].outcome.clone()] {
        assert!(matches!(&outcome, Outcome::Waits { missing, .. } if missing.len() == 2), "{outcome:?}");
    }
    assert_eq!(survey(&prefix), []);
    // Bytes that are good again, as where a client of the PFS was to blame.
    spoil(&prefix, &saved, 4);
    publishes(&prefix, &saved, &[0]);

    // A node that has good ones in its cache saves them again.
    let again = dataset(3, "ck.3");
    again.save_all_but(&prefix, &[]);
    for member in [0, 4] {
        spoil(&prefix, &again, member);
    }
    assert!(matches!(by_anyone(&prefix, &again), Outcome::Waits { .. }));
    again.save(&prefix, 4).unwrap();
    publishes(&prefix, &again, &[0]);

    // A newer dataset makes such a one needless.
    let half = dataset(4, "half");
    half.save_all_but(&prefix, &[]);
    for member in [0, 4] {
        spoil(&prefix, &half, member);
    }
    flush(&prefix, &catalog(5, b"newer"));
    assert!(matches!(by_anyone(&prefix, &half), Outcome::Superseded { .. }));
}

/// The newer one may prove bad.
#[test]
fn what_can_be_made_whole_is_published_beside_a_newer_dataset() {
    let root = tempfile::tempdir().unwrap();
    let (prefix, rest) = (prefix(root.path(), 5), dataset(4, "rest"));
    rest.save_all_but(&prefix, &[0]);
    flush(&prefix, &catalog(5, b"newer"));
    let outcome = by_anyone(&prefix, &rest);
    assert!(matches!(outcome, Outcome::Published(_)), "{outcome:?}");
}

#[test]
fn a_start_reads_as_long_as_it_has_time() {
    let root = tempfile::tempdir().unwrap();
    let (prefix, saved) = (prefix(root.path(), 5), dataset(2, "ck"));
    saved.save_all_but(&prefix, &[0]);
    spoil(&prefix, &saved, 3);
    let collection = Collection::of(&prefix, saved.age());
    let mut records = collection.members(&saved.catalog, &|| {}).unwrap();
    let there = |records: &[Option<MemberRecord>]| records.iter().map(Option::is_some).collect::<Vec<_>>();
    for (until, is_short) in [(Some(Instant::now()), true), (None, false)] {
        let said = RefCell::default();
        let tell = |progress: Progress<'_>| keep(&said, progress);
        let presumed = &BTreeSet::new();
        let (collection, prefix, catalog) = (&collection, &prefix, &saved.catalog);
        let audit = Audit { collection, prefix, catalog, presumed, tell: &tell, until };
        read(&audit, &mut records).unwrap();
        assert_eq!(there(&records), [false, true, true, is_short, true]);
        let said = said.take().join("\n");
        assert_eq!(said.contains("more was saved than a start reads"), is_short, "{said}");
    }
}

/// Somebody has let everybody write there.
#[test]
fn strangers_keep_nothing_from_being_published_nor_add_to_it() {
    type Harm = fn(&Path);
    fn as_directory(at: &Path) {
        fs::create_dir(at).unwrap();
    }
    fn as_link(at: &Path) {
        symlink("/etc/passwd", at).unwrap();
    }
    fn unreadable(at: &Path) {
        fs::write(at, "e").unwrap();
        fs::set_permissions(at, fs::Permissions::from_mode(0o000)).unwrap();
    }
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for harm in [as_directory as Harm, as_link, unreadable] {
        let root = tempfile::tempdir().unwrap();
        let prefix = prefix(root.path(), 5);
        let saved = dataset(2, "ck");
        saved.save_all_but(&prefix, &[]);
        let place = saved.place(&prefix);
        for open in ["", "dataset", "dataset/sub"] {
            fs::set_permissions(place.join(open), fs::Permissions::from_mode(0o777)).unwrap();
        }
        for name in [
            "member.3",
            "publisher",
            "dataset/four",
            "dataset/sub/more",
            "dataset/more",
            "dataset/link",
            "dataset/nothing",
            "dataset/.scr",
        ] {
            let at = place.join(name);
            let _ = fs::remove_file(&at);
            harm(&at);
            lchown(at, Some(EVE), None).unwrap();
        }
        fs::write(place.join("dataset/own"), b"mine").unwrap();
        // Of the one whose record is the stranger's, all files are there.
        publishes(&prefix, &saved, &[4]);
        let dataset = prefix.dataset(b"ck");
        let is_there = |name: &str| dataset.join(name).symlink_metadata().is_ok();
        assert!(!is_there("more") && !is_there("sub/more") && is_there("own"));
    }
}

#[test]
fn damage_of_what_is_needed_for_a_rebuild_is_found() {
    type Harm = fn(&Path, &Saved);
    let (lost, without) =
        ("can give back 1 of its members", "redundancy data of their set is not there, or bad");
    let harms: [(&str, Harm, &str); 6] = [
        ("a survivor's bytes", |place, _| flip(&place.join(DATASET).join("sub/four"), 50_000), lost),
        (
            "the parity",
            |place, saved| {
                let chunk = (3 << 20) + 5000_usize;
                let (name, data) = &saved.redundancy[2];
                flip(&place.join(name), data.len() - chunk.div_ceil(2) + 1000);
            },
            without,
        ),
        (
            "another set's redundancy file",
            |place, saved| fs::write(place.join(&saved.redundancy[4].0), &saved.redundancy[3].1).unwrap(),
            without,
        ),
        (
            "the same, recorded so",
            |place, saved| {
                let ((name, _), (_, data)) = (&saved.redundancy[4], &saved.redundancy[3]);
                fs::remove_file(place.join("member.4")).unwrap();
                saved.save_with(&prefix_of(place), 4, &[&(name.clone(), data.clone())]).unwrap();
            },
            "its header is of another set",
        ),
        (
            "no redundancy file",
            |place, saved| fs::remove_file(place.join(&saved.redundancy[4].0)).unwrap(),
            without,
        ),
        (
            "a file that is too short",
            |place, _| fs::write(place.join(DATASET).join("sub/four"), "short").unwrap(),
            lost,
        ),
    ];
    for (what, harm, expected) in harms {
        let root = tempfile::tempdir().unwrap();
        let prefix = prefix(root.path(), 5);
        let saved = dataset(2, "ck");
        saved.save_all_but(&prefix, &[0]);
        harm(&saved.place(&prefix), &saved);
        let told = match adopt(&prefix, saved.age(), By::Person(&|_| {})) {
            Ok(adoption) => adoption.to_string(),
            Err(error) => error.to_string(),
        };
        assert!(told.contains(expected), "{what}: {told}");
        assert_eq!(survey(&prefix), [], "{what}");
        assert!(!prefix.dataset(b"ck").exists(), "{what}");
    }
}

/// That of a collection.
fn prefix_of(place: &Path) -> Prefix {
    prefix(place.parent().and_then(Path::parent).unwrap(), 5)
}

pub(super) fn flip(at: &Path, byte: usize) {
    let mut bytes = fs::read(at).unwrap();
    bytes[byte] ^= 1;
    fs::write(at, bytes).unwrap();
}
