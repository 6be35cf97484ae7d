//! What is sealed: seen, changed, evicted, presented.

use scrfs_harness::cluster::Config;
use scrfs_harness::job::SOON;
use scrfs_harness::place::{CACHE, SCR};
use scrfs_harness::{Cluster, wait};

use super::{HOSTS, begin, is_whole, save, seal, try_out};

#[test]
fn after_it_is_sealed() {
    let cluster = Cluster::up(3);
    let (job, mut run) = begin(&cluster, &[("SCR_CACHE_SIZE", "2")]);
    try_out(&job, 0, &[("os.makedirs('a'); os.mkfifo('a/fifo')", "ok")]);
    seal(&job, &HOSTS, "a");
    // Every node lists and reads all; special files are gone, and named.
    let listed = "assert sorted(os.listdir('a')) == ['.complete', 'f0', 'f1', 'f2']";
    for node in HOSTS {
        try_out(&job, node, &[(listed, "ok"), ("assert os.stat('a/f2').st_size == 6", "ok")]);
    }
    assert!(job.events(0).contains("fifo"), "{}", job.events(0));
    is_whole(&job, &HOSTS, &HOSTS, "a");
    // Modes by themselves are this mount's.
    try_out(&job, 1, &[("os.chmod('a/f1', 0o600); assert os.stat('a/f1').st_mode & 0o777 == 0o600", "ok")]);
    try_out(&job, 0, &[("assert os.stat('a/f1').st_mode & 0o777 == 0o644", "ok")]);
    // The oldest goes when a newer one is protected.
    seal(&job, &HOSTS, "b");
    seal(&job, &HOSTS, "c");
    let left = || job.on(2).run(&format!("ls {SCR}")).must().to_owned();
    wait::until_true("the oldest to go", SOON, || left() == "b\nc");
    // Removed on one node it is gone on all, and its bytes with it.
    try_out(&job, 1, &[("subprocess.run(['rm', '-r', 'b'], check=True)", "ok")]);
    try_out(&job, 2, &[("os.stat('b')", "ENOENT")]);
    for node in HOSTS {
        wait::until_true("the bytes to go", SOON, || {
            cluster.on(node).run(&format!("find {CACHE} -path '*tree/b/*'")).must().is_empty()
        });
    }
    // What rots is rebuilt; what nobody has is EIO, and fails the dataset.
    let rot = |name: &str, node: usize| {
        let line =
            format!("for f in $(find {CACHE} -path '*tree/{name}/f{node}'); do printf rotten > $f; done");
        cluster.on(node).run(&line).must();
    };
    rot("c", 1);
    is_whole(&job, &[0], &[1], "c");
    seal(&job, &HOSTS, "d");
    rot("d", 1);
    rot("d", 2);
    try_out(
        &job,
        0,
        &[
            ("read('d/f1')", "EIO"),
            ("assert read('d/f0') == 'd of 0'", "ok"),
            ("touch('d/.complete')", "EIO"),
        ],
    );
    for node in HOSTS {
        assert_eq!(job.state(node, "d"), "failed");
    }
    is_whole(&job, &HOSTS, &HOSTS, "c");
    run.stop();
}

