//! Why a share of a job fails.

use std::io;

use nix::errno::Errno;
use scrfs::control::{NoRoom, Reason};
use scrfs::ids::{DatasetId, Member};
use scrfs::path::RelPath;

/// Why a share of a job fails. The text goes to the lead, the log and the events.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// Another share failed, or the coordinator's link is lost.
    #[error("ended by others: {0}")]
    Aborted(Reason),
    /// Nothing came from a peer for [`super::STALL_LIMIT`].
    #[error("share {0} has sent nothing and taken nothing for {1} s")]
    Stalled(u32, u64),
    /// A peer broke the protocol of blocks.
    #[error("share {from} sent {what}")]
    Protocol {
        /// Position in the job.
        from: u32,
        /// What was wrong.
        what: String,
    },
    /// The daemon refused.
    #[error("the daemon: {reason}")]
    Daemon {
        /// errno, 0 if none.
        errno: i32,
        /// Its words.
        reason: String,
    },
    /// The data connection broke.
    #[error("the data connection to the daemon: {0}")]
    Link(Reason),
    /// A file could not be read or written.
    #[error("dataset {id}, {what}: {source}")]
    Io {
        /// Dataset.
        id: DatasetId,
        /// Which file and what was done with it.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// A file's bytes are not those that were sealed.
    #[error("dataset {id}, {path}: CRC {found:#x}, sealed as {sealed:#x}")]
    Crc {
        /// Dataset.
        id: DatasetId,
        /// The file.
        path: RelPath,
        /// Of the bytes read.
        found: u32,
        /// In the catalog.
        sealed: u32,
    },
    /// A program has begun to change the file since it was opened: its sealed bytes are in another
    /// file by now.
    #[error("dataset {id}, {path}: a program has begun to change it while it was read")]
    Moved {
        /// Dataset.
        id: DatasetId,
        /// The file.
        path: RelPath,
    },
    /// The redundancy file is not the one of this dataset and set.
    #[error("dataset {id}, redundancy file of member {member}: {reason}")]
    Redundancy {
        /// Dataset.
        id: DatasetId,
        /// Whose.
        member: Member,
        /// What does not fit.
        reason: String,
    },
    /// The job itself makes no sense.
    #[error("dataset {id}: {reason}")]
    Plan {
        /// Dataset.
        id: DatasetId,
        /// What does not fit.
        reason: String,
    },
    /// There was no room; nothing is left of what was written.
    #[error("{reason}")]
    NoRoom {
        /// What failed.
        reason: String,
        /// What would have been needed, and what there is.
        full: NoRoom,
    },
    /// The system makes no more threads: the program's count towards the user's limit.
    #[error("no thread: {0}")]
    Thread(io::Error),
    /// An injected fault.
    #[error("injected: {0}")]
    Fault(io::Error),
}

impl JobError {
    /// The cache is full.
    pub(super) fn is_for_want_of_room(&self) -> bool {
        let full = |errno: i32| [Errno::ENOSPC, Errno::EDQUOT].contains(&Errno::from_raw(errno));
        match self {
            Self::Daemon { errno, .. } => full(*errno),
            Self::Io { source, .. } => source.raw_os_error().is_some_and(full),
            Self::NoRoom { .. } => true,
            _ => false,
        }
    }

    /// For the lead.
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::Daemon { errno, .. } => Reason::with_errno(self.to_string(), *errno),
            Self::Aborted(reason) => reason.clone().on("ended by others"),
            Self::NoRoom { .. } => Reason::with_errno(self.to_string(), Errno::ENOSPC as i32),
            _ => Reason::of(self),
        }
    }

    /// What was needed and what there is, if that is why.
    pub(super) fn no_room(self) -> Option<NoRoom> {
        if let Self::NoRoom { full, .. } = self { Some(full) } else { None }
    }

    /// The next try finds the sealed bytes.
    pub(super) fn is_moved(&self) -> bool {
        matches!(self, Self::Moved { .. })
    }

    /// Bytes were read, and are not those that were sealed.
    pub(super) fn is_not_as_sealed(&self) -> bool {
        match self {
            Self::Crc { .. } => true,
            Self::Daemon { errno, .. } => *errno == Errno::EBADMSG as i32,
            _ => false,
        }
    }

    /// A share that was to give data cannot: what is on its node is gone, or is not what was
    /// sealed. Not: too little memory, no descriptor, an epoch that is over.
    pub(super) fn is_bad_data(&self) -> bool {
        let lost = |errno: i32| {
            use Errno::{EBADMSG, EINVAL, EIO, ELOOP, ENOENT, ENOTDIR, EUCLEAN};
            [EIO, ENOENT, ENOTDIR, EINVAL, ELOOP, EUCLEAN, EBADMSG].contains(&Errno::from_raw(errno))
        };
        match self {
            Self::Crc { .. } | Self::Redundancy { .. } => true,
            Self::Daemon { errno, .. } => lost(*errno),
            Self::Io { source, .. } => {
                source.kind() == io::ErrorKind::UnexpectedEof || source.raw_os_error().is_some_and(lost)
            }
            Self::Aborted(_)
            | Self::Stalled(..)
            | Self::Protocol { .. }
            | Self::Link(_)
            | Self::Plan { .. }
            | Self::Moved { .. }
            | Self::NoRoom { .. }
            | Self::Thread(_)
            | Self::Fault(_) => false,
        }
    }
}

/// Passes a fault point.
pub(super) fn fault(point: &'static str) -> Result<(), JobError> {
    scrfs::faults::hit(point).map_err(JobError::Fault)
}
