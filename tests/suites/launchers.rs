//! How `scrfs-run` starts programs, and what it does about nodes that hang.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use scrfs_harness::job::{Job, SOON};
use scrfs_harness::mpirun::site_environment;
use scrfs_harness::place::{BIN, PFS, SCR};
use scrfs_harness::programs::program;
use scrfs_harness::shell::Ran;
use scrfs_harness::{Cluster, wait};

const LIMIT: Duration = Duration::from_secs(150);

/// Runs it with this input.
fn with_input(mut command: Command, input: Option<&[u8]>) -> Ran {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("scrfs-run starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    if let Some(input) = input {
        pipe.write_all(input).expect("it reads");
    }
    drop(pipe);
    let output = child.wait_with_output().expect("its end");
    Ran::from_output("scrfs-run".to_owned(), &output)
}

#[test]
fn each_launcher_gives_the_program_its_place_and_the_same_input_again() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "place");
    job.mount(0..2);
    let desk = job.prefix();
    // The first run ends badly after it has read its input, the second well.
    let line = format!(
        "test ${{OMPI_COMM_WORLD_RANK:-$SCRFS_NODE_RANK}} = 0 || exec cat
         cat > {desk}/in.$SCRFS_RUN
         echo \"$SCRFS_RUN $SCRFS_MOUNT $SCRFS_HOSTS [$SCRFS_CURRENT] ${{SCRFS_NODE_RANK:-mpi}} ${{PMIX_RANK:-none}}\" \
              > {desk}/place.$SCRFS_RUN
         test $SCRFS_RUN = 2"
    );
    let program = ["/bin/sh", "-c", line.as_str()];
    let input = b"first line\nsecond line without end".repeat(3000);
    let written = |name: &str| fs::read(job.host_prefix().join(name)).unwrap_or_default();
    let text = |name: &str| String::from_utf8(written(name)).unwrap_or_default();
    stand_ins(&cluster);
    for (launcher, place) in [
        ("mpirun", "/scr node0,node1 [] mpi 0"),
        ("pernode", "/scr node0,node1 [] 0 none"),
        ("pbs", "/scr node0,node1 [] mpi 0"),
        ("flux", "/scr node0,node1 [] mpi 0"),
    ] {
        let job = Job::new(&cluster, "place").option("--launcher").option(launcher);
        let ran = with_input(job.run_command(&[0, 1], 2, 1, &program), Some(&input));
        assert!(ran.ok(), "{launcher}: {ran}");
        for run in ["1", "2"] {
            assert!(written(&format!("in.{run}")) == input, "{launcher} {run}: {ran}");
            assert_eq!(text(&format!("place.{run}")), format!("{run} {place}\n"), "{launcher}: {ran}");
        }
        fs::remove_file(job.host_prefix().join("in.1")).unwrap();
        fs::remove_file(job.host_prefix().join("in.2")).unwrap();
    }

    // A file, from where it stands; without a launcher, on the node itself.
    fs::write(job.host_prefix().join("input"), b"skipped\nread\n").unwrap();
    let prefix = job.prefix();
    let script = format!(
        "{{ read line; SCR_JOB_ID=place /run/sim/bin/scrfs-run --launcher none --hosts node0 --prefix {prefix} -- \
         /bin/sh -c 'cat > {prefix}/in.$SCRFS_RUN; test $SCRFS_RUN = 2'; }} < {prefix}/input"
    );
    let ran = job.on(0).limit(LIMIT).run(&script);
    assert!(ran.ok(), "{ran}");
    assert_eq!((text("in.1").as_str(), text("in.2").as_str()), ("read\n", "read\n"), "{ran}");

    // What a batch script has started goes on when the script becomes scrfs-run, also through a
    // relaunch.
    let script = format!(
        "exec > >(cat > {prefix}/log); sleep 600 > /dev/null 2>&1 & echo $! > {prefix}/pid; \
         exec env SCR_JOB_ID=place /run/sim/bin/scrfs-run --launcher none --hosts node0 --prefix {prefix} -- \
         /bin/sh -c 'kill -0 $(cat {prefix}/pid) && echo run $SCRFS_RUN; test $SCRFS_RUN = 2'"
    );
    let ran = Ran::of(job.on(0).limit(LIMIT).cmd("bash").args(["-c", &script]));
    assert!(ran.ok(), "{ran}");
    job.on(0).run(&format!("kill $(cat {prefix}/pid)")).must();
    wait::until_true("both lines", SOON, || text("log") == "run 1\nrun 2\n");

    launch_errors(&cluster);
}

