//! What `scrfs-ctl` and `scrfs-run` share: how they fail, how they print, how they ask a node's
//! daemon.
//!
//! Exit codes: 0 done, 1 it could not be done, 2 wrong usage. Data goes to standard output, talk to
//! standard error.

pub mod ended;
mod failure;
pub mod node;
pub mod output;
pub mod probe;
pub mod scheduler;
pub mod session;
pub mod token;

pub use failure::{Failure, Outcome, exit};
