//! Workers die, and programs see nothing (`scrfs/docs/mount.md`).

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::{CWD, FallocateFlags, FlockOperation, RenameFlags, XattrFlags};

use super::lead::Steady;
use super::{Mounted, SLOWLY, both_modes, fails, has_ended, in_namespace, scrfs, wait_until};

/// Shorter than the supervisor waits for a word of a worker whose end it has not seen (30 s).
const UNSEEN: Duration = Duration::from_secs(25);
/// Longer than a successor takes to serve, however busy the machine is, and shorter than twice the
/// supervisor's bound.
const SUCCESSOR_MAX: Duration = Duration::from_secs(55);
/// Windows of some milliseconds around each change, so that most deaths hit one.
#[cfg(feature = "faults")]
const SLOW: &str = "request.effect=slow,request.done=slow,request.answered=slow";

/// Kills the worker; false when its successor has not shown yet.
fn kill_worker(m: &Mounted, last: &mut i32) -> bool {
    let worker = m.pid("worker.lock");
    if worker == *last || kill(Pid::from_raw(worker), Signal::SIGKILL).is_err() {
        return false;
    }
    *last = worker;
    true
}

/// Kills the worker and waits until another serves.
pub(crate) fn replace_worker(m: &Mounted) {
    let worker = m.pid("worker.lock");
    kill(Pid::from_raw(worker), Signal::SIGKILL).unwrap();
    wait_until("a new worker", || fs::metadata(&m.mount_point).is_ok() && m.pid("worker.lock") != worker);
}

#[test]
fn what_is_open_and_known_stays() {
    for options in [&[][..], &["--no-passthrough"]] {
        in_namespace(options, |m| {
            fs::create_dir_all(m.at("d/e")).unwrap();
            let mut file =
                OpenOptions::new().read(true).append(true).create_new(true).open(m.at("d/e/f")).unwrap();
            file.write_all(b"one").unwrap();
            fs::write(m.at("d/gone"), b"unlinked").unwrap();
            let gone = File::open(m.at("d/gone")).unwrap();
            fs::hard_link(m.at("d/gone"), m.at("d/link")).unwrap();
            fs::remove_file(m.at("d/gone")).unwrap();
            let number = |name: &str| fs::metadata(m.at(name)).unwrap().ino();
            let before = [number("d"), number("d/e"), number("d/e/f"), number("d/link")];
            let mut listing = fs::read_dir(m.at("d")).unwrap();
            assert!(listing.next().is_some());

            for round in 0..3 {
                replace_worker(m);
                file.write_all(b"+").unwrap();
                assert_eq!(file.metadata().unwrap().len(), 4 + round);
                file.sync_all().unwrap();
                // Opened anew beside the old handle: one backing file for both.
                let mut again = OpenOptions::new().append(true).open(m.at("d/e/f")).unwrap();
                assert_eq!(again.write(b"").unwrap(), 0);
                again.flush().unwrap();
                let mut text = [0; 8];
                gone.read_exact_at(&mut text, 0).unwrap();
                assert_eq!((&text, gone.metadata().unwrap().nlink()), (b"unlinked", 1));
                assert_eq!(before, [number("d"), number("d/e"), number("d/e/f"), number("d/link")]);
                fs::rename(m.at("d/e/f"), m.at("d/e/g")).unwrap();
                fs::rename(m.at("d/e/g"), m.at("d/e/f")).unwrap();
            }
            let mut seen = String::new();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_to_string(&mut seen).unwrap();
            assert_eq!(seen, "one+++");
            drop((file, gone, listing));
            let output = m.unmount(&[]);
            assert!(output.status.success(), "{output:?}");
            assert!(keepers(m).is_empty(), "a keeper is left");
        });
    }
}

/// Keepers whose parent is this mount's supervisor.
fn keepers(m: &Mounted) -> Vec<i32> {
    let supervisor = m.pid("supervisor.lock");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        if stat.contains("(scrfs-keeper)") && parent == Some(supervisor) {
            found.push(pid);
        }
    }
    found
}

