//! Longer stories. Each is told in a directory of its own on either side; the two transcripts must
//! be equal.

use std::fmt::{Debug, Write as _};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, FallocateFlags, FlockOperation, Mode, OFlags, Timespec, Timestamps};

use super::fence::{Map, lock_bytes, pwritev2};
use super::place::{WAYS, in_place};

/// What a story tells.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tale {
    text: String,
    /// It is told where the daemon serves file data, and the kernel caches that.
    pub cached: bool,
}

impl Tale {
    pub fn say(&mut self, what: &str, value: impl Debug) {
        let _ = writeln!(self.text, "{what}: {value:?}");
    }

    fn io<T: Debug>(&mut self, what: &str, outcome: std::io::Result<T>) {
        self.say(what, outcome.map_err(|e| e.raw_os_error()));
    }

    fn os<T: Debug>(&mut self, what: &str, outcome: rustix::io::Result<T>) {
        self.say(what, outcome.map_err(rustix::io::Errno::raw_os_error));
    }
}

fn both_ways(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn filled(path: &Path, bytes: usize) -> File {
    let mut file = both_ways(path);
    file.write_all(&(0..bytes).map(|n| n.to_le_bytes()[0]).collect::<Vec<_>>()).unwrap();
    file
}

fn appending(dir: &Path, tale: &mut Tale) {
    let open = || OpenOptions::new().append(true).read(true).create(true).open(dir.join("log")).unwrap();
    let (mut one, mut two) = (open(), open());
    for n in 0..5 {
        one.write_all(format!("one {n} ").as_bytes()).unwrap();
        two.write_all(format!("two {n} ").as_bytes()).unwrap();
    }
    tale.io("pwrite of an appending file", one.write_at(b"AT0", 0));
    let plain = both_ways(&dir.join("log"));
    tale.say("RWF_APPEND", pwritev2(plain.as_fd(), b"END", 0, libc::RWF_APPEND));
    tale.say("RWF_DSYNC", pwritev2(plain.as_fd(), b"D", 3, libc::RWF_DSYNC));
    tale.say("text", fs::read_to_string(dir.join("log")).unwrap());
    // F_SETFL turns appending on and off.
    rustix::fs::fcntl_setfl(&plain, OFlags::APPEND).unwrap();
    (&plain).write_all(b"tail").unwrap();
    rustix::fs::fcntl_setfl(&plain, OFlags::empty()).unwrap();
    (&plain).seek(SeekFrom::Start(1)).unwrap();
    (&plain).write_all(b"head").unwrap();
    tale.say("text", fs::read_to_string(dir.join("log")).unwrap());
}

fn mapping(dir: &Path, tale: &mut Tale) {
    let path = dir.join("m");
    let file = filled(&path, 10_000);
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let shared = Map::new(file.as_fd(), 10_000, both, libc::MAP_SHARED).unwrap();
    let private = Map::new(file.as_fd(), 10_000, both, libc::MAP_PRIVATE).unwrap();
    shared.store(5000, b'S');
    private.store(5001, b'P');
    tale.say("private sees shared", (private.load(5000), shared.load(5001)));
    shared.sync().unwrap();
    let before = fs::metadata(&path).unwrap();
    drop(file);
    shared.store(5002, b'T');
    tale.say("msync after close", shared.sync());
    let mut bytes = [0; 3];
    File::open(&path).unwrap().read_exact_at(&mut bytes, 5000).unwrap();
    tale.say("read", bytes);
    tale.say("size", fs::metadata(&path).unwrap().len() == before.len());
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    tale.say("map of a write-only file", Map::new(writer.as_fd(), 10, both, libc::MAP_SHARED).err());
    let reader = File::open(&path).unwrap();
    tale.say("writable map of a reader", Map::new(reader.as_fd(), 10, both, libc::MAP_SHARED).err());
    let seen = Map::new(reader.as_fd(), 10_000, libc::PROT_READ, libc::MAP_SHARED).unwrap();
    writer.write_all_at(b"W", 7).unwrap();
    tale.say("a write shows in a map", seen.load(7));
    fs::remove_file(&path).unwrap();
    shared.store(1, b'x');
    tale.say("the map of a removed file", shared.load(1));
}

fn mapped_times(dir: &Path, tale: &mut Tale) {
    let path = dir.join("m");
    let file = filled(&path, 4096);
    let map = Map::new(file.as_fd(), 4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED).unwrap();
    let before = fs::metadata(&path).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    map.store(0, b'x');
    map.sync().unwrap();
    let after = fs::metadata(&path).unwrap();
    tale.say("mtime moved", (before.mtime(), before.mtime_nsec()) < (after.mtime(), after.mtime_nsec()));
    tale.say("ctime moved", (before.ctime(), before.ctime_nsec()) < (after.ctime(), after.ctime_nsec()));
}

fn direct(dir: &Path, tale: &mut Tale) {
    let open = |flags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).custom_flags(flags).open(dir.join("d"))
    };
    let file = open(libc::O_DIRECT).unwrap();
    let space = vec![7_u8; 3 * 4096];
    let from = space.as_ptr().align_offset(4096);
    tale.io("aligned write", file.write_at(&space[from..from + 8192], 4096));
    let mut back = vec![0_u8; 4 * 4096];
    let at = back.as_ptr().align_offset(4096);
    tale.io("aligned read", file.read_at(&mut back[at..at + 12288], 0));
    tale.say("bytes", (back[at + 4095], back[at + 4096], back[at + 12287]));
    let buffered = open(0).unwrap();
    buffered.write_all_at(b"mixed", 4096).unwrap();
    tale.io("direct read after a buffered write", file.read_at(&mut back[at..at + 4096], 4096));
    tale.say("bytes", &back[at..at + 6]);
    file.write_all_at(&space[from..from + 4096], 4096).unwrap();
    tale.io("buffered read after a direct write", buffered.read_at(&mut back[..5], 4096));
    tale.say("bytes", &back[..5]);
    let synced = open(libc::O_SYNC).unwrap();
    tale.io("O_SYNC", synced.write_at(b"s", 0));
    tale.io("fdatasync", synced.sync_data());
}

