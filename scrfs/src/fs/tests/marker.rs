//! Setting the marker.

use super::*;

#[test]
fn the_marker_is_set_by_its_last_close_and_listed_when_true() {
    let bench = Bench::new("");
    let ck = bench.mkdir(ROOT, "ck").attr.nodeid;
    bench.write(ck, "a", b"data");
    for attempt in 0..2 {
        let (entry, opened) = bench.create(ck, ".complete").unwrap();
        assert!(opened.direct && !opened.passthrough);
        assert_eq!(bench.fs.write(Caller::default(), opened.fh, 4090, &[0; 10]), Err(Errno(libc::EFBIG)));
        let times = Changes { mtime: Some(SetTime::Now), handle: Some(opened.fh), ..Changes::default() };
        now(&start(|done| bench.fs.setattr(me(), entry.attr.nodeid, times, done))).unwrap();
        let closed = start(|done| bench.fs.flush(me(), opened.fh, done));
        assert!(waits(&closed));
        let Asked::Marker(name, done) = bench.asked() else { panic!("not a marker") };
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
    let Asked::Marker(_, done) = bench.asked() else { panic!("not a marker") };
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
    let Asked::Marker(_, done) = bench.asked() else { panic!("not a marker") };
    done(Err(Errno(libc::EIO)));
    assert_eq!(now(&renamed), Err(Errno(libc::EIO)));

    let y = bench.write(ck, "y", b"2");
    let linked = start(|done| bench.fs.link(me(), y, ck, b".complete", done));
    let Asked::Marker(_, done) = bench.asked() else { panic!("not a marker") };
    bench.seal(1, "ck", &[("y", 1)]);
    bench.seal(1, "ck", &[("y", 1), ("z", 1)]);
    done(Ok(()));
    assert!(now(&linked).is_ok());
    bench.fs.lookup(ck, b"z").unwrap();
    let repeated = start(|done| bench.fs.rename(me(), (ck, b"z"), (ck, b".complete"), 0, done));
    assert_eq!(now(&repeated), Ok(()), "the dataset is sealed, which is what was wanted");
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
