//! Real programs, on the mount. Those that are not installed are said to be missing, and their test
//! fails: `tests/run` installs them.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::place::{Backing, Place, Scope, WAYS, Way, in_place, run};

const PASSTHROUGH: Way = Way { backing: Backing::Ext4, passthrough: true };
const PLAIN: Way = Way { backing: Backing::Tmpfs, passthrough: false };

/// Two accounts that every machine has.
const SUITE: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.02
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Eight processes count in one file under one lock, and write lines under locks of bytes that
/// overlap.
const TURNS: &str = r"
import fcntl, os, sys
lock = getattr(fcntl, sys.argv[1])
open('count', 'w').write('0')
def turn(me):
    file = open('count', 'r+')
    for n in range(60):
        lock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = int(file.read())
        file.seek(0)
        file.write(str(number + 1))
        file.flush()
        lock(file, fcntl.LOCK_UN)
        try:
            lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            lock(file, fcntl.LOCK_UN)
        except BlockingIOError:
            pass
    bytes = open('bytes', 'r+b', 0)
    for n in range(60):
        at = (me + n) % 7
        fcntl.lockf(bytes, fcntl.LOCK_EX, 2, at)
        mine = b'%c%c' % (65 + me, 65 + me)
        os.pwrite(bytes.fileno(), mine, at)
        assert os.pread(bytes.fileno(), 2, at) == mine
        fcntl.lockf(bytes, fcntl.LOCK_UN, 2, at)
open('bytes', 'w').write(' ' * 8)
children = []
for me in range(8):
    child = os.fork()
    if child == 0:
        turn(me)
        sys.exit(0)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
assert open('count').read() == '480', open('count').read()
";

/// Runs `script` in a directory of the mount, in a passthrough and a plain mount.
fn in_both(name: &'static str, script: &str) {
    for (way, scope) in [(PASSTHROUGH, Scope::Dataset), (PLAIN, Scope::Scratch)] {
        let script = script.to_owned();
        in_place(way, move |place| shell(place, &place.pair(scope, name).1, &script));
    }
}

