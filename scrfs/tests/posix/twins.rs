//! Two directories that must not be told apart: one on the mount, one on the file system below it.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, FallocateFlags, StatxFlags};

use super::fence::Stream;
use super::op::{Op, User};
use super::perform::{As, Outcome, Seen, Side, xattrs};
use super::place::{Backing, Scope, Way};

/// Operations shown when a difference is found.
const SHOWN: usize = 14;
/// Times before this were set by the test, so they must be equal to the nanosecond.
const EXPLICIT_BEFORE: i64 = 1_000_000_000;

pub struct Twins {
    pub native: Side,
    pub mounted: Side,
    way: Way,
    scope: Scope,
    name: String,
    history: VecDeque<String>,
    shown: usize,
    /// A change is always seen in the times (kernels from 6.13 on).
    fine_times: bool,
    /// Native inode and birth, to the number that the mount gives it.
    numbers: HashMap<(u64, i64, u32), u64>,
}

fn fine_times() -> bool {
    let release = nix::sys::utsname::uname().unwrap();
    let release = release.release().to_string_lossy().into_owned();
    let mut parts = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (6, 13)
}

/// What a step shows of the files that it concerns.
type View = Vec<Result<Seen, i32>>;

impl Twins {
    pub fn new(
        way: Way,
        scope: Scope,
        name: String,
        pair: &(std::path::PathBuf, std::path::PathBuf),
    ) -> Self {
        Self {
            native: Side::new(&pair.0),
            mounted: Side::new(&pair.1),
            way,
            scope,
            name,
            history: VecDeque::new(),
            shown: std::env::var("POSIX_SHOWN").ok().and_then(|n| n.parse().ok()).unwrap_or(SHOWN),
            fine_times: fine_times(),
            numbers: HashMap::new(),
        }
    }

    /// Asks both, and compares what they say and what came of it. `Err` is the difference.
    pub fn step(&mut self, user: User, op: &Op) -> Result<Outcome, String> {
        if self.is_known_limit(user, op) {
            return Ok(Err(libc::ENOTSUP));
        }
        let watched = watched(op);
        let (one, native) = Self::ask(&mut self.native, user, op, &watched);
        let (two, mounted) = Self::ask(&mut self.mounted, user, op, &watched);
        if self.history.len() == self.shown {
            self.history.pop_front();
        }
        self.history.push_back(format!("{user:?} {op:?} -> {one:?}"));
        if one != two && !self.is_other_word(op, &one, &two) {
            return Err(self.tell(&format!("native {one:?}, mounted {two:?}")));
        }
        for (at, name) in watched.iter().map(|p| String::from_utf8_lossy(p).into_owned()).enumerate() {
            self.compare(op, &name, (&native.0[at], &native.1[at]), (&mounted.0[at], &mounted.1[at]))?;
        }
        if native.0.len() > watched.len() {
            let at = watched.len();
            self.compare(op, "open file", (&native.0[at], &native.1[at]), (&mounted.0[at], &mounted.1[at]))?;
        }
        Ok(one)
    }

    /// POSIX has two words for a directory that is not empty. xfs says EEXIST to a rename; of a
    /// dataset's directories, which are on all nodes, the daemon speaks, as the other file systems
    /// do.
    fn is_other_word(&self, op: &Op, native: &Outcome, mounted: &Outcome) -> bool {
        matches!(op, Op::Rename(..))
            && (self.scope, self.way.backing) == (Scope::Dataset, Backing::Xfs)
            && matches!((native, mounted), (Err(libc::EEXIST), Err(libc::ENOTEMPTY)))
    }

