//! Looking a name up and changing names in one directory exclude each other, so that the table
//! never learns of a name what was true only before the change. (The kernel does so itself, but not
//! when it checks a name that it knows.)
//!
//! Directories share a fixed number of gates.

use crate::lock::{Rank, ReadGuard, RwLock, WriteGuard};

const GATES: usize = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Gates([RwLock<()>; GATES]);

impl Default for Gates {
    fn default() -> Self {
        Self([const { RwLock::new(Rank::Gate, ()) }; GATES])
    }
}

/// Held while names change.
pub(crate) type Change<'a> = (WriteGuard<'a, ()>, Option<WriteGuard<'a, ()>>);

impl Gates {
    fn at(directory: u64) -> usize {
        usize::try_from(directory % GATES as u64).unwrap_or(0)
    }

    /// Until the guard goes no name in `directory` changes.
    pub(crate) fn look(&self, directory: u64) -> ReadGuard<'_, ()> {
        self.0[Self::at(directory)].read()
    }

    /// Until the guard goes nobody looks a name up in `directory`, or changes one.
    pub(crate) fn change(&self, directory: u64) -> Change<'_> {
        self.change_two(directory, directory)
    }

    /// The same of two directories.
    pub(crate) fn change_two(&self, one: u64, two: u64) -> Change<'_> {
        let (one, two) = (Self::at(one), Self::at(two));
        // In one order for everybody.
        let first = self.0[one.min(two)].write();
        (first, (one != two).then(|| self.0[one.max(two)].write()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_directories_at_one_gate_take_it_once() {
        let gates = Gates::default();
        drop(gates.change_two(3, 3 + GATES as u64));
        let both = gates.change_two(9, 4);
        assert!(!gates.0[4].can_be_read() && !gates.0[9].can_be_read());
        drop(both);
        let look = gates.look(5);
        assert!(!gates.0[5].can_be_written() && gates.0[5].can_be_read());
        drop(look);
    }
}
