//! Named fault points for the crash tests. Without feature `faults`, which release builds do not
//! have, all of this is nothing.
//!
//! `SCRFS_FAULTS` holds `point=action[@n]`, comma separated: at the n-th hit (default 1) of that
//! point in this process `kill` ends the process as SIGKILL does, `error` makes the step fail with
//! EIO, `full` with ENOSPC, `stop` freezes the process (SIGSTOP), `slow` makes every hit from the
//! environment wait 2 ms (no `@n`). `SCRFS_FAULTS_FILE` names a file with the same text, read at
//! every hit, so that a test can arm processes that already run; there `wait` holds the step up
//! until the file is written again. The one that fires deletes the file first: of all processes
//! that share it exactly one fires, once.
//!
//! Points are named `area.step`. Areas: `round` (directory rounds), `seal`, `encode`, `commit`,
//! `flush`, `rebuild`, `fetch`, `present`, `evict`, `remove`, `verify`, `store`, `generation`,
//! `loose`, `scavenge`, `worker`.
//!
//! In a daemon, in the order in which they are passed:
//! * rounds: `round.prepared`, `round.recorded`, `round.applied`
//! * seal: `seal.begun`, `seal.quiet`, of logs `seal.log` (each block) and `seal.logs`,
//!   `seal.frozen`, with markers that wait for no more `seal.promised`, then per member
//!   `seal.sync` (each file), `seal.synced`, `seal.placed`, `seal.recorded`, then `commit.begun`,
//!   `commit.recorded`, `commit.listed`
//! * a next generation: `generation.begun`, `generation.linked`, `generation.recorded`, per file
//!   that is changed `generation.block`, `generation.filled`, `generation.copied`,
//!   `generation.kept`; when it takes the place of the one before `generation.tidied`
//! * pointer files: `loose.storing`, `loose.indexed`, `loose.placed`; `loose.bound`; `loose.shown`
//! * rebuild: `rebuild.begun`, then as a seal's member; fetch: `fetch.block`, `fetch.staged`,
//!   `fetch.placed`
//! * flush: `flush.block`, `flush.copied`; verify: `verify.block`
//! * saving without coordinators: `scavenge.begun`, then as a flush's files, `scavenge.catalog`,
//!   `scavenge.copied`, `scavenge.member`, `scavenge.saved`, then `scavenge.whole` and as in the
//!   prefix
//! * restart: `present.begun`, `present.aside`, `present.back`, `present.listed`,
//!   and before programs are served `present.served`; eviction:
//!   `evict.begun`, `evict.removed`; a program's removal: `remove.aside`, `remove.synced`
//! * every commit of a file: `store.write`, `store.sync`, `store.rename`, `store.directory`;
//!   `store.remove`, `store.append`
//!
//! * a mount's processes: `worker.spawn` in the supervisor, before it starts one; `worker.start` in
//!   the worker
//! * requests of programs: `request.effect` between a change and its answer, `request.done` before
//!   the answer, `request.answered` after it; `passthrough.unused` when no handle uses a backing
//!   file any more, before it is given up
//!
//! In a coordinator:
//! * before a command reaches its daemon: `round.prepare`, `round.apply`, `round.finish`,
//!   `seal.freeze`, `generation.carry`, `commit.send`, `flush.member`, `present.send`, `loose.ask`,
//!   `loose.store`, `loose.bind`, `loose.finish`; before an event leaves for the lead:
//!   `round.prepared`, `round.applied`, `seal.frozen`, `generation.carried`, `commit.done`,
//!   `flush.copied`, `fetch.member`, `loose.begun`, `loose.stored`
//! * jobs: `encode.start`, `encode.block`, `encode.finish`, `rebuild.start`, `rebuild.block`,
//!   `rebuild.finish`, `fetch.send`, `fetch.install`
//! * rank 0 in the prefix: `flush.begin`, `flush.publish`, `flush.summary`, `flush.swap`,
//!   `flush.swapping`, `flush.swapped`, `flush.index`, `flush.current`, `flush.cleanup`;
//!   `scavenge.rebuilt`, `scavenge.whole`, `scavenge.swap`, `scavenge.published`; `loose.put`,
//!   `loose.written`, `loose.cleanup`

use std::io;

/// Passes fault point `point`.
///
/// # Errors
/// The injected one; never without feature `faults`.
#[cfg(not(feature = "faults"))]
#[inline]
pub fn hit(_point: &'static str) -> io::Result<()> {
    Ok(())
}

/// Passes fault point `point`.
///
/// # Errors
/// The injected one.
#[cfg(feature = "faults")]
pub fn hit(point: &'static str) -> io::Result<()> {
    armed::hit(point)
}

/// What a simulated process that dies at a fault point unwinds with.
#[cfg(feature = "faults")]
#[derive(Debug)]
pub struct Died(pub &'static str);

/// For simulations: what happens at a point.
#[cfg(feature = "faults")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The work of the thread that passes it ends, by an unwinding with [`Died`].
    Death,
    /// The step fails with this errno.
    Error(i32),
}

/// For simulations: `fault` happens at the `points`-th point that this thread passes from now on;
/// 0: at none.
#[cfg(feature = "faults")]
pub fn arm(points: u32, fault: Fault) {
    armed::ARMED.set((points, fault));
}

/// What a simulation does in the middle of other work.
#[cfg(feature = "faults")]
pub type Interruption = Box<dyn FnOnce() + Send>;

