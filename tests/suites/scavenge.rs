//! Jobs that end without their coordinators: nodes save the newest protected dataset before their
//! caches go, and a job with another id on other nodes goes on from it (operations: "When the
//! coordinators are gone").

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::{BIN, CACHE, SCR};
use scrfs_harness::shell::Ran;
use scrfs_harness::{Cluster, wait};

use crate::prefix_away::stop_between_requests;

const LIMIT: Duration = Duration::from_mins(2);
const SAVE: [&str; 3] = ["--save", "60", "--purge"];
const NODES: [usize; 4] = [0, 1, 2, 3];

pub(crate) fn job<'a>(cluster: &'a Cluster, name: &str) -> Job<'a> {
    Job::new(cluster, name).set("SCRFS_END_GRACE", "60")
}

/// Every node writes two files of its own into a dataset, and it is sealed: the sums of all of
/// them.
fn seal(job: &Job<'_>, name: &str) -> String {
    let at = format!("{SCR}/{name}");
    job.on(0).run(&format!("mkdir -p {at}/sub")).must();
    for node in NODES {
        let line = format!(
            "cd {at} && head -c {}00001 /dev/urandom > big.{node} && head -c 5000 /dev/urandom > sub/small.{node}",
            node + 1
        );
        job.on(node).run(&line).must();
    }
    job.on(2).run(&format!("touch {at}/.complete")).must();
    sums(job, 1, name)
}

fn sums(job: &Job<'_>, node: usize, name: &str) -> String {
    job.on(node).run(&sums_line(&format!("{SCR}/{name}"))).must().to_owned()
}

fn sums_line(at: &str) -> String {
    format!("cd {at} && md5sum big.? sub/small.?")
}

/// Mounts, seals datasets, and kills all of the job but its daemons: the sums of the last dataset.
pub(crate) fn killed_after(job: &Job<'_>, names: &[&str]) -> String {
    job.mount(NODES);
    let run = job.idle(&NODES);
    let mut last = String::new();
    for name in names {
        last = seal(job, name);
        job.on(3).run(&format!("echo {name} > {SCR}/latest")).must();
    }
    job.kill_all();
    drop(run);
    last
}

/// A job with another id goes on from `name`: what its program sees of it.
fn goes_on(job: &Job<'_>, nodes: &[usize], name: &str) -> String {
    goes_on_as(&job.clone().with_id("next"), nodes, name)
}

fn goes_on_as(next: &Job<'_>, nodes: &[usize], name: &str) -> String {
    next.mount(nodes.iter().copied());
    let line = format!(
        "test \"$SCRFS_CURRENT\" = {name} && test \"$(cat {SCR}/latest)\" = {name} && {}",
        sums_line(&format!("{SCR}/{name}"))
    );
    let mut run = next.start(nodes, 1, 1, &["/bin/sh", "-c", &line]);
    assert_eq!(run.wait(LIMIT), 0, "{}\n{}", run.output(), next.events(nodes[0]));
    let text = run.output();
    let is_sum = |line: &&str| line.len() > 34 && line.bytes().take(32).all(|byte| byte.is_ascii_hexdigit());
    text.lines().filter(is_sum).collect::<Vec<_>>().join("\n")
}

#[track_caller]
pub(crate) fn all_are(ended: &[Ran], ok: bool, text: &str) {
    for ran in ended {
        assert!(ran.ok() == ok && ran.err.contains(text), "{text:?}: {ran}");
    }
}

/// All have saved their parts, at once; those before the last say that others are missing too.
#[track_caller]
fn the_last_misses(ended: &[Ran], members: &str) {
    all_are(ended, true, "saved, and not published: member ");
    let last = format!(": {members}");
    assert!(ended.iter().any(|ran| ran.err.contains(&last)), "{members:?}: {ended:?}");
}

