//! Our arithmetic against the parity that SCR wrote.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use scrfs::hash::file::HEADER_BYTES;
use scrfs::hash::record_size;
use scrfs::ids::Member;
use scrfs::record::{
    FilemapMember, MemberFiles, Meta, Record, RedundancyFileName, RedundancyHeader, RedundancyKind,
};
use scrfs::redundancy::code::Code;
use scrfs::redundancy::geometry::Geometry;
use scrfs::redundancy::payload::Payloads;
use scrfs::redundancy::reference::{Rebuilt, Survivor, encode, rebuild};
use scrfs::redundancy::{Scheme, left};

use crate::vectors::{RELEASES, Vector, release, root};

/// The block size of SCR's default.
const BLOCK: u64 = 128 * 1024;

/// One member of a set, as it is on disk.
struct Part {
    path: PathBuf,
    header: RedundancyHeader,
    payload: Vec<u8>,
    files: Vec<Vec<u8>>,
}

impl Part {
    fn metas(&self) -> Vec<&Meta> {
        self.header.current.as_ref().unwrap().in_order().unwrap()
    }

    fn borrowed(&self) -> Vec<&[u8]> {
        self.files.iter().map(Vec::as_slice).collect()
    }

    fn survivor(&self) -> Survivor<'_> {
        Survivor { files: self.borrowed(), parity: &self.payload }
    }

    fn set(&self) -> Vec<Member> {
        self.header.group.as_ref().unwrap().in_order().unwrap()
    }

    fn rank(&self) -> Member {
        self.header.current.as_ref().unwrap().rank.unwrap()
    }
}

/// Reads an XOR file and the files that it says its member has; they are in `directory`, or where
/// the program had them below it.
fn read(file: &Vector, directory: &Path) -> Part {
    let (header, size) = RedundancyHeader::decode_first(&file.bytes).unwrap();
    let metas = header.current.as_ref().unwrap().in_order().unwrap();
    let files = metas.iter().map(|meta| {
        let name = meta.file.as_ref().unwrap().as_path();
        let orig = meta.orig.as_ref().map(|orig| directory.join(orig.as_path()));
        let place = Some(directory.join(name)).filter(|path| path.exists()).or(orig).unwrap();
        let bytes = fs::read(&place).unwrap_or_else(|e| panic!("{place:?}: {e}"));
        assert_eq!(meta.size, Some(bytes.len() as u64));
        bytes
    });
    let files = files.collect();
    Part { path: file.path.clone(), payload: file.bytes[size..].to_vec(), files, header }
}

/// Where the data is that an XOR file belongs to, and the name of its set: release, case, cache or
/// prefix, dataset.
fn place(file: &Vector) -> (PathBuf, String) {
    let directory = file.path.parent().unwrap();
    let hidden = directory.file_name().is_some_and(|name| name == ".scr");
    // 1.2 in the prefix: <prefix>/.scr/scr.dataset.<id>/, the files where the program had them.
    let hidden_dataset = directory.parent().is_some_and(|above| above.file_name() == Some(".scr".as_ref()));
    let up = if hidden_dataset { 2 } else { usize::from(hidden) };
    let data = directory.ancestors().nth(up).unwrap().to_path_buf();
    let relative = directory.strip_prefix(root()).unwrap().to_str().unwrap();
    let set = match relative.split_once("/nodes/node") {
        Some((case, rest)) => format!("{case}:{}", &rest[1..]),
        None => relative.to_owned(),
    };
    (data, set)
}

/// All sets of the 1.x releases, by name, members in ring order.
fn sets() -> BTreeMap<String, Vec<Part>> {
    let mut sets: BTreeMap<String, Vec<Part>> = BTreeMap::new();
    for name in &RELEASES[..4] {
        for file in release(name).iter().filter(|file| file.is_xor()) {
            let (directory, set) = place(file);
            sets.entry(set).or_default().push(read(file, &directory));
        }
    }
    for parts in sets.values_mut() {
        let ring = parts[0].set();
        parts.sort_by_key(|part| ring.iter().position(|&member| member == part.rank()));
    }
    sets
}

fn code(scheme: Scheme, members: usize) -> Code {
    Code::of(scheme, members).unwrap().unwrap()
}

