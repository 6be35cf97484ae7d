//! What a dataset survives, and how its redundancy sets get back what is gone of them.

use super::{Layout, Scheme};
use crate::ids::Member;
use crate::redundancy::right;

/// How a set gets back what is gone of it: see [`Layout::repair`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// Positions of the members that the others give back; all of them together.
    pub rebuild: Vec<usize>,
    /// After that redundancy data is gone that the set cannot give back: it has to be made anew
    /// from the files of all members. Members without files that are lost are among these.
    pub anew: bool,
}

impl Layout {
    /// Whether all data of a set is still there when the members at these positions are lost.
    pub fn survives(&self, set: &[Member], lost: &[usize]) -> bool {
        match self.scheme() {
            // Where there is nothing to copy, nobody needs the copy.
            Scheme::Partner => {
                let is_lost = |at: &usize| set.len() < 2 || lost.contains(&right(set.len(), *at));
                !lost.iter().filter(|at| self.has_files(set, **at)).any(is_lost)
            }
            scheme => scheme.survives(set.len(), lost),
        }
    }

    /// How a set gets back what is gone of it: the members at the positions `lost`, and the
    /// redundancy files of those at `bare`, whose own files are there. `None`: files are gone for
    /// good.
    pub fn repair(&self, set: &[Member], lost: &[usize], bare: &[usize]) -> Option<Repair> {
        let mut gone: Vec<usize> = lost.iter().chain(bare).copied().collect();
        gone.sort_unstable();
        gone.dedup();
        if gone.is_empty() || self.survives(set, &gone) {
            return Some(Repair { rebuild: gone, anew: false });
        }
        let with_files = || lost.iter().filter(|at| self.has_files(set, **at));
        if with_files().next().is_none() {
            return Some(Repair { rebuild: Vec::new(), anew: self.has_redundancy_files(set) });
        }
        // Each member's copy is a file of its own.
        let has_copy = |at: &usize| set.len() > 1 && !gone.contains(&right(set.len(), *at));
        let given_back = self.scheme() == Scheme::Partner && with_files().all(has_copy);
        // The node that has the copy would be asked for it, also where there is nothing to copy.
        let has_bad_copy = |at: &usize| bare.contains(&right(set.len(), *at));
        let rebuild = || lost.iter().filter(|at| !has_bad_copy(at)).copied().collect();
        given_back.then(|| Repair { rebuild: rebuild(), anew: true })
    }

    /// The member at this position of a set has files, as far as is known.
    fn has_files(&self, set: &[Member], at: usize) -> bool {
        let place = set.get(at).and_then(|member| self.members.get(member.0 as usize));
        place.is_none_or(|place| place.files > 0)
    }

    /// The members of a set have redundancy files in the cache.
    fn has_redundancy_files(&self, set: &[Member]) -> bool {
        self.scheme() != Scheme::Single && set.len() > 1
    }

    /// For each member, whether it has a redundancy file in the cache.
    pub fn protected(&self) -> Vec<bool> {
        let mut all = vec![false; self.members.len()];
        for set in self.sets.iter().filter(|set| self.has_redundancy_files(set)) {
            for member in set {
                if let Some(one) = all.get_mut(member.0 as usize) {
                    *one = true;
                }
            }
        }
        all
    }

    /// Whether a member has a redundancy file in the cache.
    pub fn has_redundancy_file(&self, member: Member) -> bool {
        let set = self.sets.iter().find(|set| set.contains(&member));
        set.is_some_and(|set| self.has_redundancy_files(set))
    }

    /// Any one member may be lost.
    pub fn is_redundant(&self) -> bool {
        self.sets.iter().all(|set| self.scheme().losses(set.len()) > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{MemberPlace, Protection};

    /// A set of as many members as `files` has letters, `-` for one without files.
    fn layout(scheme: Scheme, files: &str) -> (Layout, Vec<Member>) {
        let place = |letter: char| MemberPlace {
            host: letter.to_string(),
            files: u64::from(letter != '-'),
            bytes: 0,
            taken: None,
        };
        let members: Vec<MemberPlace> = files.chars().map(place).collect();
        let set: Vec<Member> = (0..).take(members.len()).map(Member).collect();
        let protection = Protection::by(scheme);
        (Layout { protection, members, sets: vec![set.clone()], encoding: 0 }, set)
    }

    /// Scheme, members, positions that are lost, positions of which the redundancy file is gone,
    /// and what follows: positions that are rebuilt, `anew`, or that files are gone.
    #[test]
    fn the_table() {
        type Row<'a> = (Scheme, &'a str, &'a [usize], &'a [usize], &'a str);
        let rs = Scheme::ReedSolomon { failures: 2 };
        let table: &[Row<'_>] = &[
            (Scheme::Xor, "abcd", &[], &[], "[]"),
            (Scheme::Xor, "abcd", &[1], &[], "[1]"),
            (Scheme::Xor, "abcd", &[], &[1], "[1]"),
            (Scheme::Xor, "abcd", &[], &[0, 1, 2, 3], "[] anew"),
            (Scheme::Xor, "abcd", &[1], &[2], "gone"),
            (Scheme::Xor, "abcd", &[1, 2], &[], "gone"),
            (Scheme::Xor, "a-cd", &[1], &[2], "[] anew"),
            (Scheme::Xor, "a--d", &[1, 2], &[], "[] anew"),
            (Scheme::Xor, "a--d", &[0, 2], &[], "gone"),
            (Scheme::Xor, "a", &[], &[], "[]"),
            (Scheme::Xor, "a", &[0], &[], "gone"),
            (Scheme::Xor, "-", &[0], &[], "[]"),
            (rs, "abcd", &[1], &[3], "[1, 3]"),
            (rs, "abcd", &[1], &[2, 3], "gone"),
            (rs, "abcd", &[], &[1, 2, 3], "[] anew"),
            (Scheme::Partner, "abcd", &[0, 2], &[], "[0, 2]"),
            (Scheme::Partner, "abcd", &[0], &[3], "[0] anew"),
            (Scheme::Partner, "abcd", &[0], &[1], "gone"),
            (Scheme::Partner, "-bcd", &[0], &[1], "[0, 1]"),
            (Scheme::Partner, "ab-d", &[0, 2], &[3], "[0] anew"),
            (Scheme::Partner, "ab-de", &[2, 3], &[1], "[2, 3] anew"),
            (Scheme::Partner, "abcd", &[], &[0, 1], "[] anew"),
            (Scheme::Partner, "ab", &[0], &[1], "gone"),
            (Scheme::Single, "ab", &[], &[], "[]"),
            (Scheme::Single, "ab", &[1], &[], "gone"),
            (Scheme::Single, "a-", &[1], &[], "[]"),
        ];
        for (scheme, files, lost, bare, expected) in table {
            let (layout, set) = layout(*scheme, files);
            let shown = match layout.repair(&set, lost, bare) {
                None => "gone".to_owned(),
                Some(Repair { rebuild, anew }) => format!("{rebuild:?}{}", if anew { " anew" } else { "" }),
            };
            assert_eq!(shown, *expected, "{scheme} {files}: lost {lost:?}, bare {bare:?}");
        }
    }
}
