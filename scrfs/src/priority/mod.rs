//! How much the kernel is to prefer a job's own processes, by what waits for them.
//!
//! On a real node every core runs a rank of the program, and while one rank waits for a marker the
//! others spin. Without preference each hand-over of ours stands behind their time slices. So for
//! as long as somebody waits, this node's daemon and coordinator come first; else they are
//! processes like any other, with short time slices, and background work is nice. [`due`] decides;
//! [`budget`] says how much they may take of the processors so; [`threads`] is the kernel's side.

pub mod budget;
pub mod threads;

use std::time::{Duration, Instant};

/// No single wait is preferred for longer without a sign that something is done for it: an order of
/// the lead, or progress of its encoding.
pub const WAIT_MAX: Duration = Duration::from_mins(2);
/// After the last order of the lead: more is likely, and both ways cost a few hundred system calls.
pub const LINGER: Duration = Duration::from_millis(100);

/// What makes a node's processes urgent; the first is the most telling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// A program here waits for a marker.
    Marker,
    /// A program here waits for a directory operation, or for pointer files.
    Directory,
    /// A program here waits for a file that is on another node.
    Open,
    /// A seal is under way for which a program somewhere waits.
    Seal,
    /// The lead has just ordered something that a program somewhere waits for.
    Order,
}

impl Wait {
    /// For status.
    pub fn word(self) -> &'static str {
        match self {
            Self::Marker => "a marker waits",
            Self::Directory => "a directory operation waits",
            Self::Open => "an open waits for a file of another node",
            Self::Seal => "a seal is under way",
            Self::Order => "a program waits, here or on another node",
        }
    }

    fn limit(self) -> Duration {
        match self {
            Self::Order => LINGER,
            Self::Marker | Self::Directory | Self::Open | Self::Seal => WAIT_MAX,
        }
    }
}

/// Whether processes are to be preferred at `now`, for what, and how long at most. `waits`: each
/// with its beginning.
pub fn due(waits: impl IntoIterator<Item = (Wait, Instant)>, now: Instant) -> Option<(Wait, Instant)> {
    let counting = waits
        .into_iter()
        .map(|(wait, since)| (wait, since + wait.limit()))
        .filter(|(_, until)| *until > now)
        .collect::<Vec<_>>();
    let first = counting.iter().map(|(wait, _)| *wait).min()?;
    let until = counting.iter().map(|(_, until)| *until).max()?;
    Some((first, until))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who waits since when, what time it is, and what is due.
    type Row = (&'static [(Wait, f64)], f64, Option<(Wait, f64)>);

    #[test]
    fn what_waits_decides_and_for_how_long() {
        let zero = Instant::now();
        let at = |seconds: f64| zero + Duration::from_secs_f64(seconds);
        let limit = WAIT_MAX.as_secs_f64();
        let linger = LINGER.as_secs_f64();
        let table: &[Row] = &[
            (&[], 0.0, None),
            (&[(Wait::Marker, 0.0)], 0.0, Some((Wait::Marker, limit))),
            (&[(Wait::Marker, 0.0)], limit - 1.0, Some((Wait::Marker, limit))),
            // However long it goes on waiting.
            (&[(Wait::Marker, 0.0)], limit, None),
            (&[(Wait::Order, 0.0)], linger / 2.0, Some((Wait::Order, linger))),
            (&[(Wait::Order, 0.0)], linger, None),
            // The most telling is named, the longest counts.
            (&[(Wait::Order, 5.0), (Wait::Open, 1.0)], 5.0, Some((Wait::Open, 1.0 + limit))),
            (&[(Wait::Seal, 2.0), (Wait::Directory, 1.0)], 3.0, Some((Wait::Directory, 2.0 + limit))),
            // One that is too old hides no other.
            (&[(Wait::Marker, 0.0), (Wait::Seal, 9.0)], limit + 1.0, Some((Wait::Seal, 9.0 + limit))),
            (&[(Wait::Open, 0.0), (Wait::Directory, 0.0)], limit + 1.0, None),
            // A marker that waits for an encode of ten minutes, of which there was progress a
            // moment ago.
            (
                &[(Wait::Marker, 0.0), (Wait::Seal, 599.8), (Wait::Order, 599.8)],
                600.0,
                Some((Wait::Seal, 599.8 + limit)),
            ),
            // And one that has stopped.
            (&[(Wait::Marker, 0.0), (Wait::Seal, 599.8), (Wait::Order, 599.8)], 600.0 + limit, None),
        ];
        for (nth, (waits, now, want)) in table.iter().enumerate() {
            let waits = waits.iter().map(|(wait, since)| (*wait, at(*since)));
            let want = want.map(|(wait, until)| (wait, at(until)));
            assert_eq!(due(waits, at(*now)), want, "row {nth}");
        }
    }
}
