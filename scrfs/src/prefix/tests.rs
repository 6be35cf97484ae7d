//! Flush, crash at each step, recovery, reading back.

mod adopters;
mod again;
mod audit;
mod damage;
mod epochs;
mod losses;
mod pointers;
mod presumed;
mod scavenge;
mod scr;
mod strangers;
mod undone;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use crate::dataset::{Catalog, Entry, EntryKind, FileCopy, Layout, MemberPlace, Protection, Scheme, Stamp};
use crate::hash::Text;
use crate::ids::{DatasetId, Epoch, Member};
use crate::path::RelPath;
use crate::record::{Crc32, Rank2FileLeaf};
use crate::record::{DatasetDescriptor, FileOnPfs, Index, IndexEntry, RankFiles, Record, Summary};

use super::directory::{Prefix, is_name};
use super::worker;
use super::{PfsOutcome, PfsTask, StoredDataset};

fn carry_out(prefix: &Prefix, task: &PfsTask) -> super::directory::Result<PfsOutcome> {
    worker::carry_out(prefix, task, &|_| {})
}

fn prefix(root: &Path, epoch: u64) -> Prefix {
    let mut prefix = Prefix::new(root.as_os_str().as_encoded_bytes(), Epoch(epoch), "node0");
    prefix.patience = std::time::Duration::from_millis(50);
    prefix
}

fn bytes(id: u64, member: u32) -> Vec<u8> {
    format!("dataset {id} member {member}\n").repeat(usize::try_from(id).unwrap() + 3).into_bytes()
}

fn path(text: &str) -> RelPath {
    RelPath::new(text).unwrap()
}

fn entry(path: RelPath, kind: EntryKind, mode: u32) -> Entry {
    let time = Stamp { secs: 1_700_000_000, nsecs: 123_456_789 };
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    Entry { path, kind, mode, uid, gid, atime: time, mtime: time }
}

/// Three members, the second without files; names with blanks and bytes that are no text; a link;
/// an empty directory.
fn catalog(id: u64, name: &[u8]) -> Catalog {
    let file = |member: u32, at: RelPath| {
        let data = bytes(id, member);
        let copy = FileCopy {
            size: data.len() as u64,
            crc: crc32fast::hash(&data),
            member: Member(member),
            program_rank: Some(member * 2),
        };
        entry(at, EntryKind::File(copy), 0o640)
    };
    let mut entries = vec![
        entry(RelPath::root(), EntryKind::Directory, 0o750),
        entry(path("empty dir"), EntryKind::Directory, 0o555),
        entry(path("sub"), EntryKind::Directory, 0o700),
        entry(path("latest"), EntryKind::Symlink(b"sub/rank 0".to_vec()), 0o777),
        file(0, path("sub/rank 0")),
        file(2, RelPath::new(b"rank \xff 2".to_vec()).unwrap()),
    ];
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    let place = |m| MemberPlace {
        host: String::new(),
        files: u64::from(m != 1),
        bytes: if m == 1 { 0 } else { bytes(id, m).len() as u64 },
        taken: None,
    };
    Catalog {
        id: DatasetId(id),
        epoch: Epoch(5),
        revision: 0,
        name: name.to_vec(),
        created_us: 1_795_241_159_283_041,
        user: "me".to_owned(),
        job_id: "j 1".to_owned(),
        layout: Layout {
            encoding: 0,
            protection: Protection::by(Scheme::Single),
            members: (0..3).map(place).collect(),
            sets: (0..3).map(|m| vec![Member(m)]).collect(),
        },
        entries,
    }
}

/// What daemons do between `BeginFlush` and `Publish`.
fn copy(directory: &Path, catalog: &Catalog) {
    for entry in &catalog.entries {
        if let EntryKind::File(file) = &entry.kind {
            fs::write(directory.join(entry.path.as_path()), bytes(catalog.id.0, file.member.0)).unwrap();
        }
    }
}

fn begin_and_copy(prefix: &Prefix, catalog: &Catalog) {
    match carry_out(prefix, &PfsTask::BeginFlush(Arc::new(catalog.clone()))).unwrap() {
        PfsOutcome::FlushBegun(id, directory) => {
            assert_eq!(id, catalog.id);
            copy(Path::new(std::str::from_utf8(&directory).unwrap()), catalog);
        }
        other => panic!("{other:?}"),
    }
}

