//! What goes into the supervisor and what comes out of it.

use std::borrow::Cow;
use std::ffi::OsString;
use std::time::Duration;

use scrfs_tools::probe::{Living, Unsealed};

use crate::launcher::Refusal;

/// What the job asks for.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// All hosts in order; those beyond what is needed are spares.
    pub(crate) hosts: Vec<String>,
    /// How many run the program.
    pub(crate) nodes: usize,
    /// Fewest that it can run on; `None`: as many as the last run had.
    pub(crate) min_nodes: Option<usize>,
    /// Runs at most; `None`: until two in a row protect nothing new.
    pub(crate) runs: Option<u32>,
    /// How long recovery may take.
    pub(crate) ready_limit: Duration,
    /// How long sealing and flushing may go on after the program's end.
    pub(crate) flush_limit: Duration,
    /// A launcher that does not end is ended so long after its program's last process; zero: it is
    /// waited for.
    pub(crate) launcher_timeout: Duration,
    /// A program none of whose datasets has become complete for so long is ended; zero: never.
    pub(crate) watchdog: Duration,
    /// Within this time coordinators find a node that is dead.
    pub(crate) node_timeout: Duration,
    /// `--fresh`: datasets that were there before are not wanted.
    pub(crate) fresh: bool,
    /// How it ends.
    pub(crate) end: EndPlan,
}

/// How the job ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndPlan {
    /// For bringing the newest protected dataset to the PFS; zero: it is not brought there.
    pub(crate) grace: Duration,
    /// What a program is sent that does not end when a halt is due.
    pub(crate) signal: u8,
    /// For it to end by itself, before the signal and after it.
    pub(crate) halt_grace: Duration,
    /// What is left of the allocation when the supervisor begins, if that is known.
    pub(crate) left: Option<Duration>,
    /// Somebody can be asked for that again.
    pub(crate) asks: bool,
    /// What ending the program and saving may take of it.
    pub(crate) reserve: Duration,
    /// `SCR_HALT_SECONDS`: coordinators stop the program so long before its end.
    pub(crate) early: Duration,
    /// A restart moves aside what is not sealed.
    pub(crate) keep_unsealed: bool,
}

/// What is started and watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Program,
    Coordinators,
    /// `scrfs-ctl save` on a node.
    Save,
}

/// Why not all is saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SaveError {
    /// What is not on the PFS was named, with the reason.
    Named,
    /// Whoever was to save it has failed: nothing was named.
    Failed(String),
    /// Its launcher has died itself: it may be tried again.
    Crashed,
}

/// How coordinators start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// No program runs: choose a dataset and present it.
    Restart,
    /// The program runs, or has just ended well.
    Attach,
}

/// One node as it was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// As in [`Plan::hosts`].
    pub(crate) host: String,
    /// Why it cannot be used, if so.
    pub(crate) problem: Option<String>,
    /// The problem is merely that nobody has answered in time: neither the node nor the scheduler
    /// says that it is gone.
    pub(crate) silent: bool,
    /// The problem is merely that killed processes have not ended.
    pub(crate) ending: bool,
    /// What a person can do about it, where that is not about the node.
    pub(crate) remedy: Option<&'static str>,
    /// The scheduler's word, if no new job is to use it; this one still may.
    pub(crate) leaving: Option<String>,
    /// The epoch of the coordinators that were attached last.
    pub(crate) epoch: u64,
    /// On how many nodes the newest dataset is, if it is here too.
    pub(crate) held_by: u32,
    /// That dataset outlives the loss of this node.
    pub(crate) expendable: bool,
    /// The highest id that is protected there.
    pub(crate) newest: u64,
    /// Processes that a former scrfs-run of this job, now dead, had left there, and that were
    /// ended.
    pub(crate) orphans: u32,
    /// Processes of this job that are not this run's to end.
    pub(crate) foreign: Vec<Living>,
    /// Processes that have files in the mount's directories open for writing.
    pub(crate) writers: Vec<Living>,
    /// What a restart would remove.
    pub(crate) unsealed: Vec<Unsealed>,
    /// Of how many others the same is true.
    pub(crate) more_unsealed: u64,
    /// The newest protected dataset, in words, if it is not on the PFS.
    pub(crate) unsaved: Option<String>,
}

/// What is known of nodes that are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// All may well be there.
    None,
    /// One may well be dead.
    OfOne,
    /// One may be, if it does not answer a connection and others do. Else the answer has no nodes.
    IfSilent,
}

