//! Markers that wait only until all nodes are frozen: what was promised then outlives workers and
//! coordinators.

use super::*;

const UNHURRIED: Marking = Marking { holds_directory: true, everywhere: true };

impl Lead {
    /// The next event, which tells of a marker of `name`: its request.
    pub(super) fn marker(&mut self, name: &str, everywhere: bool) -> RequestId {
        match self.next() {
            Event::Marker { request, name: of, everywhere: counts, .. } => {
                assert_eq!((of.as_slice(), counts), (name.as_bytes(), everywhere));
                request
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn end(&mut self, request: RequestId, outcome: MarkerOutcome) {
        self.send(Command::MarkersEnd { name: b"ck".to_vec(), requests: vec![request], outcome });
    }

    /// The marker of this request has what it was set for in dataset `id`.
    pub(super) fn sealed(&mut self, request: RequestId, id: u64) {
        self.end(request, MarkerOutcome::Sealed(DatasetId(id)));
    }
}

/// A dataset that is frozen, and whose marker was answered; the outcome of one that waits longer.
fn promised(bench: &Bench, lead: &mut Lead) -> (RequestId, Receiver<Result<(), Errno>>) {
    bench.write("ck/a", b"alpha");
    lead.inventory();
    let waits = bench.marker("ck", Caller::default());
    let marked = bench.marking("ck", UNHURRIED, Caller::default());
    let waiting = lead.marker("ck", false);
    lead.marker("ck", true);
    lead.freeze(1, "ck").unwrap();
    assert!(marked.try_recv().is_err());
    lead.send(Command::AllFrozen(DatasetId(1)));
    assert_eq!(marked.recv_timeout(WAIT).unwrap(), Ok(()));
    assert!(waits.try_recv().is_err(), "this one waits for the end");
    assert!(bench.tree.is_frozen("ck"));
    assert!(bench.events().contains("its marker's close returns"), "{}", bench.events());
    (waiting, waits)
}

/// One that was frozen while another was encoded: the one that was saved later stays the newer one.
#[test]
fn successors_are_asked_for_several_in_the_order_of_their_markers() {
    let mut bench = Bench::new();
    let mut lead = bench.serving(1);
    for (id, name) in [(1, "ck.9"), (2, "ck.10")] {
        bench.write(&format!("{name}/a"), b"alpha");
        lead.inventory();
        let marked = bench.marking(name, UNHURRIED, Caller::default());
        lead.marker(name, true);
        lead.freeze(id, name).unwrap();
        lead.send(Command::AllFrozen(DatasetId(id)));
        assert_eq!(marked.recv_timeout(WAIT).unwrap(), Ok(()));
    }
    drop(lead);
    let mut lead = bench.lead(2, Start::Attach);
    lead.inventory();
    for id in [1, 2].map(DatasetId) {
        lead.send(Command::Drop { id, reason: "not finished".into() });
        assert_eq!(lead.next(), Event::Dropped(id));
    }
    lead.send(Command::Serve);
    lead.marker("ck.9", true);
    lead.marker("ck.10", true);
    drop(lead);
    bench.restart();
    let mut lead = bench.serving(3);
    lead.marker("ck.9", true);
    lead.marker("ck.10", true);
}

#[test]
fn it_is_asked_for_again_by_every_successor_and_stays_frozen() {
    let mut bench = Bench::new();
    let mut lead = bench.serving(1);
    let (waiting, _waits) = promised(&bench, &mut lead);
    // The coordinators die: the next ones drop what nobody has recorded.
    drop(lead);
    let mut lead = bench.lead(2, Start::Attach);
    lead.inventory();
    lead.send(Command::Drop { id: DatasetId(1), reason: "not finished".into() });
    assert_eq!(lead.next(), Event::Dropped(DatasetId(1)));
    assert!(bench.tree.is_frozen("ck"), "nothing may change until it is sealed");
    lead.send(Command::Serve);
    lead.marker("ck", true);
    assert_eq!(lead.marker("ck", false), waiting);
    // The worker dies too.
    drop(lead);
    bench.restart();
    assert!(bench.tree.is_frozen("ck"));
    let mut lead = bench.serving(3);
    lead.marker("ck", true);
    lead.seal(2, "ck");
    until("its thaw", || !bench.tree.is_frozen("ck"));
    drop(lead);
    bench.restart();
    assert!(!bench.tree.is_frozen("ck") && bench.tree.is_sealed("ck"));
    let mut lead = bench.serving(4);
    lead.inventory();
}

#[test]
fn a_failure_is_told_and_thaws() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    let (waiting, waits) = promised(&bench, &mut lead);
    lead.send(Command::Drop { id: DatasetId(1), reason: "a node is full".into() });
    assert_eq!(lead.next(), Event::Dropped(DatasetId(1)));
    lead.end(waiting, MarkerOutcome::NotSealed(DatasetId(1)));
    assert_eq!(waits.recv_timeout(WAIT).unwrap(), Err(Errno(libc::EIO)));
    assert!(!bench.tree.is_frozen("ck"));
    let events = bench.events();
    assert!(events.contains("its seal is given up: a node is full"), "{events}");
    // Nobody asks for it any more.
    drop(lead);
    let mut lead = bench.serving(2);
    lead.inventory();
}

/// The marker that is asked for again may turn out to have been sealed, or to be of no use.
#[test]
fn what_is_owed_ends_with_its_own_marker_only() {
    let outcomes = [MarkerOutcome::Sealed(DatasetId(7)), MarkerOutcome::Refused("it is gone".to_owned())];
    for outcome in outcomes {
        let bench = Bench::new();
        let mut lead = bench.serving(1);
        let (waiting, waits) = promised(&bench, &mut lead);
        drop(lead);
        let mut lead = bench.lead(2, Start::Attach);
        lead.inventory();
        lead.send(Command::Drop { id: DatasetId(1), reason: "not finished".into() });
        assert_eq!(lead.next(), Event::Dropped(DatasetId(1)));
        lead.send(Command::Serve);
        let owed = lead.marker("ck", true);
        assert_eq!(lead.marker("ck", false), waiting);
        lead.end(waiting, MarkerOutcome::Refused("for this one alone".to_owned()));
        assert_eq!(waits.recv_timeout(WAIT).unwrap(), Err(Errno(libc::EIO)));
        lead.inventory();
        assert!(bench.tree.is_frozen("ck"), "it is still owed");
        lead.end(owed, outcome);
        until("its thaw", || !bench.tree.is_frozen("ck"));
    }
}

/// A successor after the coordinators of which the dataset was frozen: it has dropped the seal of
/// before and is asked for another one.
fn successor(bench: &Bench, owes: u64) -> Lead {
    let mut lead = bench.lead(2, Start::Attach);
    lead.inventory();
    lead.send(Command::Drop { id: DatasetId(owes), reason: "not finished".into() });
    assert_eq!(lead.next(), Event::Dropped(DatasetId(owes)));
    lead
}

/// Else programs could change what was promised before the lead has decided, or its successor.
#[test]
fn another_try_that_fails_here_thaws_what_is_owed_when_the_lead_drops_it() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    let (waiting, _waits) = promised(&bench, &mut lead);
    drop(lead);
    let mut lead = successor(&bench, 1);
    lead.send(Command::Serve);
    lead.marker("ck", true);
    assert_eq!(lead.marker("ck", false), waiting);
    bench.node.state.lock().settings.as_mut().unwrap().seal_timeout_ms = 50;
    let (path, command) = (path("a"), "prog".to_owned());
    bench.tree.set_writers(vec![Writer { path, pid: 999_999, command, appends: false, closing: false }]);
    let error = lead.freeze(2, "ck").unwrap_err();
    assert!(error.contains("still open for writing"), "{error}");
    assert!(bench.tree.is_frozen("ck"), "it is still owed");
    lead.send(Command::Drop { id: DatasetId(2), reason: error.into() });
    assert_eq!(lead.next(), Event::Dropped(DatasetId(2)));
    assert!(!bench.tree.is_frozen("ck"));
}

/// A lead records it where members have changed their nodes.
#[test]
fn a_later_revision_of_the_generation_before_ends_no_seal() {
    let bench = Bench::new();
    bench.write("ck/a", b"alpha");
    let mut lead = bench.serving(1);
    let sealed = lead.seal(1, "ck");
    bench.begin(1).unwrap();
    bench.change(1, "a", b"other");
    lead.freeze_over(2, "ck", Some(1)).unwrap();
    drop(lead);
    let mut lead = successor(&bench, 2);
    lead.commit(&Catalog { revision: 1, ..sealed }).unwrap();
    lead.send(Command::Serve);
    lead.marker("ck", true);
}

#[test]
fn without_a_successor_it_is_given_up() {
    let bench = Bench::hasty();
    let mut lead = bench.serving(1);
    let _waits = promised(&bench, &mut lead);
    drop(lead);
    until("its thaw", || !bench.tree.is_frozen("ck"));
    until("the news", || bench.events().contains("the coordinators are gone"));
}

#[test]
fn a_restart_forgets_it() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    let _waits = promised(&bench, &mut lead);
    drop(lead);
    let mut lead = bench.lead(2, Start::Restart);
    lead.inventory();
    lead.send(Command::Present { datasets: Vec::new() });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    lead.send(Command::Serve);
    // Of the program that still waits; nothing of what was frozen.
    lead.marker("ck", false);
    lead.inventory();
    assert!(!bench.tree.is_frozen("ck"));
}

#[test]
fn settings_outlive_the_worker() {
    let mut bench = Bench::new();
    drop(bench.serving(1));
    let before = bench.node.state.lock().settings.clone();
    assert!(before.is_some());
    bench.restart();
    assert_eq!(bench.node.state.lock().settings, before);
}
