//! How `scrfs-run` starts programs, and what it does about nodes that hang.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use scrfs_harness::Cluster;
use scrfs_harness::job::{Job, SOON};
use scrfs_harness::programs::program;
use scrfs_harness::shell::Ran;

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
    for (launcher, place) in
        [("mpirun", "/scr node0,node1 [] mpi 0"), ("pernode", "/scr node0,node1 [] 0 none")]
    {
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

    launch_errors(&cluster);
}

fn launch_errors(cluster: &Cluster) {
    let job = Job::new(cluster, "place");
    for (program, words) in [
        ("no-such-program", "the program was not started: there is no program no-such-program on node"),
        ("/etc/passwd", "the program was not started: /etc/passwd cannot be run on node"),
    ] {
        let ran = Ran::of(&mut job.run_command(&[0, 1], 2, 1, &[program]));
        assert_eq!(ran.code, 1, "{ran}");
        assert!(ran.err.contains(words) && ran.err.contains("\nhint: "), "{ran}");
        assert!(!ran.err.contains("run 2 on") && !ran.err.contains("-----"), "{ran}");
    }
    for (option, value, code, words) in [
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

/// Its network answers, its processes do not; no launcher notices.
#[test]
fn a_node_that_hangs_is_named_and_left_out() {
    let cluster = Cluster::up(4);
    let job = Job::new(&cluster, "hangs").set("SCRFS_NODE_TIMEOUT", "8s");
    job.mount(0..4);
    let program = program("ckpt");
    let arguments = [program.as_str(), "/scr", &job.log_path(), "10", "pause=200"];
    let mut run = job.start(&[0, 1, 2, 3], 3, 1, &arguments);
    run.await_line(&job, "sealed 3", SOON);
    cluster.freeze(1);
    let code = run.wait(LIMIT);
    let said = run.output();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("node1 does not respond any more, though its network does"), "{said}");
    assert!(said.contains("run 2 on node0 node2 node3"), "{said}");
    assert_eq!(job.sealed().last(), Some(&10));
}
