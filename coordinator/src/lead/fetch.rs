//! Fetch on open: a sealed file that is on another node is brought to where it is opened
//! (`scrfs/docs/protocol.md`, Fetch). Its holders are asked first; a holder whose bytes are bad
//! gets its member rebuilt from the set ([`super::mend`]) and is asked again; then the PFS. If no
//! source is good the program gets EIO, and the dataset is marked failed: but only if every
//! source's bytes are gone or wrong, not when a cache was full (ENOSPC) or a link broke.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nix::errno::Errno;
use scrfs::control::{Command, DirOp, FetchFailure, NoRoom, SealedFile};
use scrfs::dataset::{Catalog, EntryKind, FileCopy};
use scrfs::ids::{DatasetId, Member, NodeRank, RequestId};
use scrfs::path::RelPath;
use scrfs::prefix::{PfsTask, StoredDataset};

use super::answers::Answers;
use super::cluster::Cluster;
use super::directories::{Hold, paths};
use super::jobs::ShareEnd;
use super::mend::{MOVES_MAX, Mended, Mending, Mends, Missed};
use super::restore::Restores;
use crate::job::{Job, JobId, JobResult};

/// Copies that run at once; others wait in order.
const RUNNING_MAX: usize = 64;
/// Times that one fetch has members rebuilt: bytes that go bad again and again are a broken disk.
const REBUILDS_MAX: u32 = 3;
/// Times that a fetch for which there should have been room is tried again: who takes it each time
/// has it.
const SHORTAGES_MAX: u32 = 3;

/// A file and who wants it; ordered, so that runs repeat.
type Key = (NodeRank, u64, Vec<u8>);

#[derive(Debug)]
enum Step {
    Queued,
    /// From this member's holder, who had it rebuilt so many times by then.
    Sending(Member, u32, Answers<JobResult>),
    /// This member's rebuild runs, or waits for the directory round.
    Rebuilding(Member),
    /// The asker copies it from the PFS.
    Copying,
    /// This node's cache is full: some other dataset may leave it.
    Short(NodeRank),
}

#[derive(Debug)]
struct Fetch {
    file: SealedFile,
    /// All are answered by one copy.
    requests: Vec<RequestId>,
    /// Members whose holders were asked, since their rebuild if there was one.
    tried: BTreeSet<Member>,
    /// Of these, those whose bytes are bad and that were not rebuilt since.
    bad: BTreeSet<Member>,
    rebuilds: u32,
    /// Times that a program had begun to change the file while it was sent.
    moves: u32,
    /// Times that a cache was full.
    shortages: u32,
    /// The PFS was asked, when the dataset had been published so many times.
    copied: Option<u32>,
    step: Step,
    /// Why the sources gave nothing.
    missed: Vec<Missed>,
}

impl Fetch {
    fn new(file: SealedFile) -> Self {
        Self {
            file,
            requests: Vec::new(),
            tried: BTreeSet::new(),
            bad: BTreeSet::new(),
            rebuilds: 0,
            moves: 0,
            shortages: 0,
            copied: None,
            step: Step::Queued,
            missed: Vec::new(),
        }
    }

    /// The full cache that lacks the fewest bytes for this file.
    fn shortage(&self) -> Option<(NodeRank, NoRoom)> {
        let full = self.missed.iter().filter_map(|missed| missed.full.as_ref());
        full.min_by_key(|(_, full)| full.wanted.saturating_sub(full.room.free)).cloned()
    }

    fn reasons(&self) -> String {
        let reasons: Vec<&str> = self.missed.iter().map(|missed| missed.reason.as_str()).collect();
        reasons.join("; ")
    }
}

/// A fetch for which a cache has no room.
#[derive(Debug)]
pub(super) struct ShortOfRoom {
    key: Key,
    /// Where.
    pub(super) node: NodeRank,
    /// What was needed there.
    pub(super) full: NoRoom,
    /// A cache was full for it time and again.
    pub(super) again: bool,
}

