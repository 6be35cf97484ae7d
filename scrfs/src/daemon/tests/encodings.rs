//! A dataset that is encoded anew: its former redundancy data counts until the catalog says
//! otherwise.

use std::fs::File;
use std::io::{Read, Write};

use super::crash::at_every_step;
use super::*;

const ID: DatasetId = DatasetId(1);
const ANEW: &str = "1_of_2_in_0.r7.xor";

/// What an encode job with encoding 7 does at the daemon.
fn encode_anew(data: &mut DataConnection) -> Result<(), String> {
    let create = DataRequest::CreateRedundancy { id: ID, member: Member(0), name: ANEW.into() };
    let fd = data.descriptor(&create).map_err(|error| error.to_string())?;
    File::from(fd).write_all(b"anew").unwrap();
    let finish = DataRequest::FinishMember {
        id: ID,
        member: Member(0),
        crcs: vec![crc32fast::hash(b"bytes")],
        redundancy: Some((ANEW.to_owned(), 4, crc32fast::hash(b"anew"))),
        set: vec![Member(0), Member(1)],
        members: 2,
    };
    data.request(&finish).map(drop).map_err(|error| error.to_string())
}

/// The redundancy data that counts.
fn counts(lead: &Lead) -> String {
    let fd = lead.data().descriptor(&DataRequest::OpenRedundancy { id: ID, member: Member(0) }).unwrap();
    let mut text = String::new();
    File::from(fd).read_to_string(&mut text).unwrap();
    text
}

fn sealed(bench: &Bench) -> (Lead, Catalog) {
    bench.write("ck/f", b"bytes");
    let mut lead = bench.serving(1);
    let catalog = lead.seal(1, "ck");
    (lead, catalog)
}

/// With another revision and encoding.
fn revised(catalog: &Catalog, revision: u32, encoding: u32) -> Catalog {
    let mut catalog = Catalog { revision, ..catalog.clone() };
    catalog.layout.encoding = encoding;
    catalog
}

fn encodings(bench: &Bench) -> Vec<u32> {
    bench.inventory().datasets[0].encoded.iter().map(|(_, encoding)| *encoding).collect()
}

fn own(bench: &Bench, name: &str) -> PathBuf {
    bench.directory.path().join("cache/user/scr.j1/dataset.1").join(name)
}

fn is_there(bench: &Bench, name: &str) -> bool {
    own(bench, name).exists()
}

#[test]
fn the_former_data_counts_until_the_catalog_is_committed() {
    let mut bench = Bench::new();
    let (mut lead, catalog) = sealed(&bench);
    encode_anew(&mut lead.data()).unwrap();
    assert_eq!((counts(&lead).as_str(), encodings(&bench)), ("parity", vec![0, 7]));
    bench.restart();
    let mut again = bench.serving(2);
    assert_eq!((counts(&again).as_str(), encodings(&bench)), ("parity", vec![0, 7]));
    again.commit(&revised(&catalog, 7, 7)).unwrap();
    assert_eq!((counts(&again).as_str(), encodings(&bench)), ("anew", vec![7]));
    assert!(!is_there(&bench, REDUNDANCY) && is_there(&bench, ANEW));
    bench.restart();
    lead = bench.serving(3);
    assert_eq!((counts(&lead).as_str(), encodings(&bench)), ("anew", vec![7]));
    assert_eq!(lead.verify(ID), [(Member(0), [None, None])]);
}

#[test]
fn an_encoding_that_comes_to_nothing_goes_with_the_next_commit() {
    let mut bench = Bench::new();
    let (mut lead, catalog) = sealed(&bench);
    encode_anew(&mut lead.data()).unwrap();
    lead.commit(&revised(&catalog, 9, 0)).unwrap();
    assert_eq!((counts(&lead).as_str(), encodings(&bench)), ("parity", vec![0]));
    assert!(is_there(&bench, REDUNDANCY) && !is_there(&bench, ANEW));
    bench.restart();
    let lead = bench.serving(2);
    assert_eq!((counts(&lead).as_str(), encodings(&bench)), ("parity", vec![0]));
}

