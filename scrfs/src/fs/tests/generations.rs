//! The next generation of a sealed dataset. The test plays the node: it puts sealed files aside as
//! the node does.

use super::*;
use crate::boundary::Generation;

impl Bench {
    /// A sealed dataset of this node, `aside` for its next generation.
    pub(super) fn sealed_here(&self, files: &[(&str, &str)]) -> u64 {
        let ck = self.mkdir(ROOT, "ck").attr.nodeid;
        for (name, data) in files {
            self.write(ck, name, data.as_bytes());
        }
        let sizes: Vec<(&str, u64)> = files.iter().map(|(name, data)| (*name, data.len() as u64)).collect();
        self.seal(3, "ck", &sizes);
        self.node.created.lock().clear();
        ck
    }

    pub(super) fn aside(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join("aside").join(name)).unwrap()
    }

    /// Answers the request for the next generation.
    pub(super) fn begin(&self) {
        let Asked::Open(id, done) = self.asked() else { panic!("not a next generation") };
        assert_eq!(id, DatasetId(3));
        let aside = self.dir.path().join("aside");
        std::fs::create_dir(&aside).unwrap();
        for entry in std::fs::read_dir(self.tree("ck")).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::hard_link(entry.path(), aside.join(entry.file_name())).unwrap();
            }
        }
        self.fs.generation(id, Generation { open: true, begins: true, ..Generation::default() });
        done(Ok(()));
    }

    /// Answers the request for a sealed file's own copy.
    fn keep(&self, name: &str) {
        let Asked::Keep(wanted, done) = self.asked() else { panic!("not a file to keep") };
        assert_eq!(wanted, path(name));
        let aside = self.dir.path().join("aside").join(name);
        let data = std::fs::read(&aside).unwrap();
        std::fs::remove_file(&aside).unwrap();
        std::fs::write(&aside, data).unwrap();
        done(Ok(()));
    }

    pub(super) fn id(&self, parent: u64, name: &str) -> u64 {
        self.fs.lookup(parent, name.as_bytes()).unwrap().attr.nodeid
    }

    pub(super) fn written(&self, outcome: &Receiver<Result<crate::fs::Opened, Errno>>, data: &[u8]) {
        let opened = now(outcome).unwrap();
        self.fs.write(me(), opened.fh, 0, data).unwrap();
        self.fs.release(opened.fh);
    }
}

#[test]
fn an_emptied_file_is_handed_over_and_an_open_one_copied() {
    let bench = Bench::new("");
    let ck = bench.sealed_here(&[("a", "old a"), ("b", "old b")]);
    let (a, b) = (bench.id(ck, "a"), bench.id(ck, "b"));
    let reader = now(&bench.open(b, libc::O_RDONLY)).unwrap();
    let writing = bench.open(a, libc::O_WRONLY | libc::O_TRUNC);
    assert!(waits(&writing));
    bench.begin();
    bench.written(&writing, b"new");
    assert_eq!((bench.aside("a").as_str(), bench.id(ck, "a")), ("old a", a), "the number stays");
    assert!(bench.node.asked.lock().is_empty(), "nothing was copied");
    assert_eq!(*bench.node.created.lock(), [path("a")]);
    let writing = bench.open(b, libc::O_WRONLY | libc::O_TRUNC);
    assert!(waits(&writing), "somebody reads it");
    bench.keep("b");
    bench.written(&writing, b"new b");
    assert_eq!(bench.aside("b"), "old b");
    assert_eq!(bench.read(reader.fh), b"new b", "the same file");
    // Once kept, it is not asked again.
    bench.written(&bench.open(b, libc::O_RDWR), b"again");
    assert_eq!(bench.names(ck), ["a", "b"], "the marker is not true any more");
    assert_eq!(bench.fs.lookup(ck, b"a").unwrap().attr.size, 3);
}

