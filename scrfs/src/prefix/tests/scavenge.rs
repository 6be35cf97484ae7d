//! What nodes have saved: published whole or not at all, rebuilt where a node is lost.

use std::fs;
use std::path::Path;

use super::{catalog, content_is, entry, flush, nothing_left_over, path, prefix, read, survey};
use crate::control::loose::{Age, LooseEntry, LooseKind, LooseOwner, LooseSet, LooseStamp, LooseVersion};
use crate::dataset::{Catalog, EntryKind, FileCopy, Layout, MemberPlace, Protection, Scheme};
use crate::ids::{DatasetId, Epoch, Member, RequestId};
use crate::path::RelPath;
use crate::prefix::Known;
use crate::prefix::directory::{PfsError, Prefix};
use crate::prefix::scavenge::{
    Begun, By, Collection, DATASET, MemberRecord, Outcome, RedundancyCopy, adopt, digest,
};
use crate::prefix::{lock::Lock, loose};
use crate::record::{
    DatasetDescriptor, FileKind, MemberFiles, Meta, Record, RedundancyFileName, RedundancyHeader,
    RedundancyKind, SetMembers,
};
use crate::redundancy::payload::Payloads;
use crate::redundancy::{left, reference};

/// A dataset of which nodes save their members.
pub(super) struct Saved {
    pub(super) catalog: Catalog,
    /// Each member's files and their bytes, in the order of its logical file.
    pub(super) files: Vec<Vec<(RelPath, Vec<u8>)>>,
    /// Each member's redundancy file.
    pub(super) redundancy: Vec<(String, Vec<u8>)>,
}

fn noise(seed: u32, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[0]
    };
    (0..length).map(|_| byte()).collect()
}

/// Five members in sets of three and two: several files, none, an empty one, blanks, holes, and one
/// path that two have.
pub(super) fn dataset(id: u64, name: &str) -> Saved {
    sized(id, name, 3 << 20)
}

/// The same with a longest file of so many bytes.
pub(super) fn sized(id: u64, name: &str, longest: usize) -> Saved {
    protected(Scheme::Xor, id, name, longest)
}

pub(super) fn protected(scheme: Scheme, id: u64, name: &str, longest: usize) -> Saved {
    let seed = u32::try_from(id).unwrap() * 100;
    let mut hole = noise(seed, longest);
    hole[5000..longest * 2 / 3].fill(0);
    let files: [&[(&str, Vec<u8>)]; 5] = [
        &[("a", noise(seed + 1, 70_001)), ("both", noise(seed + 9, 5000)), ("sub/empty", Vec::new())],
        &[],
        &[("both", noise(seed + 9, 5000)), ("rank 2", hole), ("z", Vec::new())],
        &[("sub/d/three", noise(seed + 3, 123_456))],
        &[("four", noise(seed + 4, 1)), ("sub/four", noise(seed + 5, 99_999))],
    ];
    let files: Vec<Vec<(RelPath, Vec<u8>)>> =
        files.iter().map(|of| of.iter().map(|(at, data)| (path(at), data.clone())).collect()).collect();
    let mut entries = vec![
        entry(RelPath::root(), EntryKind::Directory, 0o750),
        entry(path("nothing"), EntryKind::Directory, 0o700),
        entry(path("sub"), EntryKind::Directory, 0o755),
        entry(path("sub/d"), EntryKind::Directory, 0o711),
        entry(path("link"), EntryKind::Symlink(b"sub/d/three".to_vec()), 0o777),
    ];
    for (member, of) in (0..).map(Member).zip(&files) {
        for (at, data) in of {
            let (size, crc) = (data.len() as u64, crc32fast::hash(data));
            let copy = FileCopy { size, crc, member, program_rank: None };
            entries.push(entry(at.clone(), EntryKind::File(copy), 0o640));
        }
    }
    let place = |(number, of): (usize, &Vec<(RelPath, Vec<u8>)>)| MemberPlace {
        host: format!("node{number}"),
        files: of.len() as u64,
        bytes: of.iter().map(|(_, data)| data.len() as u64).sum(),
        taken: None,
    };
    let sets = vec![vec![Member(2), Member(0), Member(4)], vec![Member(1), Member(3)]];
    let layout = Layout {
        encoding: 0,
        protection: Protection::by(scheme),
        members: files.iter().enumerate().map(place).collect(),
        sets,
    };
    let mut catalog = Catalog { name: name.into(), layout, entries, ..catalog(id, b"") };
    catalog.sort();
    let redundancy = encode(&catalog, &files);
    Saved { catalog, files, redundancy }
}

