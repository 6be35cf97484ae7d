//! Every call on every kind of name, for every kind of user: what suites of POSIX tests check one
//! by one.
//!
//! What is made and removed on the way changes the directory for what follows, on both sides alike;
//! it is put back in order before each row.

use super::op::{Op, Path, Time, User};
use super::place::{WAYS, Way, in_place};
use super::twins::Twins;

/// What must be there, in this order; each made by root unless it is there already.
fn fixture() -> Vec<Op> {
    let path = |name: &str| Path::from(name);
    let dir = |name: &str, mode, uid, gid| {
        vec![
            Op::Mkdir(path(name), 0o700),
            Op::Chown(path(name), uid, gid, false),
            Op::Chmod(path(name), mode),
        ]
    };
    let file = |name: &str, mode, uid, gid| {
        vec![
            Op::Mknod(path(name), libc::S_IFREG | 0o600, 0),
            Op::Chown(path(name), uid, gid, false),
            Op::Chmod(path(name), mode),
        ]
    };
    let link = |target: &str, name: &str| vec![Op::Symlink(path(target), path(name))];
    let node = |name: &str, mode| vec![Op::Mknod(path(name), mode, 0x0103)];
    [
        dir("ann", 0o755, 4001, 4001),
        dir("empty", 0o777, 4001, 4001),
        dir("full", 0o777, 4001, 4001),
        file("full/f", 0o644, 4002, 4002),
        dir("closed", 0o700, 0, 0),
        file("closed/f", 0o777, 4001, 4001),
        dir("sticky", 0o1777, 0, 0),
        file("sticky/ann", 0o666, 4001, 4001),
        file("sticky/bob", 0o666, 4002, 4002),
        dir("sticky/anndir", 0o777, 4001, 4001),
        dir("annsticky", 0o1777, 4001, 4001),
        file("annsticky/bob", 0o666, 4002, 4002),
        dir("setgid", 0o2777, 0, 5001),
        dir("group", 0o2770, 0, 5000),
        file("group/f", 0o660, 4002, 5000),
        file("ann/f", 0o644, 4001, 4001),
        file("annfile", 0o644, 4001, 5000),
        file("secret", 0o000, 4001, 4001),
        file("suid", 0o6755, 4001, 5000),
        file("sgidonly", 0o2644, 4001, 4001),
        file("groupwrite", 0o664, 0, 5000),
        link("annfile", "tofile"),
        link("ann", "todir"),
        link("missing", "dangling"),
        link("loop", "loop"),
        link("loopb", "loopa"),
        link("loopa", "loopb"),
        link("ann/f/x", "throughfile"),
        node("fifo", libc::S_IFIFO | 0o666),
        node("socket", libc::S_IFSOCK | 0o666),
        node("null", libc::S_IFCHR | 0o666),
    ]
    .concat()
}

/// Names to ask about.
fn names() -> Vec<Path> {
    let mut names: Vec<Path> = [
        "ann",
        "ann/",
        "ann/.",
        "ann/..",
        "empty",
        "empty/",
        "full",
        "full/f",
        "closed",
        "closed/f",
        "closed/new",
        "sticky/ann",
        "sticky/bob",
        "sticky/anndir",
        "annsticky/bob",
        "setgid/new",
        "group/f",
        "group/new",
        "ann/f",
        "ann/new",
        "ann/new/",
        "annfile",
        "annfile/",
        "annfile/x",
        "secret",
        "suid",
        "sgidonly",
        "groupwrite",
        "tofile",
        "tofile/",
        "tofile/x",
        "todir",
        "todir/",
        "todir/f",
        "todir/new",
        "dangling",
        "dangling/",
        "dangling/x",
        "loop",
        "loop/x",
        "loopa",
        "throughfile",
        "fifo",
        "fifo/",
        "socket",
        "null",
        "new",
        "new/",
        "new/x",
        "missing/x",
        "",
        ".",
        "..",
        "./annfile",
        "ann//f",
    ]
    .iter()
    .map(|&name| name.into())
    .collect();
    for length in [255, 256] {
        names.push(vec![b'l'; length].into());
        names.push([b"ann/".as_slice(), &vec![b'l'; length]].concat().into());
        names.push([&vec![b'l'; length], b"/x".as_slice()].concat().into());
    }
    // PATH_MAX counts the end: 4095 bytes are the longest.
    for (length, end) in [(4095, "f"), (4096, "f"), (4095, "newlong")] {
        let slashes = "/".repeat(length - 3 - end.len());
        names.push(format!("ann{slashes}{end}").into());
    }
    names.push(b"\xff\x80\xc3".into());
    names
}

