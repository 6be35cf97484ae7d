//! Choices without state: which datasets may go, which are due for a flush, how long to wait before
//! trying again.

use std::collections::BTreeMap;

use scrfs::control::Settings;
use scrfs::dataset::Layout;
use scrfs::ids::DatasetId;

/// Microseconds of a millisecond.
pub(super) const MS: u64 = 1_000;

/// Delay before try number `tries` (from 1), doubling from `first` up to `longest`; microseconds.
pub(super) fn delay(tries: u32, first: u64, longest: u64) -> u64 {
    first.saturating_mul(1 << tries.saturating_sub(1).min(20)).min(longest)
}

/// A flush of `id` is due when a multiple of `every` lies in (`last`, `id`], where `last` is the
/// highest id that is on the PFS or on its way. Ids that failed seals have used up do not shift it,
/// and what could not be flushed leaves the next dataset due.
pub(super) fn flush_due(id: DatasetId, last: u64, every: u32) -> bool {
    every > 0 && id.0 / u64::from(every) > last / u64::from(every)
}

/// A sealed dataset as the rules see it that say which ones the caches keep.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cached<'a> {
    pub(super) id: DatasetId,
    pub(super) layout: &'a Layout,
    /// All members are on their nodes.
    pub(super) whole: bool,
    /// It is on the PFS, from where a restart fetches it.
    pub(super) flushed: bool,
}

impl Cached<'_> {
    /// Any one node may be lost.
    fn is_redundant(&self) -> bool {
        self.whole && self.layout.is_redundant()
    }
}

/// The dataset that stays though enough newer ones are complete: the newest that survives the loss
/// of a node. There is none when the newest dataset of all survives a loss, when this one is on the
/// PFS, and with `SCR_CACHE_SIZE=1`.
pub(super) fn guard<'a>(
    mut newest_first: impl Iterator<Item = Cached<'a>>,
    settings: &Settings,
) -> Option<Cached<'a>> {
    newest_first.next().filter(|newest| !newest.is_redundant())?;
    let guard = newest_first.find(Cached::is_redundant);
    guard.filter(|guard| settings.cache_size > 1 && !guard.flushed)
}

/// Which datasets the caches keep; `SCR_CACHE_SIZE` and `SCRFS_CACHE_BYTES` count sealed datasets.
/// Asked from the newest on; that one is always kept, and so is the guard.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    guard: Option<DatasetId>,
    count: u32,
    /// By host.
    bytes: BTreeMap<String, u64>,
    /// One was asked for.
    begun: bool,
    /// What is older than one that does not fit goes before it.
    full: bool,
}

impl Kept {
    /// The guard has its place before all others.
    pub(super) fn with(guard: Option<Cached<'_>>, settings: &Settings) -> Self {
        let counted = guard.filter(|_| settings.cache_bytes > 0);
        let by_host = counted.map(|guard| guard.layout.bytes_by_host()).unwrap_or_default();
        Self {
            guard: guard.map(|guard| guard.id),
            count: u32::from(guard.is_some()),
            bytes: by_host.into_iter().map(|(host, bytes)| (host.to_owned(), bytes)).collect(),
            begun: false,
            full: false,
        }
    }

    /// Is there a place for the next older one, and room on every node?
    pub(super) fn takes(&mut self, id: DatasetId, layout: &Layout, settings: &Settings) -> bool {
        if self.guard == Some(id) {
            return true;
        }
        let mut over = false;
        if settings.cache_bytes > 0 && !self.full {
            for (host, bytes) in layout.bytes_by_host() {
                let sum = self.bytes.entry(host.to_owned()).or_default();
                *sum = sum.saturating_add(bytes);
                over |= *sum > settings.cache_bytes;
            }
        }
        let is_newest = !std::mem::replace(&mut self.begun, true);
        self.full |= !is_newest && (over || self.count >= settings.cache_size.max(1));
        self.count += u32::from(!self.full);
        !self.full
    }
}

/// A dataset as eviction sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Evictable {
    pub(super) id: DatasetId,
    /// There is a place for it.
    pub(super) kept: bool,
    /// A flush runs or waits.
    pub(super) busy: bool,
}

/// Which of the datasets (newest first, all recorded COMPLETE everywhere) go: those that are not
/// kept, and never the newest. One that is being flushed, or of which a flush is still due, goes
/// later.
pub(super) fn evictions(newest_first: &[Evictable]) -> Vec<DatasetId> {
    let goes = |dataset: &&Evictable| !dataset.kept && !dataset.busy;
    newest_first.iter().skip(1).filter(goes).map(|dataset| dataset.id).collect()
}

