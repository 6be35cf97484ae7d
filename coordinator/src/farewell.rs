//! Coordinators that were asked to end do so together, or know that one is missing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use scrfs::ids::NodeRank;

use crate::comm::{Lane, Transport};
use crate::message::PeerMessage;
use crate::open::{self, OpenError};

/// Between two looks for what has come.
const POLL: Duration = Duration::from_millis(1);

/// Whether all coordinators leave, each as it was asked to, within `limit`. A launcher asks those
/// that are left to end, too, when one has died. To be called in the session after the last one.
///
/// # Errors
/// The transport failed.
pub fn all_leave(transport: &mut impl Transport, limit: Duration) -> Result<bool, OpenError> {
    let (end, me, size) = (Instant::now() + limit, transport.rank(), transport.size());
    let is_lead = me == NodeRank(0);
    let others = || (1..size).map(NodeRank);
    if !is_lead {
        open::send(transport, NodeRank(0), &PeerMessage::Left)?;
    }
    // The lead hears from all, and then says so to all.
    let mut missing: BTreeSet<NodeRank> =
        if is_lead { others().collect() } else { BTreeSet::from([NodeRank(0)]) };
    while !missing.is_empty() {
        if Instant::now() >= end {
            return Ok(false);
        }
        match transport.poll()? {
            Some(received) if received.lane == Lane::Control => {
                if open::decode(received.from, &received.bytes)? == PeerMessage::Left {
                    missing.remove(&received.from);
                }
            }
            Some(_) => {}
            None => std::thread::sleep(POLL),
        }
    }
    if is_lead {
        others().try_for_each(|other| open::send(transport, other, &PeerMessage::Left))?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::sim;

    /// The answers of `size` ranks of which those in `gone` never leave.
    fn leave(size: u32, gone: &[u32], limit: Duration) -> Vec<bool> {
        let (transports, _) = sim::world(size, 7, Duration::from_micros(500));
        let all = std::thread::scope(|scope| {
            // The transports of those that are gone live on: nobody reads them.
            let ranks = transports.into_iter().map(|mut transport| {
                let is_gone = gone.contains(&transport.rank().0);
                scope.spawn(move || {
                    let all = (!is_gone).then(|| all_leave(&mut transport, limit).unwrap());
                    // Its last messages go out.
                    while !is_gone && !transport.is_drained() {
                        let _ = transport.poll();
                    }
                    (transport, all)
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        });
        all.into_iter().filter_map(|(_, all)| all).collect()
    }

    #[test]
    fn all_know_whether_one_is_missing() {
        for size in [1, 2, 9] {
            assert!(leave(size, &[], Duration::from_mins(1)).into_iter().all(|all| all), "{size}");
        }
        let short = Duration::from_millis(100);
        for gone in [0, 3] {
            assert_eq!(leave(5, &[gone], short), [false; 4], "{gone}");
        }
    }
}
