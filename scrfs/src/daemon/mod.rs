//! The node's half of the daemon: datasets, filemap, coordinator.
//!
//! The mounted tree (what programs see) is one half, the node (datasets, filemap, coordinator) the
//! other; they meet in [`crate::boundary`]. This module is the node. In reading order:
//!
//! * [`node`]: [`Node`] and its life; `service`: coordinators and tools that connect; `commands`
//!   hands each command to the thread that carries it out.
//! * `state`, `disk`: what the node knows, and how that is kept on storage; its forms are
//!   [`crate::record::catalog_file`] and `filemap`; `journal` is the cheap record of new files,
//!   `cache` where bytes are.
//! * `core/desk` and `requests`: programs that wait for an answer; `rounds`: directory operations.
//! * `core/seals`: how far seals are here, and what stays frozen; `freeze` and `seal`: their
//!   beginning and their end; `quiet`: the wait for writers; `promise`: how markers end; `logs`:
//!   what stays open meanwhile; `links`: files of several names; `late`: files that a marker came
//!   too early for.
//! * `members`: coordinators' workers read and write through descriptors that are opened here;
//!   `copies`: sealed files that are brought here to be read.
//! * `generation`: what programs change in a sealed dataset, until it is sealed in its turn;
//!   `changes` tells what they did, `listing` what is in a directory.
//! * `loose` and `loose_store`: pointer files.
//! * `room` and `bound`: what is left of the cache; `stores`: where it could be; `whereabouts`: in
//!   which store a dataset is; `reserve`: room that is kept back for records; `recycled`: pages of
//!   redundancy files that are used again.
//! * `checkpoint_path`: the job's, where it is not the mount's.
//! * `restart`, `transfers`, `scrub`, `eviction`: presenting, verifying, flushing, fetching,
//!   removing; `core/verification` and `verification`: what a lazy restart presents unread;
//!   `removals`: what programs have removed; `scavenge`: saving when a job has ended without
//!   coordinators.
//! * `events`, `report`, `eyes`: what operators and programs see; `losses`: what has left the
//!   caches; `remedies`: what a person can do where there is no room; `wishes`: what operators ask
//!   of the lead.
//! * `priority`: threads that somebody waits for go before those of programs.

pub mod node;

mod bound;
mod cache;
mod changes;
mod checkpoint_path;
mod commands;
mod copies;
mod core;
pub(crate) mod disk;
mod events;
mod eviction;
mod eyes;
mod filemap;
mod freeze;
mod generation;
mod journal;
mod late;
mod links;
mod listing;
mod logs;
mod loose;
mod loose_store;
mod losses;
mod lost_writes;
mod members;
mod priority;
mod promise;
mod quiet;
mod recycled;
mod remedies;
mod removals;
mod report;
mod requests;
mod reserve;
mod restart;
mod room;
mod rounds;
mod scavenge;
mod scrub;
mod seal;
mod service;
mod state;
mod stores;
mod transfers;
mod verification;
mod whereabouts;
mod wishes;

pub use node::{Node, NodeConfig, NodeError};
pub use stores::{CacheStore, tell_of_stores};

#[cfg(test)]
mod tests;
