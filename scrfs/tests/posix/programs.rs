//! Real programs, on the mount. Those that are not installed are said to be missing, and their test fails: `tests/run`
//! installs them.

use std::path::Path;
use std::process::Command;

use super::place::{Backing, Place, Scope, Way, in_place, run};

const PASSTHROUGH: Way = Way { backing: Backing::Ext4, passthrough: true };
const PLAIN: Way = Way { backing: Backing::Tmpfs, passthrough: false };

/// Runs `script` in a directory of the mount, in a passthrough and a plain mount.
fn in_both(name: &'static str, script: &'static str) {
    for (way, scope) in [(PASSTHROUGH, Scope::Dataset), (PLAIN, Scope::Scratch)] {
        in_place(way, move |place| shell(place, &place.pair(scope, name).1, script));
    }
}

fn shell(place: &Place, dir: &Path, script: &str) {
    let tools = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools/bin");
    let path = format!("{}:{tools}", std::env::var("PATH").unwrap_or_default());
    run(Command::new("timeout")
        .args(["-k", "2", "150", "bash", "-ec", script])
        .current_dir(dir)
        .env("PATH", path)
        .env("HOME", place.path("")));
}

#[test]
fn fsx() {
    in_both("fsx", "timeout 60 fsx -N 4000 -S 17 f > log || { tail -30 log; exit 1; }");
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
    // Those of `stress-ng --class filesystem` that pass natively and need no rights over the whole machine.
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
