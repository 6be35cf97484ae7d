//! Attacks by another user of the node on a job: each is refused, and the job goes on and seals its
//! next dataset (`scrfs/docs/security.md`). The tables are in [`attacks`]; a test for each class.

mod attacks;

use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use scrfs_harness::cluster::workspace;
use scrfs_harness::job::{IDLE, Job, Running, SOON};
use scrfs_harness::mpirun::site_environment;
use scrfs_harness::place::{BIN, CACHE, SCR};
use scrfs_harness::shell::Ran;
use scrfs_harness::{Cluster, programs, wait};

use attacks::Attack;

/// The other user: without a name, without groups.
const ATTACKER: u32 = 1001;
/// A user with the group that `SCRFS_OPERATOR_GROUP` names.
const OPERATOR: u32 = 60;

/// A job of uid 1000 on one node, whose daemon is root's.
struct Victim<'a> {
    cluster: &'a Cluster,
    job: Job<'a>,
    _run: Running,
    control: String,
    daemon: [String; 2],
    sealed: u32,
}

impl<'a> Victim<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let job = Job::unprivileged(cluster, "victim");
        job.mount([0]);
        Self::running(cluster, job)
    }

    fn running(cluster: &'a Cluster, job: Job<'a>) -> Self {
        let run = job.idle(&[0]);
        let status = job.status(0).expect("a status");
        let control = status["control_directory"].as_str().expect("a directory").to_owned();
        let daemon = daemon(cluster, &control);
        let mut victim = Self { cluster, job, _run: run, control, daemon, sealed: 0 };
        victim.seals();
        victim
    }

    /// Its program and its daemon are as they were, and its next dataset becomes protected.
    fn seals(&mut self) {
        self.sealed += 1;
        let ck = format!("{SCR}/ck.{}", self.sealed);
        let save = format!("mkdir {ck} && echo {} > {ck}/data && touch {ck}/.complete", self.sealed);
        let saved = self.job.on(0).run(&save);
        assert!(saved.ok(), "{saved}\n{}", self.job.events(0));
        for older in 1.max(self.sealed - 1)..=self.sealed {
            let read = self.job.on(0).run(&format!("cat {SCR}/ck.{older}/data"));
            assert_eq!(read.must(), older.to_string());
        }
        assert_eq!(daemon(self.cluster, &self.control), self.daemon, "the daemon was replaced");
        assert!(self.job.status(0).is_some(), "the daemon does not answer its user");
    }

    /// Carries out `attacks` as the attacker: none succeeds.
    fn withstands(&mut self, attacks: &[Attack]) {
        self.withstands_user(ATTACKER, attacks);
    }

    fn withstands_user(&mut self, uid: u32, attacks: &[Attack]) {
        let unrefused = self.attack(uid, attacks);
        assert!(unrefused.is_empty(), "{unrefused:#?}");
        self.seals();
    }

    /// Those that succeed, and those of which it is not known, with what they said.
    fn attack(&self, uid: u32, attacks: &[Attack]) -> Vec<String> {
        let coordinator = self.cluster.on(0).run("pgrep -o scrfs-coordinat").must().to_owned();
        let program = self.cluster.on(0).run(&format!("pgrep -o -xf '{IDLE}'")).must().to_owned();
        let shell = self.cluster.on(0).user(uid).limit(Duration::from_mins(10));
        // A coordinator takes its time before it is refused: MPI starts first.
        let rows = (0..attacks.len()).map(|at| {
            format!(
                "timeout -k 1 60 bash -c \"$A{at}\" >/tmp/said.$UID 2>&1 </dev/null; \
                 echo \"$? $(tail -c 1000 /tmp/said.$UID | tr -c '[:print:]' ' ')\"\n"
            )
        });
        let mut command = shell.cmd("/bin/bash");
        command.arg("-c").arg(format!("cd /tmp\n{}", rows.collect::<String>()));
        for (at, (_, line)) in attacks.iter().enumerate() {
            command.env(format!("A{at}"), line);
        }
        command.env("CONTROL", &self.control).env("CACHE", format!("{CACHE}/job/scr.victim"));
        command.env("WORKER", &self.daemon[0]).env("SUPERVISOR", &self.daemon[1]);
        command.env("COORDINATOR", coordinator).env("PROGRAM", program).env("PREFIX", self.job.prefix());
        let ran = Ran::of(&mut command);
        let outcomes: Vec<&str> = ran.must().lines().collect();
        assert_eq!(outcomes.len(), attacks.len(), "{ran}");
        let unrefused =
            outcomes.iter().zip(attacks).filter(|(outcome, (_, line))| !is_refused(line, outcome));
        unrefused.map(|(outcome, (what, line))| format!("{what}: {line}: {outcome}")).collect()
    }
}

