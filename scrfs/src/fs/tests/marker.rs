//! Setting the marker.

use super::*;
use crate::boundary::{Generation, Writer};
use crate::fs::Data;
use crate::patience::until;

#[test]
fn the_marker_is_set_by_its_last_close_and_listed_when_true() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    bench.write(ck, "a", b"data");
    for attempt in 0..2 {
        let (entry, opened) = bench.create(ck, ".complete").unwrap();
        assert!(opened.data == Data::Direct);
        assert_eq!(bench.fs.write(Caller::default(), opened.fh, 4090, &[0; 10]), Err(Errno(libc::EFBIG)));
        let times = Changes { mtime: Some(SetTime::Now), handle: Some(opened.fh), ..Changes::default() };
        now(&start(|done| bench.fs.setattr(me(), entry.attr.nodeid, times, done))).unwrap();
        let closed = start(|done| bench.fs.flush(me(), opened.fh, done));
        assert!(waits(&closed));
        let Asked::Marker(name, _, done) = bench.asked() else { panic!("not a marker") };
        assert_eq!(name, b"ck");
        assert_eq!(bench.names(ck), ["a"], "not listed yet");
        if attempt == 0 {
            done(Err(Errno(libc::EIO)));
            assert_eq!(now(&closed), Err(Errno(libc::EIO)));
            assert_eq!(bench.fs.lookup(ck, b".complete").unwrap_err(), Errno(libc::ENOENT));
        } else {
            bench.seal(1, "ck", &[("a", 4)]);
            done(Ok(()));
            assert_eq!(now(&closed), Ok(()));
            assert_eq!(bench.names(ck), [".complete", "a", "link"]);
        }
        bench.fs.release(opened.fh);
    }
    let again = bench.fs.lookup(ck, b".complete").unwrap();
    let opened = now(&bench.open(again.attr.nodeid, libc::O_WRONLY)).unwrap();
    let closed = start(|done| bench.fs.flush(me(), opened.fh, done));
    let Asked::Marker(_, _, done) = bench.asked() else { panic!("not a marker") };
    done(Ok(()));
    assert_eq!(now(&closed), Ok(()), "the node finds out whether anything was changed");
}

#[test]
fn a_dying_process_sets_no_marker() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    let (_, opened) = bench.create(ck, ".complete").unwrap();
    let gone = Caller { tid: u32::MAX / 4, ..me() };
    assert_eq!(now(&start(|done| bench.fs.flush(gone, opened.fh, done))), Ok(()));
    assert!(bench.node.asked.lock().is_empty());
}

#[test]
fn rename_and_link_onto_the_markers_name_wait_for_the_seal() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    bench.write(ck, "x", b"1");
    let renamed = start(|done| bench.fs.rename(me(), (ck, b"x"), (ck, b".complete"), 0, done));
    assert!(waits(&renamed));
    let Asked::Marker(_, _, done) = bench.asked() else { panic!("not a marker") };
    done(Err(Errno(libc::EIO)));
    assert_eq!(now(&renamed), Ok(()), "the name has changed, whatever becomes of the seal");
    assert!(bench.node.notes.lock().iter().any(|note| note.contains("is not sealed")));

    let y = bench.write(ck, "y", b"2");
    let linked = start(|done| bench.fs.link(me(), y, ck, b".complete", done));
    let Asked::Marker(_, _, done) = bench.asked() else { panic!("not a marker") };
    bench.seal(1, "ck", &[("y", 1)]);
    bench.seal(1, "ck", &[("y", 1), ("z", 1)]);
    done(Ok(()));
    assert!(now(&linked).is_ok());
    bench.fs.lookup(ck, b"z").unwrap();
    let repeated = start(|done| bench.fs.rename(me(), (ck, b"z"), (ck, b".complete"), 0, done));
    assert_eq!(now(&repeated), Ok(()), "the dataset is sealed, which is what was wanted");
    assert_eq!(*bench.node.removed.lock(), [path("z")], "the next seal must not look for it");
    assert_eq!(bench.names(ck), [".complete", "link", "y"]);
}

#[test]
fn only_a_regular_file_can_be_the_marker() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    let make = |name: &[u8], new| now(&start(|done| bench.fs.make_node(me(), ck, name, new, done)));
    let fifo = || NewNode::Node { mode: libc::S_IFIFO | 0o600, device: 0 };
    let symlink = || NewNode::Symlink(b"/tmp/elsewhere".to_vec());
    assert_eq!(make(b".complete", fifo()).unwrap_err(), Errno(libc::EPERM));
    assert_eq!(make(b".complete", symlink()).unwrap_err(), Errno(libc::EPERM));
    let other = make(b"s", symlink()).unwrap().attr.nodeid;
    let renamed = start(|done| bench.fs.rename(me(), (ck, b"s"), (ck, b".complete"), 0, done));
    assert_eq!(now(&renamed), Err(Errno(libc::EPERM)));
    let linked = start(|done| bench.fs.link(me(), other, ck, b".complete", done));
    assert_eq!(now(&linked).unwrap_err(), Errno(libc::EPERM));
    assert!(bench.node.asked.lock().is_empty(), "nothing was set");
    assert_eq!(bench.names(ck), ["s"], "and nothing is hidden");
}

