//! Flat datasets (semantics: "Flat layouts"): files of the checkpoint path that belong to datasets
//! by their names.

use std::time::Duration;

use scrfs_harness::Cluster;
use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::SCR;
use scrfs_harness::wait;

const LIMIT: Duration = Duration::from_mins(2);
const PATTERN: &str = r"melt\.(\w+)\.\d+\.restart";
const KILL_WORKER: &str = "pkill -9 -f 'scrfs worke[r]'";

fn job<'a>(cluster: &'a Cluster, name: &str) -> Job<'a> {
    Job::new(cluster, name).set("SCRFS_DATASET_PATTERN", PATTERN)
}

fn file(name: &str, rank: usize) -> String {
    format!("melt.{name}.{rank}.restart")
}

/// On each of `hosts` a rank writes its file of a dataset; every other one as a temporary one that
/// it renames.
fn write(job: &Job<'_>, hosts: &[usize], name: &str) {
    for (rank, &node) in hosts.iter().enumerate() {
        let (file, first) = (file(name, rank), format!("tmp.{rank}"));
        let bytes = format!("yes '{name} rank {rank}' | head -n {}", 5000 + 100 * rank);
        let line = if rank % 2 == 0 {
            format!("cd {SCR} && {bytes} > {file}")
        } else {
            format!("cd {SCR} && {bytes} > {first} && mv {first} {file}")
        };
        job.on(node).run(&line).must();
    }
}

fn mark(job: &Job<'_>, node: usize, name: &str) {
    let marked = job.on(node).run(&format!("touch {SCR}/.complete.{name}"));
    assert!(marked.ok(), "{marked}\n{}", job.events(node));
}

/// All `ranks` files are right, by their names, on each of `nodes`.
#[track_caller]
fn is_whole(job: &Job<'_>, nodes: &[usize], name: &str, ranks: usize) {
    for &node in nodes {
        for rank in 0..ranks {
            let seen = job.on(node).run(&format!("uniq -c {SCR}/{}", file(name, rank)));
            let wanted = format!("{} {name} rank {rank}", 5000 + 100 * rank);
            assert!(seen.ok() && seen.out.trim() == wanted, "node {node}: {seen}\n{}", job.events(node));
        }
    }
}

fn names(job: &Job<'_>, node: usize) -> Vec<String> {
    let listed = job.on(node).run(&format!("ls -A {SCR}"));
    listed.must().split_whitespace().map(str::to_owned).collect()
}

/// A node lists the marker and these ranks' files of each of these datasets, and `others`.
#[track_caller]
fn lists(job: &Job<'_>, node: usize, datasets: &[&str], ranks: usize, others: &[&str]) {
    let flat = |name: &&str| {
        let files = (0..ranks).map(|rank| file(name, rank)).collect::<Vec<_>>();
        files.into_iter().chain([format!(".complete.{name}")])
    };
    let mut wanted: Vec<String> = datasets.iter().flat_map(flat).collect();
    wanted.extend(others.iter().map(|name| (*name).to_owned()));
    let mut listed = names(job, node);
    wanted.sort();
    listed.sort();
    assert_eq!(listed, wanted, "node {node}: {}", job.events(node));
}

#[test]
fn they_come_back_under_their_names() {
    let cluster = Cluster::up(5);
    let job = job(&cluster, "flat").set("SCR_CACHE_SIZE", "4");
    job.mount(0..5);
    let hosts = [0, 1, 2];
    let mut run = job.idle(&hosts);
    write(&job, &hosts, "100");
    write(&job, &hosts, "200");
    job.on(1).run(&format!("cd {SCR} && mkdir ck && echo data > ck/a && echo 100 > latest")).must();
    assert_eq!(names(&job, 2), ["ck", "latest", &file("100", 2), &file("200", 2)], "only its own");
    mark(&job, 0, "100");
    job.on(1).run(&format!("touch {SCR}/ck/.complete && echo 200 > {SCR}/latest")).must();
    mark(&job, 2, "200");
    for node in hosts {
        lists(&job, node, &["100", "200"], 3, &["ck", "latest"]);
    }
    is_whole(&job, &hosts, "200", 3);
    let state = format!("getfattr --only-values -n user.scrfs.state {SCR}/{}", file("200", 0));
    assert_eq!(job.on(1).run(&state).must(), "protected");
    // One that is not sealed is nobody's after a restart.
    write(&job, &hosts, "300");
    run.stop();
    cluster.poweroff(1);
    let hosts = [0, 2, 3];
    let mut run = job.idle(&hosts);
    for node in hosts {
        lists(&job, node, &["100", "200"], 3, &["ck", "latest"]);
        assert_eq!(job.on(node).run(&format!("cat {SCR}/latest {SCR}/ck/a")).must(), "200\ndata");
    }
    is_whole(&job, &hosts, "100", 3);
    is_whole(&job, &hosts, "200", 3);
    // The next generation of one: a rank changes its file, another one puts a new one in its place.
    job.on(0).run(&format!("cd {SCR} && echo more >> {}", file("200", 0))).must();
    job.on(2).run(&format!("cd {SCR} && echo new > tmp && mv tmp {}", file("200", 1))).must();
    mark(&job, 3, "200");
    run.stop();
    cluster.poweroff(0);
    let mut run = job.idle(&[2, 3, 4]);
    let line = format!("cd {SCR} && tail -n 1 {} && cat {}", file("200", 0), file("200", 1));
    assert_eq!(job.on(4).run(&line).must(), "more\nnew");
    run.stop();
}

