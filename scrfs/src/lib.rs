//! scrfs: a checkpoint file system. Programs write checkpoints at node-local speed; a marker file
//! seals them; from then on they survive the loss of nodes.
//!
//! This crate is everything of one node: formats, mount, daemon. In reading order:
//!
//! * `ids`, `path`, `errno`, `lock`: types that all others use
//! * `hash`, `record`, `redundancy`, `dataset`: formats, parity, and what a dataset is
//! * `store`, `stores`: small state on storage; where the cache is
//! * `fuse`, `fs`, `boundary`, `daemon`: the adapter to FUSE, the tree that programs see, where
//!   tree and node meet, the node
//! * `control`: what coordinators, tools and daemons say to one another
//! * `keep`, `mount`: what outlives a worker; the processes of a mount
//! * `transfer`, `prefix`: bytes to and from the PFS; the job's directory there
//! * `config`, `status`, `doctor`, `manual`: for people

pub mod allocation;
pub mod beside;
pub mod boundary;
pub mod bounded;
pub mod caller;
pub mod checkpoint_path;
pub mod config;
pub mod control;
pub mod daemon;
pub mod dataset;
#[cfg(feature = "fuse")]
pub mod doctor;
pub mod errno;
pub mod faults;
pub mod fs;
#[cfg(feature = "fuse")]
pub mod fuse;
pub mod halt;
pub mod hash;
pub mod ids;
pub mod keep;
pub mod lane;
pub mod lock;
pub mod log;
pub mod manual;
#[cfg(feature = "fuse")]
pub mod mount;
pub mod mounted;
pub mod path;
#[cfg(test)]
mod patience;
pub mod pattern;
mod plain;
pub mod prefix;
pub mod priority;
pub mod record;
pub mod redundancy;
pub mod remedy;
pub mod run;
pub mod status;
pub mod store;
pub mod stores;
pub mod syslog;
pub mod transfer;
pub mod usage;
