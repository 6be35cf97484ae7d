//! What this coordinator says to the others and hears from them: over the transport, down and up
//! the tree, with the bell.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use scrfs::ids::NodeRank;

use crate::bell::Ringer;
use crate::comm::buffers::Buffers;
use crate::comm::{CommError, Lane, Received, Transport};
use crate::fold::Rising;
use crate::jobs::block::{Address, Announced, Arrival, Block};
use crate::message::PeerMessage;
use crate::open::{self, OpenError};
use crate::tree::{Place, Ranks, Route};

/// The rank that leads.
const LEAD: NodeRank = NodeRank(0);

/// Something that came.
#[derive(Debug)]
pub enum Heard {
    /// It is on its way to other nodes, or announces what comes: nothing is to be done here.
    Passing,
    /// A message, and who sent it first.
    Message(NodeRank, PeerMessage),
    /// A block of a job.
    Block(Address, Block),
}

/// The other coordinators.
pub struct Peers<T> {
    transport: T,
    ringer: Ringer,
    place: Place,
    /// What is to go up the tree.
    rising: Rising,
    /// As the lead: what nodes said that is still to be heard.
    said: VecDeque<(NodeRank, Vec<u8>)>,
    /// From whom the next control message is to be passed on, and whom it is for.
    passing: Option<(NodeRank, Ranks)>,
    /// Blocks held back while the transport has no room; bounded by the jobs' credits.
    held: VecDeque<(NodeRank, Address, Arc<Vec<u8>>)>,
    announced: Announced,
}

impl<T: Transport> Peers<T> {
    /// After the opening; `fanout` is that of the tree.
    pub fn new(transport: T, ringer: Ringer, fanout: u32) -> Self {
        let place = Place::new(transport.rank(), transport.size(), fanout);
        let (rising, said, held, announced) = Default::default();
        Self { transport, ringer, place, rising, said, passing: None, held, announced }
    }

    /// Gives back what outlives a session.
    pub fn into_parts(self) -> (T, Ringer) {
        (self.transport, self.ringer)
    }

    /// This coordinator.
    pub fn me(&self) -> NodeRank {
        self.transport.rank()
    }

    /// All but this one.
    pub fn others(&self) -> impl Iterator<Item = NodeRank> + use<T> {
        let me = self.me();
        (0..self.transport.size()).map(NodeRank).filter(move |rank| *rank != me)
    }

    /// Where buffers of blocks are taken from.
    pub fn buffers(&self) -> &Buffers {
        self.transport.buffers()
    }

    /// Something is on its way from here, or to here.
    pub fn is_busy(&self) -> bool {
        !self.held.is_empty()
            || !self.rising.is_empty()
            || self.transport.is_receiving()
            || !self.transport.is_drained()
    }

    /// Says something to another one.
    ///
    /// # Errors
    /// The transport failed.
    pub fn say(&mut self, to: NodeRank, message: &PeerMessage) -> Result<(), OpenError> {
        self.ringer.sends(to);
        open::send(&mut self.transport, to, message)
    }

    /// Says to the lead, which is another node, what its daemon or a job here has to say. It hears
    /// this node's words in their order.
    ///
    /// # Errors
    /// The transport failed.
    pub fn report(&mut self, message: &PeerMessage) -> Result<(), OpenError> {
        if self.place.is_flat() {
            return self.say(LEAD, message);
        }
        let bytes = open::encode(self.me(), message)?;
        self.rising.say(self.me(), bytes, !message.is_one_of_many(), Instant::now());
        self.send_risen()
    }

    /// Sends up the tree what has waited long enough for the words of other nodes.
    ///
    /// # Errors
    /// The transport failed.
    pub fn send_risen(&mut self) -> Result<(), OpenError> {
        if self.rising.is_empty() {
            return Ok(());
        }
        match (self.rising.due(self.place.subtree(), Instant::now()), self.place.parent()) {
            (Some(fold), Some(above)) => self.say(above, &PeerMessage::Fold(fold)),
            _ => Ok(()),
        }
    }

