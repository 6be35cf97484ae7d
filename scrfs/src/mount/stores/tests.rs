use nix::mount::MsFlags;

use super::*;
use crate::dataset::Protections;
use crate::hash::{self, Hash};
use crate::mount::records::TABLE;

fn entry(base: &str, free: u64) -> Entry {
    Entry { base: base.into(), problem: None, holds: false, datasets: BTreeSet::new(), free }
}

fn first(former: &Former, entries: &[Entry]) -> (Why, usize) {
    let (why, order) = order(former, entries);
    (why, order[0])
}

#[test]
fn files_win_over_room_and_room_over_order() {
    let former = Former::default();
    let mut entries = vec![entry("/a", 10), entry("/b", 30), entry("/c", 30)];
    assert_eq!(order(&former, &entries), (Why::Room, vec![1, 2, 0]));
    entries[1].problem = Some(Problem::ReadOnly);
    assert_eq!(order(&former, &entries), (Why::Room, vec![2, 0]));
    entries[0].holds = true;
    assert_eq!(first(&former, &entries), (Why::Holds, 0));
    // An older version may have left some in two.
    (entries[2].holds, entries[2].datasets) = (true, [1, 2].into());
    assert_eq!(first(&former, &entries), (Why::Holds, 2));
    let former = Former { primary: Some("/a".into()), ..Former::default() };
    assert_eq!(first(&former, &entries), (Why::Holds, 0));
    entries[0].problem = Some(Problem::Nested("/".into()));
    assert_eq!(first(&former, &entries), (Why::Holds, 0), "its files can be used");
    assert_eq!(first(&former, &[entry("/a", 0)]), (Why::Only, 0));
}

pub(in crate::mount) fn options(control: &Path, bases: &[&Path]) -> Options {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap();
    Options {
        mount_point: "/scr".into(),
        user: user.name,
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
        mode: 0o700,
        operator_group: None,
        job_id: "7".into(),
        control_base: control.to_owned(),
        cache_bases: bases.iter().map(|base| (*base).to_owned()).collect(),
        protections: Protections::default(),
        cache_bytes: 0,
        checkpoint_path: crate::path::RelPath::root(),
        passthrough: false,
        coordinator_wait: std::time::Duration::ZERO,
        seal_timeout: std::time::Duration::ZERO,
    }
}

/// The node's, with one dataset, `ck`.
pub(in crate::mount) fn table_of(id: u64, flushed: bool) -> Vec<u8> {
    let mut dataset = Hash::new();
    dataset.append("NAME".into(), Hash::value("ck"));
    dataset.append("FLUSHED".into(), Hash::value(u32::from(flushed)));
    let mut ids = Hash::new();
    ids.append(hash::Text::from(id), dataset);
    let mut table = Hash::new();
    table.append("DATASET".into(), ids);
    hash::encode(&table)
}

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "b/in", "c"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("file"), "").unwrap();
        Self { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn settle(&self, bases: &[&str]) -> Result<(Options, Places), MountError> {
        let bases: Vec<PathBuf> = bases.iter().map(|base| self.at(base)).collect();
        let bases: Vec<&Path> = bases.iter().map(PathBuf::as_path).collect();
        let options = options(&self.at("control"), &bases);
        settle(&options, &Places::make_control(&options)?.control)
    }

    fn used(&self, bases: &[&str]) -> String {
        let (options, places) = self.settle(bases).unwrap();
        assert!(places.tree().is_dir());
        let stores = recorded(&places.control);
        assert_eq!(stores.iter().filter(|store| store.primary && store.used).count(), 1);
        options.cache_base().strip_prefix(self.dir.path()).unwrap().display().to_string()
    }

    fn notes(&self) -> Vec<(String, String)> {
        let (options, _) = self.settle(&["c"]).unwrap();
        let stores = recorded(&Places::of(&options).unwrap().control);
        stores.into_iter().map(|store| (store.base.display().to_string(), store.note)).collect()
    }

    fn refused(&self, bases: &[&str]) -> String {
        self.settle(bases).unwrap_err().to_string()
    }
}

