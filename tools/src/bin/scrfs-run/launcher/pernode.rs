//! One process on each node, which starts the rest itself: `torchrun`, `accelerate`, a script.
//!
//! Another launcher starts them; what it tells them of itself (their MPI rank) is taken away, so that nobody takes the
//! process for an MPI rank, and the node's number is given as `SCRFS_NODE_RANK`.

use std::ffi::OsString;

use super::{CommandLine, Kind, Launcher, Refusal, Said, Task};

/// In the place of the command: finds the node's number, forgets the launcher, becomes the command.
const WRAP: &str = r#"SCRFS_NODE_RANK=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${FLUX_TASK_RANK:-${SLURM_PROCID:-0}}}}
export SCRFS_NODE_RANK
for name in $(env | sed -n 's/^\(OMPI_[A-Z_]*\|PMIX_[A-Za-z0-9_]*\|PMI_[A-Z_]*\|SLURM_PROCID\|SLURM_LOCALID\)=.*/\1/p'); do unset "$name"; done
exec "$@""#;

/// Over another launcher.
#[derive(Debug)]
pub(crate) struct PerNode {
    pub(crate) by: Box<dyn Launcher>,
}

impl Launcher for PerNode {
    fn name(&self) -> &'static str {
        "pernode"
    }

    fn line(&self, mut task: Task) -> CommandLine {
        if task.kind == Kind::Program {
            task.per_node = 1;
            let nodes = task.hosts.len().to_string();
            task.environment.insert("SCRFS_NODES".into(), nodes.into());
            let wrap = ["/bin/sh", "-c", WRAP, "sh"].map(OsString::from);
            task.command = wrap.into_iter().chain(task.command).collect();
        }
        self.by.line(task)
    }

    fn understand(&self, text: &str, pid: u32) -> Option<Said> {
        // The shell that becomes the command: "sh: 4: exec: ./x: not found", "sh: line 4: exec: ./x: not found".
        if let Some((_, what)) = text.strip_prefix("sh: ").and_then(|rest| rest.split_once(": exec: ")) {
            return Some(Said::Refused(Refusal {
                what: format!("the program cannot be run: {}", what.trim_end()),
                hint: "name a program that is there on every node and may be executed",
            }));
        }
        self.by.understand(text, pid)
    }

    fn fence(&self) -> Option<&'static str> {
        self.by.fence()
    }
}