    /// As the lead, says to `others`, none of which is named twice, what `bytes` is the code of;
    /// all of them share these. All commands, and all starts of jobs, go this way, so their order
    /// holds.
    ///
    /// # Errors
    /// The transport failed.
    pub fn lead(&mut self, others: Vec<NodeRank>, bytes: Vec<u8>) -> Result<(), OpenError> {
        let bytes = Arc::new(bytes);
        if !self.place.is_flat() {
            let Route { on, .. } = self.place.route(&others.into_iter().collect());
            return self.pass_on(on, &bytes);
        }
        for node in others {
            self.ringer.sends(node);
            self.transport.send(node, Lane::Control, Arc::clone(&bytes))?;
        }
        Ok(())
    }

    fn pass_on(&mut self, on: BTreeMap<NodeRank, Ranks>, bytes: &Arc<Vec<u8>>) -> Result<(), OpenError> {
        for (child, ranks) in on {
            self.say(child, &PeerMessage::Pass(ranks))?;
            self.transport.send(child, Lane::Control, Arc::clone(bytes))?;
        }
        Ok(())
    }

    /// Has a block sent by [`Peers::send_held`].
    pub fn send_block(&mut self, to: NodeRank, address: Address, bytes: Arc<Vec<u8>>) {
        self.held.push_back((to, address, bytes));
    }

    /// Sends blocks, as long as the transport has room.
    ///
    /// # Errors
    /// The transport failed.
    pub fn send_held(&mut self) -> Result<(), CommError> {
        while self.transport.has_room() {
            let Some((node, address, bytes)) = self.held.pop_front() else { break };
            self.ringer.sends(node);
            self.transport.send(node, Lane::Bulk, address.to_message())?;
            self.transport.send(node, Lane::Bulk, bytes)?;
        }
        Ok(())
    }

    /// What has come, if anything has.
    ///
    /// # Errors
    /// The transport failed, or what came is no message.
    pub fn poll(&mut self) -> Result<Option<Heard>, OpenError> {
        if let Some((from, bytes)) = self.said.pop_front() {
            return Ok(Some(Heard::Message(from, open::decode(from, &bytes)?)));
        }
        let received = self.transport.poll()?;
        received.map(|received| self.hear(received)).transpose()
    }