#[test]
fn generations() {
    let cluster = Cluster::up(3);
    let (job, mut run) = begin(&cluster, &[]);
    seal(&job, &HOSTS, "ck");
    try_out(
        &job,
        0,
        &[
            // Nothing was changed: at once. Removal by itself is no change.
            ("touch('ck/.complete')", "ok"),
            ("write('ck/f0', 'new'); assert '.complete' not in os.listdir('ck')", "ok"),
            ("os.rename('ck', 'elsewhere')", "EBUSY"),
            ("os.mkdir('ck/sub')", "ok"),
        ],
    );
    // Others go on seeing what was sealed, and bring what they change.
    try_out(
        &job,
        1,
        &[
            ("assert read('ck/f0') == 'ck of 0'", "ok"),
            ("write('ck/f2', ' and 1', 'a'); assert read('ck/f2') == 'ck of 2 and 1'", "ok"),
            ("os.unlink('ck/f1'); write('ck/sub/more', 'more')", "ok"),
            ("touch('ck/.complete')", "ok"),
        ],
    );
    for node in HOSTS {
        try_out(
            &job,
            node,
            &[
                ("assert sorted(os.listdir('ck')) == ['.complete', 'f0', 'f2', 'sub']", "ok"),
                (
                    "assert (read('ck/f0'), read('ck/f2'), read('ck/sub/more')) == ('new', 'ck of 2 and 1', 'more')",
                    "ok",
                ),
            ],
        );
    }
    // A copy has the marker last, and is sealed whole.
    try_out(
        &job,
        2,
        &[
            ("assert os.listdir('ck')[-1] == '.complete'", "ok"),
            ("assert os.system('cp -r ck copy') == 0", "ok"),
            ("assert sorted(os.listdir('copy')) == ['.complete', 'f0', 'f2', 'sub']", "ok"),
        ],
    );
    try_out(&job, 0, &[("assert read('copy/f0') + read('copy/sub/more') == 'newmore'", "ok")]);
    try_out(&job, 1, &[("assert os.system('rm -r copy') == 0", "ok")]);
    // Names of one file are files of their own once they are sealed.
    let inodes = |names: &str| format!("len({{os.stat('ln/' + name).st_ino for name in '{names}'}})");
    try_out(
        &job,
        0,
        &[
            ("os.mkdir('ln'); write('ln/a', 'one'); os.link('ln/a', 'ln/b'); os.link('ln/a', 'ln/c')", "ok"),
            (&format!("assert {} == 1 and os.stat('ln/b').st_nlink == 3", inodes("abc")), "ok"),
            ("f = open('ln/b'); touch('ln/.complete'); assert f.read() == 'one'", "ok"),
            (&format!("assert {} == 3 and os.stat('ln/b').st_nlink == 1", inodes("abc")), "ok"),
            ("write('ln/a', ' two', 'a'); os.chmod('ln/a', 0o600)", "ok"),
            ("assert read('ln/b') == 'one' and os.stat('ln/b').st_mode & 0o777 == 0o644", "ok"),
            ("os.rename('ln/c', 'ln/a')", "ok"),
        ],
    );
    try_out(&job, 1, &[("write('ln/b', 'other'); touch('ln/.complete')", "ok")]);
    for node in HOSTS {
        let listed = "assert sorted(os.listdir('ln')) == ['.complete', 'a', 'b']";
        try_out(&job, node, &[(listed, "ok"), ("assert read('ln/a') + read('ln/b') == 'oneother'", "ok")]);
    }
    // One that was renamed out of its dataset cannot change what is sealed.
    try_out(
        &job,
        0,
        &[
            (
                "os.link('ln/a', 'ln/d'); os.rename('ln/d', 'left'); assert os.stat('ln/a').st_nlink == 2",
                "ok",
            ),
            ("os.link('ln/a', 'ck/a')", "EXDEV"),
            ("touch('ln/.complete'); write('left', 'changed')", "ok"),
            ("assert read('ln/a') == 'one' and os.stat('ln/a').st_nlink == 1; os.unlink('left')", "ok"),
        ],
    );
    // Two nodes, one path: other bytes fail, the same are one file.
    for node in [0, 2] {
        try_out(&job, node, &[(&format!("write('ck/both', 'of {node}')"), "ok")]);
    }
    try_out(&job, 1, &[("touch('ck/.complete')", "EIO")]);
    let events = job.events(1);
    assert!(["node0", "node2", "both"].iter().all(|word| events.contains(word)), "{events}");
    try_out(&job, 0, &[("write('ck/both', 'of 2'); touch('ck/.complete')", "ok")]);
    try_out(&job, 1, &[("assert read('ck/both') == 'of 2'", "ok")]);
    // One that has begun is nothing after a restart; the sealed one is whole.
    try_out(&job, 0, &[("write('ck/f0', 'lost'); os.unlink('ck/f2')", "ok")]);
    run.stop();
    let mut run = job.idle(&HOSTS);
    for node in HOSTS {
        try_out(&job, node, &[("assert read('ck/f0') + read('ck/f2') == 'newck of 2 and 1'", "ok")]);
    }
    run.stop();
}

#[test]
fn when_the_cache_is_full() {
    let cluster = Cluster::start(&Config { cache_size: "48m".into(), ..Config::new(3) }).expect("a cluster");
    let (job, mut run) = begin(&cluster, &[("SCR_CACHE_SIZE", "3")]);
    let fill = |name: &str, mib: usize| {
        for node in HOSTS {
            let line = format!("mkdir -p {SCR}/{name} && yes {node} | head -c {mib}M > {SCR}/{name}/f{node}");
            job.on(node).run(&line).must();
        }
    };
    // There is room for two at a time: the oldest goes before `SCR_CACHE_SIZE` says so.
    for name in ["a", "b", "c"] {
        fill(name, 12);
        let touched = job.on(0).run(&format!("touch {SCR}/{name}/.complete"));
        assert!(touched.ok(), "{touched}\n{}", job.events(0));
    }
    try_out(&job, 1, &[("assert 'a' not in os.listdir('.') and 'c' in os.listdir('.')", "ok")]);
    // Who writes is told at once, and what is protected is whole. The room that the second leaves
    // is awaited: with it what is written fills the cache, and the redundancy data finds none.
    try_out(
        &job,
        0,
        &[
            ("def room(): s = os.statvfs('.'); return s.f_bavail * s.f_frsize", "ok"),
            ("os.mkdir('d'); f = open('d/f', 'wb', 0)", "ok"),
            ("end = time.monotonic() + 60\nwhile room() < 20 << 20: assert time.monotonic() < end", "ok"),
            ("while f.write(b'x' * 65536) == 65536: pass\nf.write(b'x' * 65536)", "ENOSPC"),
            ("assert room() < 65536", "ok"),
            ("f.close(); touch('d/.complete')", "EIO"),
        ],
    );
    job.on(2).run(&format!("yes 2 | head -c 12M | cmp - {SCR}/c/f2")).must();
    run.stop();
}

