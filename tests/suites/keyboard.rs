//! What a person types: the README's first lines, status from the login node, jobs, and the small
//! programs of `scrfs/docs/programs.md`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use scrfs_harness::cluster::workspace;
use scrfs_harness::job::{Job, SOON};
use scrfs_harness::place::{BIN, JOB_UID, PFS, SCR};
use scrfs_harness::programs::program;
use scrfs_harness::shell::Ran;
use scrfs_harness::{Cluster, wait};

/// What watches is killed when nothing is left to be seen.
const WATCH: Duration = Duration::from_mins(5);

/// The first block of code after a heading of a page.
fn block(page: &str, heading: &str) -> String {
    let text = fs::read_to_string(workspace().join(page)).expect("the page");
    let (_, after) = text.split_once(&format!("\n{heading}\n")).expect("the heading");
    let lines = after.lines().skip_while(|line| !line.starts_with("    "));
    lines.map_while(|line| line.strip_prefix("    ")).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_first_lines_of_the_readme_work_for_an_ordinary_user() {
    let cluster = Cluster::up(1);
    let user = cluster.on(0).user(JOB_UID);
    let lines = block("README.md", "## Try it");
    assert_eq!(lines.lines().count(), 5, "{lines}");
    let ran = user.run(&format!("set -e\n{lines}"));
    assert!(ran.ok() && ran.out.contains(" ck.1 *   sealed "), "{ran}");
    assert!(ran.out.contains("plain (") && ran.out.contains("One node protects nothing"), "{ran}");
    let left = user.run("findmnt -t fuse.scrfs; ls -d /dev/shm/*/scr.*; pgrep -u 1000 scrfs");
    assert_eq!(left.out.trim(), "", "{left}");
    assert_eq!(user.run("ls -A ~/scr").must(), "");

    // Open MPI's own choice of a directory, which another user has made first.
    cluster.on(0).user(JOB_UID + 1).run(&format!("mkdir -m 700 /tmp/ompi.node0.{JOB_UID}")).must();
    // "protected" is said nowhere; the reasons are.
    let begun = "scrfs try ~/scr && mkdir ~/scr/a && echo x > ~/scr/a/f && touch ~/scr/a/.complete";
    user.run(begun).must();
    let json = user.run("scrfs-ctl status --mount ~/scr --json").must().to_owned();
    let status: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(status["datasets"][0]["state"], "sealed", "{json}");
    let state =
        "python3 -c \"import os; print(os.getxattr(os.environ['HOME'] + '/scr/a', 'user.scrfs.state'))\"";
    assert_eq!(user.run(state).must(), "b'sealed'");
    let events = user.run("scrfs-ctl events --mount ~/scr").must().to_owned();
    assert!(events.contains("nothing protects it"), "{events}");
    let told = ["list --mount ~/scr", "events --mount ~/scr", "jobs", "status --mount ~/scr --json"];
    for verb in told {
        let ran = user.run(&format!("scrfs-ctl {verb}"));
        let without = ran.must().replace("newest_protected", "").replace("newest protected", "");
        assert!(!without.contains("protected"), "{ran}");
    }
    // It is seen without naming it, and is the user's own.
    assert!(user.run("scrfs-ctl status").must().starts_with("/tmp/scr on node0: plain"));
    let other = cluster.on(0).user(JOB_UID + 1).run("scrfs try --stop /tmp/scr");
    assert!(other.code == 1 && other.err.contains("was mounted by job"), "{other}");

    // The coordinator's log does not grow for ever: it is on a store of memory.
    let log = user.run("ls /dev/shm/*/scr.try.*/coordinator.log").must().to_owned();
    user.run(&format!("head -c 3m /dev/zero >> {log}")).must();
    user.run("mkdir ~/scr/c && echo x > ~/scr/c/f && touch ~/scr/c/.complete && rm -r ~/scr/c").must();
    let small = || user.run(&format!("find {log} -size -64k")).must() == log;
    wait::until_true("the full log to be put by", SOON, small);
    user.run(&format!("rm {log}.1")).must();

    // A mount in use is not ended under its users, and goes on; a coordinator that died is told of.
    let busy = user.run("cd ~/scr && scrfs try --stop ~/scr");
    assert!(busy.code == 1 && busy.err.starts_with("scrfs: /tmp/scr is in use\nhint: "), "{busy}");
    user.run("mkdir ~/scr/b && echo x > ~/scr/b/f && touch ~/scr/b/.complete").must();
    user.run("pkill -KILL -u 1000 scrfs-coord").must();
    let gone = || user.run("scrfs-ctl status").must().contains("its coordinator is awaited");
    wait::until_true("word of the coordinator's end", SOON, gone);
    user.run("scrfs try --stop ~/scr").must();
    let again = user.run("scrfs try --stop ~/scr");
    assert_eq!(
        (again.code, again.err.as_str()),
        (1, "scrfs: /tmp/scr is not an scrfs mount\nhint: see what is mounted: scrfs-ctl jobs\n"),
        "{again}"
    );

    // Of one whose daemon was killed nothing stays either.
    user.run("scrfs try ~/scr && mkdir ~/scr/d && echo x > ~/scr/d/f && pkill -KILL -u 1000 scrfs").must();
    user.run("scrfs try --stop ~/scr").must();
    // Nor of one that was unmounted otherwise, or after whose death another began.
    user.run("scrfs try ~/scr && scrfs umount --force ~/scr && scrfs try --stop ~/scr").must();
    user.run("scrfs try ~/scr && pkill -KILL -u 1000 scrfs; scrfs try ~/scr && scrfs try --stop ~/scr")
        .must();
    // One that is mounted elsewhere by now is another trial.
    user.run("mkdir ~/p && scrfs try ~/p/d && mv ~/p ~/q && pkill -KILL -u 1000 scrfs-coord; mkdir -p ~/p/d")
        .must();
    let moved = user.run("scrfs try --stop ~/p/d");
    assert!(moved.code == 1 && moved.err.contains("/tmp/p/d is not an scrfs mount"), "{moved}");
    user.run("scrfs try ~/p/d && scrfs try --stop ~/p/d && scrfs try --stop ~/q/d && rm -r ~/p ~/q").must();
    // A job id that looks like an option is one all the same.
    user.run("mkdir ~/m && scrfs mount --job-id=-x ~/m && scrfs umount --purge --job-id=-x && rmdir ~/m")
        .must();
    let left = "findmnt -t fuse.scrfs; ls -d /dev/shm/*/scr.*; pgrep -u 1000 scrfs";
    assert_eq!(user.run(left).out.trim(), "");

    // In the foreground an interrupt ends it all.
    let foreground = "scrfs try --foreground ~/scr & pid=$!
        until scrfs-ctl status 2>/dev/null | grep -q 'coordinator 0 of 1'; do sleep 0.05; done
        kill -INT $pid; wait $pid";
    user.run(foreground).must();
    assert_eq!(user.run("findmnt -t fuse.scrfs; pgrep -u 1000 scrfs").out.trim(), "");

    // While it starts too, and whoever waits for it hears that there is no mount.
    let early = "scrfs try ~/early & pid=$!
        until [ -d ~/early ]; do :; done
        kill -TERM $pid; wait $pid";
    let early = user.run(early);
    assert!(early.code == 1 && early.err.contains("interrupted before it was there"), "{early}");
    let left = "findmnt -t fuse.scrfs; pgrep -u 1000 scrfs; ls -d ~/early /dev/shm/*/scr.try.*";
    assert_eq!(user.run(left).out.trim(), "");

    // What a person meets first.
    for (line, code, words) in [
        ("scrfs-ctl status", 1, "/scr is not an scrfs mount\nhint: mount it with `scrfs mount /scr`"),
        (
            "scrfs-ctl status --prefix /tmp",
            1,
            "/tmp/.scr/status: no coordinators have left a status there\nhint: ",
        ),
        (
            "PATH=/run/sim/bin scrfs-ctl status --job 77",
            1,
            "job 77: it is not mounted here, and no scheduler here knows it\nhint: ",
        ),
        ("scrfs-ctl status --job 77 --prefix /tmp", 2, "cannot be used with"),
        ("scrfs try /proc/x", 1, "cannot make /proc/x"),
        ("scrfs try /usr", 1, "not empty"),
    ] {
        let ran = user.run(line);
        assert!(ran.code == code && ran.err.contains(words), "{ran}");
    }
}

/// Neither ended nor waited for: it goes on, with its coordinator.
#[test]
fn a_trial_in_another_mount_namespace_is_another_trial() {
    let cluster = Cluster::up(1);
    let user = cluster.on(0).user(JOB_UID);
    user.run("mkdir ~/scr").must();
    // It says when it is there, and ends when its input ends.
    let inside = "set -e; scrfs try ~/scr > /dev/null; pgrep -u 1000 scrfs-coord; read never || scrfs try --stop ~/scr";
    let mut inside = cluster.on(0).limit(WATCH).sh(&format!(
        "exec unshare --mount --propagation private setpriv --reuid {JOB_UID} --regid {JOB_UID} --clear-groups \
         env HOME=/tmp sh -c '{inside}'"
    ));
    let mut inside = inside.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
    let mut coordinator = String::new();
    BufReader::new(inside.stdout.take().expect("a pipe")).read_line(&mut coordinator).expect("its words");
    let lives = || user.run("pgrep -u 1000 scrfs-coord").must() == coordinator.trim();
    assert!(lives(), "{coordinator}");
    let stopped = user.run("scrfs try --stop ~/scr");
    assert!(stopped.code == 1 && stopped.err.contains("/tmp/scr is not an scrfs mount"), "{stopped}");
    assert!(lives(), "it was ended");
    // Another one begins and ends beside it, unmounted by hand a moment before.
    user.run("scrfs try ~/scr && fusermount3 -u ~/scr && scrfs try --stop ~/scr").must();
    assert!(lives(), "it was ended");
    drop(inside.stdin.take());
    assert!(inside.wait().expect("wait").success());
    let left = user.run("findmnt -t fuse.scrfs; ls -d /dev/shm/*/scr.*; pgrep -u 1000 scrfs");
    assert_eq!(left.out.trim(), "", "{left}");
}

/// A stand-in for `squeue`: this cluster has no scheduler (the suites of `slurm` ask a real one).
fn stand_in(cluster: &Cluster, job: &str, prefix: &str) -> String {
    let directory = cluster.pfs().join("stand-in");
    fs::create_dir_all(&directory).expect("the PFS can be written");
    let path = directory.join("squeue");
    let line = ["77", "root", "RUNNING", "node[0-1]", "(null)", prefix].join("\x1f");
    let script = format!(
        "#!/bin/sh\nset -- \"$* \"\ncase $1 in *'-j {job} '*) ;; *' -j '*)\n\
         echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1;; esac\nprintf '%s\\n' '{line}'\n"
    );
    fs::write(&path, script).expect("the PFS can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod on the PFS");
    format!("PATH={PFS}/stand-in:$PATH")
}

#[test]
fn the_login_node_is_told_how_the_job_is() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "77").set("SCR_FLUSH", "2");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    let prefix = job.prefix();
    let head = |line: &str| cluster.head().run(line);
    let squeue = stand_in(&cluster, "77", &prefix);

    // A line for each change, from the mount.
    let lines = job.host_prefix().join("lines");
    let watched = format!("exec {BIN}/scrfs-ctl status --mount {SCR} --watch > {prefix}/lines");
    let mut watching = job.on(0).limit(WATCH).sh(&watched).spawn().unwrap();
    wait::until_true("the first lines", SOON, || read(&lines).contains("2 coordinators"));
    let seal = |name: &str| {
        job.on(1).run(&format!("mkdir {SCR}/{name} && head -c 3m /dev/urandom > {SCR}/{name}/f")).must();
        job.on(0).run(&format!("touch {SCR}/{name}/.complete")).must();
    };
    seal("ck.1");
    wait::until_true("the change", SOON, || read(&lines).contains("1 ck.1: protected, 3.0 MiB"));

    // The prefix has it, for who has no mount.
    let told = |what: &str| {
        let ran = head(&format!("{BIN}/scrfs-ctl status --prefix {prefix}"));
        ran.ok() && ran.out.contains(what)
    };
    wait::until_true("the status in the prefix", SOON, || told("1  ck.1 *   protected  XOR"));
    seal("ck.2");
    wait::until_true("the flush in the prefix", SOON, || told("2  ck.2 *   flushed"));
    let ran = head(&format!("{BIN}/scrfs-ctl status --prefix {prefix}"));
    assert!(
        ran.must().starts_with("as of ") && ran.out.contains(&format!("ago ({prefix}/.scr/status)")),
        "{ran}"
    );
    let list = head(&format!("{BIN}/scrfs-ctl list --prefix {prefix}"));
    assert!(list.must().starts_with("2\tflushed\t3145728\tck.2\n1\tprotected\t"), "{list}");
    let events = head(&format!("{BIN}/scrfs-ctl events --prefix {prefix} -n 100"));
    let sealed = events.must().lines().filter(|line| line.contains("ck.1: sealed")).count();
    assert_eq!(sealed, 1, "each event once: {events}");
    assert!(events.out.contains("\"host\":\"node0\""), "{events}");

    // The scheduler finds it, by id and by itself; nodes without a slurmd refuse, so they live.
    for arguments in ["--job 77", ""] {
        let ran = head(&format!("cd / && {squeue} {BIN}/scrfs-ctl status {arguments}"));
        assert!(ran.must().contains("the scheduler says of job 77 of root: RUNNING on node[0-1]"), "{ran}");
        assert!(ran.out.contains("srun --jobid 77 --overlap -N1 -n1 -w node"), "{ran}");
    }
    let unknown = head(&format!("{squeue} {BIN}/scrfs-ctl status --job 78"));
    assert!(unknown.code == 1 && unknown.err.contains("no scheduler here knows it"), "{unknown}");
    let jobs = head(&format!("{squeue} {BIN}/scrfs-ctl jobs --json"));
    let row: serde_json::Value = serde_json::from_str(jobs.must()).unwrap();
    assert_eq!(
        (&row[0]["job"], &row[0]["current"], &row[0]["mount"]),
        (&"77".into(), &"ck.2".into(), &().into())
    );
    let halt = |id: u32| head(&format!("{squeue} {BIN}/scrfs-ctl halt --job {id} --list"));
    assert_eq!(halt(77).must(), "no condition is set: the job goes on");
    let unknown = halt(78);
    assert!(unknown.code == 1 && unknown.err.contains("job 78: no scheduler here knows it"), "{unknown}");
    let here = job.on(1).run(&format!("{BIN}/scrfs-ctl jobs"));
    assert!(here.must().contains("coordinators on 2 nodes") && here.out.contains("ck.2"), "{here}");
    assert_eq!(here.out.lines().count(), 2, "{here}");

    // On a terminal there is the table.
    let screen = job.host_prefix().join("screen");
    let terminal = format!("exec script -qec '{BIN}/scrfs-ctl status --watch' /dev/null > {prefix}/screen");
    let mut terminal = job.on(0).sh(&format!("export TERM=xterm; {terminal}")).spawn().unwrap();
    let shown = || ["ck.2 *", "a restart would present"].iter().all(|text| read(&screen).contains(text));
    assert!(wait::poll(SOON, || shown().then_some(())).is_some(), "{}", read(&screen));
    let _ = terminal.kill();
    let _ = terminal.wait();

    // Coordinators that end say so; nobody writes there any more.
    run.stop();
    wait::until_true("the last word", SOON, || told("its coordinators ended"));
    assert!(!told("a restart would present"), "no node's loss costs anything now");
    let json = head(&format!("{BIN}/scrfs-ctl status --prefix {prefix} --json"));
    let status: serde_json::Value = serde_json::from_str(json.must()).unwrap();
    assert_eq!((&status["ended"], &status["datasets"][0]["name"]), (&true.into(), &"ck.2".into()));
    wait::until_true("the coordinators' end", SOON, || read(&lines).contains("no coordinator"));
    let _ = watching.kill();
    let _ = watching.wait();
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn small_programs_of_the_page() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "page").set("SCRFS_SEAL_TIMEOUT", "2s");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    let state = |dataset: &str| job.state(1, dataset);
    let page = "scrfs/docs/programs.md";

    // The shell's loop as it is printed; started again it goes on.
    let script = block(page, "### Shell");
    let shell = |steps: u32| -> Ran {
        job.on(0).run(&format!("SCRFS_MOUNT={SCR} STEPS={steps}; export SCRFS_MOUNT STEPS\n{script}"))
    };
    shell(2).must();
    assert_eq!((state("ck.1").as_str(), state("ck.2").as_str()), ("protected", "protected"));
    shell(3).must();
    assert_eq!(state("ck.3"), "protected");
    assert_eq!(job.on(1).run(&format!("cat {SCR}/ck.3/state")).must(), "state of step 3");

    // gfortran's close does not report a marker that failed; the command that touches it does.
    let fortran = program("marker_f");
    let mark = |how: &str| job.on(0).run(&format!("{fortran} {SCR}/f {how}"));
    job.on(1).run(&format!("mkdir {SCR}/f && echo x > {SCR}/f/data")).must();
    let mut writer = job.on(1).sh(&format!("exec 3<>{SCR}/f/held; exec sleep 600")).spawn().unwrap();
    job.on(1).run(&format!("until [ -e {SCR}/f/held ]; do sleep 0.05; done")).must();
    assert_eq!(mark("close").must(), "iostat 0");
    assert_eq!(state("f"), "open");
    assert_eq!(mark("touch").must(), "exitstat 1");
    let _ = writer.kill();
    let _ = writer.wait();
    wait::until_true("the writer's end", SOON, || mark("touch").out.trim() == "exitstat 0");
    assert_eq!(state("f"), "protected");
    run.stop();
}

