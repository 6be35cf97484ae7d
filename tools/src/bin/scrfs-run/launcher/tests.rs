//! Drivers against what real launchers are given and say.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

use super::mpirun::{FENCE, KEEPALIVE, Mpirun, SERVICE};
use super::srun::Srun;
use super::*;
use crate::supervise::Start;

fn extra() -> Vec<OsString> {
    vec!["--bind-to".into(), "core".into()]
}

fn mpirun() -> Mpirun {
    Mpirun { program: "mpirun".into(), extra: extra(), reach: &[] }
}

fn srun() -> Srun {
    Srun { program: "srun".into(), extra: extra() }
}

fn lines(launcher: Arc<dyn Launcher>) -> Lines {
    let environment = [
        ("PATH", "/bin"),
        ("SCR_PREFIX", "/pfs/a b;c"),
        ("SCRATCH", "/tmp"),
        ("OMPI_MCA_btl", "self"),
        ("OMPI_MCA_plm_rsh_agent", "my rsh"),
        ("OMPI_MCA_orte_tmpdir_base", "/tmp/own"),
        ("OMPI_MCA_orte_launch_agent", "own orted"),
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("PMIX_RANK", "3"),
        ("SLURM_CPUS_PER_TASK", "8"),
        ("SLURM_JOB_ID", "7"),
    ];
    Lines {
        service: Arc::clone(&launcher),
        launcher,
        environment: environment.into_iter().map(|(n, v)| (n.into(), v.into())).collect(),
        user_file: [("SCR_FLUSH".into(), "3".into())].into(),
    }
}

fn words(line: &CommandLine) -> String {
    let words: Vec<_> = line.arguments.iter().map(|a| a.to_string_lossy().into_owned()).collect();
    words.join(" ").replace(&KEEPALIVE.join(" "), "KEEPALIVE").replace(&SERVICE.join(" "), "SERVICE")
}

fn names(line: &CommandLine) -> Vec<String> {
    line.environment.keys().map(|n| n.to_string_lossy().into_owned()).collect()
}

fn hosts() -> Vec<String> {
    vec!["n1".to_owned(), "n2".to_owned()]
}

fn program(launcher: Arc<dyn Launcher>) -> CommandLine {
    let command = ["lmp".into(), "-in".into(), "x y".into()];
    lines(launcher).program(&hosts(), 3, &command, &[("SCRFS_CURRENT", "".into())])
}

fn coordinators(launcher: Arc<dyn Launcher>) -> CommandLine {
    let set = [("SCRFS_RUN_TOKEN", "t1".into())];
    lines(launcher).coordinators(
        (&hosts(), &hosts()),
        "/opt/scrfs-coordinator".as_ref(),
        Start::Attach,
        "/scr".as_ref(),
        &Restart { not_before: 7, name: "left".to_owned() },
        &set,
    )
}

const COORDINATOR: &str =
    "/opt/scrfs-coordinator --attach --mount /scr --program-hosts n1,n2 --not-before 7 --name left";

#[test]
fn the_program_gets_the_users_environment_and_arguments() {
    let line = program(Arc::new(mpirun()));
    assert_eq!(
        words(&line),
        "--host n1:3,n2:3 -np 6 --map-by ppr:3:node KEEPALIVE -x SCRFS_CURRENT -x SCR_PREFIX --bind-to core lmp -in x y"
    );
    assert_eq!(line.environment[OsStr::new("OMPI_MCA_btl")], "self");
    assert_eq!(line.environment[OsStr::new("SCRFS_CURRENT")], "");
    assert_eq!(line.environment[OsStr::new("SLURM_OVERLAP")], "1");
    assert_eq!(line.directory, None);

    let line = program(Arc::new(srun()));
    assert_eq!(
        words(&line),
        "--mpi=pmix --overlap --no-kill=off --kill-on-bad-exit=1 --export=ALL --nodes=2 --nodelist=n1,n2 --ntasks=6 \
         --ntasks-per-node=3 --input=0 --cpus-per-task=8 --bind-to core lmp -in x y"
    );
    assert_eq!(line.environment[OsStr::new("SLURM_CPUS_PER_TASK")], "8");
    assert_eq!(line.environment[OsStr::new("OMPI_MCA_btl")], "self");
}

