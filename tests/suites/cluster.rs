//! The simulated cluster itself: that nodes live, die and come back as real ones do, and that
//! nothing of it stays.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use scrfs_harness::cluster::Control;
use scrfs_harness::place::State;
use scrfs_harness::place::{CACHE, JOB_UID, PFS, SCR};
use scrfs_harness::{Cluster, Config, Ran, wait};

const SOON: Duration = Duration::from_secs(20);

#[test]
fn nodes_are_apart_and_share_the_pfs() {
    let cluster = Cluster::up(2);
    for k in 0..2 {
        assert_eq!(cluster.on(k).run("hostname").must(), format!("node{k}"));
        let ran =
            cluster.on(k).run(&format!("touch /tmp/mine /dev/shm/mine {CACHE}/mine /run/mine; ls {SCR}"));
        assert_eq!(ran.must(), "");
        assert_eq!(cluster.on(k).run("ls /tmp /dev/shm /cache").must().matches("mine").count(), 3);
        let first = cluster.on(k).run("ps -e -o comm= | head -1");
        assert!(first.must().starts_with("scrfs-simnode"), "{first}");
    }
    assert_eq!(cluster.on(0).run("getent hosts node1 head | wc -l").must(), "2");
    cluster.on(0).run(&format!("echo from node0 > {PFS}/note")).must();
    assert_eq!(cluster.on(1).run(&format!("cat {PFS}/note")).must(), "from node0");
    assert_eq!(fs::read_to_string(cluster.pfs().join("note")).expect("the note"), "from node0\n");
    let full = cluster.on(0).run(&format!("df --output=size -B1M {CACHE} | tail -1"));
    assert_eq!(full.must(), "512");
    let status = cluster.on(1).run("exit 7");
    assert_eq!(status.code, 7);
}

#[test]
fn commands_run_as_the_job_user() {
    let cluster = Cluster::up(1);
    let job = cluster.on(0).job();
    assert_eq!(
        job.run("id -u; id -g; id -G; whoami").must(),
        format!("{JOB_UID}\n{JOB_UID}\n{JOB_UID}\njob")
    );
    job.run(&format!("touch {PFS}/job {CACHE}/job $HOME/job; test -r /dev/fuse -a -w /dev/fuse")).must();
    assert!(!job.run("touch /etc/job").ok());
    assert!(!job.run("kill -9 1").ok());
}

#[test]
fn a_killed_command_is_gone_inside() {
    let cluster = Cluster::up(1);
    let mut child = cluster.on(0).cmd("sleep").arg("1000").spawn().expect("a command");
    let inside = || cluster.on(0).run("pgrep -x sleep").ok();
    wait::until_true("sleep to run", SOON, inside);
    child.kill().expect("to kill it");
    child.wait().expect("its end");
    wait::until_true("sleep to be gone", SOON, || !inside());
    let late = cluster.on(0).limit(Duration::from_millis(200)).run("sleep 500");
    assert!([124, 137].contains(&late.code), "{late}");
}