/// What is said of a lack of rights: by the kernel, by system programs, by scrfs.
const REFUSALS: [&str; 12] = [
    "Permission denied",
    "Operation not permitted",
    "Address already in use",
    "must be superuser",
    "not found in /etc/mtab",
    "may only ask",
    "answers the job's user and root only",
    "may not unmount or reload it",
    "only root mounts for others",
    "nothing is here",
    // By attacks that may connect: the daemon closed the connection, or kept it and answered its
    // job.
    "no answer",
    "all held",
];
/// An attack whose line has one of these tells by its exit code alone whether it had its effect.
const EFFECTS: [&str; 2] = ["! test -d", "; false"];

/// `outcome`: exit code, and what was said. An attack that fails for another reason than a lack of
/// rights proves nothing: a command that is missing, a name that is not there, a time that is over.
fn is_refused(line: &str, outcome: &str) -> bool {
    let code = outcome.split(' ').next().unwrap_or_default();
    let has = |words: &[&str], text: &str| words.iter().any(|word| text.contains(word));
    !["0", "124", "126", "127", "137"].contains(&code) && (has(&REFUSALS, outcome) || has(&EFFECTS, line))
}

/// The pids of worker and supervisor.
fn daemon(cluster: &Cluster, control: &str) -> [String; 2] {
    ["worker", "supervisor"]
        .map(|who| cluster.on(0).run(&format!("head -n 1 {control}/{who}.lock")).must().to_owned())
}

fn withstands(attacks: &[Attack]) {
    let cluster = Cluster::up(1);
    Victim::new(&cluster).withstands(attacks);
}

#[test]
fn there_are_a_hundred_attacks() {
    let tables = [
        attacks::NAMES_BEFORE,
        attacks::NAMES,
        attacks::LINKS,
        attacks::SOCKETS,
        attacks::LOCKS,
        attacks::SIGNALS,
        attacks::PROC,
        attacks::MOUNT,
        attacks::PREFIX,
        attacks::CONTROL,
        attacks::OPERATORS,
        attacks::CONFIGURATION,
        attacks::NEIGHBOURS,
    ];
    let all: usize = tables.iter().map(|table| table.len()).sum();
    assert!(all >= 100, "{all}");
}

#[test]
fn names_made_first_do_not_stop_a_mount() {
    let cluster = Cluster::up(1);
    let job = Job::unprivileged(&cluster, "victim");
    for (what, line) in attacks::NAMES_BEFORE {
        let attacker = cluster.on(0).user(ATTACKER);
        attacker.run(line).must();
        let mounted = job.try_mount(0);
        assert!(mounted.ok(), "{what}: {line}: {mounted}");
        assert_eq!(job.on(0).run(&format!("ls {SCR}")).must(), "", "{what}");
        job.on(0).run(&format!("echo mine > {SCR}/mine")).must();
        assert!(
            !attacker.run("find /cache /dev/shm /tmp -name mine | grep .").ok(),
            "{what}: it is within reach"
        );
        let purge = format!("{BIN}/scrfs umount --job-id victim --user job --cache-base {CACHE} --purge");
        cluster.on(0).run(&purge).must();
        let left = "find /cache /dev/shm -mindepth 1 -user 0 ! -name fuse | grep .";
        assert!(!cluster.on(0).run(left).ok(), "{what}: something of the job is left");
        attacker.run("rm -rf /cache/* /dev/shm/* /tmp/* 2>/dev/null; true").must();
    }
    // And with all that is left at once a job runs.
    let plant = "mkdir -p /cache/job /dev/shm/job /dev/shm/scrfs-run.1000 && mkfifo /tmp/scrfs-run.1000";
    let of_mpi =
        "for host in $(hostname) $(hostname -s) node0; do mkdir -p /tmp/{ompi,prte,pmix}.$host.1000; done";
    cluster.on(0).user(ATTACKER).run(&format!("{plant} && {of_mpi}")).must();
    let head = "mkdir -p /dev/shm/scrfs-run.1000 && touch /dev/shm/scrfs-run.1000/lock";
    cluster.head().user(ATTACKER).run(of_mpi).must();
    cluster.head().user(ATTACKER).run(head).must();
    job.mount([0]);
    Victim::running(&cluster, job).withstands(attacks::NAMES);
}

