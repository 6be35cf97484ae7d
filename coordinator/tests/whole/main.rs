//! A whole job from a seed: the real lead, real nodes with their mounted trees, real bytes encoded,
//! rebuilt, flushed and fetched by the code that does so in production, in one thread but for the
//! jobs. Made up are the transport, the clock, the programs and all deaths: of coordinators and
//! workers between any two steps, of workers at any fault point, of coordinators in the middle of
//! jobs and at any fault point in the prefix, of nodes between two runs.
//!
//! A failing seed is printed; run it alone with `SIMULATION_SEED=<seed> SIMULATION_TRACE=1`.
//! `SIMULATION_FROM`, `SIMULATION_COUNT` and `SIMULATION_ALL` are as in `simulation`.
#![cfg(feature = "faults")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "nothing of scrfs itself")]

mod checks;
mod counts;
mod deaths;
mod exchanges;
mod flips;
mod interrupts;
mod machine;
mod markers;
mod programs;
mod removals;
#[path = "../simulation/rng.rs"]
mod rng;
mod shares;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use scrfs::control::Start;

use crate::counts::Counts;
use crate::world::World;

/// Steps in which everything comes to rest once nothing fails any more.
const SETTLE_STEPS: usize = 60_000;
/// Ticks without anything to do, after which nothing waits any longer.
const IDLE: usize = 400;
/// Seeds of a usual run.
const SEEDS: u64 = 150;

fn settle(world: &mut World) {
    let mut idle = 0;
    for _ in 0..SETTLE_STEPS {
        idle = if world.step(false) { 0 } else { idle + 1 };
        if idle > IDLE {
            return;
        }
    }
    panic!("does not come to rest in {SETTLE_STEPS} steps");
}

fn run(world: &mut World) {
    world.start(Start::Restart);
    let steps = 200 + world.rng.below(1500);
    let deadly = *world.rng.pick(&[0, 20, 60]).expect("some");
    for _ in 0..steps {
        world.step(true);
        if !world.rng.rarely(deadly) {
            continue;
        }
        if world.rng.chance(30) {
            let at = world.rng.below(world.machines.len());
            world.replace_worker(at);
            continue;
        }
        let attach = world.ready && world.rng.chance(60);
        world.kill();
        for _ in 0..world.rng.below(5) {
            world.step(attach);
        }
        if !attach {
            world.end_programs();
            if world.rng.chance(15) {
                world.flip();
            } else {
                world.lose_nodes();
            }
        }
        world.start(if attach { Start::Attach } else { Start::Restart });
    }
    world.calm();
    settle(world);
    world.check_answered();
    world.check_directories();
    world.kill();
    world.end_programs();
    world.lose_nodes();
    world.start(Start::Restart);
    settle(world);
    world.read_all();
    settle(world);
    world.check_read();
    world.check_answered();
}

fn seed(seed: u64) -> Counts {
    let mut world = World::new(seed);
    let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut world)));
    if let Err(panic) = outcome {
        for line in world.trace() {
            eprintln!("{line}");
        }
        eprintln!("the failing seed: SIMULATION_SEED={seed} SIMULATION_TRACE=1");
        std::panic::resume_unwind(panic);
    }
    world.counts
}

#[test]
fn seeds() {
    if let Ok(one) = std::env::var("SIMULATION_SEED") {
        seed(one.parse().expect("a number"));
        return;
    }
    let count = std::env::var("SIMULATION_COUNT").map_or(SEEDS, |count| count.parse().expect("a number"));
    let from = std::env::var("SIMULATION_FROM").map_or(0, |from| from.parse().expect("a number"));
    let goes_on = std::env::var_os("SIMULATION_ALL").is_some();
    let mut total = Counts::default();
    let mut failing = 0;
    for number in from..from + count {
        match catch_unwind(|| seed(number)) {
            Ok(one) => total += one,
            Err(_) if goes_on => failing += 1,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    eprintln!("{count} seeds: {total:?}");
    assert_eq!(failing, 0, "seeds that fail");
    assert!(total.are_enough(count), "{total:?}");
}