/// The kernel refuses an argument of more than 128 KiB.
#[test]
fn ten_thousand_hosts_are_no_argument_that_is_too_long() {
    // Spares have taken the places of some.
    let number = |at: u32| if at.is_multiple_of(100) { 10_000 + at } else { at };
    let host = |at: u32| format!("a-long-cluster-name-{}.site.example", number(at));
    let hosts: Vec<_> = (0..10_000).map(host).collect();
    let launchers: [Arc<dyn Launcher>; 3] = [
        Arc::new(mpirun()),
        Arc::new(srun()),
        Arc::new(flux::Flux { program: "flux".into(), extra: extra() }),
    ];
    for launcher in launchers {
        let name = launcher.name();
        let lines = lines(launcher);
        let line = lines.program(&hosts, 2, &["lmp".into()], &[]);
        let longest = line.arguments.iter().map(|argument| argument.len()).max();
        assert!(longest < Some(128 << 10), "{name}: {longest:?}");
    }
    let line = lines(Arc::new(mpirun())).program(&hosts, 2, &["lmp".into()], &[]);
    let named = line.arguments.windows(2).filter(|pair| pair[0] == "--host");
    let named = named.map(|pair| pair[1].to_string_lossy().into_owned()).collect::<Vec<_>>().join(",");
    let wanted: Vec<_> = hosts.iter().map(|host| format!("{host}:2")).collect();
    assert!(named == wanted.join(","), "in their order");
}

#[test]
fn signals_that_srun_does_not_pass_on_are_sent_by_slurm_to_the_step() {
    let pernode = pernode::PerNode { by: Box::new(srun()) };
    let launchers: [Arc<dyn Launcher>; 2] = [Arc::new(srun()), Arc::new(pernode)];
    for lines in launchers.map(lines) {
        let line = lines.signal(Signal::SIGTERM, 42).expect("a command");
        assert!(words(&line).ends_with(" scrfs-signal 42 TERM"), "{}", words(&line));
        assert_eq!(line.environment[OsStr::new("SLURM_JOB_ID")], "7");
        assert_eq!(lines.signal(Signal::SIGUSR1, 42), None);
    }
    assert_eq!(mpirun().signal(Signal::SIGTERM, 42), None);
}

#[test]
fn ranks_with_several_cpus_are_not_bound_to_one() {
    // The allocation gives eight to each task; and the user may say where they run.
    let plain = words(&program(Arc::new(Mpirun { extra: Vec::new(), ..mpirun() })));
    assert!(plain.contains(" -x SCR_PREFIX --bind-to none lmp "), "{plain}");
    for own in [["--bind-to", "core"], ["--map-by", "ppr:3:node:PE=8"]] {
        let own = words(&program(Arc::new(Mpirun { extra: own.map(OsString::from).to_vec(), ..mpirun() })));
        assert!(!own.contains("--bind-to none"), "{own}");
    }
    // srun is told, unless the user tells it; one process for each node starts others, and has all
    // of them.
    let srun = || Srun { extra: Vec::new(), ..srun() };
    let mut lines = lines(Arc::new(srun()));
    let said = |lines: &Lines| words(&lines.program(&hosts(), 3, &["lmp".into()], &[]));
    assert!(said(&lines).contains(" --cpus-per-task=8 lmp"), "{}", said(&lines));
    lines.environment.insert("SRUN_CPUS_PER_TASK".into(), "2".into());
    assert!(!said(&lines).contains("--cpus-per-task"), "{}", said(&lines));
    let said = words(&program(Arc::new(pernode::PerNode { by: Box::new(srun()) })));
    assert!(!said.contains("--cpus-per-task"), "{said}");
}

