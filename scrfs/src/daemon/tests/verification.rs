//! What a lazy restart presents before its bytes were compared with their checksums.

use std::sync::mpsc::{Receiver, channel};

use super::*;
use crate::boundary::GlobalRequests;
use crate::daemon::state::Trust;

const ID: DatasetId = DatasetId(1);
const FILES: [(&str, &[u8]); 2] = [("a", b"first"), ("b", b"second")];

/// A job's worker has sealed `ck`, and its coordinators begin a lazy restart. `damage` is done in
/// between; the dataset is presented.
fn presented(bench: &mut Bench, damage: impl FnOnce(&Bench)) -> (Lead, Catalog) {
    for (name, bytes) in FILES {
        bench.write(&format!("ck/{name}"), bytes);
    }
    let mut lead = bench.serving(1);
    let catalog = lead.seal(1, "ck");
    drop(lead);
    damage(bench);
    let mut lead = lazy(bench, 2);
    lead.send(Command::Present { datasets: vec![ID] });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    (lead, catalog)
}

fn lazy(bench: &Bench, epoch: u64) -> Lead {
    let mut settings = bench.settings.clone();
    settings.restart.lazy = true;
    Lead::attach(&bench.control(), epoch, Start::Restart, settings)
}

/// A bit of a file here is another one.
fn flip(bench: &Bench) {
    std::fs::write(bench.tree.at(&path("ck/b")), b"sEcond").unwrap();
}

fn unread(bench: &Bench) -> Vec<String> {
    let inner = bench.tree.inner.lock();
    inner.unread.get(&ID).into_iter().flatten().map(ToString::to_string).collect()
}

/// A program opens a file whose bytes it wants.
fn open(bench: &Bench, name: &str) -> Receiver<Result<(), Errno>> {
    let (tell, told) = channel();
    let done = Box::new(move |result| tell.send(result).unwrap());
    GlobalRequests::fetch(&*bench.node, ID, &path(name), Caller::default(), done);
    told
}

#[test]
fn each_file_is_verified_when_it_is_opened_and_the_others_behind_the_programs() {
    let mut bench = Bench::new();
    let (mut lead, _) = presented(&mut bench, |_| {});
    assert_eq!(unread(&bench), ["a", "b"]);
    assert_eq!(open(&bench, "b").recv_timeout(WAIT).unwrap(), Ok(()));
    assert_eq!(unread(&bench), ["a"]);
    lead.serve(&bench.node);
    let Event::Verified { id, members } = lead.next() else { panic!("another event") };
    assert_eq!((id, members.len(), members[0].bad()), (ID, 1, None));
    until("all to be read", || unread(&bench).is_empty());
    until("that to be recorded", || bench.node.state.lock().table.datasets[&ID].trust == Trust::Given);
    let told = bench.events();
    assert!(told.contains("presented before its bytes here are verified (2 files, 11 B)"), "{told}");
    assert!(told.contains("member 0 is verified"), "{told}");
}

#[test]
fn a_bad_file_is_brought_from_elsewhere_before_its_program_has_it() {
    let mut bench = Bench::new();
    let (mut lead, _) = presented(&mut bench, flip);
    lead.serve(&bench.node);
    let opened = open(&bench, "b");
    // Who asks first is the program, or the thread that reads behind it.
    let (mut request, mut bad) = (None, None);
    while request.is_none() || bad.is_none() {
        match lead.next() {
            Event::Fetch { request: asked, file } => {
                assert_eq!(file.path, path("b"));
                request = Some(asked);
            }
            Event::Verified { members, .. } => bad = members[0].bad(),
            other => panic!("{other:?}"),
        }
    }
    let reason = bad.unwrap().to_string();
    assert!(reason.contains("b: ") && reason.contains("CRC"), "{reason}");
    assert!(!bench.tree.at(&path("ck/b")).exists(), "nobody is to read it");
    assert!(opened.try_recv().is_err(), "its program waits");
    assert_eq!(unread(&bench), ["b"]);
    // The lead has had it rebuilt.
    std::fs::write(bench.tree.at(&path("ck/b")), b"second").unwrap();
    lead.send(Command::Fetched { request: request.unwrap(), errno: 0 });
    assert_eq!(opened.recv_timeout(WAIT).unwrap(), Ok(()));
    until("all to be verified", || unread(&bench).is_empty());
    until("that to be recorded", || bench.node.state.lock().table.datasets[&ID].trust == Trust::Given);
}

