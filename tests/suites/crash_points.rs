//! Coordinators killed at named points, with the program alive and with it dead. Afterwards the
//! newest dataset whose marker's close had succeeded is there byte for byte, nothing of the living
//! program is lost, and it goes on.

use std::time::Duration;

use scrfs_harness::job::{Job, Running, SOON};
use scrfs_harness::place::{BIN, SCR};
use scrfs_harness::programs::program;
use scrfs_harness::{Cluster, wait};

/// Points that a living program passes: directory rounds, seal, the beginning of encoding.
const ALIVE_EARLY: [&str; 13] = [
    "round.prepare=kill@1",
    "round.prepare=kill@3",
    "round.prepared=kill@2",
    "round.apply=kill@1",
    "round.apply=kill@2",
    "round.applied=kill@2",
    "round.finish=kill@1",
    "seal.freeze=kill@1",
    "seal.freeze=kill@2",
    "seal.frozen=kill@1",
    "seal.frozen=kill@3",
    "encode.start=kill@1",
    "encode.start=kill@2",
];

/// The rest: encode, commit, flush.
const ALIVE_LATE: [&str; 13] = [
    "encode.block=kill@1",
    "encode.block=kill@4",
    "encode.finish=kill@1",
    "encode.finish=kill@2",
    "commit.send=kill@1",
    "commit.send=kill@2",
    "commit.done=kill@1",
    "commit.done=kill@3",
    "flush.begin=kill@1",
    "flush.publish=kill@1",
    "flush.swapped=kill@1",
    "flush.index=kill@1",
    "flush.current=kill@1",
];

/// Points that are passed while no program runs: recovery.
const DEAD: [&str; 8] = [
    "rebuild.start=kill@1",
    "rebuild.start=kill@2",
    "rebuild.block=kill@1",
    "rebuild.block=kill@3",
    "rebuild.finish=kill@1",
    "commit.send=kill@1",
    "commit.done=kill@1",
    "flush.begin=kill@1",
];

fn ckpt(job: &Job<'_>, hosts: &[usize], steps: &str, more: &[&str]) -> Running {
    let program = program("ckpt");
    let log = job.log_path();
    let mut arguments = vec![program.as_str(), "/scr", &log, steps, "uneven", "retry", "bytes=300000"];
    arguments.extend(more);
    job.start(hosts, 4, 1, &arguments)
}

fn started_after(job: &Job<'_>) -> u64 {
    job.log().iter().rev().find_map(|l| l.strip_prefix("start after ")?.parse().ok()).unwrap_or(0)
}

#[test]
fn killed_in_rounds_and_seals_while_the_program_lives() {
    kill_while_alive("early", &ALIVE_EARLY);
}

#[test]
fn killed_in_commits_and_flushes_while_the_program_lives() {
    kill_while_alive("late", &ALIVE_LATE);
}

fn kill_while_alive(name: &str, faults: &[&str]) {
    let cluster = Cluster::up(4);
    // Nothing may depend on how fast a successor comes: rounds that wait too long would act
    // locally.
    let job = Job::new(&cluster, name).set("SCR_FLUSH", "1");
    job.mount(0..4);
    let mut run = ckpt(&job, &[0, 1, 2, 3], "100000", &["pause=20"]);
    run.await_line(&job, "sealed 1", SOON);
    for fault in faults {
        job.arm(fault);
        wait::until_true(&format!("{fault} to fire; {}", run.output()), SOON, || job.fired());
        let before = job.sealed().last().copied().unwrap_or(0);
        let went_on = wait::poll(SOON, || {
            let sealed = job.sealed().last().copied().unwrap_or(0);
            (sealed >= before + 2 || run.try_code().is_some()).then_some(run.try_code().is_none())
        });
        assert_eq!(
            went_on,
            Some(true),
            "after {fault}: {:?}\n{}\n{}",
            job.log(),
            run.output(),
            job.events(0)
        );
    }
    // All coordinators at once, in the middle of whatever they do: the head sees those of all
    // nodes. When one is gone, the launcher ends the others.
    for round in 0..3 {
        cluster.head().run("pkill -9 -x scrfs-coordinat").must();
        let before = job.sealed().last().copied().unwrap_or(0);
        wait::until_true(&format!("progress after all died, round {round}; {}", run.output()), SOON, || {
            job.sealed().last().copied().unwrap_or(0) >= before + 2
        });
    }
    // Program and coordinators end; a node is lost; the newest sealed one is there, byte for byte.
    run.stop();
    let sealed = job.sealed().last().copied().unwrap_or(0);
    cluster.kill(2);
    cluster.boot(2).expect("to boot");
    job.mount([2]);
    let mut check = ckpt(&job, &[0, 1, 2, 3], "0", &[]);
    assert_eq!(check.wait(Duration::from_mins(2)), 0, "{}", check.output());
    assert!(started_after(&job) >= sealed, "sealed {sealed}, log {:?}", job.log());
}

#[test]
fn killed_while_no_program_runs() {
    let cluster = Cluster::up(4);
    let mut job = Job::new(&cluster, "dead").set("SCR_FLUSH", "1");
    job.mount(0..4);
    let mut steps = 2_u64;
    let mut run = ckpt(&job, &[0, 1, 2, 3], "2", &[]);
    assert_eq!(run.wait(Duration::from_mins(2)), 0, "{}", run.output());
    for (turn, fault) in DEAD.into_iter().enumerate() {
        let lost = turn % 4;
        cluster.kill(lost);
        cluster.boot(lost).unwrap();
        job.mount([lost]);
        // Without the PFS's help: recovery has to be by rebuild.
        job = job.set("SCR_FETCH", "0");
        job.arm(fault);
        steps += 1;
        let mut run = ckpt(&job, &[0, 1, 2, 3], &steps.to_string(), &[]);
        assert_eq!(run.wait(Duration::from_mins(2)), 0, "{fault}: {}", run.output());
        assert!(job.fired(), "{fault} was never reached: {}", run.output());
        job.disarm();
        assert_eq!(started_after(&job), steps - 1, "{fault}: {:?}", job.log());
    }
    let listed = job.on(0).run(&format!("{BIN}/scrfs-ctl status --mount {SCR}"));
    assert!(listed.ok(), "{listed}");
}