fn purged(cluster: &Cluster, job: &str, nodes: impl IntoIterator<Item = usize>) {
    for node in nodes {
        cluster
            .on(node)
            .run(&format!("test ! -e {CACHE}/root/scr.{job} && test ! -e {SCR}/.scrfs/status"))
            .must();
    }
}

fn ctl(cluster: &Cluster, job: &Job<'_>, words: &str) -> Ran {
    cluster.head().run(&format!("{BIN}/scrfs-ctl scavenge --prefix {} {words}", job.prefix()))
}

#[test]
fn a_job_that_was_killed_goes_on_elsewhere_from_its_newest_dataset() {
    let cluster = Cluster::up(5);
    let job = job(&cluster, "whole");
    let sealed = killed_after(&job, &["old", "new"]);
    let ended = job.end(NODES, &SAVE);
    all_are(&ended, true, "new (dataset ");
    purged(&cluster, "whole", NODES);
    let published = ended.iter().filter(|ran| ran.err.contains("saved: it is on the PFS")).count();
    assert!(published >= 1, "{ended:?}");
    assert!(job.host_prefix().join("new/.scr/summary.scr").exists());
    assert!(ctl(&cluster, &job, "").ok(), "nothing is left to be published");
    assert_eq!(goes_on(&job, &[1, 2, 3, 4], "new"), sealed);
    // Where nothing is, nothing is to be done.
    all_are(&job.end([0], &SAVE), true, "nothing is here");
    // Its program ran on one node.
    let next = job.clone().with_id("next");
    all_are(&next.end([1], &SAVE), true, "new (dataset ");
    all_are(&next.end([2, 3, 4], &SAVE), true, "no coordinator was ever here");
}

#[test]
fn a_lost_nodes_part_is_rebuilt_and_what_cannot_be_is_named() {
    let cluster = Cluster::up(6);
    let one = job(&cluster, "one");
    let sealed = killed_after(&one, &["old", "new"]);
    cluster.poweroff(2);
    the_last_misses(&one.end([0, 1, 3], &SAVE), "member 2 (node2) missing");
    purged(&cluster, "one", [0, 1, 3]);
    assert!(!one.host_prefix().join("new").exists());
    // It may be whole: a program that began from nothing would make it needless.
    let lock = one.host_prefix().join(".scr/index.lock");
    std::fs::create_dir(&lock).unwrap();
    let next = one.clone().with_id("next");
    next.mount([0, 1, 3, 4]);
    let mut early = next.start(&[0, 1, 3, 4], 1, 1, &["/bin/true"]);
    let (code, said) = (early.wait(LIMIT), early.output());
    for what in ["dataset 2 was saved in the prefix when a job ended", "giving up: the checkpoint cannot be"]
    {
        assert!(code == 1 && said.contains(what), "{code}, {what}: {said}");
    }
    std::fs::remove_dir(lock).unwrap();
    assert_eq!(goes_on(&one, &[0, 1, 3, 4], "new"), sealed);
    let told = one.clone().with_id("next").events(0);
    assert!(told.contains("member 2 (node2) is rebuilt from what the other nodes"), "{told}");
    for node in [0, 1, 3, 4] {
        assert!(one.clone().with_id("next").end([node], &["--purge"])[0].ok());
    }

    cluster.boot(2).unwrap();
    let two = job(&cluster, "two");
    two.mount(NODES);
    let run = two.idle(&NODES);
    let older = seal(&two, "old");
    two.on(0).run(&format!("echo old > {SCR}/latest")).must();
    two.on(0).run(&format!("{BIN}/scrfs-ctl flush old --wait")).must();
    seal(&two, "new");
    two.kill_all();
    drop(run);
    cluster.poweroff(0);
    cluster.poweroff(2);
    the_last_misses(&two.end([1, 3], &SAVE), "member 0 (node0), member 2 (node2) missing");
    let told = ctl(&cluster, &two, "");
    assert!(
        !told.ok() && told.out.contains("new (dataset 2): not published: member 0 (node0), member 2 (node2)"),
        "{told}"
    );
    let json = ctl(&cluster, &two, "--json");
    let value: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!(value["datasets"][0]["state"], "incomplete", "{json}");
    assert_eq!(value["datasets"][0]["members"][1]["host"], "node2", "{json}");
    assert_eq!(goes_on(&two, &[1, 3, 4, 5], "old"), older);
}