fn sparse(dir: &Path, tale: &mut Tale) {
    let file = both_ways(&dir.join("s"));
    let big = 5_u64 << 30;
    file.write_all_at(b"end", big).unwrap();
    tale.say("size", file.metadata().unwrap().len());
    for (what, to) in [
        ("data from 0", rustix::fs::SeekFrom::Data(0)),
        ("hole from 0", rustix::fs::SeekFrom::Hole(0)),
        ("hole from the end", rustix::fs::SeekFrom::Hole(big)),
        ("data past it", rustix::fs::SeekFrom::Data(big + 3)),
        ("hole past it", rustix::fs::SeekFrom::Hole(big + 9)),
    ] {
        tale.os(what, rustix::fs::seek(&file, to));
    }
    let mut bytes = [9; 8];
    tale.io("read over the edge", file.read_at(&mut bytes, big - 2));
    tale.say("bytes", bytes);
    let (keep, punch) = (FallocateFlags::KEEP_SIZE, FallocateFlags::PUNCH_HOLE);
    tale.os("allocate", rustix::fs::fallocate(&file, FallocateFlags::empty(), 1 << 20, 1 << 20));
    tale.os("past the end", rustix::fs::fallocate(&file, keep, big + 4096, 4096));
    tale.os("punch", rustix::fs::fallocate(&file, keep | punch, 1 << 20, 4096));
    tale.os("punch without keep", rustix::fs::fallocate(&file, punch, 0, 4096));
    tale.os("nothing", rustix::fs::fallocate(&file, keep, 0, 0));
    tale.say("size", file.metadata().unwrap().len());
    tale.io("4 GiB and one", file.set_len((4 << 30) + 1).and_then(|()| file.metadata().map(|m| m.len())));
    tale.io("too big", file.set_len(i64::MAX as u64));
    let reader = File::open(dir.join("s")).unwrap();
    tale.os("allocate by a reader", rustix::fs::fallocate(&reader, keep, 0, 10));
}

