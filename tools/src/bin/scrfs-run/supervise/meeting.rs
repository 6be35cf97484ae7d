//! Coordinators that start and have not met. MPI brings them together in a second or two; but
//! Slurm's PMIx can lose what they exchange, and then they wait for one another for ever. So they
//! are ended after a time, and started again: in a job whose coordinators have met before, after a
//! short one.

use std::time::Duration;

/// For the first ones of a job. Programs that are read from a slow file system, on thousands of
/// nodes, take their time.
const FIRST: Duration = Duration::from_mins(1);
/// For later ones: so many times as long as any have taken in this job, in these bounds.
const TIMES: u32 = 20;
const LEAST: Duration = Duration::from_secs(10);
/// Each start that has failed doubles the time.
const MOST: Duration = Duration::from_mins(4);
/// Starts in a row before it is given up. They are many, for a scheduler that does not answer for
/// an hour looks the same.
pub(super) const MEETINGS_MAX: u32 = 19;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Meeting {
    /// When those that are waited for were started.
    begun: Option<Duration>,
    /// Starts in a row after which they had not met.
    unmet: u32,
    /// The longest time that coordinators of this job took.
    longest: Option<Duration>,
}

impl Meeting {
    pub(super) fn begins(&mut self, now: Duration) {
        self.begun = Some(now);
    }

    pub(super) fn is_over(&mut self, now: Duration) {
        let took = self.begun.take().map(|begun| now.saturating_sub(begun));
        self.longest = self.longest.max(took);
        self.unmet = 0;
    }

    /// Nobody waits for one any more.
    pub(super) fn forget(&mut self) {
        self.begun = None;
    }

    /// These coordinators are ended.
    pub(super) fn fails(&mut self) {
        self.begun = None;
        self.unmet += 1;
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.begun.is_some()
    }

    /// The end that follows is that of coordinators which had not met in time.
    pub(super) fn has_failed(&self) -> bool {
        self.unmet > 0 && self.begun.is_none()
    }

    pub(super) fn failures(&self) -> u32 {
        self.unmet
    }

    /// When coordinators that have not met by then are ended.
    pub(super) fn by(&self) -> Option<Duration> {
        let usual = self.longest.map_or(FIRST, |longest| (longest * TIMES).clamp(LEAST, FIRST));
        let limit = usual.saturating_mul(1 << self.unmet.min(8)).min(MOST);
        self.begun.map(|begun| begun + limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn later_ones_of_a_job_get_less_time_and_each_failure_doubles_it() {
        let mut meeting = Meeting::default();
        assert_eq!(meeting.by(), None);
        let limits = |meeting: &mut Meeting| {
            [(); 6].map(|()| {
                meeting.begins(SECOND);
                let by = meeting.by();
                meeting.fails();
                by.map_or(0, |by| by.saturating_sub(SECOND).as_secs())
            })
        };
        assert_eq!(limits(&mut meeting), [60, 120, 240, 240, 240, 240]);
        meeting.begins(SECOND);
        meeting.is_over(2 * SECOND);
        assert_eq!((meeting.by(), meeting.failures(), meeting.has_failed()), (None, 0, false));
        assert_eq!(limits(&mut meeting), [20, 40, 80, 160, 240, 240]);
        // A meeting that took longer counts from then on; one that was quicker does not.
        for (took, limit) in [(SECOND / 10, 20), (2 * SECOND, 40), (SECOND, 40), (100 * SECOND, 60)] {
            meeting.begins(SECOND);
            meeting.is_over(SECOND + took);
            assert_eq!(limits(&mut meeting)[0], limit, "{took:?}");
        }
        let mut quick = Meeting::default();
        quick.begins(SECOND);
        quick.is_over(SECOND);
        assert_eq!(limits(&mut quick)[0], 10);
    }
}