/// Which of the datasets (newest first, all recorded COMPLETE everywhere) goes as a node's cache
/// has no room: the oldest; one that is being flushed only if no other can; the newest only if it
/// is on the PFS, or if it `may_be_lost`: no more than one was to be kept, and the next one begins.
pub(super) fn sacrifice(newest_first: &[Sacrifice], may_be_lost: bool) -> Option<DatasetId> {
    let (newest, older) = newest_first.split_first()?;
    let older = || older.iter().rev().filter(|dataset| !dataset.needed);
    let newest = Some(newest).filter(|newest| !newest.needed && (newest.flushed || may_be_lost));
    older().find(|dataset| !dataset.flushing).or_else(|| older().next()).or(newest).map(|dataset| dataset.id)
}

/// Which of the datasets go so that `short` more bytes are free on a node, where `held` says what
/// would be free without each: the same ones in the same order, but none that is not needed for it.
/// None goes if all that may would not be enough: how many bytes they are then.
pub(super) fn sacrifices(
    mut newest_first: Vec<Sacrifice>,
    short: u64,
    held: impl Fn(DatasetId) -> u64,
) -> Result<Vec<DatasetId>, u64> {
    for dataset in &mut newest_first {
        dataset.needed |= held(dataset.id) == 0;
    }
    let (mut going, mut freed) = (Vec::new(), 0_u64);
    while freed < short {
        let Some(id) = sacrifice(&newest_first, false) else { return Err(freed) };
        newest_first.iter_mut().filter(|dataset| dataset.id == id).for_each(|dataset| dataset.needed = true);
        freed = freed.saturating_add(held(id));
        going.push(id);
    }
    // A later one alone may be enough.
    going.retain(|&id| {
        let others = freed.saturating_sub(held(id));
        let spared = others >= short;
        if spared {
            freed = others;
        }
        !spared
    });
    Ok(going)
}

/// A dataset as it is seen when room is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sacrifice {
    pub(super) id: DatasetId,
    /// A rebuild or a seal needs it, or programs are overwriting it.
    pub(super) needed: bool,
    /// A flush runs or waits.
    pub(super) flushing: bool,
    /// It is on the PFS.
    pub(super) flushed: bool,
}

#[cfg(test)]
mod tests {
    use scrfs::dataset::{MemberPlace, Protection, Scheme};
    use scrfs::ids::Member;

    use super::*;

