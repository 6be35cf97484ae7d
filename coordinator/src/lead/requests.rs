//! Requests of programs, each carried out once: a node may ask for one again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use scrfs::ids::RequestId;

/// Answers that are remembered in case a request comes again.
const REMEMBERED: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Neither answered nor given up.
    open: BTreeSet<RequestId>,
    answered: BTreeMap<RequestId, i32>,
    /// The oldest answer first.
    order: VecDeque<RequestId>,
}

impl Requests {
    /// The errno that a request was answered with; 0 is success.
    pub(super) fn answer(&self, id: RequestId) -> Option<i32> {
        self.answered.get(&id).copied()
    }

    /// A request came; false when it is being carried out already.
    pub(super) fn open(&mut self, id: RequestId) -> bool {
        self.open.insert(id)
    }

    /// Requests have their answers.
    pub(super) fn close(&mut self, results: &[(RequestId, i32)]) {
        for &(id, errno) in results {
            self.open.remove(&id);
            self.answered.insert(id, errno);
            self.order.push_back(id);
        }
        while self.order.len() > REMEMBERED {
            if let Some(old) = self.order.pop_front() {
                self.answered.remove(&old);
            }
        }
    }
}
