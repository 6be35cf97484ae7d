//! Bytes that go bad in the caches, and what finds and mends them before anybody reads them.

use std::time::Duration;

use scrfs_harness::Cluster;
use scrfs_harness::job::Job;
use scrfs_harness::place::{BIN, CACHE, SCR};
use scrfs_harness::shell::Ran;

/// Of a command on a loaded machine.
const LIMIT: Duration = Duration::from_mins(2);

/// Two files of each of three nodes, sealed; what `md5sum` says of all.
fn seal(job: &Job<'_>, name: &str) -> String {
    job.on(0).run(&format!("mkdir {SCR}/{name}")).must();
    for node in 0..3 {
        let write = |file: &str, bytes: usize| format!("head -c {bytes} /dev/urandom > {file}.{node}");
        let line = format!("cd {SCR}/{name} && {} && {}", write("big", 300_000), write("small", 5000));
        job.on(node).run(&line).must();
    }
    job.on(0).run(&format!("touch {SCR}/{name}/.complete")).must();
    sums(job, 0, name)
}

fn sums(job: &Job<'_>, node: usize, name: &str) -> String {
    job.on(node).run(&format!("cd {SCR}/{name} && md5sum big.* small.*")).must().to_owned()
}

/// One bit of a file in the cache of `node`, at `path` below the job's directory.
fn flip(cluster: &Cluster, job: &str, node: usize, path: &str) {
    let flip = "import sys; f = open(sys.argv[1], 'r+b'); f.seek(-1, 2); b = f.read(1)[0]; f.seek(-1, 2); \
                f.write(bytes([b ^ 16]))";
    let line = format!("set -e; f=$(ls {CACHE}/root/scr.{job}/{path}); python3 -c \"{flip}\" \"$f\"");
    cluster.on(node).run(&line).must();
}

fn scrub(job: &Job<'_>, node: usize, words: &str) -> Ran {
    job.on(node).limit(LIMIT).run(&format!("{BIN}/scrfs-ctl scrub --mount {SCR} {words}"))
}

/// A file of each kind on each node, and each node's redundancy file, one after the other.
#[test]
fn one_flipped_bit_in_any_file_is_found_named_and_mended() {
    let cluster = Cluster::up(3);
    let job = Job::new(&cluster, "bits").set("SCR_FLUSH", "0");
    job.mount(0..3);
    let mut run = job.idle(&[0, 1, 2]);
    let written = seal(&job, "ck");
    assert_eq!(scrub(&job, 1, "").must(), "ck (dataset 1): all bytes are as they were sealed");
    for node in 0..3 {
        let parity = format!("{}_of_3_in_0.xor", node + 1);
        for (path, named) in [
            (format!("tree/ck/big.{node}"), format!("big.{node}")),
            (format!("tree/ck/small.{node}"), format!("small.{node}")),
            (format!("dataset.1/{parity}"), parity),
        ] {
            flip(&cluster, "bits", node, &path);
            let told = scrub(&job, (node + 1) % 3, "ck --json");
            assert_eq!(told.must(), r#"{"found":1,"id":1,"left":null,"name":"ck"}"#, "{path}: {told}");
            let events = job.events(0);
            let lines = events.lines().filter(|line| line.contains("has bad bytes") && line.contains(&named));
            assert!(
                lines.into_iter().any(|line| line.contains(&format!("node{node}: "))),
                "{path}: {events}"
            );
        }
    }
    assert_eq!(scrub(&job, 0, "").must(), "ck (dataset 1): all bytes are as they were sealed");
    for node in 0..3 {
        assert_eq!(sums(&job, node, "ck"), written, "on node{node}");
    }
    a_name_that_is_no_text(&cluster, &job);
    run.stop();
}

/// A scrub of all cannot ask for it, and says so; by its name it is scrubbed as any other.
fn a_name_that_is_no_text(cluster: &Cluster, job: &Job<'_>) {
    let name = "$(printf 'odd\\377')";
    seal(job, name);
    let all = scrub(job, 0, "");
    assert!(all.code == 1 && all.err.contains("not scrubbed") && all.err.contains("odd"), "{all}");
    assert!(all.out.contains("ck (dataset 1): all bytes"), "{all}");
    assert!(scrub(job, 0, name).must().ends_with("(dataset 2): all bytes are as they were sealed"));
    flip(cluster, "bits", 1, "tree/odd*/big.1");
    assert!(scrub(job, 0, name).must().ends_with("(dataset 2): one member had bad bytes, and is rebuilt"));
}

#[test]
fn what_cannot_be_mended_is_named_and_a_flush_has_bad_bytes_rebuilt() {
    let cluster = Cluster::up(3);
    let job = Job::new(&cluster, "beyond").set("SCR_FLUSH", "0").set("SCRFS_SCRUB_INTERVAL", "2s");
    job.mount(0..3);
    let mut run = job.idle(&[0, 1, 2]);
    let written = seal(&job, "ck");
    // Nobody asks for it.
    flip(&cluster, "beyond", 2, "tree/ck/big.2");
    scrfs_harness::wait::until_true("a scrub in the background", LIMIT, || {
        job.events(0).contains("was scrubbed: 1 members had bad bytes")
    });
    run.stop();

    let job = job.set("SCRFS_SCRUB_INTERVAL", "0");
    let mut run = job.idle(&[0, 1, 2]);
    flip(&cluster, "beyond", 1, "tree/ck/big.1");
    let flushed = job.on(0).limit(LIMIT).run(&format!("{BIN}/scrfs-ctl flush --mount {SCR} ck --wait"));
    assert_eq!(flushed.must(), "ck (dataset 1) is on the PFS");
    let on_pfs = cluster.head().run(&format!("cd {}/ck && md5sum big.* small.*", job.prefix()));
    assert_eq!(on_pfs.must(), written, "{}", job.events(1));
    assert!(job.events(0).contains("was bad on node1 and is rebuilt from its set"), "{}", job.events(0));

    let newer = seal(&job, "newer");
    flip(&cluster, "beyond", 0, "tree/newer/big.0");
    flip(&cluster, "beyond", 1, "tree/newer/small.1");
    let told = scrub(&job, 2, "newer");
    assert!(!told.ok() && told.out.contains("newer (dataset 2): bad bytes are left: "), "{told}");
    assert!(told.out.contains("big.0") && told.out.contains("small.1"), "{told}");
    assert!(["make some", "write a new checkpoint"].iter().all(|way| told.err.contains(way)), "{told}");
    // What is good is still read.
    let good =
        |sums: &str| sums.lines().filter(|line| line.ends_with(".2")).map(str::to_owned).collect::<Vec<_>>();
    let read = job.on(0).run(&format!("cd {SCR}/newer && md5sum big.2 small.2"));
    assert_eq!(read.must().lines().collect::<Vec<_>>(), good(&newer));
    assert!(!scrub(&job, 0, "none").ok());
    run.stop();
}