#[test]
fn a_sealed_file_that_another_one_replaces_is_changed_by_nobody_who_still_knows_it() {
    let bench = Bench::new("");
    let ck = bench.sealed_here(&[("a", "old a"), ("b", "old b")]);
    let a = bench.id(ck, "a");
    let reader = now(&bench.open(a, libc::O_RDONLY)).unwrap();
    let replacing = start(|done| bench.fs.rename(me(), (ck, b"b"), (ck, b"a"), 0, done));
    bench.begin();
    assert_eq!(now(&replacing), Ok(()));
    for flags in [libc::O_WRONLY, libc::O_RDONLY | libc::O_TRUNC] {
        assert_eq!(now(&bench.open(a, flags)).unwrap_err(), Errno(libc::ESTALE), "{flags:#x}");
    }
    let truncate = Changes { size: Some(0), ..Changes::default() };
    let truncated = now(&start(|done| bench.fs.setattr(me(), a, truncate, done)));
    assert_eq!(truncated.unwrap_err(), Errno(libc::ESTALE));
    assert_eq!((bench.aside("a").as_str(), bench.read(reader.fh).as_slice()), ("old a", &b"old a"[..]));
}

/// File systems give numbers of files that are gone to new ones: sealed files may get them.
#[test]
fn of_a_file_whose_names_are_gone_nothing_is_remembered() {
    let bench = Bench::new("");
    let ck = bench.sealed_here(&[("a", "old a")]);
    let a = bench.id(ck, "a");
    let linking = start(|done| bench.fs.link(me(), a, ck, b"other", done));
    bench.begin();
    now(&linking).unwrap();
    let writing = bench.open(a, libc::O_WRONLY);
    bench.keep("a");
    bench.written(&writing, b"new");
    bench.written(&bench.open(a, libc::O_WRONLY), b"once more");
    let key = bench.fs.table.get(a).unwrap().key().unwrap();
    let is_own = || bench.fs.view.world().by_id(DatasetId(3)).unwrap().is_own(key);
    assert!(is_own());
    for name in [&b"a"[..], b"other"] {
        now(&start(|done| bench.fs.unlink(me(), ck, name, done))).unwrap();
    }
    assert!(!is_own());
    assert_eq!(bench.aside("a"), "old a");
}

#[test]
fn names_come_and_go_in_the_next_generation() {
    let bench = Bench::new("");
    let ck = bench.sealed_here(&[("a", "a"), ("b", "b"), ("c", "c")]);
    let unlink = |name: &str| now(&start(|done| bench.fs.unlink(me(), ck, name.as_bytes(), done)));
    unlink("c").unwrap();
    assert_eq!(*bench.node.removed.lock(), [path("c")]);
    assert!(bench.node.asked.lock().is_empty(), "removing alone begins nothing");
    let renamed = start(|done| bench.fs.rename(me(), (ck, b"a"), (ck, b"n"), 0, done));
    bench.begin();
    now(&renamed).unwrap();
    assert_eq!(bench.names(ck), ["b", "n"]);
    assert_eq!(unlink("c"), Err(Errno(libc::ENOENT)));
    unlink("b").unwrap();
    let made = now(&start(|done| bench.fs.create(me(), ck, b"c", 0o644, libc::O_RDWR | libc::O_EXCL, done)));
    bench.fs.release(made.unwrap().1.fh);
    assert_eq!(bench.names(ck), ["c", "n"]);
    assert_eq!(*bench.node.removed.lock(), [path("c"), path("a"), path("b")]);
    assert_eq!(*bench.node.created.lock(), [path("n"), path("c")]);
    assert_eq!([bench.aside("a"), bench.aside("b"), bench.aside("c")], ["a", "b", "c"]);
    // The renamed file still shares its bytes.
    let writing = bench.open(bench.id(ck, "n"), libc::O_WRONLY);
    assert!(waits(&writing));
    let Asked::Keep(wanted, done) = bench.asked() else { panic!("not a file to keep") };
    assert_eq!(wanted, path("n"));
    done(Err(Errno(libc::ENOSPC)));
    assert_eq!(now(&writing).unwrap_err(), Errno(libc::ENOSPC));
}

