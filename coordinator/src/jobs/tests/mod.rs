//! Encode, rebuild and send over the simulated transport, against plain arithmetic in memory.

mod losses;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::block::Outgoing;
use super::link::{Connector, DataLink};
use super::streams::Emit;
use super::testbed::{self, Nodes};
use super::{Jobs, LOST_LINK_HOLD};
use crate::comm::buffers::Buffers;
use crate::job::{About, Job, JobId, JobOutput, SetMember};
use scrfs::control::{JobRules, NoRoom, Room, SealedFile};
use scrfs::dataset::{Catalog, EntryKind, Layout, MemberPlace, Protection, Scheme};
use scrfs::ids::{DatasetId, Epoch, Member, NodeRank};
use scrfs::path::RelPath;

const ID: DatasetId = DatasetId(7);

/// A set whose members have these files; member i is at node i.
struct Case {
    nodes: Nodes,
    files: Vec<Vec<(RelPath, Vec<u8>)>>,
    root: tempfile::TempDir,
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()[3]
    };
    (0..len).map(next).collect()
}

/// Uneven files, several per member, one member with none, an empty file, names with blanks and
/// subdirectories.
fn files(members: usize, scale: usize) -> Vec<Vec<(RelPath, Vec<u8>)>> {
    let file = |m: usize, n: usize, len: usize| {
        let name = format!("sub dir {n}/rank {m} part {n}\u{fe}.ckpt");
        (RelPath::new(name).unwrap(), bytes((m * 100 + n) as u64, len))
    };
    (0..members)
        .map(|m| match m {
            1 => vec![],
            2 => vec![file(m, 0, 0), file(m, 1, 5 * scale + 3), file(m, 2, 0)],
            _ => (0..=m % 3).map(|n| file(m, n, scale * (m + 1) + 17 * n)).collect(),
        })
        .collect()
}

impl Case {
    fn new(files: Vec<Vec<(RelPath, Vec<u8>)>>, block: u32, spares: usize) -> Self {
        let root = tempfile::tempdir().unwrap();
        let count = u32::try_from(files.len() + spares).unwrap();
        let nodes = Nodes::new(count, u64::from(block) + 99, block, root.path());
        let case = Self { nodes, files, root };
        for m in 0..case.files.len() {
            case.place(m);
        }
        case
    }

    fn place(&self, m: usize) {
        let daemon = &self.nodes.daemons[m];
        self.files[m].iter().for_each(|(path, bytes)| daemon.put(path, bytes));
        daemon.order(member(m), self.files[m].iter().map(|(p, _)| p.clone()).collect());
    }

    fn set(&self) -> Vec<SetMember> {
        let sizes = |m: usize| self.files[m].iter().map(|(_, b)| b.len() as u64).collect();
        (0..self.files.len())
            .map(|m| SetMember { member: member(m), node: node(m), sizes: sizes(m) })
            .collect()
    }

    fn encode_job(&self, scheme: Scheme) -> Job {
        Job::Encode {
            fresh: None,
            id: ID,
            scheme,
            about: About {
                name: b"ck 1".to_vec(),
                created_us: 1_795_241_159_283_041,
                user: "me".to_owned(),
                job_id: "j1".to_owned(),
                files: self.files.iter().map(Vec::len).sum::<usize>() as u64,
                bytes: self.files.iter().flatten().map(|(_, b)| b.len() as u64).sum(),
            },
            paths: self.files.iter().map(|f| f.iter().map(|(p, _)| p.clone()).collect()).collect(),
            set: self.set(),
            members: u32::try_from(self.files.len()).unwrap(),
            encoding: 0,
        }
    }

    /// Encodes and joins the parts as the lead does.
    fn encode(&self, scheme: Scheme) -> Catalog {
        let mut entries = Vec::new();
        for (node, result) in self.nodes.run(1, &self.encode_job(scheme), 1) {
            let JobOutput::Part(part) = result.unwrap() else { panic!("no part of node {node}") };
            let known = &self.files[node.0 as usize];
            assert_eq!(part.entries.len(), known.len());
            for (entry, (path, bytes)) in part.entries.iter().zip(known) {
                let EntryKind::File(copy) = &entry.kind else { panic!() };
                assert_eq!((&entry.path, copy.crc), (path, crc32fast::hash(bytes)));
            }
            entries.extend(part.entries);
        }
        let place = |m: &Vec<(RelPath, Vec<u8>)>| MemberPlace {
            host: "h".to_owned(),
            files: m.len() as u64,
            bytes: m.iter().map(|(_, b)| b.len() as u64).sum(),
            taken: None,
        };
        let mut catalog = Catalog {
            id: ID,
            epoch: Epoch(1),
            revision: 0,
            name: b"ck 1".to_vec(),
            created_us: 1_795_241_159_283_041,
            user: "me".to_owned(),
            job_id: "j1".to_owned(),
            layout: Layout {
                encoding: 0,
                protection: Protection::by(scheme),
                members: self.files.iter().map(place).collect(),
                sets: vec![(0..self.files.len()).map(member).collect()],
            },
            entries,
        };
        catalog.sort();
        catalog
    }

