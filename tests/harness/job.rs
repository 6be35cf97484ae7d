//! A job on the cluster: mounts on its nodes, `scrfs-run` in the head, a prefix on the PFS.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::mpirun::site_environment;
use crate::place::{BIN, CACHE, JOB_UID, PFS, SCR};
use crate::shell::{Ran, Shell};
use crate::wait;

/// How long anything may take that ought to be quick.
pub const SOON: Duration = Duration::from_secs(40);
/// What [`Job::idle`] runs, as `pgrep -xf` has it: for longer than any test.
pub const IDLE: &str = "/bin/sleep 3600";
/// A restart may rebuild before its program starts.
const IDLE_LIMIT: Duration = Duration::from_mins(2);
/// Of a run of `scrfs-run`, if its test says no other.
const RUN_LIMIT: Duration = Duration::from_secs(400);
/// From a signal to the end of `scrfs-run`, besides what the job keeps for the end.
const END_LIMIT: Duration = Duration::from_secs(30);

/// A job: user, prefix, settings.
#[derive(Debug, Clone)]
pub struct Job<'a> {
    cluster: &'a Cluster,
    /// Names its prefix.
    name: String,
    id: String,
    uid: u32,
    settings: Vec<(String, String)>,
    control_base: Option<&'static str>,
    options: Vec<String>,
    limit: Duration,
}

impl<'a> Job<'a> {
    /// Job `name` of root, nothing mounted yet.
    ///
    /// # Panics
    /// When its prefix cannot be made.
    pub fn new(cluster: &'a Cluster, name: &str) -> Self {
        Self::of_user(cluster, name, 0)
    }

    /// The same as the cluster's ordinary user; daemons stay root's.
    ///
    /// # Panics
    /// When its prefix cannot be made.
    pub fn unprivileged(cluster: &'a Cluster, name: &str) -> Self {
        Self::of_user(cluster, name, JOB_UID)
    }

    fn of_user(cluster: &'a Cluster, name: &str, uid: u32) -> Self {
        let (settings, options) = (Vec::new(), Vec::new());
        let (name, id) = (name.to_owned(), name.to_owned());
        let (control_base, limit) = (None, RUN_LIMIT);
        let job = Self { cluster, name, id, uid, settings, control_base, options, limit };
        for directory in [job.host_prefix(), job.host_desk()] {
            fs::create_dir_all(&directory).expect("the PFS can be written");
            std::os::unix::fs::chown(&directory, Some(uid), Some(uid)).expect("chown on the PFS");
        }
        let faults = job.faults_file();
        // Where many tests run at once, the launcher may take longer than the default to end the
        // coordinators that are left and to start new ones.
        job.set("SCRFS_COORDINATOR_WAIT", "30s")
            .set("SCRFS_FAULTS_FILE", &faults)
            .set("SCR_FLUSH", "0")
            .set("SCRFS_END_GRACE", "0")
    }

    /// Sets a parameter of the job.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.retain(|(n, _)| n != name);
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same prefix, and another job id.
    #[must_use]
    pub fn with_id(mut self, id: &str) -> Self {
        id.clone_into(&mut self.id);
        self
    }

    /// Its control directories are in `base`.
    #[must_use]
    pub fn control_in(mut self, base: &'static str) -> Self {
        self.control_base = Some(base);
        self
    }

