//! What a set's members write about themselves: the logical files, the chunk, and the header of
//! each redundancy file.
//!
//! Everything in a header is known to every member from the job, so the header of a rebuilt file
//! equals the lost one.

use std::fs::File;
use std::os::unix::fs::FileExt;

use scrfs::dataset::{Catalog, Layout, Scheme};
use scrfs::hash::file::HEADER_BYTES;
use scrfs::hash::{Text, record_size};
use scrfs::ids::{DatasetId, Member};
use scrfs::path::RelPath;
use scrfs::record::{
    DatasetDescriptor, FileKind, MemberFiles, Meta, Record, RedundancyFileName, RedundancyHeader,
    RedundancyKind, SetMembers,
};
use scrfs::redundancy::left;
use scrfs::redundancy::payload::Payloads;

use super::error::JobError;
use super::files::Files;
use crate::job::{About, SetMember};

/// A header lists the files of two members.
const HEADER_MAX: u64 = 256 << 20;
const NO_FILES: &str = "the set has no redundancy files";

/// The dataset that a set belongs to.
pub struct Described<'a> {
    /// Its id.
    pub id: DatasetId,
    /// How its sets are protected.
    pub scheme: Scheme,
    /// Name, time, user, totals.
    pub about: &'a About,
    /// Members altogether.
    pub members: u32,
    /// [`scrfs::dataset::Layout::encoding`].
    pub encoding: u32,
}

/// A set with its members' files.
pub struct SetRecord {
    id: DatasetId,
    about: About,
    members_of_dataset: u32,
    set: Vec<Member>,
    files: Vec<Files>,
    scheme: Scheme,
    encoding: u32,
    payloads: Payloads,
}

impl SetRecord {
    /// Checks that names and sizes fit.
    pub fn new(
        described: &Described<'_>,
        set: &[SetMember],
        paths: &[Vec<RelPath>],
    ) -> Result<Self, JobError> {
        let Described { id, scheme, about, members, encoding } = *described;
        let plan = |reason: String| JobError::Plan { id, reason };
        if set.is_empty() || set.len() != paths.len() {
            return Err(plan(format!("{} members and {} lists of files", set.len(), paths.len())));
        }
        let mut files = Vec::with_capacity(set.len());
        for (member, paths) in set.iter().zip(paths) {
            files.push(Files::new(id, paths.clone(), member.sizes.clone())?);
        }
        let lengths: Vec<_> = files.iter().map(Files::bytes).collect();
        let payloads = Payloads::of(scheme, &lengths).map_err(|e| plan(e.to_string()))?;
        let set = set.iter().map(|m| m.member).collect();
        Ok(Self {
            id,
            about: about.clone(),
            members_of_dataset: members,
            set,
            files,
            scheme,
            encoding,
            payloads,
        })
    }

    /// The same from a catalog; the job's sizes must be the catalog's.
    pub fn of_catalog(catalog: &Catalog, set: &[SetMember]) -> Result<Self, JobError> {
        let id = catalog.id;
        let mut paths = Vec::with_capacity(set.len());
        for SetMember { member, sizes, .. } in set {
            let (names, known): (Vec<_>, Vec<_>) =
                catalog.files_of(*member).map(|(entry, copy)| (entry.path.clone(), copy.size)).unzip();
            if known != *sizes {
                let reason = format!("member {member}: the job's sizes are not the catalog's");
                return Err(JobError::Plan { id, reason });
            }
            paths.push(names);
        }
        let about = About::of(catalog);
        let members = u32::try_from(catalog.layout.members.len()).unwrap_or(u32::MAX);
        let Layout { encoding, .. } = catalog.layout;
        let described = Described { id, scheme: catalog.layout.scheme(), about: &about, members, encoding };
        Self::new(&described, set, &paths)
    }

    /// What the redundancy files of the set hold.
    pub fn payloads(&self) -> &Payloads {
        &self.payloads
    }

    /// The files of the member at `position`.
    pub fn files(&self, position: u32) -> Result<&Files, JobError> {
        self.files.get(position as usize).ok_or_else(|| self.unfit("no such position"))
    }

    /// Bytes of the members' logical files, by position.
    pub fn lengths(&self) -> Vec<u64> {
        self.files.iter().map(Files::bytes).collect()
    }

    /// A position as jobs count them.
    pub fn at(&self, position: usize) -> Result<u32, JobError> {
        u32::try_from(position).map_err(|_| self.unfit("no such position"))
    }

    /// The position of a neighbour of the one at `position`, by [`left`] or
    /// [`scrfs::redundancy::right`].
    pub fn neighbour(&self, position: u32, of: fn(usize, usize) -> usize) -> Result<u32, JobError> {
        self.at(of(self.set.len(), position as usize))
    }

