//! Commands inside a node: any user, always under a time limit, with what they printed at hand.

use std::fmt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::cluster::simnode;
use crate::place::{JOB_UID, PATH, Place, State, USERS};

/// Builds commands that run in one place of a cluster; see
/// [`Control::on`](crate::cluster::Control::on).
///
/// The commands start from a clean environment (`PATH`, `HOME`, `USER`, `LANG`) in the caller's
/// working directory if it exists there, else in `/`. They are plain [`Command`]s: add arguments
/// and environment, spawn, capture. Killing the spawned process kills the program inside; TERM, INT
/// and HUP are passed on to it.
#[derive(Clone, Debug)]
pub struct Shell {
    state: State,
    place: Place,
    uid: u32,
    limit: Duration,
    grace: Duration,
}

/// Between TERM and KILL.
const GRACE: Duration = Duration::from_secs(2);

impl Shell {
    /// Commands in this place, as root, for at most a minute each.
    pub fn at(state: &State, place: Place) -> Self {
        Self { state: state.clone(), place, uid: 0, limit: Duration::from_mins(1), grace: GRACE }
    }

    /// As this user (and the group of the same number, no others) instead of root.
    #[must_use]
    pub fn user(mut self, uid: u32) -> Self {
        self.uid = uid;
        self
    }

    /// As the job's user.
    #[must_use]
    pub fn job(self) -> Self {
        self.user(JOB_UID)
    }

    /// The time after which the command is ended (TERM, two seconds later KILL); 60 s if not set.
    /// `timeout` exits with 124 then, or 137.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// How long after TERM (its own or one passed on) the command may take before KILL; 2 s if not
    /// set.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// The place that the commands run in.
    pub fn place(&self) -> Place {
        self.place
    }

    /// A command that runs `program` there.
    pub fn cmd(&self, program: &str) -> Command {
        let mut command = Command::new("/usr/bin/timeout");
        command
            .arg("-k")
            .arg(format!("{:.3}", self.grace.as_secs_f64()))
            .arg(format!("{:.3}", self.limit.as_secs_f64()))
            .arg(simnode());
        command.arg("enter").arg(self.state.dir()).arg(self.place.to_string()).arg(self.uid.to_string());
        command.arg(program);
        environment(&mut command, self.uid);
        command.stdin(Stdio::null());
        command
    }

    /// A command that runs a line of shell there.
    pub fn sh(&self, line: &str) -> Command {
        let mut command = self.cmd("/bin/sh");
        command.arg("-c").arg(line);
        command
    }

    /// Runs a line of shell there and waits for its end.
    pub fn run(&self, line: &str) -> Ran {
        Ran::of(&mut self.sh(line))
    }
}

/// The environment that commands in the cluster start from.
pub(crate) fn environment(command: &mut Command, uid: u32) {
    let known = USERS.iter().find(|(_, id)| *id == uid);
    let user = known.map_or(if uid == 0 { "root" } else { "job" }, |(name, _)| name);
    let home = if uid == 0 { "/root" } else { "/tmp" };
    command.env_clear().env("PATH", PATH).env("HOME", home).env("USER", user).env("LOGNAME", user);
    command.env("LANG", "C.UTF-8").env("SHELL", "/bin/sh");
    // Each process of Open MPI would look at all of the machine's hardware, which is slow in a
    // virtual machine, where each look leaves it: two thirds of all that an `mpirun` computes.
    command.env("HWLOC_PLUGINS_PATH", "/none").env("HWLOC_COMPONENTS", "no_os,stop");
    // And lay out tables in shared memory for a handful of ranks.
    command.env("PMIX_MCA_gds", "hash");
    for name in ["RUST_BACKTRACE", "RUST_LOG"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
}

/// A command that has ended.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What was run, for messages.
    pub what: String,
    /// The exit code; 128 + signal if a signal ended it.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Ran {
    /// Runs the command to its end and keeps what it printed.
    #[track_caller]
    pub fn of(command: &mut Command) -> Self {
        let what = describe(command);
        let output = command.output().unwrap_or_else(|e| panic!("cannot start {what}: {e}"));
        Self::from_output(what, &output)
    }

    /// Wraps the output of a command that was started elsewhere.
    pub fn from_output(what: String, output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { what, code: code(output.status), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Whether it exited with 0.
    pub fn ok(&self) -> bool {
        self.code == 0
    }

    /// Gives standard output without surrounding white space; panics with everything known if it
    /// failed.
    #[track_caller]
    pub fn must(&self) -> &str {
        assert!(self.ok(), "{self}");
        self.out.trim()
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nexit {}\n--- stdout\n{}\n--- stderr\n{}", self.what, self.code, self.out, self.err)
    }
}

/// A status as one number, as shells do it.
pub(crate) fn code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn describe(command: &Command) -> String {
    let words: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
    format!("{} {}", command.get_program().to_string_lossy(), words.join(" "))
}
