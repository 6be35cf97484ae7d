//! Real Open MPI over the nodes: `mpirun` in the head, the helper program in the place of ssh.

use std::process::Command;
use std::time::Duration;

use crate::place::{BIN, Place};
use crate::shell::Shell;

/// Builds `mpirun` command lines; see [`Control::mpirun`](crate::cluster::Control::mpirun).
#[derive(Clone, Debug)]
pub struct MpiRun {
    shell: Shell,
    hosts: Vec<usize>,
    ranks: usize,
}

impl MpiRun {
    pub(crate) fn new(head: Shell, hosts: &[usize], ranks: usize) -> Self {
        Self { shell: head, hosts: hosts.to_vec(), ranks }
    }

    /// As the job's user.
    #[must_use]
    pub fn job(mut self) -> Self {
        self.shell = self.shell.job();
        self
    }

    /// The time after which it is ended (with a node cut off, mpirun can hang and ignore TERM).
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.shell = self.shell.limit(limit);
        self
    }

    /// A command that runs `program` on the nodes; its arguments can be added.
    pub fn cmd(&self, program: &str) -> Command {
        let hosts: Vec<_> = self.hosts.iter().map(|&k| Place::Node(k).to_string()).collect();
        let mut command = self.shell.cmd("mpirun.openmpi");
        command
            .arg("--host")
            .arg(hosts.join(","))
            .arg("-np")
            .arg(self.ranks.to_string())
            .arg("--map-by")
            .arg("node");
        command.arg("--oversubscribe").arg(program);
        for (name, value) in site_environment() {
            command.env(name, value);
        }
        command
    }
}

/// What an administrator of this cluster would put into Open MPI's site parameters (and it is put
/// there): how to reach a node, that few cores serve many ranks, that a silent node is given up
/// after four seconds, and which components there is use for, as all others are loaded in vain.
pub const SITE_PARAMETERS: [(&str, &str); 9] = [
    ("plm_rsh_agent", "/run/sim/bin/scrfs-simnode rsh"),
    ("rmaps_base_oversubscribe", "1"),
    ("mpi_yield_when_idle", "1"),
    ("hwloc_base_binding_policy", "none"),
    ("oob_tcp_keepalive_time", "2"),
    ("oob_tcp_keepalive_intvl", "1"),
    ("oob_tcp_keepalive_probes", "2"),
    ("pml", "ob1"),
    ("coll", "basic,tuned,libnbc,self,inter"),
];

/// The same as environment variables, and leave to run as root. For programs that call mpirun
/// themselves.
pub fn site_environment() -> Vec<(String, String)> {
    debug_assert!(SITE_PARAMETERS[0].1.starts_with(BIN));
    let mut all: Vec<_> = SITE_PARAMETERS
        .iter()
        .map(|(name, value)| (format!("OMPI_MCA_{name}"), (*value).to_owned()))
        .collect();
    for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        all.push((name.to_owned(), "1".to_owned()));
    }
    all
}
