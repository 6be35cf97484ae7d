//! Sets the scheduling of a process's threads, and sets it back.
//!
//! A thread that is nice does background work and is left as it is, and so is one that works long
//! while nobody waits for that. The others get `SCHED_RR` at its lowest priority, which goes before
//! every time slice whatever session or control group the program is in; where the kernel refuses
//! that, nice -20 and the shortest time slice. Threads and processes that they start begin as usual
//! (reset on fork).
#![expect(unsafe_code, reason = "sched_setattr and sched_getattr have no safe wrapper")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::control::peer::lives;

/// The lowest: before the program, behind whatever an administrator has made real-time.
const RR_PRIORITY: u32 = 1;
/// Nanoseconds; the kernel's least.
const SHORT_SLICE: u64 = 100_000;
/// `SCHED_FLAG_RESET_ON_FORK`.
const RESET_ON_FORK: u64 = 1;
/// The program that a coordinator runs.
const COORDINATOR: &str = "scrfs-coordinator";
/// More threads than a coordinator or a daemon ever has.
const THREADS_MAX: usize = 4096;
/// So many of them are raised at a time, the oldest first: what has more is no coordinator.
const RAISED_MAX: usize = 32;

/// How threads are preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// `SCHED_RR`.
    RoundRobin,
    /// nice -20.
    Nice,
}

impl Means {
    /// For status.
    pub fn word(self) -> &'static str {
        match self {
            Self::RoundRobin => "SCHED_RR",
            Self::Nice => "nice -20",
        }
    }
}

/// Which threads of a process are preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Those that answer: nobody waits for work that takes long.
    Answers,
    /// Also those that work long.
    All,
}

/// As the kernel takes it (`struct sched_attr`, version 0).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SIZE: u32 = 48;
const _: () = assert!(size_of::<Attributes>() == SIZE as usize, "the kernel's version 0");

impl Attributes {
    fn of(means: Means) -> Self {
        let none = Self { size: SIZE, flags: RESET_ON_FORK, ..Self::default() };
        match means {
            Means::RoundRobin => {
                Self { policy: libc::SCHED_RR.unsigned_abs(), priority: RR_PRIORITY, ..none }
            }
            Means::Nice => Self { nice: -20, runtime: SHORT_SLICE, ..none },
        }
    }

    /// [`be_patient`] was called there.
    fn works_long(self) -> bool {
        self.policy == libc::SCHED_BATCH.unsigned_abs()
    }

    fn is_usual(self) -> bool {
        (self.policy == libc::SCHED_OTHER.unsigned_abs() || self.works_long()) && self.nice <= 0
    }

    /// Raised by a daemon, also where code in the thread has changed since what it may change: how
    /// nice it is, and which of the usual policies it has. The flag is root's to take away, no
    /// child inherits it, and it stays with a thread that execve(2) makes the leader.
    fn is_ours(self) -> bool {
        let round_robin = self.policy == libc::SCHED_RR.unsigned_abs() && self.priority == RR_PRIORITY;
        let usual = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].map(i32::unsigned_abs);
        let nice = usual.contains(&self.policy) && self.nice < 0;
        self.flags & RESET_ON_FORK != 0 && (round_robin || nice)
    }

    /// Of a thread that has been raised, and of which nobody knows how it was before.
    fn plain() -> Self {
        Self { size: SIZE, flags: RESET_ON_FORK, runtime: SHORT_SLICE, ..Self::default() }
    }
}

fn attributes(tid: i32) -> io::Result<Attributes> {
    let mut got = Attributes::default();
    // SAFETY: `got` is a live `sched_attr` of SIZE bytes, to which the kernel writes at most as
    // many; any bytes are valid in it.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut got, SIZE, 0) };
    if result == 0 { Ok(got) } else { Err(io::Error::last_os_error()) }
}

