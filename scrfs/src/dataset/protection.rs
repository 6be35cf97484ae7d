//! How a dataset is protected, and where it goes: what a checkpoint descriptor says (manual of SCR
//! 1.2, section 6.2). [`Protections::of`] alone decides which one a dataset has: for the lead,
//! which lays out its sets, as for each node, which chooses its store.

use serde::{Deserialize, Serialize};

use super::Scheme;

/// The failure group that every member has: its own node.
pub const NODE: &str = "NODE";

/// One descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protection {
    /// It is for checkpoint ids that this divides; at least 1.
    pub interval: u32,
    /// How the members of a set protect one another.
    pub scheme: Scheme,
    /// Members of a set, as asked for; the layout may differ ([`crate::redundancy::sets`]).
    pub set_size: u32,
    /// Distance between neighbours of a set in the order of members.
    pub hop_distance: u32,
    /// No two members of a set are of one failure group of this kind.
    pub group: String,
    /// Base of the store for the files; `None`: the one with most room.
    pub store: Option<Vec<u8>>,
}

impl Protection {
    /// By this scheme, and else as SCR does where nothing is set.
    pub fn by(scheme: Scheme) -> Self {
        Self { interval: 1, scheme, set_size: 8, hop_distance: 1, group: NODE.to_owned(), store: None }
    }
}

/// A job's descriptors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protections {
    /// For the ids that no descriptor is for.
    pub usual: Protection,
    /// In the order in which they were given.
    pub descriptors: Vec<Protection>,
}

impl Default for Protections {
    /// XOR for all datasets: what holds until a job has told.
    fn default() -> Self {
        Self { usual: Protection::by(Scheme::Xor), descriptors: Vec::new() }
    }
}

impl Protections {
    /// All datasets have this one.
    pub fn all(usual: Protection) -> Self {
        Self { usual, descriptors: Vec::new() }
    }

    /// What a dataset has: the descriptor of the longest interval that divides its checkpoint id;
    /// of equal intervals the first.
    pub fn of(&self, id: u64) -> &Protection {
        let mut best: Option<&Protection> = None;
        for one in self.descriptors.iter().filter(|one| one.interval > 0) {
            if id.is_multiple_of(one.interval.into()) && best.is_none_or(|best| one.interval > best.interval)
            {
                best = Some(one);
            }
        }
        best.unwrap_or(&self.usual)
    }
}

/// For tests: XOR for all, and stores by interval; an empty one is none.
#[cfg(test)]
pub(crate) fn to_stores(named: &[(u32, &str)]) -> Protections {
    let usual = Protection::by(Scheme::Xor);
    let one = |(interval, store): &(u32, &str)| Protection {
        interval: *interval,
        store: (!store.is_empty()).then(|| store.as_bytes().to_vec()),
        ..usual.clone()
    };
    Protections { descriptors: named.iter().map(one).collect(), usual }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_interval_that_divides_the_id_decides() {
        let one = |interval, set_size| Protection { interval, set_size, ..Protection::by(Scheme::Xor) };
        let none = Protections::all(one(1, 8));
        assert_eq!((none.of(1), none.of(12)), (&none.usual, &none.usual));
        let descriptors = vec![one(2, 20), one(4, 40), one(12, 120), one(4, 41), one(0, 9)];
        let some = Protections { descriptors, ..none };
        let sizes: Vec<u32> = (1..=12).map(|id| some.of(id).set_size).collect();
        assert_eq!(sizes, [8, 20, 8, 40, 8, 20, 8, 40, 8, 20, 8, 120]);
    }
}
