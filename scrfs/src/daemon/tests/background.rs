//! Markers that wait only until all nodes are frozen: what was promised then outlives workers and
//! coordinators.

use super::*;

const UNHURRIED: Marking = Marking { holds_directory: true, everywhere: true };

/// A dataset that is frozen, and whose marker was answered; the outcome of one that waits longer.
fn promised(bench: &Bench, lead: &mut Lead) -> Receiver<Result<(), Errno>> {
    bench.write("ck/a", b"alpha");
    lead.inventory();
    let waits = bench.marker("ck", Caller::default());
    let marked = bench.marking("ck", UNHURRIED, Caller::default());
    assert_eq!(lead.next(), Event::Marker { name: b"ck".to_vec(), everywhere: false });
    assert_eq!(lead.next(), Event::Marker { name: b"ck".to_vec(), everywhere: true });
    lead.freeze(1, "ck").unwrap();
    assert!(marked.try_recv().is_err());
    lead.send(Command::AllFrozen(DatasetId(1)));
    assert_eq!(marked.recv_timeout(WAIT).unwrap(), Ok(()));
    assert!(waits.try_recv().is_err(), "this one waits for the end");
    assert!(bench.tree.is_frozen("ck"));
    assert!(bench.events().contains("its marker's close returns"), "{}", bench.events());
    waits
}

fn again() -> Event {
    Event::Marker { name: b"ck".to_vec(), everywhere: true }
}

#[test]
fn it_is_asked_for_again_by_every_successor_and_stays_frozen() {
    let mut bench = Bench::new();
    let mut lead = bench.serving(1);
    let _waits = promised(&bench, &mut lead);
    // The coordinators die: the next ones drop what nobody has recorded.
    drop(lead);
    let mut lead = bench.lead(2, Start::Attach);
    lead.inventory();
    lead.send(Command::Drop { id: DatasetId(1), reason: "not finished".into() });
    assert_eq!(lead.next(), Event::Dropped(DatasetId(1)));
    assert!(bench.tree.is_frozen("ck"), "nothing may change until it is sealed");
    lead.send(Command::Serve);
    assert_eq!(lead.next(), again());
    // The worker dies too.
    drop(lead);
    bench.restart();
    assert!(bench.tree.is_frozen("ck"));
    let mut lead = bench.serving(3);
    assert_eq!(lead.next(), again());
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
    let waits = promised(&bench, &mut lead);
    lead.send(Command::Drop { id: DatasetId(1), reason: "a node is full".into() });
    assert_eq!(lead.next(), Event::Dropped(DatasetId(1)));
    lead.send(Command::NotSealed(DatasetId(1)));
    assert_eq!(waits.recv_timeout(WAIT).unwrap(), Err(Errno(libc::EIO)));
    assert!(!bench.tree.is_frozen("ck"));
    let events = bench.events();
    assert!(events.contains("its seal is given up: a node is full"), "{events}");
    // Nobody asks for it any more.
    drop(lead);
    let mut lead = bench.serving(2);
    lead.inventory();
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
    assert_eq!(lead.next(), Event::Marker { name: b"ck".to_vec(), everywhere: false });
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