fn flush(prefix: &Prefix, catalog: &Catalog) {
    begin_and_copy(prefix, catalog);
    carry_out(prefix, &PfsTask::Publish(Arc::new(catalog.clone()))).unwrap();
}

fn survey(prefix: &Prefix) -> Vec<StoredDataset> {
    match carry_out(prefix, &PfsTask::Survey).unwrap() {
        PfsOutcome::Surveyed(contents) => contents.datasets,
        other => panic!("{other:?}"),
    }
}

fn read(prefix: &Prefix, stored: &StoredDataset) -> Catalog {
    read_catalog(prefix, stored).unwrap()
}

fn read_catalog(prefix: &Prefix, stored: &StoredDataset) -> super::directory::Result<Catalog> {
    match carry_out(prefix, &PfsTask::ReadCatalog(stored.clone()))? {
        PfsOutcome::Catalog(_, catalog) => Ok(*catalog),
        other => panic!("{other:?}"),
    }
}

fn content_is(prefix: &Prefix, catalog: &Catalog) {
    for entry in &catalog.entries {
        if let EntryKind::File(file) = &entry.kind {
            let at = prefix.dataset(&catalog.name).join(entry.path.as_path());
            assert_eq!(fs::read(at).unwrap(), bytes(catalog.id.0, file.member.0), "{}", entry.path);
        }
    }
}

fn nothing_left_over(prefix: &Prefix) {
    let names: Vec<_> = fs::read_dir(prefix.state("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    let kept = ["index.scr", "summary.scr"];
    assert!(names.iter().all(|n| kept.contains(&n.to_str().unwrap())), "{names:?}");
}

#[test]
fn what_was_flushed_is_listed_and_read_back_whole() {
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 5);
    assert_eq!(survey(&prefix), []);
    for (id, name) in [(1, &b"ck 1"[..]), (2, b"ck\xfe2")] {
        let catalog = catalog(id, name);
        flush(&prefix, &catalog);
        content_is(&prefix, &catalog);
        let stored = survey(&prefix).remove(0);
        assert_eq!(
            (stored.id, stored.epoch, stored.usable, stored.current),
            (DatasetId(id), Epoch(5), true, true)
        );
        assert_eq!(read(&prefix, &stored), catalog);
        assert_eq!(
            fs::read_link(root.path().join("scr.current")).unwrap().as_os_str().as_encoded_bytes(),
            name
        );
    }
    nothing_left_over(&prefix);
    let top = fs::metadata(prefix.dataset(b"ck 1")).unwrap();
    assert_eq!(top.permissions().mode() & 0o7777, 0o750);
    assert_eq!(fs::read_link(prefix.dataset(b"ck 1").join("latest")).unwrap(), Path::new("sub/rank 0"));
    assert!(prefix.dataset(b"ck 1").join("empty dir").is_dir());
}

#[test]
fn a_crash_at_any_step_leaves_the_former_or_the_new_dataset_whole() {
    // Without and with a former dataset of that name.
    for former in [false, true] {
        let mut finished = false;
        for steps in 0..20 {
            let root = tempfile::tempdir().unwrap();
            let old = catalog(1, b"ck");
            let new = catalog(2, b"ck");
            let before = prefix(root.path(), 5);
            if former {
                flush(&before, &old);
            }
            begin_and_copy(&before, &new);
            before.steps_left.set(steps);
            let published = carry_out(&before, &PfsTask::Publish(Arc::new(new.clone())));
            finished |= published.is_ok();
            // A crash leaves the lock as well.
            if published.is_err() {
                fs::write(before.state("index.lock"), "epoch 5\n").unwrap();
            }
            let after = prefix(root.path(), 6);
            let found = survey(&after);
            match &found[..] {
                [] => assert!(!former && published.is_err(), "{steps}"),
                [one] => {
                    let there = if one.id == DatasetId(1) { &old } else { &new };
                    assert!(one.usable && one.current, "{steps}");
                    assert!(published.is_err() || one.id == DatasetId(2));
                    assert_eq!(&read(&after, one), there);
                    content_is(&after, there);
                }
                more => panic!("{more:?}"),
            }
            nothing_left_over(&after);
            // The next try succeeds whatever was there.
            flush(&after, &new);
            assert_eq!(survey(&after)[0].id, DatasetId(2));
            content_is(&after, &new);
        }
        assert!(finished, "20 steps were not enough");
    }
}

fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes[40] ^= 0xff;
    fs::write(path, bytes).unwrap();
}