/// Stand-ins for commands of schedulers that this machine has not: what scrfs-run gives them comes
/// to real processes on the nodes, and that is all that they show.
fn stand_ins(cluster: &Cluster) {
    let agent = site_environment().into_iter().find(|(name, _)| name == "OMPI_MCA_plm_rsh_agent");
    let agent = agent.expect("the cluster has one").1;
    let flux = "\
        test \"$1\" = run && shift || exit 2\n\
        while :; do\n\
            case $1 in\n\
                --requires=hosts:*) hosts=${1#--requires=hosts:} ;;\n\
                --nodes=*) nodes=${1#*=} ;;\n\
                --tasks-per-node=*) tasks=${1#*=} ;;\n\
                -o) shift ;;\n\
                *) break ;;\n\
            esac\n\
            shift\n\
        done\n\
        list=$(echo \"$hosts\" | sed \"s/,/:$tasks,/g; s/\\$/:$tasks/\")\n\
        exec mpirun --oversubscribe --bind-to none --host $list -np $((nodes * tasks)) --map-by ppr:$tasks:node \\\n\
            $(env | sed -n 's/^\\(SCRFS_[A-Z_]*\\|SCR_[A-Z_]*\\)=.*/-x \\1/p') \"$@\"";
    for (name, script) in [("flux", flux), ("pbs_tmrsh", &format!("exec {agent} \"$@\""))] {
        let path = cluster.pfs().join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("the PFS can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
        for place in [cluster.head(), cluster.on(0), cluster.on(1)] {
            let bin = "/usr/local/bin";
            place
                .run(&format!(
                    "test -e {bin}/flux || mount -t tmpfs none {bin}; cp {PFS}/{name} {bin} && ls {bin}"
                ))
                .must();
        }
    }
}

fn launch_errors(cluster: &Cluster) {
    let job = Job::new(cluster, "place");
    let odd = format!("{}/odd", job.prefix());
    let path = job.host_prefix().join("odd");
    fs::write(&path, "no program\n").expect("the PFS can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    for (launcher, program, words) in [
        ("mpirun", "no-such-program", "there is no program no-such-program on node"),
        ("mpirun", "/etc/passwd", "/etc/passwd cannot be run on node"),
        ("mpirun", &odd, "Exec format error"),
        ("pernode", "/no/such/program", "the program cannot be run: /no/such/program: not found"),
    ] {
        let job = job.clone().option("--launcher").option(launcher);
        let ran = Ran::of(&mut job.run_command(&[0, 1], 2, 1, &[program]));
        assert_eq!(ran.code, 1, "{ran}");
        assert!(ran.err.contains("the program was not started: ") && ran.err.contains(words), "{ran}");
        assert!(
            ran.err.contains("\nhint: ")
                && !ran.err.contains("run 2 on")
                && (launcher == "pernode" || !ran.err.contains("-----")),
            "{ran}"
        );
    }
    // A program that complains as a launcher does is a program that has failed: what it says goes
    // on, and it is run again.
    let argparse = "echo 'train.py: error: unrecognized arguments: --lr' >&2; test $SCRFS_RUN = 2";
    let ran = Ran::of(&mut job.run_command(&[0, 1], 2, 1, &["/bin/sh", "-c", argparse]));
    assert!(ran.ok() && ran.err.contains("run 2 on"), "{ran}");
    assert!(
        ran.err.contains("unrecognized arguments: --lr") && !ran.err.contains("was not started"),
        "{ran}"
    );
    let ran =
        Ran::of(&mut job.clone().set("OMPI_COMM_WORLD_SIZE", "2").run_command(&[0], 1, 1, &["/bin/true"]));
    assert_eq!(ran.code, 2, "{ran}");
    assert!(ran.err.contains("scrfs-run is one of 2 tasks of mpirun"), "{ran}");
    for (option, value, code, words) in [
        ("--launcher-program", "/no/such/launcher", 1, "there is no /no/such/launcher"),
        ("--launcher", "srun", 2, "srun is for a job script of Slurm"),
        ("--launcher", "none", 2, "this host alone, and the list has others"),
        ("--launcher-program", "no-such-launcher", 1, "there is no no-such-launcher in PATH"),
    ] {
        let job = Job::new(cluster, "place").option(option).option(value);
        let ran = Ran::of(&mut job.run_command(&[0, 1], 2, 1, &["/bin/true"]));
        assert_eq!(ran.code, code, "{ran}");
        assert!(ran.err.contains(words) && ran.err.contains("hint: "), "{ran}");
    }
}

/// What a halt sends reaches every rank through mpirun, and a program that saves itself then does
/// not count as done.
#[test]
fn the_signal_of_a_halt_reaches_every_rank() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "usr1").set("SCRFS_HALT_SIGNAL", "USR1").set("SCRFS_HALT_GRACE", "8");
    job.mount(0..2);
    let desk = job.prefix();
    let line = format!(
        "trap 'echo saved > {desk}/usr1.$OMPI_COMM_WORLD_RANK; exit 0' USR1
         : > {desk}/ready.$OMPI_COMM_WORLD_RANK
         while :; do sleep 0.2; done"
    );
    let mut run = job.start(&[0, 1], 2, 2, &["/bin/sh", "-c", &line]);
    let has = |name: &str| job.host_prefix().join(name).exists();
    wait::until_true("four ranks", SOON, || (0..4).all(|rank| has(&format!("ready.{rank}"))));
    cluster.head().run(&format!("{BIN}/scrfs-ctl halt --prefix {desk} --immediate")).must();
    assert_eq!(run.wait(LIMIT), 75, "{}", run.output());
    assert!((0..4).all(|rank| has(&format!("usr1.{rank}"))), "{}", run.output());
    assert!(run.output().contains("sending it signal 10"), "{}", run.output());

    for (signal, why) in [("KILL", "it would end the launcher alone"), ("INT", "srun does no more than")] {
        let job = Job::new(&cluster, "usr1").set("SCRFS_HALT_SIGNAL", signal);
        let ran = Ran::of(&mut job.run_command(&[0], 1, 1, &["/bin/true"]));
        assert!(ran.code == 2 && ran.err.contains(why) && ran.err.contains("hint: "), "{ran}");
    }
}

