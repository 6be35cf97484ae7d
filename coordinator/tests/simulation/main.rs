//! The lead against model daemons, from seeds: random order of deliveries, coordinators killed at
//! any instant, nodes lost, jobs and PFS tasks that fail. A failing seed is printed; run it alone
//! with `SIMULATION_SEED=<seed> SIMULATION_TRACE=1`. `SIMULATION_FROM` begins at another seed,
//! `SIMULATION_ALL` goes on after one that fails.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "nothing of scrfs itself")]

mod counts;
mod daemon;
mod observer;
mod prefix;
mod rng;
mod saved;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use scrfs::control::Start;

use crate::counts::Counts;
use crate::prefix::Prefix;
use crate::world::World;

/// Steps in which everything settles once nothing fails any more.
const SETTLE_STEPS: usize = 60_000;

/// Runs until nothing is left to do; panics when that takes too long.
fn settle(world: &mut World) {
    let mut idle = 0;
    for _ in 0..SETTLE_STEPS {
        idle = if world.step(false) { 0 } else { idle + 1 };
        // 200 s without anything to do: no retry waits any longer.
        if idle > 400 {
            return;
        }
    }
    panic!("does not settle in {SETTLE_STEPS} steps");
}

fn run(world: &mut World) {
    world.start(Start::Restart);
    let steps = 300 + world.rng.below(1700);
    let deadly = *world.rng.pick(&[0, 20, 60]).expect("some");
    for _ in 0..steps {
        world.step(true);
        if world.rng.rarely(deadly) {
            world.kill();
            for _ in 0..world.rng.below(5) {
                world.step(true);
            }
            let attach = world.programs && world.rng.chance(60);
            if !attach {
                world.lose_nodes();
            }
            world.start(if attach { Start::Attach } else { Start::Restart });
        }
    }
    world.trouble = 0;
    settle(world);
    world.check_settled();
    world.kill();
    world.lose_nodes();
    world.start(Start::Restart);
    settle(world);
    world.check_settled();
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
    let Prefix { published, overtook, marked, adopted, .. } = world.prefix;
    Counts { failed: world.failed.len() as u64, published, overtook, marked, adopted, ..world.counts }
}

#[test]
fn seeds() {
    if let Ok(one) = std::env::var("SIMULATION_SEED") {
        seed(one.parse().expect("a number"));
        return;
    }
    let count = std::env::var("SIMULATION_COUNT").map_or(3000, |count| count.parse().expect("a number"));
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
    assert_eq!(failing, 0, "seeds that fail");
    eprintln!("{count} seeds: {total}");
    assert!(total.are_enough(count), "{total}");
}