/// Also after a crash in the swap, which otherwise would keep all datasets of the prefix from being
/// seen.
#[test]
fn a_former_dataset_with_a_damaged_summary_is_replaced() {
    for crashed in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let before = prefix(root.path(), 5);
        flush(&before, &catalog(1, b"ck"));
        flush(&before, &catalog(2, b"other"));
        damage(&root.path().join("ck/.scr/summary.scr"));
        let new = catalog(3, b"ck");
        begin_and_copy(&before, &new);
        if crashed {
            // Up to the link that announces the swap.
            before.steps_left.set(1);
        }
        assert_eq!(carry_out(&before, &PfsTask::Publish(Arc::new(new.clone()))).is_err(), crashed);
        let after = prefix(root.path(), 6);
        let found = survey(&after);
        assert_eq!(found.iter().map(|d| (d.id.0, d.usable)).collect::<Vec<_>>(), [(3, true), (2, true)]);
        assert_eq!(read(&after, &found[0]), new);
        content_is(&after, &new);
        nothing_left_over(&after);
    }
}

#[test]
fn a_damaged_copy_leaves_the_former_dataset() {
    let root = tempfile::tempdir().unwrap();
    let before = prefix(root.path(), 5);
    let old = catalog(1, b"ck");
    flush(&before, &old);
    begin_and_copy(&before, &catalog(2, b"ck"));
    // Summary, swap: the former one has gone aside, the copy is not in its place yet.
    before.steps_left.set(2);
    assert!(carry_out(&before, &PfsTask::Publish(Arc::new(catalog(2, b"ck")))).is_err());
    assert!(!root.path().join("ck").exists());
    damage(&before.flush(before.arrival(DatasetId(2))).join(".scr/summary.scr"));
    let after = prefix(root.path(), 6);
    let found = survey(&after);
    assert_eq!(found.iter().map(|d| (d.id.0, d.usable)).collect::<Vec<_>>(), [(1, true)]);
    content_is(&after, &old);
    nothing_left_over(&after);
}

#[test]
fn a_damaged_or_missing_index_is_made_anew() {
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 5);
    for (id, name) in [(1, &b"one"[..]), (2, b"two"), (3, b"three")] {
        flush(&prefix, &catalog(id, name));
    }
    fs::create_dir(root.path().join("input")).unwrap();
    let before = survey(&prefix);
    for damaged in [&b""[..], b"no record at all, but of some length"] {
        fs::write(prefix.state("index.scr"), damaged).unwrap();
        assert_eq!(survey(&prefix), before);
    }
    fs::remove_file(prefix.state("index.scr")).unwrap();
    assert_eq!(survey(&prefix), before);
    damage(&root.path().join("two/.scr/summary.scr"));
    flush(&prefix, &catalog(4, b"four"));
    assert_eq!(survey(&prefix).iter().map(|d| d.id.0).collect::<Vec<_>>(), [4, 3, 1]);
}

/// A full or read-only PFS: what a crash left cannot be removed, and the datasets are seen all the
/// same.
#[test]
fn leftovers_that_must_stay_hide_nothing() {
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 5);
    flush(&prefix, &catalog(1, b"ck"));
    fs::create_dir(prefix.flush(prefix.arrival(DatasetId(9)))).unwrap();
    // No lock can be made here.
    fs::create_dir(prefix.state("index.lock")).unwrap();
    let found = survey(&prefix);
    assert_eq!(found.iter().map(|d| (d.id.0, d.usable)).collect::<Vec<_>>(), [(1, true)]);
    assert_eq!(read(&prefix, &found[0]), catalog(1, b"ck"));
}

#[test]
fn a_copy_that_is_not_whole_is_not_published() {
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 5);
    let catalog = catalog(1, b"ck");
    begin_and_copy(&prefix, &catalog);
    fs::write(prefix.flush(prefix.arrival(DatasetId(1))).join("sub/rank 0"), b"short").unwrap();
    let error = carry_out(&prefix, &PfsTask::Publish(Arc::new(catalog))).unwrap_err().to_string();
    assert!(error.contains("rank 0") && error.contains("5 bytes"), "{error}");
    assert_eq!(survey(&prefix), []);
}

