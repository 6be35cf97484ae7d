//! Pages of redundancy files that are used again.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use super::*;
use crate::daemon::room::Moment;

fn in_cache(bench: &Bench, path: &str) -> PathBuf {
    bench.directory.path().join("cache/user/scr.j1").join(path)
}

fn kept(bench: &Bench) -> Option<u64> {
    std::fs::metadata(in_cache(bench, "recycled")).ok().map(|meta| meta.ino())
}

fn parity(bench: &Bench, id: u64) -> u64 {
    std::fs::metadata(in_cache(bench, &format!("dataset.{id}/{REDUNDANCY}"))).unwrap().ino()
}

fn seal(bench: &Bench, lead: &mut Lead, id: u64) {
    let name = format!("ck.{id}");
    bench.write(&format!("{name}/f"), b"bytes");
    lead.seal(id, &name);
}

/// Dataset 1 has left, and what became of its redundancy file; that one's number.
fn one_has_left(bench: &Bench, lead: &mut Lead) -> u64 {
    (1..=2).for_each(|id| seal(bench, lead, id));
    let number = parity(bench, 1);
    lead.send(Command::Evict(DatasetId(1)));
    assert_eq!(lead.next(), Event::Evicted(DatasetId(1)));
    number
}

#[test]
fn the_next_redundancy_file_has_the_pages_of_one_that_has_left() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    let former = one_has_left(&bench, &mut lead);
    assert_eq!(kept(&bench), Some(former));
    seal(&bench, &mut lead, 3);
    assert_eq!((parity(&bench, 3), kept(&bench)), (former, None));
    assert_eq!(lead.verify(DatasetId(3)), [(Member(0), [None, None])]);
}

/// A program removes datasets: of the last one nothing stays.
#[test]
fn also_of_one_that_a_program_removes() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    (1..=2).for_each(|id| seal(&bench, &mut lead, id));
    let former = parity(&bench, 1);
    bench.node.remove_dataset(DatasetId(1));
    until("its pages", || kept(&bench) == Some(former) && !in_cache(&bench, "dataset.1").exists());
    bench.node.remove_dataset(DatasetId(2));
    until("no pages", || kept(&bench).is_none() && !in_cache(&bench, "dataset.2").exists());
}

#[test]
fn who_reads_the_former_one_reads_no_other() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    seal(&bench, &mut lead, 1);
    let open = DataRequest::OpenRedundancy { id: DatasetId(1), member: Member(0) };
    let reader = lead.data().descriptor(&open).unwrap();
    seal(&bench, &mut lead, 2);
    lead.send(Command::Evict(DatasetId(1)));
    assert_eq!(lead.next(), Event::Evicted(DatasetId(1)));
    let former = kept(&bench).unwrap();
    seal(&bench, &mut lead, 3);
    assert_ne!(parity(&bench, 3), former);
    assert_eq!(kept(&bench), None);
    let mut bytes = Vec::new();
    std::fs::File::from(reader).read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"parity");
}

#[test]
fn they_are_free_as_soon_as_room_may_be_short() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    one_has_left(&bench, &mut lead);
    bench.node.look_at_room(Moment::Meanwhile);
    assert!(kept(&bench).is_some());
    bench.node.cache.recycled.beside.store(u64::MAX, Ordering::Relaxed);
    bench.node.look_at_room(Moment::Meanwhile);
    assert_eq!(kept(&bench), None);
    // What leaves now leaves to make room.
    (3..=4).for_each(|id| seal(&bench, &mut lead, id));
    bench.node.cache.give_pages_back();
    for (id, stays) in [(2, false), (3, true)] {
        if stays {
            seal(&bench, &mut lead, 5);
        }
        lead.send(Command::Evict(DatasetId(id)));
        assert_eq!(lead.next(), Event::Evicted(DatasetId(id)));
        assert_eq!(kept(&bench).is_some(), stays);
    }
    bench.node.room_for_copies(DatasetId(4));
    assert_eq!(kept(&bench), None);
}

#[test]
fn neither_a_worker_nor_a_coordinator_leaves_any() {
    let mut bench = Bench::new();
    let mut lead = bench.serving(1);
    one_has_left(&bench, &mut lead);
    assert!(kept(&bench).is_some());
    drop(lead);
    until("the coordinator's end", || kept(&bench).is_none());
    std::fs::write(in_cache(&bench, "recycled"), "x").unwrap();
    bench.restart();
    assert_eq!(kept(&bench), None);
}