#[test]
fn sparse_files() {
    let cluster = Cluster::start(&Config { cache_size: "48m".into(), ..Config::new(3) }).expect("a cluster");
    let (job, mut run) = begin(&cluster, &[]);
    // Far larger than any cache.
    let write = "with open('s/f', 'wb') as f: f.write(b'head'); f.seek((256 << 20) - 4); f.write(b'tail')";
    try_out(&job, 0, &[("os.mkdir('s')", "ok"), (write, "ok"), ("touch('s/.complete')", "ok")]);
    let is_whole = [
        ("f = open('s/f', 'rb'); assert f.read(4) == b'head'", "ok"),
        ("f.seek(100 << 20); assert f.read(1 << 20) == bytes(1 << 20)", "ok"),
        ("f.seek(-4, 2); assert f.read() == b'tail'", "ok"),
        ("s = os.stat('s/f'); assert (s.st_size, s.st_blocks * 512) == (256 << 20, 256 << 20)", "ok"),
        ("s = os.statvfs('.'); assert s.f_bavail * s.f_frsize > 40 << 20", "ok"),
    ];
    try_out(&job, 1, &is_whole);
    run.stop();
    cluster.poweroff(0);
    let mut run = job.idle(&[1, 2]);
    try_out(&job, 2, &is_whole);
    run.stop();
}

#[test]
fn stores() {
    let cluster = Cluster::up(3);
    let list = format!("/nowhere,{CACHE},/tmp");
    let (job, mut run) = begin(&cluster, &[("SCR_CACHE_BASE", &list)]);
    seal(&job, &HOSTS, "a");
    try_out(&job, 0, &[("os.mkdir('b'); write('b/f', 'x'); os.rename('b/f', 'b/g')", "ok")]);
    run.stop();
    let used = || {
        let status = job.status(0).expect("a status");
        let stores = status["stores"].as_array().expect("stores").clone();
        let used = stores.iter().find(|store| store["used"] == true).expect("one");
        used["path"].as_str().expect("a path").to_owned()
    };
    assert_eq!(used(), CACHE, "it had most room");
    job.unmount(0).must();
    // Another has more room now.
    cluster.on(0).run(&format!("head -c 400M /dev/zero > {CACHE}/others")).must();
    job.mount([0]);
    assert_eq!(used(), CACHE, "it has files of this job");
    let mut run = job.idle(&HOSTS);
    is_whole(&job, &HOSTS, &HOSTS, "a");
    run.stop();
    // It is not left behind in silence.
    job.unmount(0).must();
    let job = job.set("SCR_CACHE_BASE", "/tmp");
    let refused = job.try_mount(0);
    assert!(!refused.ok() && refused.err.contains("SCR_CACHE_BASE: /cache is not in the list"), "{refused}");
}

#[test]
fn pointer_files() {
    let cluster = Cluster::up(4);
    let (job, mut run) = begin(&cluster, &[("SCRFS_LOOSE_MAX", "64k")]);
    seal(&job, &HOSTS, "ck.1");
    try_out(
        &job,
        1,
        &[
            ("write('tmp', 'ck.1'); os.rename('tmp', 'latest'); os.symlink('ck.1', 'link')", "ok"),
            ("write('large', 'x' * 100000)", "ok"),
        ],
    );
    try_out(
        &job,
        2,
        &[
            ("assert read('latest') == 'ck.1' and os.readlink('link') == 'ck.1'", "ok"),
            ("os.stat('large')", "ENOENT"),
        ],
    );
    // A version of a dataset that is not sealed is not presented.
    save(&job, &HOSTS, "ck.2");
    try_out(&job, 2, &[("write('latest', 'ck.2')", "ok")]);
    try_out(&job, 0, &[("assert read('latest') == 'ck.2'", "ok")]);
    run.stop();
    cluster.poweroff(2);
    let hosts = [0, 1, 3];
    let mut run = job.idle(&hosts);
    for node in &hosts {
        try_out(&job, *node, &[("assert read(read('latest') + '/f0') == 'ck.1 of 0'", "ok")]);
    }
    run.stop();
}

