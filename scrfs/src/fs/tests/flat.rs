//! Files of the checkpoint path that are datasets' by their names.

use super::*;
use crate::boundary::{Generation, Look};
use crate::dataset::FLAT;

const PATTERN: &str = r"melt\.(.*?)\.\d+\.restart";

impl Bench {
    fn flat() -> Self {
        let bench = Self::new("");
        bench.follow(Some(PATTERN));
        bench
    }

    fn follow(&self, pattern: Option<&str>) {
        let mut settings = crate::control::test_settings();
        settings.loose.pattern = pattern.map(str::to_owned);
        self.fs.follow(&settings);
    }

    /// The first file of a dataset, which asks for its directory.
    fn first(&self, name: &str) -> u64 {
        let made = start(|done| self.fs.create(me(), ROOT, name.as_bytes(), 0o644, libc::O_RDWR, done));
        assert!(waits(&made));
        self.round().unwrap();
        let (entry, opened) = now(&made).unwrap();
        self.fs.release(opened.fh);
        entry.attr.nodeid
    }

    fn unlink(&self, name: &str) -> Receiver<Result<(), Errno>> {
        start(|done| self.fs.unlink(me(), ROOT, name.as_bytes(), done))
    }

    fn rename_to(&self, from: &str, to: &str) -> Receiver<Result<(), Errno>> {
        start(|done| self.fs.rename(me(), (ROOT, from.as_bytes()), (ROOT, to.as_bytes()), 0, done))
    }

    fn is_there(&self, name: &str) -> bool {
        self.fs.lookup(ROOT, name.as_bytes()).is_ok()
    }

    fn seal_flat(&self, id: u64, name: &str, files: &[(&str, u64)]) {
        let mut catalog = catalog(id, name, files);
        catalog.entries.retain(|entry| !matches!(entry.kind, EntryKind::Symlink(_)));
        catalog.entries[0].mode = FLAT | 0o755;
        self.fs.sealed(Arc::new(CatalogIndex::new(catalog)));
    }

    fn notes(&self) -> String {
        std::mem::take(&mut *self.node.notes.lock()).join("\n")
    }
}

#[test]
fn files_of_two_datasets_beside_others() {
    let bench = Bench::flat();
    bench.mkdir(ROOT, "ck");
    bench.write(ROOT, "latest", b"200\n");
    let first = bench.first("melt.200.0.restart");
    bench.first("melt.300.0.restart");
    bench.write(ROOT, "melt.200.1.restart", b"no round for the second");
    assert_eq!(
        bench.names(ROOT),
        ["ck", "latest", "melt.200.0.restart", "melt.200.1.restart", "melt.300.0.restart"]
    );
    assert!(bench.tree("200/melt.200.1.restart").exists());
    assert_eq!(bench.fs.lookup(ROOT, b"melt.200.0.restart").unwrap().attr.nodeid, first);
    assert!(!bench.is_there("200"), "the directory is not seen");
    assert!(bench.node.created.lock().contains(&path("200/melt.200.0.restart")));
    // What other nodes are told makes the same of it there.
    let told = bench.fs.directories().unwrap();
    let other = Bench::flat();
    for held in told.into_iter().filter(|held| held.path == path("200")) {
        let op = DirOp::Make { path: held.path, mode: held.mode, uid: held.uid, gid: held.gid };
        other.fs.prepare(&op).and_then(|()| other.fs.apply(&op)).unwrap();
    }
    other.write(ROOT, "melt.200.2.restart", b"");
    assert_eq!(other.names(ROOT), ["melt.200.2.restart"]);
    // Only names of files are the daemon's to know.
    let files = bench.fs.files(b"200").unwrap();
    assert_eq!(files.iter().map(|file| file.size).collect::<Vec<_>>(), [0, 23]);
    assert_eq!(bench.fs.loose_names().unwrap(), [b"latest".to_vec()]);
    assert_eq!(bench.fs.loose_entry(b"melt.200.1.restart", 100), Ok(Look::Dataset));
}

