//! What is sealed stays as it is, whatever programs do with its files beside a seal; and what
//! programs have removed stays away.

use std::process::Stdio;

use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::{BIN, CACHE, SCR};
use scrfs_harness::shell::Ran;
use scrfs_harness::{Cluster, Config, wait};

fn mark(job: &Job<'_>, node: usize, name: &str) {
    job.on(node).run(&format!("touch {SCR}/{name}/.complete")).must();
}

/// The caches are on a disk's file system, which gives numbers of files that are gone to new ones.
#[test]
fn a_sealed_file_with_the_number_of_one_that_is_gone_is_not_written_in_place() {
    let config = Config { keep_cache: true, ..Config::new(2) };
    let cluster = Cluster::start(&config).expect("a cluster");
    let job = Job::new(&cluster, "numbers").set("SCR_FETCH", "0");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    let make = format!("mkdir {SCR}/d && for i in $(seq 20); do seq $i 9000 > {SCR}/d/a$i; done");
    job.on(0).run(&make).must();
    job.on(1).run(&format!("seq 7000 > {SCR}/d/b")).must();
    mark(&job, 1, "d");
    let sealed = job.on(1).run(&format!("md5sum < {SCR}/d/b")).must().to_owned();
    let change = "for i in $(seq 20); do echo x >> a$i; done && rm a* && sync && sleep 1 && printf EVIL | dd of=b conv=notrunc";
    job.on(0).run(&format!("cd {SCR}/d && {change}")).must();
    let aside = job.on(0).run(&format!("md5sum < $(ls {CACHE}/*/scr.*/dataset.1/aside/b)"));
    assert_eq!(aside.must(), sealed);
    run.stop();
    let mut run = job.idle(&[0, 1]);
    for node in 0..2 {
        assert_eq!(job.on(node).run(&format!("md5sum < {SCR}/d/b")).must(), sealed, "on node {node}");
    }
    run.stop();
}

#[test]
fn a_sealed_file_that_another_one_replaced_is_not_written_by_who_has_it_open() {
    const REOPEN: &str = "\
import errno, os, sys
os.chdir(sys.argv[1])
old = os.open('a', os.O_RDONLY)
open('tmp', 'w').write('new a')
os.rename('tmp', 'a')
for flags in os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC:
    try:
        os.open('/proc/self/fd/%d' % old, flags)
        sys.exit('opened')
    except OSError as error:
        assert error.errno == errno.ESTALE, error
assert os.read(old, 99) == b'old a'
";
    const REPLACE: &str = "\
import os, sys
os.chdir(sys.argv[1])
for turn in range(200):
    open('tmp', 'w').write('new %d' % turn)
    os.rename('tmp', 'a')
";
    // Opens that meet the rename get what has the name then.
    const WRITE: &str = "\
import os, sys
os.chdir(sys.argv[1])
for turn in range(400):
    file = os.open('a', os.O_WRONLY)
    os.pwrite(file, b'w', 0)
    os.close(file)
";
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "replaced");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    job.on(0).run(&format!("mkdir {SCR}/d && printf 'old a' > {SCR}/d/a")).must();
    mark(&job, 1, "d");
    let python = |program: &str| {
        let mut command = job.on(0).cmd("python3");
        command.args(["-c", program, &format!("{SCR}/d")]);
        command
    };
    Ran::of(&mut python(REOPEN)).must();
    let writes = python(WRITE).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("python");
    let replaces = Ran::of(&mut python(REPLACE));
    let writes = Ran::from_output("writes".into(), &writes.wait_with_output().expect("python"));
    assert!(replaces.ok() && writes.ok(), "{replaces}\n{writes}\n{}", job.events(0));
    let aside = job.on(0).run(&format!("cat {CACHE}/*/scr.*/dataset.1/aside/a"));
    assert_eq!(aside.must(), "old a");
    for _ in 0..5 {
        mark(&job, 1, "d");
        let mut writes = python(WRITE).spawn().expect("python");
        Ran::of(&mut python(REPLACE)).must();
        assert!(writes.wait().expect("python").success(), "{}", job.events(0));
    }
    let scrub = job.on(0).run(&format!("{BIN}/scrfs-ctl scrub --mount {SCR}"));
    assert!(scrub.must().contains("all bytes are as they were sealed"), "{scrub}");
    run.stop();
}