/// The redundancy files that the coordinators would have made.
fn encode(catalog: &Catalog, files: &[Vec<(RelPath, Vec<u8>)>]) -> Vec<(String, Vec<u8>)> {
    let mut made = vec![(String::new(), Vec::new()); files.len()];
    let scheme = catalog.layout.scheme();
    let is_rs = matches!(scheme, Scheme::ReedSolomon { .. });
    for set in &catalog.layout.sets {
        let of: Vec<Vec<&[u8]>> =
            set.iter().map(|m| files[m.0 as usize].iter().map(|(_, data)| &data[..]).collect()).collect();
        let lengths: Vec<u64> = of.iter().map(|files| files.iter().map(|f| f.len() as u64).sum()).collect();
        let payloads = Payloads::of(scheme, &lengths).unwrap();
        let made_of_set = match &payloads {
            Payloads::None => panic!("{scheme} makes nothing"),
            Payloads::Copies { .. } => (0..set.len()).map(|at| of[left(set.len(), at)].concat()).collect(),
            Payloads::Parities(_, code) => reference::encode(code, &of, 1, 1 << 16).unwrap(),
        };
        let described = |at: usize| {
            let meta = |(entry, copy): (&crate::dataset::Entry, &FileCopy)| Meta {
                file: Some((&entry.path).into()),
                kind: Some(FileKind::User),
                size: Some(copy.size),
                ..Meta::default()
            };
            MemberFiles::new(set[at], catalog.files_of(set[at]).map(meta).collect())
        };
        for (at, payload) in made_of_set.into_iter().enumerate() {
            let header = RedundancyHeader {
                parities: payloads.parities().filter(|_| is_rs).map(|k| u32::try_from(k).unwrap()),
                chunk: payloads.chunk(),
                current: Some(described(at)),
                partner: Some(described(left(set.len(), at))),
                dataset: Some(DatasetDescriptor { id: Some(catalog.id), ..DatasetDescriptor::default() }),
                group: Some(SetMembers::new(set)),
                ..RedundancyHeader::default()
            };
            let kind = RedundancyKind::of(scheme).unwrap();
            let (position, members, group) = (at as u64, set.len() as u64, set[0].0.into());
            let encoding = catalog.layout.encoding;
            let name = RedundancyFileName { kind, position, members, group, encoding };
            made[set[at].0 as usize] = (name.to_string(), [header.encode(), payload].concat());
        }
    }
    made
}

impl Saved {
    pub(super) fn age(&self) -> Age {
        Age { epoch: self.catalog.epoch, id: self.catalog.id }
    }

    pub(super) fn place(&self, prefix: &Prefix) -> std::path::PathBuf {
        prefix.state(format!("scavenge.{}", self.age()))
    }

    /// The same, encoded anew in other sets.
    pub(super) fn encoded_anew(&self) -> Self {
        let mut catalog = Catalog { revision: 7, ..self.catalog.clone() };
        catalog.layout.encoding = 7;
        catalog.layout.sets = vec![vec![Member(0), Member(1)], vec![Member(3), Member(4), Member(2)]];
        let redundancy = encode(&catalog, &self.files);
        Self { catalog, files: self.files.clone(), redundancy }
    }

    /// What the node of a member does.
    pub(super) fn save(&self, prefix: &Prefix, member: u32) -> Result<(), PfsError> {
        self.save_with(prefix, member, &[&self.redundancy[member as usize]])
    }

