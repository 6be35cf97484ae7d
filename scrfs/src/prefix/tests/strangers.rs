//! Where everybody may make names, in the prefix or in `.scr`: what a stranger has put there is
//! neither believed nor followed, and what a stranger has mounted there is not asked.

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{begin_and_copy, carry_out, catalog, content_is, flush, prefix, read, survey};
use crate::control::loose::Age;
use crate::dataset::Catalog;
use crate::prefix::directory::{Prefix, Result};
use crate::prefix::{ForeignLayout, PfsOutcome, PfsTask, foreign_layout, make};

const EVE: u32 = 54_322;

/// A prefix of this user with dataset 1, `ck`, of epoch 5.
struct Place {
    _root: tempfile::TempDir,
    prefix: Prefix,
    dataset: Catalog,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let (prefix, dataset) = (prefix(root.path(), 5), catalog(1, b"ck"));
        flush(&prefix, &dataset);
        Self { _root: root, prefix, dataset }
    }

    fn root(&self) -> &Path {
        self.prefix.root()
    }

    /// Everybody may make names in the prefix, and in `.scr`.
    fn open(&self) {
        for directory in [self.root().to_owned(), self.prefix.state("")] {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o1777)).unwrap();
        }
    }

    /// The dataset is there, and the newest.
    fn is_unharmed(&self) {
        let found = survey(&self.prefix);
        assert_eq!(found.iter().map(|d| (d.id, d.usable)).collect::<Vec<_>>(), [(self.dataset.id, true)]);
        assert_eq!(read(&self.prefix, &found[0]), self.dataset);
        content_is(&self.prefix, &self.dataset);
    }

    fn publish(&self, catalog: &Catalog) -> Result<PfsOutcome> {
        begin_and_copy(&self.prefix, catalog);
        carry_out(&self.prefix, &PfsTask::Publish(Arc::new(catalog.clone())))
    }
}

/// All of it is Eve's now.
fn give(path: &Path) {
    lchown(path, Some(EVE), None).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path());
        }
    }
}

