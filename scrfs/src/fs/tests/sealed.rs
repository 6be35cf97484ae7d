//! What a sealed dataset allows.

use super::*;

#[test]
fn a_sealed_file_from_elsewhere_is_fetched_under_its_number() {
    let bench = Bench::new("");
    bench.seal(3, "ck", &[("a", 4), ("dir/b", 9)]);
    assert_eq!(bench.names(ROOT), ["ck"]);
    let ck = bench.fs.lookup(ROOT, b"ck").unwrap().attr;
    assert_eq!((ck.kind, ck.perm, ck.uid, ck.mtime.secs), (Kind::Directory, 0o640, 7, 77));
    assert_eq!(bench.names(ck.nodeid), [".complete", "a", "dir", "link"]);
    let dir = bench.fs.lookup(ck.nodeid, b"dir").unwrap().attr;
    assert_eq!((dir.kind, bench.names(dir.nodeid)), (Kind::Directory, vec!["b".to_owned()]));
    let link = bench.fs.lookup(ck.nodeid, b"link").unwrap().attr;
    assert_eq!(bench.fs.readlink(link.nodeid).unwrap(), b"a");
    let b = bench.fs.lookup(dir.nodeid, b"b").unwrap().attr;
    assert_eq!((b.size, b.gid), (9, 8));

    let opening = bench.open(b.nodeid, libc::O_RDONLY);
    assert!(waits(&opening));
    let Asked::Fetch(wanted, done) = bench.asked() else { panic!("not a fetch") };
    assert_eq!(wanted, path("dir/b"));
    std::fs::create_dir_all(bench.tree("ck/dir")).unwrap();
    std::fs::write(bench.tree("ck/dir/b"), b"nine byte").unwrap();
    done(Ok(()));
    let opened = now(&opening).unwrap();
    assert_eq!(bench.read(opened.fh), b"nine byte");
    assert_eq!(bench.fs.lookup(dir.nodeid, b"b").unwrap().attr.nodeid, b.nodeid);
    bench.fs.release(opened.fh);

    std::fs::write(bench.tree("ck/dir/b"), b"short").unwrap();
    let opening = bench.open(b.nodeid, libc::O_RDONLY);
    let Asked::Fetch(_, done) = bench.asked() else { panic!("not a fetch") };
    done(Err(Errno(libc::EIO)));
    assert_eq!(now(&opening).unwrap_err(), Errno(libc::EIO), "never wrong bytes");
}

#[test]
fn a_sealed_dataset_keeps_its_name_and_its_marker_may_change() {
    let bench = Bench::new("");
    bench.seal(3, "ck", &[("a", 4)]);
    let ck = bench.fs.lookup(ROOT, b"ck").unwrap().attr.nodeid;
    let a = bench.fs.lookup(ck, b"a").unwrap().attr.nodeid;
    let fs = &bench.fs;
    let moved = start(|done| fs.rename(me(), (ROOT, b"ck"), (ROOT, b"other"), 0, done));
    assert_eq!(now(&moved), Err(Errno(libc::EXDEV)), "mv makes a copy, and the marker last");
    assert_eq!(fs.setxattr(me(), a, b"user.x", b"1", 0), Err(Errno(libc::EROFS)), "it is on another node");
    let marker = fs.lookup(ck, b".complete").unwrap().attr;
    assert_eq!((marker.size, marker.perm), (0, 0o644));
    let times = Changes { mtime: Some(SetTime::At(Stamp { secs: 9, nsecs: 1 })), ..Changes::default() };
    let (attr, _) = now(&start(|done| fs.setattr(me(), marker.nodeid, times, done))).unwrap();
    assert_eq!(attr.mtime, Stamp { secs: 9, nsecs: 1 });
    let opened = now(&bench.open(marker.nodeid, libc::O_WRONLY | libc::O_TRUNC)).unwrap();
    assert_eq!(fs.write(Caller::default(), opened.fh, 0, b"again").unwrap(), 5);
    fs.release(opened.fh);
    assert_eq!(fs.lookup(ck, b".complete").unwrap().attr.size, 5);
}