/// What `script` writes.
fn shell(place: &Place, dir: &Path, script: &str) -> String {
    let tools = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools/bin");
    let path = format!("{}:{tools}", std::env::var("PATH").unwrap_or_default());
    let output = run(Command::new("timeout")
        .args(["-k", "2", "150", "bash", "-ec", script])
        .current_dir(dir)
        .env("PATH", path)
        .env("HOME", place.path("")));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn fsx() {
    in_both("fsx", "timeout 60 fsx -N 4000 -S 17 f > log || { tail -30 log; exit 1; }");
}

/// Passed tests, and what those said that failed.
fn suite(place: &Place, dir: &Path) -> (usize, Vec<String>) {
    let config = place.path("suite.toml");
    fs::write(&config, SUITE).unwrap();
    // "image" is another file system in each way.
    let (config, other) = (config.display(), place.path("image"));
    let script = format!("pjdfstest -v -c {config} -s {} -p . 2>&1 || test $? = 1", other.display());
    let text = shell(place, dir, &script);
    let lines: Vec<&str> = text.lines().collect();
    let failed = |at: &usize| lines[*at].ends_with(" FAILED");
    let tell = |at: usize| lines[at..lines.len().min(at + 6)].join("\n");
    let passed = lines.iter().filter(|line| line.ends_with(" ok")).count();
    (passed, (0..lines.len()).filter(failed).map(tell).collect())
}

/// A suite of POSIX tests: what fails on the file system below is not the mount's doing.
#[test]
fn pjdfstest() {
    let scopes = [Scope::Dataset, Scope::Scratch, Scope::Scratch, Scope::Dataset];
    // It mostly sleeps, so that times differ.
    let ways = WAYS.into_iter().zip(scopes).map(|(way, scope)| {
        std::thread::spawn(move || {
            in_place(way, move |place| {
                let (native, mounted) = place.pair(scope, "suite");
                (way, suite(place, &native), suite(place, &mounted))
            })
        })
    });
    let ways: Vec<_> = ways.collect();
    for way in ways {
        let (way, (passed, failed), (passed_mounted, failed_mounted)) = way.join().unwrap();
        assert!(passed > 300, "the suite did not run: {passed}");
        let cramped: Vec<_> = failed.iter().filter(|told| told.contains("ENAMETOOLONG")).collect();
        assert!(cramped.is_empty(), "{way:?}: the paths are too long: {cramped:#?}");
        let name = |told: &str| told.split_ascii_whitespace().next().map(str::to_owned);
        let failed: Vec<_> = failed.iter().map(|told| name(told)).collect();
        let new: Vec<_> = failed_mounted.iter().filter(|told| !failed.contains(&name(told))).collect();
        assert!(new.is_empty(), "{way:?}: {new:#?}");
        // The C library knows the greatest number of links of a few file systems, and asks no
        // other.
        assert!(passed_mounted + 1 >= passed, "{way:?}: {passed} natively, {passed_mounted} mounted");
    }
}

#[test]
fn eight_processes_take_turns() {
    in_both(
        "turns",
        &format!(
            "cat > turns.py <<'END'\n{TURNS}\nEND\nfor kind in flock lockf; do timeout 60 python3 turns.py $kind; done"
        ),
    );
}

#[test]
fn fio_verifies() {
    in_both(
        "fio",
        "fio --minimal --name=v --size=8m --bs=4k --rw=randrw --verify=crc32c --do_verify=1 --verify_fatal=1 \
         --ioengine=psync --numjobs=2 --fallocate=none > log; \
         fio --minimal --name=m --size=8m --bs=8k --rw=randwrite --verify=crc32c --verify_fatal=1 \
         --ioengine=mmap >> log; \
         fio --minimal --name=d --size=8m --bs=64k --rw=write --verify=crc32c --verify_fatal=1 --direct=1 \
         --ioengine=psync >> log",
    );
}

#[test]
fn git_clone_fsck_gc() {
    in_both(
        "git",
        "git init -q r; cd r; git config user.email a@b; git config user.name a; \
         for i in $(seq 120); do mkdir -p d$((i % 12)); seq $i $((i * 9)) > d$((i % 12))/$i; done; \
         git add .; git commit -qm one; git mv d1 e1; git commit -qm two; git gc -q --aggressive; \
         git fsck --strict --full; cd ..; git clone -q --no-hardlinks r c; cd c; git status --porcelain > ../st; \
         test ! -s ../st; git checkout -q HEAD~1; git fsck; cd ..; diff -r --exclude .git r/d2 c/d2",
    );
}

#[test]
fn sqlite_survives_being_killed() {
    in_both(
        "sqlite",
        "for mode in delete wal; do \
           sqlite3 $mode.db \"pragma journal_mode=$mode; create table t(n integer primary key, s);\" > log; \
           for round in 1 2 3 4 5 6; do \
             ( while :; do echo \"insert into t(s) values(hex(randomblob(300)));\"; done | \
               exec sqlite3 -cmd '.timeout 5000' $mode.db ) & \
             pid=$!; sleep 0.$((RANDOM % 3))$((RANDOM % 9 + 1)); pkill -KILL -P $pid || true; \
             kill -KILL $pid 2>/dev/null || true; wait $pid 2>/dev/null || true; \
             test \"$(sqlite3 -cmd '.timeout 5000' $mode.db 'pragma integrity_check;')\" = ok; \
           done; \
         done",
    );
}

#[test]
fn a_large_tree_comes_and_goes() {
    in_both(
        "tree",
        "mkdir t; for i in $(seq 40); do mkdir -p t/a$i/b; for j in $(seq 25); do echo $i $j > t/a$i/b/$j; done; done; \
         ln -s ../x t/a1/l; ln t/a1/b/1 t/a1/h; tar cf t.tar t; mkdir x; tar xpf t.tar -C x; diff -r --no-dereference t x/t; \
         cp -a t y; diff -r --no-dereference t y; find t -printf '%P %m %n %s %T@\\n' | sort > one; \
         find x/t -printf '%P %m %n %s %T@\\n' | sort > two; \
         rm -rf t x y; test \"$(ls)\" = \"$(printf 'one\\nt.tar\\ntwo')\"",
    );
}

#[test]
fn stressors() {
    // Those of `stress-ng --class filesystem` that pass natively and need no rights over the whole
    // machine.
    in_both(
        "stress",
        "stress-ng --temp-path . --timeout 2 --quiet --verify \
         --access 1 --chdir 1 --chmod 1 --chown 1 --copy-file 1 --dentry 1 --dir 1 --dirdeep 1 \
         --dirdeep-inodes 500 --dirmany 1 --dup 1 --fallocate 1 --fcntl 1 --fiemap 1 --file-ioctl 1 --filename 1 \
         --flock 2 --fpunch 1 --fsize 1 --fstat 1 --getdent 1 --handle 1 --hdd 1 --hdd-bytes 8m --inotify 1 \
         --iomix 1 --iomix-bytes 8m --lease 1 --link 1 --locka 2 --lockf 2 --lockofd 2 --mknod 1 --open 1 \
         --rename 1 --seek 1 --symlink 1 --sync-file 1 --sync-file-bytes 8m --touch 1 --utime 1 --xattr 1",
    );
}
