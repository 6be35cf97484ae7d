//! Random sequences of operations, the same in every run. A run prints its seed; seeds that once
//! found something are kept in `regressions.txt` and run first. Another seed:
//! `POSIX_SEED=… cargo test -p scrfs --test posix random`; with `POSIX_SEED=fresh` it is one that
//! nobody has tried, as in `tests/repeat`.

use super::op::{Op, Path, Time, USERS, User};
use super::perform::SLOTS;
use super::place::{Place, Scope, WAYS, Way, in_place};
use super::twins::Twins;

/// Operations of one sequence; there are nine ways, and four sequences at a time in each: a hundred
/// thousand.
const OPERATIONS: usize = 2800;
const REGRESSION_OPERATIONS: usize = 1200;
/// Whole trees are compared every so many operations.
const TREES_EVERY: usize = 250;
const FILE_BYTES: u64 = 200_000;
const SEED: u64 = 0x5c2f_5000;

/// splitmix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()].clone()
    }

    fn slot(&mut self) -> usize {
        usize::try_from(self.below(SLOTS as u64)).unwrap()
    }

    fn name(&mut self) -> Vec<u8> {
        match self.below(20) {
            0 => vec![b'n'; 255],
            1 => vec![b'n'; 256],
            2 => b"\xff\xfe n".to_vec(),
            3 => b".hidden".to_vec(),
            n => vec![b'a' + u8::try_from(n % 6).unwrap()],
        }
    }

    fn path(&mut self) -> Path {
        let mut path = self.name();
        for _ in 0..self.pick(&[0, 0, 1, 1, 1, 2]) {
            path.push(b'/');
            path.extend(self.name());
        }
        match self.below(60) {
            0 => path.push(b'/'),
            1 => path.extend(b"/."),
            2 => path.extend(b"/.."),
            _ => {}
        }
        path.into()
    }

    fn mode(&mut self) -> u32 {
        self.pick(&[
            0o777, 0o755, 0o700, 0o644, 0o600, 0o000, 0o1777, 0o2775, 0o4755, 0o6755, 0o2644, 0o2755, 0o070,
        ])
    }

    fn id(&mut self) -> u32 {
        self.pick(&[u32::MAX, 0, 4001, 4002, 4003, 5000, 5001])
    }

    fn offset(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(FILE_BYTES / 4096) * 4096,
            1 => self.below(64),
            _ => self.below(FILE_BYTES),
        }
    }

    fn length(&mut self) -> usize {
        let length = self.pick(&[0, 1, 100, 4096, 5000, 65536]);
        if length > 1 {
            usize::try_from(self.below(length) + 1).unwrap()
        } else {
            usize::try_from(length).unwrap()
        }
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    fn time(&mut self) -> Time {
        match self.below(5) {
            0 => Time::Now,
            1 => Time::Omit,
            2 => Time::At(
                -i64::try_from(self.below(100_000)).unwrap(),
                i64::try_from(self.below(1_000_000_000)).unwrap(),
            ),
            _ => Time::At(
                i64::try_from(self.below(999_999_999)).unwrap(),
                i64::try_from(self.below(1_000_000_000)).unwrap(),
            ),
        }
    }

    fn open(&mut self) -> Op {
        let mut flags = self.pick(&[libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR]);
        for (flag, percent) in [
            (libc::O_CREAT, 50),
            (libc::O_EXCL, 8),
            (libc::O_TRUNC, 12),
            (libc::O_APPEND, 20),
            (libc::O_NOFOLLOW, 10),
            (libc::O_DIRECTORY, 4),
            (libc::O_SYNC, 5),
            (libc::O_NOATIME, 5),
            (libc::O_PATH, 3),
        ] {
            if self.chance(percent) {
                flags |= flag;
            }
        }
        // A created directory is nonsense that kernels have answered differently.
        if flags & libc::O_DIRECTORY != 0 {
            flags &= !libc::O_CREAT;
        }
        Op::Open(self.slot(), self.path(), flags, self.mode())
    }

    fn on_names(&mut self) -> Op {
        let noreplace = libc::RENAME_NOREPLACE;
        let (exchange, whiteout) = (libc::RENAME_EXCHANGE, libc::RENAME_WHITEOUT);
        match self.below(100) {
            0..14 => Op::Mkdir(self.path(), self.mode()),
            14..19 => Op::Rmdir(self.path()),
            19..30 => Op::Unlink(self.path()),
            30..35 => {
                let kind =
                    self.pick(&[libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFREG, libc::S_IFCHR, libc::S_IFBLK]);
                Op::Mknod(self.path(), kind | self.mode(), 0x0103)
            }
            35..41 => Op::Symlink(self.path(), self.path()),
            41..50 => Op::Link(self.path(), self.path(), self.chance(30)),
            50..70 => {
                let flags = self.pick(&[
                    0,
                    0,
                    0,
                    0,
                    noreplace,
                    exchange,
                    exchange,
                    whiteout,
                    noreplace | exchange,
                    64,
                ]);
                Op::Rename(self.path(), self.path(), flags)
            }
            70..78 => Op::Chmod(self.path(), self.mode()),
            78..85 => Op::Chown(self.path(), self.id(), self.id(), self.chance(50)),
            85..90 => Op::Truncate(self.path(), i64::try_from(self.offset()).unwrap()),
            90..95 => Op::Utimens(self.path(), self.time(), self.time(), self.chance(50)),
            95..97 => Op::Umask(self.pick(&[0, 0o022, 0o077, 0o027])),
            _ => self.on_xattrs(),
        }
    }

    fn on_xattrs(&mut self) -> Op {
        let name = self.pick(&["user.a", "user.b", "trusted.t", "user.", "nonsense", "security.x"]);
        match self.below(5) {
            0 | 1 => Op::SetXattr(
                self.path(),
                name,
                vec![self.byte(); self.length() % 500].into(),
                self.pick(&[0, 0, 1, 2]),
            ),
            2 => Op::GetXattr(self.path(), name),
            3 => Op::ListXattr(self.path()),
            _ => Op::RemoveXattr(self.path(), name),
        }
    }

    fn on_files(&mut self) -> Op {
        let slot = self.slot();
        match self.below(100) {
            0..6 => Op::Close(slot),
            6..12 => Op::Read(slot, self.length()),
            12..20 => Op::Pread(slot, self.offset(), self.length()),
            20..32 => Op::Write(slot, self.length(), self.byte()),
            32..48 => Op::Pwrite(slot, self.offset(), self.length(), self.byte()),
            48..51 => Op::PwriteAppend(slot, self.length(), self.byte()),
            51..58 => Op::Ftruncate(slot, self.offset()),
            58..61 => Op::Fchmod(slot, self.mode()),
            61..63 => Op::Fchown(slot, self.id(), self.id()),
            63..66 => Op::Futimens(slot, self.time(), self.time()),
            66..74 => {
                // What FUSE has no way to carry (collapse, insert) is a listed limit.
                let (keep, punch) = (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE);
                let zero = libc::FALLOC_FL_ZERO_RANGE;
                let mode = self.pick(&[0, keep, punch | keep, punch | keep, punch, zero, zero | keep]);
                Op::Fallocate(slot, mode.cast_unsigned(), self.offset(), self.length() as u64)
            }
            74..82 => {
                let whence = self.pick(&[
                    libc::SEEK_SET,
                    libc::SEEK_CUR,
                    libc::SEEK_END,
                    libc::SEEK_DATA,
                    libc::SEEK_HOLE,
                ]);
                Op::Seek(slot, whence, i64::try_from(self.offset()).unwrap())
            }
            82..88 => Op::CopyRange(self.slot(), self.offset(), slot, self.offset(), self.length()),
            88..91 => Op::Fsync(slot, self.chance(50)),
            91..95 => Op::Store(slot, self.offset(), self.byte()),
            95..97 => Op::Flock(slot, self.pick(&[libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN])),
            _ => Op::Fstat(slot),
        }
    }

    pub fn op(&mut self) -> Op {
        match self.below(100) {
            0..35 => self.on_names(),
            35..55 => self.open(),
            55..92 => self.on_files(),
            92..94 => Op::Access(self.path(), self.pick(&[0, 1, 2, 4, 7])),
            94..96 => Op::Stat(self.path(), self.chance(50)),
            96..98 => Op::List(self.path()),
            _ => Op::Readlink(self.path()),
        }
    }

    pub fn user(&mut self) -> User {
        if self.chance(40) { User::Root } else { self.pick(&USERS) }
    }
}

