//! How much happened: a simulation in which little does proves little.

use std::fmt;
use std::ops::AddAssign;

/// Of one seed, or of many.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) seals: u64,
    /// Seals that came to nothing for a reason that is known to be so.
    pub(crate) dropped: u64,
    /// Directories that were made, removed, renamed, of these over another, and exchanged; and how
    /// often one of these was refused.
    pub(crate) made: u64,
    pub(crate) unmade: u64,
    pub(crate) renamed: u64,
    pub(crate) replaced: u64,
    pub(crate) exchanged: u64,
    pub(crate) refused: u64,
    /// Of these, those that are a next generation.
    pub(crate) generations: u64,
    /// Removals of sealed datasets that programs have heard of.
    pub(crate) removals: u64,
    /// How often one was asked for while the generation before was still there.
    pub(crate) hurried: u64,
    /// Removed datasets that nodes had which came back.
    pub(crate) stale: u64,
    /// Markers that were answered when all were frozen.
    pub(crate) unhurried: u64,
    /// Restarts that presented a dataset.
    pub(crate) rebuilt: u64,
    /// Members rebuilt while programs ran.
    pub(crate) mended: u64,
    /// Datasets with members that no node had when programs started.
    pub(crate) absent: u64,
    /// Members that were encoded anew.
    pub(crate) reencoded: u64,
    /// Of these, those without files that were nowhere.
    pub(crate) begun_anew: u64,
    /// How often a dataset made room for a file.
    pub(crate) made_room: u64,
    /// Members that a restart could not rebuild for want of room; and how often that ended it.
    pub(crate) crowded: u64,
    pub(crate) starved: u64,
    /// How often what is not sealed was removed from a node for what a restart presents.
    pub(crate) tidied: u64,
    /// How often a program was told that there is no room.
    pub(crate) full: u64,
    /// Datasets marked as failed.
    pub(crate) failed: u64,
    /// Datasets that were flushed; past one that fails; marked in the prefix.
    pub(crate) published: u64,
    pub(crate) overtook: u64,
    pub(crate) marked: u64,
    /// Datasets that became whole in the prefix from what nodes had saved; and how often nodes
    /// saved a part in a restart.
    pub(crate) adopted: u64,
    pub(crate) joined: u64,
}

impl Counts {
    /// Enough of each for so many seeds.
    pub(crate) fn are_enough(&self, seeds: u64) -> bool {
        let at_least = [
            (self.seals, 2),
            (self.dropped, 2),
            (self.made, 2),
            (self.unmade, 3),
            (self.renamed, 6),
            (self.replaced, 100),
            (self.exchanged, 25),
            (self.refused, 2),
            (self.rebuilt, 2),
            (self.published, 2),
            (self.overtook, 11),
            (self.marked, 200),
            (self.generations, 10),
            (self.removals, 10),
            (self.hurried, 100),
            (self.stale, 300),
            (self.unhurried, 10),
            (self.mended, 20),
            (self.absent, 20),
            (self.failed, 50),
            (self.made_room, 200),
            (self.full, 50),
            (self.reencoded, 20),
            (self.begun_anew, 100),
            (self.crowded, 50),
            (self.starved, 1000),
            (self.tidied, 200),
            (self.adopted, 100),
            (self.joined, 200),
        ];
        at_least.into_iter().all(|(count, of)| count > seeds / of)
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, one: Self) {
        self.seals += one.seals;
        self.dropped += one.dropped;
        self.made += one.made;
        self.unmade += one.unmade;
        self.renamed += one.renamed;
        self.replaced += one.replaced;
        self.exchanged += one.exchanged;
        self.refused += one.refused;
        self.generations += one.generations;
        self.removals += one.removals;
        self.hurried += one.hurried;
        self.stale += one.stale;
        self.unhurried += one.unhurried;
        self.rebuilt += one.rebuilt;
        self.mended += one.mended;
        self.absent += one.absent;
        self.reencoded += one.reencoded;
        self.begun_anew += one.begun_anew;
        self.made_room += one.made_room;
        self.full += one.full;
        self.crowded += one.crowded;
        self.starved += one.starved;
        self.tidied += one.tidied;
        self.failed += one.failed;
        self.published += one.published;
        self.overtook += one.overtook;
        self.marked += one.marked;
        self.adopted += one.adopted;
        self.joined += one.joined;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seals ({} of a next generation), {} restarts, ",
            self.seals, self.generations, self.rebuilt
        )?;
        let Self { made, unmade, renamed, replaced, exchanged, refused, dropped, .. } = self;
        write!(f, "{dropped} seals dropped, {made} directories made, {unmade} removed, {renamed} renamed ")?;
        write!(f, "({replaced} over others), {exchanged} exchanged, {refused} refused, ")?;
        let Self { published, overtook, marked, mended, failed, unhurried, .. } = self;
        write!(f, "{published} flushes ({overtook} past one that fails, {marked} marked), ")?;
        write!(f, "{mended} members rebuilt while programs ran, {failed} datasets failed, ")?;
        write!(f, "{} times a dataset was presented before it was whole, ", self.absent)?;
        write!(f, "{} saved datasets became whole, {} parts saved in restarts, ", self.adopted, self.joined)?;
        write!(f, "{} datasets removed ({} over a former one), ", self.removals, self.hurried)?;
        write!(f, "{} of them brought back by nodes, ", self.stale)?;
        write!(f, "{unhurried} markers answered in the background, ")?;
        write!(f, "room made {} times for a file and not found {} times, ", self.made_room, self.full)?;
        write!(
            f,
            "{} members for which a restart had no room ({} restarts ended, {} nodes tidied), ",
            self.crowded, self.starved, self.tidied
        )?;
        write!(f, "{} members encoded anew, of these {} from nothing", self.reencoded, self.begun_anew)
    }
}