    /// The same on a node that has these redundancy files of the member.
    pub(super) fn save_with(
        &self,
        prefix: &Prefix,
        member: u32,
        redundancy: &[&(String, Vec<u8>)],
    ) -> Result<(), PfsError> {
        let Begun::Collect(collection) = Collection::begin(prefix, &Known::of(&self.catalog))? else {
            return Ok(());
        };
        collection.put_catalog(prefix, &self.catalog)?;
        let number = Member(member);
        let sum = digest(self.catalog.files_of(number).map(|(entry, copy)| (&entry.path, copy)));
        let names: Vec<RelPath> = redundancy.iter().map(|(name, _)| path(name)).collect();
        if collection.has(number, sum, &names)? {
            return Ok(());
        }
        for (at, data) in &self.files[member as usize] {
            let to = collection.path().join(DATASET).join(at.as_path());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::write(&to, data).unwrap();
        }
        let copy = |(name, data): &&(String, Vec<u8>)| {
            fs::write(collection.path().join(name), data).unwrap();
            RedundancyCopy { name: path(name), size: data.len() as u64, crc: crc32fast::hash(data) }
        };
        let redundancy = redundancy.iter().map(copy).collect();
        let host = prefix.host.clone();
        let record = MemberRecord { age: self.age(), member: number, host, digest: sum, redundancy };
        collection.record(prefix, &record)
    }

    pub(super) fn save_all_but(&self, prefix: &Prefix, lost: &[u32]) {
        for member in (0..5).filter(|member| !lost.contains(member)) {
            self.save(prefix, member).unwrap();
        }
    }

    /// It is in the prefix, byte for byte, and nothing else is left of it.
    #[track_caller]
    pub(super) fn is_published(&self, prefix: &Prefix) {
        self.is_whole(prefix);
        nothing_left_over(prefix);
    }

    /// It is in the prefix, byte for byte.
    #[track_caller]
    pub(super) fn is_whole(&self, prefix: &Prefix) {
        let found = survey(prefix);
        let stored = found.iter().find(|stored| stored.id == self.catalog.id).expect("in the index");
        assert!(stored.usable && stored.current && stored.epoch == self.catalog.epoch, "{stored:?}");
        let dataset = prefix.dataset(&self.catalog.name);
        for (at, data) in self.files.iter().flatten() {
            assert!(fs::read(dataset.join(at.as_path())).unwrap() == *data, "{at}");
        }
        assert!(dataset.join("nothing").is_dir());
        assert_eq!(fs::read_link(dataset.join("link")).unwrap(), Path::new("sub/d/three"));
        let read = read(prefix, stored);
        assert!(read.entries == self.catalog.entries, "{:?}", read.entries);
        assert_eq!(fs::read_dir(dataset.join(".scr")).unwrap().count(), 3, "no redundancy files");
    }
}

pub(super) fn by_node(prefix: &Prefix, saved: &Saved) -> Outcome {
    adopt(prefix, saved.age(), By::Node).unwrap().outcome
}

pub(super) fn by_anyone(prefix: &Prefix, saved: &Saved) -> Outcome {
    adopt(prefix, saved.age(), By::Person(&|_| {})).unwrap().outcome
}

pub(super) fn node(root: &Path, epoch: u64, host: &str) -> Prefix {
    let mut prefix = prefix(root, epoch);
    host.clone_into(&mut prefix.host);
    prefix
}

