//! The control protocol: what coordinator, tools and daemon say over the unix socket in the control
//! directory.
//!
//! Three kinds of connection, told apart by the first frame, [`Hello`]:
//! * *coordinator*: one at a time, the highest epoch wins. Commands down, events up, both in order,
//!   neither waits for the other.
//! * *data*: a coordinator's worker threads: one request, one reply, descriptors ride along
//!   (SCM_RIGHTS).
//! * *operator*: `scrfs-ctl`: one request, one reply.
//!
//! Messages are values only; framing is in `codec`, meaning in `scrfs/docs/protocol.md`.

pub mod client;
pub mod codec;
mod command;
mod data;
pub(crate) mod directory;
mod event;
mod greeting;
mod held;
pub mod loose;
pub mod lost;
pub(crate) mod peer;
pub mod question;
pub mod ready;
mod reason;
pub mod server;
mod settings;
pub mod stream;

pub use command::{Command, MarkerOutcome};
pub use data::{DataReply, DataRequest};
pub use event::{Event, FetchFailure, NoRoom, Room, SealedFile, Severity};
pub use greeting::{Answer, Ask, Flushable, Hello, Named, PROTOCOL, Role, Scavenged, Start, Welcome};
pub use held::{
    Advice, DirHeld, DirOp, FrozenFile, FrozenPart, HeldDataset, HeldState, Inventory, MemberPart, Removed,
    VerifiedMember, sum_of_paths,
};
pub use reason::Reason;
pub(crate) use reason::are_reasons;
pub use settings::{AdviceRules, JobRules, LooseRules, MarkerScope, RestartRules, SealRules, Settings};

/// Settings for this crate's tests. No wait of theirs ends while a test runs: a test of its end
/// makes it short.
#[cfg(test)]
pub(crate) fn test_settings() -> Settings {
    use crate::dataset::Protections;

    Settings {
        prefix: b"/tmp".to_vec(),
        user: "tester".into(),
        job_id: "j1".into(),
        checkpoint_path: None,
        coordinator_wait_ms: 600_000,
        seal_timeout_ms: 600_000,
        cache_size: 2,
        cache_bytes: 0,
        protections: Protections::default(),
        enable: true,
        flush_every: 0,
        scrub_interval_ms: 0,
        fetch: true,
        distribute: true,
        list_max: 100_000,
        jobs: JobRules { block_bytes: 1 << 17, encode_threads: 1 },
        sealing: SealRules::default(),
        loose: LooseRules::default(),
        restart: RestartRules::default(),
        advice: AdviceRules::default(),
    }
}