    /// What semantics.md lists as limits of this way and scope.
    fn is_known_limit(&self, user: User, op: &Op) -> bool {
        self.native.enter();
        let directory = |path: &[u8]| Side::see(path).is_ok_and(|s| s.mode & libc::S_IFMT == libc::S_IFDIR);
        match op {
            // ext4 dates the directory of a whiteout that it then takes back: no kernel expects
            // that of a failure.
            Op::Rename(_, to, flags) if flags & libc::RENAME_WHITEOUT != 0 && directory(to) => true,
            Op::Rename(from, to, flags) if self.scope == Scope::Dataset => {
                let exchange = flags & libc::RENAME_EXCHANGE != 0 && directory(from) != directory(to);
                exchange || flags & libc::RENAME_WHITEOUT != 0 && directory(from)
            }
            // Positions in directories are the kernel's business.
            Op::Seek(slot, ..) => {
                self.native.see_slot(*slot).is_some_and(|s| s.mode & libc::S_IFMT == libc::S_IFDIR)
            }
            Op::Read(_, 0) | Op::Pread(_, _, 0) => self.way.passthrough,
            // btrfs names what others may not read.
            Op::ListXattr(..) if user != User::Root => self.way.backing == Backing::Btrfs,
            Op::Chown(_, u32::MAX, u32::MAX, _) | Op::Fchown(_, u32::MAX, u32::MAX) => user != User::Root,
            // The kernel clears the bits before it asks, and keeps them cleared when it is refused,
            // as tmpfs does here, or when there is nothing to do: btrfs does not touch a file for a
            // hole behind its end.
            Op::Fallocate(slot, mode, ..)
                if match self.way.backing {
                    Backing::Tmpfs => mode & FallocateFlags::ZERO_RANGE.bits() != 0,
                    Backing::Btrfs => mode & FallocateFlags::PUNCH_HOLE.bits() != 0,
                    Backing::Ext4 | Backing::Xfs | Backing::Second => false,
                } =>
            {
                self.native.see_slot(*slot).is_some_and(|seen| seen.mode & 0o6000 != 0)
            }
            _ => self.keeps_bits(user, op),
        }
    }

    /// Root may write to files with suid bits and they stay; the kernel writes for passthrough as
    /// the daemon, which has not that right. Likewise members of the group, where sgid does not
    /// mean execution.
    fn keeps_bits(&self, user: User, op: &Op) -> bool {
        self.way.passthrough
            && op.writes()
            && op.slot().and_then(|slot| self.native.see_slot(slot)).is_some_and(|s| {
                let bits = if user == User::Root { 0o6000 } else { 0o2000 };
                s.mode & libc::S_IFMT == libc::S_IFREG && s.mode & bits != 0
            })
    }

    fn ask(side: &mut Side, user: User, op: &Op, watched: &[Vec<u8>]) -> (Outcome, (View, View)) {
        side.enter();
        let view = |side: &Side| -> View {
            let mut view: View = watched.iter().map(|path| Side::see(path)).collect();
            if let Some(slot) = op.slot() {
                view.push(side.see_slot(slot).ok_or(libc::EBADF));
            }
            view
        };
        let mut before = view(side);
        if matches!(op, Op::Open(..)) {
            // Another file.
            before.truncate(watched.len());
            before.push(Err(libc::EBADF));
        }
        let outcome = {
            let _user = As::user(user);
            side.perform(op)
        };
        (outcome, (before, view(side)))
    }

