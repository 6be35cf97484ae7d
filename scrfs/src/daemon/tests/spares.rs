//! The redundancy file of a dataset that leaves is the next one's pages, and takes room from nobody.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::*;
use crate::daemon::room::Moment;

fn cache(bench: &Bench) -> PathBuf {
    bench.directory.path().join("cache/user/scr.j1")
}

fn spare(bench: &Bench) -> Option<u64> {
    cache(bench).join("spare").metadata().ok().map(|meta| meta.ino())
}

fn redundancy(bench: &Bench, id: u64) -> u64 {
    cache(bench).join(format!("dataset.{id}")).join(REDUNDANCY).metadata().unwrap().ino()
}

/// Seals dataset `id` and lets the one before go.
fn seal(bench: &Bench, lead: &mut Lead, id: u64) {
    let name = format!("ck{id}");
    std::fs::create_dir(bench.tree.at(&path(&name))).unwrap();
    bench.write(&format!("{name}/f"), b"bytes");
    lead.seal(id, &name);
    if id > 1 {
        lead.send(Command::Evict(DatasetId(id - 1)));
        assert_eq!(lead.next(), Event::Evicted(DatasetId(id - 1)));
    }
}

#[test]
fn the_next_redundancy_file_gets_the_pages_of_one_that_leaves() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    seal(&bench, &mut lead, 1);
    let first = redundancy(&bench, 1);
    seal(&bench, &mut lead, 2);
    assert_eq!(spare(&bench), Some(first));
    let second = redundancy(&bench, 2);
    seal(&bench, &mut lead, 3);
    assert_eq!((redundancy(&bench, 3), spare(&bench)), (first, Some(second)));
    assert_eq!(lead.verify(DatasetId(3)), [(Member(0), [None, None])]);
}

#[test]
fn a_spare_goes_when_room_is_asked_for_and_with_its_coordinator() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    (1..=2).for_each(|id| seal(&bench, &mut lead, id));
    bench.node.look_at_room(Moment::Meanwhile);
    assert!(spare(&bench).is_some(), "there is room");
    bench.node.look_at_room(Moment::Refused);
    assert_eq!(spare(&bench), None);
    seal(&bench, &mut lead, 3);
    assert!(spare(&bench).is_some());
    let mut next = bench.lead(2, Start::Attach);
    next.inventory();
    assert_eq!(spare(&bench), None);
}
