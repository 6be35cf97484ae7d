//! The control protocol: what coordinator, tools and daemon say over the unix socket in the control directory.
//!
//! Three kinds of connection, told apart by the first frame, [`Hello`]:
//! * *coordinator*: one at a time, the highest epoch wins. Commands down, events up, both in order, neither waits for
//!   the other.
//! * *data*: a coordinator's worker threads: one request, one reply, descriptors ride along (SCM_RIGHTS).
//! * *operator*: `scrfs-ctl`: one request, one reply.

pub mod message;

pub use message::{
    Answer, Ask, Command, DataReply, DataRequest, DirHeld, DirOp, Event, FetchFailure, FrozenFile,
    HeldDataset, HeldState, Hello, Inventory, MemberPart, Role, SealedFile, Settings, Start, Welcome,
};