#[test]
fn old_ones_go_when_their_files_are_unlinked() {
    let cluster = Cluster::up(4);
    let job = job(&cluster, "unlinked").set("SCR_CACHE_SIZE", "6");
    job.mount(0..4);
    let hosts = [0, 1, 2];
    let mut run = job.idle(&hosts);
    for name in ["100", "200", "300", "400"] {
        write(&job, &hosts, name);
        mark(&job, 0, name);
    }
    // One rank removes all.
    job.on(1).run(&format!("rm {SCR}/melt.100.*.restart")).must();
    // Each rank removes its own; a worker dies in between, and no name comes back.
    for (rank, node) in hosts.into_iter().enumerate() {
        job.on(node).run(&format!("rm {SCR}/{}", file("200", rank))).must();
        for other in hosts {
            assert!(!names(&job, other).contains(&file("200", rank)), "node {other}");
        }
        if rank == 0 {
            cluster.on(2).run(KILL_WORKER).must();
            assert!(!job.on(2).run(&format!("test -e {SCR}/{}", file("200", 0))).ok());
        }
    }
    // All ranks remove all, at once.
    let line = format!("rm -f {SCR}/melt.300.*.restart");
    let mut all: Vec<_> = hosts.iter().map(|&node| job.on(node).sh(&line).spawn().unwrap()).collect();
    assert!(all.iter_mut().all(|rm| rm.wait().unwrap().success()));
    for node in hosts {
        lists(&job, node, &["400"], 3, &[]);
        for name in ["100", "200", "300"] {
            assert_eq!(job.state(node, name), "", "{name} on node {node}: {}", job.events(node));
        }
    }
    // Never sealed: with the last file of any node. Another node's is not taken along.
    write(&job, &hosts, "500");
    job.on(0).run(&format!("rm {SCR}/{}", file("500", 0))).must();
    assert_eq!(
        job.on(1).run(&format!("uniq {SCR}/{}", file("500", 1))).must(),
        "500 rank 1",
        "{}",
        job.events(1)
    );
    for (rank, node) in hosts.into_iter().enumerate().skip(1) {
        job.on(node).run(&format!("rm {SCR}/{}", file("500", rank))).must();
    }
    job.on(0).run(&format!("mkdir {SCR}/500")).must();
    run.stop();
    cluster.poweroff(2);
    let mut run = job.idle(&[0, 1, 3]);
    for node in [0, 1, 3] {
        lists(&job, node, &["400"], 3, &[]);
    }
    is_whole(&job, &[0, 1, 3], "400", 3);
    run.stop();
}