#[test]
fn a_create_that_meets_a_new_fifo_does_not_wait_for_its_partner() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    // The kernel found no such name; another program makes it before the create comes.
    let fifo = NewNode::Node { mode: libc::S_IFIFO | 0o600, device: 0 };
    now(&start(|done| bench.fs.make_node(me(), ck, b"f", fifo, done))).unwrap();
    assert_eq!(bench.create(ck, "f").unwrap_err(), Errno(libc::ESTALE));
}

#[test]
fn deeper_markers_are_ordinary_and_noted() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    let sub = bench.mkdir(ck, "sub").attr.nodeid;
    bench.write(sub, ".complete", b"x");
    assert_eq!(bench.node.notes.lock().len(), 1);
    assert_eq!(bench.names(sub), [".complete"]);
    assert_eq!(bench.create(ck, ".scr").unwrap_err(), Errno(libc::EPERM));
    assert_eq!(bench.create(ROOT, ".scrfs").unwrap_err(), Errno(libc::EPERM));
    assert_eq!(bench.names(ROOT), ["ck"]);
}

fn rules(bench: &Bench, markers: &[&str], commit_on_rename: Option<&str>) {
    let mut settings = crate::control::test_settings();
    settings.sealing.markers = markers.iter().map(|name| name.as_bytes().to_vec()).collect();
    settings.sealing.commit_on_rename = commit_on_rename.map(str::to_owned);
    bench.fs.follow(&settings);
}

#[test]
fn a_file_that_is_data_marks_by_its_name() {
    let bench = Bench::new("");
    rules(&bench, &[".metadata"], None);
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    bench.write(ck, "a", b"data");
    // Its last close.
    let (entry, opened) = bench.create(ck, ".metadata").unwrap();
    assert!(
        opened.data != Data::Direct && opened.acts && !opened.no_flush(),
        "ordinary data, but its close is looked at"
    );
    assert_eq!(bench.fs.write(Caller::default(), opened.fh, 0, &[7; 9000]), Ok(9000));
    assert_eq!(bench.fs.writers(b"ck").unwrap().len(), 1);
    let closed = start(|done| bench.fs.flush(me(), opened.fh, done));
    assert!(waits(&closed));
    let Asked::Marker(name, marking, done) = bench.asked() else { panic!("not a marker") };
    assert_eq!((name, marking), (b"ck".to_vec(), Marking::default()));
    assert_eq!(bench.fs.writers(b"ck").unwrap(), [], "the handle whose close waits is none");
    assert_eq!(bench.fs.files(b"ck").unwrap().len(), 2, "sealed with the rest");
    done(Err(Errno(libc::EIO)));
    assert_eq!(now(&closed), Err(Errno(libc::EIO)));
    assert_eq!(bench.fs.writers(b"ck").unwrap().len(), 1, "it may be written again");
    bench.fs.release(opened.fh);
    assert_eq!(bench.names(ck), [".metadata", "a"]);
    assert!(bench.fs.lookup(ck, b".metadata").is_ok());
    // A descriptor for reading sets nothing.
    let opened = now(&bench.open(entry.attr.nodeid, libc::O_RDONLY)).unwrap();
    assert_eq!(now(&start(|done| bench.fs.flush(me(), opened.fh, done))), Ok(()));
    bench.fs.release(opened.fh);
    // A rename, and a link.
    bench.write(ck, "tmp", b"1");
    let renamed = start(|done| bench.fs.rename(me(), (ck, b"tmp"), (ck, b".metadata"), 0, done));
    let Asked::Marker(_, marking, done) = bench.asked() else { panic!("not a marker") };
    assert!(marking.holds_directory && !marking.everywhere);
    done(Ok(()));
    assert_eq!(now(&renamed), Ok(()));
    now(&start(|done| bench.fs.unlink(me(), ck, b".metadata", done))).unwrap();
    let a = bench.fs.lookup(ck, b"a").unwrap().attr.nodeid;
    let linked = start(|done| bench.fs.link(me(), a, ck, b".metadata", done));
    let Asked::Marker(_, _, done) = bench.asked() else { panic!("not a marker") };
    done(Ok(()));
    assert!(now(&linked).is_ok());
    // Deeper down it is an ordinary file.
    let sub = bench.mkdir(ck, "sub").attr.nodeid;
    bench.write(sub, ".metadata", b"x");
    assert!(bench.node.asked.lock().is_empty());
    assert_eq!(bench.node.notes.lock().len(), 1);
}

#[test]
fn a_directory_that_gets_a_matching_name_is_marked() {
    let bench = Bench::new("");
    rules(&bench, &[], Some(r"ck\.\d+"));
    bench.mkdir(ROOT, "ck.tmp");
    let renamed = start(|done| bench.fs.rename(me(), (ROOT, b"ck.tmp"), (ROOT, b"other"), 0, done));
    bench.round().unwrap();
    assert_eq!(now(&renamed), Ok(()));
    let renamed = start(|done| bench.fs.rename(me(), (ROOT, b"other"), (ROOT, b"ck.7"), 0, done));
    bench.round().unwrap();
    assert!(waits(&renamed));
    let Asked::Marker(name, marking, done) = bench.asked() else { panic!("not a marker") };
    assert_eq!((name, marking), (b"ck.7".to_vec(), Marking { holds_directory: true, everywhere: true }));
    done(Ok(()));
    assert_eq!(now(&renamed), Ok(()));
}