/// Coordinators that have not come up do not watch one another, and mpirun waits for the daemon of
/// a frozen node for ever.
#[test]
fn a_node_that_hangs_while_coordinators_are_launched_is_found() {
    let said = lost_at_the_launch("launch", "scrfs-coordinator", |cluster, _| cluster.freeze(1));
    assert!(said.contains("recovery waits for a node that is gone"), "{said}");
}

/// It answers no connection. The remote shell waits for one for minutes, as ssh does.
#[test]
fn a_node_that_loses_power_while_coordinators_are_launched_is_found() {
    let said = lost_at_the_launch("power", "scrfs-coordinator", lose_power);
    assert!(said.contains("recovery waits for a node that is gone"), "{said}");
}

/// The same of a node that has just answered a connection, and is asked how it is.
#[test]
fn a_node_that_loses_power_while_it_is_looked_at_is_found() {
    let said = lost_at_the_launch("look", "scrfs-ctl", lose_power);
    assert!(said.contains("node1 is left out from now on: no answer in 3 s"), "{said}");
}

fn lose_power(cluster: &Cluster, desk: &Path) {
    cluster.poweroff(1);
    fs::write(desk.join("off"), b"").expect("the PFS can be written");
}

/// `lose` is what happens to node 1 when `program` is about to be launched first. Where that makes a
/// file `off`, the remote shell waits. What scrfs-run said.
fn lost_at_the_launch(name: &str, program: &str, lose: fn(&Cluster, &Path)) -> String {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, name);
    job.mount(0..4);
    let (prefix, desk) = (job.prefix(), job.host_prefix());
    let write = |name: &str, script: &str| {
        let path = desk.join(name);
        fs::write(&path, format!("#!/bin/sh\ncd {prefix}\n{script}\n")).expect("the PFS can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
        format!("{prefix}/{name}")
    };
    let mpirun = write(
        "mpirun.gate",
        &format!(
            "case \" $* \" in *{program}*) test -e gate || {{ : > gate
             while test ! -e go; do sleep 0.1; done; }} ;; esac\nexec mpirun \"$@\""
        ),
    );
    let rsh = write(
        "rsh",
        "case \" $* \" in *' node1 '*) test ! -e off || exec sleep 100 ;; esac\nexec scrfs-simnode rsh \"$@\"",
    );
    let job = job.option(&format!("--launcher-program={mpirun}")).option("--launcher=mpirun");
    let job = job.set("OMPI_MCA_plm_rsh_agent", &rsh);
    let mut run = job.start(&[0, 1, 2, 3], 3, 1, &["/bin/true"]);
    wait::until_true("the launch", SOON, || desk.join("gate").exists());
    lose(&cluster, &desk);
    fs::write(desk.join("go"), b"").expect("the PFS can be written");
    let code = run.wait(LIMIT);
    let said = run.output();
    assert_eq!(code, 0, "{said}");
    // A node that hangs may be asked still, and say which process does not go on.
    let told = ["no answer", "the daemon of /run/scrfs/root/scr.launch is stopped: its worker, process "];
    let is_named = |why: &&str| said.contains(&format!("node1 is left out from now on: {why}"));
    assert!(told.iter().any(is_named), "{said}");
    assert!(said.contains("run 1 on node0 node2 node3"), "{said}");
    said
}

