//! Where datasets are when a mount has several stores, and how much of them the cache may take
//! (semantics: "Stores", "When the cache is full").

use scrfs_harness::Cluster;
use scrfs_harness::cluster::Config;
use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::{CACHE, SCR};
use scrfs_harness::wait;

const NODES: [usize; 3] = [0, 1, 2];
/// The other store of every node, a file system of its own too.
const OTHER: &str = "/tmp";

/// Each of `nodes` writes `mib` MiB of its own.
fn write(job: &Job<'_>, nodes: &[usize], name: &str, mib: usize) {
    job.on(nodes[0]).run(&format!("mkdir {SCR}/{name}")).must();
    for node in nodes {
        let line = format!("cd {SCR}/{name} && yes '{name} of {node}' | head -c {mib}M > f{node}");
        job.on(*node).run(&line).must();
    }
}

fn is_whole(job: &Job<'_>, nodes: &[usize], of: &[usize], name: &str, mib: usize) {
    for node in nodes {
        for of in of {
            let line = format!("yes '{name} of {of}' | head -c {mib}M | cmp - {SCR}/{name}/f{of}");
            job.on(*node).run(&line).must();
        }
    }
}

fn seal(job: &Job<'_>, node: usize, name: &str) {
    let touched = job.on(node).run(&format!("touch {SCR}/{name}/.complete"));
    assert!(touched.ok(), "{touched}\n{}", job.events(node));
}

fn unmount(job: &Job<'_>, nodes: &[usize]) {
    for node in nodes {
        job.unmount(*node).must();
    }
}

/// The primary store of a node, and why it is that.
fn used(job: &Job<'_>, node: usize) -> (String, String) {
    let status = job.status(node).expect("a status");
    let stores = status["stores"].as_array().expect("stores").clone();
    let cache = status["cache_directory"].as_str().expect("a cache");
    let text = |store: &serde_json::Value, name: &str| store[name].as_str().expect("text").to_owned();
    let primary = |store: &&serde_json::Value| cache.starts_with(&text(store, "path"));
    let used: Vec<_> = stores.iter().filter(|store| store["used"] == true).filter(primary).collect();
    assert_eq!(used.len(), 1, "{stores:?}");
    (text(used[0], "path"), text(used[0], "note"))
}

/// Dataset `name` is in that store of these nodes, and in no other.
fn is_in(job: &Job<'_>, nodes: &[usize], store: &str, name: &str) {
    for node in nodes {
        let line = format!("cd / && ls -d {{{CACHE},{OTHER}}}/root/scr.*/tree/{name}");
        let found = job.on(*node).run(&format!("bash -c '{line}'"));
        let found = found.out.trim();
        assert!(found.starts_with(&format!("{store}/")) && found.lines().count() == 1, "{node}: {found}");
    }
}

fn kill_worker(job: &Job<'_>, node: usize) {
    let status = job.status(node).expect("a status");
    let control = status["control_directory"].as_str().expect("a directory").to_owned();
    let lock = format!("{control}/worker.lock");
    let pid = || job.on(node).run(&format!("head -n 1 {lock}")).must().to_owned();
    let before = pid();
    job.on(node).run(&format!("kill -KILL {before}")).must();
    wait::until_true("a new worker", SOON, || pid() != before && job.on(node).run(&format!("ls {SCR}")).ok());
}

