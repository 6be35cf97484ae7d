//! What a node decides, apart from what it does: inputs in, effects out; no lock, thread, clock,
//! file or socket. The lead is made in the same way (`coordinator/src/lead/`).
//!
//! So far it is the `desk`: from a program's request to its answer. [`super::node::Node`] owns it,
//! gives it each input under the lock of its state, and carries out the effects.

pub(super) mod desk;
pub(super) mod waiting;
