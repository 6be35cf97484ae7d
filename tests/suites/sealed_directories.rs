//! Directories below sealed datasets that are moved by `mv`, which copies them, removed and made
//! anew (semantics: "Generations"): after the next seal every node has the tree that an ordinary
//! directory has after the same commands, whoever wrote the files and whoever has read them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::SCR;
use scrfs_harness::{Cluster, wait};

/// What is sealed first. `d/x`, `d/s` and `f` are one node's, `d/k` is the one's that changes
/// things.
const HOLDER: &str =
    "mkdir -p d/s; echo x > d/x; echo sx > d/s/x; echo sx2 > d/s/x2; echo f > f; ln -s x d/link";
const CHANGER: &str = "echo kk > d/k";

/// What node 1 does then.
const CASES: &[&str] = &[
    "rm -r d",
    "rm -r d; echo F > d",
    "rm -r d; mkdir d; echo new > d/x",
    "rm d/x; mkdir d/x; echo in > d/x/y",
    "rm d/x; mkdir q; echo in > q/y; mv -T q d/x",
    "rm d/x; mkdir d/x; rmdir d/x; echo again > d/x",
    "rm d/link; mkdir d/link; echo in > d/link/y",
    "rm d/x; ln -s k d/x",
    "mv f d/x",
    "mv d/x q; echo nx > d/x",
    "mv d/x t; mv d/k d/x; mv t d/k",
    "mv d e",
    "mkdir p; mv d p/d",
    "mv d/s s2; echo z > s2/z",
    "mv d e; mkdir d; echo nn > d/x",
    "mv d e; mv e d",
    "mv d e; rm e/x",
    "mv d e; rm e/link; mkdir e/x2",
    "rm d/x; mv d e",
    "mv d/x d/y; mv d e",
    "mv d e; mv e/x e/y",
    "mv d e; mv e/x y",
    "echo W > d/x; mv d e",
    "mv d e; echo W > e/x",
    "mv d e; mv e g; echo W >> g/x; mv g h",
    "mv d e; echo W >> e/k",
    "echo W > d/x; mv d e; mv e d",
    "echo W > d/s/x; mv d e; rm e/s/x2",
    "rm -r d/s; mv d e",
    "mv d/s d/t; rm d/t/*; rmdir d/t",
    "mkdir e; echo q > e/x; mv d t; mv e d; mv t e",
    "mv d/x x2; mv d e",
    "mv d e; mv e/x x2",
    ": > d/x; : > f",
    "mkdir e; mv -T d e",
    "cp -r d d2; rm -r d; mv d2 d",
    "mv d/s t; mv d u; mv u d; mv t d/s2; echo z > d/s2/z",
    "mv d/s t; rm -r d; mv t d",
    "mv d e; rm -r e; mkdir d e; echo n > e/x",
    "mv d e; rm e/x; mkdir e/x; mv e/s e/x/s",
    "mv d e; chmod 700 e/s; mv e/s/x e/x; rm -r e/s",
];

/// All names with their kinds and bytes.
const LIST: &str = "find . -mindepth 1 ! -name .complete -printf '%p %y %l\\n' | LC_ALL=C sort; \
                    find . -type f ! -name .complete | LC_ALL=C sort | xargs -r tail -v -n +1";

/// One line for each case, in a directory of its own.
fn in_each(line: impl Fn(&str) -> String) -> String {
    let mut all = String::new();
    for (number, case) in CASES.iter().enumerate() {
        let line = line(case);
        let _ = writeln!(all, "(set -e; mkdir -p c{number}; cd c{number}; {line}) || echo FAILED {number}");
    }
    all
}

struct Bench<'a> {
    cluster: &'a Cluster,
    job: Job<'a>,
}

