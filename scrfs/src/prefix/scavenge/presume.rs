//! Members whose records are damaged, or not there, and whose files are: the catalog knows sizes
//! and CRCs, so that whoever reads the files knows as much as the record said.
//!
//! Of a member's redundancy file the CRC is in the record alone. It is used all the same where its
//! set needs it, since a rebuilt file gets its name only with the CRC that the catalog has.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;

use crate::dataset::Catalog;
use crate::ids::Member;
use crate::path::RelPath;
use crate::record::{RedundancyFileName, RedundancyKind};

use super::super::directory::{PfsError, Result, exists};
use super::{
    Collection, DATASET, MemberRecord, RedundancyCopy, are_there, digest, files_of_members, open, size_of,
};

impl Collection {
    /// Such members: each has a record in `records` then, of which nothing is known before all of
    /// its files are read. One that has neither files nor redundancy data is none.
    pub(in crate::prefix) fn presume(
        &self,
        catalog: &Catalog,
        records: &mut [Option<MemberRecord>],
        goes: &dyn Fn(),
    ) -> Result<BTreeSet<Member>> {
        let dataset = self.directory.join(DATASET);
        let mut presumed = BTreeSet::new();
        if records.iter().all(Option::is_some) || !exists(&dataset)? {
            return Ok(presumed);
        }
        let (top, of_redundancy) = (open(&dataset)?, open(&self.directory)?);
        let files = files_of_members(catalog);
        for ((number, files), record) in (0..).zip(files).zip(records).filter(|(_, record)| record.is_none())
        {
            let member = Member(number);
            if self.record_of(member)?.is_some() {
                continue;
            }
            let redundancy = redundancy(&of_redundancy, catalog, member);
            let is_any = redundancy.is_some() || !files.is_empty();
            if is_any && are_there(&top, &dataset, &files, goes)? {
                presumed.insert(member);
                *record = Some(MemberRecord {
                    age: self.age,
                    member,
                    host: catalog.layout.members[number as usize].host.clone(),
                    digest: digest(files.into_iter()),
                    redundancy: redundancy.into_iter().collect(),
                });
            }
        }
        if !presumed.is_empty() && !exists(&dataset)? {
            // Their records went when another published all.
            return Err(PfsError::io(&dataset, "open")(io::ErrorKind::NotFound.into()));
        }
        Ok(presumed)
    }
}

/// The member's redundancy file of the catalog's encoding, if it is there; its CRC is not known.
fn redundancy(top: &OwnedFd, catalog: &Catalog, member: Member) -> Option<RedundancyCopy> {
    let layout = &catalog.layout;
    let set = layout.sets.iter().find(|set| set.contains(&member))?;
    let name = RedundancyFileName {
        kind: RedundancyKind::of(layout.scheme())?,
        position: set.iter().position(|of| *of == member)? as u64,
        members: set.len() as u64,
        group: set.first()?.0.into(),
        encoding: layout.encoding,
    };
    let name = RelPath::new(name.to_string().as_bytes()).ok()?;
    let size = size_of(top, &name).ok()?;
    Some(RedundancyCopy { name, size, crc: 0 })
}
