//! What scrfs-run asks of a node: are you there, does your mount answer, what is the newest dataset
//! that you know to be protected; and, when nothing of the job is to run, that what is left of it
//! be ended.
//!
//! The question is `scrfs-ctl probe`, run on the node by the launcher; the answer is one line of
//! its output.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

/// A line of output that begins so is an answer.
const MARK: &str = "scrfs-probe ";

/// The environment variable that everything scrfs-run starts carries, with a value of its own.
pub use scrfs::run::VARIABLE as RUN_VARIABLE;

/// The exit code of `scrfs-ctl save` when not all is on the PFS, and what is not was named.
pub const NAMED: u8 = 3;

/// A node's answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Its host name as the launcher's list has it.
    pub host: String,
    /// Why it cannot be used, if so.
    pub problem: Option<String>,
    /// Its daemon has merely not answered in time.
    #[serde(default)]
    pub late: bool,
    /// A process of the former run that was killed and takes its time to end, which is the problem.
    #[serde(default)]
    pub ending: Option<u32>,
    /// The highest id of a dataset that is protected there; 0 = none.
    pub newest: u64,
    /// The epoch of the coordinators that were attached last.
    #[serde(default)]
    pub epoch: u64,
    /// On how many nodes that dataset is, if it is here too; else 0.
    #[serde(default)]
    pub held_by: u32,
    /// It outlives the loss of this node.
    #[serde(default)]
    pub expendable: bool,
    /// Processes of this run that were found and ended.
    pub ended: u32,
    /// Processes that a former run of the job had left, found and ended.
    pub orphans: u32,
    /// Processes of the job that are not this run's to end: a restart would pull their files from
    /// under them.
    pub foreign: Vec<Living>,
    /// Processes that have files in the mount's directories open for writing.
    pub writers: Vec<Living>,
    /// What a restart would remove there.
    pub unsealed: Vec<Unsealed>,
    /// Of how many others the same is true.
    #[serde(default)]
    pub more_unsealed: u64,
    /// The newest protected dataset, in words, if it is not on the PFS.
    pub unsaved: Option<String>,
    /// Processes that may be the program's, where they were asked for.
    #[serde(default)]
    pub programs: Option<u32>,
    /// At least one of these is the program's for certain.
    #[serde(default)]
    pub has_begun: bool,
}

/// Something of a dataset that is not sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsealed {
    /// The dataset's name.
    pub name: String,
    /// What became of it.
    #[serde(default)]
    pub stage: Stage,
    /// Files of it on that node.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// How far a dataset has come that is not sealed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stage {
    /// It was begun.
    #[default]
    Open,
    /// It was being sealed. Whether that came to its end is known when all nodes are asked.
    Sealing,
    /// It was sealed; these files of it were made or changed since.
    Changed,
}

/// A process that lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Living {
    /// On its host.
    pub pid: u32,
    /// Its command, and why it counts.
    pub what: String,
}

impl Display for Living {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} ({})", self.pid, self.what)
    }
}

impl Report {
    /// As a line of output.
    pub fn line(&self) -> String {
        format!("{MARK}{}\n", serde_json::to_string(self).unwrap_or_default())
    }

    /// All answers in the output of a launcher, whatever else it has to say.
    pub fn find_all(output: &str) -> Vec<Self> {
        output
            .lines()
            .filter_map(|line| serde_json::from_str(line.split_once(MARK)?.1.trim_end()).ok())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_among_other_output() {
        let one =
            Report { host: "n1".into(), problem: Some("no mount".into()), newest: 7, ..Report::default() };
        let foreign = vec![Living { pid: 7, what: "lmp".into() }];
        let two = Report { host: "n2".into(), ended: 2, foreign, ..Report::default() };
        let text =
            format!("Welcome to n1\n{}WARNING: x\n[1,0]<stdout>:{}scrfs-probe {{\n", one.line(), two.line());
        assert_eq!(Report::find_all(&text), [one, two]);
    }
}
