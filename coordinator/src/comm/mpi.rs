//! The MPI transport: the only file that names rsmpi.
//!
//! Funneled: the thread that made [`MpiTransport`] is the only one that calls MPI; the type cannot
//! leave it. Sends own their buffer until `MPI_Test` says that MPI is done with it; receives follow
//! a probe, so no buffer is posted ahead. (Not a matched probe: over libfabric Open MPI 4.1.4 fails
//! every `MPI_Mrecv` with MPI_ERR_OTHER. With one thread plain ones do.) MPI's own errors are fatal
//! to the job before a code could come back.
#![expect(
    unsafe_code,
    reason = "rsmpi's safe sends borrow for a scope; ours outlive it, so the raw calls are wrapped here"
)]

use std::collections::VecDeque;
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

use super::{BULK_BYTES_MAX, CommError, Lane, MESSAGE_BYTES_MAX, Received, Transport, check};

const TAG_CONTROL: c_int = 1;
const TAG_BULK: c_int = 2;

/// Exit code of the MPI job when a coordinator panics (EX_SOFTWARE).
const EXIT_PANIC: c_int = 70;

/// A send that MPI still reads from.
struct Pending {
    request: ffi::MPI_Request,
    /// MPI holds a pointer into it: neither changed nor freed before the request is done. Shared by
    /// the sends of one message to many.
    buffer: Arc<Vec<u8>>,
    bulk: bool,
}

/// One rank of `MPI_COMM_WORLD`.
pub struct MpiTransport {
    pending: VecDeque<Pending>,
    bulk_bytes: usize,
    rank: NodeRank,
    size: u32,
    world: SimpleCommunicator,
    /// Finalizes MPI when dropped: last of the MPI fields. `None` once given up.
    universe: Option<Universe>,
    /// Not `Send`: funneled.
    here: PhantomData<*const ()>,
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
            pending: VecDeque::new(),
            bulk_bytes: 0,
            rank: NodeRank(number(world.rank())?),
            size: number(world.size())?,
            world,
            universe: Some(universe),
            here: PhantomData,
        })
    }

    /// Ends the MPI job of all ranks with `code`.
    pub fn abort(&self, code: i32) -> ! {
        self.world.abort(code)
    }

    /// Waits up to `limit` for the sends under way, then leaves MPI together with the other ranks.
    pub fn finish(mut self, limit: Duration) -> Result<(), CommError> {
        let end = Instant::now() + limit;
        while !self.is_drained() {
            if Instant::now() >= end {
                return Err(CommError::Unusable(format!("{} messages were not taken", self.pending.len())));
            }
            // What comes now is for nobody, but must be taken for peers to end too.
            drop(self.poll()?);
            std::thread::yield_now();
        }
        drop(self.universe.take());
        Ok(())
    }

    fn test_sends(&mut self) -> Result<(), CommError> {
        for _ in 0..self.pending.len() {
            let Some(mut send) = self.pending.pop_front() else { break };
            let mut done: c_int = 0;
            let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
            // SAFETY: `request` came from MPI_Isend and was not yet reported done (then it would
            // not be in `pending`); the pointers are to live locals; this is MPI's thread, as the
            // type is not Send.
            let code = unsafe { ffi::MPI_Test(&raw mut send.request, &raw mut done, status.as_mut_ptr()) };
            if done == 0 {
                self.pending.push_back(send);
                succeeded("MPI_Test", code)?;
                continue;
            }
            if send.bulk {
                self.bulk_bytes = self.bulk_bytes.saturating_sub(send.buffer.len());
            }
        }
        Ok(())
    }

    fn take(&mut self, lane: Lane) -> Result<Option<Received>, CommError> {
        let Some(status) = self.world.any_process().immediate_probe_with_tag(tag(lane)) else {
            return Ok(None);
        };
        let bytes = usize::try_from(status.count(u8::equivalent_datatype())).unwrap_or(usize::MAX);
        if bytes > MESSAGE_BYTES_MAX {
            self.abort(EXIT_PANIC);
        }
        let source = status.source_rank();
        let from = u32::try_from(source).map_err(|_| CommError::Unusable("no source".to_owned()))?;
        let mut buffer = vec![0u8; bytes];
        // Only this thread receives, so the message that was probed is the next of its source and
        // tag.
        self.world.process_at_rank(source).receive_into_with_tag(&mut buffer[..], tag(lane));
        Ok(Some(Received { from: NodeRank(from), lane, bytes: buffer }))
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
        // MPI_Test reports the request done: nobody changes what is behind an `Arc`, `pending`
        // holds it, and Drop leaks what is not done. Rank and tag are valid, checked above. This is
        // MPI's thread, as the type is not Send.
        let code = unsafe {
            ffi::MPI_Isend(
                bytes.as_ptr().cast(),
                count,
                u8::equivalent_datatype().as_raw(),
                rank,
                tag(lane),
                self.world.as_raw(),
                request.as_mut_ptr(),
            )
        };
        succeeded("MPI_Isend", code)?;
        let bulk = lane == Lane::Bulk;
        self.bulk_bytes += if bulk { bytes.len() } else { 0 };
        // SAFETY: MPI_Isend succeeded, so it wrote the request.
        let request = unsafe { request.assume_init() };
        self.pending.push_back(Pending { request, buffer: bytes, bulk });
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Received>, CommError> {
        self.test_sends()?;
        match self.take(Lane::Control)? {
            Some(message) => Ok(Some(message)),
            None => self.take(Lane::Bulk),
        }
    }

    fn has_room(&self) -> bool {
        self.bulk_bytes < BULK_BYTES_MAX
    }

    fn is_drained(&self) -> bool {
        self.pending.is_empty()
    }
}

impl Drop for MpiTransport {
    fn drop(&mut self) {
        if self.universe.is_some() && !self.pending.is_empty() {
            // MPI may still read these buffers, and MPI_Finalize would wait for their receivers:
            // leave both be. The caller ends the process.
            std::mem::forget(std::mem::take(&mut self.pending));
            std::mem::forget(self.universe.take());
        }
    }
}

fn tag(lane: Lane) -> c_int {
    match lane {
        Lane::Control => TAG_CONTROL,
        Lane::Bulk => TAG_BULK,
    }
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
