//! The store is full: control directory and cache are on one small tmpfs, as they are where nothing
//! else was set. Everything goes on but what needs room itself, and the mount is served by the
//! supervisor that made it.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::Command;

use super::takeover::replace_worker;
use super::{Mounted, ONE_SMALL_STORE, in_namespace, on_a_thread, scrfs, wait_until};

/// What was written before the store was full.
const KEPT: &[u8] = &[7; 100_000];

fn on_a_small_store(options: &'static [&'static str], test: fn(&Mounted)) {
    on_a_thread(move || {
        ONE_SMALL_STORE.set(64);
        test(&Mounted::new(options));
    });
}

/// Takes all room that is left, to the last byte.
fn fill(path: &Path) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    for size in [1 << 20, 4096, 1] {
        let block = vec![0; size];
        let full = loop {
            if let Err(error) = file.write_all(&block) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::StorageFull);
    }
}

fn events(m: &Mounted) -> String {
    fs::read_to_string(m.at(".scrfs/events")).unwrap()
}

/// Names and all that is there can be used.
fn goes_on(m: &Mounted) {
    assert!(fs::read(m.at("d/kept")).unwrap() == KEPT);
    fs::rename(m.at("d/kept"), m.at("d/moved")).unwrap();
    assert_eq!(fs::metadata(m.at("d/moved")).unwrap().len(), KEPT.len() as u64);
    fs::rename(m.at("d/moved"), m.at("d/kept")).unwrap();
    fs::create_dir(m.at("new")).unwrap();
    fs::remove_dir(m.at("new")).unwrap();
    assert!(fs::read_to_string(m.at(".scrfs/status")).unwrap().contains("scr"));
}

fn logs_and_records(m: &Mounted, by: &Path) {
    let supervisor = m.pid("supervisor.lock");
    fs::create_dir(m.at("d")).unwrap();
    fs::write(m.at("d/kept"), KEPT).unwrap();
    let many = 5000;
    fs::create_dir(m.at("many")).unwrap();
    for n in 0..many {
        File::create(m.at(&format!("many/{n}"))).unwrap();
    }
    fill(by);
    // The log cannot grow by a byte: what supervisor and workers say now is lost.
    let log = m.control().join("daemon.log");
    fill(&log);
    // Answers that come after the release of what filled the store: a worker that is killed in that
    // may leave the file registered with the kernel, and its bytes there (scrfs/docs/mount.md,
    // "Limits").
    goes_on(m);
    for _ in 0..3 {
        replace_worker(m);
        goes_on(m);
    }
    assert!(scrfs(&["reload"]).arg(&m.mount_point).status().unwrap().success());
    goes_on(m);
    assert_eq!(m.pid("supervisor.lock"), supervisor, "another supervisor");
    // Each new name has a record, and there is room for those.
    for n in 0..many {
        fs::rename(m.at(&format!("many/{n}")), m.at(&format!("many/new name of {n}"))).unwrap();
        fs::remove_file(m.at(&format!("many/new name of {n}"))).unwrap();
    }
    fs::remove_dir(m.at("many")).unwrap();
    wait_until("what to do", || {
        events(m).contains("is full: records go on with the room kept back for them")
    });
    let told = events(m);
    let again = told.matches("is full: records go on").count();
    assert!(again < 10, "said {again} times:\n{told}");
    goes_on(m);

    fs::remove_file(by).unwrap();
    // The kernel may forget the file somewhat later.
    wait_until("room again", || fs::write(m.at("d/more"), KEPT).is_ok());
    replace_worker(m);
    goes_on(m);
    let logged = fs::read(&log).unwrap();
    assert!(String::from_utf8_lossy(&logged).contains("(log lines lost here: "), "nothing was lost");
    let kept_back = || fs::metadata(m.control().join("reserve")).unwrap().len();
    wait_until("all that is kept back", || kept_back() >= 2 << 20);
}

#[test]
fn filled_by_a_program() {
    on_a_small_store(&[], |m| logs_and_records(m, &m.at("zero")));
    on_a_small_store(&["--no-passthrough"], |m| logs_and_records(m, &m.at("zero")));
}

#[test]
fn filled_by_others() {
    on_a_small_store(&[], |m| logs_and_records(m, &m.dir.path().join("cache/of another")));
}

#[test]
fn logs_are_bounded_whoever_writes_them() {
    in_namespace(&[], |m| {
        let log = m.control().join("daemon.log");
        let former = m.control().join("daemon.log.1");
        let lengthen = || {
            let mut file = OpenOptions::new().append(true).open(&log).unwrap();
            file.write_all(&vec![b'\n'; 3 << 20]).unwrap();
        };
        for _ in 0..2 {
            lengthen();
            replace_worker(m);
            assert!(fs::metadata(&former).unwrap().len() >= 3 << 20);
            // Supervisor and worker go on in the new one.
            assert!(fs::metadata(&log).unwrap().len() < 1 << 20);
            assert!(fs::read_to_string(&log).unwrap().contains("another takes over"));
        }
        let names = fs::read_dir(m.control()).unwrap();
        let logs = names.filter(|name| name.as_ref().unwrap().file_name().to_str().unwrap().contains("log"));
        assert_eq!(logs.count(), 2);
    });
}

#[test]
fn when_memory_is_short_programs_go_first() {
    in_namespace(&[], |m| {
        assert!(m.unmount(&[]).status.success());
        let command = m.mount_command(&[]);
        let mut chosen_first = Command::new("sh");
        chosen_first.args(["-c", "echo 500 > /proc/self/oom_score_adj; exec \"$@\"", "sh"]);
        chosen_first.arg(command.get_program()).args(command.get_args());
        assert!(chosen_first.status().unwrap().success());
        let scores = ["supervisor.lock", "worker.lock"].map(|lock| {
            let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", m.pid(lock))).unwrap();
            score.trim().parse::<i32>().unwrap()
        });
        // The latter where root may not do everything.
        assert!([[-1000, -900], [0, 0]].contains(&scores), "{scores:?}");
    });
}