#[test]
fn without_a_keeper_paths_must_do() {
    in_namespace(&[], |m| {
        fs::create_dir(m.at("d")).unwrap();
        fs::write(m.at("d/f"), b"kept").unwrap();
        let file = File::open(m.at("d/f")).unwrap();
        let number = file.metadata().unwrap().ino();
        let found = keepers(m);
        assert_eq!(found.len(), 1, "{found:?}");
        let line = fs::read(format!("/proc/{}/cmdline", found[0])).unwrap();
        assert!(!line.windows(6).any(|part| part == b"worker"), "{line:?}");
        kill(Pid::from_raw(found[0]), Signal::SIGKILL).unwrap();
        replace_worker(m);
        assert_eq!(file.metadata().unwrap().ino(), number);
        assert_eq!(fs::read(m.at("d/f")).unwrap(), b"kept");
        file.sync_all().unwrap();
    });
}

#[test]
fn a_release_leaves_the_next_open_its_backing_file() {
    let thread = std::thread::spawn(|| {
        SLOWLY.set("passthrough.unused=slow");
        let m = Mounted::new(&[]);
        let path = m.at("f");
        fs::write(&path, b"x").unwrap();
        for _ in 0..10 {
            drop(File::open(&path).unwrap());
            let held = File::open(&path).unwrap();
            // The release goes on beside that.
            std::thread::sleep(Duration::from_millis(20));
            replace_worker(&m);
            // One backing file for both, as the kernel demands.
            assert_eq!(fs::read(&path).unwrap(), b"x");
            drop(held);
        }
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// What the programs of a test share.
struct Load {
    dir: std::path::PathBuf,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    programs: Vec<(&'static str, JoinHandle<()>)>,
}

impl Load {
    /// Repeats `work` in a directory of its own until the end.
    fn start(&mut self, name: &'static str, work: impl Fn(&std::path::Path, u64) + Send + 'static) {
        let (dir, stop, done) = (self.dir.join(name), Arc::clone(&self.stop), Arc::clone(&self.done));
        fs::create_dir(&dir).unwrap();
        let run = move || {
            let mut turn = 0;
            while !stop.load(Ordering::Relaxed) {
                work(&dir, turn);
                turn += 1;
                done.fetch_add(1, Ordering::Relaxed);
            }
            assert!(turn > 0);
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run).unwrap();
        self.programs.push((name, thread));
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        let failed: Vec<_> = self
            .programs
            .into_iter()
            .filter_map(|(name, thread)| thread.join().err().map(|_| name))
            .collect();
        assert!(failed.is_empty(), "programs saw errors: {failed:?}");
    }

    /// A program has failed already.
    fn failed(&self) -> bool {
        self.programs.iter().any(|(_, thread)| thread.is_finished())
    }
}

fn errno<T: std::fmt::Debug>(outcome: io::Result<T>) -> Option<i32> {
    outcome.unwrap_err().raw_os_error()
}

fn pattern(turn: u64) -> Vec<u8> {
    (0..40_000_u64).map(|at| (at.wrapping_mul(31).wrapping_add(turn) % 251) as u8).collect()
}

fn writers(load: &mut Load) {
    load.start("write", |dir, turn| {
        let path = dir.join("f");
        let mut file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o640).open(&path).unwrap();
        let bytes = pattern(turn);
        for piece in bytes.chunks(7000) {
            file.write_all(piece).unwrap();
        }
        assert_eq!(errno(OpenOptions::new().write(true).create_new(true).open(&path)), Some(libc::EEXIST));
        file.sync_data().unwrap();
        assert!(fs::read(&path).unwrap() == bytes, "bytes differ");
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o640);
        file.set_len(100).unwrap();
        assert!(fs::read(&path).unwrap() == bytes[..100], "bytes differ");
        fs::remove_file(&path).unwrap();
        assert_eq!(errno(fs::remove_file(&path)), Some(libc::ENOENT));
        assert_eq!(file.metadata().unwrap().nlink(), 0);
    });
    load.start("append", |dir, turn| {
        let path = dir.join("log");
        let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        file.write_all(&turn.to_ne_bytes()).unwrap();
        let log = fs::read(&path).unwrap();
        assert_eq!(log.len() as u64, (turn + 1) * 8, "an append was lost or repeated");
        assert!(log.ends_with(&turn.to_ne_bytes()));
    });
    load.start("hole", |dir, turn| {
        let path = dir.join("f");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        let mut bytes = pattern(turn);
        file.write_all_at(&bytes, 0).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 4096, 8192).unwrap();
        bytes[4096..12288].fill(0);
        assert!(fs::read(&path).unwrap() == bytes, "bytes differ");
    });
}

fn namers(load: &mut Load) {
    load.start("rename", |dir, turn| {
        let (a, b) = (dir.join("a"), dir.join("b"));
        fs::write(&a, turn.to_ne_bytes()).unwrap();
        fs::rename(&a, &b).unwrap();
        assert_eq!(errno(fs::metadata(&a)), Some(libc::ENOENT));
        assert_eq!(fs::read(&b).unwrap(), turn.to_ne_bytes());
        rustix::fs::renameat_with(CWD, &b, CWD, &a, RenameFlags::NOREPLACE).unwrap();
        assert_eq!(errno(fs::rename(&b, &a)), Some(libc::ENOENT));
        fs::write(&b, b"other").unwrap();
        let taken = rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::NOREPLACE);
        assert_eq!(taken, Err(rustix::io::Errno::EXIST));
        fs::rename(&a, &b).unwrap();
        assert_eq!(fs::read(&b).unwrap(), turn.to_ne_bytes());
        fs::remove_file(&b).unwrap();
    });
    load.start("exchange", |dir, turn| {
        let (a, b) = (dir.join("a"), dir.join("b"));
        if turn == 0 {
            fs::write(&a, b"0").unwrap();
            fs::write(&b, b"1").unwrap();
        }
        rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
        let expected: (&[u8], &[u8]) = if turn % 2 == 0 { (b"1", b"0") } else { (b"0", b"1") };
        assert_eq!((&*fs::read(&a).unwrap(), &*fs::read(&b).unwrap()), expected, "turn {turn}");
    });
    load.start("mkdir", |dir, _| {
        let path = dir.join("d");
        fs::create_dir(&path).unwrap();
        assert_eq!(errno(fs::create_dir(&path)), Some(libc::EEXIST));
        File::create(path.join("f")).unwrap();
        assert_eq!(errno(fs::remove_dir(&path)), Some(libc::ENOTEMPTY));
        fs::rename(&path, dir.join("e")).unwrap();
        assert_eq!(errno(fs::remove_dir(&path)), Some(libc::ENOENT));
        fs::remove_file(dir.join("e/f")).unwrap();
        fs::remove_dir(dir.join("e")).unwrap();
        assert_eq!(errno(fs::remove_dir(dir.join("e"))), Some(libc::ENOENT));
    });
    load.start("link", |dir, _| {
        let (file, link, sym) = (dir.join("f"), dir.join("l"), dir.join("s"));
        File::create_new(&file).unwrap();
        fs::hard_link(&file, &link).unwrap();
        assert_eq!(errno(fs::hard_link(&file, &link)), Some(libc::EEXIST));
        assert_eq!(fs::metadata(&file).unwrap().nlink(), 2);
        symlink("f", &sym).unwrap();
        assert_eq!(fs::read_link(&sym).unwrap().as_os_str(), "f");
        for path in [&file, &link, &sym] {
            fs::remove_file(path).unwrap();
        }
        let pipe = dir.join("p");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        fs::remove_file(&pipe).unwrap();
    });
    load.start("attribute", |dir, _| {
        let path = dir.join("f");
        File::create(&path).unwrap();
        rustix::fs::setxattr(&path, "user.k", b"v", XattrFlags::CREATE).unwrap();
        let again = rustix::fs::setxattr(&path, "user.k", b"w", XattrFlags::CREATE);
        assert_eq!(again, Err(rustix::io::Errno::EXIST));
        rustix::fs::setxattr(&path, "user.k", b"x", XattrFlags::REPLACE).unwrap();
        rustix::fs::removexattr(&path, "user.k").unwrap();
        assert_eq!(rustix::fs::removexattr(&path, "user.k"), Err(rustix::io::Errno::NODATA));
    });
}