/// What the page says of MPI-IO: with ROMIO the open of a file that ranks of two nodes share fails
/// at once; Open MPI's own does not get on; and neither spoils what is there.
#[test]
fn a_file_that_nodes_share_by_mpi_io_is_refused() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "mpiio");
    job.mount(0..2);
    let mut run = job.idle(&[0, 1]);
    let mpiio = program("mpiio");
    let good = format!("mkdir {SCR}/ck.1 && echo good > {SCR}/ck.1/f && touch {SCR}/ck.1/.complete");
    job.on(0).run(&good).must();
    job.on(0).run(&format!("mkdir {SCR}/ck.2")).must();
    let shared = |io: &str, seconds: u64, path: &str| {
        let mut command = cluster.mpirun(&[0, 1], 2).limit(Duration::from_secs(seconds)).cmd("env");
        command.arg(format!("OMPI_MCA_io={io}")).arg(&mpiio).arg(path);
        Ran::of(&mut command)
    };
    // The program is right: on the PFS both write it.
    for io in ["romio321", "ompio"] {
        let ran = shared(io, 60, &format!("{PFS}/mpiio.{io}"));
        assert!(ran.must().contains("written 1"), "{ran}");
    }
    let romio = shared("romio321", 60, &format!("{SCR}/ck.2/romio"));
    assert_eq!(romio.code, 3, "{romio}");
    assert!(romio.err.contains(": open: ") && !romio.out.contains("opened"), "{romio}");
    let ompio = shared("ompio", 10, &format!("{SCR}/ck.2/ompio"));
    assert!(!ompio.ok() && !ompio.out.contains("written"), "{ompio}");

    // A file of that name that two nodes wrote differently is no checkpoint, and the former one is
    // whole.
    for node in 0..2 {
        job.on(node).run(&format!("echo {node} > {SCR}/ck.2/both")).must();
    }
    let marker = job.on(0).run(&format!("touch {SCR}/ck.2/.complete"));
    assert!(!marker.ok(), "{marker}");
    let events = job.events(0);
    assert!(events.contains("ck.2") && events.contains("both"), "{events}");
    assert_eq!(job.state(1, "ck.2"), "open");
    assert_eq!(job.on(1).run(&format!("cat {SCR}/ck.1/f")).must(), "good");
    assert_eq!(job.state(1, "ck.1"), "protected");
    run.stop();
}