    /// The payloads by the definition (FORMATS 4), byte by byte.
    fn payloads(&self) -> Vec<Vec<u8>> {
        let n = self.files.len();
        let mut logical: Vec<Vec<u8>> =
            self.files.iter().map(|f| f.iter().flat_map(|(_, b)| b.clone()).collect()).collect();
        let longest = logical.iter().map(Vec::len).max().unwrap();
        let chunk = longest.div_ceil(n - 1).max(1);
        for l in &mut logical {
            l.resize(chunk * (n - 1), 0);
        }
        let piece = |r: usize, m: usize| if m < r { m } else { m - 1 };
        (0..n)
            .map(|m| {
                let byte = |b: usize| {
                    (0..n).filter(|r| *r != m).fold(0, |x, r| x ^ logical[r][piece(r, m) * chunk + b])
                };
                (0..chunk).map(byte).collect()
            })
            .collect()
    }

    fn lose(&self, m: usize) {
        self.nodes.daemons[m].wipe();
    }

    fn rebuild_job(&self, catalog: &Catalog, lost: usize, onto: usize) -> Job {
        self.rebuild_all(catalog, &[(lost, onto)])
    }

    /// Each of these members is lost, and is to be on that node.
    fn rebuild_all(&self, catalog: &Catalog, lost: &[(usize, usize)]) -> Job {
        let mut set = self.set();
        for (lost, onto) in lost {
            set[*lost].node = node(*onto);
        }
        let lost = lost.iter().map(|(lost, _)| member(*lost).0).collect();
        Job::Rebuild { catalog: Arc::new(catalog.clone()), set, lost }
    }

    /// A member is where it was, with its redundancy file.
    fn restore(&self, m: usize, (name, bytes): &(String, Vec<u8>)) {
        self.lose(m);
        self.place(m);
        fs::write(self.root().join(format!("node{m}/red/{name}")), bytes).unwrap();
        self.nodes.daemons[m].name(member(m), name);
    }

    fn assert_files(&self, m: usize, at: usize) {
        for (path, bytes) in &self.files[m] {
            assert_eq!(&fs::read(self.nodes.daemons[at].tree(path)).unwrap(), bytes, "{path}");
        }
    }

    fn root(&self) -> &Path {
        self.root.path()
    }
}

fn node(n: usize) -> NodeRank {
    NodeRank(u32::try_from(n).unwrap())
}

fn member(m: usize) -> Member {
    Member(u32::try_from(m).unwrap())
}

#[test]
fn nothing_but_empty_files_still_has_a_byte_of_parity() {
    let empty = |m: usize| vec![(RelPath::new(format!("empty.{m}")).unwrap(), vec![])];
    let case = Case::new((0..3).map(empty).collect(), 4096, 0);
    let catalog = case.encode(Scheme::Xor);
    case.lose(1);
    case.nodes.run(2, &case.rebuild_job(&catalog, 1, 1), 0).into_values().for_each(|r| drop(r.unwrap()));
    case.assert_files(1, 1);
}

#[test]
fn single_and_a_set_of_one_take_crcs_only() {
    let rs = Scheme::ReedSolomon { failures: 2 };
    for (count, scheme) in [(3, Scheme::Single), (1, Scheme::Partner), (1, Scheme::Xor), (1, rs)] {
        let case = Case::new(files(count, 1000), 100, 0);
        case.encode(scheme);
        assert!(case.nodes.daemons.iter().all(|d| d.redundancy_bytes().is_empty()));
    }
}

#[test]
fn a_fault_in_one_share_ends_all_with_an_error() {
    for after in 0..3 {
        let case = Case::new(files(4, 100_000), 1024, 0);
        case.nodes.daemons[3].fail_after(after);
        let results = case.nodes.run(1, &case.encode_job(Scheme::Xor), 0);
        let error = results[&NodeRank(3)].as_ref().unwrap_err();
        assert!(error.reason.words().contains("injected") && !error.is_bad(), "{error}");
        let failed = results.values().filter(|r| r.is_err()).count();
        assert!(failed == 4 || after >= 2, "{failed} of 4 ended with an error");
        if after < 2 {
            // A share that had not begun when it was told has nothing to give up.
            let given_up = case.nodes.daemons[0].abandoned();
            assert!(given_up.is_empty() || given_up == [Member(0)], "{given_up:?}");
        }
    }
}

