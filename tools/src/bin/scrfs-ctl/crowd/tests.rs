use super::*;

const USER: u32 = 7;
/// Executable files.
const ORTED: u64 = 1;
const COORDINATOR: u64 = 2;
const MPIRUN: u64 = 3;
const DAEMON: u64 = 4;
const AGENT: u64 = 5;
const OTHER: u64 = 6;

fn of_user(name: &str, parent: u32, user: u32, executable: u64) -> Process {
    let executable = (user == USER).then_some((1, executable));
    let marked = (user == USER).then_some(false);
    Process {
        name: name.into(),
        parent,
        users: vec![user; 4],
        began: 100,
        executable,
        marked,
        ..Process::default()
    }
}

fn process(name: &str, parent: u32, executable: u64) -> Process {
    of_user(name, parent, USER, executable)
}

fn marked(process: Process) -> Process {
    Process { marked: Some(true), ..process }
}

fn rank(name: &str, parent: u32) -> Process {
    marked(Process { is_rank: true, ..process(name, parent, OTHER) })
}

fn run() -> Run {
    let of = |number| Some((1, number));
    let (coordinator, daemon, agent) = (of(COORDINATOR), of(DAEMON), of(AGENT));
    Run { user: USER, asks: 21, coordinator, daemon, agent, ..Run::default() }
}

/// A node of a run, and on it this process's parent (21) and one coordinator.
fn node() -> BTreeMap<u32, Process> {
    let old = |process: Process| Process { began: 10, ..process };
    BTreeMap::from([
        (1, old(of_user("systemd", 0, 0, OTHER))),
        (2, old(of_user("kthreadd", 0, 0, OTHER))),
        (3, old(of_user("sshd", 1, 0, OTHER))),
        // Somebody has logged in, and the mount's daemon is the user's.
        (4, old(process("bash", 1, OTHER))),
        (5, process("scrfs", 1, DAEMON)),
        (10, Process { executable: None, marked: None, ..process("sshd", 3, OTHER) }),
        (11, process("sh", 10, OTHER)),
        (12, process("orted", 11, ORTED)),
        (
            13,
            marked(Process { began: 50, says: Says::Restart, ..process("scrfs-coordinat", 12, COORDINATOR) }),
        ),
        (20, Process { executable: None, marked: None, ..process("sshd", 3, OTHER) }),
        (21, process("orted", 20, ORTED)),
        // The program's launcher has come here.
        (30, Process { executable: None, marked: None, ..process("sshd", 3, OTHER) }),
        (31, process("bash", 30, OTHER)),
        (32, process("orted", 31, ORTED)),
        (33, process("orted", 1, ORTED)),
        (35, Process { says: Says::Daemon, ..process("scrfs-ctl", 30, AGENT) }),
    ])
}

fn counted(all: &BTreeMap<u32, Process>, run: &Run) -> (Vec<u32>, bool) {
    let crowd = may_be_programs(all, run);
    (crowd.programs.into_iter().collect(), crowd.has_begun)
}

#[test]
fn what_is_no_program_for_certain_does_not_count() {
    assert_eq!(counted(&node(), &run()), (vec![], false));
    // Without coordinators of a restart nobody's age tells anything.
    let mut all = node();
    all.remove(&13);
    assert_eq!(counted(&all, &run()), (vec![4], false));
}

#[test]
fn whatever_may_be_the_programs_counts() {
    let mut all = node();
    all.extend([
        (40, rank("sleep", 32)),
        // Its parent has ended, its environment is its own.
        (41, process("renamed itself", 1, OTHER)),
        (42, of_user("another user's", 1, 8, OTHER)),
        (43, Process { users: vec![USER, 0, 0, 0], ..process("privileged", 32, OTHER) }),
        (44, Process { is_zombie: true, ..process("ended", 32, OTHER) }),
        (45, Process { executable: None, marked: None, ..process("not to be read", 32, OTHER) }),
        (46, of_user("kworker", 2, 0, OTHER)),
        (47, process("scrfs-ctl", 1, AGENT)),
    ]);
    assert_eq!(counted(&all, &run()), (vec![40, 41, 43, 45, 47], true));
}

