//! scrfs-coordinator: one MPI process per node, beside the program. In reading order:
//!
//! * [`service`], [`open`], [`run`]: the process, the opening of an epoch, the loop
//! * [`lead`]: what rank 0 decides; [`job`], [`scrfs::prefix`]: what it has done for it
//! * [`peers`], [`tree`], [`bell`], [`comm`]: what is said to other coordinators, and heard from
//!   them
//! * [`jobs`]: bytes of datasets between nodes; [`node`]: this node's daemon; [`inbox`]: what wakes
//!   the loop; [`watch`]: whether the others live

pub mod bell;
pub mod comm;
pub mod epoch;
pub mod fold;
pub mod groups;
pub mod inbox;
pub mod job;
pub mod jobs;
pub mod lead;
pub mod message;
pub mod node;
pub mod open;
pub mod pace;
pub mod peers;
pub mod points;
pub mod ready;
pub mod run;
pub mod service;
pub mod settings;
pub mod tree;
pub mod watch;