    /// One more option of `scrfs-run`.
    #[must_use]
    pub fn option(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    /// Each of its runs may take so long before it is ended; 400 s if not set.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// How long a run may take to end once it was told to: it may be saving until then.
    fn end_limit(&self) -> Duration {
        let set = self.settings.iter().find(|(name, _)| name == "SCRFS_END_GRACE");
        let grace = set.map_or(0, |(_, value)| value.parse().expect("seconds"));
        Duration::from_secs(grace) + END_LIMIT
    }

    /// The prefix as the nodes see it.
    pub fn prefix(&self) -> String {
        format!("{PFS}/{}", self.name)
    }

    /// The prefix as the host sees it.
    pub fn host_prefix(&self) -> PathBuf {
        self.cluster.pfs().join(&self.name)
    }

    /// The test's own files, beside the prefix: that may go away.
    fn desk(&self) -> String {
        format!("{PFS}/{}.test", self.name)
    }

    fn host_desk(&self) -> PathBuf {
        self.cluster.pfs().join(format!("{}.test", self.name))
    }

    fn faults_file(&self) -> String {
        format!("{}/faults", self.desk())
    }

    /// Arms a fault, in whatever coordinator of the job gets there first.
    pub fn arm(&self, fault: &str) {
        self.arm_in("faults", fault);
    }

    /// Arms a fault in the daemon that gets there first.
    pub fn arm_daemon(&self, fault: &str) {
        self.arm_in("faults.daemon", fault);
    }

    fn arm_in(&self, name: &str, fault: &str) {
        let fresh = self.host_desk().join("faults.new");
        fs::write(&fresh, fault).expect("the PFS can be written");
        fs::rename(fresh, self.host_desk().join(name)).expect("rename on the PFS");
    }

    /// Takes an armed fault back; false if it has fired.
    pub fn disarm(&self) -> bool {
        fs::remove_file(self.host_desk().join("faults")).is_ok()
    }

    /// Whether every armed fault has fired.
    pub fn fired(&self) -> bool {
        ["faults", "faults.daemon"].iter().all(|name| !self.host_desk().join(name).exists())
    }

    /// Commands on a node as the job's user.
    pub fn on(&self, node: usize) -> Shell {
        self.cluster.on(node).user(self.uid)
    }

    /// Mounts /scr on these nodes, all at once.
    ///
    /// # Panics
    /// When one cannot be mounted.
    #[track_caller]
    pub fn mount(&self, nodes: impl IntoIterator<Item = usize>) {
        let children: Vec<_> =
            nodes.into_iter().map(|node| (node, spawn(&mut self.mount_command(node)))).collect();
        for (node, child) in children {
            let output = child.wait_with_output().expect("wait");
            let ran = Ran::from_output(format!("mount on node{node}"), &output);
            assert!(ran.ok(), "{ran}");
        }
    }

    /// Tries to mount /scr on a node.
    pub fn try_mount(&self, node: usize) -> Ran {
        Ran::of(&mut self.mount_command(node))
    }

    fn mount_command(&self, node: usize) -> Command {
        let mut command = self.cluster.on(node).cmd(&format!("{BIN}/scrfs"));
        let user = if self.uid == 0 { "root" } else { "job" };
        let set = |wanted: &str| self.settings.iter().find(|(name, _)| name == wanted);
        let cache = set("SCR_CACHE_BASE").map_or(CACHE, |(_, stores)| stores);
        command.args(["mount", "--user", user, "--job-id", &self.id, "--cache-base", cache, SCR]);
        // The last argument is the mount point; options may follow it.
        command.args(self.control_base.into_iter().flat_map(|base| ["--control-base", base]));
        command.env("SCRFS_FAULTS_FILE", format!("{}/faults.daemon", self.desk()));
        // The prolog's to say.
        let prolog = ["SCRFS_CACHE_BYTES", "SCRFS_OPERATOR_GROUP"];
        command.envs(prolog.into_iter().filter_map(set).map(|(name, value)| (name, value)));
        command
    }

    /// Unmounts /scr on a node.
    pub fn unmount(&self, node: usize) -> Ran {
        self.cluster.on(node).run(&format!("{BIN}/scrfs umount {SCR}"))
    }

    /// `scrfs umount` for the job's id on these nodes at once, as an epilog calls it, with these
    /// words besides.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    pub fn end(&self, nodes: impl IntoIterator<Item = usize>, words: &[&str]) -> Vec<Ran> {
        let children: Vec<_> =
            nodes.into_iter().map(|node| (node, spawn(&mut self.end_command(node, words)))).collect();
        let ended = children.into_iter().map(|(node, child)| {
            let output = child.wait_with_output().expect("wait");
            Ran::from_output(format!("umount on node{node}"), &output)
        });
        ended.collect()
    }

    fn end_command(&self, node: usize, words: &[&str]) -> Command {
        let mut command = self.cluster.on(node).limit(Duration::from_mins(2)).cmd(&format!("{BIN}/scrfs"));
        let user = if self.uid == 0 { "root" } else { "job" };
        command.args(["umount", "--user", user, "--job-id", &self.id, "--cache-base", CACHE, "--force"]);
        command.args(words);
        command
    }