#[test]
fn a_killed_node_tells_its_peers_and_one_without_power_does_not() {
    let cluster = Cluster::up(3);
    // A server on each of two nodes that says a word and then holds the connection; node0 listens
    // to both, and from the loss on, which it is told of, for so many seconds.
    let server =
        "import socket,time;s=socket.create_server(('',5000));c,_=s.accept();c.send(b'x');time.sleep(999)";
    let client = |node: usize, seconds: u64| {
        format!(
            "import socket,sys,time\nfor i in range(600):\n try: s=socket.create_connection(('node{node}',5000),1); break\n \
             except OSError: time.sleep(0.05)\ns.settimeout(30)\nprint(s.recv(1).decode(),flush=True)\n\
             sys.stdin.readline()\ns.settimeout({seconds})\n\
             try: print('end' if s.recv(1)==b'' else 'more')\nexcept TimeoutError: print('silence')\n\
             except OSError: print('reset')"
        )
    };
    let mut talks = Vec::new();
    for (k, seconds) in [(1, 30), (2, 4)] {
        let held = cluster.on(k).cmd("python3").args(["-c", server]).spawn().expect("a server");
        let mut talk = cluster.on(0).cmd("python3");
        talk.arg("-c").arg(client(k, seconds)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut talk = talk.spawn().expect("a client");
        let mut lines = BufReader::new(talk.stdout.take().expect("its output")).lines();
        assert_eq!(lines.next().expect("a line").expect("text"), "x");
        talks.push((held, talk, lines));
    }
    for k in [1, 2] {
        cluster.on(k).run(&format!("touch {CACHE}/lost /tmp/lost")).must();
    }
    cluster.kill(1);
    cluster.poweroff(2);
    for (_, talk, _) in &mut talks {
        talk.stdin.take().expect("its input").write_all(b"\n").expect("a line");
    }
    for ((mut held, mut talk, mut lines), expected) in
        talks.into_iter().zip([&["end", "reset"][..], &["silence"]])
    {
        let heard = lines.next().expect("a line").expect("text");
        assert!(expected.contains(&heard.as_str()), "heard {heard}, not {expected:?}");
        talk.wait().expect("the client's end");
        held.wait().expect("the server's end");
    }
    assert!(!cluster.is_up(1) && !cluster.is_up(2));
    assert_eq!(cluster.on(1).run("true").code, 255);

    cluster.boot(1).expect("to boot");
    cluster.boot(2).expect("to boot");
    assert!(cluster.boot(2).is_err());
    for k in [1, 2] {
        assert_eq!(
            cluster.on(k).run(&format!("ls {CACHE}; find /tmp -maxdepth 1 -name lost; hostname")).must(),
            format!("node{k}")
        );
        connect(&cluster, k).must();
    }
}

#[test]
fn cut_and_frozen_nodes_come_back() {
    let cluster = Cluster::up(2);
    let mut server = cluster.on(1).cmd("python3");
    server
        .args(["-c", "import socket\ns=socket.create_server(('',22))\nwhile 1:\n s.accept()[0].send(b'hi')"]);
    let mut server = server.spawn().expect("a server");
    wait::until_true("the server", SOON, || connect(&cluster, 1).ok());
    cluster.cut(1);
    assert!(
        cluster.list().contains("node1 10.77.0.2") && cluster.list().contains("cut"),
        "{}",
        cluster.list()
    );
    assert!(!connect(&cluster, 1).ok());
    cluster.uncut(1);
    wait::until_true("the server again", SOON, || connect(&cluster, 1).ok());
    cluster.freeze(1);
    // Each stops when it is scheduled next.
    let stopped = || cluster.on(1).run("ps -e -o stat=,comm= | grep -c ^T").out.trim() == "2";
    wait::until_true("init and the server to stop", SOON, stopped);
    cluster.thaw(1);
    wait::until_true("the server at last", SOON, || connect(&cluster, 1).ok());
    cluster.freeze(1);
    cluster.kill(1);
    server.wait().expect("its end");
}

#[test]
fn a_hung_mount_keeps_neither_a_node_nor_a_cluster_alive() {
    let cluster = Cluster::up(2);
    let traces = Traces::of(&cluster);
    // A FUSE mount whose daemon never answers, and a reader that waits for it and cannot be
    // interrupted.
    let daemon = format!(
        "import ctypes,os,time\nfd=os.open('/dev/fuse',os.O_RDWR)\nlibc=ctypes.CDLL(None,use_errno=True)\n\
         o=f'fd={{fd}},rootmode=40000,user_id=0,group_id=0'.encode()\n\
         assert libc.mount(b'hung',b'{SCR}',b'fuse.hung',0,o)==0, ctypes.get_errno()\ntime.sleep(999)"
    );
    let mut held = Vec::new();
    for k in 0..2 {
        held.push(cluster.on(k).cmd("python3").args(["-c", &daemon]).spawn().expect("a daemon"));
        wait::until_true("the mount", SOON, || cluster.on(k).run("grep -q fuse.hung /proc/mounts").ok());
        held.push(cluster.on(k).sh(&format!("ls {SCR}")).spawn().expect("a reader"));
        wait::until_true("the reader", SOON, || cluster.on(k).run("pgrep -x ls").ok());
    }
    let begun = Instant::now();
    cluster.kill(0);
    // Without the daemon's death, which is this node's, the mount would hang for 999 s.
    assert!(begun.elapsed() < Duration::from_mins(1), "{:?}", begun.elapsed());
    cluster.boot(0).expect("to boot");
    assert!(!cluster.on(0).run("grep fuse.hung /proc/mounts").ok());
    cluster.down();
    traces.must_be_gone("a hung mount");
    for mut child in held {
        child.wait().expect("its end");
    }
}

#[test]
fn a_disk_outlives_a_reboot() {
    let cluster = Cluster::start(&Config { keep_cache: true, ..Config::new(1) }).expect("a cluster");
    cluster.on(0).run(&format!("echo kept > {CACHE}/file; echo lost > /tmp/file")).must();
    cluster.kill(0);
    cluster.boot(0).expect("to boot");
    assert_eq!(
        cluster.on(0).run(&format!("cat {CACHE}/file; find /tmp -maxdepth 1 -name file")).must(),
        "kept"
    );
}

#[test]
fn mpi_runs_over_the_nodes_and_ends_when_one_dies() {
    let cluster = Cluster::up(3);
    let names = |ran: &Ran| ran.must().lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let all: BTreeSet<_> = ["node0", "node1", "node2"].map(str::to_owned).into();
    assert_eq!(names(&Ran::of(&mut cluster.mpirun(&[0, 1, 2], 3).cmd("hostname"))), all);
    let job =
        Ran::of(cluster.mpirun(&[0, 1, 2], 3).job().cmd("sh").args(["-c", "echo $(id -u)@$(hostname)"]));
    assert_eq!(names(&job), all.iter().map(|n| format!("{JOB_UID}@{n}")).collect());

    for lose in [(|c, k| c.kill(k)) as fn(&Cluster, usize), |c, k| c.poweroff(k)] {
        let mut run = cluster.mpirun(&[0, 1, 2], 3).limit(Duration::from_mins(5)).cmd("sleep");
        let mut run = run.arg("600").stderr(Stdio::null()).spawn().expect("mpirun");
        for k in 0..3 {
            wait::until_true("the ranks", SOON, || cluster.on(k).run("pgrep -x sleep").ok());
        }
        let begun = Instant::now();
        lose(&cluster, 1);
        let status = run.wait().expect("its end");
        assert!(!status.success());
        // Its own limit would have ended it in 5 minutes.
        assert!(begun.elapsed() < Duration::from_mins(2), "{:?}", begun.elapsed());
        cluster.boot(1).expect("to boot");
    }
}

#[test]
fn two_clusters_do_not_meet() {
    let (one, two) = (Cluster::up(2), Cluster::up(2));
    one.on(0).run(&format!("touch {PFS}/one")).must();
    assert_eq!(two.on(0).run(&format!("ls {PFS}")).must(), "");
    one.down();
    let ran = Ran::of(&mut two.mpirun(&[0, 1], 2).cmd("hostname"));
    assert_eq!(ran.must().lines().count(), 2);
}

#[test]
fn nothing_is_left_of_a_cluster() {
    let cluster = Cluster::up(2);
    let traces = Traces::of(&cluster);
    let mut busy = cluster.on(0).sh("trap '' TERM; sleep 1000 & wait").spawn().expect("a command");
    wait::until_true("sleep to run", SOON, || cluster.on(0).run("pgrep -x sleep").ok());
    cluster.down();
    traces.must_be_gone("dropping");
    assert!(!busy.wait().expect("its end").success());

    let cluster = Cluster::up(1);
    let traces = Traces::of(&cluster);
    let panicked = std::thread::spawn(move || {
        let _held = cluster;
        panic!("on purpose, to see that the cluster goes");
    });
    assert!(panicked.join().is_err());
    traces.must_be_gone("a panic");
}

#[test]
fn nothing_is_left_when_the_harness_is_interrupted_or_killed() {
    for signal in ["INT", "TERM", "HUP", "KILL"] {
        let (mut harness, control) = foreign(2);
        let traces = Traces::of(&control);
        let mut launcher = control.mpirun(&[0, 1], 2).job().cmd("sleep");
        let mut launcher = launcher.arg("1000").stderr(Stdio::null()).spawn().expect("mpirun");
        wait::until_true("the ranks", SOON, || control.on(1).run("pgrep -x sleep").ok());
        let pid = harness.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().expect("kill").success());
        assert!(!harness.wait().expect("its end").success());
        traces.must_be_gone(signal);
        launcher.wait().expect("its end");
    }
}