#[test]
fn a_restart_finds_its_datasets_whichever_store_has_more_room_and_is_first() {
    let config = Config { cache_size: "64m".into(), tmp_size: "128m".into(), ..Config::new(5) };
    let cluster = Cluster::start(&config).expect("a cluster");
    let job = Job::new(&cluster, "stores").set("SCR_CACHE_BASE", &format!("{CACHE},{OTHER}"));
    job.mount(0..5);
    for node in 0..5 {
        assert_eq!(used(&job, node), (OTHER.to_owned(), "it had most room".to_owned()));
    }
    let shown = job.on(0).run(&format!("cat {SCR}/.scrfs/status"));
    for store in [format!("\nstore {CACHE}: "), format!("\nstore {OTHER}: ")] {
        assert!(shown.must().contains(&store), "{shown}");
    }
    let mut run = job.idle(&NODES);
    write(&job, &NODES, "a", 6);
    seal(&job, 0, "a");
    run.stop();

    // Now the other one has more room; on two nodes; and a node that had datasets is lost.
    unmount(&job, &[0, 1, 2, 3, 4]);
    for node in [0, 2, 3] {
        cluster.on(node).run(&format!("head -c 85M /dev/zero > {OTHER}/others")).must();
    }
    job.mount([0, 2, 3, 4]);
    cluster.poweroff(1);
    let has = (OTHER.to_owned(), "it has files of this job".to_owned());
    assert_eq!((used(&job, 0), used(&job, 2)), (has.clone(), has.clone()));
    // The spares have nothing: each takes what has most room.
    assert_eq!((used(&job, 3).0, used(&job, 4).0), (CACHE.to_owned(), OTHER.to_owned()));
    let mut run = job.idle(&[0, 2, 3]);
    is_whole(&job, &[0, 2, 3], &NODES, "a", 6);
    is_in(&job, &[0, 2], OTHER, "a");
    // What is new goes where most room is.
    write(&job, &[0, 2, 3], "b", 4);
    seal(&job, 2, "b");
    is_in(&job, &[0, 2, 3], CACHE, "b");
    run.stop();

    // The order has changed too, and another node is lost.
    unmount(&job, &[0, 2, 3, 4]);
    let job = job.set("SCR_CACHE_BASE", &format!("{OTHER},{CACHE}"));
    job.mount([0, 3, 4]);
    cluster.poweroff(2);
    assert_eq!(used(&job, 0), has);
    assert_eq!(used(&job, 3), (CACHE.to_owned(), "it has files of this job".to_owned()));
    let mut run = job.idle(&[0, 3, 4]);
    is_whole(&job, &[0, 3, 4], &[0, 2, 3], "b", 4);
    is_whole(&job, &[0, 3, 4], &NODES, "a", 6);
    run.stop();
}

#[test]
fn datasets_alternate_between_stores_by_their_descriptors() {
    let config = Config { cache_size: "128m".into(), tmp_size: "128m".into(), ..Config::new(5) };
    let cluster = Cluster::start(&config).expect("a cluster");
    let list = format!("{CACHE},{OTHER}");
    let job = Job::new(&cluster, "alternate").set("SCR_CACHE_BASE", &list).set("SCR_CACHE_SIZE", "9");
    let lines = format!("CKPT=0 INTERVAL=1 STORE={CACHE}\nCKPT=1 INTERVAL=2 GROUP=NODE STORE={OTHER}\n");
    let file = format!("mkdir -p {0} && printf '{lines}' > {0}/.scrconf", job.prefix());
    job.on(0).run(&file).must();
    job.mount(0..5);
    let mut run = job.idle(&NODES);
    let store_of = |id: u64| if id.is_multiple_of(2) { OTHER } else { CACHE };
    let names: Vec<(u64, String)> = (1..=4).map(|id| (id, format!("d{id}"))).collect();
    for (id, name) in &names {
        write(&job, &NODES, name, 3);
        is_in(&job, &NODES, store_of(*id), name);
        if *id == 2 {
            // Between what was written and the seal: its successor finds both stores as they are.
            for node in NODES {
                kill_worker(&job, node);
            }
            is_whole(&job, &NODES[..1], &NODES[..1], name, 3);
        }
        seal(&job, 1, name);
    }
    // A dataset stays where it is when it is sealed again, whatever id that gives.
    job.on(1).run(&format!("yes again | head -c 1M > {SCR}/d2/more")).must();
    seal(&job, 1, "d2");
    is_in(&job, &NODES, OTHER, "d2");
    let df = |name: &str| -> String {
        job.on(0)
            .run(&format!("stat -f -c '%i %b' {SCR}/{name} | cut -d ' ' -f 2; stat -f -c %f {SCR}/{name}"))
            .must()
            .to_owned()
    };
    assert_ne!(df("d1"), df("d2"), "each has its own store's room");
    kill_worker(&job, 0);
    is_in(&job, &NODES, OTHER, "d4");
    run.stop();

    // A node is lost: all come back, on a spare that never had them too, each where its id says.
    cluster.poweroff(1);
    let left = [0, 2, 3];
    let mut run = job.idle(&left);
    for (id, name) in &names {
        is_whole(&job, &left, &NODES, name, 3);
        let sealed_again = name == "d2";
        is_in(&job, if sealed_again { &left[..2] } else { &left }, store_of(*id), name);
    }
    let again = job.on(3).run(&format!("yes again | head -c 1M | cmp - {SCR}/d2/more"));
    assert!(again.ok(), "{again}");
    // One is removed: it goes from its store on all nodes.
    job.on(3).run(&format!("rm -r {SCR}/d4")).must();
    for node in left {
        let found = job.on(node).run(&format!("ls -d {OTHER}/root/scr.*/tree/d4"));
        assert!(!found.ok(), "{found}");
    }
    run.stop();
    unmount(&job, &left);
    job.mount(left);
    let mut run = job.idle(&left);
    is_whole(&job, &left, &NODES, "d3", 3);
    run.stop();
}

