//! The other half of the daemon, as the tree asks it and tells it things.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock, Weak};

use crate::boundary::GlobalRequests;
use crate::errno::Errno;
use crate::lock::Mutex;

/// How many different things are said once, at most: programs make names without end.
const SAID_MAX: usize = 256;

/// See the module.
#[derive(Default)]
pub(crate) struct NodeLink {
    node: OnceLock<Weak<dyn GlobalRequests>>,
    said: Mutex<HashSet<String>>,
}

impl NodeLink {
    /// Tells whom to ask; once.
    pub(crate) fn connect(&self, node: &Arc<dyn GlobalRequests>) {
        if self.node.set(Arc::downgrade(node)).is_err() {
            tracing::error!("the mounted tree is connected to its node already");
        }
    }

    /// Whom to ask; EAGAIN before there is anybody, and when the node has ended.
    pub(crate) fn get(&self) -> Result<Arc<dyn GlobalRequests>, Errno> {
        self.node.get().and_then(Weak::upgrade).ok_or(Errno(libc::EAGAIN))
    }

    /// For the events.
    pub(crate) fn note(&self, text: String) {
        if let Ok(node) = self.get() {
            node.note(text);
        } else {
            tracing::warn!("{text}");
        }
    }

    /// The same, unless it was said before.
    pub(crate) fn note_once(&self, text: String) {
        let mut said = self.said.lock();
        let news = said.len() < SAID_MAX && said.insert(text.clone());
        drop(said);
        if news {
            self.note(text);
        }
    }
}
