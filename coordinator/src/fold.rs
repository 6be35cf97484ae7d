//! What goes up the tree: what many nodes say to the lead, in one message.
//!
//! Each node hands its words, and those of the nodes below it, to the node above. Most answers to
//! one command are equal: they go up once, with the ranks of those who gave them. Answers wait a
//! short time for those of the other nodes below; a request, for which a program waits, does not,
//! and takes along all that waits. The words of each node stay in their order. No socket, clock or
//! thread here.

use std::fmt;
use std::time::{Duration, Instant};

use scrfs::ids::NodeRank;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::tree::{Place, Ranks};

/// The longest time that an answer waits on one node for others.
const WAIT: Duration = Duration::from_millis(1);
/// With so many bytes a fold goes up at once; a single word may be longer.
const FULL: usize = 1 << 20;
/// A word is compared with so many that wait, the latest first.
const COMPARED: usize = 8;

/// A control message, as it is sent.
#[derive(Clone, Default, PartialEq, Eq)]
struct Bytes(Vec<u8>);

/// One word, and who says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Word {
    by: Ranks,
    message: Bytes,
}

/// What several nodes say to the lead.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fold {
    words: Vec<Word>,
    /// One of them is a request: nobody on the way waits for more.
    urgent: bool,
}

impl Fold {
    /// Takes in a word of these nodes.
    fn add(&mut self, word: Word) {
        for waiting in self.words.iter_mut().rev().take(COMPARED) {
            if waiting.message == word.message && !waiting.by.meet(&word.by) {
                return waiting.by.join(&word.by);
            }
            // Nothing that a node says overtakes what that node has said before.
            if waiting.by.meet(&word.by) {
                break;
            }
        }
        self.words.push(word);
    }

    /// Whether all that it has was said by nodes that are reached through `child` from `place`.
    pub fn is_from_below(&self, place: Place, child: NodeRank) -> bool {
        self.words.iter().all(|word| place.all_through(&word.by, child))
    }

    /// Each node's words in their order, as many as there are ranks below `size`.
    pub fn into_words(self, size: u32) -> impl Iterator<Item = (NodeRank, Vec<u8>)> {
        self.words.into_iter().flat_map(move |Word { by, message }| {
            let ranks: Vec<u32> = by.iter(size).collect();
            ranks.into_iter().map(move |rank| (NodeRank(rank), message.0.clone()))
        })
    }
}

/// What waits on one node to go up.
#[derive(Debug, Default)]
pub struct Rising {
    fold: Fold,
    bytes: usize,
    /// Its words, each as often as nodes say it.
    voices: u64,
    /// When the first word came.
    since: Option<Instant>,
}

impl Rising {
    /// This node says something; `urgent`: it is no answer.
    pub fn say(&mut self, me: NodeRank, message: Vec<u8>, urgent: bool, now: Instant) {
        self.fold.urgent |= urgent;
        self.take(Word { by: [me].into_iter().collect(), message: Bytes(message) }, now);
    }

    /// What nodes below said.
    pub fn join(&mut self, below: Fold, now: Instant) {
        self.fold.urgent |= below.urgent;
        below.words.into_iter().for_each(|word| self.take(word, now));
    }

    fn take(&mut self, word: Word, now: Instant) {
        self.since.get_or_insert(now);
        self.bytes = self.bytes.saturating_add(word.message.0.len());
        self.voices = self.voices.saturating_add(word.by.count());
        self.fold.add(word);
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.since.is_none()
    }

    /// What is to go up now: all that waits, once there are as many words as `nodes` that speak
    /// through this one, one is a request, it is much, or the first has waited long.
    pub fn due(&mut self, nodes: u64, now: Instant) -> Option<Fold> {
        let since = self.since?;
        let late = now.saturating_duration_since(since) >= WAIT;
        let goes = self.fold.urgent || self.voices >= nodes || self.bytes >= FULL || late;
        goes.then(|| std::mem::take(self).fold)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Taken;
        impl Visitor<'_> for Taken {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rising(words: &[(u32, u8)]) -> Rising {
        let (mut rising, now) = (Rising::default(), Instant::now());
        for (rank, word) in words {
            rising.say(NodeRank(*rank), vec![*word; 3], false, now);
        }
        rising
    }