/// The copies that run and wait.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    all: BTreeMap<Key, Fetch>,
    queue: VecDeque<Key>,
    /// Those that holders send.
    sending: BTreeMap<JobId, Key>,
    /// Those that nodes copy from the PFS.
    copying: BTreeMap<(NodeRank, RequestId), Key>,
    mends: Mends,
    /// Those that found the asker's cache full, and of which nobody has heard yet.
    short: Vec<ShortOfRoom>,
    /// Rebuilds to start.
    wanted: BTreeSet<(DatasetId, Member)>,
    /// Rebuilds ended: what waited for that can go on.
    ended: bool,
    /// Datasets whose copies on the PFS turned out to be bad, and that the caches have.
    unflushed: Vec<DatasetId>,
    restores: Restores,
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
        self.all.insert(key, Fetch { requests: vec![request], ..Fetch::new(file) });
    }

    /// Starts what waits, as far as there is room. `committing`: the dataset is complete on some
    /// nodes, and will be on all. `round_touches`: the directory round that runs has an operation
    /// in that dataset; it may remove it.
    pub(super) fn begin(
        &mut self,
        cluster: &mut Cluster,
        committing: impl Fn(DatasetId) -> bool,
        round_touches: impl Fn(&[u8]) -> bool,
    ) {
        self.start(cluster, &committing);
        self.rebuild(cluster, round_touches);
        // Those that waited for a rebuild that could not begin.
        self.start(cluster, &committing);
    }

    fn start(&mut self, cluster: &mut Cluster, committing: impl Fn(DatasetId) -> bool) {
        let mut later = Vec::new();
        while self.sending.len() + self.copying.len() < RUNNING_MAX {
            let Some(key) = self.queue.pop_front() else { break };
            if committing(DatasetId(key.1)) {
                later.push(key);
            } else {
                self.next_source(cluster, &key);
            }
        }
        later.into_iter().rev().for_each(|key| self.queue.push_front(key));
    }

    fn rebuild(&mut self, cluster: &mut Cluster, round_touches: impl Fn(&[u8]) -> bool) {
        self.wanted.extend(self.restores.due(cluster));
        self.restores.refill(cluster, &round_touches, |id, member| self.mends.works_on(id, member));
        let touched = |cluster: &Cluster, id: DatasetId| {
            cluster.datasets.any(id).is_some_and(|known| round_touches(&known.catalog.name))
        };
        let ready: Vec<_> = self.wanted.iter().copied().filter(|(id, _)| !touched(cluster, *id)).collect();
        for (id, member) in ready {
            // One after the other: what is rebuilt now may be what the next one is rebuilt from;
            // and an absent member is made by its set or by the prefix.
            let is_made =
                self.mends.rebuilds_other(id, member) || self.restores.refills_set_of(cluster, id, member);
            if is_made {
                continue;
            }
            self.wanted.remove(&(id, member));
            if let Err(missed) = self.mends.begin(cluster, id, member) {
                self.mended(cluster, &Mended { id, member, result: Err(missed) });
            }
        }
    }

    /// A member is bad, though no program waits for it: a flush or a scrub has found that. If it
    /// cannot be rebuilt its dataset does not count as failed for that: its files may be good, and
    /// only what protects others be bad.
    pub(super) fn mend(&mut self, id: DatasetId, member: Member) {
        self.wanted.insert((id, member));
    }

    /// A member of this dataset is being rebuilt, or will be.
    pub(super) fn rebuilding(&self, id: DatasetId) -> bool {
        self.mends.busy(id) || self.restores.refills(id) || self.wanted.iter().any(|(of, _)| *of == id)
    }

    /// Members of it are on no node, and will be.
    pub(super) fn restores(&self, cluster: &Cluster, id: DatasetId) -> bool {
        cluster.datasets.get(id).is_some_and(|known| self.restores.goes_on(cluster, known))
    }

    /// The names of datasets with members that are on no node, and will be.
    pub(super) fn lacking(&self, cluster: &Cluster) -> BTreeMap<DatasetId, Vec<u8>> {
        let lacking = cluster.datasets.lacking().filter(|known| self.restores.goes_on(cluster, known));
        lacking.map(|known| (known.catalog.id, known.catalog.name.clone())).collect()
    }

    /// Whether a rebuild has ended since this was asked.
    pub(super) fn take_ended(&mut self) -> bool {
        std::mem::take(&mut self.ended)
    }

    /// Datasets that are to be flushed anew, since this was asked.
    pub(super) fn take_unflushed(&mut self) -> Vec<DatasetId> {
        std::mem::take(&mut self.unflushed)
    }

    /// What running rebuilds mean for a directory operation.
    pub(super) fn hold(&self, op: &DirOp) -> Hold {
        let is_held = |top: &[u8]| self.mends.busy_name(top) || self.restores.holds(top);
        let rebuilt = |path: &RelPath| path.split_first().is_some_and(|(top, _)| is_held(top));
        if paths(op).any(rebuilt) { Hold::Wait } else { Hold::Free }
    }

    fn next_source(&mut self, cluster: &mut Cluster, key: &Key) {
        let Some(fetch) = self.all.get_mut(key) else { return };
        let Some(known) = cluster.datasets.any(fetch.file.id) else {
            // The asker looks its name up once more: a newer generation may have it.
            self.answer(cluster, key, Errno::ESTALE as i32, "its dataset is not there any more");
            return;
        };
        let copies = copies(&known.catalog, &fetch.file.path);
        if copies.is_empty() {
            self.answer(cluster, key, Errno::EIO as i32, "it is no file of the dataset");
            return;
        }
        for (copy, host) in copies {
            if !fetch.tried.insert(copy.member) {
                continue;
            }
            if known.absent.contains(&copy.member) {
                if self.restores.is_rebuilt(cluster, known, copy.member) {
                    fetch.bad.insert(copy.member);
                    continue;
                }
                if known.in_prefix() && fetch.copied.is_none() {
                    let reason = format!("member {} is on no node", copy.member);
                    fetch.missed.push(Missed::bad(reason));
                    continue;
                }
                // No source gives this member back. Its files may still be on its node, so that
                // node is asked.
            }
            let Some(from) = cluster.rank_of(&host) else {
                fetch.missed.push(Missed::passing(format!("{host} takes no part in this epoch")));
                continue;
            };
            // Also where the asker is the holder: what is there may have been rebuilt since it
            // asked.
            let job = Job::Send { file: fetch.file.clone(), size: copy.size, crc: copy.crc, from, to: key.0 };
            let answers = Answers::of(job.nodes());
            let rebuilds = self.mends.rebuilds(fetch.file.id, copy.member);
            let id = cluster.start(job);
            fetch.step = Step::Sending(copy.member, rebuilds, answers);
            self.sending.insert(id, key.clone());
            return;
        }
        if let Some(member) = fetch.bad.pop_first() {
            if fetch.rebuilds < REBUILDS_MAX {
                fetch.rebuilds += 1;
                fetch.step = Step::Rebuilding(member);
                self.wanted.insert((fetch.file.id, member));
                return;
            }
            fetch.missed.push(Missed::passing(format!("bad again after {REBUILDS_MAX} rebuilds")));
        }
        if known.in_prefix() && fetch.copied.is_none() {
            fetch.copied = Some(known.published);
            let Some(&request) = fetch.requests.first() else { return };
            fetch.step = Step::Copying;
            self.copying.insert((key.0, request), key.clone());
            let (file, directory) = (fetch.file.clone(), cluster.prefix_of(&known.catalog.name));
            cluster.send(key.0, Command::CopyFromPrefix { request, file, directory });
            return;
        }
        self.fail(cluster, key);
    }

    /// No source has given it.
    fn fail(&mut self, cluster: &mut Cluster, key: &Key) {
        let Some(fetch) = self.all.get_mut(key) else { return };
        if let Some((node, full)) = fetch.shortage() {
            fetch.step = Step::Short(node);
            fetch.shortages += 1;
            let again = fetch.shortages > SHORTAGES_MAX;
            self.short.push(ShortOfRoom { key: key.clone(), node, full, again });
            return;
        }
        let (id, path) = (fetch.file.id, &fetch.file.path);
        let reasons = fetch.reasons();
        if fetch.missed.iter().all(|missed| missed.bad) && cluster.datasets.fail(id) {
            let reason = format!("no source has the right bytes of {path}: {reasons}");
            cluster.log(format!("dataset {id} has failed: {reason}"));
            cluster.send_all(Command::MarkFailed { id, reason });
        }
        self.answer(cluster, key, Errno::EIO as i32, &reasons);
    }

    /// A node whose cache was too full for a file that is opened there.
    pub(super) fn take_short(&mut self) -> Option<ShortOfRoom> {
        self.short.pop()
    }

    /// No room can be made for it, as `why` says.
    pub(super) fn no_room(&mut self, cluster: &mut Cluster, short: &ShortOfRoom, why: &str) {
        let reasons = self.all.get(&short.key).map(Fetch::reasons).unwrap_or_default();
        self.answer(cluster, &short.key, Errno::ENOSPC as i32, &format!("{why} ({reasons})"));
    }

    /// What was to leave the node's cache has left it: what waited for that is tried again.
    pub(super) fn room_made(&mut self, node: NodeRank) {
        let told = |key: &Key| self.short.iter().any(|short| short.key == *key);
        let waits = |fetch: &Fetch| matches!(fetch.step, Step::Short(at) if at == node);
        for (key, fetch) in self.all.iter_mut().filter(|(key, fetch)| waits(fetch) && !told(key)) {
            let (requests, shortages) = (std::mem::take(&mut fetch.requests), fetch.shortages);
            *fetch = Fetch { requests, shortages, ..Fetch::new(fetch.file.clone()) };
            self.queue.push_back(key.clone());
        }
    }

    /// A program waits for a file of it.
    pub(super) fn wants(&self, id: DatasetId) -> bool {
        self.all.keys().any(|key| key.1 == id.0)
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

    /// A share ended; false when it is no share of these copies or of a rebuild for them.
    pub(super) fn job(&mut self, cluster: &mut Cluster, share: ShareEnd) -> bool {
        let Some(key) = self.sending.get(&share.job).cloned() else {
            if let Some(ended) = self.restores.job(cluster, &share) {
                self.ended |= ended;
                return true;
            }
            let Some(mending) = self.mends.job(cluster, share) else { return false };
            if let Mending::Ended(all) = mending {
                for mended in all {
                    self.mended(cluster, &mended);
                }
            }
            return true;
        };
        let ShareEnd { node, result, job } = share;
        let Some(fetch) = self.all.get_mut(&key) else { return false };
        let Step::Sending(member, rebuilds, answers) = &mut fetch.step else { return false };
        if !answers.put(node, result) {
            return false;
        }
        if answers.all() {
            self.sending.remove(&job);
            let member = *member;
            let rebuilt_since = self.mends.rebuilds(fetch.file.id, member) != *rebuilds;
            // The receiver has checked and installed; whatever the sender says after that does not
            // matter.
            if answers.iter().any(|(node, result)| node == key.0 && result.is_ok()) {
                self.answer(cluster, &key, 0, "");
            } else {
                let missed = Missed::of(cluster, answers);
                let is_moved = !missed.bad && missed.moved && fetch.moves < MOVES_MAX;
                fetch.moves += u32::from(is_moved);
                if is_moved || missed.bad && rebuilt_since {
                    // The file, or the member, is another one since this job began: its holder is
                    // asked again.
                    fetch.tried.remove(&member);
                } else {
                    if missed.bad {
                        fetch.bad.insert(member);
                    }
                    fetch.missed.push(missed);
                }
                self.next_source(cluster, &key);
            }
        }
        true
    }

    /// A member was fetched from the prefix, or could not be; also one that nobody awaits any more.
    pub(super) fn fetched_member(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        id: DatasetId,
        result: Result<(), FetchFailure>,
    ) {
        let corrupt = result.as_ref().is_err_and(|failure| failure.corrupt);
        if corrupt {
            self.fail_there(cluster, id);
        }
        self.ended |= self.restores.fetched(cluster, node, id, result);
    }

    /// Its copy on the PFS is marked FAILED, once.
    fn fail_there(&mut self, cluster: &mut Cluster, id: DatasetId) {
        if !cluster.datasets.bad_there(id) {
            return;
        }
        let Some(known) = cluster.datasets.any(id) else { return };
        let is_flushed = known.flushed;
        let (epoch, name) = (known.catalog.epoch, known.catalog.name.clone());
        let directory = cluster.prefix_of(&name);
        let stored =
            StoredDataset { id, epoch, name, directory, created_us: None, usable: true, current: false };
        cluster.warn(format!("dataset {id}: its copy on the PFS is bad and is marked FAILED"));
        cluster.pfs(PfsTask::MarkFailed(stored));
        if !is_flushed {
            cluster.send_all(Command::UnmarkFlushed(id));
            self.unflushed.extend(cluster.datasets.get(id).map(|_| id));
        }
    }

    /// All fetches that waited for the rebuild of this member go on.
    fn mended(&mut self, cluster: &mut Cluster, mended: &Mended) {
        self.ended = true;
        match &mended.result {
            Ok(()) => drop(self.wanted.remove(&(mended.id, mended.member))),
            Err(missed) => self.restores.failed(cluster, mended.id, mended.member, missed.bad),
        }
        let waits = |fetch: &Fetch| {
            fetch.file.id == mended.id
                && matches!(fetch.step, Step::Rebuilding(member) if member == mended.member)
        };
        let keys: Vec<Key> = self.all.iter().filter(|(_, f)| waits(f)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            let Some(fetch) = self.all.get_mut(&key) else { continue };
            match &mended.result {
                Ok(()) => drop(fetch.tried.remove(&mended.member)),
                Err(missed) => fetch.missed.push(missed.clone()),
            }
            // They may be many.
            fetch.step = Step::Queued;
            self.queue.push_back(key);
        }
    }

    /// The PFS's copy is in place, or not; false when that is not awaited.
    pub(super) fn copied(
        &mut self,
        cluster: &mut Cluster,
        node: NodeRank,
        request: RequestId,
        result: Result<(), FetchFailure>,
    ) -> bool {
        let Some(key) = self.copying.remove(&(node, request)) else { return false };
        let Err(failure) = result else {
            self.answer(cluster, &key, 0, "");
            return true;
        };
        let reason = format!("the PFS: {}", failure.reason);
        let full = failure.full.map(|full| (node, full));
        let Some(fetch) = self.all.get_mut(&key) else { return false };
        let id = fetch.file.id;
        let published = cluster.datasets.any(id).map(|known| known.published);
        if failure.corrupt && published != fetch.copied {
            // These bytes were of the copy before: the new one is asked.
            fetch.copied = None;
        } else {
            fetch.missed.push(Missed { bad: failure.corrupt, full, ..Missed::passing(reason) });
            if failure.corrupt {
                self.fail_there(cluster, id);
            }
        }
        self.next_source(cluster, &key);
        true
    }
}

