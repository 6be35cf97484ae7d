//! Sparse files much larger than the caches: they are sealed, rebuilt, read elsewhere, changed,
//! flushed and fetched with the room that their data takes (semantics: "Sparse files").

use scrfs_harness::Cluster;
use scrfs_harness::cluster::Config;
use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::{CACHE, SCR};
use scrfs_harness::wait;

const NODES: [usize; 3] = [0, 1, 2];
/// Each node's file; a cache has a quarter of that.
const SIZE: &str = "256M";
/// More than the data of all nodes and its parity, their generations, and what the daemon keeps.
const ROOM_MIB: u64 = 24;

fn cluster() -> Cluster {
    Cluster::start(&Config { cache_size: "64m".into(), ..Config::new(4) }).expect("a cluster")
}

/// Commands that make `file`: 1 MiB at the node's own place, some bytes at no page's border, its
/// last one, and holes.
fn make(file: &str, name: &str, node: usize) -> String {
    format!(
        "truncate -s {SIZE} {file} && yes '{name} of {node}' | head -c 1M | \
         dd of={file} bs=1M seek={at} conv=notrunc iflag=fullblock status=none && \
         printf 'between {node}' | dd of={file} bs=1 seek=200004090 conv=notrunc status=none && \
         printf . | dd of={file} bs=1 seek=$((256 * 1024 * 1024 - 1)) conv=notrunc status=none",
        at = 60 * node + 7
    )
}

fn write(job: &Job<'_>, name: &str) {
    job.on(0).run(&format!("mkdir {SCR}/{name}")).must();
    for node in NODES {
        job.on(node)
            .run(&format!("cd {SCR}/{name} && {} && : > empty.{node}", make(&format!("f{node}"), name, node)))
            .must();
    }
}

/// All nodes' files are whole on these nodes, and none of their caches is filled by them.
fn is_whole(job: &Job<'_>, nodes: &[usize], name: &str) {
    for &node in nodes {
        for of in NODES {
            let reference = format!("/tmp/{name}.{of}");
            let line = format!(
                "rm -f {reference} && {} && cmp {reference} {SCR}/{name}/f{of}",
                make(&reference, name, of)
            );
            job.on(node).run(&line).must();
            assert!(job.on(node).run(&format!("test ! -s {SCR}/{name}/empty.{of}")).ok());
        }
        // As the cache has them: what the mount tells of sealed files is the same everywhere.
        let line = format!("find {CACHE} -path '*/{name}/f?' -printf '%b\n' | sort -n | tail -1");
        let blocks: u64 = job.on(node).run(&line).must().parse().expect("a number");
        assert!(blocks * 512 < 2 << 20, "a file on node {node} takes {blocks} blocks");
        has_room(job, node);
    }
}

fn has_room(job: &Job<'_>, node: usize) {
    let used: u64 = job
        .on(node)
        .run(&format!("df --output=used -k {CACHE} | tail -1"))
        .must()
        .trim()
        .parse()
        .expect("a number");
    assert!(used < ROOM_MIB << 10, "{used} KiB are taken on node {node}");
}

#[test]
fn a_lost_node_s_sparse_files_are_rebuilt_where_there_is_room_for_their_data() {
    let cluster = cluster();
    let job = Job::new(&cluster, "sparse");
    job.mount(0..4);
    let mut run = job.idle(&NODES);
    write(&job, "d1");
    job.on(1).run(&format!("touch {SCR}/d1/.complete")).must();
    is_whole(&job, &NODES, "d1");
    // Its sealed bytes are put aside before the first change.
    job.on(0).run(&format!("printf new | dd of={SCR}/d1/f0 bs=1 seek=5000 conv=notrunc status=none")).must();
    has_room(&job, 0);
    // Room for one that begins is asked for by what the newest takes: nothing has to leave for it.
    write(&job, "d2");
    job.on(2).run(&format!("touch {SCR}/d2/.complete")).must();
    for node in NODES {
        assert!(!job.events(node).contains("room is short"), "{}", job.events(node));
        assert_eq!((job.is_sealed(node, "d1"), job.is_sealed(node, "d2")), (true, true), "node {node}");
    }
    run.stop();
    cluster.poweroff(1);
    let mut run = job.idle(&[0, 2, 3]);
    is_whole(&job, &[0, 2, 3], "d1");
    is_whole(&job, &[0, 2, 3], "d2");
    run.stop();
    // What was rebuilt is protected again, by parity that has its holes too.
    cluster.kill(0);
    cluster.boot(0).expect("a boot");
    job.mount([0]);
    let mut run = job.idle(&[0, 2, 3]);
    is_whole(&job, &[0, 2, 3], "d2");
    run.stop();
}

#[test]
fn sparse_files_go_to_the_prefix_and_come_back_with_their_holes() {
    let cluster = cluster();
    let job = Job::new(&cluster, "holes").set("SCR_FLUSH", "1");
    job.mount(0..4);
    let mut run = job.idle(&NODES);
    write(&job, "d1");
    job.on(1).run(&format!("touch {SCR}/d1/.complete")).must();
    wait::until_true("the flush", SOON, || job.state(0, "d1") == "flushed");
    run.stop();
    for node in NODES {
        let file = job.host_prefix().join(format!("d1/f{node}"));
        let meta = std::fs::metadata(&file).expect("a flushed file");
        let taken = std::os::unix::fs::MetadataExt::blocks(&meta) * 512;
        assert!(meta.len() == 256 << 20 && taken < 4 << 20, "{taken} of {} bytes", meta.len());
        cluster.kill(node);
        cluster.boot(node).expect("a boot");
    }
    job.mount(NODES);
    let mut run = job.idle(&NODES);
    is_whole(&job, &NODES, "d1");
    run.stop();
}

#[test]
fn a_dataset_whose_protection_has_no_room_is_not_sealed() {
    let cluster = cluster();
    let job = Job::new(&cluster, "nofit");
    job.mount(0..4);
    let mut run = job.idle(&NODES);
    write(&job, "d1");
    // The parity of the first half of node 0's file is node 1's, which has 40 MiB of its own.
    for node in [0, 1] {
        let line = format!(
            "yes 'much of {node}' | head -c 40M | dd of={SCR}/d1/f{node} bs=1M conv=notrunc status=none"
        );
        job.on(node).run(&line).must();
    }
    let touched = job.on(2).run(&format!("touch {SCR}/d1/.complete"));
    assert!(!touched.ok() && touched.err.contains("Input/output error"), "{touched}");
    wait::until_true("the reason", SOON, || job.events(2).contains("No space left on device"));
    for node in NODES {
        assert!(!job.is_sealed(node, "d1"), "node {node}");
    }
    let line = format!("rm {SCR}/d1/f1 && {}", make(&format!("{SCR}/d1/f1"), "d1", 1));
    job.on(1).run(&line).must();
    job.on(2).run(&format!("touch {SCR}/d1/.complete")).must();
    run.stop();
    cluster.poweroff(0);
    let mut run = job.idle(&[1, 2, 3]);
    job.on(3).run(&format!("yes 'much of 0' | head -c 40M | cmp -n 41943040 - {SCR}/d1/f0")).must();
    run.stop();
}
