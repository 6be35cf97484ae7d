//! The rounds in which requests for pointer files are carried out: ask, order, store, finish.

use std::collections::VecDeque;

use scrfs::control::Command;
use scrfs::control::loose::{Begun, LooseEntry, LooseStamp, LooseVersion};
use scrfs::ids::{NodeRank, RequestId};

use super::super::answers::Answers;
use super::super::cluster::Cluster;
use super::super::requests::Requests;
use super::{Loose, Now};

/// Requests of one round, and bytes in them (once there is one), so that a message stays well below
/// the bound of a frame.
const ROUND_MAX: usize = 256;
const ROUND_BYTES: usize = 16 << 20;

#[derive(Debug)]
struct Request {
    id: RequestId,
    entries: Vec<LooseEntry>,
}

#[derive(Debug)]
enum Step {
    Asking(Answers<Vec<Begun>>),
    Storing(Answers<i32>, Vec<LooseStamp>),
}

#[derive(Debug)]
struct Round {
    number: u64,
    requests: Vec<Request>,
    step: Step,
}

/// What is asked for, what runs, and what was answered.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    queue: VecDeque<Request>,
    /// The open ones are those in the queue and in the round.
    requests: Requests,
    running: Option<Round>,
    serial: u64,
    /// A name was refused, and that was told.
    full: bool,
}

impl Rounds {
    /// No round runs: all nodes have stored what was asked for so far.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    /// What goes into the next round.
    fn take_next(&mut self) -> Vec<Request> {
        let mut bytes = 0;
        let mut requests = Vec::new();
        while let Some(next) = self.queue.front() {
            bytes += next.entries.iter().map(|entry| entry.bytes.len()).sum::<usize>();
            if requests.len() == ROUND_MAX || (bytes > ROUND_BYTES && !requests.is_empty()) {
                break;
            }
            requests.extend(self.queue.pop_front());
        }
        requests
    }
}

impl Loose {
    /// A program's request. One that came before is not carried out again.
    pub(in crate::lead) fn request(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        id: RequestId,
        entries: Vec<LooseEntry>,
    ) {
        if let Some(errno) = self.rounds.requests.answer(id) {
            cluster.send(node, Command::LooseFinish { results: vec![(id, errno)] });
        } else if self.rounds.requests.open(id) {
            self.rounds.queue.push_back(Request { id, entries });
        }
    }

    /// The nodes are asked what has begun under which name: names do not change meanwhile.
    pub(in crate::lead) fn asks(&self) -> bool {
        self.rounds.running.as_ref().is_some_and(|round| matches!(round.step, Step::Asking(_)))
    }

    /// Begins the next round if none runs and something is asked for.
    pub(in crate::lead) fn begin(&mut self, cluster: &mut Cluster) {
        if !self.rounds.is_idle() || self.spread.is_some() || self.rounds.queue.is_empty() {
            return;
        }
        let requests = self.rounds.take_next();
        let number = cluster.next_round();
        cluster.send_all(Command::LooseAsk { round: number });
        self.rounds.running =
            Some(Round { number, requests, step: Step::Asking(Answers::of(cluster.nodes())) });
    }

    /// A node says what has begun there; false when no such round asked.
    pub(in crate::lead) fn asked(
        &mut self,
        cluster: &mut Cluster,
        now: Now<'_>,
        node: NodeRank,
        round: u64,
        begun: Vec<Begun>,
    ) -> bool {
        let Some(running) = self.rounds.running.as_mut().filter(|running| running.number == round) else {
            return false;
        };
        let Step::Asking(answers) = &mut running.step else { return false };
        if !answers.put(node, begun) {
            return false;
        }
        if answers.all() {
            let answers = std::mem::replace(answers, Answers::of([]));
            let told: Vec<Begun> = answers.into_answers().flat_map(|(_, begun)| begun).collect();
            let bound = self.versions.follow(&told);
            if !bound.is_empty() {
                cluster.send_all(Command::LooseBind { bound, began: Vec::new() });
            }
            self.learn(cluster, now, told.into_iter());
            self.order(cluster, now);
        }
        true
    }

    /// Gives the round's versions their places, and has all nodes store them.
    fn order(&mut self, cluster: &mut Cluster, now: Now<'_>) {
        let owner = self.owner(cluster, now);
        let Some(round) = &mut self.rounds.running else { return };
        let mut versions = Vec::new();
        for Request { id, entries } in &mut round.requests {
            for entry in std::mem::take(entries) {
                let names = self.versions.names();
                let known = names.contains(entry.name.as_slice());
                if entry.is_gone() && !known {
                    continue;
                }
                if !entry.is_gone() && !known && names.len() >= cluster.settings.loose.max_names as usize {
                    let name = String::from_utf8_lossy(&entry.name).into_owned();
                    if !std::mem::replace(&mut self.rounds.full, true) {
                        let limit = cluster.settings.loose.max_names;
                        cluster.warn(format!(
                            "{name}: there are {limit} pointer files already (SCRFS_LOOSE_FILES): it stays on its node, as \
                             all further ones do"
                        ));
                    }
                    continue;
                }
                self.rounds.serial += 1;
                let stamp = LooseStamp { epoch: cluster.epoch, serial: self.rounds.serial };
                let version = LooseVersion { stamp, request: *id, owner: owner.clone(), entry };
                self.versions.insert(version.clone());
                versions.push(version);
            }
        }
        if versions.is_empty() {
            return self.finish(cluster, 0);
        }
        let stamps = versions.iter().map(|version| version.stamp).collect();
        cluster.send_all(Command::LooseStore { round: round.number, versions, place: true });
        round.step = Step::Storing(Answers::of(cluster.nodes()), stamps);
    }

    /// A node has stored; false when no such round waits for it.
    pub(in crate::lead) fn stored(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        round: u64,
        errno: i32,
    ) -> bool {
        if let Some(spread) = &mut self.spread
            && spread.stored(cluster, node, round, errno)
        {
            self.spread_on(cluster);
            return true;
        }
        let Some(running) = self.rounds.running.as_mut().filter(|running| running.number == round) else {
            return false;
        };
        let Step::Storing(answers, stamps) = &mut running.step else { return false };
        if errno != 0 {
            self.versions.lack(stamps.iter().copied());
            let text = std::io::Error::from_raw_os_error(errno);
            let host = cluster.host(node).to_owned();
            cluster.warn(format!("{host} cannot store pointer files: {text}"));
        }
        if !answers.put(node, errno) {
            return false;
        }
        if answers.all() {
            let errno = answers.iter().map(|(_, errno)| *errno).find(|errno| *errno != 0).unwrap_or(0);
            self.finish(cluster, errno);
        }
        true
    }

    fn finish(&mut self, cluster: &mut Cluster, errno: i32) {
        let Some(round) = self.rounds.running.take() else { return };
        let results: Vec<(RequestId, i32)> =
            round.requests.iter().map(|request| (request.id, errno)).collect();
        self.rounds.requests.close(&results);
        // Before anybody hears of it.
        self.sets.changed(cluster, &self.versions);
        cluster.send_all(Command::LooseFinish { results });
        self.prune(cluster);
    }
}
