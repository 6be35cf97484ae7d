//! Slurm's srun, as a step of the allocation that this program is in.

use std::ffi::{OsStr, OsString};

use nix::sys::signal::Signal;

use super::{CommandLine, Cpus, Kind, Launcher, NotLaunched, Refusal, Said, Task, mpirun};

/// Settings of the batch script's steps that are not those of our own programs. (Options that are
/// given here beat the rest.)
const PLACEMENT: [&str; 21] = [
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPU_BIND",
    "SLURM_DISTRIBUTION",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPU_BIND",
    "SLURM_HINT",
    "SLURM_MEM_BIND",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE",
    "SLURM_NPROCS",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NTASKS_PER_SOCKET",
    "SLURM_THREADS_PER_CORE",
    "SLURM_TRES_PER_TASK",
];

/// Finds the step of this srun, and has Slurm signal its processes.
const SIGNAL: &str = r#"
srun="SrunHost:Pid=$(uname -n | cut -d . -f 1):$1"
step=$(scontrol -o show step "$SLURM_JOB_ID" | sed -n "s/^StepId=\([^ ]*\) .* $srun\( .*\)*\$/\1/p")
test -n "$step" || { echo "no step has $srun"; exit 1; }
exec scancel --signal="$2" "$step""#;

/// The `srun` of a job.
#[derive(Debug, Clone)]
pub(crate) struct Srun {
    /// `srun`, or where it is.
    pub(crate) program: OsString,
    /// More arguments, for the program only.
    pub(crate) extra: Vec<OsString>,
}

impl Launcher for Srun {
    fn name(&self) -> &'static str {
        "srun"
    }

    /// The step shares the nodes with others (`--overlap`: else it waits for their end), ends when
    /// a node fails (`--no-kill=off`: the allocation's own `--no-kill` would hold for it too), and
    /// when a rank fails.
    fn line(&self, task: Task) -> CommandLine {
        let Task { hosts, per_node, command, mut environment, kind, cpus } = task;
        environment.insert("SLURM_OVERLAP".into(), "1".into());
        let total = hosts.len().saturating_mul(per_node);
        let mut arguments: Vec<OsString> = [
            if kind == Kind::Tool { "--mpi=none" } else { "--mpi=pmix" }.to_owned(),
            "--overlap".to_owned(),
            "--no-kill=off".to_owned(),
            "--kill-on-bad-exit=1".to_owned(),
            "--export=ALL".to_owned(),
            format!("--nodes={}", hosts.len()),
            format!("--nodelist={}", scrfs::config::hosts::list(&hosts)),
            format!("--ntasks={total}"),
            format!("--ntasks-per-node={per_node}"),
        ]
        .map(OsString::from)
        .to_vec();
        match kind {
            // As mpirun does: the first rank alone reads.
            Kind::Program => {
                arguments.push("--input=0".into());
                // Since 22.05 it does not take this from its allocation.
                if let Cpus::Each(cpus) = cpus
                    && !environment.contains_key(OsStr::new("SRUN_CPUS_PER_TASK"))
                {
                    arguments.push(format!("--cpus-per-task={cpus}").into());
                }
            }
            Kind::Service | Kind::Tool => {
                environment.retain(|name, _| PLACEMENT.iter().all(|placement| name != placement));
                environment.insert("OMPI_MCA_mpi_yield_when_idle".into(), "1".into());
                arguments.extend(["--input=none", "--cpus-per-task=1"].map(OsString::from));
            }
        }
        if kind == Kind::Service {
            arguments.push("--cpu-bind=none".into());
        }
        if kind == Kind::Program {
            arguments.extend(self.extra.iter().cloned());
        }
        arguments.extend(command);
        CommandLine { program: self.program.clone(), arguments, environment, directory: None }
    }

    fn understand(&self, text: &str, _: u32) -> Option<Said> {
        let text = text.trim_end();
        if !(text.starts_with("srun: ") || text.starts_with("slurmstepd")) {
            return mpirun::is_noise(text).then_some(Said::Noise);
        }
        if let Some(nodes) = text.strip_prefix("srun: error: Node failure on ") {
            return Some(Said::Lost(scrfs::config::hosts::expand(nodes).unwrap_or_default()));
        }
        if let Some((_, what)) = text.split_once("error: execve(): ") {
            return Some(Said::Refused(Refusal {
                what: format!("the program cannot be run: {what}"),
                hint: "name a program that is there on every node and may be executed",
            }));
        }
        if text.contains(" step creation temporarily disabled")
            || text.contains(" step creation still disabled")
        {
            return Some(Said::Waits);
        }
        let what = || format!("srun: {}", text.trim_start_matches("srun: ").trim_start_matches("error: "));
        if text.contains("Invalid MPI type") {
            return Some(Said::Refused(Refusal {
                what: what(),
                hint: "Slurm's pmix plugin is missing or cannot be loaded (Debian's needs libpmix-dev on \
                       every node): --launcher mpirun needs none",
            }));
        }
        if text.contains("Requested node configuration is not available") {
            return Some(Said::Refused(Refusal {
                what: what(),
                hint: "a node that Slurm has lost leaves the allocation; one that is in it still has less than is asked for \
                       (--ranks-per-node, sbatch --ntasks-per-node)",
            }));
        }
        for wrong in ["Unable to create step", "Only allocated", "unrecognized option", "Invalid node name"] {
            if text.contains(wrong) {
                return Some(Said::Refused(Refusal {
                    what: what(),
                    hint: "ask for no more nodes and tasks than the allocation has (--nodes, --ranks-per-node, sbatch -N, \
                           --ntasks-per-node)",
                }));
            }
        }
        if let Some(failed) = not_launched(text) {
            return Some(Said::NotLaunched(failed));
        }
        // How its tasks ended is of interest when nothing else explains it.
        let own = text.strip_prefix("srun: error: ").filter(|own| !own.contains(": task"));
        Some(own.map_or(Said::Noise, |_| Said::Failed(what())))
    }

    /// At TERM it kills the step; this one it passes on.
    fn stop_signal(&self) -> Signal {
        Signal::SIGUSR1
    }

    /// USR1 and USR2 it passes on. At all else it kills the step.
    fn signal(&self, signal: Signal, pid: u32) -> Option<Vec<OsString>> {
        if [Signal::SIGUSR1, Signal::SIGUSR2].contains(&signal) {
            return None;
        }
        let word = signal.as_str().trim_start_matches("SIG");
        Some(["-c", SIGNAL, "scrfs-signal", &pid.to_string(), word].map(OsString::from).to_vec())
    }

    fn fence(&self) -> Option<&'static str> {
        Some(mpirun::FENCE)
    }
}

