//! Workers die while a program waits for the lead: a scripted one, over the real socket.

use std::fs;
use std::io::Write;
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use scrfs::control::{Command, Event};
use scrfs::ids::{DatasetId, Member};

use super::lead::{Lead, catalog, encode};
use super::{Mounted, both_modes, in_namespace, wait_until};

const ID: DatasetId = DatasetId(1);

fn kill_worker(m: &Mounted) {
    let worker = m.pid("worker.lock");
    kill(Pid::from_raw(worker), Signal::SIGKILL).unwrap();
    wait_until("a new worker", || m.pid("worker.lock") != worker);
}

/// A program, in a process that can be waited for while the mount does not answer.
pub(super) fn program(m: &Mounted, script: &str) -> JoinHandle<bool> {
    let mut command = std::process::Command::new("timeout");
    command.args(["-k", "2", "60", "bash", "-ec", script]).current_dir(&m.mount_point);
    std::thread::spawn(move || command.status().unwrap().success())
}

#[test]
fn a_request_is_decided_once() {
    in_namespace(&[], |m| {
        // Asked; voted for; applied here and perhaps elsewhere.
        for steps in 0..3 {
            let epoch = 10 * u64::from(steps) + 1;
            let mut lead = Lead::attach(&m.control(), epoch);
            lead.inventory();
            lead.send(&Command::Serve);
            let mkdir = program(m, &format!("mkdir d{steps}; ! mkdir d{steps} 2>/dev/null"));
            let request = lead.round(steps);
            kill_worker(m);

            let mut lead = Lead::attach(&m.control(), epoch + 1);
            let unfinished = lead.inventory().unfinished;
            if steps == 2 {
                assert_eq!(unfinished.len(), 1);
                lead.send(&Command::DirReplay { round: 1, ops: unfinished });
                assert!(matches!(lead.next(), Event::DirApplied { results, .. } if results == [0]));
                lead.finish(request, 0);
                lead.send(&Command::Serve);
            } else {
                assert!(unfinished.is_empty());
                lead.send(&Command::Serve);
                assert_eq!(lead.round(2), request, "asked again under its id");
                lead.finish(request, 0);
            }
            // The second mkdir is another request, which fails before the lead is asked.
            assert!(mkdir.join().unwrap(), "steps {steps}");
            assert!(m.at(&format!("d{steps}")).is_dir());
        }
    });
}

#[test]
fn a_waiting_marker_goes_on_waiting() {
    in_namespace(&[], |m| {
        fs::create_dir(m.at("ck")).unwrap();
        fs::write(m.at("ck/f"), b"data").unwrap();
        let mut lead = Lead::attach(&m.control(), 1);
        lead.inventory();
        lead.send(&Command::Serve);
        let touch = program(m, "touch ck/.complete");
        lead.marker("ck");
        kill_worker(m);
        let mut lead = Lead::attach(&m.control(), 2);
        lead.inventory();
        lead.send(&Command::Serve);
        lead.marker("ck");
        lead.send(&Command::Freeze { id: ID, name: b"ck".to_vec(), member: Member(0), base: None });
        let Event::Frozen { result: Ok(part), .. } = lead.next() else { panic!("not frozen") };
        assert_eq!(part.files.len(), 1);
        kill_worker(m);
        // What was frozen in an earlier epoch is dropped while settling; the marker is sent again.
        let mut lead = Lead::attach(&m.control(), 3);
        assert_eq!(lead.inventory().datasets.len(), 1);
        lead.send(&Command::Drop { id: ID, reason: "a test".into() });
        assert!(matches!(lead.next(), Event::Dropped { .. }));
        lead.send(&Command::Serve);
        // What was frozen for it is owed too.
        lead.marker("ck");
        lead.marker("ck");
        let id = DatasetId(2);
        lead.send(&Command::Freeze { id, name: b"ck".to_vec(), member: Member(0), base: None });
        assert!(matches!(lead.next(), Event::Frozen { result: Ok(_), .. }));
        let catalog = catalog(id, b"ck", lead.epoch, &encode(&lead, id, &["f"]));
        lead.send(&Command::Commit(Arc::new(catalog)));
        assert!(matches!(lead.next(), Event::Committed { result: Ok(()), .. }));
        assert!(!touch.is_finished(), "all members' records are not known yet");
        kill_worker(m);
        let mut lead = Lead::attach(&m.control(), 4);
        lead.inventory();
        lead.send(&Command::Sealed(id));
        lead.send(&Command::Serve);
        // For all that this worker knows it was set after others had changed the dataset.
        let request = lead.marker("ck");
        lead.send(&Command::AskChanges(id));
        assert!(matches!(lead.next(), Event::Changes { changed: false, .. }));
        lead.sealed(id, request);
        assert!(touch.join().unwrap(), "the marker's close succeeds");
        assert_eq!(fs::read(m.at("ck/f")).unwrap(), b"data");

        // Names that are only in the catalog, and names that were removed, outlive a worker too.
        let number = |name: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(m.at(name)).unwrap());
        let before = (number("ck"), number("ck/f"));
        fs::remove_file(m.at("ck/.complete")).unwrap();
        kill_worker(m);
        assert_eq!((number("ck"), number("ck/f")), before);
        assert!(!m.at("ck/.complete").exists(), "removed before");
        drop(lead);
    });
}

