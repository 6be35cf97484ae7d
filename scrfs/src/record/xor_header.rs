//! The header of an XOR file; the payload follows it.

use super::descriptor::DatasetDescriptor;
use super::field::record;
use super::meta::Meta;
use super::ordered::Ordered;
use crate::hash::{FieldError, FieldProblem};
use crate::ids::{DatasetId, Member};

record! {
    /// What a member must know to rebuild its left neighbour, and to be rebuilt by its right one.
    XorHeader {
        /// Bytes of the payload.
        chunk: Option<u64> = ["CHUNK"],
        /// The left neighbour's files.
        partner: Option<MemberFiles> = ["PARTNER"],
        /// The member's own files.
        current: Option<MemberFiles> = ["CURRENT"],
        /// The dataset (not in 2011).
        dataset: Option<DatasetDescriptor> = ["DSET"],
        /// The dataset's id (2011).
        checkpoint: Option<DatasetId> = ["CKPT"],
        /// Members of the dataset.
        ranks: Option<u64> = ["RANKS"],
        /// The set.
        group: Option<XorGroup> = ["GROUP"],
    }
}

record! {
    /// A redundancy set.
    XorGroup {
        /// The member at each position.
        members: Ordered<u32, Member> = ["RANK"],
        /// How many there are.
        size: Option<u64> = ["RANKS"],
    }
}

record! {
    /// The data of one member.
    MemberFiles {
        /// Its files by number; the numbers' order is that of the logical file. Metas have no CRC here.
        files: Ordered<u32, Meta> = ["FILE"],
        /// How many there are.
        count: Option<u64> = ["FILES"],
        /// Which member.
        rank: Option<Member> = ["RANK"],
    }
}

impl MemberFiles {
    /// The files of `rank`, in logical order.
    pub fn new(rank: Member, files: Vec<Meta>) -> Self {
        let count = Some(files.len() as u64);
        // SCR numbers the files from 0 and sets each at the head.
        let files = (0..).zip(files).collect::<Vec<_>>().into_iter().rev().collect();
        Self { files, count, rank: Some(rank), ..Self::default() }
    }

    /// The files' metas in logical order: numbered from 0 without gaps, and as many as the header says.
    pub fn in_order(&self) -> Result<Vec<&Meta>, FieldError> {
        let Some(count) = self.count else {
            return Err(FieldError::at("FILES", FieldProblem::Missing));
        };
        if count != self.files.len() as u64 {
            return Err(FieldError::at(
                "FILES",
                FieldProblem::Other("is not the number of files that follow"),
            ));
        }
        (0..)
            .take(self.files.len())
            .map(|j: u32| {
                let meta = self.files.get(&j);
                meta.ok_or_else(|| FieldError::at(j, FieldProblem::Missing).under("FILE"))
            })
            .collect()
    }

    /// The files' sizes in logical order.
    pub fn sizes(&self) -> Result<Vec<u64>, FieldError> {
        let metas = self.in_order()?;
        (0_u32..)
            .zip(metas)
            .map(|(j, meta)| {
                meta.size.ok_or_else(|| FieldError::at("SIZE", FieldProblem::Missing).under(j).under("FILE"))
            })
            .collect()
    }
}

impl XorGroup {
    /// The set with these members in ring order.
    pub fn new(members: &[Member]) -> Self {
        let size = Some(members.len() as u64);
        Self { members: (0..).zip(members.iter().copied()).collect(), size, ..Self::default() }
    }

    /// The members in ring order: numbered from 0 without gaps, and as many as the header says.
    pub fn in_order(&self) -> Result<Vec<Member>, FieldError> {
        if self.size != Some(self.members.len() as u64) {
            return Err(FieldError::at(
                "RANKS",
                FieldProblem::Other("is not the number of members that follow"),
            ));
        }
        (0..)
            .take(self.members.len())
            .map(|position: u32| {
                let member = self.members.get(&position).copied();
                member.ok_or_else(|| FieldError::at(position, FieldProblem::Missing).under("RANK"))
            })
            .collect()
    }
}