fn readers(load: &mut Load) {
    load.start("list", |dir, turn| {
        if turn == 0 {
            for name in 0..400 {
                File::create(dir.join(format!("a-rather-long-name-{name}"))).unwrap();
            }
        }
        let names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let once: BTreeSet<_> = names.iter().collect();
        assert_eq!((names.len(), once.len()), (400, 400));
    });
    load.start("tree", |dir, _| {
        let tree = dir.join("t");
        fs::create_dir_all(tree.join("x/y")).unwrap();
        for name in 0..40 {
            fs::write(tree.join(format!("x/a-rather-long-name-{name}")), b"x").unwrap();
        }
        fs::remove_dir_all(&tree).unwrap();
    });
    load.start("hold", |dir, turn| {
        // As many turns with one open, removed file as deaths allow.
        let path = dir.join(format!("{turn}"));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all_at(&pattern(turn), 0).unwrap();
        fs::remove_file(&path).unwrap();
        let until = Instant::now() + Duration::from_millis(900);
        let mut bytes = vec![0; 40_000];
        while Instant::now() < until {
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert!(bytes == pattern(turn), "bytes differ");
            assert_eq!(file.metadata().unwrap().nlink(), 0);
        }
    });
    for name in ["lock-a", "lock-b"] {
        load.start(name, move |dir, _| {
            let path = dir.with_file_name("counter");
            let file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
            rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
            let mut text = [0; 8];
            let count = file.read_at(&mut text, 0).map_or(0, |_| u64::from_ne_bytes(text));
            file.write_all_at(&(count + 1).to_ne_bytes(), 0).unwrap();
            assert_eq!(file.read_at(&mut text, 0).unwrap(), 8);
            assert_eq!(u64::from_ne_bytes(text), count + 1, "two had the lock");
        });
    }
}