#[test]
fn the_marker_has_the_name_of_its_dataset() {
    let bench = Bench::flat();
    assert_eq!(bench.create(ROOT, ".complete.200").unwrap_err(), Errno(libc::ENOENT));
    assert!(bench.notes().contains("there is no file of such a dataset"));
    bench.first("melt.200.0.restart");
    let (_, opened) = bench.create(ROOT, ".complete.200").unwrap();
    assert!(!bench.is_there(".complete.200"), "only once it is true");
    let closed = start(|done| bench.fs.flush(me(), opened.fh, done));
    let Asked::Marker(name, _, done) = bench.asked() else { panic!("not a marker") };
    assert_eq!(name, b"200");
    bench.seal_flat(1, "200", &[("melt.200.0.restart", 0), ("melt.200.7.restart", 9)]);
    done(Ok(()));
    now(&closed).unwrap();
    bench.fs.release(opened.fh);
    assert_eq!(bench.names(ROOT), [".complete.200", "melt.200.0.restart", "melt.200.7.restart"]);
    let elsewhere = bench.fs.lookup(ROOT, b"melt.200.7.restart").unwrap().attr;
    assert_eq!(elsewhere.size, 9);
    let opened = bench.open(elsewhere.nodeid, libc::O_RDONLY);
    let Asked::Fetch(wanted, done) = bench.asked() else { panic!("not a fetch") };
    assert_eq!(wanted, path("melt.200.7.restart"));
    done(Err(Errno(libc::EIO)));
    assert_eq!(now(&opened).unwrap_err(), Errno(libc::EIO));
    bench.write(ROOT, "data", b"1");
    let marked = bench.rename_to("data", ".complete.200");
    let Asked::Marker(_, marking, done) = bench.asked() else { panic!("not a marker") };
    assert!(marking.holds_directory);
    done(Ok(()));
    now(&marked).unwrap();
    bench.first("melt.300.0.restart");
    bench.create(ROOT, ".invalid.300").unwrap();
    assert!(bench.fs.is_invalid(b"300") && bench.is_there(".invalid.300"));
    assert!(bench.names(ROOT).contains(&".invalid.300".into()));
}

#[test]
fn other_things_of_those_names_are_refused() {
    let bench = Bench::flat();
    bench.mkdir(ROOT, "100");
    assert_eq!(bench.create(ROOT, "melt.100.0.restart").unwrap_err(), Errno(libc::EEXIST));
    bench.write(ROOT, "150", b"loose");
    assert_eq!(bench.create(ROOT, "melt.150.0.restart").unwrap_err(), Errno(libc::EEXIST));
    assert!(bench.notes().contains("melt.100.0.restart: refused"));
    bench.first("melt.200.0.restart");
    let made = start(|done| bench.fs.mkdir(me(), ROOT, b"200", 0o755, done));
    assert_eq!(now(&made).unwrap_err(), Errno(libc::EEXIST));
    assert_eq!(bench.create(ROOT, "200").unwrap_err(), Errno(libc::EEXIST));
    assert_eq!(now(&bench.rename_to("150", "200")), Err(Errno(libc::EEXIST)));
    assert!(bench.notes().contains("200: refused"));
    // A directory called like a file: by another node, by a rename.
    let (path, uid, gid) = (path("melt.200.0.restart"), 0, 0);
    let op = DirOp::Make { path, mode: 0o755, uid, gid };
    assert_eq!(bench.fs.prepare(&op), Err(Errno(libc::EEXIST)));
    assert_eq!(now(&bench.rename_to("100", "melt.200.0.restart")), Err(Errno(libc::ENOTDIR)));
    // Made by another node meanwhile: the same dataset.
    let made = start(|done| bench.fs.create(me(), ROOT, b"melt.400.0.restart", 0o644, libc::O_RDWR, done));
    let Asked::Directory(op, done) = bench.asked() else { panic!("not a directory") };
    bench.fs.prepare(&op).and_then(|()| bench.fs.apply(&op)).unwrap();
    done(Err(Errno(libc::EEXIST)));
    now(&made).unwrap();
    let changes = Changes { mode: Some(FLAT | 0o700), ..Changes::default() };
    let dir = bench.fs.lookup(ROOT, b"100").unwrap().attr.nodeid;
    assert_eq!(
        now(&start(|done| bench.fs.setattr(me(), dir, changes, done))).unwrap_err(),
        Errno(libc::EPERM)
    );
}

#[test]
fn what_names_no_dataset_is_loose() {
    let bench = Bench::flat();
    for name in ["melt..0.restart", "melt..scrfs.0.restart", &format!("melt.{}.0.restart", "x".repeat(241))] {
        let loose = name.len() > 255;
        let made = bench.create(ROOT, name);
        assert_eq!(made.is_err(), loose, "{name}");
        if !loose {
            assert!(bench.tree(name).exists() && bench.notes().contains("it is a loose file"), "{name}");
        }
    }
    bench.follow(Some(r"(.{246})|(?P<dataset>\.complete)|.*\.(?:scr)()"));
    for name in [&"x".repeat(246), ".complete"] {
        bench.write(ROOT, name, b"");
        assert!(bench.tree(name).is_file(), "{name}");
    }
    assert!(bench.node.asked.lock().is_empty());
}

