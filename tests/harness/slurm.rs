//! Real Slurm over the nodes: the controller in the head, a daemon on each node, the hooks of
//! `deploy/slurm/` as they are.
//!
//! Nothing of it outlives the cluster: all its processes are in the cluster's PID namespace, all
//! its files in the cluster's directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::cluster::{Cluster, workspace};
use crate::place::{BIN, CACHE, INSIDE, PFS, Place};
use crate::shell::{Ran, Shell};
use crate::wait;

/// Slurm's files, as all nodes see them.
const HOME: &str = "/run/sim/slurm";
/// What an administrator copies, and where to.
const DEPLOYED: &str = "deploy/slurm";
const INSTALLED: &str = "/etc/slurm/scrfs/";
/// Where a test puts programs of one node that its hooks use in place of the real ones, and
/// `settings` of its own.
pub const STAND_INS: &str = "/run/stand-in";
/// Nodes are up in a second; under load it takes longer.
const UP: Duration = Duration::from_mins(1);

/// What runs on a node for users, where each process waits, and whom it is connected with; where
/// there is a debugger, the stacks of steps and of the tests' MPI program.
const PROCESSES: &str = "\
    ps -eo pid,ppid,user,stat,wchan:20,etime,args | grep -e ' job ' -e ' mate ' -e '[s]lurmstepd'; \
    cat /proc/net/tcp; \
    command -v gdb >/dev/null && for pid in $(pgrep slurmstepd) $(pgrep ckpt); do \
        echo \"-- stacks of $pid\"; timeout -k 1 20 gdb -p $pid -batch -ex 'thread apply all bt 12' 2>/dev/null | \
            grep -e '^Thread' -e '^#'; \
    done";

/// A running Slurm. It ends with its cluster.
#[derive(Debug)]
pub struct Slurm<'a> {
    cluster: &'a Cluster,
}

/// A job that was submitted, by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch(pub String);

impl<'a> Slurm<'a> {
    /// For commands that [`Slurm::client`] does not run.
    pub const CONF: &'static str = "/run/sim/slurm/slurm.conf";

