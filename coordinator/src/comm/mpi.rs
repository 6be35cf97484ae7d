//! The MPI transport: the only file that names rsmpi.
//!
//! Funneled: the thread that made [`MpiTransport`] is the only one that calls MPI; the type cannot
//! leave it. A send, and a receive that follows a probe, owns its buffer until `MPI_Testsome` says
//! that MPI is done with it. Nothing waits within MPI, which would spin. (Not a matched probe: over
//! libfabric Open MPI 4.1.4 fails every `MPI_Mrecv` with MPI_ERR_OTHER. With one thread plain ones
//! do.) MPI's own errors are fatal to the job before a code could come back.
#![expect(
    unsafe_code,
    reason = "rsmpi's safe sends borrow for a scope; ours outlive it, so the raw calls are wrapped here"
)]

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::raw::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::environment::Universe;
use mpi::ffi;
use mpi::raw::AsRaw;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Equivalence, Source};
use scrfs::ids::NodeRank;

use super::buffers::Buffers;
use super::{BULK_BYTES_MAX, CommError, Lane, MESSAGE_BYTES_MAX, Received, Transport, check, compare};

/// Tags are the session's number and, in the lowest bit, the lane. MPI has 32,767 at least.
const SESSIONS: u32 = 1 << 14;

/// Receives that one poll begins.
const BEGIN_MAX: usize = 64;

/// Exit code of the MPI job when a coordinator panics (EX_SOFTWARE).
const EXIT_PANIC: c_int = 70;

/// Whose messages come in order: sender, lane, session.
type Key = (NodeRank, Lane, u32);

/// What a request is for.
enum Work {
    /// MPI reads from the buffer: it is neither changed nor freed before the request is done. The
    /// sends of one message to many share it.
    Send { buffer: Arc<Vec<u8>>, lane: Lane },
    /// MPI writes into the buffer of the [`Coming`] of this number, from there.
    Receive { key: Key, number: u64 },
}

/// Requests under way, with what each is for at the same index.
#[derive(Default)]
struct Requests {
    all: Vec<ffi::MPI_Request>,
    works: Vec<Work>,
    /// Room for the indices of those that are done.
    done: Vec<c_int>,
}

impl Requests {
    fn push(&mut self, request: ffi::MPI_Request, work: Work) {
        self.all.push(request);
        self.works.push(work);
    }

    /// Those that are done, which is asked with one call whatever their number.
    fn take_done(&mut self) -> Result<Vec<Work>, CommError> {
        let count = c_int::try_from(self.all.len()).unwrap_or(c_int::MAX);
        if count == 0 {
            return Ok(Vec::new());
        }
        self.done.resize(self.all.len(), 0);
        let mut done: c_int = 0;
        // SAFETY: the requests came from MPI_Isend and MPI_Irecv and were not yet reported done
        // (then they would have been removed); there are `count` of them, or more, and as much room
        // for indices. The statuses are MPI's own constant. This is MPI's thread, as the owner is
        // not Send.
        let code = unsafe {
            ffi::MPI_Testsome(
                count,
                self.all.as_mut_ptr(),
                &raw mut done,
                self.done.as_mut_ptr(),
                ffi::RSMPI_STATUSES_IGNORE,
            )
        };
        succeeded("MPI_Testsome", code)?;
        // It would be negative if no request were active.
        let done = self.done.get_mut(..usize::try_from(done).unwrap_or(0)).unwrap_or_default();
        // From the last on: whatever takes a removed one's place is not done.
        done.sort_unstable_by(|a, b| b.cmp(a));
        let indices = done.iter().filter_map(|index| usize::try_from(*index).ok());
        Ok(indices
            .map(|index| {
                self.all.swap_remove(index);
                self.works.swap_remove(index)
            })
            .collect())
    }
}

/// A message that was announced, and is on its way.
struct Coming {
    number: u64,
    /// MPI writes into it, and nobody else looks at it, until it is here.
    buffer: Vec<u8>,
    is_here: bool,
}

/// One rank of `MPI_COMM_WORLD`.
pub struct MpiTransport {
    requests: Requests,
    /// In the order in which they were announced.
    coming: BTreeMap<Key, VecDeque<Coming>>,
    /// Numbers of receives so far.
    received: u64,
    /// Messages that are here, to be given: of the control lane and of the bulk lane.
    here: [VecDeque<Received>; 2],
    /// The same of senders that are in the next session already.
    ahead: [VecDeque<Received>; 2],
    session: u32,
    bulk_bytes: usize,
    buffers: Buffers,
    rank: NodeRank,
    size: u32,
    world: SimpleCommunicator,
    /// Finalizes MPI when dropped: last of the MPI fields. `None` once given up.
    universe: Option<Universe>,
    /// Not `Send`: funneled.
    funneled: PhantomData<*const ()>,
}

