//! The node is short of something when a worker dies: the mount stays until there is some, and its
//! programs wait.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::process::Command;

#[cfg(feature = "faults")]
use nix::sys::signal::{Signal, kill};
#[cfg(feature = "faults")]
use nix::unistd::Pid;

use super::takeover::replace_worker;
use super::{Mounted, ONE_SMALL_STORE, on_a_thread, wait_until};
#[cfg(feature = "faults")]
use super::{SLOWLY, in_namespace, scrfs};

fn log(m: &Mounted) -> String {
    fs::read_to_string(m.control().join("daemon.log")).unwrap()
}

/// Leaves no inode in the store, in which the control directory is.
fn use_up_inodes(m: &Mounted) {
    let cache = m.dir.path().join("cache");
    let remounted = Command::new("mount").args(["-o", "remount,nr_inodes=500"]).arg(&cache).status().unwrap();
    assert!(remounted.success());
    let others = cache.join("others");
    fs::create_dir(&others).unwrap();
    let refused = (0..1000).find_map(|n| File::create(others.join(n.to_string())).err()).unwrap();
    assert_eq!(refused.kind(), ErrorKind::StorageFull);
}

/// A record that has been written lets an inode go before that is kept back again: who is faster
/// gets it, once.
fn no_file_can_be_made(m: &Mounted) {
    wait_until("a file to be refused", || match File::create(m.at("d/more")) {
        Ok(_) => {
            fs::remove_file(m.at("d/more")).unwrap();
            false
        }
        Err(refused) => {
            assert_eq!(refused.kind(), ErrorKind::StorageFull);
            true
        }
    });
}

#[test]
fn no_inode_is_left_when_a_worker_dies() {
    on_a_thread(|| {
        ONE_SMALL_STORE.set(64);
        let m = Mounted::new(&[]);
        let supervisor = m.pid("supervisor.lock");
        fs::create_dir(m.at("d")).unwrap();
        fs::write(m.at("d/kept"), b"kept").unwrap();
        let open = File::open(m.at("d/kept")).unwrap();
        use_up_inodes(&m);
        for _ in 0..3 {
            replace_worker(&m);
            assert_eq!(open.metadata().unwrap().len(), 4);
            assert_eq!(fs::read(m.at("d/kept")).unwrap(), b"kept");
            fs::rename(m.at("d/kept"), m.at("d/moved")).unwrap();
            fs::rename(m.at("d/moved"), m.at("d/kept")).unwrap();
            no_file_can_be_made(&m);
            let status = scrfs_ctl_status(&m);
            assert!(status.contains("scr"), "{status}");
        }
        assert!(!log(&m).contains("afresh"), "{}", log(&m));
        // Somebody who takes each inode that is free. Bytes are not given where inodes are missing.
        let reserve = fs::metadata(m.control().join("reserve")).unwrap().len();
        assert!(reserve >= 2 << 20, "{reserve}");
        fs::remove_dir_all(m.dir.path().join("cache/others")).unwrap();
        replace_worker(&m);
        fs::write(m.at("d/more"), b"more").unwrap();
        wait_until("all inodes that are kept back", || {
            let names = fs::read_dir(m.control()).unwrap();
            let spare = |name: &str| name.starts_with("reserve.");
            names.filter(|name| spare(name.as_ref().unwrap().file_name().to_str().unwrap())).count() == 8
        });
        assert_eq!(m.pid("supervisor.lock"), supervisor);
    });
}

/// What a person is told through the mount.
fn scrfs_ctl_status(m: &Mounted) -> String {
    fs::read_to_string(m.at(".scrfs/status")).unwrap()
}

/// One that is short of something for seconds, six times in a row.
#[cfg(feature = "faults")]
#[test]
fn workers_that_cannot_be_started_do_not_end_the_mount() {
    on_a_thread(|| {
        SLOWLY.set(
            "worker.spawn=full@2,worker.spawn=full@3,worker.spawn=full@4,worker.spawn=full@5,worker.spawn=full@6,\
             worker.spawn=full@7",
        );
        let m = Mounted::new(&[]);
        fs::write(m.at("kept"), b"kept").unwrap();
        let open = File::open(m.at("kept")).unwrap();
        let supervisor = m.pid("supervisor.lock");
        replace_worker(&m);
        assert_eq!(open.metadata().unwrap().len(), 4, "its handle is lost");
        let log = log(&m);
        assert_eq!(log.matches("short of something").count(), 6, "{log}");
        assert!(!log.contains("afresh"), "{log}");
        assert_eq!(m.pid("supervisor.lock"), supervisor);
        // While the supervisor waits it hears what it is told.
        let worker = m.pid("worker.lock");
        kill(Pid::from_raw(worker), Signal::SIGKILL).unwrap();
        wait_until("another worker", || m.pid("worker.lock") != worker);
    });
}

#[cfg(feature = "faults")]
#[test]
fn a_supervisor_that_waits_for_better_times_can_be_told_to_end() {
    on_a_thread(|| {
        let faults: Vec<String> = (2..100).map(|nth| format!("worker.spawn=full@{nth}")).collect();
        SLOWLY.set(faults.join(",").leak());
        let m = Mounted::new(&[]);
        let supervisor = m.pid("supervisor.lock");
        kill(Pid::from_raw(m.pid("worker.lock")), Signal::SIGKILL).unwrap();
        // A job may run there, and wait.
        super::fails(&m.unmount(&[]), 1, "no worker serves ");
        super::fails(&m.mount(&[]), 1, "no answer from ");
        wait_until("some tries", || log(&m).matches("short of something").count() > 3);
        assert!(scrfs(&["umount", "--force"]).arg(&m.mount_point).status().unwrap().success());
        wait_until("the supervisor's end", || super::has_ended(supervisor));
        assert!(!log(&m).contains("afresh"), "{}", log(&m));
    });
}

/// The worker itself finds that something is missing.
#[cfg(feature = "faults")]
#[test]
fn a_worker_that_is_short_of_something_says_so() {
    in_namespace(&[], |m| {
        assert!(m.unmount(&[]).status.success());
        let faults = m.dir.path().join("faults");
        let mounted = m.mount_command(&[]).env("SCRFS_FAULTS_FILE", &faults).output().unwrap();
        assert!(mounted.status.success(), "{mounted:?}");
        fs::write(m.at("kept"), b"kept").unwrap();
        let open = File::open(m.at("kept")).unwrap();
        fs::write(&faults, "worker.start=full").unwrap();
        replace_worker(m);
        assert_eq!(open.metadata().unwrap().len(), 4);
        assert!(!faults.exists());
        let log = log(m);
        assert!(log.contains("cannot start, as the node is short of something"), "{log}");
        assert!(!log.contains("afresh"), "{log}");
    });
}