    /// Takes one message, and passes it on: to those below that it is for, or up to the lead.
    ///
    /// # Errors
    /// As [`Peers::poll`].
    pub fn hear(&mut self, received: Received) -> Result<Heard, OpenError> {
        let Received { from, lane, bytes } = received;
        self.ringer.received(from);
        if lane == Lane::Bulk {
            return match self.announced.take(from, bytes) {
                Arrival::Announced => Ok(Heard::Passing),
                Arrival::Block(address, block) => Ok(Heard::Block(address, block)),
                Arrival::Senseless => {
                    Err(OpenError::Message(from, "neither a block nor its address".to_owned()))
                }
            };
        }
        if let Some((_, ranks)) = self.passing.take_if(|(above, _)| *above == from) {
            let bytes = Arc::new(bytes);
            let Route { here, on } = self.place.route(&ranks);
            self.pass_on(on, &bytes)?;
            let message = here.then(|| open::decode(LEAD, &bytes)).transpose()?;
            return Ok(message.map_or(Heard::Passing, |message| Heard::Message(LEAD, message)));
        }
        match open::decode(from, &bytes)? {
            PeerMessage::Pass(ranks) if self.place.parent() == Some(from) => {
                self.passing = Some((from, ranks));
                Ok(Heard::Passing)
            }
            PeerMessage::Fold(fold) if fold.is_from_below(self.place, from) => {
                if self.me() == LEAD {
                    self.said.extend(fold.into_words(self.transport.size()));
                } else {
                    self.rising.join(fold, Instant::now());
                    self.send_risen()?;
                }
                Ok(Heard::Passing)
            }
            message => Ok(Heard::Message(from, message)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use scrfs::control::Event;

    use super::*;
    use crate::comm::sim;
    use crate::job::{JobId, JobOutput};
    use crate::jobs::block::Stream;

    const LIMIT: Duration = Duration::from_mins(1);

    fn coordinators(size: u32, fanout: u32, delay: Duration) -> Vec<Peers<sim::SimTransport>> {
        let (transports, _) = sim::world(size, fanout.into(), delay);
        let peers = |transport| Peers::new(transport, Ringer::silent(), fanout);
        transports.into_iter().map(peers).collect()
    }

    /// What each says to the lead, in the order in which it says it; equal answers in few messages.
    #[test]
    fn what_nodes_say_comes_to_the_lead_in_the_order_of_each() {
        const SIZE: u32 = 23;
        for fanout in [2, 3, 16, 30] {
            let mut peers = coordinators(SIZE, fanout, Duration::from_micros(300));
            let said = [
                PeerMessage::Report(Event::Pong),
                PeerMessage::Report(Event::Asked { times: 1 }),
                PeerMessage::Report(Event::DirUnited),
                PeerMessage::JobDone(JobId(7), Ok(JobOutput::Done)),
            ];
            let (mut heard, end) = (vec![Vec::new(); SIZE as usize], Instant::now() + LIMIT);
            heard[0] = said.to_vec();
            let mut left: Vec<_> = (1..SIZE as usize).map(|rank| (rank, said.iter())).collect();
            while heard.iter().any(|heard| heard.len() < said.len()) {
                assert!(Instant::now() < end, "{heard:?}");
                for (rank, words) in &mut left {
                    words.next().map_or(Ok(()), |word| peers[*rank].report(word)).unwrap();
                }
                for (rank, peer) in peers.iter_mut().enumerate() {
                    match peer.poll().unwrap() {
                        Some(Heard::Message(from, message)) if rank == 0 => {
                            heard[from.0 as usize].push(message);
                        }
                        Some(Heard::Passing) | None => {}
                        other => panic!("{other:?}"),
                    }
                    peer.send_risen().unwrap();
                }
            }
            assert!(heard.iter().all(|heard| *heard == said), "fan-out {fanout}: {heard:?}");
            assert!(peers.iter().all(|peer| peer.rising.is_empty()));
        }
    }

    #[test]
    fn nobody_speaks_for_nodes_that_are_not_below() {
        let mut peers = coordinators(7, 2, Duration::ZERO);
        // Rank 5 is below 2, not below 1.
        peers[5].report(&PeerMessage::Report(Event::Pong)).unwrap();
        let end = Instant::now() + LIMIT;
        let fold = loop {
            assert!(Instant::now() < end, "nothing came to rank 2");
            if let Some(Received { bytes, .. }) = peers[2].transport.poll().unwrap() {
                break bytes;
            }
        };
        let received = Received { from: NodeRank(1), lane: Lane::Control, bytes: fold };
        let heard = peers[0].hear(received).unwrap();
        assert!(matches!(heard, Heard::Message(NodeRank(1), PeerMessage::Fold(_))), "{heard:?}");
        assert!(peers[0].poll().unwrap().is_none());
    }

    /// What the lead says to each, in the order in which it says it, among what others say.
    #[test]
    fn what_the_lead_says_comes_in_order_to_each_that_it_is_for() {
        const SIZE: u32 = 23;
        for fanout in [2, 3, 16, 30] {
            let mut peers = coordinators(SIZE, fanout, Duration::from_micros(300));
            let mut wanted = vec![Vec::new(); SIZE as usize];
            for number in 0..60 {
                let to: Vec<_> =
                    (1..SIZE).filter(|rank| (rank * 7 + number) % (1 + number % 5) == 0).collect();
                let credit = PeerMessage::Credit {
                    job: JobId(number.into()),
                    stream: Stream { from: 0, to: 0, strip: 0 },
                };
                let credit = open::encode(LEAD, &credit).unwrap();
                peers[0].lead(to.iter().copied().map(NodeRank).collect(), credit).unwrap();
                for rank in to {
                    wanted[rank as usize].push(number);
                }
                // Its own word to a neighbour comes between the two halves of no message.
                peers[1].say(NodeRank(5), &PeerMessage::Attached).unwrap();
            }
            let (mut heard, end) = (vec![Vec::new(); SIZE as usize], Instant::now() + LIMIT);
            while heard != wanted {
                assert!(Instant::now() < end, "{heard:?}");
                for (peer, heard) in peers.iter_mut().zip(&mut heard) {
                    match peer.poll().unwrap() {
                        Some(Heard::Message(LEAD, PeerMessage::Credit { job, .. })) => {
                            heard.push(u32::try_from(job.0).unwrap());
                        }
                        Some(Heard::Passing | Heard::Message(NodeRank(1), PeerMessage::Attached)) | None => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    }
}