fn set(tid: i32, attributes: Attributes) -> io::Result<()> {
    // SAFETY: the kernel only reads the SIZE bytes, as `size` in them says, of a live value.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The best means that the kernel grants.
fn first_that_works(set: impl Fn(Means) -> io::Result<()>) -> io::Result<Means> {
    let with = |means| set(means).map(|()| means);
    with(Means::RoundRobin).or_else(|_| with(Means::Nice))
}

/// A process by its directory in /proc, which stays its own however numbers are used again.
struct Process {
    directory: OwnedFd,
    /// Its number, as long as it lives.
    pid: i32,
}

impl Process {
    fn open(pid: i32) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { directory: rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty())?, pid })
    }

    fn own() -> io::Result<Self> {
        Self::open(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// The process at the other end of a socket, of which `held` is the pidfd, if its program is a
    /// coordinator that nobody else can have changed.
    fn coordinator(pid: i32, held: BorrowedFd<'_>) -> io::Result<Self> {
        let process = Self::open(pid)?;
        // It lives still, so the number was its when the directory was opened.
        if !lives(held)? {
            return Err(Errno::SRCH.into());
        }
        let link = rustix::fs::readlinkat(&process.directory, "exe", Vec::new())?;
        if link.to_bytes().rsplit(|byte| *byte == b'/').next() != Some(COORDINATOR.as_bytes()) {
            return Err(io::Error::other(format!("it is no {COORDINATOR}")));
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let program =
            std::fs::File::from(rustix::fs::openat(&process.directory, "exe", flags, Mode::empty())?);
        let meta = program.metadata()?;
        let own = rustix::process::geteuid().as_raw();
        if ![0, own].contains(&meta.uid()) || meta.mode() & 0o022 != 0 {
            return Err(io::Error::other("its program can be changed by others than root"));
        }
        Ok(process)
    }

    fn threads(&self) -> io::Result<Vec<i32>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let task = rustix::fs::openat(&self.directory, "task", flags, Mode::empty())?;
        let mut threads = Vec::new();
        for entry in rustix::fs::Dir::new(task)?.take(THREADS_MAX) {
            threads.extend(entry?.file_name().to_str().ok().and_then(|name| name.parse::<i32>().ok()));
        }
        Ok(threads)
    }

    /// Processor time that a thread has had; `None`: it has ended, or the kernel does not tell.
    fn ran(&self, tid: i32) -> Option<Duration> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let path = format!("task/{tid}/schedstat");
        let file = rustix::fs::openat(&self.directory, path, flags, Mode::empty()).ok()?;
        let mut text = [0; 64];
        let bytes = rustix::io::read(&file, &mut text).ok()?;
        let text = std::str::from_utf8(text.get(..bytes)?).ok()?;
        text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    }

    /// Processor time that all its threads have had, also those that have ended; `None`: it has
    /// ended itself, or the kernel does not tell.
    fn ran_in_all(&self) -> Option<Duration> {
        let clock = nix::time::clock_getcpuclockid(nix::unistd::Pid::from_raw(self.pid)).ok()?;
        let ran = nix::time::clock_gettime(clock).ok()?;
        // It lives still, so the number was its.
        self.has(self.pid).then(|| Duration::from(ran))
    }

    fn has(&self, tid: i32) -> bool {
        rustix::fs::statat(&self.directory, format!("task/{tid}"), rustix::fs::AtFlags::empty()).is_ok()
    }
}

/// A thread that is raised.
#[derive(Debug, Clone, Copy)]
struct Raised {
    /// How it was before.
    former: Attributes,
    /// Processor time that it had had when it was looked at last, and when that was.
    ran: Option<Duration>,
    at: Instant,
}

/// The threads of one process, and how they were before.
pub struct Threads {
    process: Process,
    raised: BTreeMap<i32, Raised>,
    /// What the process had had in all at the last look.
    in_all: Option<Duration>,
    most: usize,
    means: Option<Means>,
}

impl Threads {
    /// Of this process.
    pub fn own() -> io::Result<Self> {
        Ok(Self::of(Process::own()?, THREADS_MAX))
    }

