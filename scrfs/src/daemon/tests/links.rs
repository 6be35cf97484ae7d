//! Files of several names while their dataset is sealed.

use std::os::unix::fs::MetadataExt;

use super::crash::{at_every_step, state};
use super::generations::{names, read};
use super::*;
use crate::control::HeldState;
use crate::daemon::cache::Instead;

/// `f` (the first of three names), `g`, `sub/h`.
fn link(bench: &Bench) {
    for name in ["ck/g", "ck/sub/h"] {
        bench.node.creating(&path(name), Some(8)).unwrap();
    }
    std::fs::create_dir_all(bench.tree.at(&path("ck/sub"))).unwrap();
    for name in ["ck/g", "ck/sub/h"] {
        std::fs::hard_link(bench.tree.at(&path("ck/f")), bench.tree.at(&path(name))).unwrap();
    }
}

fn inode(bench: &Bench, name: &str) -> u64 {
    std::fs::metadata(bench.tree.at(&path("ck")).join(name)).unwrap().ino()
}

fn are_one(bench: &Bench) -> bool {
    ["g", "sub/h"].iter().all(|name| inode(bench, name) == inode(bench, "f"))
}

fn are_apart(bench: &Bench) -> bool {
    let inodes: BTreeSet<u64> = ["f", "g", "sub/h"].iter().map(|name| inode(bench, name)).collect();
    inodes.len() == 3
}

fn copies(bench: &Bench) -> usize {
    bench.node.cache.copies(DatasetId(1), Instead::Link).unwrap().len()
}

#[test]
fn sealed_they_are_files_of_their_own() {
    let mut bench = Bench::new();
    bench.write("ck/f", b"bytes");
    link(&bench);
    let set = |name: &str, value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(bench.tree.at(&path("ck/f")), name, value, flags)
    };
    // Not every file system has them.
    let has_attributes = set("user.of", b"all three").is_ok();
    let before = inode(&bench, "f");
    let mut lead = bench.serving(1);
    let files = lead.freeze(1, "ck").unwrap();
    assert!(are_one(&bench), "it is not sealed yet");
    assert_eq!(copies(&bench), 2);
    let part = encode(&mut lead.data(), 1, &files).unwrap();
    lead.commit(&catalog(1, 1, "ck", &part)).unwrap();
    assert!(are_apart(&bench) && inode(&bench, "f") == before);
    assert_eq!(copies(&bench), 0);
    lead.send(Command::Sealed(DatasetId(1)));
    assert!(!lead.changed(1));
    for name in ["f", "g", "sub/h"] {
        assert_eq!((read(&lead, 1, name).as_str(), bench.in_tree(name).as_deref()), ("bytes", Some("bytes")));
        let mut value = [0; 16];
        let got = rustix::fs::getxattr(bench.tree.at(&path("ck")).join(name), "user.of", &mut value[..]);
        assert_eq!(got.is_ok_and(|length| value[..length] == *b"all three"), has_attributes);
    }
    // A change of one of them is one change.
    bench.begin(1).unwrap();
    bench.change(1, "g", b"other");
    let part = lead.freeze_over(2, "ck", Some(1)).unwrap();
    assert_eq!(names(&part.files), ["g"]);
    assert_eq!((bench.in_tree("f").as_deref(), read(&lead, 1, "g").as_str()), (Some("bytes"), "bytes"));
    lead.finish(2, &part, &[]);
    bench.restart();
    assert!(are_apart(&bench));
}