fn copying(dir: &Path, tale: &mut Tale) {
    let (a, b) = (filled(&dir.join("a"), 100_000), both_ways(&dir.join("b")));
    let mut copy = |what: &str, from: &File, at: u64, to: &File, to_at: u64, length: usize| {
        let (mut at, mut to_at) = (at, to_at);
        let copied = rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut to_at), length);
        tale.os(what, copied);
    };
    copy("whole", &a, 0, &b, 0, 200_000);
    copy("middle", &a, 10, &b, 5000, 4000);
    copy("past the end", &a, 100_000, &b, 0, 10);
    copy("sparse target", &a, 0, &b, 1 << 20, 100);
    copy("overlapping", &a, 0, &a, 10, 100);
    copy("same file", &a, 0, &a, 200_000, 100);
    copy("nothing", &a, 0, &b, 0, 0);
    copy("from a writer", &OpenOptions::new().write(true).open(dir.join("a")).unwrap(), 0, &b, 0, 10);
    copy("to a reader", &a, 0, &File::open(dir.join("b")).unwrap(), 0, 10);
    copy("to an appender", &a, 0, &OpenOptions::new().append(true).open(dir.join("b")).unwrap(), 0, 10);
    copy("to a directory", &a, 0, &File::open(dir).unwrap(), 0, 10);
    tale.say("crc", [dir.join("a"), dir.join("b")].map(|p| crc32fast::hash(&fs::read(p).unwrap())));
    let mut sink = both_ways(&dir.join("c"));
    let mut at = 5;
    tale.os("sendfile", rustix::fs::sendfile(&sink, &a, Some(&mut at), 1000));
    tale.io("copied", std::io::copy(&mut File::open(dir.join("a")).unwrap(), &mut sink));
}

fn removed(dir: &Path, tale: &mut Tale) {
    let path = dir.join("gone");
    let file = filled(&path, 1000);
    fs::remove_file(&path).unwrap();
    tale.say("links", file.metadata().unwrap().nlink());
    tale.io("write", file.write_at(b"still", 2000));
    tale.io("truncate", file.set_len(5000));
    tale.io("mode", file.set_permissions(Permissions::from_mode(0o640)));
    tale.say("mode", file.metadata().unwrap().mode());
    tale.os("xattr", rustix::fs::fsetxattr(&file, "user.x", b"1", rustix::fs::XattrFlags::empty()));
    tale.os("allocate", rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 9000));
    tale.io("sync", file.sync_all());
    let proc = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    let again = File::open(&proc).and_then(|f| f.metadata()).map(|m| m.len());
    assert!(again.is_ok(), "{again:?}");
    tale.io("open again", again);
    let link = rustix::fs::linkat(CWD, &*proc, CWD, dir.join("back"), rustix::fs::AtFlags::SYMLINK_FOLLOW);
    tale.os("link", link);
    let over = filled(&dir.join("over"), 10);
    fs::write(dir.join("new"), b"new").unwrap();
    fs::rename(dir.join("new"), dir.join("over")).unwrap();
    tale.say("replaced", (over.metadata().unwrap().nlink(), over.metadata().unwrap().len()));
    fs::create_dir(dir.join("d")).unwrap();
    let inside = File::open(dir.join("d")).unwrap();
    fs::remove_dir(dir.join("d")).unwrap();
    tale.say("removed directory", inside.metadata().unwrap().nlink());
    tale.os(
        "file in it",
        rustix::fs::openat(&inside, "f", OFlags::CREATE | OFlags::RDWR, Mode::RUSR).map(drop),
    );
    tale.os("directory in it", rustix::fs::mkdirat(&inside, "f", Mode::RWXU));
    tale.say("listed", super::perform::list(&inside));
}

