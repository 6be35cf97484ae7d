//! More files than the daemon may have descriptors.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use scrfs::control::{Answer, Ask, client};

use super::lead::Steady;
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

/// Programs open more than there can be: they are told, all else goes on meanwhile, and all is well
/// when they have closed some.
fn more_open_files(m: &Mounted, options: &[&str], least: usize) {
    let begun = std::time::Instant::now();
    limit(m, options);
    let supervisor = m.pid("supervisor.lock");
    fs::create_dir(m.at("t")).unwrap();
    for n in 0..FILES {
        fs::write(at(m, &format!("idle{n}")), "idle").unwrap();
    }
    let refused = |error: &std::io::Error| {
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
        false
    };
    for _ in 0..2 {
        let open: Vec<_> = (0..256)
            .map(|n| fs::File::create(at(m, &format!("open{n}"))))
            .take_while(|opened| opened.as_ref().map_or_else(refused, |_| true))
            .collect();
        assert!((least..256).contains(&open.len()), "{} were opened", open.len());
        // What could not be opened was not made, and cannot be opened if it is there.
        assert!(!at(m, &format!("open{}", open.len())).exists());
        let more: Vec<_> = (0..100).map(|n| fs::File::open(at(m, &format!("idle{n}")))).collect();
        let refusals = more.iter().filter(|opened| !opened.as_ref().map_or_else(refused, |_| true)).count();
        assert!(refusals > 90, "{refusals}");
        drop(more);
        // Names, attributes and their changes need no more than there is, nor do those who ask the
        // daemon.
        for n in 0..FILES {
            assert_eq!(fs::metadata(at(m, &format!("idle{n}"))).unwrap().len(), 4);
        }
        fs::create_dir(at(m, "new")).unwrap();
        for n in 0..100 {
            fs::rename(at(m, &format!("idle{n}")), at(m, &format!("new/{n}"))).unwrap();
            std::os::unix::fs::symlink("x", at(m, "new/link")).unwrap();
            fs::remove_file(at(m, "new/link")).unwrap();
            fs::rename(at(m, &format!("new/{n}")), at(m, &format!("idle{n}"))).unwrap();
        }
        fs::remove_dir(at(m, "new")).unwrap();
        for file in open.iter().take(20) {
            file.as_ref().unwrap().sync_all().unwrap();
        }
        for _ in 0..3 {
            answers(m);
        }
        let told = events(m).matches("further opens get EMFILE").count() as u64;
        // Once a minute.
        let most = 1 + begun.elapsed().as_secs() / 60;
        assert!((1..=most).contains(&told), "said {told} times in {:?}", begun.elapsed());
        drop(open);
        for n in 0..FILES {
            assert_eq!(fs::read_to_string(at(m, &format!("idle{n}"))).unwrap(), "idle");
        }
    }
    // Directories that are open need descriptors too.
    for n in 0..256 {
        fs::create_dir(at(m, &format!("dir{n}"))).unwrap();
    }
    let open: Vec<_> = (0..256)
        .map(|n| fs::read_dir(at(m, &format!("dir{n}"))))
        .take_while(|opened| opened.as_ref().map_or_else(refused, |_| true))
        .collect();
    assert!((least..256).contains(&open.len()), "{} were opened", open.len());
    assert_eq!(fs::metadata(at(m, "idle7")).unwrap().len(), 4);
    drop(open);
    replace_worker(m);
    assert_eq!(m.pid("supervisor.lock"), supervisor);
    fs::remove_dir_all(m.at("t")).unwrap();
}

/// The events, as the daemon keeps them.
fn events(m: &Mounted) -> String {
    fs::read_to_string(m.control().join("events")).unwrap()
}

/// The daemon says how it is, to who asks its socket and to who reads the file.
fn answers(m: &Mounted) {
    let answer = client::ask(&m.control(), &Ask::Status, Duration::from_secs(10)).unwrap();
    assert!(matches!(&answer, Answer::Status(status) if status.job == "root t"), "{answer:?}");
    assert!(fs::read_to_string(m.at(".scrfs/status")).unwrap().contains("job t of root"));
}

/// Takes all descriptors that there are for programs.
fn use_up(m: &Mounted) -> Vec<fs::File> {
    let open: Vec<_> = (0..256).map_while(|n| fs::File::create(at(m, &format!("open{n}"))).ok()).collect();
    assert!((50..256).contains(&open.len()), "{} were opened", open.len());
    open
}

/// Programs have used up what there is for them: a dataset is sealed all the same, and whoever asks
/// is answered.
fn a_seal_without_descriptors(m: &Mounted, options: &[&str]) {
    limit(m, options);
    let lead = Steady::start(&m.control());
    for name in ["t", "ck"] {
        fs::create_dir(m.at(name)).unwrap();
    }
    fs::write(m.at("ck/f"), "sealed").unwrap();
    let open = use_up(m);
    lead.seal();
    let marker = m.at("ck/.complete");
    let touched = Command::new("timeout").args(["-k", "2", "300", "touch"]).arg(&marker).status().unwrap();
    assert!(touched.success(), "{}", events(m));
    answers(m);
    // It is there, and can be read when there is a descriptor for it.
    assert_eq!(fs::metadata(m.at("ck/f")).unwrap().len(), 6);
    drop(open);
    assert_eq!(fs::read_to_string(m.at("ck/f")).unwrap(), "sealed");
    lead.end();
}

#[test]
fn a_seal_when_programs_hold_all_descriptors() {
    in_namespace(&[], |m| a_seal_without_descriptors(m, &[]));
    in_namespace(&["--no-passthrough"], |m| a_seal_without_descriptors(m, &["--no-passthrough"]));
}

#[test]
fn more_open_files_than_descriptors() {
    in_namespace(&[], |m| more_open_files(m, &[], 150));
    in_namespace(&["--no-passthrough"], |m| more_open_files(m, &["--no-passthrough"], 75));
}