#[test]
fn the_last_node_that_saves_its_part_publishes() {
    let root = tempfile::tempdir().unwrap();
    flush(&prefix(root.path(), 5), &catalog(1, b"older"));
    let saved = dataset(2, "ck");
    for member in 0..5 {
        let prefix = node(root.path(), 5, &format!("node{member}"));
        saved.save(&prefix, member).unwrap();
        match (member, by_node(&prefix, &saved)) {
            (4, outcome) => assert_eq!(outcome, Outcome::Published(Vec::new())),
            (_, Outcome::Waits { missing, .. }) => {
                assert_eq!(missing.first(), Some(&(Member(member + 1), format!("node{}", member + 1))));
            }
            (_, other) => panic!("{other:?}"),
        }
    }
    let prefix = prefix(root.path(), 5);
    saved.is_published(&prefix);
    // Who is asked again has nothing to do.
    assert!(matches!(Collection::begin(&prefix, &Known::by_age(saved.age())).unwrap(), Begun::Stored));
    assert!(matches!(
        Collection::begin(&prefix, &Known::by_age(Age { epoch: Epoch(5), id: DatasetId(0) })).unwrap(),
        Begun::Newer(newer) if newer.id == DatasetId(2)
    ));
}

#[test]
fn nodes_that_save_at_the_same_time_publish_once() {
    for round in 0..20 {
        let root = tempfile::tempdir().unwrap();
        let saved = dataset(round + 1, "ck");
        let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
            let work = |member: u32| {
                let (root, saved) = (root.path(), &saved);
                scope.spawn(move || {
                    let mut prefix = node(root, 5, &format!("node{member}"));
                    // A busy machine must not make a lock that is held look like a dead node's.
                    prefix.patience = std::time::Duration::from_mins(1);
                    saved.save(&prefix, member).unwrap();
                    by_node(&prefix, saved)
                })
            };
            let threads: Vec<_> = (0..5).map(work).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let published = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Published(_))).count();
        assert_eq!(published, 1, "{outcomes:?}");
        saved.is_published(&prefix(root.path(), 5));
    }
}

#[test]
fn any_member_is_rebuilt_by_the_next_start_and_by_a_person() {
    for lost in [&[0][..], &[1], &[2], &[3], &[4], &[0, 3], &[1, 2]] {
        let root = tempfile::tempdir().unwrap();
        let saved = dataset(7, "ck");
        let nodes = prefix(root.path(), 5);
        saved.save_all_but(&nodes, lost);
        let Outcome::Waits { missing, .. } = by_node(&nodes, &saved) else { panic!("{lost:?}") };
        assert_eq!(missing.iter().map(|(member, _)| member.0).collect::<Vec<_>>(), lost);
        if lost.len() == 1 {
            let Outcome::Published(rebuilt) = by_anyone(&nodes, &saved) else { panic!("{lost:?}") };
            // A member without files is not missed.
            assert_eq!(rebuilt, if lost == [1] { Vec::new() } else { missing });
        }
        saved.is_published(&prefix(root.path(), 6));
    }
}

#[test]
fn what_cannot_be_rebuilt_is_named_and_the_older_dataset_stays() {
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 5);
    flush(&prefix, &catalog(1, b"older"));
    let saved = dataset(2, "ck");
    saved.save_all_but(&prefix, &[0, 4]);
    let adoption = adopt(&prefix, saved.age(), By::Person(&|_| {})).unwrap();
    assert_eq!(
        adoption.to_string(),
        "ck (dataset 2): not published: member 0 (node0), member 4 (node4) missing: \
         their redundancy set can give back 1 of its members"
    );
    let found = survey(&prefix);
    assert_eq!(found.iter().map(|d| (d.id.0, d.current)).collect::<Vec<_>>(), [(1, true)]);
    assert!(saved.place(&prefix).is_dir(), "it stays, for the node that comes back");
    saved.save(&prefix, 4).unwrap();
    saved.is_published(&prefix);
}