fn executing(dir: &Path, tale: &mut Tale) {
    let program = dir.join("sleep");
    fs::copy("/bin/sleep", &program).unwrap();
    let writer = OpenOptions::new().write(true).open(&program).unwrap();
    tale.io("exec while it is written", Command::new(&program).arg("0").status().map(|s| s.success()));
    drop(writer);
    let mut child = Command::new(&program).arg("20").spawn().unwrap();
    tale.io("write while it runs", OpenOptions::new().write(true).open(&program).map(drop));
    let truncating = OFlags::RDONLY | OFlags::TRUNC;
    tale.os("truncate at open", rustix::fs::open(&program, truncating, Mode::empty()).map(drop));
    tale.io("it is whole", fs::metadata(&program).map(|now| now.len() > 0));
    tale.os(
        "truncate",
        nix::unistd::truncate(&program, 0).map_err(|e| rustix::io::Errno::from_raw_os_error(e as i32)),
    );
    tale.io(
        "replace",
        fs::copy("/bin/true", dir.join("t")).and_then(|_| fs::rename(dir.join("t"), &program)),
    );
    child.kill().unwrap();
    child.wait().unwrap();
    fs::write(dir.join("script"), "#!/bin/sh\nexit 7\n").unwrap();
    fs::set_permissions(dir.join("script"), Permissions::from_mode(0o755)).unwrap();
    tale.io("script", Command::new(dir.join("script")).status().map(|s| s.code()));
    fs::set_permissions(dir.join("script"), Permissions::from_mode(0o644)).unwrap();
    tale.io("no right", Command::new(dir.join("script")).status().map(|s| s.code()));
}

