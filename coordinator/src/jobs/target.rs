//! A member of a set that is rebuilt: its part in that, and a lost one on the node that will hold
//! it.

use scrfs::dataset::Catalog;
use scrfs::ids::Member;

use super::error::{JobError, fault};
use super::files::{Reader, Writer};
use super::header::SetRecord;
use super::link::{Daemon, Finish};
use super::redundancy_file::{RedundancyReader, RedundancyWriter};
use crate::job::{JobOutput, SetMember};

/// A member, lost or not.
pub(super) struct Target<'a> {
    pub catalog: &'a Catalog,
    /// In ring order.
    pub set: &'a [SetMember],
    pub member: Member,
    /// Its position in `set`.
    pub me: u32,
    pub record: &'a SetRecord,
    /// Of the node that has the member or will have it.
    pub daemon: &'a Daemon,
}

/// A lost member's files.
pub(super) struct Writing<'a> {
    pub files: Writer<'a>,
    pub redundancy: RedundancyWriter,
}

impl Target<'_> {
    /// Makes the member: `fill` gives its bytes, and returns when those who gave them have found
    /// theirs to be good. What was begun goes when that fails.
    pub(super) fn restore(
        &self,
        fill: impl FnOnce(&mut Writing<'_>) -> Result<(), JobError>,
    ) -> Result<JobOutput, JobError> {
        let result = self.write(fill);
        if result.is_err() {
            self.daemon.abandon_member(self.catalog.id, self.member);
        }
        let place = self.catalog.layout.members.get(self.member.0 as usize);
        let payload = self.record.payloads().bytes(self.me as usize);
        let sizes = || place.map_or(0, |place| place.bytes).saturating_add(payload);
        let takes = place.and_then(|place| place.taken).unwrap_or_else(sizes);
        result.map_err(|error| self.daemon.with_figures(error, self.catalog.id, takes))
    }

    fn write(
        &self,
        fill: impl FnOnce(&mut Writing<'_>) -> Result<(), JobError>,
    ) -> Result<JobOutput, JobError> {
        let (id, member) = (self.catalog.id, self.member);
        let files = self.record.files(self.me)?;
        self.daemon.begin_member(self.catalog, member)?;
        let redundancy = RedundancyWriter::create(id, member, self.me, self.record, self.daemon)?;
        let mut writing = Writing { files: Writer::new(files, member, self.daemon)?, redundancy };
        fill(&mut writing)?;
        let crcs = writing.files.finish()?;
        files.compare(&crcs, &self.sealed_crcs()).map_err(|(_, error)| error)?;
        fault("rebuild.finish")?;
        let finish = Finish {
            member,
            crcs,
            redundancy: Some(writing.redundancy.finish()?),
            set: self.set.iter().map(|m| m.member).collect(),
            members: u32::try_from(self.catalog.layout.members.len()).unwrap_or(u32::MAX),
        };
        Ok(JobOutput::Part(self.daemon.finish_member(id, finish)?))
    }

    /// The redundancy file of a survivor.
    pub(super) fn open_redundancy(&self) -> Result<RedundancyReader, JobError> {
        RedundancyReader::open(self.catalog.id, self.member, self.me, self.record, self.daemon)
    }

    /// The files that a survivor has read must be those that were sealed.
    pub(super) fn check_read(&self, reader: Reader<'_>) -> Result<(), JobError> {
        reader.finish_sealed(&self.sealed_crcs())
    }

    fn sealed_crcs(&self) -> Vec<u32> {
        self.catalog.files_of(self.member).map(|(_, copy)| copy.crc).collect()
    }
}