#[test]
fn coordinators_get_a_clean_one() {
    let line = coordinators(Arc::new(mpirun()));
    assert_eq!(
        words(&line),
        format!(
            "--host n1:1,n2:1 -np 2 --map-by ppr:1:node SERVICE KEEPALIVE -x SCRFS_RUN_TOKEN -x SCR_CONF_FILE \
             -x SCR_FLUSH -x SCR_PREFIX {COORDINATOR}"
        )
    );
    let kept = [
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_MCA_orte_launch_agent",
        "OMPI_MCA_orte_tmpdir_base",
        "OMPI_MCA_plm_rsh_agent",
        "PATH",
        "SCRATCH",
        "SCRFS_RUN_TOKEN",
        "SCR_CONF_FILE",
    ];
    let names_of_mpirun = names(&line);
    assert!(kept.iter().all(|name| names_of_mpirun.iter().any(|n| n == name)), "{names_of_mpirun:?}");
    assert!(!names_of_mpirun.iter().any(|n| n == "PMIX_RANK" || n == "OMPI_MCA_btl"), "{names_of_mpirun:?}");
    assert_eq!(line.directory.as_deref(), Some(Path::new("/")));

    let line = coordinators(Arc::new(srun()));
    assert!(words(&line).ends_with(&format!("--input=none --cpus-per-task=1 --cpu-bind=none {COORDINATOR}")));
    // The user's placement is the program's.
    let names_of_srun = names(&line);
    assert!(
        !names_of_srun.iter().any(|n| n == "SLURM_CPUS_PER_TASK")
            && names_of_srun.iter().any(|n| n == "SLURM_JOB_ID")
    );
}

#[test]
fn tools_run_once_on_each_host() {
    let line = lines(Arc::new(srun())).tool(&hosts()[1..], &["/opt/scrfs-ctl".as_ref(), "probe".as_ref()]);
    assert!(words(&line).starts_with("--mpi=none --overlap "), "{}", words(&line));
    let line = lines(Arc::new(mpirun())).tool(&hosts()[1..], &["/opt/scrfs-ctl".as_ref(), "probe".as_ref()]);
    assert!(
        words(&line).starts_with("--host n2:1 -np 1 ") && words(&line).ends_with(" /opt/scrfs-ctl probe")
    );
}

#[test]
fn one_process_or_one_for_each_node() {
    let alone = pernode::PerNode { by: Box::new(none::Alone) };
    let over = pernode::PerNode { by: Box::new(mpirun()) };
    assert!(none::Alone.is_program() && alone.is_program() && !over.is_program());
    let line = program(Arc::new(none::Alone));
    assert_eq!((line.program.to_str(), words(&line).as_str()), (Some("lmp"), "-in x y"));
    let line = program(Arc::new(pernode::PerNode { by: Box::new(mpirun()) }));
    let said = words(&line);
    assert!(said.starts_with("--host n1:1,n2:1 -np 2 "), "{said}");
    assert!(
        said.ends_with(
            " scrfs-pernode OMPI_MCA_btl OMPI_MCA_orte_launch_agent OMPI_MCA_orte_tmpdir_base OMPI_MCA_plm_rsh_agent lmp \
             -in x y"
        ),
        "{said}"
    );
    // It is to have its node, not one core of it.
    let unbound = Mpirun { extra: Vec::new(), ..mpirun() };
    let said = words(&program(Arc::new(pernode::PerNode { by: Box::new(unbound) })));
    assert!(said.contains(" --bind-to none /bin/sh -c "), "{said}");
    assert_eq!(line.environment[OsStr::new("SCRFS_NODES")], "2");
    // Ours are what they are.
    let line = coordinators(Arc::new(pernode::PerNode { by: Box::new(mpirun()) }));
    assert!(words(&line).ends_with(COORDINATOR) && !words(&line).contains("/bin/sh"));
}

/// The shell's part, for real.
#[test]
fn a_process_of_a_node_knows_its_number_and_forgets_the_launcher() {
    let task = Task {
        hosts: vec!["n1".to_owned()],
        per_node: 1,
        command: vec!["env".into()],
        environment: [
            ("PATH", "/usr/bin:/bin"),
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("PMIX_ID", "a b\nPMIX_X=1"),
            ("OMPI_MCA_btl", "self,tcp"),
            ("KEEP", "1"),
        ]
        .into_iter()
        .map(|(n, v)| (n.into(), v.into()))
        .collect(),
        kind: Kind::Program,
        cpus: Cpus::Any,
    };
    let mut line = pernode::PerNode { by: Box::new(none::Alone) }.line(task);
    // mpirun's own.
    line.environment.insert("OMPI_MCA_orte_ess_num_procs".into(), "2".into());
    let output = std::process::Command::new(line.program)
        .args(line.arguments)
        .env_clear()
        .envs(line.environment)
        .output();
    let output = output.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let has = |entry: &str| text.lines().any(|line| line == entry);
    assert!(has("SCRFS_NODE_RANK=3") && has("KEEP=1") && has("SCRFS_NODES=1"), "{text}{:?}", output.stderr);
    assert!(has("OMPI_MCA_btl=self,tcp"), "the user's: {text}");
    let text = text.replace("OMPI_MCA_btl=", "");
    assert!(!text.contains("OMPI_") && !text.contains("PMIX_ID"), "{text}");
}