#[test]
fn workers_die_while_files_are_open() {
    let cluster = Cluster::up(3);
    let job = job(&cluster, "workers");
    job.mount(0..3);
    let hosts = [0, 1];
    let mut run = job.idle(&hosts);
    write(&job, &hosts, "100");
    let name = file("200", 7);
    let line = format!(
        "cd {SCR} && exec 3>{name} && echo first >&3 && touch /tmp/opened; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo second >&3 && cat {name} && stat -c %i {name} && exec 3>&- && cat {name}"
    );
    let mut writer = job.on(0).sh(&line).stdout(std::process::Stdio::piped()).spawn().unwrap();
    wait::until_true("the writer", SOON, || job.on(0).run("test -e /tmp/opened").ok());
    let inode = job.on(0).run(&format!("stat -c %i {SCR}/{name}")).must().to_owned();
    for _ in 0..3 {
        cluster.on(0).run(KILL_WORKER).must();
        assert_eq!(job.on(0).run(&format!("cat {SCR}/{name}")).must(), "first");
        assert_eq!(names(&job, 0), [file("100", 0), name.clone()]);
    }
    job.on(0).run("touch /tmp/go").must();
    assert!(writer.wait().unwrap().success());
    let mut told = String::new();
    std::io::Read::read_to_string(&mut writer.stdout.take().unwrap(), &mut told).unwrap();
    assert_eq!(told, format!("first\nsecond\n{inode}\nfirst\nsecond\n"));
    // Names come and go on both nodes while workers die, and no call fails.
    let line = format!(
        "cd {SCR} && for n in $(seq 300 320); do echo $n > melt.$n.$R.restart || exit 1; echo $n > tmp.$R && mv tmp.$R melt.$n.5$R.restart || exit 2; mv melt.$n.$R.restart melt.$n.6$R.restart || exit 3; rm melt.$n.5$R.restart melt.$n.6$R.restart || exit 4; done"
    );
    let shell = |node| job.on(node).limit(LIMIT);
    let busy = |node: usize| shell(node).sh(&line.replace("$R", &node.to_string())).spawn().unwrap();
    let busy = [busy(0), busy(1)];
    for node in [0, 1, 0, 1] {
        cluster.on(node).run(KILL_WORKER).must();
        job.on(node).run(&format!("ls {SCR}")).must();
        job.await_coordinator(node);
    }
    for mut child in busy {
        assert_eq!(child.wait().unwrap().code(), Some(0), "{}\n{}", job.events(0), job.events(1));
    }
    // A worker dies while a marker waits for a writer.
    let writer = format!(
        "exec 3<>{SCR}/{} && touch /tmp/held; while [ ! -e /tmp/end ]; do sleep 0.1; done",
        file("100", 0)
    );
    let mut writer = job.on(0).sh(&writer).spawn().unwrap();
    wait::until_true("the writer", SOON, || job.on(0).run("test -e /tmp/held").ok());
    let mut marker = job.on(1).sh(&format!("touch {SCR}/.complete.100")).spawn().unwrap();
    wait::until_true("the freeze", SOON, || job.state(0, "100") == "sealing");
    for node in hosts {
        cluster.on(node).run(KILL_WORKER).must();
    }
    job.on(0).run("touch /tmp/end").must();
    assert!(writer.wait().unwrap().success() && marker.wait().unwrap().success(), "{}", job.events(1));
    is_whole(&job, &hosts, "100", 2);
    run.stop();
    cluster.poweroff(0);
    let mut run = job.idle(&[1, 2]);
    lists(&job, 2, &["100"], 2, &[]);
    is_whole(&job, &[1, 2], "100", 2);
    run.stop();
}

/// What a pointer file belonged to is removed before the lead of a new epoch has asked what else
/// had begun.
#[test]
fn a_pointer_goes_to_what_had_begun_before() {
    let cluster = Cluster::up(3);
    let job = job(&cluster, "before");
    job.mount(0..3);
    let mut run = job.idle(&[0, 1]);
    for (node, name) in [(0, "100"), (1, "200"), (0, "300")] {
        write(&job, &[node], name);
    }
    job.on(1).run(&format!("ln -s melt.300.0.restart {SCR}/latest")).must();
    let epoch = |events: &str| events.matches("attached with epoch").count();
    let before = epoch(&job.events(0));
    cluster.on(0).run(KILL_WORKER).must();
    wait::until_true("the next epoch", SOON, || epoch(&job.events(0)) > before);
    job.await_coordinator(0);
    job.on(0).run(&format!("rm {SCR}/{}", file("300", 0))).must();
    mark(&job, 0, "100");
    run.stop();
    cluster.poweroff(0);
    let mut run = job.idle(&[1, 2]);
    // It was made after 200 had begun, which was not sealed.
    lists(&job, 2, &["100"], 1, &[]);
    run.stop();
}