/// A dataset that Eve has made in a prefix of her own, of a high epoch.
fn forged(name: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let (own, catalog) =
        (prefix(root.path(), 4000), Catalog { epoch: crate::ids::Epoch(4000), ..catalog(9, name) });
    flush(&own, &catalog);
    let path = own.dataset(name);
    (root, path)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_strangers_swap_replaces_nothing() {
    if !is_root() {
        return;
    }
    let (place, (_kept, forged)) = (Place::new(), forged(b"ck"));
    place.open();
    // Left behind by nobody; and where this epoch is about to make its own.
    for arrival in ["1.1", "5.2"] {
        let (copied, link) =
            (place.prefix.state(format!("flush.{arrival}")), place.prefix.state(format!("swap.{arrival}")));
        fs::rename(&forged, &copied).unwrap();
        symlink("ck", &link).unwrap();
        give(&copied);
        give(&link);
        place.is_unharmed();
        fs::rename(&copied, &forged).unwrap();
        if arrival == "5.2" {
            let error = place.publish(&catalog(2, b"ck.2")).unwrap_err().to_string();
            assert!(error.contains("swap.5.2") && error.contains("belongs to user 54322"), "{error}");
            place.is_unharmed();
        }
        fs::remove_file(&link).unwrap();
    }
    flush(&place.prefix, &catalog(2, b"ck.2"));
    assert_eq!(survey(&place.prefix)[0].id.0, 2);
}

#[test]
fn a_strangers_directory_is_no_dataset() {
    if !is_root() {
        return;
    }
    for with_index in [false, true] {
        let (place, (_kept, forged)) = (Place::new(), forged(b"ck"));
        place.open();
        if with_index {
            // Its user has moved it away.
            fs::rename(place.prefix.dataset(b"ck"), place.root().join("moved")).unwrap();
            fs::rename(&forged, place.prefix.dataset(b"ck")).unwrap();
            give(&place.prefix.dataset(b"ck"));
            assert!(survey(&place.prefix).iter().all(|dataset| !dataset.usable));
        } else {
            fs::remove_file(place.prefix.state("index.scr")).unwrap();
            fs::rename(&forged, place.prefix.dataset(b"ck.9")).unwrap();
            give(&place.prefix.dataset(b"ck.9"));
            place.is_unharmed();
        }
    }
}

/// The name of a dataset is a stranger's when it is to be swapped in: nothing is lost, neither what
/// was there nor what comes.
#[test]
fn a_stranger_at_a_datasets_name_costs_neither_the_former_nor_the_next_one() {
    if !is_root() {
        return;
    }
    for forges in [false, true] {
        let (place, (_kept, forged)) = (Place::new(), forged(b"ck"));
        place.open();
        let (own, next, at) = (&place.prefix, catalog(2, b"ck"), place.prefix.dataset(b"ck"));
        begin_and_copy(own, &next);
        // It ends when the former one has gone aside.
        own.steps_left.set(2);
        assert!(carry_out(own, &PfsTask::Publish(Arc::new(next.clone()))).is_err());
        own.steps_left.set(u64::MAX);
        assert!(!at.exists() && own.state("old.5.2").exists());
        if forges {
            fs::rename(&forged, &at).unwrap();
        } else {
            fs::create_dir(&at).unwrap();
            fs::write(at.join("junk"), "").unwrap();
        }
        give(&at);
        for _ in 0..2 {
            fs::write(own.state("index.lock"), "").unwrap();
            assert!(survey(own).iter().all(|dataset| !dataset.usable));
            let error = carry_out(own, &PfsTask::Publish(Arc::new(next.clone()))).unwrap_err().to_string();
            assert!(error.contains("/ck: look at: it belongs to user 54322"), "{error}");
        }
        fs::remove_dir_all(&at).unwrap();
        let found = survey(own);
        assert_eq!(found.iter().map(|d| (d.id.0, d.usable)).collect::<Vec<_>>(), [(2, true)]);
        content_is(own, &next);
    }
}

/// A program, or a person, has left a dataset's directory open to all: others' records beside its
/// files are not believed, by whatever way they came there.
#[test]
fn a_strangers_records_in_a_dataset_are_not_believed() {
    if !is_root() {
        return;
    }
    for by_link in [false, true] {
        let (place, (_kept, forged)) = (Place::new(), forged(b"ck"));
        let (at, away) = (place.prefix.dataset(b"ck"), place.root().join("away"));
        fs::set_permissions(&at, fs::Permissions::from_mode(0o777)).unwrap();
        let known = survey(&place.prefix).remove(0);
        fs::rename(at.join(".scr"), &away).unwrap();
        let theirs = forged.join(".scr");
        if by_link {
            symlink(&theirs, at.join(".scr")).unwrap();
        } else {
            fs::rename(theirs, at.join(".scr")).unwrap();
        }
        give(&at.join(".scr"));
        for dataset in survey(&place.prefix) {
            assert!(!dataset.usable || super::read_catalog(&place.prefix, &dataset).is_err());
        }
        let error = super::read_catalog(&place.prefix, &known).unwrap_err().to_string();
        assert!(error.contains("/ck/.scr: it belongs to user 54322"), "{error}");
        if by_link {
            fs::remove_file(at.join(".scr")).unwrap();
        } else {
            fs::remove_dir_all(at.join(".scr")).unwrap();
        }
        fs::rename(&away, at.join(".scr")).unwrap();
        place.is_unharmed();
    }
}

#[test]
fn a_dataset_that_its_user_has_moved_away_is_read_there() {
    let place = Place::new();
    let (at, other) = (place.prefix.dataset(b"ck"), tempfile::tempdir().unwrap());
    fs::rename(&at, other.path().join("ck")).unwrap();
    symlink(other.path().join("ck"), &at).unwrap();
    place.is_unharmed();
}

#[test]
fn nothing_is_written_through_a_link_or_into_a_pipe() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    place.open();
    let (victim, state) = (place.root().join("notes"), |name: &str| place.prefix.state(name));
    fs::write(&victim, "mine").unwrap();
    let replaced = |path: &Path| super::super::directory::replace(path, b"state");
    for name in ["index.scr", "status"] {
        let temporary = state(&format!("{name}.new"));
        symlink("../notes", &temporary).unwrap();
        replaced(&state(name)).unwrap();
        nix::unistd::mkfifo(&temporary, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
        replaced(&state(name)).unwrap();
        assert_eq!(fs::read(state(name)).unwrap(), b"state");
    }
    for other in ["events", "messages"].map(state) {
        let append = || super::super::directory::append(&other, b"line\n");
        symlink("../notes", &other).unwrap();
        append().unwrap_err();
        fs::remove_file(&other).unwrap();
        nix::unistd::mkfifo(&other, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
        append().unwrap_err();
        fs::remove_file(&other).unwrap();
        fs::write(&other, "").unwrap();
        append().unwrap();
        give(&other);
        append().unwrap_err();
    }
    assert_eq!(fs::read(&victim).unwrap(), b"mine");
}

#[test]
fn a_strangers_names_make_no_prefix_foreign_and_choose_no_dataset() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    flush(&place.prefix, &catalog(2, b"ck.2"));
    place.open();
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/scr-2011-04/xor4/prefix/index.scr");
    let (index, old) = (place.root().join("index.scr"), place.prefix.state("scr.dataset.1"));
    fs::copy(golden, &index).unwrap();
    assert_eq!(foreign_layout(place.root()).unwrap(), Some(ForeignLayout::Scr2011), "it is this user's");
    give(&index);
    fs::create_dir(&old).unwrap();
    fs::write(old.join("rank2file"), "").unwrap();
    assert_eq!(foreign_layout(place.root()).unwrap(), Some(ForeignLayout::Scr3));
    give(&old);
    assert_eq!(foreign_layout(place.root()).unwrap(), None);
    // The link that a person may change.
    let current = place.root().join("scr.current");
    for (owner, chosen) in [(0, 1), (EVE, 3)] {
        if owner == EVE {
            // Nor does it keep a dataset from its place.
            give(&current);
            flush(&place.prefix, &catalog(3, b"ck.3"));
        }
        fs::remove_file(&current).unwrap();
        symlink("ck", &current).unwrap();
        lchown(&current, Some(owner), None).unwrap();
        let found = survey(&place.prefix);
        assert_eq!(found.iter().find(|dataset| dataset.current).map(|dataset| dataset.id.0), Some(chosen));
    }
}

#[test]
fn a_state_directory_that_a_stranger_has_made_is_not_used() {
    if !is_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let state = root.path().join(".scr");
    fs::create_dir(&state).unwrap();
    assert_eq!(make(root.path()).unwrap(), state);
    give(&state);
    let error = make(root.path()).unwrap_err().to_string();
    assert!(error.contains("/.scr: it belongs to user 54322, and everybody may make names in"), "{error}");
    assert!(carry_out(&prefix(root.path(), 1), &PfsTask::Survey).is_err());
    // A colleague's prefix, where not everybody may.
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o775)).unwrap();
    assert_eq!(make(root.path()).unwrap(), state);
}