#[test]
fn a_sealed_dataset_is_removed_from_below() {
    let bench = Bench::new("");
    bench.seal(3, "ck", &[("dir/b", 9)]);
    let ck = bench.fs.lookup(ROOT, b"ck").unwrap().attr.nodeid;
    let dir = bench.fs.lookup(ck, b"dir").unwrap().attr.nodeid;
    let unlink =
        |parent, name: &str| now(&start(|done| bench.fs.unlink(me(), parent, name.as_bytes(), done)));
    let rmdir = |parent, name: &str| start(|done| bench.fs.rmdir(me(), parent, name.as_bytes(), done));
    assert_eq!(now(&rmdir(ROOT, "ck")), Err(Errno(libc::ENOTEMPTY)));
    assert_eq!(unlink(ck, "dir"), Err(Errno(libc::EISDIR)));
    unlink(dir, "b").unwrap();
    assert_eq!(unlink(dir, "b"), Err(Errno(libc::ENOENT)));
    let gone = rmdir(ck, "dir");
    bench.round().unwrap();
    now(&gone).unwrap();
    unlink(ck, "link").unwrap();
    unlink(ck, ".complete").unwrap();
    let gone = rmdir(ROOT, "ck");
    bench.round().unwrap();
    now(&gone).unwrap();
    assert!(bench.names(ROOT).is_empty());
    let anew = bench.mkdir(ROOT, "ck").attr.nodeid;
    assert_ne!(anew, ck);
    bench.write(anew, "a", b"");
}

#[test]
fn attributes_of_a_sealed_dataset_change_in_this_view_only() {
    let bench = Bench::new("");
    let made = bench.mkdir(ROOT, "ck").attr.nodeid;
    bench.write(made, "a", b"data");
    bench.seal(3, "ck", &[("a", 4), ("dir/b", 9)]);
    let ck = bench.fs.lookup(ROOT, b"ck").unwrap().attr.nodeid;
    let [a, dir] = [&b"a"[..], b"dir"].map(|name| bench.fs.lookup(ck, name).unwrap().attr.nodeid);
    let marker = bench.fs.lookup(ck, b".complete").unwrap().attr.nodeid;
    let set = |id, changes: Changes| now(&start(|done| bench.fs.setattr(me(), id, changes, done))).unwrap().0;
    let mode = |mode| Changes { mode: Some(mode), ..Changes::default() };
    for id in [ck, a, dir, marker] {
        assert_eq!(set(id, mode(0o6751)).perm, 0o6751);
    }
    let owner = Changes { uid: Some(70), ..Changes::default() };
    assert_eq!((set(a, owner.clone()).uid, set(a, owner).perm), (70, 0o751), "suid and sgid are gone");
    let times = Changes { atime: Some(SetTime::Now), ..Changes::default() };
    let attr = set(dir, times);
    assert!(attr.atime.secs > 1_000_000_000 && attr.mtime.secs == 77);
    // Another revision of the same generation: the view stays, and nothing was written through.
    bench.seal(3, "ck", &[("a", 4), ("dir/b", 9)]);
    let seen = bench.fs.lookup(ck, b"a").unwrap().attr;
    assert_eq!((seen.perm, seen.uid, seen.gid, seen.size), (0o751, 70, 8, 4));
    let here = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(bench.tree("ck/a")).unwrap());
    assert_eq!(here & 0o777, 0o644);
    assert!(!bench.tree("ck/.complete").exists());
    bench.seal(4, "ck", &[("a", 4)]);
    assert_eq!(bench.fs.lookup(ck, b"a").unwrap().attr.perm, 0o640, "another generation has its own");
}

#[test]
fn a_big_removal_is_out_of_sight_at_once_and_answered_when_its_room_is_free() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    for n in 0..500 {
        bench.write(ck, &format!("f{n}"), b"1");
    }
    bench.seal(3, "ck", &[]);
    let unlink = |name: &[u8]| now(&start(|done| bench.fs.unlink(me(), ck, name, done))).unwrap();
    unlink(b"link");
    unlink(b".complete");
    let gone = start(|done| bench.fs.rmdir(me(), ROOT, b"ck", done));
    bench.round().unwrap();
    assert!(!bench.tree("ck").exists());
    bench.mkdir(ROOT, "ck");
    now(&gone).unwrap();
    assert_eq!(std::fs::read_dir(bench.tree(".scrfs")).unwrap().count(), 0);
}
