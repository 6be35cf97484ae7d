//! What a job's workers ask of their node's daemon: descriptors, and that a member is finished.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use scrfs::control::{DataReply, DataRequest, MemberPart, NoRoom, Reason, Room, SealedFile};
use scrfs::dataset::Catalog;
use scrfs::ids::{DatasetId, Member};
use scrfs::lock::{Mutex, Rank};
use scrfs::path::RelPath;

use super::error::JobError;

/// A data connection: one request, one reply, at most one descriptor with it.
pub trait DataLink: Send {
    /// Asks and waits for the answer; an error means that the connection is of no use any more.
    fn request(&mut self, request: &DataRequest) -> Result<(DataReply, Option<OwnedFd>), Reason>;
}

/// Makes a data connection.
pub type Connector = Arc<dyn Fn() -> Result<Box<dyn DataLink>, Reason> + Send + Sync>;

/// The daemon as the threads of one share see it.
#[derive(Clone)]
pub struct Daemon(Arc<Mutex<Box<dyn DataLink>>>);

/// How a member ends: what [`DataRequest::FinishMember`] carries.
pub struct Finish {
    /// Who.
    pub member: Member,
    /// CRC32 of each file.
    pub crcs: Vec<u32>,
    /// Name, size and CRC32 of the redundancy file.
    pub redundancy: Option<(String, u64, u32)>,
    /// The set in ring order.
    pub set: Vec<Member>,
    /// Members of the dataset.
    pub members: u32,
}

impl Daemon {
    /// Connects.
    pub fn connect(connector: &Connector) -> Result<Self, JobError> {
        Ok(Self(Arc::new(Mutex::new(Rank::Link, connector().map_err(JobError::Link)?))))
    }

    /// A member's file, for reading.
    pub fn open_file(&self, id: DatasetId, path: &RelPath) -> Result<File, JobError> {
        self.descriptor(&DataRequest::OpenFile { id, path: path.clone() })
    }

    /// Why the reading of a sealed file failed, whose number was `inode` when it was opened. Where
    /// the path leads to another file by now, a program has begun to change the former one, and its
    /// sealed bytes are in the other.
    pub fn unless_moved(&self, error: JobError, id: DatasetId, path: &RelPath, inode: u64) -> JobError {
        let now = self.open_file(id, path).ok().and_then(|file| file.metadata().ok());
        match now {
            Some(now) if now.ino() != inode => JobError::Moved { id, path: path.clone() },
            _ => error,
        }
    }

    /// A member's redundancy file, for reading, and the CRC32 that was recorded of all of it.
    pub fn open_redundancy(&self, id: DatasetId, member: Member) -> Result<(File, u32), JobError> {
        match self.ask(&DataRequest::OpenRedundancy { id, member })? {
            (DataReply::Redundancy { crc }, Some(fd)) => Ok((File::from(fd), crc)),
            (other, _) => Err(unexpected(other)),
        }
    }

    /// A new redundancy file.
    pub fn create_redundancy(&self, id: DatasetId, member: Member, name: &str) -> Result<File, JobError> {
        self.descriptor(&DataRequest::CreateRedundancy { id, member, name: name.to_owned() })
    }

    /// Announces a member that will be rebuilt here.
    pub fn begin_member(&self, catalog: &Catalog, member: Member) -> Result<(), JobError> {
        self.done(&DataRequest::BeginMember { catalog: Arc::new(catalog.clone()), member })
    }

    /// A new file of a member that is being rebuilt here.
    pub fn create_file(&self, id: DatasetId, member: Member, path: &RelPath) -> Result<File, JobError> {
        self.descriptor(&DataRequest::CreateFile { id, member, path: path.clone() })
    }

    /// The member's bytes are all written.
    pub fn finish_member(&self, id: DatasetId, finish: Finish) -> Result<Box<MemberPart>, JobError> {
        let Finish { member, crcs, redundancy, set, members } = finish;
        match self.ask(&DataRequest::FinishMember { id, member, crcs, redundancy, set, members })? {
            (DataReply::Part(part), _) => Ok(part),
            (other, _) => Err(unexpected(other)),
        }
    }