impl MpiTransport {
    /// Starts MPI on this thread. From now on a panic ends the whole MPI job.
    pub fn new() -> Result<Self, CommError> {
        let (universe, threading) = mpi::environment::initialize_with_threading(Threading::Funneled)
            .ok_or_else(|| CommError::Unusable("MPI is initialised already".to_owned()))?;
        if threading < Threading::Funneled {
            return Err(CommError::Unusable("this MPI cannot run beside other threads".to_owned()));
        }
        abort_job_on_panic();
        let world = universe.world();
        let number =
            |n: c_int| u32::try_from(n).map_err(|_| CommError::Unusable(format!("rank or size {n}")));
        Ok(Self {
            requests: Requests::default(),
            coming: BTreeMap::new(),
            received: 0,
            here: Default::default(),
            ahead: Default::default(),
            session: 0,
            bulk_bytes: 0,
            buffers: Buffers::default(),
            rank: NodeRank(number(world.rank())?),
            size: number(world.size())?,
            world,
            universe: Some(universe),
            funneled: PhantomData,
        })
    }

    /// Ends the MPI job of all ranks with `code`.
    pub fn abort(&self, code: i32) -> ! {
        self.world.abort(code)
    }

    /// Waits up to `limit` for what is under way, then leaves MPI together with the other ranks.
    pub fn finish(mut self, limit: Duration) -> Result<(), CommError> {
        let end = Instant::now() + limit;
        while !self.requests.all.is_empty() {
            if Instant::now() >= end {
                return Err(CommError::Unusable(format!(
                    "{} messages were not taken",
                    self.requests.all.len()
                )));
            }
            // What comes now is for nobody, but must be taken for peers to end too.
            drop(self.poll()?);
            std::thread::yield_now();
        }
        drop(self.universe.take());
        Ok(())
    }

    /// Begins to receive a message, if one was announced.
    fn begin_receive(&mut self) -> Result<bool, CommError> {
        let Some(status) = self.world.any_process().immediate_probe() else { return Ok(false) };
        let bytes = status.count(u8::equivalent_datatype());
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        if len > MESSAGE_BYTES_MAX {
            self.abort(EXIT_PANIC);
        }
        let (source, tag) = (status.source_rank(), status.tag());
        let from = u32::try_from(source).map_err(|_| CommError::Unusable("no source".to_owned()))?;
        let (lane, session) = of_tag(tag);
        let mut buffer = match lane {
            Lane::Control => vec![0; len],
            Lane::Bulk => self.buffers.take(len),
        };
        let mut request = MaybeUninit::<ffi::MPI_Request>::uninit();
        // SAFETY: pointer and count are those of a vector whose heap block nobody reads, changes or
        // frees until MPI_Testsome reports the request done: `coming` holds it, and Drop leaks what
        // is not done. The message that was probed is the next of its source and tag, since only
        // this thread receives. It is MPI's thread, as the type is not Send.
        let code = unsafe {
            ffi::MPI_Irecv(
                buffer.as_mut_ptr().cast(),
                bytes,
                u8::equivalent_datatype().as_raw(),
                source,
                tag,
                self.world.as_raw(),
                request.as_mut_ptr(),
            )
        };
        succeeded("MPI_Irecv", code)?;
        self.received += 1;
        let number = self.received;
        // SAFETY: MPI_Irecv succeeded, so it wrote the request.
        let request = unsafe { request.assume_init() };
        let key = (NodeRank(from), lane, session);
        self.requests.push(request, Work::Receive { key, number });
        let coming = self.coming.entry(key).or_default();
        coming.push_back(Coming { number, buffer, is_here: false });
        Ok(true)
    }

    /// Takes note of what MPI is done with.
    fn move_on(&mut self) -> Result<(), CommError> {
        for work in self.requests.take_done()? {
            match work {
                Work::Send { buffer, lane: Lane::Bulk } => {
                    self.bulk_bytes = self.bulk_bytes.saturating_sub(buffer.len());
                    self.buffers.give_last(buffer);
                }
                Work::Send { .. } => {}
                Work::Receive { key, number } => self.arrived(key, number),
            }
        }
        Ok(())
    }