/// Stores through a mapping and reads them back by another way, until its input ends.
fn mapper(m: &Mounted) -> Child {
    let program = "import mmap, os, select, sys\n\
        f = open('mapped', 'w+b'); f.write(b'x' * 65536); f.flush()\n\
        m = mmap.mmap(f.fileno(), 65536); n = 0\n\
        while not select.select([sys.stdin], [], [], 0)[0]:\n\
        \x20   n += 1; at = n * 4096 % 65536; word = b'%08d' % (n % 10**8)\n\
        \x20   m[at:at + 8] = word; m.flush()\n\
        \x20   with open('mapped', 'rb') as g:\n\
        \x20       g.seek(at); assert g.read(8) == word\n";
    let mut command = Command::new("timeout");
    command.args(["-k", "2", "3600", "python3", "-c", program]).current_dir(&m.mount_point);
    command.stdin(Stdio::piped()).spawn().unwrap()
}

/// Sets a marker that nobody seals yet.
fn waiting_marker(m: &Mounted) -> Child {
    fs::create_dir(m.at("ck")).unwrap();
    fs::write(m.at("ck/f"), pattern(1)).unwrap();
    let mut command = Command::new("timeout");
    command.args(["-k", "2", "3600", "touch", "ck/.complete"]).current_dir(&m.mount_point);
    command.spawn().unwrap()
}

fn start_load(m: &Mounted) -> Load {
    let mut load =
        Load { dir: m.at("load"), stop: Arc::default(), done: Arc::default(), programs: Vec::new() };
    fs::create_dir(&load.dir).unwrap();
    writers(&mut load);
    namers(&mut load);
    readers(&mut load);
    load
}

/// All that the daemon has said, also before its log was full.
fn logs(m: &Mounted) -> String {
    let read = |name: &str| fs::read_to_string(m.control().join(name));
    read("daemon.log.1").unwrap_or_default() + &read("daemon.log").unwrap()
}

/// `count` deaths under load, while a marker waits and, with a lead, directories are made in
/// rounds.
pub(crate) fn torture(m: &Mounted, count: u32, led: bool) {
    let lead = led.then(|| Steady::start(&m.control()));
    let mut marker = led.then(|| waiting_marker(m));
    let load = start_load(m);
    let mut mapper = mapper(m);
    let (mut last, mut kills, mut seed) = (0, 0, 0x2545_f491_4f6c_dd1d_u64);
    let mut killed = Instant::now();
    while kills < count && killed.elapsed() < SUCCESSOR_MAX && !load.failed() {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        std::thread::sleep(Duration::from_millis(10 + seed % 290));
        if kill_worker(m, &mut last) {
            kills += 1;
            killed = Instant::now();
        }
    }
    let turns = load.done.load(Ordering::Relaxed);
    load.end();
    if let Some(lead) = &lead {
        lead.seal();
    }
    if let Some(mut marker) = marker.take() {
        assert!(marker.wait().unwrap().success(), "the marker saw an error");
        assert_eq!(fs::read(m.at("ck/f")).unwrap(), pattern(1));
    }
    if let Some(lead) = lead {
        let rounds = lead.end();
        assert!(rounds > u64::from(count), "{rounds} rounds");
    }
    drop(mapper.stdin.take());
    assert!(mapper.wait().unwrap().success(), "the mapping saw an error");
    assert_eq!(kills, count, "workers do not come back in time; {turns} turns");
    let log = logs(m);
    assert!(!log.contains("mounting afresh"), "{log}");
    assert!(turns > u64::from(count), "{turns} turns");
    assert!(keepers(m).len() == 1, "{:?}", keepers(m));
}