    /// Kills what runs of the job at once, whatever its end would be: launcher, coordinators, the
    /// program of [`Job::idle`].
    #[track_caller]
    pub fn kill_all(&self) {
        let of = |pattern: &str| format!("pgrep {pattern}");
        let idle = format!("-xf '{IDLE}'");
        let all = ["-x scrfs-run", "-x scrfs-coordinat", "-x mpirun", &idle].map(of);
        let line = format!("all=$({}); test -z \"$all\" || {{ kill -9 $all; false; }}", all.join("; "));
        // When one has ended, others end by themselves: `kill` may find them gone.
        wait::until_true("the end of all of the job", SOON, || self.cluster.head().run(&line).ok());
    }

    /// `scrfs-run` with `used` nodes of `hosts`, `ranks` on each, and this program.
    pub fn run_command(&self, hosts: &[usize], used: usize, ranks: usize, program: &[&str]) -> Command {
        let names: Vec<String> = hosts.iter().map(|k| format!("node{k}")).collect();
        let shell = self.cluster.head().user(self.uid).limit(self.limit).grace(self.end_limit());
        let mut command = shell.cmd(&format!("{BIN}/scrfs-run"));
        command.args(["--hosts", &names.join(",")]).args(["--nodes", &used.to_string()]);
        command.args(["--ranks-per-node", &ranks.to_string()]).args(["--prefix", &self.prefix()]);
        command.args(&self.options).arg("--").args(program);
        for (name, value) in site_environment() {
            command.env(name, value);
        }
        command.env("SCR_JOB_ID", &self.id);
        command.envs(self.settings.iter().map(|(n, v)| (n, v)));
        command
    }

    /// Starts `scrfs-run`; its output goes to a file on the host.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(&self, hosts: &[usize], used: usize, ranks: usize, program: &[&str]) -> Running {
        let out =
            self.host_desk().join(format!("run.{:?}.out", Instant::now()).replace([' ', ':', '{', '}'], ""));
        let file = fs::File::create(&out).expect("the PFS can be written");
        let copy = file.try_clone().expect("dup");
        let mut command = self.run_command(hosts, used, ranks, program);
        let child = command.stdout(file).stderr(copy).spawn().expect("scrfs-run starts");
        Running { child, out, ended: None, end_limit: self.end_limit() }
    }

    /// Lines of the program's log so far.
    pub fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.host_desk().join("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The log's path as the program is to be told.
    pub fn log_path(&self) -> String {
        format!("{}/log", self.desk())
    }

    /// Words that have `ckpt` wait after this step, until [`Job::let_go`]: what a test does in its
    /// middle may take as long as it likes.
    pub fn hold_at(&self, step: u64) -> [String; 2] {
        [format!("hold={}/go", self.desk()), format!("at={step}")]
    }

    /// The word that has `ckpt` wait in the middle of its files as long as [`Job::hold_files`]
    /// says.
    pub fn part(&self) -> String {
        format!("part={}/part", self.desk())
    }

    /// Programs that were told [`Job::part`] wait, or go on.
    ///
    /// # Panics
    /// When the PFS cannot be written.
    pub fn hold_files(&self, held: bool) {
        let part = self.host_desk().join("part");
        let done = if held { fs::write(part, "") } else { fs::remove_file(part) };
        done.expect("the PFS can be written");
    }

    /// Programs that wait by [`Job::hold_at`] go on.
    ///
    /// # Panics
    /// When the PFS cannot be written.
    pub fn let_go(&self) {
        fs::write(self.host_desk().join("go"), "").expect("the PFS can be written");
    }

    /// Steps whose marker's close succeeded, in order.
    pub fn sealed(&self) -> Vec<u64> {
        self.log().iter().filter_map(|line| line.strip_prefix("sealed ")?.parse().ok()).collect()
    }

    /// What `scrfs-ctl status --json` says on a node.
    pub fn status(&self, node: usize) -> Option<Value> {
        let ran = self.on(node).run(&format!("{BIN}/scrfs-ctl status --mount {SCR} --json"));
        if ran.ok() { serde_json::from_str(&ran.out).ok() } else { None }
    }

    /// The dataset's state on a node, in status's words; empty if it has no such dataset.
    pub fn state(&self, node: usize, dataset: &str) -> String {
        let status = self.status(node).unwrap_or_default();
        let datasets = status["datasets"].as_array().cloned().unwrap_or_default();
        let found = datasets.iter().find(|d| d["name"] == dataset);
        found.and_then(|d| d["state"].as_str()).unwrap_or("").to_owned()
    }

    /// Whether the dataset is complete, as a node sees it; with one node nothing protects it.
    pub fn is_sealed(&self, node: usize, dataset: &str) -> bool {
        ["sealed", "protected", "flushing", "flushed"].contains(&self.state(node, dataset).as_str())
    }

    /// Coordinators on `hosts`, and a program on all of them that does nothing, so that tests can
    /// work on the mount.
    ///
    /// # Panics
    /// When that does not come to be in time.
    #[track_caller]
    pub fn idle(&self, hosts: &[usize]) -> Running {
        self.idle_within(hosts, IDLE_LIMIT)
    }

    /// As [`Job::idle`], for restarts that have a lot to do.
    #[track_caller]
    pub fn idle_within(&self, hosts: &[usize], limit: Duration) -> Running {
        // The program itself: the launchers' lines have its words too.
        let runs = |node| self.on(node).run(&format!("pgrep -xf '{IDLE}'")).ok();
        for &node in hosts {
            wait::until_true("the end of the former program", limit, || !runs(node));
        }
        let program: Vec<&str> = IDLE.split(' ').collect();
        let run = self.start(hosts, hosts.len(), 1, &program);
        for &node in hosts {
            self.await_coordinator(node);
            wait::until_true("the program", limit, || runs(node));
        }
        run
    }

    /// Waits until a coordinator is attached on this node.
    #[track_caller]
    pub fn await_coordinator(&self, node: usize) {
        wait::until_true(&format!("a coordinator on node{node}"), SOON, || {
            self.status(node).is_some_and(|s| !s["coordinator"].is_null())
        });
    }

    /// All events that a node's daemon has kept: what is not among them has not been said.
    pub fn events(&self, node: usize) -> String {
        self.on(node).run(&format!("{BIN}/scrfs-ctl events --mount {SCR} -n {}", u32::MAX)).out
    }
}

