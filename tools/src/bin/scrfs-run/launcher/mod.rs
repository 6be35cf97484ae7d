//! Command lines of parallel launchers, one file each.

pub(crate) mod mpirun;

pub(crate) use mpirun::{CommandLine, Mpirun, Restart};