fn deaths() -> u32 {
    std::env::var("TAKEOVER_TEST_DEATHS").ok().and_then(|text| text.parse().ok()).unwrap_or(100)
}

#[test]
fn a_hundred_deaths_under_load_with_passthrough() {
    in_namespace(&[], |m| torture(m, deaths(), true));
}

#[test]
fn a_hundred_deaths_under_load_in_plain_mode() {
    in_namespace(&["--no-passthrough"], |m| torture(m, deaths(), true));
}

#[test]
fn deaths_under_load_without_a_lead() {
    both_modes(|m| torture(m, deaths() / 4, false));
}

#[cfg(feature = "faults")]
#[test]
fn deaths_between_effect_and_answer() {
    for options in [&[][..], &["--no-passthrough"]] {
        let thread = std::thread::spawn(move || {
            SLOWLY.set(SLOW);
            let m = Mounted::new(options);
            torture(&m, deaths() / 2, false);
            let log = logs(&m);
            let decided = |done| log.matches(&format!("done={done}")).count();
            assert!(decided(true) > 3, "{} {}", decided(true), decided(false));
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn reloading_under_load() {
    in_namespace(&[], |m| {
        fails(&scrfs(&["reload", "/"]).output().unwrap(), 1, "not an scrfs mount");
        let load = start_load(m);
        for _ in 0..5 {
            let worker = m.pid("worker.lock");
            let output = scrfs(&["reload"]).arg(&m.mount_point).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            assert!(has_ended(worker));
            assert_ne!(m.pid("worker.lock"), worker);
        }
        load.end();
    });
}

#[test]
fn a_worker_that_dies_by_its_own_fault_is_given_up_at_last() {
    in_namespace(&[], |m| {
        fs::write(m.at("kept"), b"kept").unwrap();
        let open = File::open(m.at("kept")).unwrap();
        let afresh = || logs(m).contains("mounting afresh");
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let remount = MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
        mount(None::<&str>, &m.mount_point, None::<&str>, remount | flags, None::<&str>).unwrap();
        for _ in 0..5 {
            assert!(!afresh());
            let worker = m.pid("worker.lock");
            kill(Pid::from_raw(worker), Signal::SIGABRT).unwrap();
            wait_until("a new worker", || m.pid("worker.lock") != worker);
        }
        assert!(afresh());
        assert_eq!(open.metadata().unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
        wait_until("a new mount", || fs::read(m.at("kept")).is_ok());
        let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let point = format!(" {} rw,nosuid,nodev,noexec,", m.mount_point.display());
        assert!(table.contains(&point), "{table}");
    });
}

#[test]
fn workers_die_before_they_serve() {
    in_namespace(&[], |m| {
        fs::write(m.at("kept"), b"kept").unwrap();
        let open = File::open(m.at("kept")).unwrap();
        // As soon as there is one, wherever it is in its start.
        let (mut last, mut kills, mut killed) = (0, 0, Instant::now());
        while kills < 40 {
            if kill_worker(m, &mut last) {
                kills += 1;
                killed = Instant::now();
            }
            assert!(killed.elapsed() < UNSEEN, "the end of the {kills}th was not seen");
            std::thread::yield_now();
        }
        wait_until("a worker", || open.metadata().is_ok());
        assert!(killed.elapsed() < UNSEEN, "the end of the last was not seen");
        let log = logs(m);
        assert!(!log.contains("mounting afresh"), "{log}");
    });
}

#[test]
fn unmounting_while_there_is_no_worker() {
    in_namespace(&[], |m| {
        let (supervisor, worker) = (m.pid("supervisor.lock"), m.pid("worker.lock"));
        // Neither sees the other's end before the mount is gone.
        kill(Pid::from_raw(supervisor), Signal::SIGSTOP).unwrap();
        kill(Pid::from_raw(worker), Signal::SIGKILL).unwrap();
        wait_until("the worker ends", || has_ended(worker));
        nix::mount::umount2(&m.mount_point, nix::mount::MntFlags::MNT_DETACH).unwrap();
        kill(Pid::from_raw(supervisor), Signal::SIGCONT).unwrap();
        wait_until("the supervisor ends", || has_ended(supervisor));
        fails(&m.unmount(&[]), 1, "not an scrfs mount");
    });
}