#[test]
fn other_things_of_their_names_are_refused() {
    let cluster = Cluster::up(2);
    let job = job(&cluster, "refused");
    job.mount(0..2);
    let early = file("050", 0);
    job.on(0).run(&format!("echo early > {SCR}/{early}")).must();
    let mut run = job.idle(&[0, 1]);
    // It is told of when the pattern comes, and goes with all else that was not sealed.
    let told = job.events(0).contains("before SCRFS_DATASET_PATTERN held");
    assert_eq!((told, names(&job, 0).contains(&early)), (true, false), "{}", job.events(0));
    write(&job, &[0, 1], "100");
    job.on(0).run(&format!("mkdir {SCR}/200")).must();
    // mv looks for what is not listed, and takes what it does not find there for a directory at
    // times.
    let rename = "echo > 150; python3 -c \"import os; os.rename('150', '100')\"";
    for line in ["mkdir 100", "echo > 100", "echo > melt.200.0.restart", rename, "ln -s x 100"] {
        let tried = job.on(1).run(&format!("cd {SCR} && {line}"));
        assert!(!tried.ok() && tried.err.contains("File exists"), "{tried}\n{}", job.events(1));
        job.on(1).run(&format!("rm -f {SCR}/150")).must();
    }
    assert!(!job.on(1).run(&format!("touch {SCR}/.complete.999")).ok());
    for told in ["100: refused", "melt.200.0.restart: refused", ".complete.999: there is no file"] {
        assert!(job.events(1).contains(told), "{told}: {}", job.events(1));
    }
    // Both make the first file of a dataset, and mark it, at once.
    for name in ["310", "320", "330"] {
        let line = |node: usize| format!("cd {SCR} && echo {node} > {}", file(name, node));
        let mut both = [0, 1].map(|node| job.on(node).sh(&line(node)).spawn().unwrap());
        assert!(both.iter_mut().all(|child| child.wait().unwrap().success()), "{}", job.events(0));
        let line = format!("touch {SCR}/.complete.{name}");
        let mut both = [0, 1].map(|node| job.on(node).sh(&line).spawn().unwrap());
        assert!(both.iter_mut().all(|child| child.wait().unwrap().success()), "{}", job.events(0));
    }
    // The oldest is evicted, on all nodes.
    for node in 0..2 {
        let is_gone = || !names(&job, node).iter().any(|name| name.contains("310"));
        wait::until_true("the eviction", SOON, is_gone);
        let listed = names(&job, node);
        assert!(listed.contains(&file("320", 1 - node)), "{listed:?}");
    }
    let line = format!("cd {SCR} && cat melt.3?0.?.restart");
    assert_eq!(job.on(0).run(&line).must(), job.on(1).run(&line).must());
    run.stop();
}

#[test]
fn listings_stay_right_while_names_come_and_go() {
    let cluster = Cluster::up(2);
    let job = job(&cluster, "listings");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    let line = format!(
        "cd {SCR} && for n in $(seq 400); do echo > melt.10$((n % 3)).$n.restart; done; mkdir ck; echo > loose"
    );
    job.on(0).run(&line).must();
    let churn = format!(
        "cd {SCR} && for n in $(seq 1000 1600); do echo > melt.100.$n.restart; mv melt.100.$n.restart melt.900.$n.restart; rm melt.900.$n.restart; done"
    );
    let mut churn = job.on(0).limit(LIMIT).sh(&churn).spawn().unwrap();
    let listing = format!(
        "ls -U {SCR} | grep -Ev 'melt\\.[19]00\\.1[0-9]{{3}}\\.' | sort | tee /tmp/l | wc -l; uniq -d < /tmp/l"
    );
    let mut looked = 0;
    while churn.try_wait().unwrap().is_none() {
        assert_eq!(job.on(0).run(&listing).must().trim(), "402", "all that stays, once");
        looked += 1;
    }
    assert!(looked > 0 && churn.wait().unwrap().success());
    let whole = job.on(0).run(&format!("find {SCR} -mindepth 1 | wc -l; find {SCR} -type f | wc -l"));
    assert_eq!(whole.must().split_whitespace().collect::<Vec<_>>(), ["402", "401"]);
    run.stop();
}

#[test]
fn another_pattern_says_so_and_the_prefix_keeps_them() {
    let cluster = Cluster::up(4);
    let plain = Job::unprivileged(&cluster, "stored").set("SCR_FLUSH", "1");
    let job =
        Job::unprivileged(&cluster, "stored").set("SCR_FLUSH", "1").set("SCRFS_DATASET_PATTERN", PATTERN);
    job.mount(0..4);
    let mut run = job.idle(&[0, 1]);
    write(&job, &[0, 1], "100");
    mark(&job, 0, "100");
    let kept = job.host_prefix().join("100");
    wait::until_true("the flush", SOON, || job.state(0, "100") == "flushed");
    let bytes = std::fs::read_to_string(kept.join(file("100", 1))).expect("its own name");
    assert_eq!(bytes.lines().count(), 5100);
    run.stop();
    // Without the pattern it is the directory that it is in the prefix.
    let mut run = plain.idle(&[0, 1]);
    for node in 0..2 {
        assert_eq!(names(&plain, node), ["100"]);
        let seen = plain.on(node).run(&format!("uniq -c {SCR}/100/{}", file("100", 1)));
        assert_eq!(seen.must().trim(), "5100 100 rank 1");
    }
    assert!(
        plain.events(0).contains("dataset 100 was sealed as files of the checkpoint path"),
        "{}",
        plain.events(0)
    );
    run.stop();
    for node in 0..2 {
        cluster.poweroff(node);
    }
    // From the prefix, with the pattern.
    let mut run = job.idle(&[2, 3]);
    for node in 2..4 {
        lists(&job, node, &["100"], 2, &[]);
    }
    is_whole(&job, &[2, 3], "100", 2);
    run.stop();
}