/// `srun: error: task 1 launch failed: Unspecified error`, or `srun: error: Task launch for
/// StepId=7.1 failed on node node2: ...`.
fn not_launched(text: &str) -> Option<NotLaunched> {
    let what = text.strip_prefix("srun: error: ")?;
    let found = |hosts, tasks| NotLaunched { hosts, tasks, what: format!("srun: {what}") };
    if let Some((_, node)) =
        what.strip_prefix("Task launch for ").and_then(|rest| rest.split_once(" on node "))
    {
        let (node, _) = node.split_once(':')?;
        return Some(found(scrfs::config::hosts::expand(node).unwrap_or_default(), Vec::new()));
    }
    let list = what.strip_prefix("tasks ").or_else(|| what.strip_prefix("task "))?;
    let (list, _) = list.split_once(" launch failed: ")?;
    let names = scrfs::config::hosts::expand(&format!("t[{list}]")).unwrap_or_default();
    Some(found(Vec::new(), names.iter().filter_map(|name| name[1..].parse().ok()).collect()))
}

/// What Slurm says of a step while it has not heard of its nodes since it was started anew, or
/// while what ran on them is still being cleared away.
pub(crate) fn is_of_a_restart(what: &str) -> bool {
    const TRANSIENT: [&str; 5] = [
        "Memory required by task is not available",
        "Requested nodes are busy",
        "Required node not available",
        "Unable to contact slurm controller",
        "Socket timed out on send/recv operation",
    ];
    TRANSIENT.iter().any(|transient| what.contains(transient))
}