    /// Tells how much of a member is read, for the status. Whether it arrives changes nothing.
    pub fn progress(&self, id: DatasetId, done: u64, total: u64) {
        if let Err(error) = self.done(&DataRequest::Progress { id, done, total }) {
            tracing::debug!(dataset = id.0, %error, "how far it is could not be told");
        }
    }

    /// Says that a program on another node waits for what is sent from here. Whether it arrives
    /// changes nothing.
    pub fn waited(&self) {
        if let Err(error) = self.done(&DataRequest::Waited) {
            tracing::debug!(%error, "the daemon could not be told to hurry");
        }
    }

    /// Gives up what was made for a member. Best effort: a daemon that cannot does it when its
    /// coordinator is gone.
    pub fn abandon_member(&self, id: DatasetId, member: Member) {
        if let Err(error) = self.done(&DataRequest::AbandonMember { id, member }) {
            tracing::warn!(dataset = id.0, member = member.0, %error, "could not abandon the member");
        }
    }

    /// A new file for the bytes of a sealed file that is elsewhere, and takes so many there.
    pub fn create_copy(&self, file: &SealedFile, takes: u64) -> Result<File, JobError> {
        self.descriptor(&DataRequest::CreateCopy { file: file.clone(), takes })
    }

    /// Gives up what was made for it, best effort as with a member.
    pub fn abandon_copy(&self, file: &SealedFile) {
        if let Err(error) = self.done(&DataRequest::AbandonCopy(file.clone())) {
            tracing::warn!(dataset = file.id.0, path = %file.path, %error, "could not abandon the copy");
        }
    }

    /// An error for want of room with the figures: `wanted` bytes were needed. To be asked when
    /// what was written has been given up.
    pub fn with_figures(&self, error: JobError, id: DatasetId, wanted: u64) -> JobError {
        if !error.is_for_want_of_room() {
            return error;
        }
        let room = match self.ask(&DataRequest::Room(id)) {
            Ok((DataReply::Room(room), _)) => room,
            // Nothing will have to go for what may not fit.
            Ok(_) | Err(_) => Room::default(),
        };
        JobError::NoRoom { reason: error.to_string(), full: NoRoom { wanted, room } }
    }

    /// Its bytes are all written.
    pub fn install_copy(&self, file: &SealedFile, size: u64, crc: u32) -> Result<(), JobError> {
        self.done(&DataRequest::InstallCopy { file: file.clone(), size, crc })
    }

    fn descriptor(&self, request: &DataRequest) -> Result<File, JobError> {
        match self.ask(request)? {
            (DataReply::Descriptor, Some(fd)) => Ok(File::from(fd)),
            (DataReply::Descriptor, None) => {
                Err(JobError::Link("a descriptor was due and did not come".into()))
            }
            (other, _) => Err(unexpected(other)),
        }
    }

    fn done(&self, request: &DataRequest) -> Result<(), JobError> {
        match self.ask(request)? {
            (DataReply::Done, _) => Ok(()),
            (other, _) => Err(unexpected(other)),
        }
    }

    fn ask(&self, request: &DataRequest) -> Result<(DataReply, Option<OwnedFd>), JobError> {
        self.0.lock().request(request).map_err(JobError::Link)
    }
}

fn unexpected(reply: DataReply) -> JobError {
    match reply {
        DataReply::Failed { errno, reason } => JobError::Daemon { errno, reason },
        DataReply::Done => JobError::Link("unexpected answer: done".into()),
        DataReply::Descriptor | DataReply::Redundancy { .. } => {
            JobError::Link("unexpected answer: a descriptor".into())
        }
        DataReply::Room(_) => JobError::Link("unexpected answer: the cache's room".into()),
        DataReply::Part(_) => JobError::Link("unexpected answer: a member's part".into()),
    }
}
