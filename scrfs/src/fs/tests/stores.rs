//! A mount over two stores: each dataset is whole in one, and the mount shows one tree.

use super::*;
use crate::dataset::Protections;
use crate::dataset::protection::to_stores;

const FIRST: &str = "a";
const OTHER: &str = "b";

/// Directories for even ids are made in the other store.
fn rules() -> Protections {
    to_stores(&[(1, FIRST), (2, OTHER)])
}

fn there(bench: &Bench, store: &str, below: &str) -> std::path::PathBuf {
    bench.dir.path().join(store).join("tree").join(below)
}

fn goes_to_other(bench: &Bench, other: bool) {
    let (_, stores) = bench.stores.as_ref().expect("stores");
    while (stores.next() == 1) != other {
        bench.next_id();
    }
}

fn mkdir_in(bench: &Bench, other: bool, name: &str) -> u64 {
    goes_to_other(bench, other);
    let id = bench.mkdir(ROOT, name).attr.nodeid;
    assert!(there(bench, if other { OTHER } else { FIRST }, name).is_dir());
    assert!(!there(bench, if other { FIRST } else { OTHER }, name).exists());
    id
}

fn rename(bench: &Bench, from: &str, to: &str, flags: u32) -> Result<(), Errno> {
    let at = |text: &str| match text.split_once('/') {
        None => (ROOT, text.as_bytes().to_vec()),
        Some((dir, name)) => {
            let dir = bench.fs.lookup(ROOT, dir.as_bytes()).unwrap().attr.nodeid;
            (dir, name.as_bytes().to_vec())
        }
    };
    let (from, to) = (at(from), at(to));
    let moved = start(|done| bench.fs.rename(me(), (from.0, &from.1), (to.0, &to.1), flags, done));
    if waits(&moved) {
        let _ = bench.round();
    }
    now(&moved)
}

#[test]
fn a_directory_is_made_in_its_store_and_all_are_seen_in_one_listing() {
    let bench = Bench::over_two("", rules());
    let one = mkdir_in(&bench, false, "one");
    let two = mkdir_in(&bench, true, "two");
    let (f, g) = (bench.write(one, "f", b"first"), bench.write(two, "g", b"other"));
    bench.write(ROOT, "loose", b"x");
    assert_eq!(std::fs::read(there(&bench, OTHER, "two/g")).unwrap(), b"other");
    assert!(there(&bench, FIRST, "loose").is_file());
    assert_eq!(bench.names(ROOT), ["loose", "one", "two"]);
    assert_eq!(bench.names(two), ["g"]);
    assert_eq!(bench.fs.lookup(ROOT, b"two").unwrap().attr.nodeid, two);
    assert_eq!(bench.fs.place_of(g).unwrap().0, path("two/g"));
    assert_ne!(f, g);
    assert_eq!(bench.fs.getattr(ROOT).unwrap().0.nlink, 5, "of two directories, and the reserved one");
    let made = start(|done| bench.fs.mkdir(me(), ROOT, b"two", 0o755, done));
    assert_eq!(bench.round(), Err(Errno(libc::EEXIST)));
    assert!(now(&made).is_err());
    let refused = bench.create(ROOT, "two").unwrap_err();
    assert_eq!(refused, Errno(libc::ESTALE), "a directory: the kernel is to look it up");
    let held: Vec<String> = bench.fs.directories().unwrap().iter().map(|d| d.path.to_string()).collect();
    assert_eq!(held, ["one", "two"]);
    let files = bench.fs.files(b"two").unwrap();
    assert_eq!((files.len(), files[0].size), (1, 5));
}

#[test]
fn the_mode_of_the_checkpoint_path_holds_in_both() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::over_two("", rules());
    let mode = Changes { mode: Some(0o2770), ..Changes::default() };
    now(&start(|done| bench.fs.setattr(me(), ROOT, mode, done))).unwrap();
    mkdir_in(&bench, true, "two");
    let mode = |at: &Path| std::fs::metadata(at).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&there(&bench, OTHER, "")), 0o2770);
    assert_eq!(mode(&there(&bench, OTHER, "two")) & 0o2000, 0o2000, "inherited");
}