#[test]
fn names_move_in_and_out() {
    let bench = Bench::flat();
    bench.write(ROOT, "tmp", b"bytes");
    let moved = bench.rename_to("tmp", "melt.200.0.restart");
    bench.round().unwrap();
    now(&moved).unwrap();
    assert_eq!(std::fs::read(bench.tree("200/melt.200.0.restart")).unwrap(), b"bytes");
    assert!(bench.node.created.lock().contains(&path("200/melt.200.0.restart")));
    now(&bench.rename_to("melt.200.0.restart", "melt.200.1.restart")).unwrap();
    bench.write(ROOT, "melt.200.2.restart", b"other");
    now(&bench.rename_to("melt.200.2.restart", "melt.200.1.restart")).unwrap();
    assert_eq!(bench.names(ROOT), ["melt.200.1.restart"]);
    let file = bench.fs.lookup(ROOT, b"melt.200.1.restart").unwrap().attr.nodeid;
    now(&start(|done| bench.fs.link(me(), file, ROOT, b"melt.200.4.restart", done))).unwrap();
    let linked = start(|done| bench.fs.link(me(), file, ROOT, b"latest", done));
    assert_eq!(now(&linked).unwrap_err(), Errno(libc::EXDEV));
    let link = NewNode::Symlink(b"melt.200.1.restart".to_vec());
    now(&start(|done| bench.fs.make_node(me(), ROOT, b"melt.200.5.restart", link, done))).unwrap();
    assert!(bench.tree("200/melt.200.5.restart").is_symlink());
    for name in ["melt.200.4.restart", "melt.200.5.restart"] {
        now(&bench.unlink(name)).unwrap();
    }
    // The last one leaves.
    let left = bench.rename_to("melt.200.1.restart", "latest");
    bench.round().unwrap();
    now(&left).unwrap();
    assert!(!bench.tree("200").exists());
    assert_eq!(bench.names(ROOT), ["latest"]);
}

#[test]
fn an_unsealed_dataset_goes_with_the_last_file_of_all_nodes() {
    let bench = Bench::flat();
    bench.first("melt.200.0.restart");
    bench.write(ROOT, "melt.200.1.restart", b"");
    now(&bench.unlink("melt.200.0.restart")).unwrap();
    let remove = DirOp::Remove { path: path("200") };
    assert_eq!(
        bench.fs.prepare(&remove),
        Err(Errno(libc::ENOTEMPTY)),
        "another node's was the last one there"
    );
    let gone = bench.unlink("melt.200.1.restart");
    assert!(waits(&gone));
    // Another node has one still.
    let Asked::Directory(op, done) = bench.asked() else { panic!("not a directory") };
    assert_eq!(op, remove);
    done(Err(Errno(libc::ENOTEMPTY)));
    now(&gone).unwrap();
    bench.write(ROOT, "melt.200.1.restart", b"");
    let gone = bench.unlink("melt.200.1.restart");
    bench.round().unwrap();
    now(&gone).unwrap();
    assert!(!bench.tree("200").exists());
    bench.first("melt.200.0.restart");
}

#[test]
fn a_sealed_file_goes_on_all_nodes_and_its_dataset_with_the_last() {
    let bench = Bench::flat();
    bench.first("melt.200.0.restart");
    bench.seal_flat(1, "200", &[("melt.200.0.restart", 0), ("melt.200.1.restart", 5)]);
    let gone = bench.unlink("melt.200.0.restart");
    assert!(waits(&gone) && bench.is_there("melt.200.0.restart"));
    bench.round().unwrap();
    now(&gone).unwrap();
    assert_eq!(bench.names(ROOT), [".complete.200", "melt.200.1.restart"]);
    // The other one, of another node.
    let op = DirOp::Remove { path: path("200/melt.200.1.restart") };
    bench.fs.prepare(&op).and_then(|()| bench.fs.apply(&op)).unwrap();
    assert_eq!(bench.names(ROOT), [".complete.200"]);
    let op = DirOp::Remove { path: path("200") };
    bench.fs.prepare(&op).and_then(|()| bench.fs.apply(&op)).unwrap();
    assert!(bench.names(ROOT).is_empty() && !bench.tree("200").exists());
    bench.seal_flat(2, "300", &[("melt.300.1.restart", 5)]);
    let gone = bench.unlink("melt.300.1.restart");
    bench.round().unwrap();
    assert!(waits(&gone));
    bench.round().unwrap();
    now(&gone).unwrap();
    assert!(bench.names(ROOT).is_empty());
}