/// Its network answers, its processes do not; no launcher notices.
#[test]
fn a_node_that_hangs_is_named_and_left_out() {
    hangs("hangs", |cluster| cluster.freeze(1));
}

/// The coordinator lives, and so does the program; what they ask of the daemon is not answered.
#[test]
fn a_node_whose_daemon_hangs_is_named_and_left_out() {
    hangs("stopped", |cluster| {
        cluster.on(1).run("kill -STOP $(pgrep -f '[s]crfs worker')").must();
    });
}

/// What the program says fills a pipe that nobody empties: signals are heard all the same.
#[test]
fn who_does_not_read_is_not_waited_for() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "unread").option("--launcher").option("mpirun");
    job.mount(0..2);
    let line = "yes | head -c 1000000 >&2 & exec sleep 600";
    let mut command = job.run_command(&[0, 1], 2, 1, &["/bin/sh", "-c", line]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("scrfs-run starts");
    let pipe = child.stderr.take().expect("a pipe");
    let is_full = || rustix::io::ioctl_fionread(&pipe).expect("its bytes") > 60_000;
    wait::until_true("a full pipe", SOON, is_full);
    cluster.head().run("pkill -TERM -x scrfs-run").must();
    let mut ended = None;
    wait::until_true("its end", SOON, || {
        ended = child.try_wait().expect("a child");
        ended.is_some()
    });
    assert_eq!(ended.expect("its end").code(), Some(143));
}

/// A pipe that is full from the beginning: the job ends with its program's exit code, and as soon.
#[test]
fn a_job_whose_words_nobody_reads_is_saved_and_ends() {
    let cluster = Cluster::up(2);
    let job =
        Job::new(&cluster, "unheard").option("--launcher").option("mpirun").set("SCRFS_END_GRACE", "60");
    job.mount(0..2);
    let (pipe, full) = std::io::pipe().expect("a pipe");
    let flags = rustix::fs::fcntl_getfl(&full).expect("its flags");
    rustix::fs::fcntl_setfl(&full, flags | rustix::fs::OFlags::NONBLOCK).expect("its flags");
    while rustix::io::write(&full, &[b'x'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&full, flags).expect("its flags");
    let mut command =
        job.run_command(&[0, 1], 2, 1, &[program("ckpt").as_str(), "/scr", &job.log_path(), "2"]);
    let mut child = command.stdout(Stdio::null()).stderr(full).spawn().expect("scrfs-run starts");
    let mut ended = None;
    wait::until_true("its end", LIMIT, || {
        ended = child.try_wait().expect("a child");
        ended.is_some()
    });
    assert_eq!(ended.expect("its end").code(), Some(0));
    assert_eq!(job.sealed(), [1, 2]);
    drop(pipe);
}

/// By whomever: that is not the end of the job.
#[test]
fn coordinators_that_are_ended_before_they_are_ready_are_started_again() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "early");
    job.mount(0..2);
    job.arm_daemon("present.begun=wait");
    let mut run = job.start(&[0, 1], 2, 1, &[program("ckpt").as_str(), "/scr", &job.log_path(), "1"]);
    wait::until_true("a restart", SOON, || job.fired());
    cluster.on(0).run("pkill -TERM -f '[s]crfs-coordinator --restart'").must();
    let broken_off = || run.output().contains("recovery was broken off (exit code 75): once more");
    wait::until_true("their end", SOON, broken_off);
    // The daemon waits no longer.
    job.arm_daemon("present.begun=wait@1000");
    assert_eq!(run.wait(LIMIT), 0, "{}", run.output());
    assert_eq!(job.sealed(), [1]);
}