    /// Of a coordinator that has connected: its pid and pidfd. Refused when it is not what it says.
    pub fn of_coordinator(pid: i32, held: impl AsFd) -> io::Result<Self> {
        Ok(Self::of(Process::coordinator(pid, held.as_fd())?, RAISED_MAX))
    }

    fn of(process: Process, most: usize) -> Self {
        Self { process, raised: BTreeMap::new(), in_all: None, most, means: None }
    }

    /// Prefers all threads that are not background ones, also those that have come since the last
    /// time.
    pub fn raise(&mut self, reach: Reach) -> io::Result<Means> {
        if self.raised.is_empty() {
            self.in_all = self.process.ran_in_all();
        }
        let threads = self.process.threads()?;
        let mut means = self.means;
        for tid in threads {
            if self.raised.contains_key(&tid) {
                continue;
            }
            if self.raised.len() >= self.most {
                break;
            }
            match self.raise_thread(tid, means, reach) {
                Ok(with) => means = means.or(with),
                // It has ended.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => {}
                Err(error) => return Err(error),
            }
        }
        self.means = means;
        means.ok_or_else(|| io::Error::other("it has only background threads"))
    }

    fn raise_thread(&mut self, tid: i32, known: Option<Means>, reach: Reach) -> io::Result<Option<Means>> {
        let mut former = attributes(tid)?;
        if former.is_ours() {
            former = Attributes::plain();
        } else if !former.is_usual() || former.works_long() && reach < Reach::All {
            return Ok(None);
        }
        let means = match known {
            Some(means) => set(tid, Attributes::of(means)).map(|()| means),
            None => first_that_works(|means| set(tid, Attributes::of(means))),
        }?;
        if self.process.has(tid) {
            let (ran, at) = (self.process.ran(tid), Instant::now());
            self.raised.insert(tid, Raised { former, ran, at });
            Ok(Some(means))
        } else {
            // The number was another's by then.
            set(tid, former)?;
            Ok(None)
        }
    }

    /// Processor time that raised threads have had since this was asked for last, and at most that:
    /// of one that has ended meanwhile it is not known, so that all the time counts, but not more
    /// than what the whole process has had.
    pub fn take_stock(&mut self, now: Instant) -> Duration {
        let mut used = Duration::ZERO;
        let process = &self.process;
        self.raised.retain(|tid, raised| {
            let ran = process.ran(*tid);
            used += match (raised.ran, ran) {
                (Some(then), Some(now)) => now.saturating_sub(then),
                _ => now.saturating_duration_since(raised.at),
            };
            (raised.ran, raised.at) = (ran, now);
            ran.is_some() || process.has(*tid)
        });
        let in_all = process.ran_in_all();
        match (std::mem::replace(&mut self.in_all, in_all), in_all) {
            (Some(then), Some(now)) => used.min(now.saturating_sub(then)),
            _ => used,
        }
    }

    /// Sets every thread back that is raised: also one that has got another number by execve(2).
    pub fn give_back(&mut self) {
        let raised = std::mem::take(&mut self.raised);
        let mut threads: BTreeMap<i32, Attributes> = self
            .process
            .threads()
            .unwrap_or_default()
            .into_iter()
            .map(|tid| (tid, Attributes::plain()))
            .collect();
        threads.extend(raised.into_iter().map(|(tid, raised)| (tid, raised.former)));
        for (tid, former) in threads {
            // Not a thread that got the number of one that has ended: that one was never raised, or
            // by an administrator.
            let ours = attributes(tid).is_ok_and(Attributes::is_ours);
            if ours
                && self.process.has(tid)
                && let Err(error) = set(tid, Attributes { size: SIZE, ..former })
                && Errno::from_io_error(&error) != Some(Errno::SRCH)
            {
                tracing::warn!(tid, %error, "a thread keeps its raised priority");
            }
        }
    }
}

