//! All suites in one binary; a test in `tidy` fails if a file is not listed here.
//!
//! They need root, `/dev/fuse` and Open MPI; each test brings up its own cluster.

mod cluster;
mod crash_points;
mod eyes;
mod flat;
mod full;
mod generations;
mod interrupt;
mod keyboard;
mod limits;
mod logs;
mod marker;
mod patterns;
mod pointers;
mod prefix_away;
mod programs;
mod recovery;
mod relaunch;
mod sealed_directories;
mod semantics;
mod settings;
mod sparse;
mod stores;
mod tidy;
mod unprivileged;
