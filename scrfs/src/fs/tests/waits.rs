//! What waits for a held name or a frozen dataset, and who is waited for.

use super::*;
use crate::fs::DataMode;
use crate::fs::open::Data;
use crate::patience::until;

#[test]
fn a_held_name_makes_local_operations_wait() {
    let bench = Bench::new("");
    let op = DirOp::Make { path: path("d"), mode: 0o700, uid: me().uid, gid: me().gid };
    bench.fs.prepare(&op).unwrap();
    let file = start(|done| bench.fs.create(me(), ROOT, b"d", 0o644, libc::O_RDWR | libc::O_EXCL, done));
    assert!(waits(&file) && bench.fs.waiting() == 1);
    bench.write(ROOT, "other", b"");
    bench.fs.apply(&op).unwrap();
    assert_eq!(now(&file).unwrap_err(), Errno(libc::EEXIST));
    bench.fs.apply(&op).expect("what is done is done");
    assert_eq!(bench.fs.prepare(&op), Err(Errno(libc::EEXIST)));
    let below = DirOp::Make { path: path("no/where"), mode: 0o700, uid: 0, gid: 0 };
    assert_eq!(bench.fs.prepare(&below), Err(Errno(libc::ENOENT)));
}

#[test]
fn a_waiter_that_died_or_waited_too_long_is_answered() {
    let bench = Bench::new("");
    let op = DirOp::Make { path: path("d"), mode: 0o700, uid: 0, gid: 0 };
    bench.fs.prepare(&op).unwrap();
    let gone = Caller { tid: u32::MAX / 4, ..me() };
    let dead = start(|done| bench.fs.unlink(gone, ROOT, b"d", done));
    let bound = Duration::from_mins(1);
    assert_eq!(dead.recv_timeout(bound).unwrap(), Err(Errno(libc::EINTR)));
    bench.fs.set_wait_bound(Duration::from_millis(10));
    let late = start(|done| bench.fs.unlink(me(), ROOT, b"d", done));
    assert_eq!(late.recv_timeout(bound).unwrap(), Err(Errno(libc::ETIMEDOUT)));
}

#[test]
fn a_frozen_dataset_lets_reads_and_the_marker_through() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    let file = bench.write(ck, "a", b"data");
    bench.fs.freeze(b"ck");
    let writes = bench.open(file, libc::O_WRONLY);
    let creates = start(|done| bench.fs.create(me(), ck, b"b", 0o644, libc::O_WRONLY, done));
    let truncate = Changes { size: Some(0), ..Changes::default() };
    let truncates = start(|done| bench.fs.setattr(me(), file, truncate, done));
    let unlinks = start(|done| bench.fs.unlink(me(), ck, b"a", done));
    let makes = start(|done| bench.fs.mkdir(me(), ck, b"sub", 0o755, done));
    assert!(waits(&writes) && waits(&creates) && waits(&truncates) && waits(&unlinks) && waits(&makes));
    let reads = now(&bench.open(file, libc::O_RDONLY)).unwrap();
    assert_eq!(bench.read(reads.fh), b"data");
    bench.fs.release(reads.fh);
    let (_, marker) = bench.create(ck, ".complete").unwrap();
    bench.fs.release(marker.fh);

    bench.seal(1, "ck", &[("a", 4)]);
    assert_eq!(now(&unlinks), Ok(()), "unlinking hides the name");
    let others = || bench.node.asked.lock().len();
    let begun = std::time::Instant::now();
    // Whoever is sooner than the unlink asks too; whoever is later finds no such file.
    while others() < 2 && begun.elapsed() < Duration::from_mins(1) {
        std::thread::yield_now();
    }
    assert!(waits(&creates) && waits(&makes), "the others ask for the next generation");
    drop((writes, truncates));
    assert_eq!(std::fs::read(bench.tree("ck/a")).unwrap(), b"data", "the bytes stay");
}

#[test]
fn a_sealed_file_whose_name_was_removed_is_changed_by_nobody_who_still_knows_it() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    let file = bench.write(ck, "a", b"data");
    bench.seal(1, "ck", &[("a", 4)]);
    let reader = now(&bench.open(file, libc::O_RDONLY)).unwrap();
    now(&start(|done| bench.fs.unlink(me(), ck, b"a", done))).unwrap();
    let truncate = Changes { size: Some(0), ..Changes::default() };
    let truncated = now(&start(|done| bench.fs.setattr(me(), file, truncate, done)));
    assert_eq!(truncated.unwrap_err(), Errno(libc::ESTALE), "the kernel looks the name up again");
    for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_RDONLY | libc::O_TRUNC] {
        assert_eq!(now(&bench.open(file, flags)).unwrap_err(), Errno(libc::ESTALE), "{flags:#x}");
    }
    assert_eq!(bench.read(reader.fh), b"data");
    assert_eq!(std::fs::read(bench.tree("ck/a")).unwrap(), b"data");
}

