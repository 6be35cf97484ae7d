//! A cluster on one machine, and what tests need around it.
//!
//! Reading order:
//! - [`cluster`]: [`Cluster`], nodes that boot, die, lose power, hang and are cut off; gone with
//!   all they held on drop
//! - [`shell`]: commands inside a node, as any user, always under a time limit
//! - [`mpirun`]: real Open MPI over the nodes
//! - [`place`]: where things are: names, addresses, the directories that every node has
//! - [`job`]: a job on the cluster: mounts, `scrfs-run`, the program's log, faults
//! - [`slurm`]: real Slurm over the nodes, with the hooks of `deploy/slurm/`
//! - [`programs`]: the test programs in C
//! - [`wait`]: waiting for a condition with a deadline and a message
//! - [`settings`]: those of a job that sets next to nothing
//! - [`tree`]: checksums of whole trees, as a node sees them
//! - [`pages`]: what the pages for people name is there
//! - [`parsers`]: everything that reads bytes of others, as functions that any bytes may be given
//!   to
//! - [`tidy`]: the house rules as tests
//! - [`simnode`]: the other side, run by the helper program `scrfs-simnode`: node init, entering,
//!   remote shell
//!
//! Nothing is made in the machine's own network, mount or PID namespace, and only processes of the
//! cluster are ended.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "nothing of scrfs itself")]

pub mod cluster;
pub mod job;
pub mod mpirun;
pub mod pages;
pub mod parsers;
pub mod place;
pub mod programs;
pub mod settings;
pub mod shell;
pub mod simnode;
pub mod slurm;
pub mod tidy;
pub mod tree;
pub mod wait;

pub use cluster::{Cluster, Config};
pub use mpirun::MpiRun;
pub use place::Place;
pub use shell::{Ran, Shell};
pub use slurm::{Batch, Slurm};