/// How a process of this user's may be preferred, tried on a thread that ends with the trial.
///
/// # Errors
/// The kernel refuses both means.
pub fn possible() -> io::Result<Means> {
    let trial = || first_that_works(|means| set(0, Attributes::of(means)));
    let thread = std::thread::Builder::new().name("priority".to_owned()).spawn(trial)?;
    thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Threads({} raised)", self.raised.len())
    }
}

/// How nice background work is.
const NICE: i32 = 5;

/// From now on this thread does background work.
pub fn be_nice() {
    let nice = || {
        rustix::process::nice(NICE)?;
        // In slices as anybody's: many short ones cost more.
        slice(0)
    };
    if let Err(error) = nice() {
        tracing::debug!(%error, "could not lower the priority");
    }
}

/// From now on this thread, and those that it starts while it is not raised, work in short time
/// slices: no larger part of the processors, but as soon as something comes instead of at the end
/// of the slice of a rank that spins. Since Linux 6.12; before that it changes nothing. Needs no
/// right.
pub fn be_prompt() {
    if let Err(error) = slice(SHORT_SLICE) {
        tracing::debug!(%error, "could not shorten the time slices");
    }
}

/// From now on this thread works long: those of its process that answer go before it, and its own
/// time slices are as anybody's.
pub fn be_patient() {
    let patient = || {
        slice(0)?;
        let now = attributes(0)?;
        if now.policy == libc::SCHED_OTHER.unsigned_abs() {
            set(0, Attributes { size: SIZE, policy: libc::SCHED_BATCH.unsigned_abs(), ..now })?;
        }
        Ok::<_, io::Error>(())
    };
    if let Err(error) = patient() {
        tracing::debug!(%error, "other threads do not go first");
    }
}

/// Lets raised threads run that wait for a processor: a slice of this one, if it is raised itself,
/// is 100 ms by default, and an answer would come after it. What is not raised stays behind.
pub fn give_way() {
    if attributes(0).is_ok_and(|now| now.policy == libc::SCHED_RR.unsigned_abs()) {
        std::thread::yield_now();
    }
}

/// So many nanoseconds for each of this thread's slices; 0: the kernel's usual.
fn slice(runtime: u64) -> io::Result<()> {
    let now = attributes(0)?;
    if now.policy != libc::SCHED_OTHER.unsigned_abs() {
        // An administrator's wish.
        return Ok(());
    }
    set(0, Attributes { size: SIZE, runtime, ..now })
}