/// Whoever dies at any step, nodes or the publisher: nothing is seen, or a whole dataset, and the
/// next start has it.
#[test]
fn a_crash_at_any_step_leaves_nothing_or_the_whole_dataset() {
    // A former dataset of that name; a lost member.
    for (former, lost) in [(false, None), (true, None), (true, Some(2)), (false, Some(3))] {
        let mut finished = false;
        for steps in 0..40 {
            let root = tempfile::tempdir().unwrap();
            let old = catalog(1, b"ck");
            let saved = sized(2, "ck", 50_000);
            let nodes = prefix(root.path(), 5);
            if former {
                flush(&nodes, &old);
            }
            nodes.steps_left.set(steps);
            let work = || {
                for member in (0..5).filter(|member| Some(*member) != lost) {
                    saved.save(&nodes, member)?;
                }
                adopt(&nodes, saved.age(), if lost.is_none() { By::Node } else { By::Person(&|_| {}) })
            };
            let done = work();
            finished |= done.is_ok();
            // What others see at that moment is whole, too: a start that takes up nothing.
            let seen = prefix(root.path(), 6);
            if let Some(summary) =
                fs::read(root.path().join("ck/.scr/summary.scr")).ok().filter(|_| done.is_err())
            {
                let summary = crate::record::Summary::decode(&summary).unwrap();
                assert!(summary.is_complete());
                if summary.dataset.unwrap().id == Some(DatasetId(1)) {
                    content_is(&seen, &old);
                }
            }
            if done.is_err() {
                fs::write(nodes.state("index.lock"), "epoch 5\nhost gone\n").unwrap();
            }
            // The nodes are asked again, or the next start takes it up.
            let again = prefix(root.path(), 5);
            for member in (0..5).filter(|member| Some(*member) != lost) {
                saved.save(&again, member).unwrap();
            }
            saved.is_published(&seen);
        }
        assert!(finished, "40 steps were not enough");
    }
}

#[test]
fn a_dead_publisher_holds_up_no_start_and_no_person() {
    let root = tempfile::tempdir().unwrap();
    let saved = dataset(2, "ck");
    let (one, two) = (node(root.path(), 5, "node1"), node(root.path(), 5, "node2"));
    saved.save_all_but(&one, &[]);
    fs::write(saved.place(&one).join("publisher"), "node1\n17\n").unwrap();
    let Outcome::Waits { missing, reason } = by_node(&two, &saved) else { panic!() };
    assert_eq!((missing, reason.as_str()), (Vec::new(), "node1 is about to publish it"));
    assert_eq!(by_anyone(&two, &saved), Outcome::Published(Vec::new()));
    saved.is_published(&two);
    // Its own node may go on.
    let next = dataset(3, "next");
    next.save_all_but(&one, &[]);
    fs::write(next.place(&one).join("publisher"), "node1\n17\n").unwrap();
    assert_eq!(by_node(&one, &next), Outcome::Published(Vec::new()));
}

#[test]
fn what_is_older_than_the_prefix_takes_nothing_away() {
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 6);
    let (same, other, half) = (dataset(2, "ck"), dataset(3, "other"), dataset(4, "half"));
    same.save_all_but(&prefix, &[]);
    other.save_all_but(&prefix, &[]);
    half.save_all_but(&prefix, &[2, 0]);
    let newer = Catalog { epoch: Epoch(6), ..catalog(2, b"ck") };
    super::begin_and_copy(&prefix, &newer);
    super::carry_out(&prefix, &super::PfsTask::Publish(newer.clone().into())).unwrap();
    let found = survey(&prefix);
    assert_eq!(
        found.iter().map(|d| (d.epoch.0, d.id.0, d.usable, d.current)).collect::<Vec<_>>(),
        [(6, 2, true, true), (5, 3, true, false)]
    );
    content_is(&prefix, &newer);
    nothing_left_over(&prefix);
}

#[test]
fn without_a_catalog_or_members_nothing_is_published() {
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 5);
    let saved = dataset(2, "ck");
    saved.save_all_but(&prefix, &[]);
    let place = saved.place(&prefix);
    let catalog = fs::read(place.join("catalog.0")).unwrap();
    fs::remove_file(place.join("catalog.0")).unwrap();
    let Outcome::Waits { reason, .. } = by_anyone(&prefix, &saved) else { panic!() };
    assert!(reason.contains("has recorded it as complete"), "{reason}");
    fs::write(place.join("catalog.0"), &catalog[..catalog.len() / 2]).unwrap();
    let Outcome::Waits { reason, .. } = by_anyone(&prefix, &saved) else { panic!() };
    assert!(reason.contains("catalog"), "{reason}");
    // A node that has COMPLETE mends that.
    saved.save(&prefix, 1).unwrap();
    saved.is_published(&prefix);
}

