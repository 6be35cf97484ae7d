//! More files than the daemon may have descriptors.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use super::takeover::replace_worker;
use super::{Mounted, in_namespace};

const FILES: usize = 1500;

/// Mounts anew with a limit of 256 descriptors.
fn limit(m: &Mounted, options: &[&str]) {
    assert!(m.unmount(&[]).status.success());
    let command = m.mount_command(options);
    // A worker with the right to it would raise the limit.
    let mut limited = Command::new("setpriv");
    limited.args(["--bounding-set=-sys_resource", "prlimit", "--nofile=256:256"]);
    limited.arg(command.get_program()).args(command.get_args());
    let output = limited.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Below one dataset: links from one to another are refused.
fn at(m: &Mounted, name: &str) -> std::path::PathBuf {
    m.at("t").join(name)
}

/// Every file's number, links and text.
fn all(m: &Mounted) -> BTreeMap<String, (u64, u64, String)> {
    let mut found = BTreeMap::new();
    for dir in ["d", "e"] {
        for entry in fs::read_dir(at(m, dir)).unwrap() {
            let name = format!("{dir}/{}", entry.unwrap().file_name().into_string().unwrap());
            let meta = fs::metadata(at(m, &name)).unwrap();
            let text = fs::read_to_string(at(m, &name)).unwrap();
            found.insert(name, (meta.ino(), meta.nlink(), text));
        }
    }
    found
}

fn more_files(m: &Mounted, options: &[&str]) {
    limit(m, options);
    fs::create_dir(m.at("t")).unwrap();
    for dir in ["d", "e"] {
        fs::create_dir(at(m, dir)).unwrap();
        for n in 0..FILES {
            fs::write(at(m, &format!("{dir}/{n}")), format!("{dir}{n}")).unwrap();
        }
    }
    for n in 0..FILES / 10 {
        fs::hard_link(at(m, &format!("d/{n}")), at(m, &format!("e/l{n}"))).unwrap();
    }
    let before = all(m);
    assert_eq!(before.len(), 2 * FILES + FILES / 10);
    for n in 0..FILES / 10 {
        assert_eq!(before[&format!("d/{n}")], before[&format!("e/l{n}")]);
    }
    let descriptors = fs::read_dir(format!("/proc/{}/fd", m.pid("worker.lock"))).unwrap().count();
    assert!(descriptors < 256, "{descriptors}");
    for _ in 0..2 {
        replace_worker(m);
        assert!(all(m) == before, "a successor sees other files");
    }
    fs::rename(at(m, "d"), at(m, "moved")).unwrap();
    fs::rename(at(m, "e/7"), at(m, "e/8")).unwrap();
    assert_eq!(fs::read_to_string(at(m, "e/8")).unwrap(), "e7");
    assert_eq!(fs::metadata(at(m, "moved/9")).unwrap().ino(), before["d/9"].0);
    fs::rename(at(m, "moved"), at(m, "d")).unwrap();
    let mut after = before;
    let moved = after.remove("e/7").unwrap();
    after.insert("e/8".into(), moved);
    assert!(all(m) == after, "a rename went wrong");
    fs::remove_dir_all(m.at("t")).unwrap();
    assert_eq!(fs::read_dir(&m.mount_point).unwrap().count(), 0);
}

#[test]
fn more_files_than_descriptors() {
    in_namespace(&[], |m| more_files(m, &[]));
    in_namespace(&["--no-passthrough"], |m| more_files(m, &["--no-passthrough"]));
}

/// Programs open more than there can be: they are told, and all is well when they have closed some.
fn more_open_files(m: &Mounted, options: &[&str], least: usize) {
    limit(m, options);
    fs::create_dir(m.at("t")).unwrap();
    for n in 0..FILES {
        fs::write(at(m, &format!("idle{n}")), "idle").unwrap();
    }
    for _ in 0..2 {
        let open: Vec<_> = (0..256)
            .map(|n| fs::File::create(at(m, &format!("open{n}"))))
            .take_while(|opened| match opened {
                Ok(_) => true,
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) => false,
                Err(error) => panic!("{error}"),
            })
            .collect();
        assert!((least..256).contains(&open.len()), "{} were opened", open.len());
        drop(open);
        for n in 0..FILES {
            assert_eq!(fs::read_to_string(at(m, &format!("idle{n}"))).unwrap(), "idle");
        }
    }
    fs::remove_dir_all(m.at("t")).unwrap();
}

#[test]
fn more_open_files_than_descriptors() {
    in_namespace(&[], |m| more_open_files(m, &[], 200));
    in_namespace(&["--no-passthrough"], |m| more_open_files(m, &["--no-passthrough"], 100));
}
