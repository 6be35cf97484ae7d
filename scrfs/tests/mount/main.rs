//! The real mount: `scrfs mount` in a private mount namespace, then what ordinary programs do.
//!
//! Needs root and /dev/fuse. Every test runs in a thread of its own with its own mount namespace,
//! in passthrough mode and in plain mode.
#![cfg(feature = "fuse")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

mod asked_again;
mod direct;
mod eyes;
mod full;
mod held;
mod jobs;
mod lead;
mod limits;
mod links;
mod pages;
mod question;
mod remembered;
mod shortage;
mod stores;
mod strangers;
mod takeover;
mod unprivileged;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::{CWD, FallocateFlags, RenameFlags, XattrFlags};

use self::lead::Steady;

const SCRFS: &str = env!("CARGO_BIN_EXE_scrfs");

thread_local! {
    /// Fault points that wait, in the daemon that this thread's test starts.
    static SLOWLY: std::cell::Cell<&'static str> = const { std::cell::Cell::new("") };
    /// The daemon has two stores; datasets go to the second.
    static TWO_STORES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// One store for all, of so many MiB; 0: control and cache are apart, and there is room.
    static ONE_SMALL_STORE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

struct Mounted {
    dir: tempfile::TempDir,
    mount_point: PathBuf,
}

impl Mounted {
    fn new(options: &[&str]) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "needs root");
        assert!(Path::new("/dev/fuse").exists(), "needs /dev/fuse");
        // Between fork(2) and execve(2) a child has what is in its parent's table: what this test
        // closes must not stay open in another test's child.
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FILES)
            .expect("a private mount namespace and table of descriptors");
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let dir = tempfile::tempdir().unwrap();
        mode_of(dir.path(), 0o755);
        let mount_point = dir.path().join("scr");
        let cache = dir.path().join("cache");
        fs::create_dir(&mount_point).unwrap();
        fs::create_dir(&cache).unwrap();
        let size = Some(ONE_SMALL_STORE.get()).filter(|mib| *mib > 0).map(|mib| format!("size={mib}m"));
        mount(Some("tmpfs"), &cache, Some("tmpfs"), MsFlags::empty(), size.as_deref()).unwrap();
        fs::create_dir(dir.path().join("second")).unwrap();
        if TWO_STORES.get() {
            make_second(dir.path());
        }
        let mounted = Self { dir, mount_point };
        let output = mounted.mount(options);
        assert!(output.status.success(), "{output:?}");
        mode_of(&mounted.mount_point, 0o777);
        mounted
    }

    fn mount(&self, options: &[&str]) -> Output {
        self.mount_command(options).output().unwrap()
    }

    fn mount_command(&self, options: &[&str]) -> Command {
        // Wide windows for deaths at random; nothing without feature `faults`.
        let mut command = scrfs(&["mount", "--user", "root", "--job-id", "t"]);
        command.arg("--control-base").arg(self.control_base());
        command.arg("--cache-base").arg(self.stores());
        if TWO_STORES.get() {
            let second = self.dir.path().join("second");
            command.env("SCRFS_DESCRIPTORS", format!("0 STORE={}", second.display()));
        }
        command.env("SCRFS_FAULTS", SLOWLY.get());
        command.args(options).arg(&self.mount_point);
        command
    }

    fn stores(&self) -> std::ffi::OsString {
        let mut list = self.dir.path().join("cache").into_os_string();
        if TWO_STORES.get() {
            list.push(",");
            list.push(self.dir.path().join("second"));
        }
        list
    }

    fn unmount(&self, options: &[&str]) -> Output {
        scrfs(&["umount"]).args(options).arg(&self.mount_point).output().unwrap()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.mount_point.join(name)
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.at(name)).unwrap().mode() & 0o7777
    }

    fn control_base(&self) -> PathBuf {
        self.dir.path().join(if ONE_SMALL_STORE.get() > 0 { "cache" } else { "control" })
    }

    fn control(&self) -> PathBuf {
        self.control_base().join("root/scr.t")
    }

    fn pid(&self, lock: &str) -> i32 {
        fs::read_to_string(self.control().join(lock)).unwrap().lines().next().unwrap().parse().unwrap()
    }

    /// A shell in the mount point, as this user.
    fn shell(&self, uid: u32, script: &str) {
        let output = Command::new("timeout")
            .args(["-k", "2", "300", "bash", "-ec", script])
            .current_dir(&self.mount_point)
            .env("HOME", self.dir.path())
            .uid(uid)
            .gid(uid)
            .output()
            .unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.unmount(&["--force"]);
        let _ = umount2(&self.mount_point, MntFlags::MNT_DETACH);
        let _ = umount2(&self.dir.path().join("cache"), MntFlags::MNT_DETACH);
        let _ = umount2(&self.dir.path().join("second"), MntFlags::MNT_DETACH);
        if std::thread::panicking() {
            let log = fs::read_to_string(self.control().join("daemon.log")).unwrap_or_default();
            let _ = writeln!(std::io::stderr(), "daemon.log:\n{log}");
        }
    }
}