/// A job that was held is released after some of its nodes have given up their caches.
#[test]
fn what_some_have_saved_and_others_have_in_their_caches_is_put_together() {
    let cluster = Cluster::up(5);
    let job = job(&cluster, "held").set("SCR_FLUSH", "0");
    let sealed = killed_after(&job, &["old", "new"]);
    the_last_misses(&job.end([0, 1], &SAVE), "member 2 (node2), member 3 (node3) missing");
    purged(&cluster, "held", [0, 1]);
    // What began from nothing now would write over what is only waiting.
    let (prefix, away) = (job.host_prefix(), job.host_prefix().with_extension("away"));
    std::fs::rename(&prefix, &away).unwrap();
    std::fs::write(&prefix, b"no directory").unwrap();
    job.mount([0, 1]);
    let mut early = job.start(&NODES, 1, 1, &["/bin/true"]);
    let (code, said) = (early.wait(LIMIT), early.output());
    for what in ["new (dataset 2) is in the caches in part only", "giving up: the checkpoint cannot be"] {
        assert!(code == 1 && said.contains(what), "{code}, {what}: {said}");
    }
    std::fs::remove_file(&prefix).unwrap();
    std::fs::rename(&away, &prefix).unwrap();
    // Neither the caches nor the prefix give it back alone, and both only with what protects it.
    cluster.poweroff(3);
    assert_eq!(goes_on_as(&job, &[0, 1, 2, 4], "new"), sealed);
    let told = job.events(2);
    for what in ["1 of 1 nodes save theirs too", "member 3 (node3) is rebuilt from what the other nodes"] {
        assert!(told.contains(what), "{what}: {told}");
    }
    assert!(job.host_prefix().join("new/.scr/summary.scr").exists());
    assert!(ctl(&cluster, &job, "").ok(), "nothing is left to be published");
}

/// The caches of the nodes that have saved them are gone, so that only the set can give them back.
#[test]
fn bytes_that_go_bad_after_they_were_saved_are_rebuilt() {
    let cluster = Cluster::up(4);
    let job = job(&cluster, "rotten").set("SCR_FLUSH", "0");
    let sealed = killed_after(&job, &["ck"]);
    the_last_misses(&job.end([0, 1], &SAVE), "member 2 (node2), member 3 (node3) missing");
    let saved = job.host_prefix().join(".scr/scavenge.1.1/dataset/sub/small.0");
    let mut bytes = std::fs::read(&saved).unwrap();
    bytes[2500] ^= 1;
    std::fs::write(&saved, bytes).unwrap();
    job.mount([0, 1]);
    let _run = job.idle(&NODES);
    assert_eq!(sums(&job, 1, "ck"), sealed);
    let told = job.events(2);
    for what in
        ["sub/small.0, saved by node0: it has 5000 bytes with CRC", "published; rebuilt: member 0 (node0)"]
    {
        assert!(told.contains(what), "{what}: {told}");
    }
}