#[test]
fn a_dead_peer_ends_all_with_an_error() {
    let case = Case::new(files(4, 400_000), 512, 0);
    // It has sent a small part of what it has to.
    case.nodes.control.kill_when_sent(NodeRank(2), 2048);
    let results = case.nodes.run(1, &case.encode_job(Scheme::Xor), 0);
    assert!(results.values().all(Result::is_err), "{results:?}");
}

#[test]
fn a_changed_survivor_is_named_and_nothing_is_rebuilt() {
    let case = Case::new(files(4, 5000), 256, 1);
    let catalog = case.encode(Scheme::Xor);
    let (path, bytes) = &case.files[3][0];
    let mut wrong = bytes.clone();
    wrong[100] ^= 1;
    case.nodes.daemons[3].put(path, &wrong);
    case.lose(0);
    let results = case.nodes.run(2, &case.rebuild_job(&catalog, 0, 4), 0);
    let named = results[&NodeRank(3)].as_ref().unwrap_err();
    assert!(named.bad == [3] && named.reason.words().contains("CRC"), "{results:?}");
    assert!(!results[&NodeRank(4)].as_ref().unwrap_err().is_bad(), "{results:?}");
    assert_eq!(case.nodes.daemons[4].abandoned(), vec![Member(0)]);
}

#[test]
fn memory_is_bounded_by_the_window_not_by_the_data() {
    for scheme in [Scheme::Partner, Scheme::Xor, Scheme::ReedSolomon { failures: 2 }] {
        let case = Case::new(files(3, 1_000_000), 1024, 0);
        case.encode(scheme);
        // Of each strip to each of two others, with their addresses.
        let blocks = (testbed::ENCODE_THREADS * 2 * super::WINDOW) as usize;
        let (bound, peak) = (blocks * (1024 + 20), case.nodes.control.peak_bytes());
        assert!(peak <= bound, "{scheme}: {peak} bytes in flight");
    }
}

#[test]
fn a_sealed_file_goes_to_the_asker_whole_or_not_at_all() {
    let case = Case::new(files(3, 3000), 700, 0);
    let (path, bytes) = &case.files[0][0];
    let job = |crc| Job::Send {
        file: SealedFile { id: ID, path: path.clone() },
        size: bytes.len() as u64,
        crc,
        from: NodeRank(0),
        to: NodeRank(1),
    };
    let good = case.nodes.run(1, &job(crc32fast::hash(bytes)), 1);
    assert!(good.values().all(Result::is_ok), "{good:?}");
    case.assert_files(0, 0);
    assert_eq!(&fs::read(case.nodes.daemons[1].tree(path)).unwrap(), bytes);
    let bad = case.nodes.run(2, &job(1), 0);
    // The holder says that what it has is bad; the asker only that it got nothing.
    let is_bad = |result: &crate::job::JobResult| result.as_ref().unwrap_err().is_bad();
    assert!(is_bad(&bad[&NodeRank(0)]) && !is_bad(&bad[&NodeRank(1)]), "{bad:?}");
    case.nodes.daemons[0].change_once_opened(path);
    let moved = case.nodes.run(5, &job(crc32fast::hash(bytes)), 0);
    let failures: Vec<_> = moved.values().filter_map(|result| result.as_ref().err()).collect();
    assert!(failures.len() == 2 && failures.iter().all(|failure| !failure.is_bad()), "{moved:?}");
    assert!(moved[&NodeRank(0)].as_ref().unwrap_err().moved, "{moved:?}");
    let again = case.nodes.run(6, &job(crc32fast::hash(bytes)), 0);
    assert!(again.values().all(Result::is_ok), "{again:?}");
    let own = Job::Send {
        file: SealedFile { id: ID, path: path.clone() },
        size: bytes.len() as u64,
        crc: crc32fast::hash(bytes),
        from: NodeRank(0),
        to: NodeRank(0),
    };
    case.nodes.run(4, &own, 0)[&NodeRank(0)].as_ref().unwrap();
    case.assert_files(0, 0);
    let gone = Job::Send {
        file: SealedFile { id: ID, path: RelPath::new("nowhere").unwrap() },
        size: 5,
        crc: 0,
        from: NodeRank(0),
        to: NodeRank(2),
    };
    let gone = case.nodes.run(3, &gone, 0);
    assert!(is_bad(&gone[&NodeRank(0)]) && !is_bad(&gone[&NodeRank(2)]), "{gone:?}");
}

