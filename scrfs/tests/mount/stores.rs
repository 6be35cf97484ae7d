//! One mount over two stores, a tmpfs and an ext4: what programs see is one tree, whoever dies.

use std::fs::{self, File};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};

use super::takeover::{replace_worker, torture};
use super::{Mounted, TWO_STORES};

fn over_two(options: &'static [&'static str], test: fn(&Mounted)) {
    let thread = std::thread::spawn(move || {
        TWO_STORES.set(true);
        test(&Mounted::new(options));
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn tree(m: &Mounted, store: &str) -> PathBuf {
    m.dir.path().join(store).join("root/scr.t/tree")
}

fn is_in(m: &Mounted, store: &str, name: &str) {
    for other in ["cache", "second"] {
        assert_eq!(tree(m, other).join(name).exists(), store == other, "{name} in {other}");
    }
}

fn in_store_of(m: &Mounted, name: &str) -> (u64, u64) {
    let stat = rustix::fs::statvfs(m.at(name)).unwrap();
    (stat.f_blocks * stat.f_frsize, stat.f_ffree)
}

#[test]
fn datasets_are_where_their_descriptors_say_and_stay_there() {
    over_two(&[], |m| {
        fs::create_dir_all(m.at("even/sub")).unwrap();
        fs::write(m.at("even/sub/f"), b"in the second").unwrap();
        fs::write(m.at("pointer"), b"even").unwrap();
        is_in(m, "second", "even");
        is_in(m, "cache", "pointer");
        let mut names: Vec<_> =
            fs::read_dir(&m.mount_point).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["even", "pointer"]);
        let numbers =
            || ["even", "even/sub/f", "pointer"].map(|name| fs::metadata(m.at(name)).unwrap().ino());
        let before = numbers();
        let listed: Vec<u64> =
            fs::read_dir(m.at("even")).unwrap().map(|entry| entry.unwrap().ino()).collect();
        assert_eq!(listed, [fs::metadata(m.at("even/sub")).unwrap().ino()]);
        assert_ne!(in_store_of(m, "even"), in_store_of(m, "pointer"));

        // Files do not go between the stores by renaming or linking; directories keep theirs.
        let moved = rustix::fs::rename(m.at("pointer"), m.at("even/pointer"));
        assert_eq!(moved, Err(rustix::io::Errno::XDEV));
        let linked = fs::hard_link(m.at("pointer"), m.at("even/link")).unwrap_err();
        assert_eq!(linked.raw_os_error(), Some(18), "EXDEV");
        fs::rename(m.at("even"), m.at("renamed")).unwrap();
        is_in(m, "second", "renamed");
        let exchange = RenameFlags::EXCHANGE;
        fs::create_dir(m.at("again")).unwrap();
        rustix::fs::renameat_with(CWD, m.at("again"), CWD, m.at("renamed"), exchange).unwrap();
        fs::rename(m.at("again"), m.at("even")).unwrap();
        let held = File::open(m.at("even/sub/f")).unwrap();
        replace_worker(m);
        assert_eq!(held.metadata().unwrap().ino(), before[1]);
        assert_eq!(numbers(), before);
        fs::remove_dir(m.at("renamed")).unwrap();
        drop(held);

        // Mounted again it is as it was, whichever is named first.
        let output = m.unmount(&[]);
        assert!(output.status.success(), "{output:?}");
        let output = m.mount(&[]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(fs::read(m.at("even/sub/f")).unwrap(), b"in the second");
        is_in(m, "second", "even");
        fs::remove_dir_all(m.at("even")).unwrap();
        gone(&tree(m, "second"), "even");
    });
}

fn gone(tree: &Path, name: &str) {
    assert!(!tree.join(name).exists(), "{name}");
}

#[test]
fn deaths_under_load_over_two_stores() {
    for options in [&[][..], &["--no-passthrough"]] {
        over_two(options, |m| {
            torture(m, 25, true);
            is_in(m, "second", "load");
            is_in(m, "second", "ck");
        });
    }
}
