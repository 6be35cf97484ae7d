//! Fetch on open: a sealed file that is on another node is brought to where it is opened (DESIGN 4.6). Holders are
//! asked first, in order; then the PFS; if no source is good the program gets EIO.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nix::errno::Errno;
use scrfs::control::{Command, SealedFile};
use scrfs::dataset::EntryKind;
use scrfs::ids::{NodeRank, RequestId};

use super::answers::Answers;
use super::cluster::Cluster;
use super::jobs::Share;
use crate::job::{Job, JobId, JobResult};

/// Copies that run at once; others wait in order.
const RUNNING_MAX: usize = 64;

/// A file and who wants it; ordered, so that runs repeat.
type Key = (NodeRank, u64, Vec<u8>);

#[derive(Debug)]
enum Step {
    Queued,
    Sending(JobId, Answers<JobResult>),
    /// The request that the copy was asked under.
    Copying(RequestId),
}

#[derive(Debug)]
struct Fetch {
    file: SealedFile,
    /// All are answered by one copy.
    requests: Vec<RequestId>,
    /// Holders that were tried.
    tried: BTreeSet<NodeRank>,
    step: Step,
    /// Why the last source failed.
    reason: String,
}

/// The copies that run and wait.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    all: BTreeMap<Key, Fetch>,
    queue: VecDeque<Key>,
}

impl Fetches {
    /// A program opens a file whose bytes are not on `node`.
    pub(super) fn fetch(&mut self, node: NodeRank, request: RequestId, file: SealedFile) {
        let key = (node, file.id.0, file.path.as_bytes().to_vec());
        if let Some(fetch) = self.all.get_mut(&key) {
            if !fetch.requests.contains(&request) {
                fetch.requests.push(request);
            }
            return;
        }
        self.queue.push_back(key.clone());
        let (tried, reason) = (BTreeSet::from([node]), "no other node has it".to_owned());
        self.all.insert(key, Fetch { file, requests: vec![request], tried, step: Step::Queued, reason });
    }

    /// Starts what waits, as far as there is room.
    pub(super) fn begin(&mut self, cluster: &mut Cluster) {
        while self.all.len() - self.queue.len() < RUNNING_MAX {
            let Some(key) = self.queue.pop_front() else { return };
            self.next_source(cluster, &key);
        }
    }

    fn next_source(&mut self, cluster: &mut Cluster, key: &Key) {
        let Some(fetch) = self.all.get_mut(key) else { return };
        let Some(known) = cluster.datasets.get(fetch.file.id) else {
            self.answer(cluster, key, Errno::EIO as i32, "its dataset is not there any more");
            return;
        };
        // Equal files of several members are one name: each holder is a source.
        let layout = &known.catalog.layout;
        let entries = &known.catalog.entries;
        let first = entries.partition_point(|entry| entry.path < fetch.file.path);
        let source =
            entries[first..].iter().take_while(|entry| entry.path == fetch.file.path).find_map(|entry| {
                let EntryKind::File(copy) = &entry.kind else { return None };
                let holder = cluster.rank_of(&layout.members.get(copy.member.0 as usize)?.host)?;
                (!fetch.tried.contains(&holder)).then_some((holder, copy.size, copy.crc))
            });
        if let Some((from, size, crc)) = source {
            fetch.tried.insert(from);
            let job = Job::Send { file: fetch.file.clone(), size, crc, from, to: key.0 };
            let answers = Answers::of(job.nodes());
            fetch.step = Step::Sending(cluster.start(job), answers);
        } else if known.flushed && !matches!(fetch.step, Step::Copying(_)) && !fetch.requests.is_empty() {
            let request = fetch.requests[0];
            fetch.step = Step::Copying(request);
            let (file, directory) = (fetch.file.clone(), cluster.prefix_of(&known.catalog.name));
            cluster.send(key.0, Command::CopyFromPrefix { request, file, directory });
        } else {
            let reason = std::mem::take(&mut fetch.reason);
            self.answer(cluster, key, Errno::EIO as i32, &reason);
        }
    }

    fn answer(&mut self, cluster: &mut Cluster, key: &Key, errno: i32, reason: &str) {
        let Some(fetch) = self.all.remove(key) else { return };
        if errno != 0 {
            let (id, path, host) = (fetch.file.id, &fetch.file.path, cluster.host(key.0));
            cluster.warn(format!("{path} of dataset {id} cannot be brought to {host}: {reason}"));
        }
        for request in fetch.requests {
            cluster.send(key.0, Command::Fetched { request, errno });
        }
    }

    /// A share ended; false when it is no share of these copies.
    pub(super) fn job(&mut self, cluster: &mut Cluster, share: Share) -> bool {
        let Share { node, job, result } = share;
        let mine = |fetch: &Fetch| matches!(&fetch.step, Step::Sending(running, _) if *running == job);
        let Some((key, fetch)) = self.all.iter_mut().find(|(_, fetch)| mine(fetch)) else { return false };
        let Step::Sending(_, answers) = &mut fetch.step else { return false };
        if !answers.put(node, result) {
            return false;
        }
        if answers.all() {
            let key = key.clone();
            let failure = answers.iter().find_map(|(node, result)| {
                result.as_ref().err().map(|why| format!("{}: {why}", cluster.host(node)))
            });
            // The receiver has checked and installed; whatever the sender says after that does not matter.
            let installed = answers.iter().any(|(node, result)| node == key.0 && result.is_ok());
            match failure {
                Some(reason) if !installed => {
                    fetch.reason = reason;
                    self.next_source(cluster, &key);
                }
                _ => self.answer(cluster, &key, 0, ""),
            }
        }
        true
    }

    /// The PFS's copy is in place, or not; false when that is not awaited.
    pub(super) fn copied(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        request: RequestId,
        result: Result<(), String>,
    ) -> bool {
        let mine = |fetch: &Fetch| matches!(fetch.step, Step::Copying(asked) if asked == request);
        let found = self.all.iter().find(|(key, fetch)| key.0 == node && mine(fetch));
        let Some(key) = found.map(|(key, _)| key.clone()) else { return false };
        match result {
            Ok(()) => self.answer(cluster, &key, 0, ""),
            Err(reason) => self.answer(cluster, &key, Errno::EIO as i32, &reason),
        }
        true
    }
}