fn odd_files(dir: &Path, tale: &mut Tale) {
    let path = dir.join("p");
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    fs::write(&path, b"opaque").unwrap();
    let opaque: File = rustix::fs::open(&path, flags, Mode::empty()).unwrap().into();
    tale.say(
        "O_PATH",
        (opaque.metadata().unwrap().len(), (&opaque).read(&mut [0]).map_err(|e| e.raw_os_error())),
    );
    tale.os("fchmod", rustix::fs::fchmod(&opaque, Mode::RWXU));
    tale.io("reopened", fs::read_to_string(format!("/proc/thread-self/fd/{}", opaque.as_raw_fd())));
    std::os::unix::fs::symlink("p", dir.join("l")).unwrap();
    let link = rustix::fs::open(dir.join("l"), flags, Mode::empty()).unwrap();
    tale.os("link through its descriptor", rustix::fs::readlinkat(&link, "", Vec::new()));
    let listener = UnixListener::bind(dir.join("sock")).unwrap();
    let client = UnixStream::connect(dir.join("sock")).and_then(|mut s| s.write_all(b"hi"));
    tale.io("socket", client);
    let mut text = String::new();
    listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
    tale.say("said", text);
    tale.io("bind again", UnixListener::bind(dir.join("sock")).map(drop));
    nix::unistd::mkfifo(&dir.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut fifo = OpenOptions::new().read(true).write(true).open(dir.join("fifo")).unwrap();
    fifo.write_all(b"through").unwrap();
    let mut bytes = [0; 7];
    fifo.read_exact(&mut bytes).unwrap();
    tale.say("fifo", bytes);
}

/// How a directory goes, and what that is called.
type Removal = (&'static str, fn(&Path));

/// What is left of a directory for those who are in it, or have it open.
fn removed_directories(dir: &Path, tale: &mut Tale) {
    let path = dir.join("d");
    let removals: [Removal; 2] = [
        ("removed", |path| fs::remove_dir(path).unwrap()),
        ("replaced", |path| {
            let other = path.with_extension("other");
            fs::create_dir(&other).unwrap();
            fs::rename(other, path).unwrap();
        }),
    ];
    for (how, flags) in [("known", OFlags::PATH), ("open", OFlags::RDONLY)] {
        for (what, remove) in removals {
            let _ = fs::create_dir(&path);
            let held = rustix::fs::open(&path, flags | OFlags::DIRECTORY, Mode::empty()).unwrap();
            remove(&path);
            tale.say("directory", (how, what));
            tale.os("stat", rustix::fs::fstat(&held).map(|stat| (stat.st_mode, stat.st_uid)));
            let here = |flags| rustix::fs::openat(&held, ".", flags, Mode::empty());
            tale.os("open", here(OFlags::RDONLY).map(drop));
            let listed = here(OFlags::RDONLY)
                .and_then(rustix::fs::Dir::new)
                .map(|mut entries| std::iter::from_fn(|| entries.read()).filter_map(Result::ok).count());
            tale.os("names", listed);
            tale.os("name", rustix::fs::statat(&held, "x", rustix::fs::AtFlags::empty()).map(drop));
            tale.os("make", rustix::fs::mkdirat(&held, "x", Mode::RWXU));
            let create = OFlags::CREATE | OFlags::WRONLY;
            tale.os("create", rustix::fs::openat(&held, "x", create, Mode::RWXU).map(drop));
            tale.os("mode", rustix::fs::chmodat(&held, ".", Mode::RWXU, rustix::fs::AtFlags::empty()));
        }
    }
}

fn times(dir: &Path, tale: &mut Tale) {
    let file = filled(&dir.join("t"), 1);
    for (secs, nanos) in [
        (-1, 999_999_999),
        (-2_000_000_000, 1),
        (-3_000_000_000, 5),
        (0, 0),
        (2_147_483_648, 7),
        (4_294_967_296, 8),
        (15_032_385_535, 9),
        (20_000_000_000, 10),
        (i64::MAX, 11),
        (i64::MIN, 0),
        (i64::MIN, 12),
        (i64::MIN + 1, 13),
    ] {
        let time = Timespec { tv_sec: secs, tv_nsec: nanos };
        let set = rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time });
        tale.os("set", set);
        let meta = file.metadata().unwrap();
        tale.say("times", (meta.atime(), meta.atime_nsec(), meta.mtime(), meta.mtime_nsec()));
    }
    let bad = Timespec { tv_sec: 0, tv_nsec: 1_000_000_000 };
    tale.os("bad", rustix::fs::futimens(&file, &Timestamps { last_access: bad, last_modification: bad }));
}

fn attributes(dir: &Path, tale: &mut Tale) {
    let path = dir.join("x");
    fs::write(&path, b"").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    let set = |name: &str, length: usize| rustix::fs::setxattr(&path, name, &vec![b'v'; length], flags);
    let long = format!("user.{}", "n".repeat(250));
    tale.os("longest name", set(&long, 1));
    tale.os("too long a name", set(&format!("{long}n"), 1));
    tale.os("3000 bytes", set("user.big", 3000));
    tale.os("too much", set("user.huge", 65537));
    tale.os("no space for names", rustix::fs::listxattr(&path, &mut [0_u8; 3][..]));
    tale.os("no space for a value", rustix::fs::getxattr(&path, "user.big", &mut [0_u8; 3][..]));
    tale.os("empty", set("user.empty", 0));
    tale.os("empty", rustix::fs::getxattr(&path, "user.empty", &mut [0_u8; 9][..]));
    let caps = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    tale.os("capability", rustix::fs::setxattr(&path, "security.capability", &caps, flags));
    let mut value = [0_u8; 64];
    tale.os("capability", rustix::fs::getxattr(&path, "security.capability", &mut value[..]));
    fs::write(&path, b"changed").unwrap();
    tale.os("after a write", rustix::fs::getxattr(&path, "security.capability", &mut value[..]));
}

fn room(dir: &Path, tale: &mut Tale) {
    let room = rustix::fs::statvfs(dir).unwrap();
    tale.say("room", (room.f_bsize, room.f_frsize, room.f_blocks, room.f_files, room.f_namemax));
}