/// ext4 in an image, with less room than the tmpfs that is the first store.
fn make_second(dir: &Path) {
    let image = dir.join("image");
    File::create(&image).unwrap().set_len(256 << 20).unwrap();
    for command in [
        Command::new("mkfs.ext4").args(["-q", "-E", "nodiscard"]).arg(&image),
        Command::new("mount").args(["-o", "loop"]).arg(&image).arg(dir.join("second")),
    ] {
        assert!(command.status().unwrap().success(), "{command:?}");
    }
}

fn mode_of(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn scrfs(args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "2", "100", SCRFS]).args(args);
    command
}

/// Runs `test` on a fresh mount, in passthrough and in plain mode.
fn both_modes(test: fn(&Mounted)) {
    in_namespace(&[], test);
    in_namespace(&["--no-passthrough"], test);
}

/// The namespace is the thread's.
fn in_namespace(options: &'static [&'static str], test: fn(&Mounted)) {
    on_a_thread(move || test(&Mounted::new(options)));
}

/// What `test` sets for its thread, also the namespace, is nobody else's.
fn on_a_thread(test: impl FnOnce() + Send + 'static) {
    if let Err(panic) = std::thread::spawn(test).join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn data_in_all_ways() {
    both_modes(|m| {
        let path = m.at("f");
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all(b"hello world").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 11);
        assert_eq!(fs::read(&path).unwrap(), b"hello world");
        file.set_len(5).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        file.sync_all().unwrap();
        file.sync_data().unwrap();

        let mut one = OpenOptions::new().append(true).open(&path).unwrap();
        let mut two = OpenOptions::new().append(true).open(&path).unwrap();
        one.write_all(b"1").unwrap();
        two.write_all(b"2").unwrap();
        one.write_all(b"3").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"hello123");
        fs::write(&path, b"anew").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 4, "O_TRUNC");

        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 65536).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 65536);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 4096, 61440).unwrap();
        let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap();
        assert!(hole >= 4096, "{hole}");
    });
}

#[test]
fn data_of_big_removed_mapped_and_executed_files() {
    both_modes(|m| {
        fs::write(m.at("big"), vec![7_u8; 3 << 20]).unwrap();
        assert_eq!(fs::copy(m.at("big"), m.at("copy")).unwrap(), 3 << 20);
        assert_eq!(fs::read(m.at("copy")).unwrap(), vec![7_u8; 3 << 20]);
        OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(m.at("big")).unwrap();
        m.shell(0, "dd if=big of=d2 bs=1M oflag=direct status=none; cmp big d2");

        let gone = File::open(m.at("copy")).unwrap();
        fs::remove_file(m.at("copy")).unwrap();
        let mut first = [0; 4];
        gone.read_exact_at(&mut first, 1 << 20).unwrap();
        assert_eq!((first, gone.metadata().unwrap().nlink()), ([7; 4], 0));
        m.shell(0, "cp /bin/true exe; ./exe; flock f true");
        m.shell(
            0,
            "python3 - <<'E'\n\
            import mmap\n\
            f = open('m', 'w+b'); f.write(b'x' * 8192); f.flush()\n\
            m = mmap.mmap(f.fileno(), 8192); m[0:5] = b'store'; m.flush()\n\
            assert open('m', 'rb').read(5) == b'store'\nE",
        );
    });
}

