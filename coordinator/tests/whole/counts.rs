//! How much happened: a simulation in which little does proves little.

/// Of one seed, or of many.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) seals: u64,
    /// First markers whose failure nothing could have excused.
    pub(crate) sure: u64,
    pub(crate) read: u64,
    /// Files whose bytes were compared where a restart listed them.
    pub(crate) compared: u64,
    pub(crate) elsewhere: u64,
    pub(crate) restarts: u64,
    /// Restarts that had to find something, and of these such as had only the prefix for it.
    pub(crate) owed: u64,
    pub(crate) fallbacks: u64,
    /// Losses of all nodes.
    pub(crate) wipes: u64,
    pub(crate) rebuilds: u64,
    pub(crate) absent: u64,
    pub(crate) deaths: u64,
    pub(crate) within: u64,
    /// Workers that died in the middle of a job, and coordinators.
    pub(crate) in_jobs: u64,
    pub(crate) stopped: u64,
    /// Coordinators that died in the middle of a task on the PFS.
    pub(crate) in_tasks: u64,
    /// Jobs and tasks in which a step was to fail.
    pub(crate) failing: u64,
    /// Commands of former leads that came after newer ones had attached.
    pub(crate) former: u64,
    pub(crate) changes: u64,
    pub(crate) flips: u64,
    /// Of two directories.
    pub(crate) exchanges: u64,
    pub(crate) pointers: u64,
    pub(crate) removals: u64,
    pub(crate) remade: u64,
    pub(crate) again: u64,
    pub(crate) interrupted: u64,
    pub(crate) rotten: u64,
}

impl Counts {
    /// Enough of each for so many seeds.
    pub(crate) fn are_enough(&self, seeds: u64) -> bool {
        let per_hundred_seeds = [
            (self.seals, 200),
            (self.sure, 100),
            (self.read, 1500),
            (self.compared, 200),
            (self.elsewhere, 800),
            (self.restarts, 150),
            (self.owed, 30),
            (self.fallbacks, 2),
            (self.wipes, 6),
            (self.rebuilds, 20),
            (self.absent, 10),
            (self.deaths, 40),
            (self.within, 2),
            (self.failing, 2),
            (self.former, 150),
            (self.changes, 60),
            (self.flips, 1),
            (self.exchanges, 100),
            (self.pointers, 100),
            (self.removals, 40),
            (self.remade, 15),
            (self.again, 20),
            (self.interrupted, 25),
            (self.rotten, 10),
        ];
        per_hundred_seeds.into_iter().all(|(count, of)| count * 100 > seeds * of)
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.seals += other.seals;
        self.sure += other.sure;
        self.read += other.read;
        self.compared += other.compared;
        self.elsewhere += other.elsewhere;
        self.restarts += other.restarts;
        self.owed += other.owed;
        self.fallbacks += other.fallbacks;
        self.wipes += other.wipes;
        self.rebuilds += other.rebuilds;
        self.absent += other.absent;
        self.deaths += other.deaths;
        self.within += other.within;
        self.in_jobs += other.in_jobs;
        self.stopped += other.stopped;
        self.in_tasks += other.in_tasks;
        self.failing += other.failing;
        self.former += other.former;
        self.changes += other.changes;
        self.flips += other.flips;
        self.exchanges += other.exchanges;
        self.pointers += other.pointers;
        self.removals += other.removals;
        self.remade += other.remade;
        self.again += other.again;
        self.interrupted += other.interrupted;
        self.rotten += other.rotten;
    }
}