#[test]
fn whatever_the_umask_nobody_else_may_make_names_in_a_prefix() {
    // The umask is the thread's then.
    let test = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).unwrap();
        nix::sys::stat::umask(nix::sys::stat::Mode::empty());
        let root = tempfile::tempdir().unwrap();
        let own = prefix(&root.path().join("job"), 5);
        let mut dataset = catalog(1, b"ck");
        dataset.entries.iter_mut().for_each(|entry| entry.mode |= 0o777);
        begin_and_copy(&own, &dataset);
        let copied = own.state("flush.5.1");
        let is_closed = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o002 == 0;
        assert!(is_closed(&copied) && is_closed(own.root()));
        carry_out(&own, &PfsTask::Publish(Arc::new(dataset.clone()))).unwrap();
        assert_eq!(read(&own, &survey(&own)[0]), dataset, "a restart gives the modes back");
        super::super::directory::append(&own.state("events"), b"line\n").unwrap();
        let mut seen = 0;
        for directory in [own.state(""), own.dataset(b"ck"), own.dataset(b"ck").join(".scr")] {
            assert!(is_closed(&directory), "{directory:?}");
            for entry in fs::read_dir(&directory).unwrap() {
                let path = entry.unwrap().path();
                seen += 1;
                // The dataset's files are this test's.
                assert!(is_closed(&path) || directory == own.dataset(b"ck") && !path.is_dir(), "{path:?}");
            }
        }
        assert!(seen >= 5, "{seen}");
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn what_is_mounted_in_a_prefix_is_not_asked() {
    use nix::mount::{MsFlags, mount, umount};
    if !is_root() {
        return;
    }
    // The mount namespace is the thread's.
    let test = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        let place = Place::new();
        let (other, state) = (tempfile::tempdir().unwrap(), |name: &str| place.prefix.state(name));
        fs::write(other.path().join("theirs"), "").unwrap();
        let cover = |path: &Path| {
            fs::create_dir_all(path).unwrap();
            mount(Some(other.path()), path, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        };
        for name in ["flush.1.1", "old.1.1", "swap.1.1", "scavenge.1.1", "scr.dataset.1", "loose"] {
            cover(&state(name));
            place.is_unharmed();
            let age = Age { epoch: place.dataset.epoch, id: place.dataset.id };
            let pointers = carry_out(&place.prefix, &PfsTask::ReadLoose(age)).unwrap();
            assert_eq!(pointers, PfsOutcome::Loose(age, None));
            umount(&state(name)).unwrap();
            fs::remove_dir(state(name)).unwrap();
        }
        let current = place.root().join("scr.current");
        fs::remove_file(&current).unwrap();
        cover(&current);
        place.is_unharmed();
        flush(&place.prefix, &catalog(2, b"ck.2"));
        assert_eq!(survey(&place.prefix)[0].id.0, 2);
        umount(&current).unwrap();
        // In a dataset whose place another takes, in a directory that its program left open.
        let inner = place.prefix.dataset(b"ck.2").join("sub");
        cover(&inner);
        let again = Catalog { id: crate::ids::DatasetId(3), ..catalog(3, b"ck.2") };
        flush(&place.prefix, &again);
        content_is(&place.prefix, &again);
        let old = state("old.5.3");
        assert!(old.join("sub/theirs").exists(), "it stays for now");
        umount(&old.join("sub")).unwrap();
        survey(&place.prefix);
        assert!(!old.exists());
        let dataset = place.prefix.dataset(b"ck.2");
        let stored = survey(&place.prefix).remove(0);
        fs::rename(&dataset, place.root().join("moved")).unwrap();
        cover(&dataset);
        assert!(!survey(&place.prefix)[0].usable);
        let error = carry_out(&place.prefix, &PfsTask::ReadCatalog(stored)).unwrap_err().to_string();
        assert!(error.contains("something is mounted there"), "{error}");
        umount(&dataset).unwrap();
        cover(&state(""));
        for error in [
            make(place.root()).unwrap_err().to_string(),
            carry_out(&place.prefix, &PfsTask::Survey).unwrap_err().to_string(),
            crate::status::last::LastStatus::read(place.root()).unwrap_err().to_string(),
        ] {
            assert!(error.contains("something is mounted there"), "{error}");
        }
        umount(&state("")).unwrap();
        assert!(other.path().join("theirs").exists());
    };
    std::thread::spawn(test).join().unwrap();
}