#[test]
fn a_directory_keeps_its_store_when_it_is_renamed() {
    let bench = Bench::over_two("", rules());
    let one = mkdir_in(&bench, false, "one");
    let two = mkdir_in(&bench, true, "two");
    let f = bench.write(two, "f", b"bytes");
    rename(&bench, "two", "deux", 0).unwrap();
    assert!(there(&bench, OTHER, "deux/f").is_file());
    // In the place of an empty one of the other store.
    rename(&bench, "deux", "one", 0).unwrap();
    assert_eq!(bench.names(ROOT), ["one"]);
    assert!(there(&bench, OTHER, "one/f").is_file() && !there(&bench, FIRST, "one").exists());
    assert_eq!(bench.fs.place_of(f).unwrap().0, path("one/f"));
    assert!(bench.fs.place_of(one).is_none());
    let three = mkdir_in(&bench, false, "three");
    bench.write(three, "g", b"1");
    assert_eq!(rename(&bench, "one", "three", 0), Err(Errno(libc::ENOTEMPTY)));
    let exchange = rustix::fs::RenameFlags::EXCHANGE.bits();
    assert_eq!(rename(&bench, "one", "three", exchange), Err(Errno(libc::EXDEV)));
    assert_eq!(rename(&bench, "one", "three/below", 0), Err(Errno(libc::EXDEV)));
    let four = mkdir_in(&bench, true, "four");
    bench.write(four, "h", b"1");
    rename(&bench, "one", "four", exchange).unwrap();
    assert_eq!(bench.fs.place_of(f).unwrap().0, path("four/f"));
    rename(&bench, "one", "four/below", 0).unwrap();
    rename(&bench, "four/below", "out", 0).unwrap();
    assert!(there(&bench, OTHER, "out/h").is_file(), "it came from there");
}

#[test]
fn what_is_removed_goes_from_its_store() {
    let bench = Bench::over_two("", rules());
    let two = mkdir_in(&bench, true, "two");
    let sub = bench.mkdir(two, "sub").attr.nodeid;
    bench.write(sub, "f", b"1");
    bench.fs.remove_junk(None).unwrap();
    assert!(bench.names(ROOT).is_empty());
    assert!(!there(&bench, OTHER, "two").exists());
    let again = mkdir_in(&bench, false, "two");
    let gone = start(|done| bench.fs.rmdir(me(), ROOT, b"two", done));
    bench.round().unwrap();
    now(&gone).unwrap();
    assert!(!there(&bench, FIRST, "two").exists());
    assert!(bench.fs.place_of(again).is_none());
}

#[test]
fn flat_datasets_and_pointers_stay_in_the_first_store() {
    let bench = Bench::over_two("", rules());
    goes_to_other(&bench, true);
    let mode = crate::dataset::FLAT | 0o755;
    let op = DirOp::Make { path: path("flat"), mode, uid: me().uid, gid: me().gid };
    bench.fs.prepare(&op).unwrap();
    bench.fs.apply(&op).unwrap();
    assert!(there(&bench, FIRST, "flat").is_dir());
}

#[test]
fn a_successor_finds_one_where_an_interrupted_rename_left_two() {
    let bench = Bench::over_two("", rules());
    let two = mkdir_in(&bench, true, "two");
    bench.write(two, "f", b"1");
    // As between the rename and the removal of what it replaced.
    std::fs::create_dir(there(&bench, FIRST, "two")).unwrap();
    let (fs, _) = bench.again();
    assert!(!there(&bench, FIRST, "two").exists());
    let found = fs.lookup(ROOT, b"two").unwrap().attr.nodeid;
    assert!(fs.lookup(found, b"f").is_ok());
}

#[test]
fn the_next_generation_is_put_together_in_its_store() {
    let bench = Bench::over_two("", rules());
    let two = mkdir_in(&bench, true, "two");
    let f = bench.write(two, "f", b"sealed");
    // The node keeps the sealed bytes aside, in that store.
    std::fs::create_dir(bench.dir.path().join(OTHER).join("aside")).unwrap();
    std::fs::hard_link(there(&bench, OTHER, "two/f"), bench.dir.path().join(OTHER).join("aside/f")).unwrap();
    bench.seal(2, "two", &[("f", 6)]);
    let opening = bench.open(f, libc::O_WRONLY | libc::O_TRUNC);
    let Asked::Open(id, done) = bench.asked() else { panic!("not a generation") };
    bench.fs.generation(id, crate::boundary::Generation { open: true, ..Default::default() });
    done(Ok(()));
    let opened = now(&opening).unwrap();
    assert_eq!(bench.fs.write(Caller::default(), opened.fh, 0, b"new").unwrap(), 3);
    bench.fs.release(opened.fh);
    assert_eq!(std::fs::read(there(&bench, OTHER, "two/f")).unwrap(), b"new");
    assert_eq!(std::fs::read(bench.dir.path().join(OTHER).join("aside/f")).unwrap(), b"sealed");
}