    /// A message is given when those of its sender and lane that were sent before are: a short one
    /// may be here sooner than a long one.
    fn arrived(&mut self, key: Key, number: u64) {
        let Some(coming) = self.coming.get_mut(&key) else { return };
        if let Some(message) = coming.iter_mut().find(|message| message.number == number) {
            message.is_here = true;
        }
        let (from, lane, session) = key;
        let mut given = match compare(session, self.session, SESSIONS) {
            Ordering::Equal => Some(&mut self.here),
            Ordering::Greater => Some(&mut self.ahead),
            Ordering::Less => None,
        };
        while let Some(message) = coming.pop_front_if(|message| message.is_here) {
            match &mut given {
                Some(given) => {
                    let received = Received { from, lane, bytes: message.buffer };
                    given[usize::from(lane == Lane::Bulk)].push_back(received);
                }
                None if lane == Lane::Bulk => self.buffers.give(message.buffer),
                None => {}
            }
        }
        if coming.is_empty() {
            self.coming.remove(&key);
        }
    }

    fn next_here(&mut self) -> Option<Received> {
        self.here.iter_mut().find_map(VecDeque::pop_front)
    }
}

impl Transport for MpiTransport {
    fn rank(&self) -> NodeRank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn send(&mut self, to: NodeRank, lane: Lane, bytes: impl Into<Arc<Vec<u8>>>) -> Result<(), CommError> {
        let bytes: Arc<Vec<u8>> = bytes.into();
        check(to, self.size, bytes.len())?;
        let (Ok(rank), Ok(count)) = (c_int::try_from(to.0), c_int::try_from(bytes.len())) else {
            return Err(CommError::TooLong(bytes.len(), to));
        };
        let mut request = MaybeUninit::<ffi::MPI_Request>::uninit();
        // SAFETY: pointer and count are those of a vector whose heap block stays as it is until
        // MPI_Testsome reports the request done: nobody changes what is behind an `Arc`, `requests`
        // holds it, and Drop leaks what is not done. Rank and tag are valid, checked above. This is
        // MPI's thread, as the type is not Send.
        let code = unsafe {
            ffi::MPI_Isend(
                bytes.as_ptr().cast(),
                count,
                u8::equivalent_datatype().as_raw(),
                rank,
                tag(lane, self.session),
                self.world.as_raw(),
                request.as_mut_ptr(),
            )
        };
        succeeded("MPI_Isend", code)?;
        self.bulk_bytes += if lane == Lane::Bulk { bytes.len() } else { 0 };
        // SAFETY: MPI_Isend succeeded, so it wrote the request.
        self.requests.push(unsafe { request.assume_init() }, Work::Send { buffer: bytes, lane });
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Received>, CommError> {
        if let Some(message) = self.next_here() {
            return Ok(Some(message));
        }
        for _ in 0..BEGIN_MAX {
            if !self.begin_receive()? {
                break;
            }
        }
        self.move_on()?;
        Ok(self.next_here())
    }

    fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    fn has_room(&self) -> bool {
        self.bulk_bytes < BULK_BYTES_MAX
    }

    fn is_drained(&self) -> bool {
        !self.requests.works.iter().any(|work| matches!(work, Work::Send { .. }))
    }

    fn next_session(&mut self) {
        self.session = (self.session + 1) % SESSIONS;
        self.here = std::mem::take(&mut self.ahead);
    }

    fn is_receiving(&self) -> bool {
        !self.coming.is_empty()
    }
}

impl Drop for MpiTransport {
    fn drop(&mut self) {
        if self.universe.is_some() && !self.requests.all.is_empty() {
            // MPI may still read and write these buffers, and MPI_Finalize would wait for those at
            // their other ends: leave all be. The caller ends the process.
            std::mem::forget(std::mem::take(&mut self.requests));
            std::mem::forget(std::mem::take(&mut self.coming));
            std::mem::forget(self.universe.take());
        }
    }
}

fn tag(lane: Lane, session: u32) -> c_int {
    let lane = u32::from(lane == Lane::Bulk);
    c_int::try_from(session * 2 + lane).unwrap_or(c_int::MAX)
}

fn of_tag(tag: c_int) -> (Lane, u32) {
    let tag = u32::try_from(tag).unwrap_or_default();
    (if tag % 2 == 1 { Lane::Bulk } else { Lane::Control }, tag / 2)
}

fn succeeded(call: &'static str, code: c_int) -> Result<(), CommError> {
    // MPI_SUCCESS is 0 in every MPI.
    if code == 0 { Ok(()) } else { Err(CommError::Library { call, code }) }
}

/// A panic does not end an MPI job by itself; the peers would wait for ever.
fn abort_job_on_panic() {
    let main = std::thread::current().id();
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        if std::thread::current().id() == main && !mpi::environment::is_finalized() {
            SimpleCommunicator::world().abort(EXIT_PANIC);
        }
        // Another thread must not call MPI; mpirun ends the job when one process dies of a signal.
        std::process::abort();
    }));
}