/// The program is done, and the mpirun that has started it does not end: it is ended, and the
/// program started again.
#[test]
fn a_launcher_that_hangs_after_its_program_is_ended() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "undying").set("SCRFS_LAUNCHER_TIMEOUT", "4s");
    job.mount(0..2);
    // No MPI program: one would wait for its mpirun before it ends.
    let program = format!(
        "echo run $SCRFS_RUN of $OMPI_COMM_WORLD_RANK >> {}; until test -e {}; do sleep 0.1; done",
        job.log_path(),
        job.hold_at(0)[0].trim_start_matches("hold=")
    );
    let mut run = job.start(&[0, 1], 2, 1, &["/bin/sh", "-c", &program]);
    run.await_line(&job, "run 1 of 0", SOON);
    run.await_line(&job, "run 1 of 1", SOON);
    // It lives for longer than the timeout, and is left alone.
    std::thread::sleep(Duration::from_secs(6));
    cluster.head().run("kill -STOP $(pgrep -f '[m]pirun.* /bin/sh -c')").must();
    job.let_go();
    let code = run.wait(LIMIT);
    let said = run.output();
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("no process of the program is left on any node, and its launcher does not end"),
        "{said}"
    );
    assert!(said.contains("run 2 on node0 node1"), "{said}");
    assert_eq!(job.log().iter().filter(|line| line.starts_with("run 2 of ")).count(), 2, "{said}");
}

/// All its ranks live, and wait.
#[test]
fn a_program_that_gets_nowhere_is_started_again() {
    let cluster = Cluster::up(2);
    // Long enough for a start of the program on a busy machine.
    let job = Job::new(&cluster, "nowhere").set("SCR_WATCHDOG_TIMEOUT", "12");
    job.mount(0..2);
    let (program, [hold, at]) = (program("ckpt"), job.hold_at(2));
    let mut run =
        job.start(&[0, 1], 2, 1, &[program.as_str(), "/scr", &job.log_path(), "9", "pause=2000", &hold, &at]);
    let code = run.wait(LIMIT);
    let said = run.output();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("no dataset has become complete for 12 s: ending the program"), "{said}");
    // The second run took longer than that from its start to its end.
    assert_eq!(said.matches("no dataset has become complete").count(), 1, "{said}");
    assert!(job.log().iter().any(|line| line == "start after 2"), "{said}");
    assert_eq!(job.sealed(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

/// `hang` is what happens to node 1 in the middle of a checkpoint.
fn hangs(name: &str, hang: fn(&Cluster)) {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, name).set("SCRFS_NODE_TIMEOUT", "8s");
    job.mount(0..4);
    let (program, [hold, at]) = (program("ckpt"), job.hold_at(5));
    let arguments = [program.as_str(), "/scr", &job.log_path(), "10", "pause=200", &hold, &at];
    let mut run = job.start(&[0, 1, 2, 3], 3, 1, &arguments);
    run.await_line(&job, "sealed 3", SOON);
    hang(&cluster);
    job.let_go();
    let code = run.wait(LIMIT);
    let said = run.output();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("node1 does not respond any more, though its network does"), "{said}");
    assert!(said.contains("run 2 on node0 node2 node3"), "{said}");
    assert_eq!(job.sealed().last(), Some(&10));
}

/// Whatever it is called and whatever it starts; and while it has not begun, whoever else lives on
/// its nodes.
#[test]
fn a_program_that_lives_is_not_taken_for_one_that_has_ended() {
    let cluster = Cluster::up(2);
    let job = Job::new(&cluster, "alive").set("SCRFS_LAUNCHER_TIMEOUT", "4s");
    job.mount(0..2);
    let write = |name: &str, script: &str| {
        let path = job.host_prefix().join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("the PFS can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
        format!("{}/{name}", job.prefix())
    };
    let say = format!("echo run $SCRFS_RUN >> {}", job.log_path());
    // Its name is one of ours; what it starts is called as a launcher's daemon is.
    let orted = format!("{}/orted", job.prefix());
    let program = write(
        "scrfs-sim",
        &format!(
            "{say}\nscrfs-ctl status --watch --mount {SCR} > /dev/null 2>&1 &\nsleep 8\ncp /bin/sleep {orted}.$(hostname)\n\
             mv {orted}.$(hostname) {orted}\n{orted} 16; kill $!"
        ),
    );
    let ran = Ran::of(&mut job.run_command(&[0, 1], 2, 1, &[&program]));
    assert!(ran.ok() && !ran.err.contains("its launcher does not end"), "{ran}");
    // A launcher that waits before it begins, and a process of the user that ends meanwhile.
    let waits = write("waits", "case \"$*\" in *scrfs-c*) ;; *) sleep 18 ;; esac; exec mpirun \"$@\"");
    let slow = job.clone().option("--launcher-program").option(&waits);
    cluster.on(1).run("sleep 12 > /dev/null 2>&1 &").must();
    let ran = Ran::of(&mut slow.run_command(&[0, 1], 2, 1, &["/bin/sh", "-c", &say]));
    assert!(ran.ok() && !ran.err.contains("its launcher does not end"), "{ran}");
    assert_eq!(job.log(), ["run 1"; 4]);
}
