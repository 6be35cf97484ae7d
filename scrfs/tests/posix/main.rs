//! Is the mount told apart from the file system below it? Everything here is asked of both, and the
//! answers compared.
//!
//! `op` is what can be asked, `perform` asks it, `twins` compares; `random` asks at random,
//! `tables` systematically, `scenes` are longer stories, `programs` are real programs. Needs root
//! and /dev/fuse; each test has a mount namespace of its own.
#![cfg(feature = "fuse")]
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub, reason = "a test")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "nothing of scrfs itself")]

mod crowds;
mod fence;
mod op;
mod perform;
mod place;
mod programs;
mod random;
mod scenes;
mod tables;
mod twins;
