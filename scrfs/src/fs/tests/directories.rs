//! Directory operations that all nodes do, and what a restart removes.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::fs::Suspects;

#[test]
fn directories_are_voted_on() {
    let bench = Bench::new("");
    let (a, b) = (bench.mkdir(ROOT, "a").attr.nodeid, bench.mkdir(ROOT, "b").attr.nodeid);
    let (entry, opened) = bench.create(a, "f").unwrap();
    let remove = DirOp::Remove { path: path("a") };
    assert_eq!(bench.fs.prepare(&remove), Err(Errno(libc::ENOTEMPTY)), "a file is open");
    bench.fs.release(opened.fh);
    let rename = |from: &str, to: &str| DirOp::Rename {
        from: path(from),
        to: path(to),
        no_replace: false,
        exchange: false,
    };
    assert_eq!(bench.fs.prepare(&rename("b", "a")), Err(Errno(libc::ENOTEMPTY)));
    assert_eq!(bench.fs.prepare(&rename("b", "b/c")), Err(Errno(libc::EINVAL)));
    let moved = start(|done| bench.fs.rename(me(), (ROOT, b"a"), (b, b"c"), 0, done));
    bench.round().unwrap();
    now(&moved).unwrap();
    assert_eq!(bench.fs.place_of(entry.attr.nodeid).unwrap().0, path("b/c/f"));
    let held: Vec<String> = bench.fs.directories().unwrap().iter().map(|d| d.path.to_string()).collect();
    assert_eq!(held, ["b", "b/c"]);
    let elsewhere = DirOp::Remove { path: path("b") };
    bench.fs.prepare(&elsewhere).expect("files that only this node has go with it");
    bench.fs.apply(&elsewhere).unwrap();
    assert!(!bench.tree("b").exists());
}

#[test]
fn a_restart_removes_what_is_not_sealed() {
    let bench = Bench::new("");
    let junk = bench.mkdir(ROOT, "junk").attr.nodeid;
    bench.write(junk, "f", b"1");
    bench.write(ROOT, "loose", b"1");
    bench.mkdir(ROOT, "ck");
    bench.seal(1, "ck", &[]);
    bench.fs.remove_junk(None).unwrap();
    assert_eq!(bench.names(ROOT), ["ck"]);
    bench.fs.unlisted(DatasetId(1));
    assert!(Path::new(&bench.tree("ck")).exists(), "bytes are the node's business");
}

#[test]
fn the_kernel_is_told_of_names_that_change_and_of_nothing_else() {
    let bench = Bench::new("");
    let kept = |name: &str| bench.fs.lookup(ROOT, name.as_bytes()).unwrap().entry_ttl > Duration::ZERO;
    bench.mkdir(ROOT, "a");
    bench.write(ROOT, "f", b"1");
    assert!(!kept("a") && !kept("f"), "nobody is there to tell it of another node's changes");
    let told = Arc::new(AtomicU32::new(0));
    let tell = Arc::clone(&told);
    bench.fs.names_are_forgotten_by(move || {
        tell.fetch_add(1, Ordering::Relaxed);
    });
    let told = || told.load(Ordering::Relaxed);

    bench.mkdir(ROOT, "b");
    assert!(kept("a") && kept("b"));
    let remove = DirOp::Remove { path: path("b") };
    bench.fs.prepare(&remove).unwrap();
    MountedTree::release(&*bench.fs, &remove);
    assert_eq!(told(), 0, "no name that it can know is another");
    bench.fs.prepare(&remove).unwrap();
    bench.fs.apply(&remove).unwrap();
    assert_eq!(told(), 1);
    let (from, to) = (path("a"), path("b"));
    bench.fs.apply(&DirOp::Rename { from, to, no_replace: false, exchange: false }).unwrap();
    assert_eq!(told(), 2);
    bench.seal(1, "b", &[("x", 4)]);
    assert_eq!(told(), 3);
    assert!(kept("b"));
    bench.fs.unlisted(DatasetId(1));
    bench.fs.remove_junk(None).unwrap();
    assert_eq!(told(), 5);
}