/// A cluster that another process holds.
fn foreign(nodes: usize) -> (Child, Control) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scrfs-simcluster"));
    let mut child = command
        .args(["up", &nodes.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a harness of its own");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("its directory");
    (child, Control::of(State::at(line.trim())))
}

/// The namespaces by which a process of a cluster is known. A mount namespace that is held open
/// would keep the mounts; whichever process is in one is in the network namespace of its place too.
const KINDS: [&str; 2] = ["pid", "net"];

/// What a cluster consists of on the host.
struct Traces {
    dir: PathBuf,
    /// PID and network namespaces of the head and the nodes.
    namespaces: BTreeSet<PathBuf>,
    /// The same, held open: the kernel gives the number of a namespace that is gone to the next
    /// one, which may be another test's.
    _held: Vec<fs::File>,
}

impl Traces {
    fn of(cluster: &Control) -> Self {
        let (mut namespaces, mut held) = (BTreeSet::new(), Vec::new());
        for entry in fs::read_dir(cluster.state().dir().join("nodes")).expect("the records").flatten() {
            let record = fs::read_to_string(entry.path()).expect("a record");
            let pid = record.split(' ').next().expect("a pid");
            for kind in KINDS {
                let path = format!("/proc/{pid}/ns/{kind}");
                held.push(fs::File::open(&path).expect("a namespace"));
                namespaces.insert(fs::read_link(path).expect("a namespace"));
            }
        }
        assert!(namespaces.len() >= 4, "{namespaces:?}");
        Self { dir: cluster.state().dir().to_owned(), namespaces, _held: held }
    }

    #[track_caller]
    fn must_be_gone(&self, after: &str) {
        wait::until_true(&format!("the end of {} after {after}", self.dir.display()), SOON, || {
            let held = fs::read_dir("/proc").expect("/proc").flatten().any(|process| {
                KINDS.iter().any(|kind| {
                    let link = fs::read_link(process.path().join("ns").join(kind));
                    link.is_ok_and(|ns| self.namespaces.contains(&ns))
                })
            });
            !self.dir.exists() && !held
        });
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
        assert!(!mounts.contains(&*self.dir.to_string_lossy()), "{mounts}");
    }
}

/// Connects from node0 to a node's port 22; a refusal counts as an answer, too.
fn connect(cluster: &Cluster, node: usize) -> Ran {
    let line = format!(
        "import socket,sys\ns=socket.socket(); s.settimeout(1)\n\
         try: s.connect(('node{node}',22))\nexcept ConnectionRefusedError: pass\nelse: s.recv(1)"
    );
    Ran::of(cluster.on(0).cmd("python3").args(["-c", &line]))
}