fn deep(dir: &Path, tale: &mut Tale) {
    let mut at = File::open(dir).unwrap();
    let name = "d".repeat(200);
    let mut depth = 0;
    // 16 times 201 bytes: as deep as one path can say.
    for _ in 0..16 {
        rustix::fs::mkdirat(&at, &*name, Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, &*name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
            .unwrap()
            .into();
        depth += 1;
    }
    tale.say("depth", depth);
    let file = rustix::fs::openat(&at, "f", OFlags::CREATE | OFlags::RDWR, Mode::RWXU);
    tale.os("file", file.map(drop));
    tale.say("listed", super::perform::list(&at));
    let moved = rustix::fs::renameat(&at, "f", &at, "g");
    tale.os("renamed", moved);
    fs::remove_dir_all(dir.join(&name)).unwrap();
}

/// Eight that take turns: a number in a file is read, incremented and written under a lock.
fn locks(dir: &Path, tale: &mut Tale) {
    for kind in ["flock", "fcntl"] {
        let path = dir.join(kind);
        fs::write(&path, b"0").unwrap();
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || {
                    let file = both_ways(&path);
                    for _ in 0..40 {
                        if kind == "flock" {
                            rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
                        } else {
                            lock_bytes(file.as_fd(), libc::F_WRLCK, 0, 0, true).unwrap();
                        }
                        let number: u32 = fs::read_to_string(&path).unwrap().parse().unwrap();
                        file.write_all_at((number + 1).to_string().as_bytes(), 0).unwrap();
                        if kind == "flock" {
                            rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
                        } else {
                            lock_bytes(file.as_fd(), libc::F_UNLCK, 0, 0, true).unwrap();
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        tale.say(kind, fs::read_to_string(&path).unwrap());
    }
    let (one, two) = (both_ways(&dir.join("fcntl")), both_ways(&dir.join("fcntl")));
    tale.say("shared", lock_bytes(one.as_fd(), libc::F_RDLCK, 0, 10, false));
    tale.say("shared too", lock_bytes(two.as_fd(), libc::F_RDLCK, 5, 10, false));
    tale.say("exclusive", lock_bytes(two.as_fd(), libc::F_WRLCK, 5, 1, false));
    tale.say("elsewhere", lock_bytes(two.as_fd(), libc::F_WRLCK, 20, 1, false));
}

type Story = fn(&Path, &mut Tale);

const STORIES: [(&str, Story); 17] = [
    ("appending", appending),
    ("mapping", mapping),
    ("mapped_times", mapped_times),
    ("direct", direct),
    ("sparse", sparse),
    ("copying", copying),
    ("removed", removed),
    ("executing", executing),
    ("odd_files", odd_files),
    ("removed_directories", removed_directories),
    ("times", times),
    ("attributes", attributes),
    ("room", room),
    ("deep", deep),
    ("locks", locks),
    ("many", super::crowds::many),
    ("coming_and_going", super::crowds::coming_and_going),
];

#[test]
fn stories_are_the_same() {
    let mut differences = Vec::new();
    for way in WAYS {
        let scope = way.one_scope();
        differences.extend(in_place(way, move |place| {
            let mut differences = Vec::new();
            for (name, story) in STORIES {
                let (native, mounted) = place.pair(scope, name);
                let told = [(native, false), (mounted, !way.passthrough)].map(|(dir, cached)| {
                    let mut tale = Tale { text: String::new(), cached };
                    let started = std::time::Instant::now();
                    story(&dir, &mut tale);
                    println!("{way:?} {name}: {:?}", started.elapsed());
                    tale.text
                });
                for (one, two) in told[0].lines().zip(told[1].lines()) {
                    if one != two {
                        differences.push(format!("{way:?} {name}: native {one}\n  mounted {two}"));
                    }
                }
                assert_eq!(told[0].lines().count(), told[1].lines().count(), "{way:?} {name}");
            }
            differences
        }));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
