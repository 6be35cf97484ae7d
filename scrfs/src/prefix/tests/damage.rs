//! Records that are damaged, and what is not to be taken for it.

use std::fs;
use std::path::Path;

use crate::ids::{DatasetId, Member};
use crate::record::{FileOnPfs, Rank2FileLeaf, RankFiles, Record, Summary};

use super::{carry_out, catalog, damage, flush, prefix, survey};
use crate::prefix::directory::Prefix;
use crate::prefix::worker::cause;
use crate::prefix::{PfsCause, PfsTask, StoredDataset};

/// What the failure to read a dataset's catalog says of it.
fn blames(prefix: &Prefix, stored: &StoredDataset) -> PfsCause {
    let task = PfsTask::ReadCatalog(stored.clone());
    let error = carry_out(prefix, &task).unwrap_err();
    cause(prefix, &task, &error)
}

#[test]
fn damaged_records_are_told_from_a_pfs_that_does_not_serve() {
    type Harm = fn(&Path, &Path);
    let shorten = |path: &Path| fs::write(path, &fs::read(path).unwrap()[..60]).unwrap();
    let harms: [(&str, Harm, PfsCause); 10] = [
        ("CRC of the summary", |_, ck| damage(&ck.join(".scr/summary.scr")), PfsCause::Damaged),
        ("CRC of the root", |_, ck| damage(&ck.join(".scr/rank2file.scr")), PfsCause::Damaged),
        ("CRC of the leaf", |_, ck| damage(&ck.join(".scr/rank2file.0.0.scr")), PfsCause::Damaged),
        (
            "summary gone",
            |_, ck| fs::remove_file(ck.join(".scr/summary.scr")).unwrap(),
            PfsCause::Unavailable,
        ),
        ("root gone", |_, ck| fs::remove_file(ck.join(".scr/rank2file.scr")).unwrap(), PfsCause::Unavailable),
        (
            "leaf gone",
            |_, ck| fs::remove_file(ck.join(".scr/rank2file.0.0.scr")).unwrap(),
            PfsCause::Unavailable,
        ),
        ("dataset gone", |_, ck| fs::remove_dir_all(ck).unwrap(), PfsCause::Unavailable),
        (
            "prefix gone",
            |root, _| fs::rename(root, root.with_extension("gone")).unwrap(),
            PfsCause::Unavailable,
        ),
        (
            "a summary that cannot be read as a file",
            |_, ck| {
                fs::remove_file(ck.join(".scr/summary.scr")).unwrap();
                fs::create_dir(ck.join(".scr/summary.scr")).unwrap();
            },
            PfsCause::Unavailable,
        ),
        (
            "a swap that is not settled",
            |root, ck| {
                damage(&ck.join(".scr/summary.scr"));
                std::os::unix::fs::symlink("ck", root.join(".scr/swap.7")).unwrap();
            },
            PfsCause::Unavailable,
        ),
    ];
    for (what, harm, expected) in harms {
        let top = tempfile::tempdir().unwrap();
        let root = top.path().join("prefix");
        fs::create_dir(&root).unwrap();
        let prefix = prefix(&root, 5);
        flush(&prefix, &catalog(1, b"ck"));
        let stored = survey(&prefix).remove(0);
        harm(&root, &root.join("ck"));
        assert_eq!(blames(&prefix, &stored), expected, "{what}");
    }
    for name in ["summary.scr", "rank2file.scr", "rank2file.0.0.scr"] {
        let root = tempfile::tempdir().unwrap();
        let prefix = prefix(root.path(), 5);
        flush(&prefix, &catalog(1, b"ck"));
        flush(&prefix, &catalog(2, b"other"));
        shorten(&root.path().join("other/.scr").join(name));
        let stored = survey(&prefix).remove(0);
        assert_eq!((blames(&prefix, &stored), stored.usable), (PfsCause::Damaged, true), "{name} torn");
        carry_out(&prefix, &PfsTask::MarkFailed(stored)).unwrap();
        let usable: Vec<_> = survey(&prefix).iter().map(|d| (d.id.0, d.usable)).collect();
        assert_eq!(usable, [(2, false), (1, true)], "{name} torn");
    }
}

/// They are as they were written: of another dataset; not complete; files without members. Such a
/// dataset is passed over, and not marked.
#[test]
fn sound_records_are_no_damage_whatever_they_say() {
    type Edit = fn(&Path);
    fn edit<R: Record>(path: &Path, change: impl FnOnce(&mut R)) {
        let mut record = R::decode(&fs::read(path).unwrap()).unwrap();
        change(&mut record);
        fs::write(path, record.encode()).unwrap();
    }
    fn leaf(ck: &Path, change: impl FnOnce(&mut Rank2FileLeaf)) {
        edit(&ck.join(".scr/rank2file.0.0.scr"), change);
    }
    let lies: [(&str, Edit); 5] = [
        ("of another", |ck| {
            edit::<Summary>(&ck.join(".scr/summary.scr"), |s| {
                s.dataset.as_mut().unwrap().id = Some(DatasetId(9));
            });
        }),
        ("not complete", |ck| edit::<Summary>(&ck.join(".scr/summary.scr"), |s| s.complete = Some(false))),
        ("too many members", |ck| {
            leaf(ck, |l| {
                drop(l.by_member.set_last(Member(8), l.by_member.get(&Member(0)).unwrap().clone()));
            });
        }),
        ("out of the dataset", |ck| {
            leaf(ck, |l| {
                let mut files = RankFiles::default();
                files.files.set_last("../x".into(), FileOnPfs::default());
                l.by_member.set_last(Member(1), files);
            });
        }),
        ("no CRC", |ck| {
            leaf(ck, |l| {
                let mut files = RankFiles::default();
                files.files.set_last("x".into(), FileOnPfs { size: Some(1), ..FileOnPfs::default() });
                l.by_member.set_last(Member(1), files);
            });
        }),
    ];
    for (what, lie) in lies {
        let root = tempfile::tempdir().unwrap();
        let prefix = prefix(root.path(), 5);
        flush(&prefix, &catalog(1, b"ck"));
        let stored = survey(&prefix).remove(0);
        lie(&root.path().join("ck"));
        assert_eq!(blames(&prefix, &stored), PfsCause::Unavailable, "{what}");
    }
}
