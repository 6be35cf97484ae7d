//! What a node decides, apart from what it does: inputs in, effects out; no lock, thread, clock,
//! file or socket. The lead is made in the same way (`coordinator/src/lead/`).
//!
//! So far these are the `desk`, from a program's request to its answer; the node's part in `seals`;
//! and the `verification` of files that a restart presented unread. [`super::node::Node`] owns
//! them, gives them each input under a lock, and carries out the effects.

pub(super) mod desk;
pub(super) mod seals;
pub(super) mod verification;
pub(super) mod waiting;
