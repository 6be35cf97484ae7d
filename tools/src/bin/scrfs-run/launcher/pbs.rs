//! PBS (OpenPBS, Torque): Open MPI's mpirun, whose daemons the scheduler starts (`pbs_tmrsh` in the
//! place of ssh), so that they belong to the job. Written from the manuals, tested with stand-in
//! commands only.

use super::mpirun::Mpirun;
use super::{CommandLine, Launcher, Said, Task};

/// How daemons are started.
pub(super) const REACH: [&str; 6] = ["--mca", "plm", "rsh", "--mca", "plm_rsh_agent", "pbs_tmrsh"];

/// mpirun in a PBS job.
#[derive(Debug, Clone)]
pub(crate) struct Pbs {
    pub(crate) mpirun: Mpirun,
}

impl Launcher for Pbs {
    fn name(&self) -> &'static str {
        "pbs"
    }

    fn line(&self, task: Task) -> CommandLine {
        self.mpirun.line(task)
    }

    fn understand(&self, text: &str, pid: u32) -> Option<Said> {
        // pbs_tmrsh names the host that does not answer.
        if text.starts_with("pbs_tmrsh: ") && text.contains("error") {
            return Some(Said::Noise);
        }
        self.mpirun.understand(text, pid)
    }

    fn fence(&self) -> Option<&'static str> {
        self.mpirun.fence()
    }
}
