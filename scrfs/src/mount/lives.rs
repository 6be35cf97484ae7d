//! What the supervisor does after a worker has ended: another at once, another after a pause, a
//! fresh mount, or nothing more. Only decisions; no process, clock or mount.
//!
//! Where the node is short of something (memory, processes, descriptors, room, inodes), the next
//! worker is tried for as long as that lasts: the mount stays, and programs wait. A worker that
//! dies by its own fault again and again has found something in the state memory that it cannot
//! bear: then the mount is made afresh. It is given up only after minutes in which no worker has
//! lived.

use std::time::{Duration, Instant};

/// A worker that dies sooner than this was not started well.
pub(super) const SHORT_LIFE: Duration = Duration::from_secs(10);
/// So many short lives in a row are the end of a mount.
const SHORT_LIVES_MAX: u32 = 5;
/// Between two workers of which the first was not started well: at first, and at most.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// So long no worker must have lived before all is given up.
const PATIENCE: Duration = Duration::from_mins(3);

/// How a worker's life went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// It served, and ended later, or by somebody else's doing: that it will come again is not to
    /// be feared.
    Served,
    /// Somebody killed it before it served.
    Killed,
    /// It could not start, or the mount could not be made: the node is short of something.
    Shortage,
    /// It could not start for another reason, or died soon by its own fault.
    Short,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Another worker, after this pause.
    Worker(Duration),
    /// A fresh mount, after this pause: no worker can take over what the former one had.
    Afresh(Duration),
    /// Nothing.
    GiveUp,
}

/// The lives so far.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// Short ones in a row.
    short: u32,
    /// The last pause.
    pause: Duration,
    /// Since then no worker has lived.
    failing: Option<Instant>,
}

impl Lives {
    /// A life has ended at `now`.
    pub(super) fn ended(&mut self, life: Life, now: Instant) -> Next {
        match life {
            Life::Served => {
                *self = Self::default();
                Next::Worker(Duration::ZERO)
            }
            Life::Killed => Next::Worker(PAUSE_FIRST),
            Life::Shortage => {
                // It may last; that says nothing of what follows it.
                self.failing = None;
                Next::Worker(self.longer())
            }
            Life::Short => {
                self.short += 1;
                let failing = *self.failing.get_or_insert(now);
                let pause = self.longer();
                if self.short < SHORT_LIVES_MAX {
                    return Next::Worker(pause);
                }
                if now.saturating_duration_since(failing) >= PATIENCE {
                    return Next::GiveUp;
                }
                self.short = 0;
                Next::Afresh(pause)
            }
        }
    }

    /// The fresh mount could not be made: once more, after a pause, or not.
    pub(super) fn not_mounted(&mut self, shortage: bool, now: Instant) -> Option<Duration> {
        let failing = *self.failing.get_or_insert(now);
        let again = shortage || now.saturating_duration_since(failing) < PATIENCE;
        again.then(|| self.longer())
    }

    fn longer(&mut self) -> Duration {
        self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// A life, the second at which it ends, and what comes after it.
    type Row = (Life, u64, Next);

    #[test]
    fn what_comes_after_which_lives() {
        use Life::{Killed, Served, Short, Shortage};
        use Next::{Afresh, GiveUp, Worker};
        let zero = Instant::now();
        let table: &[(&str, &[Row])] = &[
            ("somebody's doing", &[(Served, 0, Worker(ms(0))), (Served, 0, Worker(ms(0)))]),
            ("killed at its start", &[(Killed, 0, Worker(ms(100))), (Killed, 0, Worker(ms(100)))]),
            (
                "its own fault",
                &[
                    (Short, 0, Worker(ms(100))),
                    (Short, 1, Worker(ms(200))),
                    (Short, 2, Worker(ms(400))),
                    (Short, 3, Worker(ms(800))),
                    (Short, 4, Afresh(ms(1600))),
                    (Short, 5, Worker(ms(3200))),
                    (Short, 6, Worker(ms(5000))),
                ],
            ),
            (
                "a life between",
                &[
                    (Short, 0, Worker(ms(100))),
                    (Short, 1, Worker(ms(200))),
                    (Served, 9, Worker(ms(0))),
                    (Short, 10, Worker(ms(100))),
                    (Short, 11, Worker(ms(200))),
                    (Short, 12, Worker(ms(400))),
                    (Short, 13, Worker(ms(800))),
                    (Short, 14, Afresh(ms(1600))),
                ],
            ),
            (
                "for minutes",
                &[
                    (Short, 0, Worker(ms(100))),
                    (Short, 60, Worker(ms(200))),
                    (Short, 120, Worker(ms(400))),
                    (Short, 179, Worker(ms(800))),
                    (Short, 180, GiveUp),
                ],
            ),
        ];
        for (what, rows) in table {
            let mut lives = Lives::default();
            for (nth, (life, second, next)) in rows.iter().enumerate() {
                let now = zero + Duration::from_secs(*second);
                assert_eq!(lives.ended(*life, now), *next, "{what}, row {nth}");
            }
        }
        // However long the node is short of something, the mount stays.
        let mut lives = Lives::default();
        let mut now = zero;
        for nth in 0..1000 {
            let Worker(pause) = lives.ended(Shortage, now) else { panic!("life {nth}") };
            assert!((PAUSE_FIRST..=PAUSE_MAX).contains(&pause));
            now += pause;
        }
        assert_eq!(lives.ended(Short, now), Worker(PAUSE_MAX));
    }

    #[test]
    fn a_mount_that_cannot_be_made_afresh_is_tried_again() {
        let zero = Instant::now();
        let mut lives = Lives::default();
        assert_eq!(lives.not_mounted(false, zero), Some(PAUSE_FIRST));
        assert_eq!(lives.not_mounted(false, zero + Duration::from_secs(179)), Some(2 * PAUSE_FIRST));
        assert_eq!(lives.not_mounted(false, zero + PATIENCE), None);
        assert_eq!(lives.not_mounted(true, zero + 9 * PATIENCE), Some(4 * PAUSE_FIRST));
    }
}