    #[test]
    fn equal_answers_go_up_once_with_the_ranks_of_all_who_gave_them() {
        let mut lower = rising(&[(5, 1), (6, 1), (7, 1)]);
        let now = Instant::now();
        let mut upper = rising(&[(1, 1), (2, 9)]);
        upper.join(lower.due(3, now).unwrap(), now);
        let fold = upper.due(5, now).unwrap();
        assert_eq!(fold.words.len(), 2, "{fold:?}");
        let said: Vec<_> = fold.into_words(8).map(|(rank, word)| (rank.0, word[0])).collect();
        assert_eq!(said, [(1, 1), (5, 1), (6, 1), (7, 1), (2, 9)]);
        assert!(upper.is_empty() && upper.due(0, now).is_none());
    }

    #[test]
    fn an_answer_waits_for_the_others_and_a_request_for_nobody() {
        let now = Instant::now();
        let mut answers = rising(&[(4, 1)]);
        let since = answers.since.unwrap();
        assert_eq!(answers.due(2, since), None);
        assert!(answers.due(2, since + WAIT).is_some(), "not for ever");
        let mut answers = rising(&[(4, 1)]);
        answers.join(rising(&[(9, 1)]).due(1, now).unwrap(), since);
        assert!(answers.due(2, since).is_some(), "all have said something");
        let mut answers = rising(&[(4, 1)]);
        answers.say(NodeRank(4), vec![7], true, since);
        let fold = answers.due(9, since).unwrap();
        assert_eq!(fold.words.len(), 2);
        let mut above = Rising::default();
        above.join(fold, since);
        assert!(above.due(100, since).is_some(), "nor does it wait farther up");
        let mut long = rising(&[]);
        long.say(NodeRank(1), vec![0; FULL], false, since);
        assert!(long.due(2, since).is_some());
    }

    #[test]
    fn what_strangers_say_in_the_name_of_others_is_seen() {
        // Ranks 3 and 4 are below 1 where each has two children, 5 and 6 below 2.
        let place = Place::new(NodeRank(0), 7, 2);
        let mut own = rising(&[(1, 1), (3, 1), (4, 2)]);
        let own = own.due(3, Instant::now()).unwrap();
        assert!(own.is_from_below(place, NodeRank(1)) && !own.is_from_below(place, NodeRank(2)));
        for stranger in [0, 2, 5, 7, u32::MAX] {
            let fold = rising(&[(3, 1), (stranger, 1)]).due(1, Instant::now()).unwrap();
            assert!(!fold.is_from_below(place, NodeRank(1)), "{stranger}");
        }
    }

    proptest! {
        /// Whatever is merged, and however often it goes up.
        #[test]
        fn each_node_is_heard_in_its_order(
            said in proptest::collection::vec((0..6_u32, 0..3_u8, any::<bool>()), 0..60)
        ) {
            let (mut rising, mut above, now) = (Rising::default(), Rising::default(), Instant::now());
            let mut heard = Vec::new();
            for (rank, word, goes) in &said {
                rising.say(NodeRank(*rank), vec![*word], *goes, now);
                if let Some(fold) = rising.due(u64::MAX, now) {
                    let bytes = postcard::to_stdvec(&fold).unwrap();
                    above.join(postcard::from_bytes(&bytes).unwrap(), now);
                }
                if word == &2 {
                    heard.extend(above.due(0, now).into_iter().flat_map(|fold| fold.into_words(6)));
                }
            }
            above.join(rising.due(0, now).unwrap_or_default(), now);
            heard.extend(above.due(0, now).into_iter().flat_map(|fold| fold.into_words(6)));
            for rank in 0..6 {
                let wanted: Vec<u8> = said.iter().filter(|(by, ..)| *by == rank).map(|(_, word, _)| *word).collect();
                let of_rank: Vec<u8> =
                    heard.iter().filter(|(by, _)| by.0 == rank).map(|(_, word)| word[0]).collect();
                prop_assert_eq!(of_rank, wanted, "rank {}", rank);
            }
        }
    }
}