#[test]
fn a_member_without_the_data_of_its_catalog_is_not_whole() {
    let bench = Bench::new();
    let (mut lead, catalog) = sealed(&bench);
    lead.commit(&revised(&catalog, 7, 7)).unwrap();
    let reason = "its redundancy file is not here".to_owned();
    assert_eq!(lead.verify(ID), [(Member(0), [None, Some(reason)])]);
}

/// It has all names already; one that has another catalog says so and stays as it is.
#[test]
fn a_later_revision_is_recorded_from_what_it_changes() {
    let mut bench = Bench::new();
    let (mut lead, catalog) = sealed(&bench);
    encode_anew(&mut lead.data()).unwrap();
    let later = revised(&catalog, 7, 7);
    for (of, id) in [(3, ID), (catalog.revision, DatasetId(9))] {
        let other = Revision { id, ..Revision::new(of, &later) };
        let refused = lead.revise(other).unwrap_err();
        assert!(refused.contains(&format!("revision {of} is not here")), "{refused}");
        assert_eq!(counts(&lead), "parity");
    }
    // Another branch has given the same number.
    let other = Revision { sum: 1, ..Revision::new(catalog.revision, &later) };
    assert!(lead.revise(other).is_err() && counts(&lead) == "parity");
    let revision = Revision::new(catalog.revision, &later);
    lead.revise(revision.clone()).unwrap();
    assert_eq!((counts(&lead).as_str(), encodings(&bench)), ("anew", vec![7]));
    lead.revise(revision).unwrap_err();
    lead.commit(&later).unwrap();
    bench.restart();
    let mut lead = bench.serving(2);
    assert_eq!(counts(&lead), "anew");
    lead.send(Command::ReadCatalog(ID));
    assert_eq!(lead.next(), Event::Catalog { id: ID, catalog: Some(Arc::new(later)) });
}

#[test]
fn files_are_here_without_what_protects_them() {
    let bench = Bench::new();
    let (mut lead, _) = sealed(&bench);
    std::fs::remove_file(own(&bench, REDUNDANCY)).unwrap();
    assert_eq!(bench.inventory().datasets[0].members, [Member(0)]);
    assert!(encodings(&bench).is_empty());
    let [files, redundancy] = lead.verify(ID)[0].1.clone();
    assert!(files.is_none() && redundancy.unwrap().contains(REDUNDANCY));
}

#[test]
fn a_crash_while_the_catalog_is_committed_leaves_one_that_counts() {
    let catalogs: Mutex<Option<Catalog>> = Mutex::new(None);
    at_every_step(
        |_, lead| {
            let catalog = lead.seal(1, "ck");
            encode_anew(&mut lead.data()).unwrap();
            *catalogs.lock() = Some(revised(&catalog, 7, 7));
        },
        |_, lead| lead.commit(catalogs.lock().as_ref().unwrap()).is_ok(),
        |bench, succeeded| {
            let held = bench.inventory().datasets.remove(0);
            let mut lead = bench.serving(2);
            let expected = if held.revision == 7 { "anew" } else { "parity" };
            assert_eq!(counts(&lead), expected);
            assert!(held.revision == 7 || !succeeded);
            assert!(encodings(bench).contains(&7), "the new data is there in any case");
            lead.commit(catalogs.lock().as_ref().unwrap()).unwrap();
            assert_eq!((counts(&lead).as_str(), encodings(bench)), ("anew", vec![7]));
            assert!(!is_there(bench, REDUNDANCY));
        },
    );
}

#[test]
fn a_crash_while_a_member_is_encoded_anew_leaves_the_former_data() {
    at_every_step(
        |_, lead| drop(lead.seal(1, "ck")),
        |_, lead| encode_anew(&mut lead.data()).is_ok(),
        |bench, succeeded| {
            let lead = bench.serving(2);
            assert_eq!(counts(&lead), "parity");
            assert!(!succeeded || encodings(bench) == [0, 7]);
            encode_anew(&mut lead.data()).unwrap();
            assert_eq!(encodings(bench), [0, 7]);
        },
    );
}