#[test]
fn what_cannot_be_used_is_passed_over_by_name() {
    let bench = Bench::new();
    assert_eq!(bench.used(&["none", "file", "a", "a/../a"]), "a");
    let control = Places::of(&bench.settle(&["a"]).unwrap().0).unwrap().control;
    bench.settle(&["none", "file", "a", "a/../a", "b/in", "b"]).unwrap();
    let notes: Vec<String> = recorded(&control).into_iter().map(|store| store.note).collect();
    assert_eq!(notes[..2], ["no such directory", "not a directory"]);
    assert!(notes[3].starts_with("the same directory as "), "{notes:?}");
    assert!(notes[4].starts_with("nested in ") && notes[4].ends_with("/b"), "{notes:?}");
    let refused = bench.refused(&["none", "file"]);
    assert!(refused.starts_with("SCR_CACHE_BASE: no entry can be used: "), "{refused}");
    assert!(refused.contains("/none: no such directory; "), "{refused}");
    assert!(refused.contains("/file: not a directory"), "{refused}");
    assert!(bench.refused(&["file"]).contains("/file: not a directory"));
    // The only one is made.
    assert_eq!(bench.used(&["new/one"]), "new/one");
    assert_eq!(bench.notes()[0].1, "the only one");
}

#[test]
fn files_of_the_job_are_never_left_behind() {
    let bench = Bench::new();
    let (_, places) = bench.settle(&["b", "c"]).unwrap();
    let former = recorded(&places.control).into_iter().find(|store| store.primary).unwrap().base;
    let (old, other) = if former == bench.at("b") { ("b", "c") } else { ("c", "b") };
    fs::create_dir(places.tree().join("empty")).unwrap();
    assert_eq!(bench.used(&[other]), other, "there was nothing in it");
    fs::create_dir(places.cache.join("dataset.3")).unwrap();
    for list in [&["a", other, old][..], &[old, other], &[old]] {
        assert_eq!(bench.used(list), old);
    }
    let refused = bench.refused(&["a", other]);
    assert!(refused.starts_with("SCR_CACHE_BASE: ") && refused.contains("not in the list"), "{refused}");
    // Gone with the disk that it is on, while the control directory knows of a dataset.
    Store::open(&places.control).unwrap().commit(TABLE, &table_of(3, false)).unwrap();
    fs::rename(bench.at(old), bench.at("away")).unwrap();
    let refused = bench.refused(&["a", old]);
    assert!(refused.contains("no such directory") && refused.contains("datasets"), "{refused}");
    assert!(bench.refused(&["a"]).contains("not in the list"));
    fs::rename(bench.at("away"), bench.at(old)).unwrap();
    assert_eq!(bench.used(&["a", old]), old);
}

#[test]
fn a_store_that_has_unsealed_files_and_cannot_be_used_is_not_passed_over() {
    let bench = Bench::new();
    let (options, places) = bench.settle(&["b", "c"]).unwrap();
    let stores = in_use(&options, &places.control).unwrap();
    let other = &stores.places()[1];
    let base = other.base.file_name().unwrap().to_str().unwrap().to_owned();
    fs::create_dir(other.tree().join("d")).unwrap();
    fs::write(other.tree().join("d/f"), "x").unwrap();
    let control = bench.at("control");
    // In a mount namespace of its own; `None` without the right to one.
    let away = || {
        let in_own = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).ok()?;
            let nothing = None::<&str>;
            let change =
                |flags| nix::mount::mount(Some(&other.base), &other.base, nothing, flags, nothing).ok();
            nix::mount::mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).ok()?;
            change(MsFlags::MS_BIND)?;
            change(MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY)?;
            Some(bench.settle(&["b", "c"]))
        };
        std::thread::scope(|threads| threads.spawn(in_own).join().unwrap())
    };
    let Some(settled) = away() else { return };
    let refused = settled.unwrap_err();
    let text = format!("{base}: its file system is read-only; files of this job are there");
    assert!(refused.to_string().contains(&text), "{refused}");
    let hint = refused.hint();
    assert!(hint.contains(&control.display().to_string()) && hint.contains("the list"), "{hint}");
    bench.settle(&["b", "c"]).unwrap();
    // Directories alone are nothing to lose.
    fs::remove_file(other.tree().join("d/f")).unwrap();
    assert_eq!(away().unwrap().unwrap().0.cache_base(), options.cache_base());
}