#[test]
fn room_is_made_in_the_store_that_is_short_of_it() {
    let config = Config { cache_size: "64m".into(), tmp_size: "128m".into(), ..Config::new(3) };
    let cluster = Cluster::start(&config).expect("a cluster");
    let job = Job::new(&cluster, "short")
        .set("SCR_CACHE_BASE", &format!("{CACHE},{OTHER}"))
        .set("SCRFS_DESCRIPTORS", &format!("CKPT=0 STORE={CACHE}; CKPT=1 INTERVAL=2 STORE={OTHER}"))
        .set("SCR_CACHE_SIZE", "9");
    job.mount(NODES);
    let mut run = job.idle(&NODES);
    // 12 MiB and 6 of parity on each node: three of them fit into the first store.
    for id in 1..7 {
        write(&job, &NODES, &format!("d{id}"), 12);
        seal(&job, 0, &format!("d{id}"));
    }
    let listed = || job.on(1).run(&format!("ls {SCR}")).must().replace('\n', " ");
    assert_eq!(listed(), "d1 d2 d3 d4 d5 d6");
    job.on(0).run(&format!("mkdir {SCR}/d7")).must();
    wait::until_true("the room", SOON, || listed() == "d2 d3 d4 d5 d6 d7");
    is_in(&job, &NODES, CACHE, "d7");
    run.stop();
}

#[test]
fn an_entry_that_cannot_be_used_is_passed_over_unless_it_has_datasets() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "entries").set("SCR_CACHE_BASE", "/nowhere,/etc/passwd");
    let refused = job.try_mount(0);
    assert!(!refused.ok(), "{refused}");
    let text =
        "SCR_CACHE_BASE: no entry can be used: /nowhere: no such directory; /etc/passwd: not a directory";
    assert!(refused.err.contains(text), "{refused}");

    let job = job.set("SCR_CACHE_BASE", &format!("/nowhere,{CACHE},{CACHE}/../cache"));
    let mounted = job.try_mount(0);
    assert!(mounted.ok(), "{mounted}");
    let warnings =
        ["SCR_CACHE_BASE: /nowhere: no such directory", "/cache/../cache: the same directory as /cache"];
    for warning in warnings {
        assert!(mounted.err.contains(warning), "{mounted}");
        assert!(job.events(0).contains(warning), "{}", job.events(0));
    }
    assert_eq!(used(&job, 0).0, CACHE);
    job.mount([1]);
    let mut run = job.idle(&[0, 1]);
    write(&job, &[0, 1], "a", 1);
    seal(&job, 0, "a");
    run.stop();
    job.unmount(0).must();

    // Its datasets are not left behind.
    cluster.on(0).run(&format!("mount -o remount,ro {CACHE}")).must();
    let job = job.set("SCR_CACHE_BASE", &format!("{OTHER},{CACHE}"));
    let refused = job.try_mount(0);
    let text = "SCR_CACHE_BASE: /cache: its file system is read-only; datasets of this job are there";
    assert!(!refused.ok() && refused.err.contains(text), "{refused}");
    cluster.on(0).run(&format!("mount -o remount,rw {CACHE}")).must();
    let job = job.set("SCR_CACHE_BASE", OTHER);
    let refused = job.try_mount(0);
    let text =
        "SCR_CACHE_BASE: /cache is not in the list, and has files of this job in /cache/root/scr.entries";
    assert!(!refused.ok() && refused.err.contains(text), "{refused}");
    let job = job.set("SCR_CACHE_BASE", &format!("{OTHER},{CACHE}"));
    job.mount([0]);
    let mut run = job.idle(&[0, 1]);
    is_whole(&job, &[0, 1], &[0, 1], "a", 1);
    run.stop();
}

