//! All suites in one binary; a test in `tidy` fails if a file is not listed here.
//!
//! They need root, `/dev/fuse` and Open MPI; each test brings up its own cluster.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "nothing of scrfs itself")]

mod awaited;
mod cluster;
mod crash_points;
mod endings;
mod eyes;
mod flat;
mod full;
mod generations;
mod install;
mod interrupt;
mod keyboard;
mod launchers;
mod lazy;
mod leftovers;
mod limits;
mod logs;
mod marker;
mod messages;
mod patterns;
mod pointers;
mod prefix_away;
mod priority;
mod programs;
mod recovery;
mod relaunch;
mod scavenge;
mod scrub;
mod sealed_bytes;
mod sealed_directories;
mod security;
mod semantics;
mod settings;
mod slurm;
mod sparse;
mod stores;
mod stuck;
mod tidy;
mod unprivileged;