    fn compare(
        &self,
        op: &Op,
        name: &str,
        native: (&Result<Seen, i32>, &Result<Seen, i32>),
        mounted: (&Result<Seen, i32>, &Result<Seen, i32>),
    ) -> Result<(), String> {
        let (one, two) = match (native.1, mounted.1) {
            (Ok(one), Ok(two)) => (one, two),
            (Err(one), Err(two)) if one == two => return Ok(()),
            (one, two) => return Err(self.tell(&format!("{name}: native {one:?}, mounted {two:?}"))),
        };
        if let Some(difference) = self.differ(one, two) {
            return Err(self.tell(&format!("{name}: {difference}")));
        }
        if let (Err(libc::ENOENT), Err(libc::ENOENT)) = (native.0, mounted.0)
            && one.mtime.cmp(&one.ctime) != two.mtime.cmp(&two.ctime)
        {
            let text = format!(
                "{name} is new: native {:?} {:?}, mounted {:?} {:?}",
                one.mtime, one.ctime, two.mtime, two.ctime
            );
            return Err(self.tell(&text));
        }
        let is_directory = one.mode & libc::S_IFMT == libc::S_IFDIR;
        // The kernel's FUSE does not date what goes through a FIFO.
        let piped = op.slot().is_some() && one.mode & libc::S_IFMT == libc::S_IFIFO;
        if let (true, Ok(was_one), Ok(was_two)) = (self.fine_times, native.0, mounted.0) {
            let was = (was_one.ino == one.ino, was_two.ino == two.ino);
            let moved = |was: &Seen, is: &Seen| (was.mtime != is.mtime, was.ctime != is.ctime);
            let (one, two) = (moved(was_one, one), moved(was_two, two));
            // tmpfs gives a directory the time of the file that went, which can be that of the
            // change before.
            let takes = matches!(op, Op::Unlink(_) | Op::Rmdir(_) | Op::Rename(..) | Op::Link(..));
            let same = was.0 && was.1 && !piped;
            if same && one != two && !(takes && is_directory) {
                let text = format!("{name}: (mtime, ctime) changed: native {one:?}, mounted {two:?}");
                return Err(self.tell(&text));
            }
        }
        Ok(())
    }

    fn differ(&self, one: &Seen, two: &Seen) -> Option<String> {
        let plain = |s: &Seen| (s.mode, s.uid, s.gid, s.nlink, s.size, s.rdev);
        if plain(one) != plain(two) {
            return Some(format!("(mode, uid, gid, nlink, size, rdev): native {one:?}, mounted {two:?}"));
        }
        // ext4 counts blocks that it has not decided on yet.
        if self.way.backing == Backing::Tmpfs && one.blocks != two.blocks {
            return Some(format!("blocks: native {}, mounted {}", one.blocks, two.blocks));
        }
        let times = |s: &Seen| {
            let mut times = [s.atime, s.mtime].map(|t| (t.0 < EXPLICIT_BEFORE).then_some(t));
            if !self.way.passthrough && s.mode & libc::S_IFMT == libc::S_IFREG {
                // What the page cache answers is no access for the file below.
                times[0] = None;
            }
            if s.mode & libc::S_IFMT == libc::S_IFIFO {
                // The kernel's FUSE does not date what goes through it.
                return [None; 2];
            }
            times
        };
        if times(one) != times(two) {
            return Some(format!("times: native {:?}, mounted {:?}", times(one), times(two)));
        }
        None
    }

    fn tell(&self, difference: &str) -> String {
        let mut text = format!("{} {:?}: {difference}\nlast operations:\n", self.name, self.way);
        for line in &self.history {
            let _ = writeln!(text, "  {line}");
        }
        text
    }

    /// Compares everything below the two directories.
    pub fn compare_trees(&mut self) -> Result<(), String> {
        let mut pending = vec![b".".to_vec()];
        let mut numbers = HashMap::new();
        let begun = UNIX_EPOCH.elapsed().unwrap_or_default();
        while let Some(dir) = pending.pop() {
            self.native.enter();
            let (one, mut births) = listing(&dir);
            self.mounted.enter();
            let (two, _) = listing(&dir);
            if one.len() != two.len() || one.iter().zip(&two).any(|(a, b)| (&a.0, a.1) != (&b.0, b.1)) {
                return Err(self.tell(&format!("listing of {dir:?}: native {one:?}, mounted {two:?}")));
            }
            for (name, _, native_matches) in &one {
                let mut path = dir.clone();
                path.push(b'/');
                path.extend_from_slice(name);
                let matches = two.iter().find(|e| e.0 == *name).is_some_and(|e| e.2);
                if *native_matches && !matches {
                    return Err(self.tell(&format!("{path:?}: d_ino is not st_ino")));
                }
                self.native.enter();
                let (a, a_rest) = (Side::see(&path), rest(&path));
                self.mounted.enter();
                let (b, b_rest) = (Side::see(&path), rest(&path));
                let stat = Op::Stat(path.clone().into(), false);
                self.compare(&stat, &String::from_utf8_lossy(&path), (&Err(0), &a), (&Err(0), &b))?;
                if a_rest != b_rest {
                    let path = String::from_utf8_lossy(&path);
                    return Err(self.tell(&format!("{path}: native {a_rest}, mounted {b_rest}")));
                }
                let (Ok(a), Ok(b)) = (a, b) else { continue };
                let birth = births.remove(name).unwrap_or_default();
                numbers.insert((a.ino, birth.0, birth.1), b.ino);
                if a.mode & libc::S_IFMT == libc::S_IFDIR {
                    pending.push(path);
                }
            }
        }
        for (file, number) in &numbers {
            if let Some(before) = self.numbers.get(file).filter(|before| *before != number) {
                let text = format!("the number of living {file:?} was {before} and is {number}");
                return Err(self.tell(&text));
            }
        }
        let mut distinct: Vec<u64> = numbers.values().copied().collect();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() != numbers.len() {
            return Err(self.tell("two files of one number"));
        }
        // Births are told in ticks: another file can be born with the same number within the tick
        // of this moment.
        let settled = begun.saturating_sub(Duration::from_millis(100));
        let born = |secs: i64, nanos| Duration::new(u64::try_from(secs).unwrap_or(0), nanos);
        numbers.retain(|(_, secs, nanos), _| born(*secs, *nanos) < settled);
        self.numbers = numbers;
        Ok(())
    }
}