#[test]
fn what_is_elsewhere_is_seen_and_brought() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    bench.write(ck, "a", b"a");
    bench.seal(3, "ck", &[("a", 1), ("far", 5), ("gone", 2)]);
    let far = bench.id(ck, "far");
    let made = start(|done| bench.fs.create(me(), ck, b"new", 0o644, libc::O_RDWR, done));
    bench.begin();
    bench.fs.release(now(&made).unwrap().1.fh);
    assert_eq!(bench.names(ck), ["a", "far", "gone", "new"]);
    assert_eq!((bench.id(ck, "far"), bench.fs.getattr(far).unwrap().0.size), (far, 5));
    let exclusive = start(|done| bench.fs.create(me(), ck, b"far", 0o644, libc::O_RDWR | libc::O_EXCL, done));
    assert_eq!(now(&exclusive).unwrap_err(), Errno(libc::EEXIST));
    // Emptied, it need not come.
    let gone = bench.id(ck, "gone");
    let empty = Changes { size: Some(0), ..Changes::default() };
    assert_eq!(now(&start(|done| bench.fs.setattr(me(), gone, empty, done))).unwrap().0.size, 0);
    let writing = bench.open(far, libc::O_WRONLY);
    let Asked::Fetch(wanted, done) = bench.asked() else { panic!("not a fetch") };
    assert_eq!(wanted, path("far"));
    std::fs::write(bench.dir.path().join("aside/far"), b"12345").unwrap();
    std::fs::hard_link(bench.dir.path().join("aside/far"), bench.tree("ck/far")).unwrap();
    done(Ok(()));
    bench.keep("far");
    bench.written(&writing, b"x");
    assert_eq!((bench.aside("far").as_str(), bench.id(ck, "far")), ("12345", far));
    assert_eq!(std::fs::read(bench.tree("ck/far")).unwrap(), b"x2345");
    let unlink = |name: &[u8]| now(&start(|done| bench.fs.unlink(me(), ck, name, done)));
    unlink(b"far").unwrap();
    assert_eq!(unlink(b"far"), Err(Errno(libc::ENOENT)));
}

#[test]
fn a_newer_generation_takes_the_place_of_the_one_before() {
    let bench = Bench::new("");
    let ck = bench.sealed_here(&[("a", "a"), ("b", "b")]);
    let (a, b) = (bench.id(ck, "a"), bench.id(ck, "b"));
    let writing = bench.open(a, libc::O_WRONLY);
    bench.begin();
    bench.keep("a");
    bench.written(&writing, b"A");
    bench.fs.freeze(b"ck");
    let waiting = bench.open(a, libc::O_WRONLY);
    assert!(waits(&waiting));
    // Another node changed `b`: the node takes the old one out of the tree.
    std::fs::remove_file(bench.tree("ck/b")).unwrap();
    bench.seal(4, "ck", &[("a", 1), ("b", 7)]);
    assert_eq!(bench.names(ck), [".complete", "a", "b", "link"]);
    assert_eq!(bench.id(ck, "a"), a);
    let now_b = bench.fs.lookup(ck, b"b").unwrap().attr;
    assert!(now_b.nodeid != b && now_b.size == 7);
    let begun = std::time::Instant::now();
    while bench.node.asked.lock().is_empty() && begun.elapsed() < Duration::from_mins(1) {
        std::thread::yield_now();
    }
    let Asked::Open(id, _) = bench.asked() else { panic!("not a next generation") };
    assert_eq!(id, DatasetId(4));
}

/// A directory gets the name of a file that was removed here: all nodes hear first that the file is
/// gone.
#[test]
fn a_directory_takes_the_name_of_a_removed_file() {
    let bench = Bench::new("");
    let ck = bench.sealed_here(&[("a", "a"), ("b", "b")]);
    now(&start(|done| bench.fs.unlink(me(), ck, b"a", done))).unwrap();
    let made = start(|done| bench.fs.mkdir(me(), ck, b"a", 0o755, done));
    bench.begin();
    let Asked::Directory(gone, answer) = bench.asked() else { panic!("not a directory operation") };
    assert_eq!(gone, DirOp::Remove { path: path("ck/a") });
    bench.fs.prepare(&gone).unwrap();
    bench.fs.apply(&gone).unwrap();
    answer(Ok(()));
    let Asked::Directory(make, answer) = bench.asked() else { panic!("not a directory operation") };
    assert!(matches!(&make, DirOp::Make { path: made, .. } if *made == path("ck/a")));
    bench.fs.prepare(&make).unwrap();
    bench.fs.apply(&make).unwrap();
    answer(Ok(()));
    assert_eq!(now(&made).unwrap().attr.kind, Kind::Directory);
    // On another node a sealed file goes, and one that was changed there does not.
    let gone = |name: &str| DirOp::Remove { path: path(&format!("ck/{name}")) };
    now(&start(|done| bench.fs.create(me(), ck, b"n", 0o644, libc::O_RDWR, done))).unwrap();
    assert_eq!(bench.fs.prepare(&gone("n")), Err(Errno(libc::ENOTDIR)));
    bench.fs.prepare(&gone("b")).unwrap();
    bench.fs.apply(&gone("b")).unwrap();
    assert_eq!(bench.names(ck), ["a", "n"]);
}