#[test]
fn a_writer_that_the_seal_waits_for_goes_on() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    let (entry, opened) = bench.create(ck, "a").unwrap();
    bench.fs.write(Caller::default(), opened.fh, 0, b"data").unwrap();
    bench.fs.freeze(b"ck");
    let truncate = Changes { size: Some(2), handle: Some(opened.fh), ..Changes::default() };
    let truncated = start(|done| bench.fs.setattr(me(), entry.attr.nodeid, truncate, done));
    assert_eq!(now(&truncated).map(|(attr, _)| attr.size), Ok(2));
    let again = bench.fs.writers(b"ck").unwrap();
    assert_eq!(again.len(), 1, "it is waited for all the same");
}

/// The kernel has locked the file for each of these, and the file's writer needs that lock.
#[test]
fn what_is_done_to_a_file_whose_writer_the_seal_waits_for_goes_on() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    let mut written = Vec::new();
    for name in ["a", "b", "c", "d"] {
        written.push(bench.create(ck, name).unwrap());
    }
    let other = bench.write(ck, "other", b"data");
    bench.write(ck, "new", b"data");
    bench.fs.freeze(b"ck");
    let unlinks = start(|done| bench.fs.unlink(me(), ck, b"a", done));
    let replaces = start(|done| bench.fs.rename(me(), (ck, b"new"), (ck, b"b"), 0, done));
    let links = start(|done| bench.fs.link(me(), written[2].0.attr.nodeid, ck, b"l", done));
    let truncate = Changes { size: Some(3), ..Changes::default() };
    let truncates = start(|done| bench.fs.setattr(me(), written[3].0.attr.nodeid, truncate, done));
    let others = start(|done| bench.fs.unlink(me(), ck, b"other", done));
    assert!(waits(&unlinks) && waits(&replaces) && waits(&links) && waits(&truncates) && waits(&others));
    bench.fs.begin_wait(b"ck");
    assert_eq!(now(&unlinks), Ok(()));
    assert_eq!(now(&replaces), Ok(()));
    assert!(now(&links).is_ok() && now(&truncates).is_ok());
    assert!(waits(&others), "nobody writes that file");
    for (_, opened) in written {
        bench.fs.release(opened.fh);
    }
    assert!(bench.fs.end_wait(b"ck"), "something went on");
    assert!(!bench.fs.end_wait(b"ck"));
    let opens = bench.open(other, libc::O_WRONLY);
    let late = start(|done| bench.fs.unlink(me(), ck, b"c", done));
    assert!(waits(&opens) && waits(&late), "everything waits for the seal now");
    bench.fs.thaw(b"ck");
    assert_eq!(now(&late), Ok(()));
    assert_eq!(now(&others), Ok(()));
}

/// A seal takes modes, owners and times with the bytes.
#[test]
fn attributes_that_are_set_while_a_dataset_is_frozen_are_those_after_its_seal() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    let file = bench.write(ck, "a", b"data");
    let (entry, opened) = bench.create(ck, "written").unwrap();
    bench.fs.freeze(b"ck");
    let chmod = |id, mode| {
        let mode = Changes { mode: Some(mode), ..Changes::default() };
        start(|done| bench.fs.setattr(me(), id, mode, done))
    };
    let (of_file, of_top, of_written) =
        (chmod(file, 0o400), chmod(ck, 0o400), chmod(entry.attr.nodeid, 0o400));
    assert!(waits(&of_file) && waits(&of_top) && waits(&of_written));
    // With this the kernel has suid bits taken before a write.
    now(&start(|done| bench.fs.setattr(me(), file, Changes::default(), done))).unwrap();
    let (marker, marked) = bench.create(ck, ".complete").unwrap();
    assert_eq!(now(&chmod(marker.attr.nodeid, 0o400)).unwrap().0.perm, 0o400);
    bench.fs.release(marked.fh);
    bench.fs.begin_wait(b"ck");
    for goes_on in [of_written, of_file, of_top] {
        assert_eq!(now(&goes_on).unwrap().0.perm, 0o400, "a writer may need what the kernel has locked");
    }
    bench.fs.release(opened.fh);
    assert!(bench.fs.end_wait(b"ck"), "something went on");
    assert!(!bench.fs.end_wait(b"ck"));
    let (of_file, of_top) = (chmod(file, 0o440), chmod(ck, 0o750));
    assert!(waits(&of_file) && waits(&of_top));
    bench.seal(1, "ck", &[("a", 4), ("written", 0)]);
    assert_eq!(now(&of_file).unwrap().0.perm, 0o440);
    assert_eq!(now(&of_top).unwrap().0.perm, 0o750);
    assert_eq!(bench.fs.getattr(file).unwrap().0.perm, 0o440);
}