#[test]
fn schedulers_without_a_machine_here() {
    let line = program(Arc::new(pbs::Pbs { mpirun: Mpirun { reach: &pbs::REACH, ..mpirun() } }));
    assert!(
        words(&line).contains(" --mca plm rsh --mca plm_rsh_agent pbs_tmrsh -x SCRFS_CURRENT"),
        "{}",
        words(&line)
    );
    let line = program(Arc::new(flux::Flux { program: "flux".into(), extra: Vec::new() }));
    assert_eq!(
        words(&line),
        "run --requires=hosts:n1,n2 --nodes=2 --tasks-per-node=3 -o exit-on-error lmp -in x y"
    );
}

#[test]
fn the_choice_is_made_by_a_plain_rule() {
    const LIST: &str =
        "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n";
    let outside = Surroundings::default;
    let slurm = |list: Option<&str>| Surroundings { slurm: true, srun: list.map(str::to_owned), ..outside() };
    let with = |program: &str| Surroundings { program: Some(program.into()), ..slurm(Some(LIST)) };
    let here = || Surroundings { here_alone: true, ..outside() };
    for (asked, around, expected) in [
        (Asked::Auto, outside(), "mpirun mpirun"),
        (Asked::Auto, slurm(Some(LIST)), "srun srun"),
        (Asked::Auto, slurm(Some("MPI plugin types are... none pmi2")), "mpirun mpirun"),
        (
            Asked::Auto,
            slurm(Some(&format!(
                "{LIST}srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types\n"
            ))),
            "mpirun mpirun",
        ),
        (Asked::Auto, slurm(None), "mpirun mpirun"),
        (Asked::Mpirun, slurm(Some(LIST)), "mpirun mpirun"),
        // The options are those of the program that is named.
        (Asked::Auto, with("/opt/mpi/bin/mpirun.openmpi"), "mpirun mpirun"),
        (Asked::Auto, with("srun"), "srun srun"),
        (Asked::Auto, with("my-launcher"), "srun srun"),
        (Asked::Pernode, with("mpiexec"), "pernode mpirun"),
        (Asked::Srun, slurm(None), "srun srun"),
        (Asked::Srun, outside(), "srun is for a job script of Slurm, and SLURM_JOB_ID is not set"),
        (Asked::None, here(), "none none"),
        (
            Asked::None,
            outside(),
            "without a launcher the program runs on this host alone, and the list has others",
        ),
        (Asked::Pernode, outside(), "pernode mpirun"),
        (Asked::Pernode, here(), "pernode none"),
        (Asked::Pernode, slurm(Some(LIST)), "pernode srun"),
        (Asked::Pbs, outside(), "pbs pbs"),
        (Asked::Flux, outside(), "flux flux"),
    ] {
        let got = match choose(asked, &around) {
            Ok(choice) => {
                assert_eq!(choice.why.is_some(), asked == Asked::Auto);
                format!("{} {}", choice.launcher.name(), choice.service.name())
            }
            Err(wrong) => wrong.to_owned(),
        };
        assert_eq!(got, expected, "{asked:?} {around:?}");
    }
}

#[test]
fn what_the_shell_on_a_node_says() {
    let pernode = pernode::PerNode { by: Box::new(none::Alone) };
    for (text, expected) in [
        (
            "scrfs-pernode: 4: exec: /nope: not found\n",
            "refused: the program cannot be run: /nope: not found",
        ),
        ("scrfs-pernode: exec: /nope: not found\n", "refused: the program cannot be run: /nope: not found"),
        ("scrfs-pernode: line 4: exec: /x: not found\n", "refused: the program cannot be run: /x: not found"),
        // The program's own shell.
        ("sh: 4: exec: /nope: not found\n", "passed on"),
        ("step 3: exec: 1\n", "passed on"),
    ] {
        assert_eq!(shown(pernode.understand(text, 1).as_ref()), expected, "{text}");
    }
}

