//! A crash after any step of any commit to storage: what was told stands, what is there is whole,
//! and a retry succeeds.

use super::*;
use crate::control::HeldState;

impl Node {
    /// From now on `steps` more steps of commits reach the disk.
    fn crash_after(&self, steps: i64) {
        self.disk.lock().store().crash.after(steps);
    }
}

/// Runs `act` with a crash after each number of steps until it gets through whole; `check` looks at
/// the restarted node.
pub(super) fn at_every_step(
    prepare: impl Fn(&Bench, &mut Lead),
    act: impl Fn(&Bench, &mut Lead) -> bool,
    check: impl Fn(&mut Bench, bool),
) {
    for steps in 0..64 {
        let mut bench = Bench::new();
        bench.write("ck/f", b"bytes");
        let mut lead = bench.serving(1);
        prepare(&bench, &mut lead);
        bench.node.crash_after(steps);
        let succeeded = act(&bench, &mut lead);
        let crashed = bench.node.disk.lock().store().crash.is_down();
        bench.restart();
        assert!(bench.inventory().epoch >= Epoch(1), "the epoch is never lost");
        check(&mut bench, succeeded);
        if !crashed {
            assert!(succeeded, "nothing failed");
            assert!(steps > 0);
            return;
        }
    }
    panic!("it never got through");
}

pub(super) fn state(bench: &Bench) -> Option<HeldState> {
    bench.inventory().datasets.first().map(|dataset| dataset.state)
}

/// The whole seal again, under a new id.
fn retry(bench: &Bench) {
    let mut lead = bench.lead(2, Start::Attach);
    let held = lead.inventory().datasets;
    let was_frozen = !held.is_empty();
    for held in held {
        assert_ne!(held.state, HeldState::Complete);
        lead.send(Command::Drop { id: held.id, reason: "in doubt".into() });
        assert_eq!(lead.next(), Event::Dropped(held.id));
    }
    lead.send(Command::Serve);
    if was_frozen {
        lead.marker("ck", true);
    }
    lead.seal(2, "ck");
    until("the seal", || bench.tree.is_sealed("ck"));
    assert_eq!(std::fs::read(bench.tree.at(&path("ck/f"))).unwrap(), b"bytes");
}

#[test]
fn while_freezing() {
    at_every_step(
        |_, _| {},
        |_, lead| lead.freeze(1, "ck").is_ok(),
        |bench, succeeded| {
            let frozen = state(bench) == Some(HeldState::Frozen);
            assert!(frozen || !succeeded);
            retry(bench);
        },
    );
}

#[test]
fn while_recording_a_member() {
    let frozen = [FrozenFile { path: path("f"), size: 5 }];
    at_every_step(
        |_, lead| drop(lead.freeze(1, "ck").unwrap()),
        |_, lead| encode(&mut lead.data(), 1, &frozen).is_ok(),
        |bench, succeeded| {
            let found = state(bench);
            assert!(found == Some(HeldState::Recorded) || !succeeded);
            assert!(matches!(found, Some(HeldState::Recorded | HeldState::Frozen)), "{found:?}");
            retry(bench);
        },
    );
}

#[test]
fn while_recording_complete() {
    let frozen = [FrozenFile { path: path("f"), size: 5 }];
    let part: Mutex<Option<MemberPart>> = Mutex::new(None);
    at_every_step(
        |_, lead| {
            lead.freeze(1, "ck").unwrap();
            *part.lock() = Some(encode(&mut lead.data(), 1, &frozen).unwrap());
        },
        |_, lead| lead.commit(&catalog(1, 1, "ck", part.lock().as_ref().unwrap())).is_ok(),
        |bench, succeeded| {
            let found = state(bench);
            assert!(matches!(found, Some(HeldState::Recorded | HeldState::Complete)), "{found:?}");
            assert!(found == Some(HeldState::Complete) || !succeeded);
            // The lead goes on sending it; either way it ends complete.
            let mut lead = bench.lead(2, Start::Attach);
            lead.inventory();
            lead.commit(&catalog(1, 1, "ck", part.lock().as_ref().unwrap())).unwrap();
            assert_eq!(bench.inventory().datasets[0].members, [Member(0)]);
            assert!(bench.tree.is_sealed("ck"));
        },
    );
}

#[test]
fn while_evicting() {
    at_every_step(
        |_, lead| drop(lead.seal(1, "ck")),
        |bench, lead| {
            lead.send(Command::Evict(DatasetId(1)));
            assert_eq!(lead.next(), Event::Evicted(DatasetId(1)));
            !bench.events().contains("cannot be removed")
        },
        |bench, succeeded| {
            // Begun is finished by the next worker; not begun is whole.
            until("an end of the eviction", || {
                let datasets = bench.inventory().datasets;
                let gone = datasets.is_empty() && !bench.control().join("dataset.1.scrinfo").exists();
                gone || (!succeeded && datasets.first().is_some_and(|d| d.members == [Member(0)]))
            });
        },
    );
}

#[test]
fn while_a_program_removes_two_generations() {
    at_every_step(
        generations::seal_over,
        |bench, lead| {
            lead.remove_directory("ck");
            for event in [
                Event::Removed(DatasetId(1)),
                Event::Removed(DatasetId(2)),
                Event::DirApplied { round: 1, results: vec![0] },
            ] {
                assert_eq!(lead.next(), event);
            }
            !bench.events().contains("cannot be recorded")
        },
        |bench, succeeded| {
            // The former one is never left alone.
            let held: Vec<u64> = bench.inventory().datasets.iter().map(|held| held.id.0).collect();
            assert!(held.is_empty() || (!succeeded && held == [1, 2]), "{held:?}, {succeeded}");
            if held.is_empty() {
                let record = |id: u64| bench.control().join(format!("dataset.{id}.scrinfo"));
                until("the end of the removal", || !record(1).exists() && !record(2).exists());
            }
        },
    );
}

#[test]
fn an_epoch_that_is_not_on_storage_is_not_accepted() {
    for steps in 0..4 {
        let mut bench = Bench::new();
        bench.node.crash_after(steps);
        let role = Role::Coordinator {
            epoch: Epoch(8),
            rank: NodeRank(0),
            hosts: Vec::new(),
            start: Start::Attach,
            settings: Box::new(test_settings()),
        };
        assert!(Link::connect(&bench.control(), role, WAIT).is_err());
        bench.restart();
        bench.serving(9);
    }
}

#[test]
fn torn_and_hostile_files_do_not_keep_the_node_from_starting() {
    let mut bench = Bench::new();
    bench.write("ck/f", b"bytes");
    bench.serving(1).seal(1, "ck");
    bench.node.stop();
    for name in [
        "node.scrinfo",
        "filemap_0.scrinfo",
        "dataset.1.scrinfo",
        "rounds.journal",
        "filemap_0.journal",
        "events",
    ] {
        let at = bench.control().join(name);
        let whole = std::fs::read(&at).unwrap();
        for cut in [0, 1, 19, 21, whole.len() / 2, whole.len().saturating_sub(1)] {
            let mut torn = whole[..cut.min(whole.len())].to_vec();
            torn.extend([0xff; 3]);
            std::fs::write(&at, &torn).unwrap();
            (bench.tree, bench.node) = Bench::start(bench.directory.path());
            bench.inventory();
            bench.node.stop();
        }
        std::fs::write(&at, &whole).unwrap();
    }
}