#[test]
fn what_waits_for_a_seal_waits_until_that_is_decided() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    let file = bench.write(ck, "a", b"data");
    bench.fs.set_wait_bound(Duration::from_millis(10));
    bench.fs.freeze(b"ck");
    let opens = bench.open(file, libc::O_WRONLY);
    std::thread::sleep(Duration::from_millis(300));
    assert!(waits(&opens));
    bench.fs.thaw(b"ck");
    bench.fs.release(now(&opens).unwrap().fh);
}

/// The kernel opens such a file after the answer, and closes it before the daemon hears of that.
#[test]
fn what_the_kernel_is_about_to_open_is_waited_for() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    let file = bench.write(ck, "a", b"data");
    until("no writer", || bench.fs.writers(b"ck").unwrap().is_empty());
    bench.fs.set_mode(DataMode { passthrough: true, reason: String::new() });
    let opened = now(&bench.open(file, libc::O_WRONLY)).unwrap();
    assert_eq!(opened.data, Data::Passthrough);
    bench.fs.freeze(b"ck");
    assert_eq!(bench.fs.writers(b"ck").unwrap().len(), 1);
    bench.fs.release(opened.fh);
    assert_eq!(bench.fs.writers(b"ck").unwrap(), []);
}

#[test]
fn a_failed_seal_lets_waiters_go_on() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    bench.fs.freeze(b"ck");
    let creates = start(|done| bench.fs.create(me(), ck, b"b", 0o644, libc::O_WRONLY, done));
    assert!(waits(&creates));
    bench.fs.thaw(b"ck");
    assert!(now(&creates).is_ok());
}

#[test]
fn who_writes_is_named_until_he_stops() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    bench.write(ck, "done", b"1234");
    let (_, opened) = bench.create(ck, "busy").unwrap();
    let (woken, wake) = channel();
    bench.fs.freeze(b"ck");
    bench.fs.on_release(b"ck", Arc::new(move || woken.send(()).unwrap()));
    let writers = bench.fs.writers(b"ck").unwrap();
    assert_eq!(writers.len(), 1);
    assert_eq!((&writers[0].path, writers[0].pid), (&path("busy"), std::process::id()));
    bench.fs.release(opened.fh);
    drop(opened);
    wake.try_recv().unwrap();
    until("the end of all writers", || bench.fs.writers(b"ck").unwrap().is_empty());
    let files = bench.fs.files(b"ck").unwrap();
    assert_eq!(
        files.iter().map(|f| (f.path.to_string(), f.size)).collect::<Vec<_>>(),
        [("busy".to_owned(), 0), ("done".to_owned(), 4)]
    );
}

/// The node may copy many files before those of this caller.
#[test]
fn who_dies_while_the_node_keeps_a_sealed_file_is_answered_at_once() {
    let bench = Bench::new("");
    let ck = bench.sealed_here(&[("a", "old a"), ("b", "old b")]);
    let (a, b) = (bench.id(ck, "a"), bench.id(ck, "b"));
    let gone = Caller { tid: u32::MAX / 4, ..me() };
    let dying = |id: u64| start(|done| bench.fs.open(gone, id, libc::O_WRONLY, done));
    let answered = |outcome: &Receiver<Result<crate::fs::Opened, Errno>>| {
        assert_eq!(now(outcome).unwrap_err(), Errno(libc::EINTR));
        assert!(bench.fs.waiting() < 2);
    };
    // Neither the next generation, nor the copy.
    answered(&dying(a));
    let living = bench.open(a, libc::O_WRONLY);
    let Asked::Open(_, unwanted) = bench.asked() else { panic!("not a next generation") };
    bench.begin();
    unwanted(Ok(()));
    let Asked::Keep(_, wanted) = bench.asked() else { panic!("not a file to keep") };
    answered(&dying(a));
    let Asked::Keep(_, unwanted) = bench.asked() else { panic!("not a file to keep") };
    bench.fs.thaw(b"other");
    bench.fs.look();
    assert!(waits(&living) && bench.node.asked.lock().is_empty(), "whatever changes");
    // What was done for the dying is done.
    let aside = bench.dir.path().join("aside/a");
    std::fs::remove_file(&aside).unwrap();
    std::fs::write(aside, "old a").unwrap();
    unwanted(Ok(()));
    assert!(waits(&living), "for its own answer");
    wanted(Ok(()));
    bench.written(&living, b"new a");
    assert_eq!(bench.aside("a"), "old a");
    // A caller that dies while its need is met does not go on.
    let dead = dying(b);
    let Asked::Keep(_, met) = bench.asked() else { panic!("not a file to keep") };
    met(Ok(()));
    answered(&dead);
    assert!(bench.fs.files.all().is_empty());
}
