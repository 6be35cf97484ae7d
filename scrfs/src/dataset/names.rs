//! Names of a dataset that stand for themselves and for all that is below them.

use std::collections::BTreeSet;

use crate::path::RelPath;

/// See the module. Paths are relative to the dataset's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names(BTreeSet<RelPath>);

impl Names {
    /// None.
    pub const fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In order, without what is below them.
    pub fn iter(&self) -> impl Iterator<Item = &RelPath> {
        self.0.iter()
    }

    /// Adds a name.
    pub fn insert(&mut self, name: RelPath) {
        self.0.insert(name);
    }

    /// Takes a name out; one that covers it may be left.
    pub fn remove(&mut self, name: &RelPath) {
        self.0.remove(name);
    }

    /// `path` is one of them.
    pub fn contains(&self, path: &RelPath) -> bool {
        self.0.contains(path)
    }

    /// `path` is one of them, or below one.
    pub fn cover(&self, path: &RelPath) -> bool {
        let mut at = (!self.0.is_empty()).then(|| path.clone());
        while let Some(path) = at {
            if self.0.contains(&path) {
                return true;
            }
            at = path.split_last().map(|(above, _)| above);
        }
        false
    }
}

impl FromIterator<RelPath> for Names {
    fn from_iter<I: IntoIterator<Item = RelPath>>(names: I) -> Self {
        Self(names.into_iter().collect())
    }
}

impl Extend<RelPath> for Names {
    fn extend<I: IntoIterator<Item = RelPath>>(&mut self, names: I) {
        self.0.extend(names);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_what_is_below_it() {
        let path = |text: &str| RelPath::new(text).unwrap();
        let mut names = Names::new();
        assert!(names.is_empty() && !names.cover(&path("d")) && !names.cover(&RelPath::root()));
        names.extend([path("d/s"), path("f")]);
        let covered = ["", "d", "d/s", "d/s/x/y", "d/st", "f", "f.b"].map(|name| names.cover(&path(name)));
        assert_eq!(covered, [false, false, true, true, false, true, false]);
        assert!(names.contains(&path("d/s")) && !names.contains(&path("d/s/x")));
        names.remove(&path("d/s/x"));
        assert!(names.cover(&path("d/s/x")), "by the name above");
        names.insert(RelPath::root());
        names.remove(&path("d/s"));
        assert!(names.cover(&path("d/s")) && names.iter().count() == 2);
    }
}