/// Gives back what a daemon gave this process: for a coordinator whose daemon is gone.
pub fn step_back() -> io::Result<()> {
    for tid in Process::own()?.threads()? {
        if attributes(tid).is_ok_and(Attributes::is_ours) {
            set(tid, Attributes::plain())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    use super::*;

    /// Runs `body` of this test in a process of its own: it sets the scheduling of all threads of
    /// the process, or looks how its own is set, and daemons of other tests set all of them back.
    fn alone(test: &str, body: impl FnOnce()) {
        const IS_ALONE: &str = "SCRFS_TEST_IS_ALONE";
        if std::env::var_os(IS_ALONE).is_some() {
            return body();
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &format!("priority::threads::tests::{test}")]).env(IS_ALONE, "1");
        let ran = child.stdin(Stdio::null()).output().unwrap();
        let said = [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    fn threads_are_raised_save_nice_ones_and_set_back() {
        alone("threads_are_raised_save_nice_ones_and_set_back", || {
            let (told, asked) = std::sync::mpsc::channel::<()>();
            let mut tids = Vec::new();
            let threads = [(0, false), (5, false), (0, true)].map(|(nice, is_patient)| {
                let (tell, tid) = std::sync::mpsc::channel();
                let (hold, end) = std::sync::mpsc::channel::<()>();
                let thread = std::thread::spawn(move || {
                    // Whatever the process was started with; without root only nicer than that.
                    let set = rustix::process::setpriority_process(None, nice);
                    assert!(set.is_ok() || !rustix::process::geteuid().is_root(), "{set:?}");
                    if is_patient {
                        be_patient();
                    }
                    tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
                    let _ = end.recv();
                });
                tids.push(tid.recv().unwrap());
                (thread, hold)
            });
            let before: Vec<_> = tids.iter().map(|&tid| attributes(tid).unwrap()).collect();
            let mut own = Threads::own().unwrap();
            let raised = own.raise(Reach::Answers);
            assert_eq!(attributes(tids[2]).unwrap(), before[2], "nobody waits for it");
            let raised = raised.and_then(|_| own.raise(Reach::All));
            if rustix::process::geteuid().is_root() {
                raised.unwrap();
                let [answers, works] = [0, 2].map(|at: usize| attributes(tids[at]).unwrap());
                assert!(answers.is_ours() && works.is_ours(), "{answers:?} {works:?}");
            }
            assert_eq!(attributes(tids[1]).unwrap(), before[1], "background stays nice");
            assert!(before[2].works_long() && !before[0].works_long(), "{before:?}");
            own.give_back();
            let after: Vec<_> = tids.iter().map(|&tid| attributes(tid).unwrap()).collect();
            assert_eq!(after, before);
            drop((told, asked));
            for (thread, hold) in threads {
                drop(hold);
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn prompt_threads_and_theirs_work_in_short_slices_and_background_does_not() {
        alone("prompt_threads_and_theirs_work_in_short_slices_and_background_does_not", || {
            let own = || attributes(0).unwrap();
            let thread = std::thread::spawn(move || {
                let usual = own();
                be_prompt();
                let child = std::thread::spawn(own).join().unwrap();
                assert_eq!(child, own());
                assert_eq!((child.policy, child.nice), (usual.policy, usual.nice));
                // Before Linux 6.12 there is nothing to see.
                assert!(usual.runtime == 0 || child.runtime == SHORT_SLICE, "{usual:?} {child:?}");
                be_nice();
                assert_eq!(own().nice, (usual.nice + NICE).min(19));
                assert_eq!(own().runtime, usual.runtime);
            });
            thread.join().unwrap();
        });
    }

    #[test]
    fn where_there_is_no_real_time_nice_must_do() {
        alone("where_there_is_no_real_time_nice_must_do", || {
            let refused = || io::Error::from_raw_os_error(libc::EPERM);
            let grants = |granted: &[Means]| {
                first_that_works(|means| granted.contains(&means).then_some(()).ok_or_else(refused))
            };
            assert_eq!(grants(&[Means::RoundRobin, Means::Nice]).unwrap(), Means::RoundRobin);
            assert_eq!(grants(&[Means::Nice]).unwrap(), Means::Nice);
            assert_eq!(grants(&[]).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            if !rustix::process::geteuid().is_root() {
                return;
            }
            // As the kernel does it: a thread of its own, since it stays nice without the right to
            // be otherwise.
            let thread = std::thread::spawn(|| {
                // Whatever the process was started with.
                rustix::process::setpriority_process(None, 0).unwrap();
                let me = rustix::thread::gettid().as_raw_nonzero().get();
                let mut own = Threads::own().unwrap();
                let former = attributes(me).unwrap();
                assert_eq!(own.raise_thread(me, Some(Means::Nice), Reach::All).unwrap(), Some(Means::Nice));
                let now = attributes(me).unwrap();
                assert_eq!((now.policy, now.nice), (libc::SCHED_OTHER.unsigned_abs(), -20));
                assert!(now.is_ours() && Means::Nice.word() == "nice -20");
                own.give_back();
                assert_eq!(attributes(me).unwrap(), former);
                // Whatever code of the user's makes of it in between, and whoever has lost count.
                for forgotten in [false, true] {
                    own.raise_thread(me, Some(Means::Nice), Reach::All).unwrap();
                    set(me, Attributes { policy: libc::SCHED_BATCH.unsigned_abs(), nice: -19, ..now })
                        .unwrap();
                    assert!(attributes(me).unwrap().is_ours());
                    if forgotten {
                        own.raised.clear();
                        own.raise_thread(me, Some(Means::Nice), Reach::All).unwrap();
                        assert_eq!(own.raised[&me].former, Attributes::plain(), "what it was made up to be");
                        own.raised.clear();
                    }
                    own.give_back();
                    let left = attributes(me).unwrap();
                    assert_eq!((left.policy, left.nice), (former.policy, former.nice.max(0)), "{left:?}");
                    set(me, former).unwrap();
                }
            });
            thread.join().unwrap();
        });
    }

    #[test]
    fn what_raised_threads_take_is_counted_also_of_those_that_have_ended() {
        alone("what_raised_threads_take_is_counted_also_of_those_that_have_ended", || {
            let mut own = Threads::own().unwrap();
            let me = rustix::thread::gettid().as_raw_nonzero().get();
            let usual = attributes(me).unwrap();
            let raise = |own: &mut Threads, tid: i32, at: Instant| {
                // As if: whether this process may raise anything is no matter here.
                own.raised.insert(tid, Raised { former: usual, ran: own.process.ran(tid), at });
            };
            raise(&mut own, me, Instant::now());
            let until = own.process.ran(me).expect("this kernel tells") + Duration::from_millis(30);
            let mut sum = 0_u64;
            while own.process.ran(me).unwrap() < until {
                sum = std::hint::black_box(sum.wrapping_add(1));
            }
            let used = own.take_stock(Instant::now());
            assert!((Duration::from_millis(25)..Duration::from_secs(5)).contains(&used), "{used:?}");
            assert!(own.take_stock(Instant::now()) < Duration::from_millis(25), "counted twice");
            // One that has ended counts as if it had run all the time, once, where the process's
            // time is not known either.
            let ended =
                std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get()).join().unwrap();
            let begun = Instant::now();
            while own.process.has(ended) {
                std::thread::yield_now();
            }
            own.raised.clear();
            raise(&mut own, ended, begun);
            own.in_all = None;
            assert_eq!(own.take_stock(begun + Duration::from_secs(3)), Duration::from_secs(3));
            assert_eq!(own.take_stock(begun + Duration::from_secs(9)), Duration::ZERO);
        });
    }

    #[test]
    fn threads_that_have_ended_took_no_more_than_their_process() {
        // A process of its own: what other tests take here is not to be counted.
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let mut threads = Threads::of(Process::open(pid).unwrap(), THREADS_MAX);
        let (former, begun) = (attributes(pid).unwrap(), Instant::now());
        // As if; no thread has this number.
        let ended = Raised { former, ran: Some(Duration::ZERO), at: begun };
        threads.raised.insert(i32::MAX, ended);
        threads.in_all = threads.process.ran_in_all();
        assert!(threads.in_all.is_some());
        let used = threads.take_stock(begun + Duration::from_mins(1));
        assert!(used < Duration::from_secs(1), "it slept: {used:?}");
        // Its number is nobody's any more, or another's.
        threads.raised.insert(i32::MAX, ended);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(threads.take_stock(begun + Duration::from_mins(1)), Duration::from_mins(1));
    }

    #[test]
    fn only_a_coordinator_that_lives_is_taken() {
        let sleeper = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn();
        let mut child = sleeper.unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let held = rustix::process::pidfd_open(
            rustix::process::Pid::from_raw(pid).unwrap(),
            rustix::process::PidfdFlags::empty(),
        )
        .unwrap();
        let refused = Threads::of_coordinator(pid, held.as_fd()).unwrap_err();
        assert!(refused.to_string().contains("no scrfs-coordinator"), "{refused}");
        child.kill().unwrap();
        child.wait().unwrap();
        // The number may be another's by now, even a coordinator's.
        assert!(Threads::of_coordinator(pid, held.as_fd()).is_err());
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(Threads::of_coordinator(me, held.as_fd()).is_err());
    }
}