/// The paths of an operation, and the directories that they are in.
fn watched(op: &Op) -> Vec<Vec<u8>> {
    let mut paths = Vec::new();
    for path in op.paths() {
        let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
        let bare = &path[..end];
        let above = bare.iter().rposition(|&b| b == b'/').map_or(&b"."[..], |at| &bare[..at]);
        for path in [bare, above] {
            if !path.is_empty() && !paths.iter().any(|p| p == path) {
                paths.push(path.to_vec());
            }
        }
    }
    paths
}

type Listing = Vec<(Vec<u8>, u8, bool)>;

/// Names with their types, and whether d_ino is st_ino; times of birth.
fn listing(dir: &[u8]) -> (Listing, HashMap<Vec<u8>, (i64, u32)>) {
    let opened = File::open(Path::new(std::str::from_utf8(b".").unwrap()).join(path_of(dir))).unwrap();
    let mut stream = Stream::open(opened);
    let (mut names, mut births) = (Vec::new(), HashMap::new());
    while let Some((name, ino, kind)) = stream.next() {
        if name == b"." || name == b".." {
            continue;
        }
        let mut path = dir.to_vec();
        path.push(b'/');
        path.extend_from_slice(&name);
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let found = rustix::fs::statx(CWD, &*path, AtFlags::SYMLINK_NOFOLLOW, wanted);
        if let Ok(found) = &found {
            births.insert(name.clone(), (found.stx_btime.tv_sec, found.stx_btime.tv_nsec));
        }
        names.push((name, kind, found.is_ok_and(|found| found.stx_ino == ino)));
    }
    names.sort();
    (names, births)
}

fn path_of(bytes: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

/// Contents, target and extended attributes, as text.
fn rest(path: &[u8]) -> String {
    let kind = Side::see(path).map_or(0, |s| s.mode & libc::S_IFMT);
    let content = match kind {
        libc::S_IFREG => std::fs::read(path_of(path))
            .map(|bytes| format!("{} bytes, crc {:08x}", bytes.len(), crc32fast::hash(&bytes)))
            .map_err(|e| e.raw_os_error()),
        libc::S_IFLNK => Ok(std::fs::read_link(path_of(path)).unwrap().to_string_lossy().into_owned()),
        _ => Ok(String::new()),
    };
    let mut values = Vec::new();
    for name in xattrs(path).unwrap_or_default() {
        let mut value = vec![0; 4096];
        let text = std::str::from_utf8(&name[..name.len() - 1]).unwrap_or_default().to_owned();
        let length = rustix::fs::lgetxattr(path, &*text, &mut value[..]).unwrap_or(0);
        values.push((text, value[..length].to_vec()));
    }
    format!("{content:?} {values:?}")
}
