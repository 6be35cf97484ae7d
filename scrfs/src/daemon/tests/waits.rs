//! Programs that wait: without a coordinator, across coordinators, and dying meanwhile.

use std::time::Instant;

use super::*;
use crate::control::client::ClientError;

#[test]
fn a_node_that_never_had_a_coordinator_acts_alone_at_once() {
    let bench = Bench::new();
    assert_eq!(bench.directory_op(make("ck")).recv_timeout(WAIT).unwrap(), Ok(()));
    assert!(bench.tree.at(&path("ck")).exists());
    assert_eq!(bench.directory_op(make("ck")).recv_timeout(WAIT).unwrap(), Err(Errno(libc::EEXIST)));
    assert_eq!(bench.marker("ck", Caller::default()).recv_timeout(WAIT).unwrap(), Err(Errno(libc::EIO)));
    assert!(bench.events().contains("no coordinator"));
}

#[test]
fn after_a_loss_requests_wait_once_and_then_act_alone() {
    let bench = Bench::hasty();
    let lead = bench.serving(1);
    drop(lead);
    until("the loss", || bench.events().contains("is gone"));
    let begun = Instant::now();
    assert_eq!(bench.directory_op(make("a")).recv_timeout(WAIT).unwrap(), Ok(()));
    assert!(begun.elapsed() >= Duration::from_millis(bench.settings.coordinator_wait_ms));
    // From now on at once: whoever waited would wait for an hour.
    bench.node.state.lock().settings.as_mut().unwrap().coordinator_wait_ms = 3_600_000;
    assert_eq!(bench.directory_op(make("b")).recv_timeout(WAIT).unwrap(), Ok(()));
    assert!(bench.events().contains("act on this node alone"));
    // Until one attaches.
    let mut lead = bench.serving(2);
    let waiting = bench.directory_op(make("c"));
    let Event::DirRequest { request, .. } = lead.next() else { panic!() };
    lead.send(Command::DirFinish { results: vec![(request, libc::EEXIST)] });
    assert_eq!(waiting.recv_timeout(WAIT).unwrap(), Err(Errno(libc::EEXIST)));
}

#[test]
fn a_successor_gets_what_waits() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    let waiting = bench.directory_op(make("a"));
    let marker = bench.marker("ck", Caller::default());
    let Event::DirRequest { request, .. } = lead.next() else { panic!() };
    let marked = lead.next();
    drop(lead);
    let mut lead = bench.lead(2, Start::Attach);
    lead.inventory();
    lead.send(Command::Serve);
    let events = [lead.next(), lead.next()];
    assert!(events.contains(&Event::DirRequest { request, op: make("a") }), "the same request: {events:?}");
    assert!(events.contains(&marked), "the same marker: {events:?}");
    let Event::Marker { request: of_marker, .. } = marked else { panic!("{marked:?}") };
    lead.end(of_marker, MarkerOutcome::Refused("no files".into()));
    lead.send(Command::DirFinish { results: vec![(request, 0)] });
    assert_eq!(marker.recv_timeout(WAIT).unwrap(), Err(Errno(libc::EIO)));
    assert_eq!(waiting.recv_timeout(WAIT).unwrap(), Ok(()));
}

#[test]
fn a_successor_that_takes_its_time_is_asked_for_the_file_again() {
    let bench = Bench::new();
    std::fs::create_dir(bench.tree.at(&path("ck"))).unwrap();
    let mut lead = bench.serving(1);
    lead.commit(&members::elsewhere(b"sealed")).unwrap();
    let (give, outcome) = crossbeam_channel::bounded(1);
    let done = Box::new(move |result| give.send(result).unwrap());
    bench.node.fetch(DatasetId(3), &path("d/f"), Caller::default(), done);
    let asked = lead.next();
    assert!(matches!(asked, Event::Fetch { .. }));
    drop(lead);
    until("the loss", || bench.events().contains("is gone"));
    // The watching thread has looked at who waits, several times: each time it lets go one who is
    // dying.
    for _ in 0..3 {
        let dying = bench.marker("other", Caller { tid: u32::MAX / 4, ..Caller::default() });
        assert_eq!(dying.recv_timeout(WAIT).unwrap(), Err(Errno(libc::EINTR)));
    }
    let mut lead = bench.serving(2);
    assert_eq!(lead.next(), asked, "the same request");
    let Event::Fetch { request, .. } = asked else { panic!() };
    lead.send(Command::Fetched { request, errno: 0 });
    assert_eq!(outcome.recv_timeout(WAIT).unwrap(), Ok(()));
}