#[test]
fn flat_layouts() {
    let cluster = Cluster::up(4);
    let (job, mut run) =
        begin(&cluster, &[("SCRFS_DATASET_PATTERN", r"m\.(\d*)\.\d"), ("SCR_CACHE_SIZE", "3")]);
    let save = |step: usize, nodes: &[usize]| {
        for node in nodes {
            try_out(&job, *node, &[(&format!("write('m.{step}.{node}', '{step} of {node}')"), "ok")]);
        }
    };
    try_out(&job, 0, &[("touch('.complete.1')", "ENOENT")]);
    save(1, &HOSTS);
    try_out(&job, 2, &[("os.mkdir('1')", "EEXIST"), ("os.mkdir('2')", "ok"), ("touch('m.2.2')", "EEXIST")]);
    try_out(&job, 0, &[("assert os.listdir('.') == ['2', 'm.1.0'], os.listdir('.')", "ok")]);
    try_out(
        &job,
        1,
        &[("touch('.complete.1')", "ok"), ("assert eye('m.1.0', 'state') == 'protected'", "ok")],
    );
    // Names move in and out; one that says no dataset is loose.
    try_out(
        &job,
        0,
        &[
            ("write('tmp', '3 of 0'); os.rename('tmp', 'm.3.0'); os.rename('m.3.0', 'm.4.0')", "ok"),
            ("os.link('m.4.0', 'm.4.5'); os.link('m.4.0', 'm.5.0')", "EXDEV"),
            ("os.rename('m.4.5', 'loose'); os.unlink('m.4.0'); os.mkdir('4'); os.rmdir('4')", "ok"),
            ("touch('m..0')", "ok"),
        ],
    );
    assert!(job.events(0).contains("m..0"), "{}", job.events(0));
    // Each rank its own: gone everywhere with the last one, and whole before that.
    save(6, &HOSTS);
    save(7, &HOSTS);
    try_out(&job, 2, &[("touch('.complete.6'); touch('.complete.7')", "ok")]);
    for node in HOSTS {
        try_out(&job, node, &[(&format!("os.unlink('m.6.{node}')"), "ok")]);
    }
    try_out(&job, 1, &[("os.unlink('m.7.0')", "ok")]);
    try_out(&job, 0, &[("os.stat('m.7.0')", "ENOENT"), ("os.stat('.complete.6')", "ENOENT")]);
    run.stop();
    cluster.poweroff(1);
    let hosts = [0, 2, 3];
    let mut run = job.idle(&hosts);
    for node in hosts {
        let whole = "assert [read(f'm.{n}.{r}') for n in (1, 7) for r in range(3)] == [f'{n} of {r}' for n in (1, 7) for r in range(3)]";
        let names = "assert sorted(os.listdir('.')) == sorted([f'm.{n}.{r}' for n in (1, 7) for r in range(3)] + ['.complete.1', '.complete.7', 'loose', 'm..0']), os.listdir('.')";
        try_out(&job, node, &[(whole, "ok"), (names, "ok")]);
    }
    run.stop();
    // Without the pattern the same files are in a directory.
    let plain = job.set("SCRFS_DATASET_PATTERN", "");
    let mut run = plain.idle(&hosts);
    try_out(&plain, 3, &[("assert read('7/m.7.1') == '7 of 1'", "ok"), ("os.stat('m.7.1')", "ENOENT")]);
    assert!(plain.events(3).contains("dataset 7 was sealed as files"), "{}", plain.events(3));
    run.stop();
}

#[test]
fn after_a_restart() {
    let cluster = Cluster::up(4);
    let (job, mut run) = begin(&cluster, &[]);
    seal(&job, &HOSTS, "ck.1");
    seal(&job, &HOSTS, "ck.2");
    save(&job, &HOSTS, "ck.3");
    run.stop();
    cluster.poweroff(1);
    let said = format!("{}.current", job.log_path());
    let tell = format!("echo \"current $SCRFS_CURRENT\" >> {said}; ls {SCR} >> {said}");
    let mut run = job.start(&[0, 2, 3], 3, 1, &["sh", "-c", &tell]);
    assert_eq!(run.wait(2 * SOON), 0, "{}", run.output());
    let said = cluster.head().run(&format!("sort -u {said}")).must().to_owned();
    assert_eq!(said.lines().collect::<Vec<_>>(), ["ck.1", "ck.2", "current ck.2"]);
    let mut run = job.idle(&[0, 2, 3]);
    is_whole(&job, &[0, 2, 3], &HOSTS, "ck.2");
    is_whole(&job, &[3], &HOSTS, "ck.1");
    run.stop();
}