/// The one member of an XOR set that is lost.
fn rebuild_one(members: &[Option<Survivor<'_>>], chunk: u64, sizes: Vec<u64>) -> Rebuilt {
    let code = code(Scheme::Xor, members.len());
    rebuild(&code, members, chunk, &[sizes], BLOCK).unwrap().unwrap().remove(0)
}

#[test]
fn our_parity_is_scrs() {
    let mut compared = 0;
    let mut incomplete = 0;
    for (name, parts) in sets() {
        if parts.len() < parts[0].set().len() {
            incomplete += 1;
            continue;
        }
        let files: Vec<_> = parts.iter().map(Part::borrowed).collect();
        let lengths: Vec<u64> = files.iter().map(|files| files.concat().len() as u64).collect();
        let chunk = Geometry::new(&lengths, 1).unwrap().chunk();
        let code = code(Scheme::Xor, files.len());
        for (parity, part) in encode(&code, &files, 1, BLOCK).unwrap().iter().zip(&parts) {
            assert_eq!(part.header.chunk, Some(chunk), "{name}");
            assert!(*parity == part.payload, "{name}: {:?}", part.path);
            compared += 1;
        }
    }
    // 85 XOR files; the three sets of three were scavenged without node 2, whose files are
    // elsewhere.
    assert_eq!((compared, incomplete), (76, 3));
}

#[test]
fn any_lost_member_of_any_set_is_rebuilt() {
    for (name, parts) in sets().into_iter().filter(|(_, parts)| parts.len() == parts[0].set().len()) {
        for (lost, part) in parts.iter().enumerate() {
            let right = &parts[(lost + 1) % parts.len()];
            let sizes = right.header.partner.as_ref().unwrap().sizes().unwrap();
            let mut members: Vec<_> = parts.iter().map(|part| Some(part.survivor())).collect();
            members[lost] = None;
            let rebuilt = rebuild_one(&members, part.header.chunk.unwrap(), sizes);
            assert!(rebuilt.files == part.files, "{name}: files of {lost}");
            assert!(rebuilt.parity == part.payload, "{name}: parity of {lost}");
        }
    }
}

#[test]
fn what_was_scavenged_is_rebuilt_as_scr_rebuilt_it() {
    let mut sets = sets();
    let mut rebuilt_sets = 0;
    let before: Vec<String> = sets.keys().filter(|name| name.contains("before-rebuild")).cloned().collect();
    for name in before {
        let parts = sets.remove(&name).unwrap();
        let after = &sets[&name.replace("before", "after")];
        let lost = 2;
        let chunk = parts[0].header.chunk.unwrap();
        let mut members: Vec<_> = parts.iter().map(|part| Some(part.survivor())).collect();
        members.insert(lost, None);
        // The right neighbour's header knows the lost member's files.
        let known = parts[lost].header.partner.as_ref().unwrap();
        assert_eq!(known.rank, Some(Member(2)), "{name}");
        let rebuilt = rebuild_one(&members, chunk, known.sizes().unwrap());
        assert!(rebuilt.files == after[lost].files, "{name}");
        assert!(rebuilt.parity == after[lost].payload, "{name}");
        let header = RedundancyHeader::of_lost(&parts[lost - 1].header, &parts[lost].header);
        assert_same_facts(&header, &after[lost].header, &name);
        rebuilt_sets += 1;
    }
    assert_eq!(rebuilt_sets, 3);
}

/// SCR 3's Reed-Solomon: four members, two of which may be lost.
#[test]
fn reed_solomon_is_redsets() {
    for dataset in [2, 3] {
        let (mut data, mut payloads) = (Vec::new(), Vec::new());
        for rank in 0..4 {
            let node = root().join(format!("scr-3/rs2/nodes/node{rank}/cache/root/scr.j1"));
            let directory = node.join(format!("scr.dataset.{dataset}"));
            data.push(fs::read(directory.join(format!("rank_{rank}.ckpt"))).unwrap());
            let name = format!(".scr/reddesc.er.{rank}.rs.grp_1_of_1.mem_{}_of_4.redset", rank + 1);
            let bytes = fs::read(directory.join(name)).unwrap();
            let header =
                record_size(bytes.first_chunk::<HEADER_BYTES>().unwrap(), bytes.len() as u64).unwrap();
            payloads.push(bytes[usize::try_from(header).unwrap()..].to_vec());
        }
        let code = code(Scheme::ReedSolomon { failures: 2 }, 4);
        let files: Vec<Vec<&[u8]>> = data.iter().map(|bytes| vec![bytes.as_slice()]).collect();
        let made = encode(&code, &files, 1, BLOCK).unwrap();
        assert!(made == payloads, "dataset {dataset}");

        let chunk = (payloads[0].len() / 2) as u64;
        for (first, second) in (0..4).flat_map(|first| (first + 1..4).map(move |second| (first, second))) {
            let there = |at: usize| ![first, second].contains(&at);
            let survivor = |at: usize| Survivor { files: files[at].clone(), parity: &payloads[at] };
            let members: Vec<_> = (0..4).map(|at| there(at).then(|| survivor(at))).collect();
            let sizes = [first, second].map(|at| vec![data[at].len() as u64]);
            let rebuilt = rebuild(&code, &members, chunk, &sizes, BLOCK).unwrap().unwrap();
            for (at, rebuilt) in [first, second].into_iter().zip(rebuilt) {
                assert!(rebuilt.files[0] == data[at] && rebuilt.parity == payloads[at], "{first}, {second}");
            }
        }
    }
}

/// SCR 3's partner copies: four members, each with a copy of its left neighbour's data.
#[test]
fn a_partners_copy_is_redsets() {
    for dataset in [2, 3] {
        let directory = |rank: usize| {
            let node = root().join(format!("scr-3/partner/nodes/node{rank}/cache/root/scr.j1"));
            node.join(format!("scr.dataset.{dataset}"))
        };
        let data = |rank: usize| fs::read(directory(rank).join(format!("rank_{rank}.ckpt"))).unwrap();
        let lengths: Vec<u64> = (0..4).map(|rank| data(rank).len() as u64).collect();
        let payloads = Payloads::of(Scheme::Partner, &lengths).unwrap();
        for rank in 0..4 {
            let name = format!(".scr/reddesc.er.{rank}.partner.grp_1_of_1.mem_{}_of_4.redset", rank + 1);
            let bytes = fs::read(directory(rank).join(name)).unwrap();
            let header =
                record_size(bytes.first_chunk::<HEADER_BYTES>().unwrap(), bytes.len() as u64).unwrap();
            let copy = &bytes[usize::try_from(header).unwrap()..];
            assert_eq!(payloads.bytes(rank), copy.len() as u64);
            assert!(copy == data(left(4, rank)), "dataset {dataset}, rank {rank}");
        }
    }
}

/// SCR's rebuilt header says the same as ours, if in another order.
fn assert_same_facts(ours: &RedundancyHeader, scrs: &RedundancyHeader, name: &str) {
    let files = |member: &Option<MemberFiles>| {
        let member = member.clone().unwrap();
        (member.rank, member.in_order().unwrap().into_iter().cloned().collect::<Vec<_>>())
    };
    assert_eq!(files(&ours.current), files(&scrs.current), "{name}");
    assert_eq!(files(&ours.partner), files(&scrs.partner), "{name}");
    assert_eq!((ours.chunk, ours.ranks), (scrs.chunk, scrs.ranks), "{name}");
    assert_eq!((&ours.dataset, ours.checkpoint), (&scrs.dataset, scrs.checkpoint), "{name}");
    assert_eq!(ours.encode().len(), scrs.encode().len(), "{name}");
}

#[test]
fn headers_say_what_we_would_say() {
    for (name, parts) in sets() {
        let ring = parts[0].set();
        for part in &parts {
            let header = &part.header;
            assert_eq!((part.set(), header.ranks), (ring.clone(), Some(4)), "{name}");
            let current = header.current.as_ref().unwrap();
            assert_eq!(current.count, Some(part.files.len() as u64));
            let position = ring.iter().position(|&member| member == part.rank()).unwrap();
            let file_name = part.path.file_name().unwrap().as_encoded_bytes();
            let said = RedundancyFileName {
                kind: RedundancyKind::Xor,
                position: position as u64,
                members: ring.len() as u64,
                group: ring[0].0.into(),
                encoding: 0,
            };
            assert_eq!(RedundancyFileName::parse(file_name), Some(said), "{name}");
            let left = ring[(position + ring.len() - 1) % ring.len()];
            let partner = header.partner.as_ref().unwrap();
            assert_eq!(partner.rank, Some(left), "{name}");
            if let Some(neighbour) = parts.iter().find(|part| part.rank() == left) {
                assert_eq!(partner.in_order().unwrap(), neighbour.metas(), "{name}");
            }
            // Metas go into the header before the CRCs are known.
            assert!(part.metas().iter().all(|meta| meta.crc.is_none()), "{name}");
        }
    }
}

#[test]
fn the_logical_file_is_in_filemap_order() {
    let mut compared = 0;
    for (name, parts) in sets() {
        for part in parts.iter().filter(|part| part.path.components().any(|c| c.as_os_str() == "nodes")) {
            let filemap = filemap_beside(&part.path);
            let id = part.header.dataset.as_ref().and_then(|d| d.id).or(part.header.checkpoint).unwrap();
            let entry = filemap.entry(part.rank(), id).unwrap();
            let own = part.path.file_name().unwrap();
            let listed: Vec<_> =
                entry.files.iter().filter(|(path, _)| path.as_path().file_name() != Some(own)).collect();
            let names: Vec<_> = listed.iter().filter_map(|(path, _)| path.as_path().file_name()).collect();
            let metas = part.metas();
            let in_header: Vec<_> =
                metas.iter().filter_map(|meta| meta.file.as_ref()?.as_path().file_name()).collect();
            assert_eq!(names, in_header, "{name}");
            for ((_, file), meta) in listed.iter().zip(metas).filter(|((_, file), _)| file.meta.is_some()) {
                assert_eq!(file.meta.as_ref(), Some(meta), "{name}");
            }
            if let Some(dataset) = &part.header.dataset {
                assert_eq!(entry.dataset.as_ref(), Some(dataset), "{name}");
            }
            assert_eq!(entry.expected_files, Some(entry.files.len() as u64), "{name}");
            compared += 1;
        }
    }
    assert_eq!(compared, 64);
}

/// The filemap of the node that has this cache file.
fn filemap_beside(path: &Path) -> FilemapMember {
    let node = path.ancestors().find(|directory| directory.join("cntl").exists()).unwrap();
    let bytes = fs::read(node.join("cntl/root/scr.j1/filemap_0.scrinfo")).unwrap();
    FilemapMember::decode(&bytes).unwrap()
}