fn shown(said: Option<&Said>) -> String {
    match said {
        None => "passed on".to_owned(),
        Some(Said::Noise) => "noise".to_owned(),
        Some(Said::Waits) => "waits".to_owned(),
        Some(Said::Failed(what)) => format!("failed: {what}"),
        Some(Said::NotLaunched(NotLaunched { hosts, tasks, what })) => {
            format!("not launched on {hosts:?} {tasks:?}: {what}")
        }
        Some(Said::Lost(hosts)) => format!("lost {}", hosts.join(" ")),
        Some(Said::Refused(refusal)) => format!("refused: {}", refusal.what),
    }
}

/// Recorded from Open MPI 4.1.4.
#[test]
fn what_mpirun_says() {
    let said = |text: &str| shown(mpirun().understand(text, 4711).as_ref());
    for (text, expected) in [
        (
            "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[24055,0],0] on node node0\n  Remote \
             daemon: [[24055,0],2] on node node2\n\nThis is usually due to either a failure of the TCP network\n",
            "lost node2",
        ),
        (
            "mpirun.openmpi was unable to launch the specified application as it could not access\nor execute an \
             executable:\n\nExecutable: /etc/passwd\nNode: node1\n\nwhile attempting to start process rank 1.\n",
            "refused: /etc/passwd cannot be run on node1: it is not there, or not executable",
        ),
        (
            "mpirun.openmpi was unable to find the specified executable file, and therefore\ndid not launch the \
             job.\n\nNode:       node0\nExecutable: nope-prog\n",
            "refused: there is no program nope-prog on node0",
        ),
        (
            "mpirun was unable to find the specified executable file, and therefore\ndid not launch the job.\n\n\
             Node:       node0\nExecutable: ./no pe\nprog\n--------------\n",
            r"refused: there is no program ./no pe\nprog on node0",
        ),
        (
            "There are not enough slots available in the system to satisfy the 2\nslots that were requested by the \
             application:\n\n  hostname\n",
            "refused: mpirun has fewer slots than the 2 processes that are to run",
        ),
        (
            "Open MPI tried to fork a new process via the \"execve\" system call but\nfailed.\n\n  Local host:        node0\n  \
             Working dir:       /\n  Application name:  /pfs/x\n  Error:             Exec format error\n",
            "refused: /pfs/x cannot be run on node0: Exec format error",
        ),
        (
            "The value of the MCA parameter \"plm_rsh_agent\" was set to a path\nthat could not be found:\n\n  plm_rsh_agent: \
             pbs_tmrsh\n\nPlease either unset the parameter, or check that the path is correct\n",
            "refused: mpirun starts its daemons with pbs_tmrsh, which is not in PATH",
        ),
        (
            "The specified mapping policy is not recognized:\n\n  Policy: bogus\n\nPlease check for a typo.\n",
            "refused: The specified mapping policy is not recognized: Policy: bogus Please check for a typo.",
        ),
        (
            "Conflicting directives for mapping policy are causing the policy\nto be redefined:\n\n  New policy:   RANK_FILE\n  \
             Prior policy:  PPR\n\nPlease check that only one policy is defined.\n",
            "refused: Conflicting directives for mapping policy are causing the policy to be redefined: New policy:   RANK_FILE \
             Prior policy:  PPR Please check that only one policy is defined.",
        ),
        ("ORTE was unable to reliably start one or more daemons.\nThis usually is caused by:\n", "noise"),
        ("MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\nwith errorcode 17.\n", "passed on"),
    ] {
        let block = format!("{FENCE}--------------\n{text}{FENCE}--------------\n");
        assert_eq!(said(&block), expected, "{text}");
        // Without its fence it is a rank's.
        if !expected.starts_with("noise") {
            assert_eq!(said(text), "passed on", "{text}");
        }
    }
    for (text, expected) in [
        ("mpirun: Error: unknown option \"--foo\"\n", "refused: mpirun: unknown option \"--foo\""),
        ("[head:04711] *** Process received signal ***\n", "noise"),
        ("mpirun: abort is already in progress...hit ctrl-c again to forcibly terminate\n", "noise"),
        ("2 total processes failed to start\n", "noise"),
        ("[head:4711] 3 more processes have sent help message help-mpi-btl-tcp.txt / x\n", "noise"),
        // A rank's own, and mpirun's word on ranks: why the program ended.
        ("[node1:4712] *** Process received signal ***\n", "passed on"),
        (
            "mpirun noticed that process rank 2 with PID 0 on node node2 exited on signal 9 (Killed).\n",
            "passed on",
        ),
        // Words of programs that look like a launcher's.
        ("train.py: error: unrecognized arguments: --lr\n", "passed on"),
        ("solver: Error: unknown option \"--foo\"\n", "passed on"),
        ("hook.sh could not be executed\n", "passed on"),
        ("retry: we have lost communication with a remote daemon, on node node1\n", "passed on"),
        ("step 7 of 9\n", "passed on"),
    ] {
        assert_eq!(said(text), expected, "{text}");
    }
}