#[test]
fn a_file_of_the_next_generation_is_not_another_nodes_to_remove() {
    let bench = Bench::flat();
    bench.first("melt.200.0.restart");
    bench.seal_flat(1, "200", &[("melt.200.0.restart", 0), ("melt.200.1.restart", 5)]);
    let changed = vec![path("melt.200.0.restart")];
    bench.fs.generation(DatasetId(1), Generation { open: true, changed, ..Generation::default() });
    let op = |name: &str| DirOp::Remove { path: path("200").join(name.as_bytes()).unwrap() };
    assert_eq!(bench.fs.prepare(&op("melt.200.0.restart")), Err(Errno(libc::EBUSY)));
    now(&bench.unlink("melt.200.0.restart")).unwrap();
    // Refused there, it is removed here as from any dataset.
    let gone = bench.unlink("melt.200.1.restart");
    let Asked::Directory(asked, done) = bench.asked() else { panic!("not a directory") };
    assert_eq!(asked, op("melt.200.1.restart"));
    done(Err(Errno(libc::EBUSY)));
    let Asked::Directory(asked, done) = bench.asked() else { panic!("not a directory") };
    assert_eq!(asked, DirOp::Remove { path: path("200") });
    done(Err(Errno(libc::ENOTEMPTY)));
    now(&gone).unwrap();
    assert!(bench.node.removed.lock().contains(&path("melt.200.1.restart")));
    assert!(bench.names(ROOT).is_empty());
}

#[test]
fn another_pattern() {
    let bench = Bench::new("");
    bench.write(ROOT, "melt.100.0.restart", b"before there was one");
    bench.follow(Some(PATTERN));
    assert!(bench.notes().contains("melt.100.0.restart: was made before"));
    assert!(bench.is_there("melt.100.0.restart") && bench.tree("melt.100.0.restart").is_file());
    bench.first("melt.100.1.restart");
    bench.write(ROOT, "melt.100.0.restart", b"and goes on so");
    assert_eq!(bench.names(ROOT), ["melt.100.0.restart", "melt.100.1.restart"]);
    assert!(bench.tree("melt.100.0.restart").is_file());
    now(&bench.unlink("melt.100.0.restart")).unwrap();
    bench.write(ROOT, "melt.100.0.restart", b"");
    assert!(bench.tree("100/melt.100.0.restart").is_file(), "a new file is not the old one");
    bench.seal_flat(1, "200", &[("melt.200.0.restart", 5)]);
    for pattern in [None, Some(r"melt\.(\d+)\.[1-9]\.restart")] {
        bench.follow(pattern);
        assert!(bench.names(ROOT).contains(&"200".into()), "{pattern:?}");
        let dir = bench.fs.lookup(ROOT, b"200").unwrap().attr.nodeid;
        assert_eq!(bench.names(dir), [".complete", "melt.200.0.restart"]);
    }
    assert!(bench.notes().contains("dataset 200 was sealed as files"));
    let unsealed = bench.fs.lookup(ROOT, b"100").unwrap().attr.nodeid;
    assert_eq!(bench.names(unsealed), ["melt.100.0.restart", "melt.100.1.restart"]);
    // What was sealed so is seen so again; what was not remains what it became.
    bench.follow(Some(PATTERN));
    assert_eq!(bench.names(ROOT), [".complete.200", "100", "melt.200.0.restart"]);
    bench.seal(2, "ordinary", &[("melt.ordinary.0.restart", 1)]);
    assert!(bench.names(ROOT).contains(&"ordinary".into()));
}

#[test]
fn a_successor_finds_them_where_they_were() {
    let bench = Bench::new("job/ck");
    bench.follow(Some(PATTERN));
    let job = bench.fs.lookup(ROOT, b"job").unwrap().attr.nodeid;
    let top = bench.fs.lookup(job, b"ck").unwrap().attr.nodeid;
    let make = |name: &str| start(|done| bench.fs.create(me(), top, name.as_bytes(), 0o644, 2, done));
    let made = make("melt.200.0.restart");
    bench.round().unwrap();
    now(&made).unwrap();
    let outside = bench.create(job, "melt.200.1.restart").unwrap().0.attr.nodeid;
    assert_eq!(bench.fs.place_of(outside).unwrap().0, path("job/melt.200.1.restart"));
    let fs = FileSystem::new(&bench.tree(""), path("job/ck")).unwrap();
    let successor = Bench { dir: bench.dir, fs, node: Arc::clone(&bench.node), stores: None, ids: 0.into() };
    successor.fs.connect(&(Arc::clone(&successor.node) as _));
    successor.follow(Some(PATTERN));
    let job = successor.fs.lookup(ROOT, b"job").unwrap().attr.nodeid;
    let top = successor.fs.lookup(job, b"ck").unwrap().attr.nodeid;
    assert_eq!(successor.names(top), ["melt.200.0.restart"]);
    successor.fs.remove_junk(None).unwrap();
    assert!(successor.names(top).is_empty());
}
