//! From the first `mkdir` to the marker.

use scrfs_harness::job::SOON;
use scrfs_harness::place::SCR;
use scrfs_harness::{Cluster, wait};

use super::{HOSTS, begin, is_whole, save, try_out};

#[test]
fn before_it_is_sealed() {
    let cluster = Cluster::up(3);
    let (job, mut run) = begin(&cluster, &[]);
    // Directories are global, files are local.
    try_out(&job, 0, &[("os.mkdir('d'); os.mkdir('d/sub'); write('d/sub/mine', 'x')", "ok")]);
    try_out(
        &job,
        1,
        &[
            ("os.mkdir('d/sub')", "EEXIST"),
            ("os.makedirs('d/sub', exist_ok=True)", "ok"),
            ("assert os.listdir('d/sub') == []", "ok"),
            ("os.stat('d/sub/mine')", "ENOENT"),
        ],
    );
    // Of two that make one, one succeeds, and by then it is there.
    let line = format!(
        "cd {SCR}/d && for n in $(seq 30); do mkdir $n 2>/dev/null && echo $n; ls -d $n >/dev/null || echo none; done; true"
    );
    let makers =
        HOSTS.map(|node| job.on(node).sh(&line).stdout(std::process::Stdio::piped()).spawn().unwrap());
    let mut made: Vec<u32> = Vec::new();
    for maker in makers {
        let output = maker.wait_with_output().unwrap();
        made.extend(
            String::from_utf8_lossy(&output.stdout).lines().map(|n| n.parse::<u32>().expect("a number")),
        );
    }
    made.sort_unstable();
    assert_eq!(made, (1..=30).collect::<Vec<_>>());
    // No name is stale: what was looked up here is gone once another node's call has returned.
    try_out(&job, 2, &[("os.stat('d/sub'); os.stat('d/7')", "ok")]);
    try_out(&job, 0, &[("os.rename('d/sub', 'd/moved'); os.rmdir('d/7')", "ok")]);
    try_out(
        &job,
        2,
        &[("os.stat('d/sub')", "ENOENT"), ("os.stat('d/7')", "ENOENT"), ("os.stat('d/moved')", "ok")],
    );
    // Files are renamed wherever, and linked within their dataset.
    try_out(
        &job,
        0,
        &[
            ("os.mkdir('e'); os.rename('d/moved/mine', 'e/mine')", "ok"),
            ("os.link('e/mine', 'e/twin'); assert os.stat('e/mine').st_nlink == 2", "ok"),
            ("os.link('e/mine', 'd/twin')", "EXDEV"),
        ],
    );
    run.stop();
}

#[test]
fn the_marker() {
    let cluster = Cluster::up(3);
    let (job, mut run) = begin(&cluster, &[("SCRFS_SEAL_TIMEOUT", "2s"), ("SCR_CACHE_SIZE", "9")]);
    save(&job, &HOSTS, "a");
    // What sets it, and what cannot be it.
    try_out(
        &job,
        0,
        &[
            ("os.close(os.open('a/.complete', os.O_RDONLY | os.O_CREAT))", "ok"),
            ("assert eye('a', 'state') == 'open'", "ok"),
            ("os.symlink('f0', 'a/.complete')", "EPERM"),
            ("os.mkfifo('a/.complete')", "EPERM"),
            ("os.mkdir('a/.complete')", "EPERM"),
        ],
    );
    // Reserved names, and a marker's name further down.
    try_out(
        &job,
        1,
        &[
            ("os.mkdir('a/.scr')", "EPERM"),
            ("os.mkdir('.scrfs')", "EEXIST"),
            ("os.mkdir('a/sub'); write('a/sub/.complete', 'x')", "ok"),
            ("assert eye('a', 'state') == 'open'", "ok"),
        ],
    );
    // `.invalid` beats it, from any node.
    try_out(&job, 2, &[("touch('a/.invalid')", "ok")]);
    try_out(&job, 0, &[("touch('a/.complete')", "EIO")]);
    assert!(job.events(0).contains("node2"), "{}", job.events(0));
    try_out(&job, 2, &[("os.unlink('a/.invalid')", "ok")]);
    // Who still writes is named, and nothing is taken from him.
    try_out(
        &job,
        1,
        &[
            ("f = open('a/f1', 'r+')", "ok"),
            ("assert '.complete' not in os.listdir('a')", "ok"),
            ("touch('a/.complete')", "EIO"),
            ("f.write('A'); f.close()", "ok"),
            ("touch('a/.complete')", "ok"),
            ("assert eye('a', 'state') == 'protected' and '.complete' in os.listdir('a')", "ok"),
            ("assert read('a/f1') == 'A of 1'", "ok"),
        ],
    );
    assert!(job.events(1).contains("python3"), "{}", job.events(1));
    // A rename and a link are markers too; nobody dying sets one.
    for (name, step) in [("b", "os.rename('b/m', 'b/.complete')"), ("c", "os.link('c/m', 'c/.complete')")] {
        save(&job, &HOSTS, name);
        try_out(&job, 0, &[(&format!("touch('{name}/m')"), "ok"), (step, "ok")]);
        wait::until_true("the seal", SOON, || HOSTS.iter().all(|node| job.is_sealed(*node, name)));
    }
    // A marker made by link is a file of its own.
    let own = "assert os.stat('c/.complete').st_size == 0 and not os.path.samefile('c/.complete', 'c/m')";
    try_out(&job, 0, &[(own, "ok"), ("write('c/f0', 'new'); write('c/.complete', 'x')", "ok")]);
    wait::until_true("the next seal", SOON, || HOSTS.iter().all(|node| job.is_sealed(*node, "c")));
    try_out(&job, 0, &[("assert read('c/m') == '' and read('c/f0') == 'new'", "ok")]);
    // A rename is done whatever becomes of the seal, and that is told.
    save(&job, &HOSTS, "r");
    try_out(
        &job,
        1,
        &[
            ("f = open('r/f1', 'r+'); touch('r/m')", "ok"),
            ("os.rename('r/m', 'r/.complete')", "ok"),
            ("assert eye('r', 'state') == 'open' and not os.path.exists('r/m')", "ok"),
            ("f.write('A'); f.close()", "ok"),
            ("touch('r/.complete')", "ok"),
            ("assert eye('r', 'state') == 'protected'", "ok"),
        ],
    );
    let told = "r: its marker was set by rename or link, and the dataset is not sealed";
    assert!(job.events(1).contains(told), "{}", job.events(1));
    save(&job, &HOSTS, "k");
    try_out(
        &job,
        0,
        &[
            ("subprocess.run(['sh', '-c', 'exec 5> k/.complete; kill -9 $$'])", "ok"),
            ("assert eye('k', 'state') == 'open'", "ok"),
        ],
    );
    // Two nodes that wrote different files of one name, and then the same.
    for node in [0, 1] {
        try_out(
            &job,
            node,
            &[(&format!("os.makedirs('two', exist_ok=True); write('two/f', 'of {node}')"), "ok")],
        );
    }
    try_out(&job, 2, &[("touch('two/.complete')", "EIO")]);
    let events = job.events(0);
    assert!(events.contains("two: not sealed: f differs between node0 and node1"), "{events}");
    try_out(&job, 0, &[("write('two/f', 'of 1'); touch('two/.complete')", "ok")]);
    run.stop();
}