    #[test]
    fn delays_grow_and_are_bounded() {
        let delays: Vec<u64> = (1..7).map(|tries| delay(tries, 100, 1_000)).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1_000, 1_000]);
        assert_eq!(delay(u32::MAX, 100, 1_000), 1_000);
    }

    #[test]
    fn flushes_are_due_at_each_multiple() {
        let due = |id, last, every| flush_due(DatasetId(id), last, every);
        assert!(!due(9, 0, 10) && due(10, 0, 10) && !due(11, 10, 10) && due(20, 10, 10));
        assert!(due(11, 0, 10), "10 was a failed seal");
        assert!(due(1, 0, 1) && !due(5, 0, 0));
        assert!(!due(4, 6, 2), "a newer one is on the PFS already");
    }

    #[test]
    fn the_newest_stay_and_a_flush_keeps() {
        let of = |ids: &[(u64, bool, bool)]| -> Vec<Evictable> {
            ids.iter().map(|&(id, kept, busy)| Evictable { id: DatasetId(id), kept, busy }).collect()
        };
        assert_eq!(evictions(&of(&[(3, true, false), (2, true, false), (1, false, false)])), [DatasetId(1)]);
        assert_eq!(evictions(&of(&[(3, true, false), (2, true, false), (1, false, true)])), []);
        assert_eq!(evictions(&of(&[(3, true, false), (2, false, true), (1, false, false)])), [DatasetId(1)]);
        assert_eq!(evictions(&of(&[(3, false, false)])), []);
    }

    fn layout(scheme: Scheme, bytes: &[u64]) -> Layout {
        let place = |(at, &bytes)| MemberPlace { host: format!("n{at}"), files: 1, bytes, taken: None };
        Layout {
            encoding: 0,
            protection: Protection::by(scheme),
            members: (0..).zip(bytes).map(place).collect::<Vec<_>>(),
            sets: vec![(0..).map(Member).take(bytes.len()).collect()],
        }
    }

    #[test]
    fn the_newest_protected_one_stays_when_newer_ones_are_not_protected() {
        // Newest first: x XOR, s SINGLE, X XOR and on the PFS.
        let kept = |cache_size, all: &str| -> String {
            let settings = Settings { cache_size, ..crate::settings::tests::settings() };
            let scheme = |c: char| if c == 's' { Scheme::Single } else { Scheme::Xor };
            let layouts: Vec<Layout> = all.chars().map(|c| layout(scheme(c), &[1, 1])).collect();
            let cached = || {
                let numbered = (1..).map(DatasetId).zip(layouts.iter().zip(all.chars()));
                numbered.map(|(id, (layout, c))| Cached { id, layout, whole: true, flushed: c == 'X' })
            };
            let mut kept = Kept::with(guard(cached(), &settings), &settings);
            cached().filter(|cached| kept.takes(cached.id, cached.layout, &settings)).fold(
                String::new(),
                |mut ids, cached| {
                    ids.push_str(&cached.id.to_string());
                    ids
                },
            )
        };
        for (cache_size, all, ids) in [
            (2, "xxx", "12"),
            (2, "sxx", "12"),
            (2, "ssx", "13"),
            (2, "sssxx", "14"),
            (3, "sssxx", "124"),
            (2, "sss", "12"),
            (2, "ssXx", "12"),
            (1, "ssx", "1"),
            (2, "xssx", "12"),
        ] {
            assert_eq!(kept(cache_size, all), ids, "{cache_size} of {all}");
        }
    }

    #[test]
    fn places_and_bytes_are_counted_from_the_newest_on() {
        let kept = |cache_size, cache_bytes, newest_first: &[&[u64]]| {
            let settings = Settings { cache_size, cache_bytes, ..crate::settings::tests::settings() };
            let mut kept = Kept::with(None, &settings);
            let of = |bytes: &&[u64]| kept.takes(DatasetId(1), &layout(Scheme::Single, bytes), &settings);
            newest_first.iter().map(of).collect::<Vec<_>>()
        };
        let three: &[&[u64]] = &[&[5, 1], &[5, 9], &[1, 1]];
        assert_eq!(kept(2, 0, three), [true, true, false]);
        assert_eq!(kept(0, 0, three), [true, false, false]);
        assert_eq!(kept(9, 11, three), [true, true, true]);
        assert_eq!(kept(9, 10, three), [true, true, false], "on the second node");
        assert_eq!(kept(9, 9, three), [true, false, false], "the oldest goes before it");
        assert_eq!(kept(9, 1, three), [true, false, false], "the newest stays");
    }

    #[test]
    fn for_a_file_that_is_opened_no_more_go_than_are_needed_and_none_in_vain() {
        // Id, bytes held; letters as below.
        let of = |all: &[(u64, u64, &str)], short| {
            let dataset = |&(id, _, is): &(u64, u64, &str)| Sacrifice {
                id: DatasetId(id),
                needed: is.contains('n'),
                flushing: is.contains('f'),
                flushed: is.contains('p'),
            };
            let held =
                |id: DatasetId| all.iter().find(|(of, ..)| *of == id.0).map_or(0, |(_, held, _)| *held);
            let gone = sacrifices(all.iter().map(dataset).collect(), short, held);
            gone.map(|gone| gone.iter().map(|id| id.0).collect::<Vec<_>>())
        };
        let three = [(3, 10, ""), (2, 10, ""), (1, 10, "")];
        assert_eq!(of(&three, 0), Ok(vec![]));
        assert_eq!(of(&three, 10), Ok(vec![1]));
        assert_eq!(of(&three, 11), Ok(vec![1, 2]));
        assert_eq!(of(&three, 21), Err(20), "the newest protected one stays, so none goes");
        assert_eq!(of(&[(3, 10, "p"), (2, 10, ""), (1, 10, "")], 21), Ok(vec![1, 2, 3]));
        assert_eq!(of(&[(3, 10, "p"), (2, 10, "n"), (1, 10, "")], 21), Err(20));
        assert_eq!(of(&[(3, 10, ""), (2, 30, ""), (1, 10, "")], 25), Ok(vec![2]), "1 alone is not enough");
        assert_eq!(of(&[(3, 10, ""), (2, 30, ""), (1, 0, "")], 25), Ok(vec![2]), "1 has nothing there");
        assert_eq!(of(&[(3, 10, ""), (2, 10, ""), (1, 10, "f")], 15), Ok(vec![2, 1]));
        assert_eq!(of(&[(3, 10, "")], 1), Err(0));
        assert_eq!(of(&[], 1), Err(0));
    }

    #[test]
    fn without_room_the_oldest_goes_and_the_newest_protected_stays() {
        // Letters: needed, flushing, flushed.
        let of = |all: &[(u64, &str)], may_be_lost| {
            let dataset = |&(id, is): &(u64, &str)| Sacrifice {
                id: DatasetId(id),
                needed: is.contains('n'),
                flushing: is.contains('f'),
                flushed: is.contains('p'),
            };
            sacrifice(&all.iter().map(dataset).collect::<Vec<_>>(), may_be_lost).map(|id| id.0)
        };
        assert_eq!(of(&[(3, ""), (2, ""), (1, "")], false), Some(1));
        assert_eq!(of(&[(3, ""), (2, ""), (1, "n")], false), Some(2));
        assert_eq!(of(&[(3, ""), (2, ""), (1, "f")], false), Some(2));
        assert_eq!(of(&[(3, "p"), (2, "f"), (1, "f")], false), Some(1), "kept only while there is room");
        assert_eq!(of(&[(3, "p"), (2, "n")], false), Some(3));
        assert_eq!(of(&[(3, "f"), (2, "n")], false), None);
        assert_eq!(of(&[(3, "")], false), None);
        assert_eq!(of(&[(3, "")], true), Some(3), "set on purpose");
        assert_eq!(of(&[(3, "n")], true), None);
        assert_eq!(of(&[], false), None);
    }
}