#[test]
fn all_that_can_be_used_are_used_and_workers_find_them() {
    let bench = Bench::new();
    let (options, places) = bench.settle(&["a", "none", "b", "b/in", "c"]).unwrap();
    let stores = in_use(&options, &places.control).unwrap();
    let used: BTreeSet<PathBuf> = stores.places().iter().map(|place| place.base.clone()).collect();
    assert_eq!(used, ["a", "b", "c"].map(|name| bench.at(name)).into());
    assert_eq!(stores.places()[0].cache, places.cache);
    assert!(stores.places().iter().all(|place| place.tree().is_dir()));
    let primary = stores.places()[0].base.clone();

    // The primary stays that as long as it has files; so does another one that has some in use.
    fs::write(places.tree().join("loose"), "x").unwrap();
    let other = &stores.places()[1];
    fs::create_dir(other.cache.join("dataset.3")).unwrap();
    let (again, _) = bench.settle(&["c", "b", "a"]).unwrap();
    assert_eq!(again.cache_base(), primary);
    let left = other.base.file_name().unwrap().to_str().unwrap();
    let rest: Vec<&str> = ["a", "b", "c"].into_iter().filter(|name| *name != left).collect();
    let refused = bench.refused(&rest);
    assert!(refused.contains("not in the list") && refused.contains(left), "{refused}");
    // One that had nothing may go with its disk, as long as all datasets that are known are
    // elsewhere.
    let table = table_of(3, false);
    Store::open(&places.control).unwrap().commit(TABLE, &table).unwrap();
    let empty = stores.places()[2].base.file_name().unwrap().to_str().unwrap();
    fs::rename(bench.at(empty), bench.at("away")).unwrap();
    assert_eq!(bench.settle(&["a", "b", "c"]).unwrap().0.cache_base(), primary);
    let table = table_of(4, false);
    Store::open(&places.control).unwrap().commit(TABLE, &table).unwrap();
    fs::rename(bench.at("away"), bench.at(empty)).unwrap();
    bench.settle(&["a", "b", "c"]).unwrap();
    fs::rename(bench.at(empty), bench.at("away")).unwrap();
    let refused = bench.refused(&["a", "b", "c"]);
    assert!(refused.contains("no such directory") && refused.contains("left behind"), "{refused}");
}

#[test]
fn a_record_that_cannot_be_read_is_named_and_kept() {
    let bench = Bench::new();
    let (options, places) = bench.settle(&["b", "c"]).unwrap();
    fs::create_dir(places.cache.join("dataset.3")).unwrap();
    for (name, bytes) in [(RECORD, &b"[{\"base\": "[..]), (TABLE, b"no table")] {
        let path = places.control.join(name);
        let good = fs::read(&path).ok();
        fs::write(&path, bytes).unwrap();
        let refused = bench.settle(&["b", "c"]).unwrap_err();
        assert!(matches!(&refused, MountError::Record { path: named, .. } if *named == path), "{refused}");
        assert!(refused.to_string().starts_with(&path.display().to_string()), "{refused}");
        assert!(refused.hint().contains(&places.control.display().to_string()));
        if name == RECORD {
            assert!(in_use(&options, &places.control).is_err(), "a worker");
        }
        assert_eq!(fs::read(&path).unwrap(), bytes, "nothing is lost");
        assert!(places.cache.join("dataset.3").is_dir());
        match good {
            Some(good) => fs::write(&path, good).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
    }
    bench.settle(&["b", "c"]).unwrap();
}
