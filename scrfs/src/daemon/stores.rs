//! The stores of the mount and those that it could not use, for the events and for status.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::status::StoreStatus;

use super::events::Events;
use super::node::Node;

/// One entry of `SCR_CACHE_BASE`, as it was when it was mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStore {
    /// The entry.
    pub base: PathBuf,
    /// The cache is in it, or a part of it.
    pub used: bool,
    /// It is the primary store.
    #[serde(default)]
    pub primary: bool,
    /// It could not be used, or has files that are not seen.
    pub problem: bool,
    /// Why it is used, or what is wrong with it; empty where there is nothing to say.
    pub note: String,
}

impl CacheStore {
    /// A line for people, if something is wrong.
    pub fn warning(&self) -> Option<String> {
        self.problem.then(|| format!("SCR_CACHE_BASE: {}: {}", self.base.display(), self.note))
    }
}

/// Puts the choice of the stores, the primary and others, into the events of a control directory of
/// which no worker has begun yet.
pub fn tell_of_stores(
    control: &Path,
    count: usize,
    (primary, others): (&Path, &[&Path]),
    why: impl Display,
    warnings: &[String],
) {
    if count < 2 && warnings.is_empty() {
        return;
    }
    let events = Events::open(control, None);
    for warning in warnings {
        events.warning(None, warning);
    }
    let others: Vec<String> = others.iter().map(|base| base.display().to_string()).collect();
    let others = if others.is_empty() {
        String::new()
    } else {
        format!("; datasets may go to {} too", others.join(", "))
    };
    events.info(None, &format!("the cache is in {}: {why}{others}", primary.display()));
}

impl Node {
    pub(super) fn stores(&self) -> Vec<StoreStatus> {
        let described = |store: &CacheStore| {
            let room = rustix::fs::statvfs(&store.base).ok();
            StoreStatus {
                path: store.base.display().to_string(),
                used: store.used,
                note: store.note.clone(),
                room: room.map(|room| {
                    let bytes = |blocks: u64| blocks.saturating_mul(room.f_frsize);
                    (bytes(room.f_bavail), bytes(room.f_blocks))
                }),
            }
        };
        self.config.stores.iter().map(described).collect()
    }
}