/// mpirun's arguments tell where its daemon on a node will keep its files. Another user makes that
/// directory first: there, and on each node, before anything of the job has come to it.
#[test]
fn a_directory_made_before_mpiruns_daemon_costs_no_node() {
    let cluster = Cluster::up(2);
    let job = Job::unprivileged(&cluster, "victim");
    job.mount([0, 1]);
    let (prefix, host_prefix) = (job.prefix(), job.host_prefix());
    let agent = site_environment().into_iter().find(|(name, _)| name == "OMPI_MCA_plm_rsh_agent");
    let script = format!(
        "#!/bin/sh\n\
         echo \"$*\" | sed -n 's/.*orte_tmpdir_base \"\\([^\"]*\\)\".*/\\1/p' > {prefix}/named.$$\n\
         mv {prefix}/named.$$ {prefix}/named; until test -e {prefix}/planted; do sleep 0.02; done\n\
         exec {} \"$@\"\n",
        agent.expect("the cluster has one").1
    );
    cluster
        .head()
        .user(1000)
        .run(&format!("cat > {prefix}/slow-rsh <<'E'\n{script}E\nchmod +x {prefix}/slow-rsh"))
        .must();
    let mut command = job.run_command(&[0, 1], 2, 1, &["/bin/sh", "-c", "hostname; ls -d /tmp/scrfs-mpi.*"]);
    command.env("OMPI_MCA_plm_rsh_agent", format!("{prefix}/slow-rsh"));
    let ran = std::thread::scope(|scope| {
        let running = scope.spawn(move || Ran::of(&mut command));
        wait::until_true("mpirun to name the directory", SOON, || host_prefix.join("named").exists());
        let named = std::fs::read_to_string(host_prefix.join("named")).expect("the PFS");
        assert!(named.starts_with("/tmp/scrfs-mpi.1000."), "{named}");
        for node in [0, 1] {
            cluster.on(node).user(ATTACKER).run(&format!("mkdir -m 700 {named}")).must();
        }
        std::fs::write(host_prefix.join("planted"), "").expect("the PFS");
        (running.join().expect("it ran"), named.trim().to_owned())
    });
    let (ran, named) = ran;
    assert!(ran.ok() && !ran.err.contains("left out") && !ran.err.contains("run 2"), "{ran}");
    for node in ["node0", "node1"] {
        assert!(ran.out.lines().any(|line| line == node), "{ran}");
    }
    // Each node has the attacker's directory, and the user's beside it.
    let own = ran.out.lines().filter(|line| line.starts_with(&format!("{named}."))).count();
    assert_eq!((own, ran.out.lines().filter(|line| *line == named).count()), (2, 2), "{ran}");
}

#[test]
fn links_lead_nowhere() {
    withstands(attacks::LINKS);
}

#[test]
fn sockets_are_the_jobs_own() {
    withstands(attacks::SOCKETS);
}

#[test]
fn locks_cannot_be_held_by_others() {
    let cluster = Cluster::up(1);
    // A former version's, which somebody holds.
    let lock = "/run/scrfs-slurm/.sweep";
    cluster.on(0).run(&format!("mkdir /run/scrfs-slurm && install -m 644 /dev/null {lock}")).must();
    let hold = format!("exec flock -s {lock} sh -c 'echo held && exec sleep 600'");
    let mut holder =
        cluster.on(0).user(ATTACKER).sh(&hold).stdout(Stdio::piped()).spawn().expect("an attacker");
    let mut said = [0; 5];
    holder.stdout.take().expect("its output").read_exact(&mut said).expect("the lock");
    let hooks = workspace().join("deploy/slurm/hooks.sh");
    cluster.on(0).run(&format!(". {}; sweep; flock -n {lock} true", hooks.display())).must();
    let mut victim = Victim::new(&cluster);
    // As SCR's tools make it; it is closed when checkpoints are counted in it.
    let (prefix, on) = (victim.job.prefix(), victim.job.on(0));
    let halt = format!("{prefix}/.scr/halt.scr");
    on.run(&format!("{BIN}/scrfs-ctl halt --prefix {prefix} --checkpoints 1000 && chmod 644 {halt}")).must();
    victim.seals();
    let mode = || victim.job.on(0).run(&format!("stat -c %a {halt}")).must().to_owned();
    wait::until_true("its mode", SOON, || mode() == "600");
    victim.withstands(attacks::LOCKS);
    holder.kill().expect("the attacker can be killed");
    holder.wait().expect("its end");
}