/// A program makes directory `a`, whose name is held for the lead's first round.
fn prepared(bench: &Bench, lead: &mut Lead) -> Receiver<Result<(), Errno>> {
    let waiting = bench.directory_op(make("a"));
    let Event::DirRequest { request, op } = lead.next() else { panic!() };
    lead.send(Command::DirPrepare { round: 1, ops: vec![(request, op)] });
    lead.next();
    waiting
}

#[test]
fn held_names_are_free_again_when_no_successor_comes() {
    let bench = Bench::hasty();
    let mut lead = bench.serving(1);
    let waiting = prepared(&bench, &mut lead);
    assert_eq!(bench.tree.held(), 1);
    drop(lead);
    assert_eq!(waiting.recv_timeout(WAIT).unwrap(), Ok(()));
    assert_eq!(bench.tree.held(), 0);
    assert!(bench.tree.at(&path("a")).exists());
}

/// In the look that ends its program's wait, what is unfinished is given up.
#[test]
fn what_was_applied_before_the_lead_went_is_not_voted_on_again() {
    let bench = Bench::hasty();
    let mut lead = bench.serving(1);
    let waiting = prepared(&bench, &mut lead);
    lead.send(Command::DirApply { round: 1, verdicts: vec![0] });
    assert_eq!(lead.next(), Event::DirApplied { round: 1, results: vec![0] });
    drop(lead);
    assert_eq!(waiting.recv_timeout(WAIT).unwrap(), Ok(()));
    until("the end of the wait", || bench.inventory().unfinished.is_empty());
}

#[test]
fn an_applied_round_is_told_to_the_successor_also_by_a_new_worker() {
    let mut bench = Bench::new();
    let mut lead = bench.serving(1);
    let request = RequestId { origin: 3, serial: 4 };
    lead.send(Command::DirPrepare { round: 1, ops: vec![(request, make("a"))] });
    lead.next();
    lead.send(Command::DirApply { round: 1, verdicts: vec![0] });
    lead.next();
    bench.restart();
    let mut lead = bench.lead(2, Start::Attach);
    assert_eq!(lead.inventory().unfinished, [(request, make("a"))]);
    let other = RequestId { origin: 3, serial: 5 };
    lead.send(Command::DirReplay { round: 1, ops: vec![(request, make("a")), (other, make("b"))] });
    assert_eq!(lead.next(), Event::DirApplied { round: 1, results: vec![0, 0] });
    assert!(bench.tree.at(&path("b")).exists());
    lead.send(Command::DirFinish { results: vec![(request, 0), (other, 0)] });
    assert!(lead.inventory().unfinished.is_empty());
    bench.restart();
    assert!(bench.inventory().unfinished.is_empty());
}

/// Nothing but the log tells whether two directories have each other's names by now.
#[test]
fn an_exchange_that_was_done_is_not_undone_by_a_successor() {
    let mut bench = Bench::new();
    std::fs::create_dir_all(bench.tree.at(&path("a/within"))).unwrap();
    std::fs::create_dir(bench.tree.at(&path("b"))).unwrap();
    let mut lead = bench.serving(1);
    let request = RequestId { origin: 3, serial: 4 };
    let op = DirOp::Rename { from: path("a"), to: path("b"), no_replace: false, exchange: true };
    lead.send(Command::DirPrepare { round: 1, ops: vec![(request, op.clone())] });
    lead.next();
    lead.send(Command::DirApply { round: 1, verdicts: vec![0] });
    lead.next();
    for (epoch, is_new) in [(2, false), (3, true)] {
        if is_new {
            bench.restart();
        }
        let mut lead = bench.lead(epoch, Start::Attach);
        assert_eq!(lead.inventory().unfinished, [(request, op.clone())]);
        lead.send(Command::DirReplay { round: 1, ops: vec![(request, op.clone())] });
        assert_eq!(lead.next(), Event::DirApplied { round: 1, results: vec![0] });
        assert!(bench.tree.at(&path("b/within")).exists(), "{epoch}");
    }
    // Another one, which this node has not done, is done.
    let mut lead = bench.lead(4, Start::Attach);
    let other = RequestId { origin: 3, serial: 5 };
    lead.send(Command::DirReplay { round: 1, ops: vec![(other, op)] });
    assert_eq!(lead.next(), Event::DirApplied { round: 1, results: vec![0] });
    assert!(bench.tree.at(&path("a/within")).exists());
    lead.send(Command::DirFinish { results: vec![(request, 0), (other, 0)] });
    assert!(lead.inventory().unfinished.is_empty());
    // Another node has not heard that it is finished, and so it is replayed on all.
    bench.restart();
    let mut lead = bench.lead(5, Start::Attach);
    let op = DirOp::Rename { from: path("a"), to: path("b"), no_replace: false, exchange: true };
    lead.send(Command::DirReplay { round: 1, ops: vec![(other, op)] });
    assert_eq!(lead.next(), Event::DirApplied { round: 1, results: vec![0] });
    assert!(bench.tree.at(&path("a/within")).exists());
}