#[test]
fn a_persons_own_directory_is_never_replaced() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("input")).unwrap();
    fs::write(root.path().join("input/precious"), b"data").unwrap();
    let prefix = prefix(root.path(), 5);
    let catalog = catalog(1, b"input");
    begin_and_copy(&prefix, &catalog);
    assert!(carry_out(&prefix, &PfsTask::Publish(Arc::new(catalog))).is_err());
    assert_eq!(survey(&prefix), []);
    assert_eq!(fs::read(root.path().join("input/precious")).unwrap(), b"data");
    nothing_left_over(&prefix);
}

/// Also one in the place of a dataset's records, and when a crash left the swap half done.
#[test]
fn nor_is_a_persons_own_file() {
    for (file, crashed) in [("notes", false), ("notes", true), ("notes/.scr", false)] {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join(file).parent().unwrap()).unwrap();
        fs::write(root.path().join(file), b"data").unwrap();
        let before = prefix(root.path(), 5);
        let catalog = catalog(1, b"notes");
        begin_and_copy(&before, &catalog);
        if crashed {
            std::os::unix::fs::symlink("notes", before.swap(before.arrival(DatasetId(1)))).unwrap();
        } else {
            let told = carry_out(&before, &PfsTask::Publish(Arc::new(catalog))).unwrap_err().to_string();
            assert!(told.contains("something that is no dataset has this name"), "{told}");
        }
        let after = prefix(root.path(), 6);
        assert_eq!(survey(&after), []);
        assert_eq!(fs::read(root.path().join(file)).unwrap(), b"data");
        nothing_left_over(&after);
    }
}

#[test]
fn reserved_and_hostile_names_are_refused() {
    for name in [&b".scr"[..], b"scr.current", b"", b"a/b", b"..", b"."] {
        assert!(!is_name(name));
        let root = tempfile::tempdir().unwrap();
        assert!(
            carry_out(&prefix(root.path(), 5), &PfsTask::BeginFlush(Arc::new(catalog(1, name)))).is_err()
        );
    }
}

#[test]
fn an_older_epoch_changes_nothing_and_a_stale_lock_is_taken_over() {
    let root = tempfile::tempdir().unwrap();
    let old = prefix(root.path(), 5);
    begin_and_copy(&old, &catalog(1, b"ck"));
    fs::write(old.state("epoch.6"), b"").unwrap();
    let error = carry_out(&old, &PfsTask::Publish(Arc::new(catalog(1, b"ck")))).unwrap_err().to_string();
    assert!(error.contains("epoch 6"), "{error}");
    let new = prefix(root.path(), 6);
    fs::write(new.state("index.lock"), b"epoch 5\nhost gone\n").unwrap();
    flush(&new, &catalog(1, b"ck"));
    assert!(!new.state("index.lock").exists());
    fs::write(new.state("index.lock"), b"epoch 7\nhost other\n").unwrap();
    begin_and_copy(&new, &catalog(2, b"ck2"));
    let error = carry_out(&new, &PfsTask::Publish(Arc::new(catalog(2, b"ck2")))).unwrap_err().to_string();
    assert!(error.contains("host other"), "{error}");
}

#[test]
fn a_persons_choice_of_current_wins_and_a_failed_one_is_not_usable() {
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 5);
    flush(&prefix, &catalog(1, b"one"));
    flush(&prefix, &catalog(2, b"two"));
    let link = root.path().join("scr.current");
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("one", &link).unwrap();
    let stored = survey(&prefix);
    assert!(stored.iter().all(|d| d.current == (d.id == DatasetId(1))), "{stored:?}");
    carry_out(&prefix, &PfsTask::MarkFailed(stored[0].clone())).unwrap();
    let stored = survey(&prefix);
    assert_eq!(stored.iter().map(|d| (d.id.0, d.usable)).collect::<Vec<_>>(), [(2, false), (1, true)]);
    // Flushed again it is good again.
    flush(&prefix, &catalog(2, b"two"));
    assert!(survey(&prefix)[0].usable);
}

/// `scr_index --current NAME` changes CURRENT and leaves the link.
#[test]
fn current_wins_over_a_link_that_nobody_changed() {
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 5);
    flush(&prefix, &catalog(1, b"one"));
    flush(&prefix, &catalog(2, b"two"));
    let path = root.path().join(".scr/index.scr");
    let chosen = || survey(&prefix).into_iter().find(|dataset| dataset.current).unwrap().id.0;
    assert_eq!(chosen(), 2);
    let set_current = |name: &'static str| {
        let mut index = Index::decode(&fs::read(&path).unwrap()).unwrap();
        index.current = Some(name.into());
        fs::write(&path, index.encode()).unwrap();
    };
    set_current("one");
    assert_eq!(chosen(), 1);
    // A person's link wins over both.
    set_current("two");
    let link = root.path().join("scr.current");
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("one", &link).unwrap();
    assert_eq!(chosen(), 1);
    // The former link is still there when a flush ends right after its commit.
    flush(&prefix, &catalog(3, b"three"));
    fs::rename(&link, root.path().join(".scr/current.new")).unwrap();
    std::os::unix::fs::symlink("two", &link).unwrap();
    assert_eq!(chosen(), 3);
}