#[test]
fn other_markers() {
    let cluster = Cluster::up(3);
    let settings = [
        ("SCRFS_MARKER", ".metadata"),
        ("SCRFS_SEAL", "background"),
        ("SCRFS_COMMIT_ON_RENAME", r"ck\.\d+"),
        ("SCR_CACHE_SIZE", "9"),
    ];
    let (job, mut run) = begin(&cluster, &settings);
    let protected = |name: &str| wait::until_true("the seal", SOON, || job.is_sealed(1, name));
    save(&job, &HOSTS, "named");
    try_out(&job, 1, &[("write('named/.metadata', 'all')", "ok")]);
    protected("named");
    try_out(
        &job,
        0,
        &[("assert read('named/.metadata') == 'all' and '.metadata' in os.listdir('named')", "ok")],
    );
    // A directory that is renamed into place; another name is no marker.
    save(&job, &HOSTS, "tmp");
    try_out(
        &job,
        0,
        &[
            ("os.rename('tmp', 'other'); assert eye('other', 'state') == 'open'", "ok"),
            ("os.rename('other', 'ck.1'); assert eye('ck.1', 'state') != 'open'", "ok"),
        ],
    );
    protected("ck.1");
    is_whole(&job, &[2], &[], "ck.1");
    // What fails after the close has returned is told, and can be tried again.
    save(&job, &HOSTS, "late");
    job.arm("encode.block=error");
    try_out(&job, 0, &[("touch('late/.complete')", "ok")]);
    wait::until_true("the news", SOON, || job.events(2).contains("its seal is given up"));
    wait::until_true("the files", SOON, || job.state(0, "late") == "open");
    try_out(&job, 0, &[("write('late/f0', 'late of 0'); touch('late/.complete')", "ok")]);
    protected("late");
    run.stop();
    // On every node.
    let job = job.set("SCRFS_SEAL", "wait").set("SCRFS_MARKER_SCOPE", "all").set("SCRFS_SEAL_TIMEOUT", "9s");
    let mut run = job.idle(&HOSTS);
    save(&job, &HOSTS, "every");
    try_out(&job, 0, &[("touch('every/.complete')", "EIO")]);
    assert!(job.events(0).contains("node1"), "{}", job.events(0));
    let all = HOSTS.map(|node| job.on(node).sh(&format!("touch {SCR}/every/.complete")).spawn().unwrap());
    for mut one in all {
        assert!(one.wait().unwrap().success(), "{}", job.events(0));
    }
    try_out(&job, 2, &[("touch('every/.complete')", "ok")]);
    run.stop();
}

#[test]
fn logs() {
    let cluster = Cluster::up(3);
    let (job, mut run) = begin(&cluster, &[]);
    save(&job, &HOSTS, "run");
    try_out(
        &job,
        0,
        &[
            ("log = open('run/log', 'a'); log.write('one'); log.flush()", "ok"),
            ("touch('run/.complete')", "ok"),
            ("log.write(' and two'); log.flush(); assert read('run/log') == 'one and two'", "ok"),
            (
                "assert subprocess.run(['stat', '-c', '%s', 'run/log'], capture_output=True).stdout == b'11\\n'",
                "ok",
            ),
            // It belongs to the next generation, which this marker seals.
            ("assert '.complete' not in os.listdir('run')", "ok"),
            ("touch('run/.complete')", "ok"),
            ("log.write(' and three'); log.close()", "ok"),
        ],
    );
    try_out(&job, 1, &[("assert read('run/log') == 'one and two'", "ok")]);
    // One that can read as well is a writer like any other.
    try_out(
        &job,
        2,
        &[
            ("os.makedirs('plus'); log = open('plus/log', 'a+'); log.write('x'); log.flush()", "ok"),
            ("touch('plus/.complete')", "EIO"),
        ],
    );
    run.stop();
    let mut run = job.idle(&HOSTS);
    try_out(&job, 0, &[("assert read('run/log') == 'one and two'", "ok")]);
    run.stop();
}