/// Processes that may be the program's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// Nobody could be asked, or what they do tells nothing.
    Unknown,
    /// A node does not answer.
    Silence,
    /// All nodes do.
    Said {
        /// Their number.
        programs: u64,
        /// Some of them are the program's for certain.
        has_begun: bool,
    },
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// Once, first.
    Begin,
    /// Answers [`Output::Look`].
    Looked {
        /// As asked.
        serial: u64,
        /// Every host that was asked for, save with [`Doubt::IfSilent`].
        nodes: Vec<Look>,
        /// Why the job is to be halted, if the halt file says so.
        halt: Option<String>,
    },
    /// Answers [`Output::CountProcesses`].
    Counted {
        /// As asked.
        run: u32,
        /// On all nodes.
        count: Count,
    },
    /// Answers [`Output::AskEnd`], and comes with each look that precedes a run: when the
    /// allocation ends, by the supervisor's clock. `None`: nobody says. [`Duration::MAX`]: never.
    AllocationEnds(Option<Duration>),
    /// The coordinators say that a halt is due.
    HaltDue(String),
    /// The coordinators that were started have met.
    Met,
    /// The coordinators have settled; id and name of the dataset that they present, if any (restart
    /// only).
    Ready(Option<(u64, OsString)>),
    /// The coordinators say that a dataset is complete.
    Sealed,
    /// A signal that is none of ours tells coordinators to end. Their launcher may have sent it
    /// because it has lost a node, and may wait for another one that it has lost too.
    CoordinatorsLeave,
    /// A coordinator says why it cannot go on; all of them end.
    CoordinatorsFail(String),
    /// The coordinators' job ended with this exit code.
    CoordinatorsEnded(u8),
    /// The program's job ended with this exit code (128 + signal when one ended it).
    ProgramEnded(u8),
    /// Answers [`Output::Save`]: all is where it is to be, or why not.
    Saved(Result<(), SaveError>),
    /// This machine or its configuration keeps a part from being started at all.
    CannotStart(Part, Refusal),
    /// The same of the answer to [`Output::Look`].
    CannotLook(Refusal),
    /// A person or the scheduler wants the end.
    Signal(u8),
    /// The launcher, the scheduler or other nodes name a node as lost.
    Lost {
        /// As in [`Plan::hosts`].
        host: String,
        /// What has become of it, and who says so.
        how: &'static str,
        /// Who says so may take one node for another while coordinators start.
        by_launcher: bool,
    },
    /// A launcher could not launch anything on these nodes.
    NotLaunched {
        /// What it was to launch.
        part: Part,
        /// As in [`Plan::hosts`]; none: it does not name them.
        hosts: Vec<String>,
        /// In its words.
        what: String,
    },
    /// A launcher of coordinators tells of an error of its own.
    LauncherFailed(String),
    /// A launcher says why it cannot launch; the end of what it was to run follows.
    Refused(Refusal),
    /// The time for which [`Output::Wake`] asked has come.
    Tick,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    /// Find out how these nodes are.
    Look {
        /// For the answer.
        serial: u64,
        /// Which.
        hosts: Vec<String>,
        /// End what is left of the job there: nothing of it is to run now.
        sweep: bool,
        /// What is known of them.
        doubt: Doubt,
    },
    /// One coordinator on each.
    StartCoordinators {
        /// Where.
        hosts: Vec<String>,
        /// The program runs on so many of them, the first ones.
        program: usize,
        /// How.
        start: Start,
        /// What is not sealed stays, whatever the job asks for.
        keep: bool,
    },
    /// The program.
    StartProgram {
        /// Where.
        hosts: Vec<String>,
        /// `SCRFS_CURRENT`.
        current: Option<OsString>,
        /// `SCRFS_RUN`, from 1.
        run: u32,
    },
    /// Count the processes of the program on these nodes.
    CountProcesses {
        /// Of which run.
        run: u32,
        /// Where.
        hosts: Vec<String>,
    },
    /// Ask when the allocation ends: somebody may have moved that.
    AskEnd,
    /// Send it this signal.
    SignalProgram(u8),
    /// End it; [`Input::ProgramEnded`] follows.
    StopProgram,
    /// End them; [`Input::CoordinatorsEnded`] follows.
    StopCoordinators,
    /// Kill what was asked to end and does not within a second: it may wait for a node that is
    /// lost.
    Hurry,
    /// Bring the newest dataset to the PFS, and tell when nothing is being sealed or flushed any
    /// more.
    Save {
        /// Whose daemon is asked.
        host: String,
        /// It gives up after this time.
        limit: Duration,
        /// Also wait for what is due by `SCR_FLUSH`.
        due: bool,
        /// The newest dataset is wanted.
        newest: bool,
    },
    /// Send [`Input::Tick`] after this time; replaces an earlier wish.
    Wake(Duration),
    /// For people.
    Say(String),
    /// For people: what to do about what was said last.
    Hint(Cow<'static, str>),
    /// What launchers say about the failure is told in words of our own.
    Explained,
    /// The end, with this exit code.
    Finish(u8),
}