fn spawn(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a command in a node starts")
}

/// A running `scrfs-run`; dropping it ends it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    out: PathBuf,
    ended: Option<i32>,
    end_limit: Duration,
}

impl Running {
    /// What it printed so far.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.out).unwrap_or_default()
    }

    /// Its exit code, if it has ended.
    pub fn try_code(&mut self) -> Option<i32> {
        if self.ended.is_none() {
            let status = self.child.try_wait().ok().flatten()?;
            self.ended = Some(crate::shell::code(status));
        }
        self.ended
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end in time.
    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> i32 {
        match wait::poll(limit, || self.try_code()) {
            Some(code) => code,
            None => panic!("scrfs-run did not end in {limit:?}:\n{}", self.output()),
        }
    }

    /// Ends it as a person would, with TERM, and waits for it.
    ///
    /// # Panics
    /// When it does not end in time.
    #[track_caller]
    pub fn stop(&mut self) -> i32 {
        if self.try_code().is_none()
            && let Ok(pid) = i32::try_from(self.child.id())
        {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
        }
        // At the limit itself its shell kills it.
        self.wait(self.end_limit + Duration::from_secs(10))
    }

    /// Waits until the program's log has this line, or says why it never will.
    ///
    /// # Panics
    /// When the job ends before, or the time is up.
    #[track_caller]
    pub fn await_line(&mut self, job: &Job<'_>, line: &str, limit: Duration) {
        let seen = wait::poll(limit, || {
            if job.log().iter().any(|l| l == line) {
                return Some(true);
            }
            self.try_code().map(|_| job.log().iter().any(|l| l == line))
        });
        assert!(seen == Some(true), "no line {line:?}; log: {:?}\n{}", job.log(), self.output());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.try_code().is_none() {
            if let Ok(pid) = i32::try_from(self.child.id()) {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGTERM,
                );
            }
            if wait::poll(Duration::from_secs(15), || self.try_code()).is_none() {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
    }
}
