//! How much of a node's processors may go to what is preferred.
//!
//! The coordinator is the job's user's process, and the daemon works for that user: what makes them
//! go first can be made up, and code of the user's own can be put into the coordinator. So what
//! preferred threads take is counted, and over some time it is at most a part of the processors;
//! the rest is everybody's. A seal that really encodes for minutes takes some threads' time, which
//! a node with many processors has to spare.

use std::time::{Duration, Instant};

/// The part: one of so many processors, and at least [`LEAST`] of one.
const PART: f64 = 8.0;
const LEAST: f64 = 0.5;
/// Over so long; after a pause so much may be taken at once.
const WINDOW: Duration = Duration::from_secs(30);

/// Processor time that is left to preferred threads.
#[derive(Debug)]
pub struct Budget {
    /// Processors that may be taken all the time.
    rate: f64,
    /// Seconds of one processor.
    left: f64,
    at: Instant,
    /// It was used up, and there is not enough again.
    refusing: bool,
}

impl Budget {
    /// A full one, on a node of so many processors.
    pub fn new(processors: usize, now: Instant) -> Self {
        let processors = u32::try_from(processors).unwrap_or(u32::MAX);
        let rate = (f64::from(processors) / PART).max(LEAST);
        Self { rate, left: rate * WINDOW.as_secs_f64(), at: now, refusing: false }
    }

    fn whole(&self) -> f64 {
        self.rate * WINDOW.as_secs_f64()
    }

    /// Until `now` preferred threads have taken `used` more; true if that was the last of it.
    pub fn spend(&mut self, used: Duration, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.left = (self.left + passed * self.rate - used.as_secs_f64()).min(self.whole());
        if self.refusing {
            self.refusing = self.left < self.whole() / 2.0;
            return false;
        }
        self.refusing = self.left <= 0.0;
        self.refusing
    }

    /// Threads may be preferred: there is something left; once it was used up, half of it.
    pub fn may(&mut self, now: Instant) -> bool {
        self.spend(Duration::ZERO, now);
        !self.refusing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who wants to be preferred all the time, with so many threads that never sleep, on a node of
    /// so many processors: what it gets of an hour, in seconds of one processor, and how often it
    /// was told to step back.
    fn takes(processors: usize, threads: f64, seconds: u32) -> (f64, u32) {
        let zero = Instant::now();
        let mut budget = Budget::new(processors, zero);
        let (mut taken, mut refused) = (0.0, 0);
        let look = 0.1;
        for nth in 1..=seconds * 10 {
            let now = zero + Duration::from_secs_f64(f64::from(nth) * look);
            if budget.may(now) {
                taken += threads * look;
                refused += u32::from(budget.spend(Duration::from_secs_f64(threads * look), now));
            }
        }
        (taken, refused)
    }

    #[test]
    fn a_long_encode_is_preferred_to_its_end_and_a_thief_gets_its_part() {
        // Processors, threads that never sleep, minutes; the most that they may get, of all
        // processors; and whether what they ask for is theirs.
        for (processors, threads, minutes, part, all) in [
            // An encode that takes the coordinator's thread and one more.
            (16, 2.0, 10, 1.0, true),
            (64, 3.0, 60, 1.0, true),
            (128, 8.0, 60, 1.0, true),
            // Hand-overs.
            (2, 0.3, 60, 1.0, true),
            (8, 1.0, 60, 1.0, true),
            // Code of the user's own in as many threads as there are processors, or more.
            (2, 2.0, 60, 0.27, false),
            (2, 32.0, 60, 0.30, false),
            (16, 16.0, 60, 0.13, false),
            (64, 32.0, 60, 0.13, false),
        ] {
            let seconds = minutes * 60;
            let (taken, refused) = takes(processors, threads, seconds);
            let (asked, seconds) = (threads * f64::from(seconds), f64::from(seconds));
            let processors = f64::from(u32::try_from(processors).unwrap());
            let case = format!("{threads} threads of {processors} processors: {taken} of {asked} s");
            assert_eq!(refused == 0, all, "{case}");
            assert_eq!((taken - asked).abs() < 1.0, all, "{case}");
            assert!(taken <= part * processors * seconds, "{case}");
            // Neither is it for ever that it is refused.
            assert!(taken + 1.0 >= asked.min(processors / PART * seconds * 0.9), "{case}");
        }
    }

    #[test]
    fn what_was_used_up_is_there_again_after_a_while() {
        let zero = Instant::now();
        let at = |seconds: u64| zero + Duration::from_secs(seconds);
        let mut budget = Budget::new(2, zero);
        assert!(!budget.spend(Duration::from_secs(14), zero));
        assert!(budget.spend(Duration::from_secs(2), zero), "told once");
        assert!(!budget.spend(Duration::from_secs(1), zero));
        assert!(!budget.may(at(18)) && budget.may(at(20)));
        // Who goes back in time gets nothing for it.
        assert!(budget.may(at(5)) && budget.spend(Duration::from_secs(9), at(20)));
    }
}
