//! One process on each node, which starts the rest itself: `torchrun`, `accelerate`, a script.
//!
//! Another launcher starts them; what it tells them of itself (their MPI rank) is taken away, so
//! that nobody takes the process for an MPI rank, and the node's number is given as
//! `SCRFS_NODE_RANK`.

use std::ffi::OsString;

use nix::sys::signal::Signal;

use super::{CommandLine, Cpus, Kind, Launcher, Refusal, Said, Task};

/// In the place of the command: finds the node's number, forgets the launcher, becomes the command.
/// srun has an order of its own: there the number is the node's place in `SCRFS_HOSTS`.
/// The first argument has the names that stay. That there is no such program is told in one write:
/// what a shell says of that by itself comes in three, and those of several nodes mix in a line.
const WRAP: &str = r#"SCRFS_NODE_RANK=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${FLUX_TASK_RANK:-${SLURM_PROCID:-0}}}}
if test -z "${OMPI_COMM_WORLD_RANK-}${FLUX_TASK_RANK-}"; then
    nth=0
    for host in $(echo "$SCRFS_HOSTS" | tr , ' '); do
        test "$host" != "${SLURMD_NODENAME-}" || SCRFS_NODE_RANK=$nth
        nth=$((nth + 1))
    done
fi
export SCRFS_NODE_RANK
keep=" $1 "
shift
for name in $(env | sed -n 's/^\(OMPI_[A-Za-z0-9_]*\|PMIX_[A-Za-z0-9_]*\|PMI_[A-Z_]*\|SLURM_PROCID\|SLURM_LOCALID\)=.*/\1/p'); do
    case $keep in *" $name "*) ;; *) unset "$name" ;; esac
done
command -v -- "$1" >/dev/null || { printf '%s: exec: %s: not found\n' "$0" "$1" >&2; exit 127; }
exec "$@""#;

/// What the shell that does this calls itself: no program's own shell begins a line so.
const SHELL: &str = "scrfs-pernode";

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
            task.cpus = Cpus::All;
            let nodes = task.hosts.len().to_string();
            task.environment.insert("SCRFS_NODES".into(), nodes.into());
            // mpirun sets parameters of Open MPI for its ranks; those that are set already are the
            // user's.
            let set = task.environment.keys().filter_map(|name| name.to_str());
            let keep = set.filter(|name| name.starts_with("OMPI_MCA_")).collect::<Vec<_>>().join(" ");
            let wrap = ["/bin/sh", "-c", WRAP, SHELL, &keep].map(OsString::from);
            task.command = wrap.into_iter().chain(task.command).collect();
        }
        self.by.line(task)
    }

    fn understand(&self, text: &str, pid: u32) -> Option<Said> {
        // "scrfs-pernode: exec: ./x: not found", "scrfs-pernode: 4: exec: ./x: Permission denied",
        // "scrfs-pernode: line 4: exec: ./x: cannot execute".
        let shell = text.strip_prefix(SHELL);
        if let Some((_, what)) = shell.and_then(|rest| rest.split_once(": exec: ")) {
            return Some(Said::Refused(Refusal {
                what: format!("the program cannot be run: {}", what.trim_end()),
                hint: "name a program that is there on every node and may be executed",
            }));
        }
        self.by.understand(text, pid)
    }

    fn signal(&self, signal: Signal, pid: u32) -> Option<Vec<OsString>> {
        self.by.signal(signal, pid)
    }

    fn is_program(&self) -> bool {
        self.by.is_program()
    }

    fn fence(&self) -> Option<&'static str> {
        self.by.fence()
    }
}