#[test]
fn names_in_all_ways() {
    both_modes(|m| {
        fs::write(m.at("a"), b"a").unwrap();
        fs::hard_link(m.at("a"), m.at("b")).unwrap();
        let (a, b) = (fs::metadata(m.at("a")).unwrap(), fs::metadata(m.at("b")).unwrap());
        assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
        symlink("a", m.at("s")).unwrap();
        assert_eq!(fs::read_link(m.at("s")).unwrap(), Path::new("a"));
        assert_eq!(fs::read(m.at("s")).unwrap(), b"a");
        fs::write(m.at("c"), b"c").unwrap();
        let rename =
            |from: &str, to: &str, flags| rustix::fs::renameat_with(CWD, m.at(from), CWD, m.at(to), flags);
        assert_eq!(rename("a", "c", RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
        rename("a", "c", RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read(m.at("a")).unwrap(), b"c");
        assert_eq!(fs::read(m.at("c")).unwrap(), b"a");
        rename("a", "c", RenameFlags::empty()).unwrap();
        assert_eq!(fs::read(m.at("c")).unwrap(), b"c");
        assert!(fs::metadata(m.at("a")).is_err());
    });
}

#[test]
fn directories_in_all_ways() {
    both_modes(|m| {
        fs::create_dir_all(m.at("d/e")).unwrap();
        fs::write(m.at("d/e/f"), b"deep").unwrap();
        assert_eq!(fs::remove_dir(m.at("d")).unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
        fs::rename(m.at("d/e"), m.at("g")).unwrap();
        assert_eq!(fs::read(m.at("g/f")).unwrap(), b"deep");
        fs::rename(m.at("g"), m.at("h")).unwrap();
        fs::write(m.at("h/f2"), b"x").unwrap();
        let mut names: Vec<_> = fs::read_dir(m.at("h")).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["f", "f2"]);
        assert_eq!(fs::create_dir(m.at("h")).unwrap_err().raw_os_error(), Some(libc::EEXIST));
        m.shell(0, "mkfifo p; (echo through > p &) ; read x < p; test $x = through");
        assert!(fs::metadata(m.at("p")).unwrap().file_type().is_fifo());
        m.shell(
            0,
            "mkdir many; for i in $(seq 3000); do echo $i > many/$i; done; \
            test $(ls many | wc -l) = 3000; rm -rf many h d p",
        );
        assert!(!m.at("many").exists());
    });
}

#[test]
fn files_belong_to_their_makers() {
    both_modes(|m| {
        m.shell(1000, "umask 027; echo x > f; mkdir d; ln -s f l; mkfifo p; touch d/g");
        for name in ["f", "d", "l", "p", "d/g"] {
            let meta = fs::symlink_metadata(m.at(name)).unwrap();
            assert_eq!((meta.uid(), meta.gid()), (1000, 1000), "{name}");
        }
        assert_eq!((m.mode("f"), m.mode("d")), (0o640, 0o750));
        fs::write(m.at("secret"), b"x").unwrap();
        mode_of(&m.at("secret"), 0o600);
        m.shell(
            1000,
            "! cat secret 2>/dev/null; ! echo y 2>/dev/null > secret; ! chmod 644 secret 2>/dev/null",
        );

        fs::create_dir(m.at("shared")).unwrap();
        chown(m.at("shared"), Some(0), Some(777)).unwrap();
        mode_of(&m.at("shared"), 0o2777);
        m.shell(1000, "touch shared/f; mkdir shared/d");
        let (f, d) = (fs::metadata(m.at("shared/f")).unwrap(), fs::metadata(m.at("shared/d")).unwrap());
        assert_eq!((f.uid(), f.gid(), d.gid(), d.mode() & 0o2000), (1000, 777, 777, 0o2000));
    });
}

#[test]
fn modes_and_times() {
    both_modes(|m| {
        m.shell(1000, "touch s; chmod 6755 s; test $(stat -c %a s) = 6755");
        m.shell(1000, "echo x >> s; test $(stat -c %a s) = 755");
        m.shell(1000, "chmod 6755 s; truncate -s 0 s; test $(stat -c %a s) = 755");
        mode_of(&m.at("s"), 0o4755);
        chown(m.at("s"), Some(0), Some(0)).unwrap();
        assert_eq!(m.mode("s"), 0o755);
        m.shell(
            1000,
            "touch -d '2001-02-03 04:05:06.789' f; test \"$(stat -c %y f | cut -c1-23)\" = '2001-02-03 04:05:06.789'",
        );
        m.shell(1000, "install -m 444 /dev/null ro; test $(stat -c %a ro) = 444");
        m.shell(
            1000,
            "python3 -c \"import os; fd = os.open('w0', os.O_CREAT | os.O_RDWR, 0); os.write(fd, b'x')\"",
        );
        assert_eq!((m.mode("w0"), fs::read(m.at("w0")).unwrap()), (0, b"x".to_vec()));
    });
}

#[test]
fn extended_attributes_and_room() {
    both_modes(|m| {
        let path = m.at("f");
        fs::write(&path, b"x").unwrap();
        rustix::fs::setxattr(&path, "user.k", b"value", XattrFlags::CREATE).unwrap();
        let again = rustix::fs::setxattr(&path, "user.k", b"2", XattrFlags::CREATE);
        assert_eq!(again, Err(rustix::io::Errno::EXIST));
        let mut value = [0; 16];
        let length = rustix::fs::getxattr(&path, "user.k", &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"value");
        let length = rustix::fs::listxattr(&path, &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"user.k\0");
        rustix::fs::removexattr(&path, "user.k").unwrap();
        let gone = rustix::fs::getxattr(&path, "user.k", &mut value[..]);
        assert_eq!(gone, Err(rustix::io::Errno::NODATA));
        let here = rustix::fs::statvfs(&m.mount_point).unwrap();
        let there = rustix::fs::statvfs(m.dir.path().join("cache")).unwrap();
        assert_eq!((here.f_blocks, here.f_namemax), (there.f_blocks, there.f_namemax));
    });
}

#[test]
fn programs_that_use_it_all() {
    both_modes(|m| {
        m.shell(
            1000,
            "mkdir w; cd w; git init -q r; cd r; git config user.email a@b; git config user.name a; \
            for i in $(seq 50); do mkdir -p d$i; echo $i > d$i/f; done; git add .; git commit -qm one; \
            git gc -q; git fsck --strict; cd ..; git clone -q r c; diff -r --exclude .git r c; \
            tar cf r.tar r; mkdir x; tar xf r.tar -C x; diff -r r x/r; cp -a r y; diff -r r y; rm -rf r c x y",
        );
    });
}

#[test]
fn a_marker_that_nobody_can_seal_fails() {
    both_modes(|m| {
        m.shell(
            1000,
            "mkdir ck; echo data > ck/f; ! touch ck/.complete 2>/dev/null; ! test -e ck/.complete; \
            ! touch ck/.complete 2>/dev/null; ls -A ck > list; test \"$(cat list)\" = f; rm -rf ck",
        );
        assert!(!m.at("ck").exists());
    });
}

#[test]
fn a_marker_that_was_removed_while_it_was_open_seals_nothing() {
    both_modes(|m| {
        let lead = Steady::with_sealed(m);
        m.shell(
            0,
            "exec 3<>ck/.complete; rm -r ck; python3 -c '
import os
try:
    os.close(3)
except OSError as error:
    assert error.errno == 5, error
else:
    raise SystemExit(\"its program would take the checkpoint for safe\")
'",
        );
        assert!(!m.at("ck").exists());
        lead.end();
    });
}

#[test]
fn the_kernel_moves_the_data() {
    in_namespace(&[], |m| {
        let before = process_io(m.pid("worker.lock"));
        fs::write(m.at("f"), vec![1_u8; 8 << 20]).unwrap();
        let moved = process_io(m.pid("worker.lock")) - before;
        assert!(moved < 1 << 20, "{moved} bytes went through the daemon: no passthrough here?");
    });
}

/// Bytes that a process has read and written by system calls.
fn process_io(pid: i32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    let field =
        |name: &str| io.lines().find_map(|l| l.strip_prefix(name)?.trim().parse::<u64>().ok()).unwrap();
    field("rchar:") + field("wchar:")
}

fn fails(output: &Output, code: i32, text: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(code) && stderr.contains(text), "{output:?}");
}

fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_mins(1);
    while !happened() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Gone, or a zombie that its parent has not asked for.
fn has_ended(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

#[test]
fn mounting_and_unmounting() {
    in_namespace(&[], |m| {
        assert!(m.mount(&[]).status.success(), "it is done already");
        let mut other = scrfs(&["mount", "--job-id", "other", "--control-base"]);
        other.arg(m.dir.path().join("control")).arg("--cache-base").arg(m.stores()).arg(&m.mount_point);
        fails(&other.output().unwrap(), 1, "hint: ");
        fails(&scrfs(&["mount", "/etc/passwd"]).output().unwrap(), 1, "not a directory");
        fails(&scrfs(&["umount", "/"]).output().unwrap(), 1, "not an scrfs mount");
        for verb in ["umount", "reload"] {
            let missing = scrfs(&[verb, "/nonexistent/scr"]).output().unwrap();
            fails(&missing, 1, "/nonexistent/scr");
            assert!(!String::from_utf8_lossy(&missing.stderr).contains("mkdir"), "{missing:?}");
        }
        for (option, value) in [("--job-id", "a/b"), ("--checkpoint-path", ".scrfs"), ("--cache-base", "rel")]
        {
            fails(&scrfs(&["mount", option, value, "/nonexistent"]).output().unwrap(), 2, "hint: ");
        }

        fs::write(m.at("kept"), b"kept").unwrap();
        let open = File::open(m.at("kept")).unwrap();
        fails(&m.unmount(&[]), 1, "in use");
        drop(open);
        let (supervisor, worker) = (m.pid("supervisor.lock"), m.pid("worker.lock"));
        let output = m.unmount(&[]);
        assert!(output.status.success(), "{output:?}");
        assert!(has_ended(supervisor) && has_ended(worker), "a process is left");
        assert!(m.mount(&[]).status.success());
        assert_eq!(fs::read(m.at("kept")).unwrap(), b"kept");

        let open = File::open(m.at("kept")).unwrap();
        let (supervisor, worker) = (m.pid("supervisor.lock"), m.pid("worker.lock"));
        assert!(m.unmount(&["--force"]).status.success());
        assert!(has_ended(supervisor) && has_ended(worker), "a process is left");
        drop(open);

        assert!(m.mount(&[]).status.success());
        let supervisor = m.pid("supervisor.lock");
        kill(Pid::from_raw(supervisor), Signal::SIGTERM).unwrap();
        wait_until("the supervisor ends", || has_ended(supervisor));
        fails(&m.unmount(&[]), 1, "not an scrfs mount");
    });
}

#[test]
fn the_mode_of_a_new_mounts_root_is_the_administrators() {
    in_namespace(&[], |m| {
        assert!(m.unmount(&[]).status.success());
        let mounts = |job: &str, mode: &str| {
            let mut command = scrfs(&["mount", "--user", "root", "--job-id", job, "--control-base"]);
            command.arg(m.control_base()).arg("--cache-base").arg(m.stores()).env("SCRFS_MODE", mode);
            command.arg(&m.mount_point).output().unwrap()
        };
        for (job, mode, group) in [("g", "0750", true), ("u", "0700", false)] {
            let mounted = mounts(job, mode);
            assert!(mounted.status.success(), "{mounted:?}");
            assert_eq!(m.mode("."), u32::from_str_radix(mode, 8).unwrap());
            fs::write(m.at("f"), b"x").unwrap();
            // Of root's group, and of another.
            for (gid, may) in [(0, group), (1000, false)] {
                let mut list = Command::new("timeout");
                list.args(["-k", "2", "300", "ls"]).arg(&m.mount_point).uid(1000).gid(gid);
                let list = list.output().unwrap();
                assert_eq!(list.status.success(), may, "{mode}, group {gid}: {list:?}");
            }
            // It is the mount's from then on.
            assert!(m.unmount(&[]).status.success());
            assert!(mounts(job, "0755").status.success());
            assert_eq!(m.mode("."), u32::from_str_radix(mode, 8).unwrap(), "a mount that was there before");
            assert!(m.unmount(&[]).status.success());
        }
    });
}

#[test]
fn a_dead_worker_is_replaced_and_a_dead_mount_is_cleaned() {
    in_namespace(&[], |m| {
        fs::write(m.at("kept"), b"kept").unwrap();
        let worker = m.pid("worker.lock");
        kill(Pid::from_raw(worker), Signal::SIGKILL).unwrap();
        wait_until("a new worker", || fs::read(m.at("kept")).is_ok());
        assert_ne!(m.pid("worker.lock"), worker);

        let (supervisor, worker) = (m.pid("supervisor.lock"), m.pid("worker.lock"));
        kill(Pid::from_raw(supervisor), Signal::SIGKILL).unwrap();
        assert_eq!(fs::read(m.at("kept")).unwrap(), b"kept", "the worker goes on alone");
        kill(Pid::from_raw(worker), Signal::SIGKILL).unwrap();
        wait_until("the worker ends", || has_ended(worker));
        wait_until("a dead mount", || {
            fs::metadata(m.at("kept")).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN))
        });
        let output = m.mount(&[]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(fs::read(m.at("kept")).unwrap(), b"kept");
    });
}