/// The members that have a file of this path (equal files of several are one name), and their
/// hosts.
fn copies(catalog: &Catalog, path: &RelPath) -> Vec<(FileCopy, String)> {
    let entries = &catalog.entries;
    let first = entries.partition_point(|entry| entry.path < *path);
    let equal = entries[first..].iter().take_while(|entry| entry.path == *path);
    equal
        .filter_map(|entry| match &entry.kind {
            EntryKind::File(copy) => {
                let place = catalog.layout.members.get(copy.member.0 as usize)?;
                Some((copy.clone(), place.host.clone()))
            }
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use scrfs::control::MemberPart;
    use scrfs::dataset::{Entry, Layout, MemberPlace, Protection, Scheme, Stamp};

    use super::*;
    use crate::job::{JobFailure, JobOutput};
    use crate::lead::Output;
    use crate::lead::flush::tests::catalog;
    use crate::settings::tests::settings;

    const ID: DatasetId = DatasetId(1);

    /// An XOR dataset of nodes a and b, whose first member has a file `x`; and a fetch of that by
    /// b.
    fn fetch(absent: &[u32]) -> (Cluster, Fetches) {
        let path = RelPath::new("x").unwrap();
        let kind = EntryKind::File(FileCopy { size: 1, crc: 0, member: Member(0), program_rank: None });
        let (atime, mtime) = (Stamp::default(), Stamp::default());
        let file = Entry { path: path.clone(), kind, mode: 0o644, uid: 0, gid: 0, atime, mtime };
        let place = |host: &str| MemberPlace { host: host.to_owned(), files: 1, bytes: 1, taken: None };
        let layout = Layout {
            encoding: 0,
            protection: Protection::by(Scheme::Xor),
            members: ["a", "b"].map(place).into(),
            sets: vec![vec![Member(0), Member(1)]],
        };
        let hosts = ["a", "b"].map(str::to_owned).into();
        let mut cluster = Cluster::new(scrfs::ids::Epoch(1), hosts, settings(), 100);
        let catalog = Catalog { layout, entries: vec![file], ..catalog(1) };
        cluster.datasets.insert(catalog.into(), false);
        cluster.lacks(ID, absent.iter().copied().map(Member).collect());
        let mut fetches = Fetches::default();
        let request = RequestId { origin: 1, serial: 1 };
        fetches.fetch(NodeRank(1), request, SealedFile { id: ID, path });
        fetches.begin(&mut cluster, |_| false, |_| false);
        (cluster, fetches)
    }

    /// What has begun, or ended, since the last call.
    fn told(cluster: &mut Cluster) -> Vec<String> {
        let of = |output| match output {
            Output::Start(id, Job::Send { .. }) => Some(format!("send {}", id.0)),
            Output::Start(id, Job::Rebuild { lost, .. }) => Some(format!("rebuild {lost:?} {}", id.0)),
            Output::Command(_, Command::Fetched { errno, .. }) => Some(format!("fetched {errno}")),
            Output::Command(_, Command::MarkFailed { .. }) => Some("failed".to_owned()),
            Output::Command(_, Command::CopyFromPrefix { .. }) => Some("copy".to_owned()),
            Output::Command(_, Command::FetchMember { member, .. }) => {
                Some(format!("member {member} from the prefix"))
            }
            _ => None,
        };
        cluster.take_outputs().into_iter().filter_map(of).collect()
    }

    /// Both shares of a job of nodes a and b have ended, that of a so.
    fn ended(cluster: &mut Cluster, fetches: &mut Fetches, job: u64, result: JobResult) {
        let other = result.clone().map_err(|_| JobFailure::passing("ended by others"));
        for (node, result) in [(0, result), (1, other)] {
            assert!(fetches.job(cluster, ShareEnd { node: NodeRank(node), job: JobId(job), result }));
        }
        fetches.begin(cluster, |_| false, |_| false);
    }

    /// Of an absent member the redundancy file alone may be gone: where nobody gives it back, the
    /// node that has its files is asked for them.
    #[test]
    fn the_node_of_a_member_that_nobody_gives_back_is_asked() {
        let (mut cluster, _) = fetch(&[0, 1]);
        assert_eq!(told(&mut cluster), ["send 1"]);
    }

    /// A rebuild takes as long as its members are large.
    #[test]
    fn who_waits_for_a_rebuild_holds_up_no_other_open() {
        let (mut cluster, mut fetches) = fetch(&[0]);
        let first = &cluster.datasets.any(ID).unwrap().catalog;
        let entry = |at: u32, member| {
            let kind = EntryKind::File(FileCopy { size: 1, crc: 0, member, program_rank: None });
            Entry { path: RelPath::new(format!("x{at:03}")).unwrap(), kind, ..first.entries[0].clone() }
        };
        let absent = u32::try_from(RUNNING_MAX).unwrap() + 9;
        let mut entries = first.entries.clone();
        entries.extend((1..=absent).map(|at| entry(at, Member(0))));
        entries.push(entry(absent + 1, Member(1)));
        let catalog = Catalog { entries, ..Catalog::clone(first) };
        cluster.datasets.insert(catalog.into(), false);
        cluster.lacks(ID, [Member(0)].into());
        assert_eq!(told(&mut cluster), ["rebuild [0] 1"]);
        for at in 1..=absent + 1 {
            let path = RelPath::new(format!("x{at:03}")).unwrap();
            let request = RequestId { origin: 1, serial: u64::from(at) + 1 };
            fetches.fetch(NodeRank(0), request, SealedFile { id: ID, path });
        }
        fetches.begin(&mut cluster, |_| false, |_| false);
        assert_eq!(told(&mut cluster), ["send 2"]);
        // Then they do not begin all at once.
        let part = MemberPart { member: Member(0), entries: Vec::new(), taken: 1 };
        ended(&mut cluster, &mut fetches, 1, Ok(JobOutput::Part(Box::new(part))));
        assert_eq!(told(&mut cluster).len(), RUNNING_MAX - 1);
    }

    /// Its next generation was sealed meanwhile.
    #[test]
    fn who_opens_a_generation_that_has_gone_looks_its_name_up_again() {
        let (mut cluster, mut fetches) = fetch(&[]);
        cluster.datasets.remove(ID);
        ended(&mut cluster, &mut fetches, 1, Err(JobFailure::passing("it is not here")));
        let stale = format!("fetched {}", Errno::ESTALE as i32);
        assert_eq!(told(&mut cluster), ["send 1".to_owned(), stale]);
    }

    /// The copy that was bad has gone: the dataset was flushed and published again.
    #[test]
    fn a_late_answer_of_a_bad_copy_does_not_mark_the_new_one_failed() {
        let bad = || Err(FetchFailure { reason: "CRC".to_owned(), corrupt: true, full: None });
        let (mut cluster, mut fetches) = fetch(&[]);
        cluster.datasets.flushed(ID);
        ended(&mut cluster, &mut fetches, 1, Err(JobFailure::passing("gone")));
        assert_eq!(told(&mut cluster), ["send 1", "copy"]);
        cluster.datasets.flushed(ID);
        let (node, request) = (NodeRank(1), RequestId { origin: 1, serial: 1 });
        assert!(fetches.copied(&mut cluster, node, request, bad()));
        assert_eq!(told(&mut cluster), ["copy"]);
        assert!(!cluster.datasets.any(ID).unwrap().bad_there);
        assert!(fetches.copied(&mut cluster, node, request, bad()));
        assert!(cluster.datasets.any(ID).unwrap().bad_there);
    }

    /// A program overwrites the file while its node sends it.
    #[test]
    fn a_file_that_is_moved_while_it_is_sent_is_sent_again_and_is_not_bad() {
        let moved = || Err(JobFailure { moved: true, ..JobFailure::passing("moved") });
        let (mut cluster, mut fetches) = fetch(&[]);
        ended(&mut cluster, &mut fetches, 1, moved());
        assert_eq!(told(&mut cluster), ["send 1", "send 2"]);
        ended(&mut cluster, &mut fetches, 2, Ok(JobOutput::Done));
        assert_eq!(told(&mut cluster), ["fetched 0"]);

        let (mut cluster, mut fetches) = fetch(&[]);
        for job in 1..=u64::from(MOVES_MAX) + 1 {
            assert_eq!(told(&mut cluster), [format!("send {job}")]);
            ended(&mut cluster, &mut fetches, job, moved());
        }
        assert_eq!(told(&mut cluster), ["fetched 5"], "and the dataset has not failed");
    }

    /// The caches have the last good copy.
    #[test]
    fn what_is_bad_on_the_pfs_is_not_flushed_any_more_unless_only_the_pfs_gives_the_rest() {
        // What is marked and told, whether it counts as flushed, whether it is read from there, and
        // whether it is flushed anew.
        let found = |absent: &[u32]| {
            let (mut cluster, mut fetches) = fetch(&[]);
            let catalog = Arc::clone(&cluster.datasets.any(ID).unwrap().catalog);
            cluster.datasets.insert(catalog, true);
            cluster.lacks(ID, absent.iter().copied().map(Member).collect());
            for _ in 0..2 {
                let failure = FetchFailure { reason: "CRC".to_owned(), corrupt: true, full: None };
                fetches.fetched_member(&mut cluster, NodeRank(0), ID, Err(failure));
            }
            let outputs = cluster.take_outputs();
            let marks = |output: &&Output| matches!(output, Output::Pfs(PfsTask::MarkFailed(_)));
            let tells = |output: &&Output| matches!(output, Output::Command(_, Command::UnmarkFlushed(ID)));
            let known = cluster.datasets.any(ID).unwrap();
            let counts = [outputs.iter().filter(marks).count(), outputs.iter().filter(tells).count()];
            (counts, known.flushed, known.in_prefix(), fetches.take_unflushed() == [ID])
        };
        assert_eq!(found(&[]), ([1, 1], false, true, true));
        assert_eq!(found(&[0]), ([1, 1], false, true, true), "its set gives it back");
        assert_eq!(found(&[0, 1]), ([1, 0], true, true, false));
    }

    /// Its set has wrong bytes, so an absent member comes from the prefix; meanwhile another member
    /// of the set turns out to be bad.
    #[test]
    fn a_member_is_made_by_the_prefix_or_by_its_set_but_not_by_both_at_once() {
        let (mut cluster, mut fetches) = fetch(&[0]);
        let catalog = Arc::clone(&cluster.datasets.any(ID).unwrap().catalog);
        cluster.datasets.insert(catalog, true);
        cluster.lacks(ID, [Member(0)].into());
        assert_eq!(told(&mut cluster), ["rebuild [0] 1"]);
        let bad = JobFailure { bad: vec![1], ..JobFailure::passing("CRC") };
        ended(&mut cluster, &mut fetches, 1, Err(bad));
        cluster.now += 60_000_000;
        fetches.mend(ID, Member(1));
        fetches.begin(&mut cluster, |_| false, |_| false);
        assert_eq!(told(&mut cluster), ["copy", "member 0 from the prefix"]);
        fetches.begin(&mut cluster, |_| false, |_| false);
        assert!(told(&mut cluster).is_empty() && fetches.wanted.contains(&(ID, Member(1))), "the mend waits");
        let failed = FetchFailure { reason: "EIO".to_owned(), corrupt: false, full: None };
        fetches.fetched_member(&mut cluster, NodeRank(0), ID, Err(failed));
        fetches.begin(&mut cluster, |_| false, |_| false);
        assert!(!fetches.wanted.contains(&(ID, Member(1))), "and is tried after that");
    }

    /// The same of what the other members give to the rebuild of a bad one.
    #[test]
    fn a_rebuild_whose_source_is_moved_is_begun_again() {
        let (mut cluster, mut fetches) = fetch(&[]);
        let bad = JobFailure { bad: vec![0], ..JobFailure::passing("CRC") };
        ended(&mut cluster, &mut fetches, 1, Err(bad));
        let moved = JobFailure { moved: true, ..JobFailure::passing("moved") };
        let result = || Err(moved.clone());
        for job in 2..=u64::from(MOVES_MAX) + 1 {
            ended(&mut cluster, &mut fetches, job, result());
        }
        let rebuilds: Vec<_> = (2..=6).map(|job| format!("rebuild [0] {job}")).collect();
        assert_eq!(told(&mut cluster), [&["send 1".to_owned()], &rebuilds[..]].concat());
        ended(&mut cluster, &mut fetches, 6, result());
        assert_eq!(told(&mut cluster), ["fetched 5"], "and the dataset has not failed");
    }
}