/// Whatever it is called, and whatever it starts.
#[test]
fn a_program_that_starts_launchers_and_our_tools_lives() {
    for (name, child) in [
        ("scrfs-sim", process("x", 40, OTHER)),
        ("ssh", process("x", 40, OTHER)),
        // A program that became an MPI program by itself, and its daemon.
        ("python", marked(process("orted", 40, ORTED))),
        ("sh", marked(process("ssh", 40, OTHER))),
        ("sh", marked(process("scrfs-ctl", 40, OTHER))),
        ("sh", marked(process("srun", 40, OTHER))),
    ] {
        for program in [rank(name, 32), process(name, 32, OTHER)] {
            let begun = program.marked == Some(true);
            let mut all = node();
            all.insert(40, program);
            assert_eq!(counted(&all, &run()), (vec![40], begun), "{name}");
            all.insert(41, child.clone());
            let (found, _) = counted(&all, &run());
            assert!(found.contains(&40), "{name}: {found:?}");
        }
    }
    // Coordinators of a scrfs-run that it has started have another mark.
    let mut all = node();
    all.insert(40, rank("sh", 32));
    all.insert(41, process("scrfs-coordinat", 40, COORDINATOR));
    assert_eq!(counted(&all, &run()).0, [40, 41]);
}

/// Beside scrfs-run (50): its launchers, and what they reach other nodes by.
#[test]
fn launchers_of_this_run_do_not_count_and_what_they_have_started_here_does() {
    let launcher = |parent| marked(process("mpirun", parent, MPIRUN));
    let bring = |parent| marked(Process { says: Says::Daemon, ..process("ssh", parent, OTHER) });
    let all = BTreeMap::from([
        (49, process("batch script", 1, OTHER)),
        (50, process("scrfs-run", 49, OTHER)),
        (51, launcher(50)),
        (52, bring(51)),
        (53, process("mpirun", 50, MPIRUN)),
        // A helper of the batch script.
        (54, process("helper", 49, OTHER)),
    ]);
    let here = Run { asks: 53, starter: Some(50), launcher: Some(51), ..run() };
    assert_eq!(counted(&all, &here), (vec![54], false));
    // A script in the launcher's place has not begun the program yet; nor is it known what it does.
    let mut waits = all.clone();
    waits.insert(55, marked(process("sleep", 51, OTHER)));
    assert_eq!(counted(&waits, &here), (vec![54, 55], false));
    let mut runs = all;
    runs.insert(55, rank("lmp", 51));
    assert_eq!(counted(&runs, &here), (vec![54, 55], true));
    // What a rank has left is a child of scrfs-run.
    runs.insert(56, rank("left", 50));
    assert_eq!(counted(&runs, &here), (vec![54, 55, 56], true));
    runs.remove(&56);
    // A rank that brings daemons to other nodes is the program.
    runs.insert(55, Process { says: Says::Daemon, ..rank("ssh", 51) });
    assert_eq!(counted(&runs, &here), (vec![54, 55], true));
}

#[test]
fn the_kernels_words_are_understood() {
    let of = |state: &str, threads: u32| {
        let lines = ["Name:\ta name", &format!("State:\t{state}"), "PPid:\t3", "Uid:\t5\t6\t7\t8"];
        Process::parse(&format!("{}\nThreads:\t{threads}\n", lines.join("\n")))
    };
    let expected =
        Process { name: "a name".into(), parent: 3, users: vec![5, 6, 7, 8], ..Process::default() };
    assert_eq!(of("S (sleeping)", 1), Some(expected.clone()));
    assert_eq!(of("Z (zombie)", 3), Some(expected.clone()));
    assert_eq!(of("Z (zombie)", 1), Some(Process { is_zombie: true, ..expected }));
    assert_eq!(Process::parse("Name:\tx\n"), None);
    let fields: Vec<String> = (3..=52).map(|number| number.to_string()).collect();
    assert_eq!(began(&format!("71 (a ) b) {}", fields.join(" "))), Some(22));
}

#[test]
fn a_process_is_read_as_it_is() {
    let own = Process::read(std::process::id(), "1-1@h/u/j").unwrap();
    assert_eq!((own.parent, own.is_zombie), (std::os::unix::process::parent_id(), false));
    assert!(own.users.contains(&nix::unistd::getuid().as_raw()));
    assert_eq!(own.executable, executable(&std::env::current_exe().unwrap()));
    assert!((1..u64::MAX).contains(&own.began));
    let read = |arguments: [&str; 2]| {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "echo; read x", "sh"])
            .args(arguments)
            .env(RUN_VARIABLE, "1-1@h/u/j")
            .env("PMIX_RANK", "0")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Its arguments are there a moment after it has been started.
        std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut [0]).unwrap();
        let read = ["1-1@h/u/j", "1-2@h/u/j"].map(|mark| Process::read(child.id(), mark).unwrap());
        drop(child.stdin.take());
        child.wait().unwrap();
        read
    };
    let [ours, others] = read(["n1", "PATH=/x; exec orted"]);
    assert_eq!((ours.marked, ours.is_rank, ours.says), (Some(true), true, Says::Daemon));
    assert_eq!(others.marked, Some(false));
    assert_eq!(read(["--restart", "--mount"])[0].says, Says::Restart);
}