    /// The redundancy file of the member at `position`: `<m>_of_<n>_in_<g>.xor`, `.rs` or
    /// `.partner`.
    pub fn file_name(&self, position: u32) -> Result<String, JobError> {
        let kind = RedundancyKind::of(self.scheme).ok_or_else(|| self.unfit(NO_FILES))?;
        let group = self.set.first().map_or(0, |m| m.0.into());
        let (position, members, encoding) = (position.into(), self.set.len() as u64, self.encoding);
        Ok(RedundancyFileName { kind, position, members, group, encoding }.to_string())
    }

    /// The header of the member at `position`, as its bytes in the file.
    pub fn header(&self, position: u32) -> Result<Vec<u8>, JobError> {
        let parities = match (&self.payloads, self.scheme) {
            (Payloads::None, _) => return Err(self.unfit(NO_FILES)),
            (Payloads::Parities(geometry, _), Scheme::ReedSolomon { .. }) => {
                Some(u32::try_from(geometry.parities()).unwrap_or(u32::MAX))
            }
            (Payloads::Copies { .. } | Payloads::Parities(..), _) => None,
        };
        let at = position as usize;
        let nul = |_| self.unfit("a NUL byte in the name of dataset, user or job");
        let header = RedundancyHeader {
            parities,
            chunk: self.payloads.chunk(),
            current: Some(self.member_files(at)?),
            partner: Some(self.member_files(left(self.set.len(), at))?),
            dataset: Some(DatasetDescriptor {
                id: Some(self.id),
                checkpoint: Some(self.id),
                name: Some(Text::new(self.about.name.clone()).map_err(nul)?),
                created_us: Some(self.about.created_us),
                user: Some(Text::new(self.about.user.clone()).map_err(nul)?),
                job_id: Some(Text::new(self.about.job_id.clone()).map_err(nul)?),
                files: Some(self.about.files),
                size: Some(self.about.bytes),
                complete: Some(true),
                ..DatasetDescriptor::default()
            }),
            ranks: Some(self.members_of_dataset.into()),
            group: Some(SetMembers::new(&self.set)),
            ..RedundancyHeader::default()
        };
        Ok(header.encode())
    }

    /// What a header says of the member at `position`. Without CRCs, as these are known only when
    /// all is read.
    fn member_files(&self, position: usize) -> Result<MemberFiles, JobError> {
        let (Some(member), Some(files)) = (self.set.get(position), self.files.get(position)) else {
            return Err(self.unfit("no such position"));
        };
        let meta = |(path, size): (&RelPath, u64)| Meta {
            file: Some(path.into()),
            name: Some(path.into()),
            orig: Some(path.into()),
            kind: Some(FileKind::User),
            ranks: Some(self.members_of_dataset.into()),
            size: Some(size),
            complete: Some(true),
            ..Meta::default()
        };
        Ok(MemberFiles::new(*member, files.iter().map(meta).collect()))
    }

    /// Reads the header at the start of `file` (`size` bytes long) and checks that it is that of
    /// the member at `position`; gives its bytes.
    pub fn check_header(&self, position: u32, file: &File, size: u64) -> Result<Vec<u8>, JobError> {
        let member = self.set.get(position as usize).copied().unwrap_or(Member(position));
        let wrong = |reason: String| JobError::Redundancy { id: self.id, member, reason };
        let expected = self.header(position)?;
        let mut start = [0; HEADER_BYTES];
        file.read_exact_at(&mut start, 0).map_err(|e| wrong(e.to_string()))?;
        let length = record_size(&start, size.min(HEADER_MAX)).map_err(|e| wrong(e.to_string()))?;
        let mut bytes = vec![0; usize::try_from(length).map_err(|e| wrong(e.to_string()))?];
        file.read_exact_at(&mut bytes, 0).map_err(|e| wrong(e.to_string()))?;
        if bytes == expected {
            return Ok(bytes);
        }
        // Another order of the keys means the same, so what counts is what it says.
        let found = RedundancyHeader::decode(&bytes).map_err(|e| wrong(e.to_string()))?;
        let ours = RedundancyHeader::decode(&expected).map_err(|e| wrong(e.to_string()))?;
        let of = |files: &Option<MemberFiles>| files.as_ref().map(|files| (files.rank, files.sizes().ok()));
        let says = |header: &RedundancyHeader| {
            let set = header.group.as_ref().and_then(|group| group.in_order().ok());
            let id = header.dataset.as_ref().and_then(|dataset| dataset.id);
            (header.chunk, header.parities, id, set, of(&header.current), of(&header.partner))
        };
        if says(&found) == says(&ours) {
            Ok(bytes)
        } else {
            Err(wrong("its header is of another set".to_owned()))
        }
    }

    /// A job that makes no sense.
    pub fn unfit(&self, reason: &str) -> JobError {
        JobError::Plan { id: self.id, reason: reason.to_owned() }
    }
}