/// For simulations: `what` is done at the `points`-th point of this area that this thread passes
/// from now on.
#[cfg(feature = "faults")]
pub fn interrupt(area: &'static str, points: u32, what: Interruption) {
    armed::INTERRUPTED.set(Some((area, points, what)));
}

/// What was to interrupt this thread, and has not.
#[cfg(feature = "faults")]
pub fn uninterrupted() -> Option<Interruption> {
    armed::INTERRUPTED.take().map(|(_, _, what)| what)
}

/// What is to interrupt a piece of work, on its way to the thread that goes on with that work.
#[cfg(feature = "faults")]
pub(crate) struct Pending(Option<(&'static str, u32, Interruption)>);

#[cfg(not(feature = "faults"))]
pub(crate) struct Pending;

#[cfg(feature = "faults")]
impl Pending {
    /// It leaves this thread.
    pub(crate) fn leave() -> Self {
        Self(armed::INTERRUPTED.take())
    }

    /// It is this thread's.
    pub(crate) fn enter(self) {
        armed::INTERRUPTED.set(self.0);
    }
}

#[cfg(not(feature = "faults"))]
impl Pending {
    #[inline]
    pub(crate) fn leave() -> Self {
        Self
    }

    #[inline]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    pub(crate) fn enter(self) {}
}

#[cfg(feature = "faults")]
mod armed {
    use std::cell::Cell;
    use std::collections::HashMap;
    use std::io;
    use std::sync::OnceLock;

    use super::{Fault, Interruption};
    use crate::lock::{Mutex, Rank};

    const SLOW: std::time::Duration = std::time::Duration::from_millis(2);
    /// A test that has failed releases nobody. One that goes on does so before this, also where
    /// each of its steps takes a minute.
    const WAIT_MAX: std::time::Duration = std::time::Duration::from_mins(10);

    thread_local! {
        /// In so many points that happens in this thread; 0: it does not.
        pub(super) static ARMED: Cell<(u32, Fault)> = const { Cell::new((0, Fault::Death)) };
        /// What is done in so many points of this area.
        pub(super) static INTERRUPTED: Cell<Option<(&'static str, u32, Interruption)>> =
            const { Cell::new(None) };
    }

    #[derive(Default)]
    struct Counters {
        text: String,
        hits: HashMap<&'static str, u64>,
    }

    fn counters() -> &'static Mutex<Counters> {
        static COUNTERS: OnceLock<Mutex<Counters>> = OnceLock::new();
        COUNTERS.get_or_init(|| Mutex::new(Rank::Faults, Counters::default()))
    }

    fn find(text: &str, point: &str, count: u64) -> Option<String> {
        text.split(',').find_map(|item| {
            let (name, action) = item.trim().split_once('=')?;
            let (action, nth) = action.split_once('@').unwrap_or((action, "1"));
            (name == point && nth.parse() == Ok(count)).then(|| action.to_owned())
        })
    }

    fn interrupt(point: &'static str) {
        match INTERRUPTED.take() {
            Some((area, 0 | 1, what)) if point.split('.').next() == Some(area) => what(),
            Some((area, points, what)) => {
                let passed = u32::from(point.split('.').next() == Some(area));
                INTERRUPTED.set(Some((area, points - passed, what)));
            }
            None => {}
        }
    }

    pub(super) fn hit(point: &'static str) -> io::Result<()> {
        interrupt(point);
        let (left, fault) = ARMED.get();
        ARMED.set((left.saturating_sub(1), fault));
        match fault {
            _ if left != 1 => {}
            // No panic: nobody is to hear of it.
            Fault::Death => std::panic::resume_unwind(Box::new(super::Died(point))),
            Fault::Error(errno) => return Err(io::Error::from_raw_os_error(errno)),
        }
        let file = std::env::var_os("SCRFS_FAULTS_FILE");
        let from_file = file.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        let from_env = std::env::var("SCRFS_FAULTS").unwrap_or_default();
        if from_file.is_empty() && from_env.is_empty() {
            return Ok(());
        }
        if find(&from_env, point, 1).as_deref() == Some("slow") {
            std::thread::sleep(SLOW);
            return Ok(());
        }
        let count = {
            let mut counters = counters().lock();
            if counters.text != from_file {
                counters.text.clone_from(&from_file);
                counters.hits.clear();
            }
            let count = counters.hits.entry(point).or_default();
            *count += 1;
            *count
        };
        if let Some(action) = find(&from_env, point, count) {
            return fire(point, &action);
        }
        if let Some((action, path)) = find(&from_file, point, count).zip(file)
            && std::fs::remove_file(path).is_ok()
        {
            return fire(point, &action);
        }
        Ok(())
    }

    /// Until the file of faults is there again.
    fn wait() {
        let file = std::env::var_os("SCRFS_FAULTS_FILE").unwrap_or_default();
        let until = std::time::Instant::now() + WAIT_MAX;
        while !std::path::Path::new(&file).exists() && std::time::Instant::now() < until {
            std::thread::sleep(SLOW);
        }
    }

    fn fire(point: &'static str, action: &str) -> io::Result<()> {
        tracing::warn!(point, action, "fault fires");
        let signal = match action {
            "wait" => {
                wait();
                return Ok(());
            }
            "kill" => nix::sys::signal::Signal::SIGKILL,
            "stop" => nix::sys::signal::Signal::SIGSTOP,
            "full" => return Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            _ => return Err(io::Error::from_raw_os_error(libc::EIO)),
        };
        nix::sys::signal::kill(nix::unistd::Pid::this(), signal).map_err(io::Error::from)?;
        Ok(())
    }
}