/// Recorded from Slurm 22.05.
#[test]
fn what_srun_says() {
    for (text, expected) in [
        ("srun: error: Node failure on node2\n", "lost node2"),
        ("srun: error: Node failure on node[2-3]\n", "lost node2 node3"),
        ("slurmstepd-node0: error: *** STEP 8.0 ON node0 CANCELLED AT 2026-11-23T15:14:40 ***\n", "noise"),
        ("srun: launch/slurm: _step_signal: Terminating StepId=6.0\n", "noise"),
        ("srun: Force Terminated StepId=8.0\n", "noise"),
        (
            "slurmstepd-node1: error: execve(): /nope: No such file or directory\n",
            "refused: the program cannot be run: /nope: No such file or directory",
        ),
        (
            "slurmstepd-node1: error: execve(): /etc/passwd: Permission denied\n",
            "refused: the program cannot be run: /etc/passwd: Permission denied",
        ),
        (
            "srun: error: Unable to create step for job 7: More processors requested than permitted\n",
            "refused: srun: Unable to create step for job 7: More processors requested than permitted",
        ),
        (
            "srun: error: Only allocated 3 nodes asked for 9\n",
            "refused: srun: Only allocated 3 nodes asked for 9",
        ),
        // In the words of the library of 22.05.
        ("srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)\n", "waits"),
        ("srun: Job 7 step creation still disabled, retrying (Requested nodes are busy)\n", "waits"),
        (
            "srun: error: task 1 launch failed: Unspecified error\n",
            "not launched on [] [1]: srun: task 1 launch failed: Unspecified error",
        ),
        (
            "srun: error: tasks 0-1,3 launch failed: Unspecified error\n",
            "not launched on [] [0, 1, 3]: srun: tasks 0-1,3 launch failed: Unspecified error",
        ),
        (
            "srun: error: Task launch for StepId=20.1 failed on node node1: Invalid job credential\n",
            "not launched on [\"node1\"] []: srun: Task launch for StepId=20.1 failed on node node1: Invalid job credential",
        ),
        (
            "srun: error: Timed out waiting for job step to complete\n",
            "failed: srun: Timed out waiting for job step to complete",
        ),
        // Shown when nothing else explains the end.
        ("srun: error: node0: task 0: Exited with exit code 3\n", "noise"),
        ("srun: error: node1: task 1: Killed\n", "noise"),
        ("----\nWARNING: Open MPI failed to TCP connect to a peer MPI process.\n----\n", "noise"),
        ("----\nMPI_ABORT was invoked on rank 0\n----\n", "passed on"),
        ("error: Node failure on node2\n", "passed on"),
    ] {
        assert_eq!(shown(srun().understand(text, 1).as_ref()), expected, "{text}");
    }
}

/// From the manuals.
#[test]
fn what_flux_says() {
    let flux = flux::Flux { program: "flux".into(), extra: Vec::new() };
    for (text, expected) in [
        (
            "3.1s: job.exception type=node-failure severity=0 lost contact with node2 (shell rank 1)\n",
            "lost node2",
        ),
        (
            "flux-run: 0.1s: job.exception type=alloc severity=0 unsatisfiable request\n",
            "refused: flux: 0.1s: job.exception type=alloc severity=0 unsatisfiable request\n",
        ),
        ("step 3\n", "passed on"),
        // A program's own.
        ("my.sh: flux-shell: No such file or directory\n", "passed on"),
    ] {
        assert_eq!(shown(flux.understand(text, 1).as_ref()).trim_end(), expected.trim_end(), "{text}");
    }
}
