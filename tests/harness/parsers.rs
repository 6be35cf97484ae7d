//! Everything that reads bytes of others: disk, wire. Each function may be given any bytes; it
//! fails (panics) only when scrfs has a defect. cargo-fuzz (`tests/fuzz/`) and the mutation tests
//! (`tests/mutations/`) both call these.
//!
//! Beside "no panic", each checks that what was accepted says the same when it is written and read
//! again.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt::Debug;

use scrfs::control::codec::{self, Decoder};
use scrfs::control::{Answer, Ask, Command, DataReply, DataRequest, Event, Hello, Welcome};
use scrfs::dataset::{CatalogIndex, Layout};
use scrfs::hash::codec::{pack, unpack};
use scrfs::hash::{decode_file, decode_record, encode, framed, record_size};
use scrfs::ids::NodeRank;
use scrfs::path::RelPath;
use scrfs::record::catalog_file;
use scrfs::record::{AnyRecord, Rank2File, RecordKind, RedundancyFileName, RedundancyHeader, detect};
use scrfs::redundancy::geometry::{Geometry, LogicalFile, Part, blocks};
use scrfs::status::survives;
use scrfs::store::log;
use scrfs_coordinator::jobs::block::Announced;
use scrfs_coordinator::open;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How much of what a lie may make endless is looked at.
const SOME: usize = 64;
/// Bytes of a block.
const BLOCK: u64 = 128 << 10;

/// A hash file, and a packed tree (random bytes do not get past the CRC).
pub fn hash_file(bytes: &[u8]) {
    let _ = record_size(bytes, bytes.len() as u64);
    if let Ok((tree, size)) = decode_record(bytes) {
        assert_eq!(encode(&tree), bytes[..size]);
        assert_eq!(decode_file(bytes).is_ok(), size == bytes.len());
    }
    if let Ok((tree, size)) = unpack(bytes, 0) {
        let mut again = Vec::new();
        pack(&tree, &mut again);
        assert_eq!(again, bytes[..size]);
        let _ = tree.to_string();
    }
}

/// A tree, framed or bare, as every record and as a catalog.
pub fn records(bytes: &[u8]) {
    let at = bytes.first().copied().unwrap_or(0);
    let _ = Rank2File::decode_at(bytes, u64::from(at));
    let _ = RedundancyFileName::parse(bytes);
    catalog(bytes);
    // The same without a header and a checksum.
    let framed = framed(bytes.len(), |out| {
        out.extend_from_slice(bytes);
        Ok::<_, Infallible>(())
    });
    catalog(&framed.unwrap_or_default());
    let tree = decode_record(bytes).map(|(tree, _)| tree).or_else(|_| unpack(bytes, 0).map(|(tree, _)| tree));
    let Ok(tree) = tree else { return };
    for kind in RecordKind::ALL {
        if let Ok(record) = kind.read(&tree) {
            assert_eq!(kind.read(&record.to_hash()).as_ref(), Ok(&record), "{kind:?}");
            if let AnyRecord::RedundancyHeader(header) = record {
                redundancy_header(&header);
            }
        }
    }
    for (key, _) in tree.iter() {
        let _ = detect(key.as_bytes(), &tree);
    }
}

/// What a rebuild takes from a header before it opens a file.
fn redundancy_header(header: &RedundancyHeader) {
    let members = header.group.as_ref().map(scrfs::record::SetMembers::in_order);
    let parities = usize::try_from(header.parities.unwrap_or(1)).unwrap_or(usize::MAX);
    let geometry = match (members, header.chunk) {
        (Some(Ok(members)), Some(chunk)) => Geometry::with_chunk(members.len(), parities, chunk).ok(),
        _ => None,
    };
    let sizes = header.current.as_ref().and_then(|files| files.sizes().ok()).unwrap_or_default();
    let (Some(geometry), Ok(file)) = (geometry, LogicalFile::new(sizes)) else { return };
    for column in 0..geometry.members().min(SOME) {
        for block in blocks(geometry.chunk(), BLOCK).take(SOME) {
            let part = geometry.part(0, column);
            let range = geometry.range(part, &block);
            if let Part::Data { .. } = part {
                let length: u64 = file.segments(range.clone()).map(|segment| segment.len()).sum();
                assert_eq!(length, range.end - range.start);
            }
        }
    }
}

fn catalog(bytes: &[u8]) {
    let Ok(catalog) = catalog_file::decode(bytes) else { return };
    let written = catalog_file::encode(&catalog).map(|bytes| catalog_file::decode(&bytes));
    assert_eq!(written, Ok(Ok(catalog.clone())));
    costs(&catalog.layout);
    let index = CatalogIndex::new(catalog);
    for entry in &index.catalog().entries {
        assert!(index.entry(&entry.path).is_some());
        let _ = index.children(&entry.path).map(Iterator::count);
    }
}

fn costs(layout: &Layout) {
    assert_eq!(survives(layout, &BTreeSet::new(), true).iter().filter(|(_, kept)| !kept).count(), 0);
    let _ = survives(layout, &BTreeSet::new(), false);
}

/// Frames with messages of the control protocol; all bytes as a message between coordinators, and
/// as a block.
pub fn wire(bytes: &[u8]) {
    let mut decoder = Decoder::new(codec::HELLO_MAX);
    let mut frames = 0;
    // Torn as a socket tears.
    for part in bytes.chunks(1000) {
        decoder.push(part);
        while let Ok(Some(body)) = decoder.next_frame() {
            messages(body);
            frames += 1;
        }
    }
    if frames == 0 {
        messages(bytes);
    }
    if let Ok(message) = open::decode(NodeRank(1), bytes) {
        let again = codec::encode(&message).map(|frame| open::decode(NodeRank(1), &frame[4..]).ok());
        assert_eq!(again, Ok(Some(message)));
    }
    let _ = Announced::default().take(NodeRank(1), bytes.to_vec());
    if let Ok(path) = RelPath::new(bytes) {
        assert!(path.names().all(|name| !name.is_empty() && name != b".."));
    }
}

fn messages(body: &[u8]) {
    message::<Hello>(body);
    message::<Welcome>(body);
    message::<Command>(body);
    message::<Event>(body);
    message::<DataRequest>(body);
    message::<DataReply>(body);
    message::<Ask>(body);
    message::<Answer>(body);
}

fn message<T: Serialize + DeserializeOwned + PartialEq + Debug>(body: &[u8]) {
    if let Ok(message) = codec::decode::<T>(body) {
        let frame = codec::encode(&message);
        let again = frame.map(|frame| codec::decode::<T>(&frame[4..]));
        assert_eq!(again, Ok(Ok(message)));
    }
}

/// An append-only log, with records like the journal's.
pub fn log(bytes: &[u8]) {
    let (records, whole) = log::parse::<(RelPath, Option<u32>)>(bytes);
    assert!(usize::try_from(whole).is_ok_and(|whole| whole <= bytes.len()));
    assert_eq!(records.is_empty(), whole == 0);
    let (_, whole) = log::parse::<Event>(bytes);
    assert!(usize::try_from(whole).is_ok_and(|whole| whole <= bytes.len()));
}
