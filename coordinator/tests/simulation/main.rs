//! The lead against model daemons, from seeds: random order of deliveries, coordinators killed at
//! any instant, nodes lost, jobs and PFS tasks that fail. A failing seed is printed; run it alone
//! with `SIMULATION_SEED=<seed> SIMULATION_TRACE=1`. `SIMULATION_FROM` begins at another seed,
//! `SIMULATION_ALL` goes on after one that fails.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "nothing of scrfs itself")]

mod daemon;
mod observer;
mod prefix;
mod rng;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use scrfs::control::Start;

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

fn seed(seed: u64) -> [u64; 12] {
    let mut world = World::new(seed);
    let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut world)));
    if let Err(panic) = outcome {
        for line in world.trace() {
            eprintln!("{line}");
        }
        eprintln!("the failing seed: SIMULATION_SEED={seed} SIMULATION_TRACE=1");
        std::panic::resume_unwind(panic);
    }
    let (prefix, failed) = (&world.prefix, world.failed.len() as u64);
    let World { seals, generations, rebuilt, mended, reencoded, unhurried, made_room, full, .. } = world;
    let Prefix { published, overtook, marked, .. } = *prefix;
    [
        seals,
        rebuilt,
        published,
        overtook,
        marked,
        mended,
        failed,
        generations,
        unhurried,
        made_room,
        full,
        reencoded,
    ]
}

#[test]
fn seeds() {
    if let Ok(one) = std::env::var("SIMULATION_SEED") {
        seed(one.parse().expect("a number"));
        return;
    }
    let count = std::env::var("SIMULATION_COUNT").map_or(3000, |count| count.parse().expect("a number"));
    let from = std::env::var("SIMULATION_FROM").map_or(0, |from| from.parse().expect("a number"));
    let mut total = [0; 12];
    let mut failing = 0;
    for number in from..from + count {
        let one = if std::env::var_os("SIMULATION_ALL").is_some() {
            catch_unwind(|| seed(number)).unwrap_or_else(|_| {
                failing += 1;
                [0; 12]
            })
        } else {
            seed(number)
        };
        for (total, one) in total.iter_mut().zip(one) {
            *total += one;
        }
    }
    assert_eq!(failing, 0, "seeds that fail");
    let [
        seals,
        restarts,
        flushes,
        overtook,
        marked,
        mended,
        failed,
        generations,
        unhurried,
        made_room,
        full,
        reencoded,
    ] = total;
    let told = format!(
        "{count} seeds: {seals} seals ({generations} of a next generation), {restarts} restarts, {flushes} flushes ({overtook} past one that fails, {marked} \
         marked), {mended} members rebuilt while programs ran, {failed} datasets failed, {unhurried} markers answered in the background, \
         room made {made_room} times for a file and not found {full} times, {reencoded} members encoded anew"
    );
    eprintln!("{told}");
    // A simulation in which little happens proves little.
    let enough = [seals, restarts, flushes].iter().all(|what| *what > count / 2);
    let enough = enough && overtook > count / 11 && marked > count / 200;
    assert!(
        enough
            && generations > count / 10
            && unhurried > count / 10
            && mended > count / 20
            && failed > count / 50
            && made_room > count / 200
            && full > count / 50
            && reencoded > count / 20,
        "{told}"
    );
}