#[test]
fn directories_below_a_sealed_dataset_are_not_renamed_and_can_be_made_anew() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    let d = bench.mkdir(ck, "d").attr.nodeid;
    let other = bench.mkdir(ROOT, "other").attr.nodeid;
    bench.mkdir(other, "q");
    bench.write(d, "here", b"here");
    bench.seal(3, "ck", &[("d/far", 5), ("d/here", 4)]);
    let rename = |from: (u64, &[u8]), to: (u64, &[u8]), flags: u32| {
        now(&start(|done| bench.fs.rename(me(), from, to, flags, done)))
    };
    let exchange = rustix::fs::RenameFlags::EXCHANGE.bits();
    let refused = |ck: u64| {
        assert_eq!(rename((ck, b"d"), (ck, b"e"), 0), Err(Errno(libc::EXDEV)));
        assert_eq!(rename((ck, b"d"), (ROOT, b"e"), 0), Err(Errno(libc::EXDEV)));
        assert_eq!(rename((other, b"q"), (ck, b"e"), 0), Err(Errno(libc::EXDEV)));
        assert_eq!(rename((other, b"q"), (ck, b"d"), exchange), Err(Errno(libc::EXDEV)));
    };
    refused(ck);
    assert!(bench.node.asked.lock().is_empty(), "that begins nothing");
    for (from, to) in [("ck/d", "ck/e"), ("other/q", "ck/e"), ("ck/d", "other/e")] {
        let op = DirOp::Rename { from: path(from), to: path(to), no_replace: false, exchange: false };
        assert_eq!(bench.fs.prepare(&op), Err(Errno(libc::EXDEV)), "what another node asks for, {from}");
    }
    bench.fs.generation(DatasetId(3), Generation { open: true, begins: true, ..Generation::default() });
    let ck = bench.id(ROOT, "ck");
    refused(ck);
    // A new directory of a removed one's name has nothing of it.
    let d = bench.id(ck, "d");
    for name in [&b"far"[..], b"here"] {
        now(&start(|done| bench.fs.unlink(me(), d, name, done))).unwrap();
    }
    let removed = start(|done| bench.fs.rmdir(me(), ck, b"d", done));
    bench.round().unwrap();
    now(&removed).unwrap();
    let made = start(|done| bench.fs.mkdir(me(), ck, b"d", 0o755, done));
    bench.round().unwrap();
    let d = now(&made).unwrap().attr.nodeid;
    assert!(bench.names(d).is_empty());
    assert_eq!(now(&start(|done| bench.fs.unlink(me(), d, b"far", done))), Err(Errno(libc::ENOENT)));
    // A file that was never sealed moves as ever.
    bench.write(d, "new", b"new");
    rename((d, b"new"), (ck, b"new"), 0).unwrap();
    assert_eq!(bench.names(ck), ["d", "new"]);
}

/// A lazy restart has presented its files before anybody has read them.
#[test]
fn an_unread_file_is_verified_before_anything_is_made_of_it() {
    let bench = Bench::new("");
    let names = ["a", "b", "c", "d", "e"];
    let ck = bench.sealed_here(&names.map(|name| (name, "sealed")));
    bench.fs.unread(DatasetId(3), names.map(path).to_vec());
    let verify = |name: &str| {
        let Asked::Fetch(wanted, done) = bench.asked() else { panic!("not a file to verify") };
        assert_eq!(wanted, path(name));
        bench.fs.verified(DatasetId(3), &[wanted]);
        done(Ok(()));
    };
    let reading = bench.open(bench.id(ck, "a"), libc::O_RDONLY);
    assert!(waits(&reading));
    verify("a");
    bench.fs.release(now(&reading).unwrap().fh);
    bench.fs.release(now(&bench.open(bench.id(ck, "a"), libc::O_RDONLY)).unwrap().fh);

    let exchange = libc::RENAME_EXCHANGE;
    let swapped = start(|done| bench.fs.rename(me(), (ck, b"a"), (ck, b"b"), exchange, done));
    assert!(waits(&swapped));
    bench.begin();
    assert!(waits(&swapped), "of the name that is exchanged too");
    verify("b");
    now(&swapped).unwrap();
    let writing = bench.open(bench.id(ck, "c"), libc::O_WRONLY);
    assert!(waits(&writing));
    verify("c");
    bench.keep("c");
    bench.written(&writing, b"S");
    let linked = start(|done| bench.fs.link(me(), bench.id(ck, "d"), ck, b"again", done));
    assert!(waits(&linked));
    verify("d");
    now(&linked).unwrap();
    // Its bytes are of no use.
    bench.written(&bench.open(bench.id(ck, "e"), libc::O_WRONLY | libc::O_TRUNC), b"new");
    bench.fs.release(now(&bench.open(bench.id(ck, "e"), libc::O_RDONLY)).unwrap().fh);
}