#[test]
fn current_does_not_go_back_to_an_older_dataset() {
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 5);
    flush(&prefix, &catalog(2, b"two"));
    flush(&prefix, &catalog(1, b"one"));
    assert!(survey(&prefix)[0].current);
}

/// The form of 2013: no keys of ours, several leaves in one file, redundancy files that are not
/// fetched.
#[test]
fn what_scr_wrote_is_read() {
    let root = tempfile::tempdir().unwrap();
    let prefix = prefix(root.path(), 5);
    let directory = root.path().join("scr.dataset.3");
    fs::create_dir_all(directory.join(".scr")).unwrap();
    fs::create_dir_all(prefix.state("")).unwrap();
    let about = DatasetDescriptor {
        id: Some(DatasetId(3)),
        name: Some("scr.dataset.3".into()),
        created_us: Some(7),
        complete: Some(true),
        ..DatasetDescriptor::default()
    };
    let mut index = Index::new();
    let entry = IndexEntry { complete: Some(true), dataset: Some(about.clone()), ..IndexEntry::default() };
    index.set_entry("scr.dataset.3".into(), DatasetId(3), entry);
    index.current = Some("scr.dataset.3".into());
    fs::write(prefix.state("index.scr"), index.encode()).unwrap();
    let summary =
        Summary { dataset: Some(about), complete: Some(true), version: Some(6), ..Summary::default() };
    fs::write(directory.join(".scr/summary.scr"), summary.encode()).unwrap();
    let leaf = |member: u32| {
        let name = format!("rank_{member}.ckpt");
        let data = bytes(3, member);
        fs::write(directory.join(&name), &data).unwrap();
        let mut files = RankFiles::default();
        let mut file = FileOnPfs { size: Some(data.len() as u64), ..FileOnPfs::default() };
        file.crc = Some(Crc32(crc32fast::hash(&data)));
        let xor = FileOnPfs { no_fetch: true, ..file.clone() };
        files.files.set_last(Text::new(name).unwrap(), file);
        files.files.set_last(Text::new(format!("{member}.xor")).unwrap(), xor);
        let mut leaf = Rank2FileLeaf { level: Some(0), ranks: Some(1), ..Rank2FileLeaf::default() };
        leaf.by_member.set_last(Member(member), files);
        leaf
    };
    let (bytes_of_leaves, offsets) = crate::record::Rank2File::concatenate(&[leaf(0), leaf(1)]);
    fs::write(directory.join(".scr/rank2file.0.0.scr"), bytes_of_leaves).unwrap();
    let mut node = crate::record::Rank2FileNode { level: Some(1), ranks: Some(2), ..Default::default() };
    for (member, offset) in (0..).zip(offsets) {
        let place = crate::record::RecordPlace {
            offset: Some(offset),
            file: Some(".scr/rank2file.0.0.scr".into()),
            ..Default::default()
        };
        node.children.set_last(Member(member), place);
    }
    fs::write(directory.join(".scr/rank2file.scr"), node.encode()).unwrap();

    let stored = survey(&prefix).remove(0);
    assert_eq!(
        (stored.id, stored.epoch, stored.usable, stored.current),
        (DatasetId(3), Epoch(0), true, true)
    );
    let catalog = read(&prefix, &stored);
    let names: Vec<_> = catalog.entries.iter().map(|e| e.path.to_string()).collect();
    assert_eq!(names, ["", "rank_0.ckpt", "rank_1.ckpt"]);
    assert_eq!(catalog.layout.members.len(), 2);
    assert!(catalog.entries[1].mtime.secs > 0);
    // A path that leads out of the dataset is refused.
    node.children.iter_mut().for_each(|(_, place)| place.file = Some("../../etc/passwd".into()));
    fs::write(directory.join(".scr/rank2file.scr"), node.encode()).unwrap();
    assert!(carry_out(&prefix, &PfsTask::ReadCatalog(stored)).is_err());
}