/// Each file is opened for writing while another one takes its name, once, right after the seal.
#[test]
fn opens_that_meet_a_rename_do_not_write_into_what_is_sealed() {
    const BOTH: &str = "\
import os, sys
os.chdir(sys.argv[1])
opens = os.fork() == 0
while not os.path.exists('../../go'): pass
for at in range(200):
    if opens:
        file = os.open('f.%d' % at, os.O_WRONLY)
        os.pwrite(file, b'EVIL', 0)
        os.close(file)
    else:
        os.rename('t.%d' % at, 'f.%d' % at)
if opens: os._exit(0)
sys.exit(os.wait()[1] != 0)
";
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "race").set("SCRFS_CHECKPOINT_PATH", "ck");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    let names = "for i in $(seq 0 199); do echo sealed $i > f.$i; echo new $i > t.$i; done";
    job.on(0).run(&format!("mkdir {SCR}/ck/d && cd {SCR}/ck/d && {names}")).must();
    for _ in 0..3 {
        job.on(0).run(&format!("touch {SCR}/ck/d/.complete")).must();
        let mut both = job.on(0).cmd("python3");
        both.args(["-c", BOTH, &format!("{SCR}/ck/d")]);
        let both = both.stderr(Stdio::piped()).spawn().expect("python");
        job.on(0).run(&format!("touch {SCR}/go")).must();
        let both = Ran::from_output("both".into(), &both.wait_with_output().expect("python"));
        assert!(both.ok(), "{both}\n{}", job.events(0));
        let scrub = job.on(0).run(&format!("{BIN}/scrfs-ctl scrub --mount {SCR}"));
        assert!(scrub.must().contains("all bytes are as they were sealed"), "{scrub}");
        job.on(0).run(&format!("rm {SCR}/go && cd {SCR}/ck/d && {names}")).must();
    }
    run.stop();
}