#[test]
fn the_bound_is_what_df_tells_and_what_room_is_made_for() {
    let cluster = Cluster::start(&Config { cache_size: "256m".into(), ..Config::new(4) }).expect("a cluster");
    let job = Job::new(&cluster, "bound").set("SCRFS_CACHE_BYTES", "40MB").set("SCR_CACHE_SIZE", "9");
    job.mount(0..4);
    let mut run = job.idle(&NODES);
    let df = |what: &str| -> u64 {
        job.on(0).run(&format!("echo $(($(stat -f -c '{what}*%S' {SCR})))")).must().parse().expect("a number")
    };
    assert_eq!(df("%b"), 40 << 20);
    // 8 MiB and 4 of parity on each node: three of them fit.
    for step in 1..6 {
        let name = format!("d{step}");
        write(&job, &NODES, &name, 8);
        assert!(df("%a") <= (40 - 8) << 20, "{}", df("%a"));
        seal(&job, step % 3, &name);
    }
    let listed = || job.on(1).run(&format!("ls {SCR}")).must().to_owned();
    wait::until_true("the room", SOON, || {
        listed().split_whitespace().collect::<Vec<_>>() == ["d3", "d4", "d5"]
            || listed().split_whitespace().collect::<Vec<_>>() == ["d4", "d5"]
    });
    let taken = || job.status(0).and_then(|s| s["cache_bytes"][0].as_u64()).expect("bytes");
    wait::until_true("the bound", SOON, || taken() <= 40 << 20);

    // A file that is open grows beyond it; new ones are refused once nothing may go any more.
    job.on(0).run(&format!("mkdir {SCR}/e && head -c 30M /dev/zero > {SCR}/e/big")).must();
    let mut refused = None;
    wait::until_true("the end of the room", SOON, || {
        refused = Some(job.on(0).run(&format!("echo > {SCR}/e/new && rm {SCR}/e/new")));
        refused.as_ref().is_some_and(|refused| !refused.ok())
    });
    let refused = refused.expect("an outcome");
    assert!(refused.err.contains("No space left on device"), "{refused}");
    assert_eq!(df("%a"), 0);
    assert_eq!(listed().split_whitespace().collect::<Vec<_>>(), ["d5", "e"]);
    assert!(job.events(0).contains("SCRFS_CACHE_BYTES: the cache has reached"), "{}", job.events(0));
    // What takes no room is not refused.
    job.on(0)
        .run(&format!("cd {SCR}/e && mv big large && ln large other && rm other && mv large big"))
        .must();
    // The first that begins asks for more, and is given time for that; others get no more of it,
    // nor do changes of what is sealed.
    let begun = |n: u32| job.on(0).run(&format!("mkdir {SCR}/g{n} && echo > {SCR}/g{n}/new")).ok();
    let mut next = 0;
    wait::until_true("the end of its time", SOON, || {
        next += 1;
        !begun(next)
    });
    assert_eq!((1..=4).filter(|n| begun(next + n)).count(), 0);
    assert!(!job.on(0).run(&format!("echo >> {SCR}/d5/node0")).ok());
    job.on(0).run(&format!("rm -r {SCR}/g*")).must();
    is_whole(&job, &NODES, &[1], "d5", 8);
    job.on(0).run(&format!("head -c 1M /dev/zero >> {SCR}/e/big && rm -r {SCR}/e")).must();
    let made = || job.on(0).run(&format!("mkdir -p {SCR}/f && echo > {SCR}/f/new")).ok();
    wait::until_true("room again", SOON, made);
    run.stop();
    cluster.poweroff(2);
    let mut run = job.idle(&[0, 1, 3]);
    is_whole(&job, &[0, 1, 3], &NODES, "d5", 8);
    run.stop();
}