    /// Starts it on all nodes of the cluster. `system` are lines of `/etc/scrfs.conf`, besides
    /// where caches are.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    pub fn start(cluster: &'a Cluster, system: &str) -> Self {
        let slurm = Self { cluster };
        slurm.furnish();
        let conf = format!("SCR_CACHE_BASE={CACHE}\n{system}");
        slurm.write("/etc/scrfs.conf", &conf);
        let munged = format!(
            "munged --force --key-file={HOME}/munge.key --socket={HOME}/munge.sock --pid-file={HOME}/munged.pid \
             --log-file={HOME}/log/munged.log --seed-file={HOME}/munged.seed"
        );
        slurm.root().run(&munged).must();
        slurm.client(0, "slurmctld -c").must();
        std::thread::scope(|scope| {
            for node in 0..cluster.size() {
                scope.spawn(move || Self { cluster }.start_node(node));
            }
        });
        for node in 0..cluster.size() {
            slurm.await_node(node, "idle");
        }
        slurm
    }

    /// Starts a node's daemon; to be called again when the node was booted.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    pub fn start_node(&self, node: usize) {
        self.cluster.on(node).run(&format!("SLURM_CONF={HOME}/slurm.conf slurmd")).must();
    }

    /// Ends the controller. The daemons of nodes, and jobs, live on.
    ///
    /// # Panics
    /// When it does not end.
    #[track_caller]
    pub fn stop_controller(&self) {
        let line = format!("pid=$(cat {HOME}/slurmctld.pid) && kill $pid && echo $pid");
        let pid = self.root().run(&line).must().to_owned();
        wait::until_true("slurmctld to end", UP, || !self.root().run(&format!("kill -0 {pid}")).ok());
    }

    /// Starts it again, with all that it knew.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    pub fn start_controller(&self) {
        self.client(0, "slurmctld").must();
    }

    /// Waits until the controller says so of a node.
    #[track_caller]
    pub fn await_node(&self, node: usize, state: &str) {
        wait::until_true(&format!("node{node} to be {state}"), UP, || self.node(node) == state);
    }

    /// What the controller says of a node: `idle`, `mixed`, `down*`, `drained`, ...
    pub fn node(&self, node: usize) -> String {
        self.client(0, &format!("sinfo -h -N -n node{node} -o %T")).out.trim().to_owned()
    }

    /// Submits a batch script of this user, to run in the user's directory on the PFS
    /// (`<PFS>/<name>`), which is made. The environment has Slurm's and the cluster's settings.
    ///
    /// # Panics
    /// When the controller refuses it.
    #[track_caller]
    pub fn submit(&self, uid: u32, name: &str, options: &str, script: &str) -> Batch {
        self.submit_as_it_is(uid, name, options, &format!("#!/bin/sh\n{script}\n"))
    }

    /// The same of a whole script, with its own first line.
    ///
    /// # Panics
    /// When the controller refuses it.
    #[track_caller]
    pub fn submit_as_it_is(&self, uid: u32, name: &str, options: &str, script: &str) -> Batch {
        fs::write(self.directory(uid, name).join("script"), script).expect("the PFS can be written");
        let line = format!(
            "cd {PFS}/{name} && sbatch --parsable --job-name={name} --output={PFS}/{name}/out.%j \
             --open-mode=append {options} script"
        );
        Batch(self.client(uid, &line).must().to_owned())
    }

    /// A user's directory on the PFS, as the host sees it; made if need be.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn directory(&self, uid: u32, name: &str) -> PathBuf {
        let directory = self.cluster.pfs().join(name);
        fs::create_dir_all(&directory).expect("the PFS can be written");
        std::os::unix::fs::chown(&directory, Some(uid), Some(uid)).expect("chown on the PFS");
        directory
    }

    /// A job's output so far.
    pub fn output(&self, name: &str, job: &Batch) -> String {
        fs::read_to_string(self.cluster.pfs().join(name).join(format!("out.{}", job.0))).unwrap_or_default()
    }

    /// The job's state, in Slurm's word.
    pub fn state(&self, job: &Batch) -> String {
        self.field(job, "JobState")
    }

    /// A field of what the controller knows of a job; empty if it does not know it.
    pub fn field(&self, job: &Batch, name: &str) -> String {
        let ran = self.client(0, &format!("scontrol -o show job {}", job.0));
        // What comes before is the user's: the job's name.
        let (_, fields) = ran.out.split_once(" UserId=").unwrap_or_default();
        let found = fields.split(' ').find_map(|word| word.strip_prefix(&format!("{name}=")));
        found.unwrap_or_default().trim().to_owned()
    }

    /// Waits until the job has this state.
    ///
    /// # Panics
    /// When it has another one at the end, or the time is up; tells all there is to know.
    #[track_caller]
    pub fn await_state(&self, name: &str, job: &Batch, state: &str, limit: Duration) {
        const FINAL: [&str; 6] = ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL"];
        let seen = wait::poll(limit, || {
            let now = self.state(job);
            (now == state || FINAL.contains(&now.as_str())).then_some(now)
        });
        assert_eq!(seen.as_deref(), Some(state), "{}", self.account(name, job));
    }

    /// Cancels a job.
    #[track_caller]
    pub fn cancel(&self, job: &Batch) {
        self.client(0, &format!("scancel {}", job.0)).must();
    }

    /// A command of Slurm's, in the head.
    pub fn client(&self, uid: u32, line: &str) -> Ran {
        self.root().user(uid).run(&format!("export SLURM_CONF={HOME}/slurm.conf; {line}"))
    }

    /// Runs a hook on a node by hand, as slurmd does: root, with these variables for the job.
    pub fn hook(&self, node: usize, name: &str, variables: &str) -> Ran {
        let shell = self.cluster.on(node).limit(Duration::from_mins(3));
        shell.run(&format!("cd / && env SLURMD_NODENAME=node{node} {variables} {HOME}/hooks/{name}"))
    }

    /// All there is to know about a job, for messages of tests that fail.
    pub fn account(&self, name: &str, job: &Batch) -> String {
        let log = |file: &str| {
            let text = fs::read_to_string(self.cluster.state().dir().join("slurm/log").join(file));
            let text = text.unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(200)..].join("\n")
        };
        let nodes: Vec<String> = (0..self.cluster.size())
            .map(|node| {
                let processes = self.cluster.on(node).run(PROCESSES);
                format!("--- node{node}: slurmd\n{}\n{processes}\n", log(&format!("slurmd.node{node}.log")))
            })
            .collect();
        format!(
            "{}\n--- output\n{}\n--- slurmctld\n{}\n{}{}",
            self.client(0, &format!("scontrol show job {}; sinfo -N; sinfo -R", job.0)).out,
            self.output(name, job),
            log("slurmctld.log"),
            nodes.concat(),
            self.client(0, "squeue; squeue --steps").out,
        )
    }

    /// Writes a file that all nodes see.
    ///
    /// # Panics
    /// When it cannot be written.
    #[track_caller]
    pub fn write(&self, path: &str, text: &str) {
        self.root()
            .cmd("/bin/sh")
            .arg("-c")
            .arg("printf %s \"$1\" >\"$0\"")
            .arg(path)
            .arg(text)
            .status()
            .map_or_else(
                |e| panic!("{path}: {e}"),
                |status| assert!(status.success(), "{path} cannot be written"),
            );
    }

    fn root(&self) -> Shell {
        self.cluster.head()
    }

    /// Configuration, key and hooks.
    fn furnish(&self) {
        let home = self.cluster.state().dir().join("slurm");
        for name in ["", "state", "log", "hooks"] {
            fs::create_dir(home.join(name)).expect("the cluster's directory can be written");
        }
        let key: Vec<u8> = (0..32).flat_map(|_| uuid()).collect();
        fs::write(home.join("munge.key"), key).expect("munge's key");
        fs::set_permissions(home.join("munge.key"), fs::Permissions::from_mode(0o600)).expect("munge's key");
        for hook in fs::read_dir(workspace().join(DEPLOYED)).expect("the hooks").flatten() {
            fs::copy(hook.path(), home.join("hooks").join(hook.file_name())).expect("the hooks");
        }
        fs::write(
            home.join("hooks/settings"),
            format!(
                "PATH={STAND_INS}:{BIN}:$PATH\nexport SLURM_CONF={HOME}/slurm.conf\n\
                 [ ! -r {STAND_INS}/settings ] || . {STAND_INS}/settings\n"
            ),
        )
        .expect("the hooks' settings");
        debug_assert!(HOME.starts_with(INSIDE));
        fs::write(home.join("slurm.conf"), self.conf()).expect("slurm.conf");
        let mpi = fs::read_to_string(workspace().join(DEPLOYED).join("mpi.conf")).expect("mpi.conf");
        // What Slurm loses on a busy machine (`slurm.md`, "MPI programs that hang when they start")
        // costs a test a minute, not a quarter of an hour.
        fs::write(home.join("mpi.conf"), format!("{mpi}PMIxTimeout=20\n")).expect("mpi.conf");
    }

    fn conf(&self) -> String {
        let last = self.cluster.size() - 1;
        let head = Place::Head.address();
        let ours = deployed_lines();
        format!(
            "\
{ours}
ClusterName=sim
SlurmctldHost=head({head})
SlurmUser=root
SlurmdUser=root
SlurmdParameters=config_overrides
AuthType=auth/munge
# A job that is queued again waits for the former credentials to expire.
AuthInfo=socket={HOME}/munge.sock,cred_expire=6
CredType=cred/munge
StateSaveLocation={HOME}/state
SlurmctldPidFile={HOME}/slurmctld.pid
SlurmctldLogFile={HOME}/log/slurmctld.log
SlurmdPidFile=/run/slurmd.pid
SlurmdSpoolDir=/run/slurmd
SlurmdLogFile={HOME}/log/slurmd.%h.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
MessageTimeout=10
TCPTimeout=1
BatchStartTimeout=60
KillWait=30
UnkillableStepTimeout=60
InactiveLimit=0
MinJobAge=600
WaitTime=0
KillOnBadExit=0
JobRequeue=1
NodeName=node[0-{last}] NodeAddr=10.77.0.[1-{}] CPUs=4 RealMemory=2000 Features=scrfs State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
",
            last + 1
        )
    }
}

/// The lines of `deploy/slurm/slurm.conf`, with paths and intervals of this cluster.
fn deployed_lines() -> String {
    let path = workspace().join(DEPLOYED).join("slurm.conf");
    let mut lines = fs::read_to_string(path).expect("the lines for slurm.conf");
    let hooks = format!("{HOME}/hooks/");
    for (theirs, ours) in [
        (INSTALLED, hooks.as_str()),
        ("HealthCheckInterval=300", "HealthCheckInterval=5"),
        // Added to, as the page tells administrators.
        (
            "SchedulerParameters=",
            "SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=0,batch_sched_delay=0,requeue_delay=1,",
        ),
    ] {
        assert!(lines.contains(theirs), "{theirs} is not in {lines}");
        lines = lines.replace(theirs, ours);
    }
    lines
}

fn uuid() -> [u8; 36] {
    let text = fs::read("/proc/sys/kernel/random/uuid").unwrap_or_default();
    std::array::from_fn(|at| text.get(at).copied().unwrap_or(0))
}