/// Else no later seal of that generation would find it.
#[test]
fn a_bad_file_of_a_begun_generation_is_there_again_when_its_member_is_rebuilt() {
    let mut bench = Bench::new();
    let (mut lead, catalog) = presented(&mut bench, flip);
    bench.begin(1).unwrap();
    lead.serve(&bench.node);
    let Event::Verified { members, .. } = lead.next() else { panic!("another event") };
    assert!(members[0].bad().is_some());
    assert_eq!(bench.in_tree("b"), None);
    bad::rebuild(&mut lead.data(), &catalog, FILES[1].1, true).unwrap();
    assert_eq!(bench.in_tree("b").as_deref(), Some("second"));
    until("that to be recorded", || bench.node.state.lock().table.datasets[&ID].trust == Trust::Given);
}

/// A program is quicker than the reading behind it.
#[test]
fn what_a_program_has_put_in_the_place_of_a_bad_file_stays() {
    let mut bench = Bench::new();
    let (mut lead, catalog) = presented(&mut bench, flip);
    bench.begin(1).unwrap();
    bench.node.changing(ID, &path("b"), None).unwrap();
    let (at, new) = (bench.tree.at(&path("ck/b")), bench.tree.at(&path("ck/new")));
    std::fs::write(&new, b"mine").unwrap();
    std::fs::rename(&new, &at).unwrap();
    lead.serve(&bench.node);
    let Event::Verified { members, .. } = lead.next() else { panic!("another event") };
    assert!(members[0].bad().is_some());
    bad::rebuild(&mut lead.data(), &catalog, FILES[1].1, true).unwrap();
    assert_eq!(bench.in_tree("b").as_deref(), Some("mine"));
}

#[test]
fn a_next_worker_goes_on_with_what_is_unread() {
    let mut bench = Bench::new();
    drop(presented(&mut bench, |_| {}));
    assert_eq!(open(&bench, "b").recv_timeout(WAIT).unwrap(), Ok(()));
    bench.restart();
    assert_eq!(unread(&bench), ["a", "b"], "which of them were read is not recorded");
    let mut lead = bench.serving(3);
    assert!(matches!(lead.next(), Event::Verified { .. }));
    until("all to be verified", || unread(&bench).is_empty());
    until("that to be recorded", || bench.node.state.lock().table.datasets[&ID].trust == Trust::Given);
    drop(lead);
    bench.restart();
    assert_eq!(unread(&bench), [""; 0]);
}

#[test]
fn what_the_lead_has_had_verified_is_not_read_again() {
    let mut bench = Bench::new();
    drop(presented(&mut bench, |_| {}));
    let mut lead = lazy(&bench, 3);
    assert_eq!(lead.verify(ID), [(Member(0), [None, None])]);
    lead.send(Command::Present { datasets: vec![ID] });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    lead.serve(&bench.node);
    assert!(bench.node.state.lock().table.datasets[&ID].trust == Trust::Verified);
    assert_eq!(bench.node.comparisons.unread.lock().take_waiters(|_| true).len(), 0);
}

#[test]
fn redundancy_data_is_verified_behind_the_programs() {
    let mut bench = Bench::new();
    let parity = |bench: &Bench| {
        let at = bench.directory.path().join("cache/user/scr.j1/dataset.1").join(REDUNDANCY);
        std::fs::write(at, b"pArity").unwrap();
    };
    let (mut lead, _) = presented(&mut bench, parity);
    lead.serve(&bench.node);
    let Event::Verified { members, .. } = lead.next() else { panic!("another event") };
    assert!(members[0].files.is_ok());
    assert!(members[0].redundancy.as_ref().unwrap_err().to_string().contains(REDUNDANCY));
}

#[test]
fn who_waits_is_answered_when_the_daemon_ends() {
    let mut bench = Bench::new();
    let (lead, _) = presented(&mut bench, |bench| {
        std::fs::remove_file(bench.tree.at(&path("ck/a"))).unwrap();
    });
    let opened = open(&bench, "a");
    bench.node.stop();
    assert_eq!(opened.recv_timeout(WAIT).unwrap(), Err(Errno(libc::EIO)));
    drop(lead);
}