#[test]
fn what_a_program_here_did_the_kernel_knows_from_the_answer() {
    let bench = Bench::new("");
    let top = bench.mkdir(ROOT, "a").attr.nodeid;
    bench.write(top, "f", b"1");
    bench.write(top, "g", b"1");
    let told = Arc::new(AtomicU32::new(0));
    let tell = Arc::clone(&told);
    bench.fs.names_are_forgotten_by(move || {
        tell.fetch_add(1, Ordering::Relaxed);
    });
    let told = || told.load(Ordering::Relaxed);
    let (from, to) = (path("a"), path("b"));
    let op = DirOp::Rename { from, to, no_replace: false, exchange: false };
    bench.fs.prepare(&op).unwrap();
    bench.fs.apply_asked(&op).unwrap();
    assert_eq!(told(), 0);
    assert!(bench.tree("b/f").exists());

    for (name, sealed) in [(b"f", Ok(())), (b"g", Err(Errno(libc::EIO)))] {
        let moved = start(|done| bench.fs.rename(me(), (top, name), (top, b".complete"), 0, done));
        let Asked::Marker(_, _, done) = bench.asked() else { panic!("not a marker") };
        done(sealed);
        assert_eq!(now(&moved), Ok(()), "the name has changed, whatever becomes of the seal");
    }
    assert!(!bench.tree("b/g").exists(), "a failed seal leaves the new name");
    assert_eq!(told(), 0);
}

#[test]
fn what_the_kernel_does_not_know_goes_when_it_has_had_no_name_for_a_while() {
    let bench = Bench::new("");
    let top = bench.mkdir(ROOT, "a").attr.nodeid;
    let (kept, lost, named) =
        (bench.write(top, "kept", b"1"), bench.write(top, "lost", b"2"), bench.write(top, "named", b"3"));
    for name in ["kept", "lost"] {
        now(&start(|done| bench.fs.unlink(me(), top, name.as_bytes(), done))).unwrap();
    }
    let asked = Mutex::new(Vec::new());
    let knows = |id| {
        asked.lock().push(id);
        Ok(id == kept)
    };
    let mut suspects = Suspects::default();
    let mut look = || {
        bench.fs.let_unknown_go(&mut suspects, knows).unwrap();
        bench.fs.getattr(lost).is_ok()
    };
    assert!(look());
    assert!(asked.lock().is_empty(), "an answer may be on its way");
    assert!(look(), "the kernel's word that it forgets may be on its way");
    assert!(!look(), "its bytes are given back");
    assert!(!look());
    assert!(bench.fs.getattr(kept).is_ok() && bench.fs.getattr(named).is_ok());
    assert!(!asked.lock().contains(&named));
}

/// A worker without a lead dies between a removal and its record: its successor lists the dataset.
#[test]
fn a_removal_that_was_begun_alone_is_done_again_while_its_dataset_is_listed() {
    use crate::keep::decide::Intent;

    let bench = Bench::new("");
    let ck = bench.sealed_here(&[("a", "a")]);
    for name in [&b"a"[..], b"link"] {
        now(&start(|done| bench.fs.unlink(me(), ck, name, done))).unwrap();
    }
    let (number, resent) = (0x14, 0x14 | 1 << 63);
    let request = RequestId { origin: 1, serial: 7 };
    let again = || {
        bench.fs.intents.begin(number, Intent::Global { request, alone: true, outcome: None });
        start(|done| bench.fs.rmdir(Caller { unique: resent, ..me() }, ROOT, b"ck", done))
    };
    std::fs::remove_dir_all(bench.tree("ck")).unwrap();
    let removed = again();
    assert!(waits(&removed), "the node does not know of it");
    bench.round().unwrap();
    assert_eq!(now(&removed), Ok(()));
    assert!(bench.fs.lookup(ROOT, b"ck").is_err());
    // Now it is done.
    bench.fs.answered(resent);
    assert_eq!(now(&again()), Ok(()));
    assert!(bench.node.asked.lock().is_empty());
}