impl Bench<'_> {
    fn on(&self, node: usize, name: &str, line: &str) -> String {
        self.job.on(node).run(&format!("cd {SCR}/{name} && {{ {line}\n}}")).must().to_owned()
    }

    fn mark(&self, name: &str) {
        let marked = self.job.on(2).run(&format!("touch {SCR}/{name}/.complete"));
        assert!(marked.ok(), "{}", self.job.events(2));
    }

    fn kill_worker(&self, node: usize) {
        let status = self.job.status(node).expect("a status");
        let control = status["control_directory"].as_str().expect("a directory").to_owned();
        let pid = || self.cluster.on(node).run(&format!("head -n 1 {control}/worker.lock")).must().to_owned();
        let before = pid();
        self.cluster.on(node).run(&format!("kill -KILL {before}")).must();
        wait::until_true("a new worker", SOON, || {
            pid() != before && self.job.on(node).run(&format!("ls {SCR}")).ok()
        });
    }

    /// All cases in dataset `name`, and sealed again; what its tree is then. `dies`: workers, after
    /// the changes.
    fn cases(&self, name: &str, holder: usize, reads: bool, dies: bool) -> String {
        self.job.on(holder).run(&format!("mkdir {SCR}/{name}")).must();
        assert_eq!(self.on(holder, name, &in_each(|_| HOLDER.into())), "");
        assert_eq!(self.on(1, name, &in_each(|_| CHANGER.into())), "");
        self.mark(name);
        if reads {
            for node in [0, 2] {
                self.on(node, name, "cat c*/d/x c*/d/k c*/d/s/x c*/f");
            }
        }
        let ordinary = in_each(|case| format!("{HOLDER}; {CHANGER}; {case}"));
        let line = format!("mkdir /tmp/{name} && cd /tmp/{name} && {{ {ordinary}\n}} && {LIST}");
        let wanted = self.job.on(1).run(&line).must().to_owned();
        assert_eq!(self.on(1, name, &in_each(|case| (*case).to_owned())), "", "what went wrong on the mount");
        if dies {
            self.kill_worker(1);
            self.kill_worker(0);
        }
        same(&self.on(1, name, LIST), &wanted, "before it is sealed");
        self.mark(name);
        for node in 0..3 {
            same(&self.on(node, name, LIST), &wanted, &format!("{name}: node {node}"));
        }
        wanted
    }
}

#[track_caller]
fn same(seen: &str, wanted: &str, what: &str) {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (here, there) = (lines(seen), lines(wanted));
    let more: Vec<_> = here.difference(&there).collect();
    let less: Vec<_> = there.difference(&here).collect();
    assert!(seen == wanted, "{what}: there is {more:#?}, missing is {less:#?}");
}

#[test]
fn every_node_has_what_an_ordinary_directory_has() {
    let cluster = Cluster::up(3);
    let job = Job::new(&cluster, "dirs");
    job.mount(0..3);
    let mut run = job.idle(&[0, 1, 2]);
    let bench = Bench { cluster: &cluster, job };
    for (holder, reads) in [(0, false), (0, true), (1, false), (1, true)] {
        bench.cases(&format!("holder{holder}{reads}"), holder, reads, false);
    }
    run.stop();
}

#[test]
fn workers_that_die_meanwhile_and_a_lost_node_change_nothing() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "dirdeaths");
    job.mount(0..4);
    let mut run = job.idle(&[0, 1, 2]);
    let bench = Bench { cluster: &cluster, job };
    let wanted = bench.cases("ck", 0, true, true);
    run.stop();
    cluster.poweroff(1);
    let mut run = bench.job.idle(&[0, 2, 3]);
    for node in [0, 2, 3] {
        same(&bench.on(node, "ck", LIST), &wanted, &format!("node {node}, without node 1"));
    }
    // What was not sealed is given up, directories too.
    bench.on(2, "ck", "mv c11/e c11/v; rm c11/v/k; mkdir c11/e; echo other > c11/e/k");
    run.stop();
    let mut run = bench.job.idle(&[0, 2, 3]);
    for node in [0, 2, 3] {
        same(&bench.on(node, "ck", LIST), &wanted, &format!("node {node}, as it was sealed"));
    }
    run.stop();
}