#[test]
fn signals_of_others_do_not_arrive() {
    withstands(attacks::SIGNALS);
}

#[test]
fn proc_tells_and_takes_nothing() {
    withstands(attacks::PROC);
}

#[test]
fn the_mount_is_closed() {
    let cluster = Cluster::up(1);
    let mut victim = Victim::new(&cluster);
    // Where a node has it.
    cluster.on(0).run("mount -t fusectl none /sys/fs/fuse/connections").must();
    victim.withstands(attacks::MOUNT);
    // A mount of the attacker's own, which says that its control directory is the job's.
    let hanging = programs::hanging("/tmp/m");
    let fake = format!("mkdir -p /tmp/m && {hanging} \"fsname=scrfs@$CONTROL,subtype=scrfs\"");
    let mut command = cluster.on(0).user(ATTACKER).sh(&fake);
    let made = Ran::of(command.env("CONTROL", &victim.control));
    made.must();
    for line in [
        "umount --force /tmp/m",
        "umount /tmp/m",
        "reload /tmp/m",
        "umount --job-id other --user 1001 --purge",
    ] {
        let ran = cluster.on(0).run(&format!("{BIN}/scrfs {line}"));
        assert!(ran.ok() == line.contains("--job-id"), "{ran}");
        victim.seals();
    }
    // It is no job's to root either, and not the mount of who names none.
    let jobs = cluster.on(0).run(&format!("{BIN}/scrfs-ctl jobs --json"));
    let jobs: serde_json::Value = serde_json::from_str(jobs.must()).expect("JSON");
    let mounts: Vec<_> = jobs.as_array().expect("rows").iter().map(|row| &row["mount"]).collect();
    assert_eq!(mounts, [SCR]);
    let (prefix, other) = (victim.job.prefix(), 1002);
    let copy = format!("mkdir /tmp/p && cp -r {prefix}/.scr /tmp/p && chown -R {other} /tmp/p");
    cluster.on(0).run(&copy).must();
    let status = format!("SCR_PREFIX=/tmp/p {BIN}/scrfs-ctl status");
    let status = cluster.on(0).user(other).run(&status);
    assert!(status.must().contains("as of "), "{status}");
}

#[test]
fn the_prefix_is_the_users() {
    withstands(attacks::PREFIX);
}

#[test]
fn the_control_socket_hears_no_stranger() {
    withstands(attacks::CONTROL);
}

#[test]
fn operators_may_ask_and_no_more() {
    let cluster = Cluster::up(1);
    let job = Job::unprivileged(&cluster, "victim").set("SCRFS_OPERATOR_GROUP", "games");
    job.mount([0]);
    let mut victim = Victim::running(&cluster, job);
    let asked = format!("{BIN}/scrfs-ctl status --mount {SCR}");
    assert!(cluster.on(0).user(OPERATOR).run(&asked).must().contains("victim"));
    victim.withstands_user(OPERATOR, attacks::OPERATORS);
}

#[test]
fn files_that_lie_about_configure_nothing() {
    let cluster = Cluster::up(1);
    for (what, line) in attacks::CONFIGURATION {
        let job = Job::unprivileged(&cluster, "victim");
        cluster.on(0).user(ATTACKER).run(&format!("mkdir -p /tmp/x && cd /tmp/x && {line}")).must();
        // A prolog that happens to be there, of a scheduler that says whose job it is.
        let mut command =
            cluster.on(0).sh(&format!("cd /tmp/x && exec {BIN}/scrfs mount --cache-base {CACHE} {SCR}"));
        let scheduler = [("SLURM_JOB_ID", "victim"), ("SLURM_JOB_USER", "job"), ("SLURM_JOB_UID", "1000")];
        let mounted = Ran::of(command.envs(scheduler));
        assert!(mounted.ok(), "{what}: {mounted}");
        let status = job.status(0).expect("a status");
        assert_eq!(status["control_directory"], "/run/scrfs/job/scr.victim", "{what}");
        assert_eq!(status["cache_directory"], format!("{CACHE}/job/scr.victim"), "{what}");
        let end = format!("{BIN}/scrfs umount --job-id victim --user job --cache-base {CACHE} --purge");
        cluster.on(0).run(&end).must();
        cluster.on(0).run("rm -rf /tmp/x").must();
    }
    // In a prefix that others can write to as well: the job says that it does not count.
    let job = Job::unprivileged(&cluster, "victim");
    std::fs::write(job.host_prefix().join(".scrconf"), "SCR_COPY_TYPE=SINGLE\nSCR_JOB_ID=other\n")
        .expect("the PFS");
    std::os::unix::fs::chown(job.host_prefix().join(".scrconf"), Some(ATTACKER), None)
        .expect("chown on the PFS");
    job.mount([0]);
    let mut run = job.start(&[0], 1, 1, &["/bin/true"]);
    assert_eq!(run.wait(SOON), 0, "{}", run.output());
    assert!(run.output().contains("belongs to user 1001"), "{}", run.output());
    links_in_a_prefix_tell_nothing(&cluster, &job);
}