/// The sequences of these seeds, one seed after the other, on one mount.
fn run(way: Way, seeds: Vec<u64>, operations: usize) -> Vec<String> {
    in_place(way, move |place| seeds.into_iter().flat_map(|seed| run_seed(place, seed, operations)).collect())
}

/// Four sequences at once, each in a directory of its own, so that each has but one right outcome.
fn run_seed(place: &Place, seed: u64, operations: usize) -> Vec<String> {
    let way = place.way;
    let sequences = [Scope::Scratch, Scope::Dataset, Scope::Scratch, Scope::Dataset].into_iter().enumerate();
    let threads: Vec<_> = sequences
        .map(|(at, scope)| {
            let scope = way.scope(scope);
            let pair = place.pair(scope, &format!("{seed:x}.{at}"));
            let name = format!("seed {seed:#x} sequence {at} {scope:?}");
            std::thread::spawn(move || {
                // A working directory and umask of this thread's own.
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).unwrap();
                rustix::process::umask(rustix::fs::Mode::empty());
                let twins = Twins::new(way, scope, name, &pair);
                sequence(twins, Random::new(seed.wrapping_add(at as u64)), operations)
            })
        })
        .collect();
    threads.into_iter().filter_map(|thread| thread.join().unwrap().err()).collect()
}

fn sequence(mut twins: Twins, mut random: Random, operations: usize) -> Result<(), String> {
    for at in 1..=operations {
        let (user, op) = (random.user(), random.op());
        let _ = twins.step(user, &op)?;
        if at % TREES_EVERY == 0 || at == operations {
            twins.compare_trees()?;
        }
    }
    Ok(())
}

fn regressions() -> Vec<u64> {
    include_str!("regressions.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| u64::from_str_radix(line.trim().trim_start_matches("0x"), 16).unwrap())
        .collect()
}

#[test]
fn random_sequences_that_found_something() {
    let found: Vec<String> =
        WAYS.into_iter().flat_map(|way| run(way, regressions(), REGRESSION_OPERATIONS)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn random_sequences() {
    let seed = match std::env::var("POSIX_SEED").as_deref() {
        Err(_) => SEED,
        Ok("fresh") => {
            std::time::UNIX_EPOCH.elapsed().map(|d| u64::try_from(d.as_millis()).unwrap()).unwrap()
        }
        Ok(text) => u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap(),
    };
    println!("seed {seed:#x}");
    let operations =
        std::env::var("POSIX_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(OPERATIONS);
    let found: Vec<String> = WAYS.into_iter().flat_map(|way| run(way, vec![seed], operations)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}