#[test]
fn newer_coordinators_and_a_persons_directory_are_respected() {
    let root = tempfile::tempdir().unwrap();
    let old = prefix(root.path(), 5);
    let saved = dataset(2, "ck");
    saved.save_all_but(&old, &[]);
    fs::write(old.state("epoch.6"), b"").unwrap();
    assert!(matches!(adopt(&old, saved.age(), By::Node), Err(PfsError::Superseded(..))));
    assert!(!saved.place(&old).join("publisher").exists(), "the next may try");
    fs::create_dir(root.path().join("ck")).unwrap();
    fs::write(root.path().join("ck/precious"), b"data").unwrap();
    let newest = Prefix::of_newest(root.path().as_os_str().as_encoded_bytes(), Epoch(5), "login").unwrap();
    let Outcome::Waits { reason, .. } = by_anyone(&newest, &saved) else { panic!() };
    assert!(reason.contains("something that is no dataset has this name"), "{reason}");
    assert_eq!(fs::read(root.path().join("ck/precious")).unwrap(), b"data");
}

/// A set of one pointer file, which says this.
pub(super) fn pointers(age: Age, serial: u64, says: &str) -> LooseSet {
    let kind = LooseKind::File { size: says.len() as u64, crc: crc32fast::hash(says.as_bytes()) };
    let entry = LooseEntry { kind, bytes: says.into(), ..LooseEntry::gone(b"latest".to_vec()) };
    let (stamp, owner) = (LooseStamp { epoch: Epoch(5), serial }, LooseOwner::Sealed(age));
    let version = LooseVersion { stamp, request: RequestId { origin: 1, serial }, owner, entry };
    LooseSet { age, as_of: stamp, versions: vec![version] }
}

#[test]
fn pointer_files_are_published_with_their_dataset() {
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 5);
    let saved = dataset(2, "ck");
    saved.save_all_but(&prefix, &[1]);
    let set = |serial, says: &str| pointers(saved.age(), serial, says);
    let Begun::Collect(collection) = Collection::begin(&prefix, &Known::by_age(saved.age())).unwrap() else {
        panic!()
    };
    for (serial, says) in [(4, "ck"), (7, "ck again"), (5, "late")] {
        collection.put_pointers(&prefix, &set(serial, says)).unwrap();
    }
    saved.save(&prefix, 1).unwrap();
    assert_eq!(by_node(&prefix, &saved), Outcome::Published(Vec::new()));
    assert_eq!(loose::read(&prefix, saved.age()).unwrap(), Some(set(7, "ck again")));
    assert!(!saved.place(&prefix).exists());
}

#[test]
fn a_lock_of_the_same_epoch_is_waited_for_and_a_lost_one_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (one, two) = (node(root.path(), 5, "node1"), node(root.path(), 5, "node2"));
    flush(&one, &catalog(1, b"ck"));
    let held = Lock::take(&one).unwrap();
    // A dead one's: taken over once it has not changed for long.
    let begun = std::time::Instant::now();
    let taken = Lock::take(&two).unwrap();
    assert!(begun.elapsed() >= two.patience);
    assert!(matches!(held.is_held(), Err(PfsError::Locked { holder, .. }) if holder.contains("node2")));
    taken.is_held().unwrap();
    drop(held);
    taken.is_held().expect("what is dropped is not another's");
    // One that goes in time is had at once.
    let mut patient = node(root.path(), 5, "node1");
    patient.patience = std::time::Duration::from_mins(5);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || Lock::take(&patient).map(drop));
        drop(taken);
        waiting.join().unwrap().unwrap();
    });
}