/// For each of these operations the kernel has locked the file, and its writer needs that lock.
#[test]
fn what_is_done_to_a_file_that_a_seal_waits_for_does_not_hold_its_writer_up() {
    const HOLD: &str = "\
import os, sys
file = os.open(sys.argv[1], os.O_RDWR)
print('open', flush=True)
sys.stdin.readline()
os.pwrite(file, b'hello', 0)
os.close(file)
";
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "held").set("SCRFS_SEAL_TIMEOUT", "60s").set("SCR_CACHE_SIZE", "8");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    let operations = [
        ("mv", "mv -f tmp a"),
        ("rm", "rm -f a"),
        ("ln", "ln a l"),
        ("cut", "python3 -c 'import os; os.truncate(\"a\", 3)'"),
    ];
    for (name, operation) in operations {
        let top = format!("{SCR}/{name}");
        job.on(0).run(&format!("mkdir {top} && echo data > {top}/a && echo new > {top}/tmp")).must();
        let mut hold = job.on(0).cmd("python3");
        hold.args(["-c", HOLD, &format!("{top}/a")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut hold = hold.spawn().expect("python");
        let mut said = std::io::BufReader::new(hold.stdout.take().expect("its output"));
        std::io::BufRead::read_line(&mut said, &mut String::new()).expect("a line");
        let mut marker = job.on(1).sh(&format!("touch {top}/.complete")).spawn().expect("a shell");
        wait::until_true("the seal to wait", SOON, || job.state(0, name) == "sealing");
        let mut operates = job.on(0).sh(&format!("cd {top} && {operation}")).spawn().expect("a shell");
        assert!(operates.wait().expect("a shell").success(), "{operation}");
        assert!(marker.try_wait().expect("a shell").is_none(), "the writer is waited for: {operation}");
        drop(hold.stdin.take());
        assert!(hold.wait().expect("python").success(), "{operation}");
        assert!(marker.wait().expect("a shell").success(), "{operation}\n{}", job.events(0));
        assert!(!job.events(0).contains("still open for writing"), "{}", job.events(0));
    }
    let seen = job.on(1).run(&format!("cd {SCR} && cat mv/a ln/a ln/l cut/a && ls rm"));
    assert_eq!(seen.must(), "new\nhellohellohellotmp", "{seen}");
    run.stop();
}

#[test]
fn what_a_program_removed_does_not_come_back_with_a_node_that_was_away() {
    let cluster = Cluster::up(3);
    let job = Job::new(&cluster, "stale").set("SCR_FETCH", "0").set("SCR_FLUSH", "0");
    job.mount(0..3);
    let mut run = job.idle(&[0, 1]);
    for name in ["gone", "stays"] {
        job.on(0).run(&format!("mkdir {SCR}/{name} && echo {name} > {SCR}/{name}/f")).must();
        mark(&job, 0, name);
    }
    run.stop();
    cluster.poweroff(1);
    // Node 2 gets what was lost.
    job.idle(&[0, 2]).stop();
    cluster.boot(1).expect("to boot");
    job.mount([1]);
    let mut run = job.idle(&[0, 1]);
    job.on(1).run(&format!("rm -rf {SCR}/gone")).must();
    assert_eq!(job.on(0).run(&format!("ls {SCR}")).must(), "stays");
    run.stop();
    cluster.poweroff(1);
    // Alone it could give both.
    let mut run = job.idle(&[0, 2]);
    assert_eq!(job.on(2).run(&format!("ls {SCR} && cat {SCR}/stays/f")).must(), "stays\nstays");
    let words = "a program removed it while 1 nodes that have it were away";
    assert!(job.events(0).contains(words), "{}", job.events(0));
    let left = job.on(2).run(&format!("ls -d {CACHE}/*/scr.*/dataset.1"));
    assert!(!left.ok(), "{left}");
    run.stop();
}

/// Runs of one job with names of their own count their epochs each by itself.
#[test]
fn what_one_run_removed_says_nothing_of_another_run_s_dataset_of_that_name() {
    let cluster = Cluster::up(3);
    let job = Job::new(&cluster, "named").set("SCR_FETCH", "0");
    job.mount(0..3);
    let [one, two] = ["one", "two"].map(|name| job.clone().option(&format!("--name={name}")));
    let seal = |node: usize, text: &str| {
        job.on(node).run(&format!("mkdir {SCR}/ck && echo {text} > {SCR}/ck/f")).must();
        mark(&job, node, "ck");
    };
    // The later epochs are the first run's.
    one.idle(&[0, 2]).stop();
    let mut run = one.idle(&[0, 2]);
    seal(0, "removed");
    job.on(0).run(&format!("rm -rf {SCR}/ck")).must();
    run.stop();
    let mut run = two.idle(&[1, 2]);
    seal(1, "kept");
    run.stop();
    cluster.poweroff(2);
    let mut run = two.idle(&[0, 1]);
    for node in [0, 1] {
        assert_eq!(job.on(node).run(&format!("cat {SCR}/ck/f")).must(), "kept", "on node {node}");
    }
    run.stop();
}

#[test]
fn what_one_node_removed_while_no_coordinator_ran_is_presented_again() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "alone").set("SCR_FETCH", "0").set("SCRFS_COORDINATOR_WAIT", "1s");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    job.on(0).run(&format!("mkdir {SCR}/ck && echo kept > {SCR}/ck/f")).must();
    mark(&job, 0, "ck");
    run.stop();
    job.on(0).run(&format!("rm -rf {SCR}/ck")).must();
    assert_eq!(job.on(0).run(&format!("ls {SCR}")).must(), "");
    let mut run = job.idle(&[0, 1]);
    for node in [0, 1] {
        assert_eq!(job.on(node).run(&format!("cat {SCR}/ck/f")).must(), "kept", "on node {node}");
    }
    run.stop();
}

/// Node 0 stays with its prefix and knows what was removed there. The others come with what they
/// have of another prefix.
#[test]
fn what_was_removed_under_one_prefix_says_nothing_of_what_comes_from_another() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "prefixes").set("SCR_FETCH", "0");
    job.mount(0..4);
    let other = Job::new(&cluster, "other").with_id("prefixes").set("SCR_FETCH", "0");
    let seal = |node: usize, text: &str| {
        job.on(node).run(&format!("mkdir {SCR}/ck && echo {text} > {SCR}/ck/f")).must();
        mark(&job, node, "ck");
    };
    let mut run = other.idle(&[2, 3]);
    seal(2, "kept");
    run.stop();
    let mut run = job.idle(&[0, 1]);
    seal(0, "removed");
    job.on(0).run(&format!("rm -rf {SCR}/ck")).must();
    run.stop();
    job.idle(&[0, 2, 3]).stop();
    let mut run = other.idle(&[2, 3]);
    for node in [2, 3] {
        assert_eq!(job.on(node).run(&format!("cat {SCR}/ck/f")).must(), "kept", "on node {node}");
    }
    run.stop();
}