#[test]
fn what_cannot_be_saved_keeps_its_mount_and_is_saved_later() {
    let cluster = Cluster::up(4);
    let job = Job::unprivileged(&cluster, "later").set("SCRFS_END_GRACE", "60");
    let sealed = killed_after(&job, &["ck"]);
    let still_there = |why: &str| {
        all_are(&job.end(NODES, &SAVE), false, why);
        for node in NODES {
            assert_eq!(sums_here(&job, node), sums_of(&sealed, node), "node{node}");
        }
    };
    // Others have nothing to say in it.
    let mate = cluster
        .on(1)
        .user(1001)
        .run(&format!("{BIN}/scrfs umount --user job --job-id later --save 5 --purge --force"));
    assert!(!mate.err.contains("saved"), "{mate}");
    // Read-only.
    let mode = |mode: u32| {
        let records = job.host_prefix().join(".scr");
        std::fs::set_permissions(records, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(0o555);
    still_there("not saved, so nothing is unmounted: ck (dataset 1): ");
    mode(0o755);
    // Full, on one node.
    job.arm_daemon("flush.copied=full");
    let ended = job.end([0], &SAVE);
    all_are(&ended, false, "No space left on device");
    // A worker that dies half-way has a successor, which is asked in its place, and goes on; also
    // where it publishes. The last one has been asked to before.
    for (node, fault) in [(2, "flush.copied"), (3, "scavenge.copied"), (0, "scavenge.member")] {
        job.arm_daemon(&format!("{fault}=kill"));
        all_are(&job.end([node], &SAVE), true, "ck (dataset 1): saved, and not published: ");
        assert!(job.fired(), "{fault}");
    }
    job.arm_daemon("flush.swapped=kill");
    all_are(&job.end([1], &SAVE), true, "ck (dataset 1): saved: it is on the PFS");
    assert!(job.fired());
    let copied = cluster.head().run(&sums_line(&format!("{}/ck", job.prefix())));
    assert_eq!(copied.must(), sealed);
    assert!(ctl(&cluster, &job, "").ok());
    let owner = cluster.head().run(&format!("find {} ! -user job", job.prefix()));
    assert_eq!(owner.must(), "", "everything is the job's user's");
}

/// What a node has of its own, without coordinators.
fn sums_here(job: &Job<'_>, node: usize) -> String {
    job.on(node).run(&format!("cd {SCR}/ck && md5sum big.{node} sub/small.{node}")).must().to_owned()
}

fn sums_of(all: &str, node: usize) -> String {
    let own = |line: &&str| line.ends_with(&format!(".{node}"));
    all.lines().filter(own).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_pfs_that_hangs_and_a_dead_daemon_are_said_in_time() {
    let cluster = Cluster::up(4);
    let job = job(&cluster, "hangs");
    job.mount(NODES);
    // On node 3 the prefix is a file system of its own, whose server will be stopped.
    let server = "--job-id pfsserver --cache-base /cache --control-base /dev/shm --checkpoint-path data";
    job.on(3).run(&format!("{BIN}/scrfs mount {server} {}", job.prefix())).must();
    let run = job.idle(&NODES);
    seal(&job, "ck");
    job.kill_all();
    drop(run);
    job.on(3).run(&stop_between_requests("pgrep -f 'job-id.pfsserve[r]'", &job.prefix())).must();
    let begun = std::time::Instant::now();
    all_are(&job.end([3], &["--save", "3", "--purge"]), false, "ck (dataset 1): not done in 3 s");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert!(job.on(3).run(&format!("md5sum {SCR}/ck/big.3")).ok(), "programs go on");
    job.on(3).run("kill -CONT $(pgrep -f 'job-id.pfsserve[r]')").must();
    all_are(&job.end([3], &SAVE), true, "ck (dataset 1): saved");

    let dead = job.on(2).run("kill -9 $(cat /run/scrfs/root/scr.hangs/supervisor.lock) $(cat /run/scrfs/root/scr.hangs/worker.lock)");
    dead.must();
    wait::until_true("the daemon's end", SOON, || job.status(2).is_none());
    all_are(&job.end([2], &SAVE), false, "its daemon does not answer");
    job.on(2).run(&format!("test -e {CACHE}/root/scr.hangs/tree/ck/big.2")).must();
    all_are(&job.end([2], &["--purge"]), true, "is removed");
    assert!(!job.on(2).run(&format!("test -e {CACHE}/root/scr.hangs")).ok());
}

/// A dataset that no other node protects may have no directory of its own in a cache. Its path
/// holds, whatever the next mount is told.
#[test]
fn a_dataset_of_one_member_is_not_given_up_either() {
    let cluster = Cluster::up(4);
    let job = job(&cluster, "single").set("SCR_COPY_TYPE", "SINGLE");
    let sealed = killed_after(&job, &["ck"]);
    all_are(&job.end(NODES, &[]), true, "is unmounted");
    let there = " datasets, and it is not mounted: ";
    for words in ["", "--save 20"] {
        let line = format!("{BIN}/scrfs sweep --cache-base {CACHE} --alive none {words}");
        all_are(&NODES.map(|node| job.on(node).run(&line)), false, there);
    }
    all_are(&job.end(NODES, &SAVE), false, there);
    let caches = job.on(0).run(&format!("{BIN}/scrfs places --caches --cache-base {CACHE}"));
    assert!(caches.must().ends_with("cache single 1 root"), "{caches}");
    let elsewhere = format!(
        "{BIN}/scrfs mount --user root --job-id single --cache-base {CACHE} --checkpoint-path elsewhere {SCR}"
    );
    let mounted = job.on(0).run(&elsewhere);
    assert!(mounted.ok() && mounted.err.contains("which holds, not elsewhere"), "{mounted}");
    job.mount([1, 2, 3]);
    all_are(&job.end(NODES, &SAVE), true, "ck (dataset 1): saved");
    assert_eq!(goes_on(&job, &NODES, "ck"), sealed);
}

/// A job that waited to run again, and is gone: whoever clears up hears of what only its nodes
/// have.
#[test]
fn nothing_is_given_up_without_a_word() {
    let cluster = Cluster::up(4);
    let store = format!("{CACHE}/st");
    let job = job(&cluster, "requeued").set("SCR_CACHE_BASE", &store);
    let sealed = killed_after(&job, &["ck"]);
    all_are(&job.end(NODES, &[]), true, "is unmounted");
    let sweep = |words: &str| {
        let line = format!("{BIN}/scrfs sweep --cache-base {store} {words}");
        NODES.map(|node| job.on(node).run(&line))
    };
    let on_all = |line: &str| NODES.iter().for_each(|node| drop(job.on(*node).run(line).must().to_owned()));
    // Not mounted, as after a reboot.
    on_all(&format!("mv {store} {CACHE}/away"));
    let away = format!("its store {store}: no such directory; datasets of this job are there, or may be");
    all_are(&job.end(NODES, &SAVE), false, &away);
    all_are(&sweep("--alive none --save 60"), false, &away);
    on_all(&format!("mv {CACHE}/away {store}"));
    all_are(
        &sweep("--alive none"),
        false,
        &format!("not mounted: {store}/root/scr.requeued/dataset.1\nhint: "),
    );
    job.mount(NODES);
    on_all(&format!("mkdir -m 700 {store}/root/scr.empty"));
    let swept = sweep("--alive none");
    all_are(&swept, false, "so it stays: not on the PFS: ck (dataset 1)\nhint: have them saved");
    all_are(&swept, false, "scr.empty is removed\n");
    all_are(&sweep("--alive requeued --save 60 --discard"), true, "");
    all_are(&sweep("--alive none --save 60"), true, "job requeued: ck (dataset 1): saved");
    purged(&cluster, "requeued", NODES);
    assert_eq!(goes_on(&job, &NODES, "ck"), sealed);
    // It is on the PFS, and nothing newer is here.
    all_are(&sweep("--alive none"), true, "scr.next is removed");

    let lost = job.clone().with_id("lost");
    killed_after(&lost, &["newer"]);
    all_are(
        &sweep("--alive none --discard"),
        true,
        "what was not saved is lost: not on the PFS: newer (dataset ",
    );
    on_all(&format!("! ls -d {store}/root /run/scrfs/root"));
}
