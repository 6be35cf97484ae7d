//! The daemon of one node: its two halves and the loop that ties them to the coordinator.

pub mod boundary;