/// A program has acted on this node alone since: a directory that it has made must not be removed
/// by an operation of before.
#[test]
fn what_no_successor_came_for_is_not_told_to_a_later_one() {
    let bench = Bench::hasty();
    let mut lead = bench.serving(1);
    let request = RequestId { origin: 3, serial: 4 };
    lead.send(Command::DirPrepare { round: 1, ops: vec![(request, make("a"))] });
    lead.next();
    lead.send(Command::DirApply { round: 1, verdicts: vec![0] });
    lead.next();
    drop(lead);
    until("the end of the wait", || bench.inventory().unfinished.is_empty());
    let mut lead = bench.lead(2, Start::Attach);
    let inventory = lead.inventory();
    assert!(
        inventory.unfinished.is_empty() && inventory.directories.iter().any(|held| held.path == path("a"))
    );
}

#[test]
fn a_seal_that_nobody_can_have_voted_for_ends_with_its_coordinator() {
    let bench = Bench::hasty();
    bench.write("ck/f", b"x");
    let mut lead = bench.serving(1);
    let marker = bench.marker("ck", Caller::default());
    lead.next();
    lead.freeze(1, "ck").unwrap();
    drop(lead);
    assert_eq!(marker.recv_timeout(WAIT).unwrap(), Err(Errno(libc::EIO)));
    until("the thaw", || !bench.tree.is_frozen("ck"));
    // Both end after the same time: the marker's answer may come before the seal is dropped, or
    // after.
    let told = |text| bench.events().contains(text);
    assert!(told("undecided") || told("ck: not sealed, no coordinator"), "{}", bench.events());
}

#[test]
fn a_recorded_seal_stays_frozen_until_a_successor_decides() {
    let bench = Bench::hasty();
    bench.write("ck/f", b"x");
    let mut lead = bench.serving(1);
    let marker = bench.marker("ck", Caller::default());
    lead.next();
    let files = lead.freeze(1, "ck").unwrap();
    let part = encode(&mut lead.data(), 1, &files).unwrap();
    drop(lead);
    assert_eq!(marker.recv_timeout(WAIT).unwrap(), Err(Errno(libc::EIO)));
    assert!(bench.events().contains("undecided"));
    assert!(bench.tree.is_frozen("ck"));
    let mut lead = bench.lead(2, Start::Attach);
    assert_eq!(lead.inventory().datasets.len(), 1);
    lead.commit(&catalog(1, 1, "ck", &part)).unwrap();
    // Set when it is complete here: others may have changed it since, so that all have sealed it is
    // no answer yet, which the lead is told.
    let marker = bench.marker("ck", Caller::default());
    lead.send(Command::Sealed(DatasetId(1)));
    lead.send(Command::Serve);
    let Event::Marker { request, base, .. } = lead.next() else { panic!("no marker") };
    assert_eq!(base, Some(DatasetId(1)));
    assert!(!lead.changed(1));
    assert!(marker.try_recv().is_err());
    lead.sealed(request, 1);
    assert_eq!(marker.recv_timeout(WAIT).unwrap(), Ok(()));
}

/// A seal that was dropped here, with the marker that asked for it.
fn dropped(bench: &Bench, lead: &mut Lead) -> (RequestId, Receiver<Result<(), Errno>>) {
    bench.write("ck/f", b"x");
    let marker = bench.marker("ck", Caller::default());
    let request = lead.marker("ck", false);
    lead.freeze(1, "ck").unwrap();
    lead.send(Command::Drop { id: DatasetId(1), reason: "another node writes".into() });
    assert_eq!(lead.next(), Event::Dropped(DatasetId(1)));
    assert!(marker.try_recv().is_err(), "it may be set anew where the seal is not dropped yet");
    (request, marker)
}

#[test]
fn a_marker_that_is_set_after_the_drop_is_another_try() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    let (request, marker) = dropped(&bench, &mut lead);
    let late = bench.marker("ck", Caller::default());
    let another = lead.marker("ck", false);
    lead.end(request, MarkerOutcome::NotSealed(DatasetId(1)));
    assert_eq!(marker.recv_timeout(WAIT).unwrap(), Err(Errno(libc::EIO)));
    assert!(late.try_recv().is_err());
    lead.seal(2, "ck");
    lead.sealed(another, 2);
    assert_eq!(late.recv_timeout(WAIT).unwrap(), Ok(()));
}