#[test]
fn a_file_for_which_there_is_no_room_is_not_begun_and_holes_need_none() {
    let mut bytes = vec![0; 40_000];
    bytes[20_000] = 1;
    let case = Case::new(vec![vec![(RelPath::new("f").unwrap(), bytes.clone())], vec![]], 700, 0);
    let (path, daemon) = (&case.files[0][0].0, &case.nodes.daemons[1]);
    // As a program would have written it.
    let sparse = fs::File::create(case.nodes.daemons[0].tree(path)).unwrap();
    scrfs::transfer::sparse::write_at(&sparse, &bytes, 0).unwrap();
    scrfs::transfer::sparse::end(&sparse, bytes.len() as u64).unwrap();
    let takes = sparse.metadata().unwrap().blocks() * 512;
    assert!(takes < 10_000, "{takes}");
    let job = Job::Send {
        file: SealedFile { id: ID, path: path.clone() },
        size: bytes.len() as u64,
        crc: crc32fast::hash(&bytes),
        from: NodeRank(0),
        to: NodeRank(1),
    };
    daemon.has_room_for(takes - 1);
    let results = case.nodes.run(1, &job, 0);
    let failure = results[&NodeRank(1)].as_ref().unwrap_err();
    let room = Room { free: takes - 1, held: vec![(DatasetId(1), 5)] };
    assert_eq!(failure.full, Some(NoRoom { wanted: takes, room }));
    assert!(!failure.is_bad() && !daemon.tree(path).exists());
    daemon.has_room_for(takes);
    let results = case.nodes.run(2, &job, 0);
    assert!(results.values().all(Result::is_ok), "{results:?}");
    assert!(fs::read(daemon.tree(path)).unwrap() == bytes);
    assert_eq!(fs::metadata(daemon.tree(path)).unwrap().blocks() * 512, takes);
}

#[test]
fn what_is_encoded_and_rebuilt_of_sparse_files_has_holes() {
    let mut files = files(3, 3);
    for (member, of) in (0_u8..).zip(&mut files) {
        let mut bytes = vec![0; 600_000];
        bytes[usize::from(member) * 100_000..][..500].fill(member + 1);
        of.push((RelPath::new(format!("z{member}")).unwrap(), bytes));
    }
    let case = Case::new(files, 4096, 0);
    let catalog = case.encode(Scheme::Xor);
    let small = |directory: &str, node: usize| {
        for entry in fs::read_dir(case.nodes.daemons[node].root.join(directory)).unwrap() {
            let meta = entry.unwrap().metadata().unwrap();
            assert!(meta.is_dir() || meta.blocks() * 512 < 50_000, "{} blocks", meta.blocks());
        }
    };
    (0..3).for_each(|node| small("red", node));
    let before = case.nodes.daemons[1].redundancy_bytes();
    case.lose(1);
    case.nodes.run(2, &case.rebuild_job(&catalog, 1, 1), 0).into_values().for_each(|r| drop(r.unwrap()));
    case.assert_files(1, 1);
    small("tree", 1);
    small("red", 1);
    assert!(case.nodes.daemons[1].redundancy_bytes() == before);
}

/// Its share at node 0 fails, and nobody hears of it before the coordinator ends. Blocks that were
/// ready before may go.
fn is_held_back(connect: Connector, job: Job) {
    let (out, told) = crossbeam_channel::unbounded();
    let emit: Emit = Arc::new(move |outgoing| {
        if matches!(outgoing, Outgoing::Ended { .. }) {
            drop(out.send(outgoing));
        }
    });
    let rules = JobRules { block_bytes: 4096, encode_threads: 1 };
    let mut jobs = Jobs::new(node(0), rules, connect, emit, Buffers::default());
    jobs.start(JobId(1), job);
    assert!(told.recv_timeout(Duration::from_millis(200)).is_err(), "the lead heard of it");
    jobs.abort_all("the coordinator ends");
    let ended = told.recv_timeout(LOST_LINK_HOLD / 2).unwrap();
    assert!(matches!(ended, Outgoing::Ended { result: Err(_), .. }));
}

#[test]
fn a_lost_daemon_fails_no_job_before_its_coordinator_ends() {
    let file = SealedFile { id: DatasetId(1), path: RelPath::new("ck/f").unwrap() };
    let send = Job::Send { file, size: 1, crc: 0, from: node(0), to: node(1) };
    is_held_back(Arc::new(|| Err("end of file".into())), send);
}

#[test]
fn nor_does_one_that_is_lost_while_a_share_uses_it() {
    for scheme in [Scheme::Xor, Scheme::Single] {
        let case = Case::new(files(3, 100), 4096, 0);
        let daemon = case.nodes.daemons[0].clone();
        daemon.die();
        let connect: Connector = Arc::new(move || Ok(Box::new(daemon.clone()) as Box<dyn DataLink>));
        is_held_back(connect, case.encode_job(scheme));
    }
}