/// Calls on one name.
fn calls(name: &Path) -> Vec<Op> {
    let p = || name.clone();
    let at = Time::At(77, 5);
    let mut calls = vec![
        Op::Stat(p(), true),
        Op::Stat(p(), false),
        Op::Access(p(), 7),
        Op::Access(p(), 2),
        Op::Readlink(p()),
        Op::List(p()),
        Op::ListXattr(p()),
        Op::GetXattr(p(), "user.x"),
        Op::SetXattr(p(), "user.x", b"v".into(), 0),
        Op::SetXattr(p(), "trusted.x", b"v".into(), 0),
        Op::RemoveXattr(p(), "user.x"),
        Op::RemoveXattr(p(), "trusted.x"),
        Op::Utimens(p(), at, at, true),
        Op::Utimens(p(), Time::At(-5, 999_999_999), Time::At(-1, 1), false),
        Op::Utimens(p(), Time::Now, Time::Now, true),
        Op::Utimens(p(), Time::Omit, at, true),
        Op::Utimens(p(), at, Time::Omit, true),
        Op::Utimens(p(), Time::Now, Time::Omit, true),
        Op::Utimens(p(), Time::Omit, Time::Omit, true),
        Op::Truncate(p(), 123),
        Op::Truncate(p(), 123),
        Op::Truncate(p(), 0),
        Op::Truncate(p(), -1),
    ];
    for mode in [0o644, 0o2755, 0o4755, 0o6755, 0o1777, 0o2644, 0o755] {
        calls.push(Op::Chmod(p(), mode));
    }
    let keep = u32::MAX;
    for (uid, gid) in [(keep, keep), (keep, 5000), (keep, 5001), (4001, keep), (4002, 4002)] {
        calls.push(Op::Chmod(p(), 0o6755));
        calls.push(Op::Chown(p(), uid, gid, true));
        calls.push(Op::Chmod(p(), 0o2644));
        calls.push(Op::Chown(p(), uid, gid, false));
    }
    let flags = [
        libc::O_RDONLY,
        libc::O_WRONLY,
        libc::O_RDWR,
        libc::O_RDONLY | libc::O_DIRECTORY,
        libc::O_RDONLY | libc::O_NOFOLLOW,
        libc::O_WRONLY | libc::O_TRUNC,
        libc::O_RDONLY | libc::O_TRUNC,
        libc::O_WRONLY | libc::O_CREAT,
        libc::O_RDONLY | libc::O_CREAT | libc::O_EXCL,
        libc::O_WRONLY | libc::O_CREAT | libc::O_NOFOLLOW,
        libc::O_RDONLY | libc::O_NOATIME,
        libc::O_PATH,
        libc::O_PATH | libc::O_NOFOLLOW,
    ];
    for flags in flags {
        calls.push(Op::Open(0, p(), flags, 0o2775));
        calls.push(Op::Fstat(0));
        calls.push(Op::Read(0, 10));
        calls.push(Op::Write(0, 5, b'w'));
        calls.push(Op::Ftruncate(0, 3));
        calls.push(Op::Fallocate(0, 0, 0, 10));
        calls.push(Op::Fchmod(0, 0o6755));
        calls.push(Op::Fallocate(0, 0, 10, 10));
        calls.push(Op::Close(0));
    }
    for kind in [libc::S_IFREG, libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFCHR, libc::S_IFDIR] {
        calls.push(Op::Mknod(p(), kind | 0o6755, 0x0103));
        calls.push(Op::Mknod(p(), kind | 0o6755, 0x0103));
        calls.push(Op::Rmdir(p()));
        calls.push(Op::Unlink(p()));
    }
    calls.extend([
        Op::Symlink("annfile".into(), p()),
        Op::Symlink("annfile".into(), p()),
        Op::Unlink(p()),
        Op::Symlink("".into(), p()),
        Op::Symlink(vec![b't'; 4095].into(), p()),
        Op::Unlink(p()),
        Op::Symlink(vec![b't'; 4096].into(), p()),
        Op::Mkdir(p(), 0o7777),
        Op::Mkdir(p(), 0o755),
        Op::Rmdir(p()),
        Op::Unlink(p()),
    ]);
    calls
}

/// Calls on two names.
fn pairs(a: &Path, b: &Path) -> Vec<Op> {
    vec![
        Op::Rename(a.clone(), b.clone(), libc::RENAME_NOREPLACE),
        Op::Link(a.clone(), b.clone(), true),
        Op::Link(a.clone(), b.clone(), false),
        Op::Rename(a.clone(), b.clone(), libc::RENAME_EXCHANGE),
        Op::Rename(a.clone(), b.clone(), 0),
    ]
}

fn set_up(twins: &mut Twins) -> Result<(), String> {
    for op in fixture() {
        let _ = twins.step(User::Root, &op)?;
    }
    Ok(())
}

fn one_name(twins: &mut Twins) -> Result<(), String> {
    for (at, name) in names().into_iter().enumerate() {
        for user in [User::Root, if at % 3 == 0 { User::Bob } else { User::Ann }] {
            set_up(twins)?;
            for op in calls(&name) {
                let _ = twins.step(user, &op)?;
            }
        }
        twins.compare_trees()?;
    }
    Ok(())
}

fn two_names(twins: &mut Twins) -> Result<(), String> {
    let names = names();
    // Each with a quarter of the others, not the same quarter.
    for (at, a) in names.iter().enumerate() {
        set_up(twins)?;
        for user in [User::Root, User::Ann] {
            for b in names.iter().skip(at % 4).step_by(4) {
                for op in pairs(a, b) {
                    let _ = twins.step(user, &op)?;
                }
            }
        }
        twins.compare_trees()?;
    }
    Ok(())
}

fn run(way: Way) -> Vec<String> {
    in_place(way, move |place| {
        let scope = way.one_scope();
        let threads: Vec<_> = [one_name as fn(&mut Twins) -> _, two_names]
            .into_iter()
            .enumerate()
            .map(|(at, test)| {
                let pair = place.pair(scope, &format!("t{at}"));
                let mut twins = Twins::new(way, scope, format!("{scope:?}"), &pair);
                std::thread::spawn(move || {
                    nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).unwrap();
                    rustix::process::umask(rustix::fs::Mode::empty());
                    test(&mut twins)
                })
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap().err()).collect()
    })
}

#[test]
fn every_call_on_every_name() {
    let found: Vec<String> = WAYS.into_iter().flat_map(run).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}