#[test]
fn a_generation_that_has_begun_goes_on() {
    in_namespace(&[], |m| {
        fs::create_dir(m.at("ck")).unwrap();
        fs::write(m.at("ck/f"), b"sealed").unwrap();
        let mut lead = Lead::attach(&m.control(), 1);
        lead.inventory();
        lead.send(&Command::Serve);
        let touch = program(m, "touch ck/.complete");
        let request = lead.marker("ck");
        lead.send(&Command::Freeze { id: ID, name: b"ck".to_vec(), member: Member(0), base: None });
        assert!(matches!(lead.next(), Event::Frozen { result: Ok(_), .. }));
        let catalog = catalog(ID, b"ck", lead.epoch, &encode(&lead, ID, &["f"]));
        lead.send(&Command::Commit(Arc::new(catalog)));
        assert!(matches!(lead.next(), Event::Committed { result: Ok(()), .. }));
        lead.sealed(ID, request);
        assert!(touch.join().unwrap());

        let mut log = fs::File::options().append(true).open(m.at("ck/f")).unwrap();
        log.write_all(b", then").unwrap();
        fs::write(m.at("ck/gone"), b"1").unwrap();
        kill_worker(m);
        log.write_all(b" more").unwrap();
        drop(log);
        fs::remove_file(m.at("ck/gone")).unwrap();
        fs::write(m.at("ck/new"), b"2").unwrap();
        assert!(!m.at("ck/.complete").exists(), "not true of what is there now");
        kill_worker(m);
        assert_eq!(fs::read(m.at("ck/f")).unwrap(), b"sealed, then more");
        assert!(!m.at("ck/gone").exists());

        let mut lead = Lead::attach(&m.control(), 2);
        assert_eq!(lead.inventory().datasets.len(), 1);
        lead.send(&Command::Serve);
        lead.send(&Command::AskChanges(ID));
        assert!(matches!(lead.next(), Event::Changes { changed: true, .. }));
        let (id, base) = (DatasetId(2), Some(ID));
        lead.send(&Command::Freeze { id, name: b"ck".to_vec(), member: Member(0), base });
        let Event::Frozen { result: Ok(part), .. } = lead.next() else { panic!("not frozen") };
        let names: Vec<String> = part.files.iter().map(|file| file.path.to_string()).collect();
        assert_eq!((names, part.carried), (vec!["f".to_owned(), "new".to_owned()], vec![]));
        lead.send(&Command::Drop { id, reason: "a test".into() });
        assert!(matches!(lead.next(), Event::Dropped { .. }));
    });
}

/// A log that stays open for append while its dataset is sealed, and workers die before, in and
/// after that.
#[test]
fn a_log_goes_on_growing_through_seals() {
    both_modes(log_through_seals);
}

fn log_through_seals(m: &Mounted) {
    fs::create_dir(m.at("ck")).unwrap();
    let mut log = fs::File::options().create(true).append(true).open(m.at("ck/log")).unwrap();
    log.write_all(b"one ").unwrap();
    let mut lead = Lead::attach(&m.control(), 1);
    lead.inventory();
    lead.send(&Command::Serve);
    let touch = program(m, "touch ck/.complete");
    lead.marker("ck");
    let freeze = |lead: &mut Lead, id: DatasetId, base: Option<DatasetId>| {
        lead.send(&Command::Freeze { id, name: b"ck".to_vec(), member: Member(0), base });
        let Event::Frozen { result: Ok(part), .. } = lead.next() else { panic!("not frozen") };
        part.files[0].size
    };
    assert_eq!(freeze(&mut lead, ID, None), 4);
    log.write_all(b"two ").unwrap();
    kill_worker(m);
    log.write_all(b"three ").unwrap();
    let mut lead = Lead::attach(&m.control(), 2);
    let held = lead.inventory().datasets;
    assert_eq!(held[0].members, [Member(0)], "its copy is whole");
    lead.send(&Command::Drop { id: ID, reason: "a test".into() });
    assert!(matches!(lead.next(), Event::Dropped { .. }));
    lead.send(&Command::Serve);
    // What was frozen for it is owed, and its program, or a new worker for it, asks again.
    let requests = [lead.marker("ck"), lead.marker("ck")];
    let id = DatasetId(2);
    assert_eq!(freeze(&mut lead, id, None), 14);
    log.write_all(b"four ").unwrap();
    let catalog = catalog(id, b"ck", lead.epoch, &encode(&lead, id, &["log"]));
    lead.send(&Command::Commit(Arc::new(catalog)));
    assert!(matches!(lead.next(), Event::Committed { result: Ok(()), .. }));
    for request in requests {
        lead.sealed(id, request);
    }
    assert!(touch.join().unwrap());
    log.write_all(b"five ").unwrap();
    let seen = || (fs::read_to_string(m.at("ck/log")).unwrap(), fs::metadata(m.at("ck/log")).unwrap().len());
    assert_eq!(seen(), ("one two three four five ".to_owned(), 24));
    kill_worker(m);
    log.write_all(b"six").unwrap();
    assert_eq!(seen(), ("one two three four five six".to_owned(), 27));

    let mut lead = Lead::attach(&m.control(), 3);
    assert_eq!(lead.inventory().datasets.len(), 1);
    lead.send(&Command::Serve);
    lead.send(&Command::AskChanges(id));
    assert!(matches!(lead.next(), Event::Changes { changed: true, .. }));
    let next = DatasetId(3);
    assert_eq!(freeze(&mut lead, next, Some(id)), 27);
    lead.send(&Command::Drop { id: next, reason: "a test".into() });
    assert!(matches!(lead.next(), Event::Dropped { .. }));
    log.write_all(b".").unwrap();
    drop(log);
    assert_eq!(seen(), ("one two three four five six.".to_owned(), 28));
}