#[test]
fn a_marker_whose_failure_was_not_told_asks_the_successor() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    let (request, marker) = dropped(&bench, &mut lead);
    drop(lead);
    let mut lead = bench.serving(2);
    assert_eq!(lead.marker("ck", false), request);
    lead.seal(2, "ck");
    lead.sealed(request, 2);
    assert_eq!(marker.recv_timeout(WAIT).unwrap(), Ok(()));
}

#[test]
fn a_killed_program_is_let_go() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let caller = Caller { tid: child.id(), ..Caller::default() };
    let marker = bench.marker("ck", caller);
    lead.next();
    // It runs: its wait goes on. Then it is gone, which is the end of the state that a pending kill
    // is the beginning of.
    assert!(marker.recv_timeout(Duration::from_millis(150)).is_err());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(marker.recv_timeout(WAIT).unwrap(), Err(Errno(libc::EINTR)));
}

#[test]
fn a_coordinator_of_another_job_is_refused() {
    let bench = Bench::new();
    let lead = bench.serving(5);
    let role = Role::Coordinator {
        epoch: Epoch(6),
        rank: NodeRank(0),
        hosts: Vec::new(),
        start: Start::Attach,
        settings: Box::new(Settings { job_id: "other".into(), ..test_settings() }),
    };
    match Link::connect(&bench.control(), role, WAIT) {
        Err(ClientError::Refused { reason, highest, .. }) => {
            assert!(reason.contains("other") && reason.contains("j1"), "{reason}");
            assert_eq!(highest, Epoch(5), "its epoch counts for nothing");
        }
        outcome => panic!("{:?}", outcome.err()),
    }
    drop(lead);
}

#[test]
fn old_epochs_are_refused_also_after_a_restart() {
    let mut bench = Bench::new();
    let old = bench.serving(5);
    let refused = |bench: &Bench, epoch| {
        let role = Role::Coordinator {
            epoch: Epoch(epoch),
            rank: NodeRank(0),
            hosts: Vec::new(),
            start: Start::Attach,
            settings: Box::new(test_settings()),
        };
        matches!(
            Link::connect(&bench.control(), role, WAIT),
            Err(ClientError::Refused { highest: Epoch(5..), .. })
        )
    };
    assert!(refused(&bench, 4));
    let mut new = bench.lead(6, Start::Attach);
    let mut old = old;
    assert!(old.link.events.receive(Some(WAIT)).is_err(), "the former link is closed");
    assert!(DataConnection::connect(&bench.control(), Epoch(5), WAIT).is_err());
    assert_eq!(new.inventory().epoch, Epoch(5));
    bench.restart();
    assert!(refused(&bench, 5));
}

#[test]
fn writers_are_waited_for_and_named() {
    let bench = Bench::new();
    bench.write("ck/f", b"x");
    let mut lead = bench.serving(1);
    let writer =
        |pid| Writer { path: path("f"), pid, command: "prog".into(), appends: false, closing: false };
    // One that goes.
    bench.tree.set_writers(vec![writer(999_999)]);
    lead.send(Command::Freeze { id: DatasetId(1), name: b"ck".to_vec(), member: Member(0), base: None });
    until("a look at who writes", || bench.tree.has_looked());
    bench.tree.set_writers(Vec::new());
    assert!(matches!(lead.next(), Event::Frozen { result: Ok(_), .. }));
    lead.send(Command::Drop { id: DatasetId(1), reason: "again".into() });
    lead.next();
    // One that stays.
    bench.node.state.lock().settings.as_mut().unwrap().seal_timeout_ms = 50;
    bench.tree.set_writers(vec![writer(999_999)]);
    let error = lead.freeze(2, "ck").unwrap_err();
    assert!(error.contains("f by prog (pid 999999)"), "{error}");
    assert!(!bench.tree.is_frozen("ck"));
    // The marker's own process waits for itself: at once.
    bench.node.state.lock().settings.as_mut().unwrap().seal_timeout_ms = 3_600_000;
    let me = std::process::id();
    let marker = bench.marker("ck", Caller { tid: me, ..Caller::default() });
    let request = lead.marker("ck", false);
    bench.tree.set_writers(vec![writer(me)]);
    let error = lead.freeze(3, "ck").unwrap_err();
    assert!(error.contains("set the marker"), "{error}");
    lead.send(Command::Drop { id: DatasetId(3), reason: error.into() });
    lead.next();
    lead.end(request, MarkerOutcome::NotSealed(DatasetId(3)));
    assert_eq!(marker.recv_timeout(WAIT).unwrap(), Err(Errno(libc::EIO)));
}
