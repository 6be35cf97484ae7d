//! What people read when something is wrong: a line that says what, a line with a remedy, and the documented exit code.
//! All of it is in `snapshots/`, one page a program, so that a change of words is seen as one.
//! `INSTA_UPDATE=always cargo test -p scrfs-tests messages` writes the pages.

use std::fmt::Write as _;

use scrfs_harness::Cluster;
use scrfs_harness::place::JOB_UID;
use scrfs_harness::shell::Ran;

/// Exit codes that the manual knows; what a program of the user's gives is its own.
const CODES: [i32; 3] = [0, 1, 2];

/// Commands, as root where the line begins with `#` and as the job's user where it begins with `$`.
fn page(cluster: &Cluster, lines: &[&str], broken: &mut Vec<String>) -> String {
    let mut page = String::new();
    for line in lines {
        let (who, command) = line.split_once(' ').expect("who and what");
        let uid = if who == "#" { 0 } else { JOB_UID };
        let ran = cluster.on(0).user(uid).run(&format!("cd /tmp/bad; {command}"));
        let _ = write!(page, "{line}\n{}{}[exit {}]\n\n", told(&ran.out), told(&ran.err), ran.code);
        broken.extend(problem(&ran).map(|problem| format!("{line}: {problem}: {ran}")));
    }
    page
}

/// Nothing that differs from run to run.
fn told(text: &str) -> String {
    text.replace(env!("CARGO_PKG_VERSION"), "[VERSION]")
}

/// What breaks the rule that holds for all of them.
fn problem(ran: &Ran) -> Option<&'static str> {
    let remedies = ["hint: ", "For more information, try '--help'.", "Usage: "];
    if !CODES.contains(&ran.code) {
        return Some("an exit code that is not documented");
    } else if ran.code == 0 {
        return Some("it was not refused");
    } else if ran.err.contains("panicked") {
        return Some("a panic");
    } else if !remedies.iter().any(|word| ran.err.contains(word)) {
        return Some("no remedy");
    }
    // Clap's own have several lines, ours have two.
    (ran.err.contains("hint: ") && ran.err.lines().count() > 2).then_some("not one clear line and a remedy")
}

/// A node with files that are wrong.
fn node() -> Cluster {
    let cluster = Cluster::up(1);
    let make = "mkdir -p /tmp/bad/closed /tmp/bad/full /tmp/bad/mine && cd /tmp/bad && chmod 700 closed && chmod 777 mine && \
                touch full/file plain && \
                printf 'SCR_FLUSH=often\\n' > number.conf && printf 'SCR_FLUSH\\n' > line.conf && \
                printf 'SCR_COPY_TYPE=RAID\\n' > word.conf && printf 'SCR_CACHE_BASE=/dev/shm\\nCKPT=0 STORE=/nvme\\n' \
                > store.conf && head -c 2000000 /dev/zero > long.conf && printf 'no hash file' > junk.scr";
    cluster.on(0).run(make).must();
    cluster
}

#[test]
fn every_mistake_has_a_clear_line_a_remedy_and_its_exit_code() {
    let cluster = node();
    let mut broken = Vec::new();
    let scrfs = page(
        &cluster,
        &[
            "# scrfs mnt /scr",
            "# scrfs mount --frobnicate /scr",
            "# scrfs mount plain/below",
            "$ scrfs mount /no/such/directory",
            "# scrfs mount plain",
            "# scrfs mount full",
            "# scrfs mount --user nobody-here /scr",
            "# scrfs mount --user ../x /scr",
            "# scrfs mount --job-id a/b /scr",
            "# scrfs mount --checkpoint-path ../x /scr",
            "# scrfs mount --checkpoint-path .scrfs /scr",
            "# scrfs mount --cache-base relative /scr",
            "# scrfs mount --cache-base /no/such/store,/nor/this /scr",
            "# scrfs mount --cache-base /scr /scr",
            "$ SCR_CONF_FILE=number.conf scrfs mount mine",
            "$ SCR_CONF_FILE=line.conf scrfs mount mine",
            "$ SCR_CONF_FILE=word.conf scrfs mount mine",
            "$ SCR_CONF_FILE=store.conf scrfs mount mine",
            "$ SCR_CONF_FILE=long.conf scrfs mount mine",
            "$ SCR_CONF_FILE=none.conf scrfs mount mine",
            "# SCRFS_SEAL_TIMEOUT=soon scrfs mount /scr",
            "# SCRFS_CACHE_BYTES=much scrfs mount /scr",
            "# SCRFS_DATASET_PATTERN='(' scrfs mount /scr",
            "# SCR_NODELIST='n[4-1]' scrfs mount /scr",
            "$ scrfs mount /scr",
            "$ scrfs mount closed",
            "$ PATH=/run/sim/bin scrfs mount mine",
            "# scrfs umount /no/such/directory",
            "# scrfs reload /scr",
            "# SCRFS_LOG_TO=printer scrfs umount /scr",
            "# scrfs doctor --hosts 'n['",
            "# scrfs doctor --jsn",
        ],
        &mut broken,
    );
    insta::assert_snapshot!("scrfs", scrfs);
    let run = page(
        &cluster,
        &[
            "$ scrfs-run",
            "$ scrfs-run --nodes 0 -- true",
            "$ scrfs-run --nodes two -- true",
            "$ scrfs-run --hosts node0 --nodes 2 -- true",
            "$ scrfs-run --hosts 'node[' -- true",
            "$ scrfs-run --ranks-per-node 0 -- true",
            "$ scrfs-run --frobnicate -- true",
            "$ SCR_CONF_FILE=number.conf scrfs-run -- true",
            "$ SCR_CONF_FILE=closed/x scrfs-run -- true",
            "$ SCR_RUNS=many scrfs-run -- true",
        ],
        &mut broken,
    );
    insta::assert_snapshot!("scrfs-run", run);
    // Root's, of which the user may know nothing.
    cluster.on(0).run("scrfs mount /scr").must();
    let ctl = page(
        &cluster,
        &[
            "$ scrfs-ctl statsu",
            "$ scrfs-ctl status --mount /no/such/directory",
            "$ scrfs-ctl status --mount /scr",
            "$ scrfs-ctl list --mount plain",
            "$ scrfs-ctl records maybe",
            "$ scrfs-ctl wait --limit soon",
            "$ scrfs-ctl print junk.scr",
            "$ scrfs-ctl print none.scr",
            "$ scrfs-ctl print closed/x.scr",
        ],
        &mut broken,
    );
    insta::assert_snapshot!("scrfs-ctl", ctl);
    let coordinator = page(
        &cluster,
        &[
            "$ scrfs-coordinator",
            "$ scrfs-coordinator --attach --restart",
            "$ scrfs-coordinator --attach --frobnicate",
        ],
        &mut broken,
    );
    insta::assert_snapshot!("scrfs-coordinator", coordinator);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
