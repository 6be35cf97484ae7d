//! Which driver a job gets.
//!
//! `auto`: inside a Slurm allocation whose srun has the pmix plugin, srun; else mpirun. A launcher
//! that is named is taken.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

use super::Launcher;
use super::flux::Flux;
use super::mpirun::Mpirun;
use super::none::Alone;
use super::pbs::{self, Pbs};
use super::pernode::PerNode;
use super::srun::Srun;

/// What `--launcher` says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Asked {
    /// srun in a Slurm allocation if its srun has pmix, else mpirun
    #[default]
    Auto,
    /// Slurm's srun, with pmix
    Srun,
    /// Open MPI's mpirun
    Mpirun,
    /// One process on this host
    None,
    /// One process on each node, which starts the rest itself (torchrun)
    Pernode,
    /// mpirun in a PBS job
    Pbs,
    /// flux run in a Flux instance
    Flux,
}

/// What the choice depends on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    /// `--launcher-program`.
    pub(crate) program: Option<OsString>,
    /// `--launcher-arg`.
    pub(crate) extra: Vec<OsString>,
    /// Inside a Slurm allocation: what `srun` says to [`scrfs::allocation::PMIX_QUESTIONS`];
    /// `None`: not inside, or there is no srun.
    pub(crate) srun: Option<String>,
    /// Inside a Slurm allocation.
    pub(crate) slurm: bool,
    /// Exactly this host is in the list.
    pub(crate) here_alone: bool,
}

/// The drivers, and why.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    pub(crate) launcher: Arc<dyn Launcher>,
    pub(crate) service: Arc<dyn Launcher>,
    /// For people; `None`: nothing was chosen, it was named.
    pub(crate) why: Option<&'static str>,
}

const OUTSIDE: &str = "srun is for a job script of Slurm, and SLURM_JOB_ID is not set";

/// Chooses; an error says what does not fit.
pub(crate) fn choose(asked: Asked, around: &Surroundings) -> Result<Choice, &'static str> {
    let pmix = around.srun.as_deref().is_some_and(scrfs::allocation::has_pmix);
    let named = around.program.as_deref().and_then(kind_of);
    let slurm = matches!(asked, Asked::Auto | Asked::Pernode) && named.unwrap_or(pmix);
    let why = (asked == Asked::Auto).then_some(match (around.slurm, around.srun.is_some(), pmix) {
        _ if named.is_some() => "as --launcher-program says",
        (true, _, true) => "srun, as this is a Slurm allocation and its srun has pmix",
        (true, true, _) => "mpirun, as this allocation's srun has no pmix that can be used",
        (true, ..) => "mpirun, as there is no srun in this Slurm allocation",
        _ => "mpirun, as this is no Slurm allocation",
    });
    let mpirun = |reach| Mpirun {
        program: around.program.clone().unwrap_or_else(|| "mpirun".into()),
        extra: around.extra.clone(),
        reach,
    };
    let srun = || Srun {
        program: around.program.clone().unwrap_or_else(|| "srun".into()),
        extra: around.extra.clone(),
    };
    let one = |launcher: Arc<dyn Launcher>| Choice { service: Arc::clone(&launcher), launcher, why };
    Ok(match asked {
        Asked::Auto if slurm && !around.slurm => return Err(OUTSIDE),
        Asked::Auto if slurm => one(Arc::new(srun())),
        Asked::Auto | Asked::Mpirun => one(Arc::new(mpirun(&[]))),
        Asked::Srun if !around.slurm => {
            return Err(OUTSIDE);
        }
        Asked::Srun => one(Arc::new(srun())),
        Asked::None if !around.here_alone => {
            return Err("without a launcher the program runs on this host alone, and the list has others");
        }
        Asked::None => one(Arc::new(Alone)),
        Asked::Pernode if around.here_alone => {
            Choice { launcher: Arc::new(PerNode { by: Box::new(Alone) }), service: Arc::new(Alone), why }
        }
        Asked::Pernode if slurm => {
            Choice { launcher: Arc::new(PerNode { by: Box::new(srun()) }), service: Arc::new(srun()), why }
        }
        Asked::Pernode => {
            let by = Box::new(mpirun(&[]));
            Choice { launcher: Arc::new(PerNode { by }), service: Arc::new(mpirun(&[])), why }
        }
        Asked::Pbs => one(Arc::new(Pbs { mpirun: mpirun(&pbs::REACH) })),
        Asked::Flux => {
            let program = around.program.clone().unwrap_or_else(|| "flux".into());
            one(Arc::new(Flux { program, extra: around.extra.clone() }))
        }
    })
}

/// Whether a program is srun (true) or a kind of mpirun (false), by its name.
fn kind_of(program: &OsStr) -> Option<bool> {
    let name = Path::new(program).file_name()?.to_str()?;
    let is_mpirun = ["mpirun", "mpiexec", "orterun", "prterun"].iter().any(|known| name.starts_with(known));
    if is_mpirun { Some(false) } else { name.starts_with("srun").then_some(true) }
}
