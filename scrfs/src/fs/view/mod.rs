//! What programs see, and what they may do now: pure.
//!
//! In reading order: `place` says what a path means, `rules` what the job's settings make of
//! names; `sealed` is how one sealed dataset is seen, and `world` all that an operation must
//! respect at the moment. Nothing here opens a file or asks a clock: what is in the tree, or in
//! /proc, is handed in.

mod place;
mod rules;
mod sealed;
mod world;

pub(crate) use self::place::{Namespace, Place, RESERVED_AT_ROOT};
pub(crate) use self::rules::{FlatName, Rules};
pub(crate) use self::sealed::{Name, Sealed};
pub(crate) use self::world::{World, paths_of};
