//! scrfs: a checkpoint file system. Programs write checkpoints at node-local speed; a marker file
//! seals them; from then on they survive the loss of nodes.
//!
//! This crate is everything of one node: formats, mount, daemon. In reading order:

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