/// A restart presents dataset 3 as it was sealed, while a program that was killed waits for a
/// change of it.
#[test]
fn what_began_before_a_restart_changes_nothing_that_is_presented() {
    let bench = Bench::new("");
    let ck = bench.sealed_here(&[("a", "sealed")]);
    let present = || {
        bench.fs.presenting();
        bench.fs.unlisted(DatasetId(3));
        bench.seal(3, "ck", &[("a", 6)]);
    };
    let emptying = bench.open(bench.id(ck, "a"), libc::O_WRONLY | libc::O_TRUNC);
    let Asked::Open(_, done) = bench.asked() else { panic!("not a next generation") };
    present();
    done(Ok(()));
    assert_eq!(now(&emptying).unwrap_err(), Errno(libc::EINTR));
    assert!(bench.node.asked.lock().is_empty());
    assert_eq!(std::fs::read(bench.tree("ck/a")).unwrap(), b"sealed");

    let ck = bench.id(ROOT, "ck");
    let a = bench.id(ck, "a");
    let writing = bench.open(a, libc::O_WRONLY);
    bench.begin();
    let Asked::Keep(_, done) = bench.asked() else { panic!("not a file to keep") };
    present();
    done(Ok(()));
    assert_eq!(now(&writing).unwrap_err(), Errno(libc::EINTR));
    // Who changes it from now on has its sealed bytes kept first.
    let ck = bench.id(ROOT, "ck");
    std::fs::remove_dir_all(bench.dir.path().join("aside")).unwrap();
    let writing = bench.open(bench.id(ck, "a"), libc::O_WRONLY);
    bench.begin();
    bench.keep("a");
    bench.written(&writing, b"new");
    assert_eq!(bench.aside("a"), "sealed");
}

/// The journal has a removal before it is tried.
#[test]
fn what_could_not_be_renamed_is_sealed_again() {
    let bench = Bench::new("");
    let ck = bench.sealed_here(&[("a", "a"), ("b", "b"), ("c", "c")]);
    let exchange = libc::RENAME_EXCHANGE;
    let swapped = start(|done| bench.fs.rename(me(), (ck, b"c"), (ck, b".complete"), exchange, done));
    assert!(waits(&swapped), "both names are to stay, so it sets no marker again");
    bench.begin();
    assert_eq!(now(&swapped), Err(Errno(libc::ENOENT)), "no marker was written here");
    assert_eq!(*bench.node.removed.lock(), [path("c")]);
    assert_eq!(*bench.node.created.lock(), [path("c")], "changed, and so not removed");
    let no_replace = libc::RENAME_NOREPLACE;
    let kept = now(&start(|done| bench.fs.rename(me(), (ck, b"a"), (ck, b"b"), no_replace, done)));
    assert_eq!(kept, Err(Errno(libc::EEXIST)));
    assert_eq!(*bench.node.removed.lock(), [path("c"), path("a")]);
    assert_eq!(*bench.node.created.lock(), [path("c"), path("b"), path("a")]);
    assert_eq!(bench.names(ck), ["a", "b", "c"]);
    now(&start(|done| bench.fs.rename(me(), (ck, b"a"), (ck, b"n"), no_replace, done))).unwrap();
    assert_eq!(bench.names(ck), ["b", "c", "n"]);
}
