//! Two that publish what nodes have saved, at the same time: a person and a start, or two persons.

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use super::prefix;
use super::scavenge::{Saved, dataset, sized};
use crate::prefix::PfsError;
use crate::prefix::directory::Prefix;
use crate::prefix::scavenge::{Adoption, By, Outcome, adopt};

/// Each step of one that begins in the middle of another's work and dies there: the other finds the
/// dataset whole, whoever has put it where it is.
#[test]
fn one_that_dies_at_any_step_beside_another_costs_nothing() {
    for lost in [None, Some(3)] {
        for begins in [0, 1, 4, 9, 14] {
            let mut has_finished = false;
            for steps in 0..20 {
                let root = tempfile::tempdir().unwrap();
                let prefix = prefix(root.path(), 5);
                let saved = sized(2, "ck", 50_000);
                saved.save_all_but(&prefix, lost.as_slice());
                let goes = Cell::new(0);
                let another = |_: crate::prefix::scavenge::Progress<'_>| {
                    if goes.replace(goes.get() + 1) == begins {
                        has_finished |= dies_after(root.path(), &saved, steps);
                    }
                };
                let another = std::cell::RefCell::new(another);
                let adoption = adopt(&prefix, saved.age(), By::Person(&|told| (another.borrow_mut())(told)));
                is_sound(adoption, &format!("{lost:?}, {begins}, {steps}"));
                assert!(goes.get() > begins, "it was not begun");
                saved.is_published(&prefix);
                if has_finished {
                    break;
                }
            }
            assert!(has_finished, "{lost:?}, {begins}: there are more steps");
        }
    }
}

/// Whether it ended before that.
fn dies_after(root: &Path, saved: &Saved, steps: u64) -> bool {
    let mut dying = prefix(root, 5);
    dying.host = "node9".to_owned();
    dying.steps_left.set(steps);
    adopt(&dying, saved.age(), By::Person(&|_| {})).is_ok()
}

fn is_sound(adoption: Result<Adoption, PfsError>, case: &str) {
    let outcome = adoption.map(|adoption| adoption.outcome);
    assert!(matches!(outcome, Ok(Outcome::Published(_) | Outcome::Stored)), "{case}: {outcome:?}");
}

/// As fast as they can: two persons, or one and newer coordinators, to which that one gives way.
#[test]
fn of_two_at_once_each_finds_it_published() {
    for round in 0..40 {
        let root = tempfile::tempdir().unwrap();
        let saved = dataset(round + 1, "ck");
        let lost: &[u32] = if round % 2 == 0 { &[] } else { &[0, 3] };
        saved.save_all_but(&at(root.path(), 5, "node0"), lost);
        let work = |epoch: u64, host: &'static str| {
            let (root, saved) = (root.path(), &saved);
            move || adopt(&at(root, epoch, host), saved.age(), By::Person(&|_| {}))
        };
        let newer = if round % 4 < 2 { 5 } else { 6 };
        let (one, other) = std::thread::scope(|scope| {
            let (one, other) = (scope.spawn(work(5, "node0")), scope.spawn(work(newer, "node9")));
            (one.join().unwrap(), other.join().unwrap())
        });
        let gives_way = matches!(one, Err(PfsError::Locked { .. } | PfsError::Superseded(..)));
        if newer == 5 || !gives_way {
            is_sound(one, &format!("round {round}"));
        }
        is_sound(other, &format!("round {round}"));
        // Of a lock that was taken over there may be a temporary name.
        saved.is_whole(&at(root.path(), newer, "node0"));
    }
}

/// A busy machine must not make a lock that is held look like a dead node's.
fn at(root: &Path, epoch: u64, host: &str) -> Prefix {
    let mut prefix = prefix(root, epoch);
    prefix.host = host.to_owned();
    prefix.patience = Duration::from_mins(1);
    prefix
}