/// Whose link it is: lines of what it names are told to nobody, and it configures nothing.
fn links_in_a_prefix_tell_nothing(cluster: &Cluster, job: &Job<'_>) {
    let (secret, file) = (job.host_prefix().join("secret"), job.host_prefix().join(".scrconf"));
    std::fs::write(&secret, "hunter2:no setting\nSCR_FLUSH=hunter2\n").expect("the PFS");
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("its mode");
    let prefix = job.prefix();
    for (owner, told) in [(ATTACKER, "belongs to user 1001"), (0, "symbolic link")] {
        for reader in [0, 1000] {
            std::os::unix::fs::chown(&secret, Some(reader), None).expect("chown on the PFS");
            for (what, line) in attacks::PREFIX_FILES {
                let _ = std::fs::remove_file(&file);
                let make = format!("cd {prefix} && {line} && chown -h {owner} .scrconf");
                cluster.on(0).run(&make).must();
                for tool in [
                    "scrfs-run --launcher none -- /bin/true",
                    "scrfs-ctl halt --list",
                    "scrfs-ctl status",
                    "scrfs doctor",
                ] {
                    let asked = format!("cd {prefix} && SCR_PREFIX={prefix} {BIN}/{tool}");
                    let ran = cluster.on(0).user(reader).limit(SOON).run(&asked);
                    assert!(!ran.to_string().contains("hunter2"), "{what} of {owner}: {ran}");
                    let is_told = ran.err.contains(told) || ran.err.contains("no regular file");
                    // The others have nothing of it that matters to them.
                    let tells = tool.contains("scrfs-run");
                    assert!(is_told || !tells, "{what} of {owner}: {ran}");
                }
            }
        }
    }
    std::fs::remove_file(&file).expect("the PFS");
}

#[test]
fn two_users_jobs_share_a_node_and_nothing_else() {
    let cluster = Cluster::up(1);
    let prolog = |id: &str, uid: u32, args: &str| {
        let mut command = cluster.on(0).sh(&format!("{BIN}/scrfs {args} --cache-base {CACHE}"));
        command
            .env("SLURM_JOB_ID", id)
            .env("SLURM_JOB_UID", uid.to_string())
            .env("SCRFS_MOUNT", format!("{SCR}/%j"));
        Ran::of(&mut command)
    };
    for (id, uid) in [("7", 1000), ("8", ATTACKER)] {
        prolog(id, uid, "mount").must();
        let on = cluster.on(0).user(uid);
        let save = format!("mkdir {SCR}/{id}/ck && echo {id} > {SCR}/{id}/ck/data && stat -c %a {SCR}/{id}");
        assert_eq!(on.run(&save).must(), "700");
    }
    for (what, line) in attacks::NEIGHBOURS {
        let ran = cluster.on(0).user(ATTACKER).run(line);
        let outcome = format!("{} {}{}", ran.code, ran.out, ran.err);
        assert!(is_refused(line, &outcome), "{what}: {ran}");
    }
    // What one prolog or epilog does is not the other's, though it fails or comes twice.
    assert!(prolog("8", ATTACKER, "mount").ok());
    assert!(!prolog("9", ATTACKER, &format!("mount {SCR}/7")).ok(), "it is taken");
    for args in ["umount --job-id 8 --purge", "umount --job-id 8 --purge", "umount --job-id 9 --purge"] {
        prolog("8", ATTACKER, args).must();
    }
    wait::until_true("the other's end", SOON, || !cluster.on(0).run(&format!("ls {SCR}/8")).ok());
    assert_eq!(cluster.on(0).user(1000).run(&format!("cat {SCR}/7/ck/data")).must(), "7");
    prolog("7", 1000, "umount --job-id 7 --purge").must();
    assert_eq!(
        cluster.on(0).run(&format!("ls -A {SCR} {CACHE} /run/scrfs")).must().replace(':', ""),
        format!("{CACHE}\n\n/run/scrfs\n\n{SCR}")
    );
}
