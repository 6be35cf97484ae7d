//! Has a request had its effect? Told from its intent, and from what is there now.
//!
//! While a request that changes names has no answer, the kernel lets nobody else change names in
//! the same directories, and while one that changes an inode's size has none, nobody else changes
//! that. So what is there now was there before the request, or is its work.

use crate::ids::RequestId;

/// Device and inode number.
pub type Key = (u64, u64);

/// What a changing request was about to do; written before its first effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Makes a name that was not there.
    Make,
    /// Removes a name that stood for `victim`.
    Remove {
        /// What it stood for.
        victim: Key,
    },
    /// Moves `from` over `to`, or exchanges them.
    Rename {
        /// What the old name stood for.
        from: Key,
        /// What the new one stood for.
        to: Option<Key>,
        /// Both names stay.
        exchange: bool,
    },
    /// Takes bytes out of a file, or puts room in.
    Resize {
        /// The size before.
        before: u64,
    },
    /// Sets an extended attribute that was not there.
    SetAttribute,
    /// Removes an extended attribute that was there.
    RemoveAttribute,
    /// Hides a name of a sealed dataset.
    Hide,
    /// Asks the lead.
    Global {
        /// Under this id.
        request: RequestId,
        /// There was no lead: it is done on this node alone, and was allowed.
        alone: bool,
        /// The lead's answer: an errno, 0 for success.
        outcome: Option<i32>,
    },
}

/// What is there now, as far as the intent's kind asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// What the name (of a rename: the old one) stands for.
    pub name: Option<Key>,
    /// What a rename's new name stands for.
    pub to: Option<Key>,
    /// The file's size.
    pub size: u64,
    /// The attribute is there; the name is hidden.
    pub present: bool,
}

impl Intent {
    /// True when the effect has been had: what is left is to answer.
    pub fn is_done(&self, now: &Now) -> bool {
        match *self {
            Self::Make => now.name.is_some(),
            Self::Remove { victim } => now.name != Some(victim),
            // Two names of one inode: nothing happens, however often.
            Self::Rename { from, to, .. } if to == Some(from) => false,
            Self::Rename { from, to, exchange: true } => now.to == Some(from) && now.name == to,
            Self::Rename { from, exchange: false, .. } => now.to == Some(from) && now.name != Some(from),
            Self::Resize { before } => now.size != before,
            Self::SetAttribute | Self::Hide => now.present,
            Self::RemoveAttribute => !now.present,
            Self::Global { outcome, .. } => outcome.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Key = (1, 10);
    const B: Key = (1, 11);

    fn names(name: Option<Key>, to: Option<Key>) -> Now {
        Now { name, to, ..Now::default() }
    }

    #[test]
    fn effects_are_seen() {
        let rename = |to, exchange| Intent::Rename { from: A, to, exchange };
        let request = RequestId { origin: 1, serial: 2 };
        let global = |outcome| Intent::Global { request, alone: false, outcome };
        let size = |size| Now { size, ..Now::default() };
        let present = |present| Now { present, ..Now::default() };
        let table = [
            ("make, not yet", Intent::Make, names(None, None), false),
            ("make, done", Intent::Make, names(Some(A), None), true),
            ("remove, not yet", Intent::Remove { victim: A }, names(Some(A), None), false),
            ("remove, done", Intent::Remove { victim: A }, names(None, None), true),
            ("remove, and another took the name", Intent::Remove { victim: A }, names(Some(B), None), true),
            ("move, not yet", rename(None, false), names(Some(A), None), false),
            ("move, done", rename(None, false), names(None, Some(A)), true),
            ("replace, not yet", rename(Some(B), false), names(Some(A), Some(B)), false),
            ("replace, done", rename(Some(B), false), names(None, Some(A)), true),
            ("exchange, not yet", rename(Some(B), true), names(Some(A), Some(B)), false),
            ("exchange, done", rename(Some(B), true), names(Some(B), Some(A)), true),
            ("one inode", rename(Some(A), false), names(Some(A), Some(A)), false),
            ("one inode, exchanged", rename(Some(A), true), names(Some(A), Some(A)), false),
            ("resize, not yet", Intent::Resize { before: 8 }, size(8), false),
            ("resize, done", Intent::Resize { before: 8 }, size(4), true),
            ("set, not yet", Intent::SetAttribute, present(false), false),
            ("set, done", Intent::SetAttribute, present(true), true),
            ("remove attribute, not yet", Intent::RemoveAttribute, present(true), false),
            ("remove attribute, done", Intent::RemoveAttribute, present(false), true),
            ("hide, done", Intent::Hide, present(true), true),
            ("asked", global(None), Now::default(), false),
            ("answered", global(Some(17)), Now::default(), true),
        ];
        for (what, intent, now, done) in table {
            assert_eq!(intent.is_done(&now), done, "{what}");
        }
    }
}