#[test]
fn a_name_that_has_left_the_dataset_is_not_sealed_with_it() {
    let bench = Bench::new();
    bench.write("ck/f", b"bytes");
    bench.write("ck/alone", b"bytes");
    link(&bench);
    for (left, to) in [("ck/sub/h", "y"), ("ck/alone", "z")] {
        std::fs::hard_link(bench.tree.at(&path(left)), bench.tree.at(&path(to))).unwrap();
    }
    let mut lead = bench.serving(1);
    let files = lead.freeze(1, "ck").unwrap();
    assert_eq!(copies(&bench), 4);
    // Too late.
    std::fs::write(bench.tree.at(&path("y")), "other").unwrap();
    let part = encode(&mut lead.data(), 1, &files).unwrap();
    lead.commit(&catalog(1, 1, "ck", &part)).unwrap();
    assert!(are_apart(&bench) && copies(&bench) == 0);
    for (left, to) in [("y", "other"), ("z", "bytes")] {
        std::fs::write(bench.tree.at(&path(left)), to).unwrap();
    }
    for name in ["f", "g", "sub/h", "alone"] {
        assert_eq!((read(&lead, 1, name).as_str(), bench.in_tree(name).as_deref()), ("bytes", Some("bytes")));
    }
}

/// What a former generation has aside is no name outside.
#[test]
fn what_is_sealed_already_is_not_copied() {
    let bench = Bench::new();
    for name in ["ck/f", "ck/g", "ck/h"] {
        bench.write(name, b"bytes");
    }
    let mut lead = bench.serving(1);
    let files = lead.freeze(1, "ck").unwrap();
    assert_eq!(copies(&bench), 0);
    let part = encode(&mut lead.data(), 1, &files).unwrap();
    lead.commit(&catalog(1, 1, "ck", &part)).unwrap();
    lead.send(Command::Sealed(DatasetId(1)));
    assert!(!lead.changed(1));
    bench.begin(1).unwrap();
    bench.change(1, "g", b"other");
    // Another mode, another name: the bytes are the sealed ones.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(bench.tree.at(&path("ck/f")), mode).unwrap();
    bench.node.changing(DatasetId(1), &path("ck/f"), None).unwrap();
    std::fs::rename(bench.tree.at(&path("ck/h")), bench.tree.at(&path("ck/old"))).unwrap();
    bench.node.changing(DatasetId(1), &path("ck/old"), None).unwrap();
    let part = lead.freeze_over(2, "ck", Some(1)).unwrap();
    assert!(names(&part.files).contains(&"old".to_owned()), "{part:?}");
    assert_eq!(bench.node.cache.copies(DatasetId(2), Instead::Link).unwrap().len(), 0);
}

#[test]
fn a_failed_seal_leaves_them_one() {
    let mut bench = Bench::new();
    bench.write("ck/f", b"bytes");
    link(&bench);
    let mut lead = bench.serving(1);
    lead.freeze(1, "ck").unwrap();
    lead.send(Command::Drop { id: DatasetId(1), reason: "a node is full".into() });
    assert_eq!(lead.next(), Event::Dropped(DatasetId(1)));
    assert!(are_one(&bench) && copies(&bench) == 0);
    // One that began and is not known of.
    std::fs::create_dir_all(bench.directory.path().join("cache/user/scr.j1/dataset.1/links")).unwrap();
    std::fs::write(bench.directory.path().join("cache/user/scr.j1/dataset.1/links/g"), "half").unwrap();
    bench.restart();
    assert!(are_one(&bench) && copies(&bench) == 0);
}

#[test]
fn a_crash_at_any_step_leaves_them_one_or_apart() {
    at_every_step(
        |bench, _| link(bench),
        |_, lead| {
            let Ok(files) = lead.freeze(1, "ck") else { return false };
            let Ok(part) = encode(&mut lead.data(), 1, &files) else { return false };
            lead.commit(&catalog(1, 1, "ck", &part)).is_ok()
        },
        |bench, succeeded| {
            let sealed = state(bench) == Some(HeldState::Complete);
            assert!(sealed || !succeeded);
            assert!(if sealed { are_apart(bench) } else { are_one(bench) });
            for name in ["f", "g", "sub/h"] {
                assert_eq!(bench.in_tree(name).as_deref(), Some("bytes"));
            }
            if sealed || state(bench).is_none() {
                assert_eq!(copies(bench), 0);
            }
        },
    );
}