#[test]
fn what_makes_a_frozen_dataset_invalid_is_told() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    bench.write(ck, "a", b"data");
    bench.write(ck, ".invalid", b"");
    assert!(bench.fs.is_invalid(b"ck"));
    now(&start(|done| bench.fs.unlink(me(), ck, b".invalid", done))).unwrap();
    assert!(!bench.fs.is_invalid(b"ck"));
    bench.fs.freeze(b"ck");
    let made = start(|done| bench.fs.create(me(), ck, b".invalid", 0o644, libc::O_RDWR, done));
    assert!(waits(&made), "it waits for the end of the seal");
    let Asked::Invalid(name) = bench.asked() else { panic!("not told") };
    assert_eq!(name, b"ck");
    bench.fs.thaw(b"ck");
    assert!(now(&made).is_ok());
    assert!(bench.fs.is_invalid(b"ck"));
}

#[test]
fn who_can_only_append_is_told_apart_and_the_file_goes_on() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    let log = bench.write(ck, "log", b"one ");
    now(&start(|done| bench.fs.link(me(), log, ck, b"alias", done))).unwrap();
    let appending = now(&bench.open(log, libc::O_WRONLY | libc::O_APPEND)).unwrap();
    // Both names are of the file that it has open. No process of its number has it: it would be on
    // its way to be released.
    let writers = bench.fs.writers(b"ck").unwrap();
    let told = |writer: &Writer| (writer.path.to_string(), writer.appends, writer.closing);
    let wanted = |appends| ["alias", "log"].map(|name| (name.to_owned(), appends, appends));
    assert_eq!(writers.iter().map(told).collect::<Vec<_>>(), wanted(true));
    for flags in [libc::O_WRONLY, libc::O_RDWR | libc::O_APPEND] {
        let other = now(&bench.open(log, flags)).unwrap();
        let others: Vec<_> =
            bench.fs.writers(b"ck").unwrap().iter().filter(|w| !w.appends).map(told).collect();
        assert_eq!(others, wanted(false));
        bench.fs.release(other.fh);
    }
    bench.fs.freeze(b"ck");
    bench.fs.write(Caller::default(), appending.fh, 4, b"two").unwrap();
    let frozen = bench.open(log, libc::O_WRONLY | libc::O_APPEND);
    assert!(waits(&frozen), "who opens it now waits");
    let sealed = Arc::new(CatalogIndex::new(catalog(1, "ck", &[("log", 4), ("alias", 4)])));
    let changed = vec![path("alias"), path("log")];
    bench.fs.sealed_and_changed(
        sealed,
        Generation { open: true, changed, begins: true, ..Generation::default() },
    );
    assert_eq!(bench.fs.lookup(ck, b"log").unwrap().attr.size, 7);
    bench.fs.write(Caller::default(), appending.fh, 7, b" three").unwrap();
    assert_eq!(std::fs::read(bench.tree("ck/log")).unwrap(), b"one two three");
    // It has two names: whether one of them is the sealed file's the node finds out.
    until("a question", || !bench.node.asked.lock().is_empty());
    let Asked::Keep(_, done) = bench.asked() else { panic!("not kept") };
    done(Ok(()));
    let opened = now(&frozen).unwrap();
    for opened in [opened, appending] {
        bench.fs.release(opened.fh);
    }
    until("the end of all writers", || bench.fs.writers(b"ck").unwrap().is_empty());
}

/// The worker that renamed was killed when the dataset was frozen, before it answered.
#[test]
fn a_rename_that_was_done_and_is_sent_again_waits_for_no_freeze() {
    use crate::keep::decide::Intent;
    use std::os::unix::fs::MetadataExt;

    let (number, resent) = (0x14, 0x14 | 1 << 63);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tree/ck/.complete");
    std::fs::create_dir_all(dir.path().join("tree/ck")).unwrap();
    std::fs::write(&file, b"").unwrap();
    let stat = std::fs::metadata(&file).unwrap();
    let memory = crate::keep::memory::create().unwrap();
    let rename = Intent::Rename { from: (stat.dev(), stat.ino()), to: None, exchange: false };
    Keep::map(&memory).unwrap().begin(number, rename);
    let bench = Bench::over(dir, &memory);
    let ck = bench.id(ROOT, "ck");
    bench.fs.freeze(b"ck");
    let again = Caller { unique: resent, ..me() };
    let renamed = start(|done| bench.fs.rename(again, (ck, b"tmp"), (ck, b".complete"), 0, done));
    let Asked::Marker(name, _, done) = bench.asked() else { panic!("not a marker") };
    assert_eq!(name, b"ck");
    done(Ok(()));
    assert_eq!(now(&renamed), Ok(()));
}
