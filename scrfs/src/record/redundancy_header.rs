//! The header of a redundancy file, the payload of which follows it; and the file's name.
//!
//! XOR's are SCR's. SCR 1.x has no Reed-Solomon: its files have the same header, with the number of
//! parities as redset names it, and `.rs` in the name. A partner's copy has the same header too,
//! without a chunk, and `.partner` in the name; its payload is the files of `PARTNER`, end to end,
//! as in redset's. (SCR 1.x keeps these files apart, under their own names.)

use std::fmt;

use super::descriptor::DatasetDescriptor;
use super::field::record;
use super::meta::{FileKind, Meta};
use super::ordered::Ordered;
use crate::dataset::Scheme;
use crate::hash::{FieldError, FieldProblem};
use crate::ids::{DatasetId, Member};

record! {
    /// What a member must know to rebuild its left neighbour, and to be rebuilt by its right one.
    /// Where neighbours are lost together (Reed-Solomon), only the catalog knows their files.
    RedundancyHeader {
        /// Chunks of the payload; one where nothing is said, as with XOR.
        parities: Option<u32> = ["CKSUM"],
        /// Bytes of a chunk of the payload; a partner's copy has no chunks.
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
        group: Option<SetMembers> = ["GROUP"],
    }
}

record! {
    /// A redundancy set.
    SetMembers {
        /// The member at each position.
        members: Ordered<u32, Member> = ["RANK"],
        /// How many there are.
        size: Option<u64> = ["RANKS"],
    }
}

record! {
    /// The data of one member.
    MemberFiles {
        /// Its files by number; the numbers' order is that of the logical file. Metas have no CRC
        /// here.
        files: Ordered<u32, Meta> = ["FILE"],
        /// How many there are.
        count: Option<u64> = ["FILES"],
        /// Which member.
        rank: Option<Member> = ["RANK"],
    }
}

/// What redundancy files hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RedundancyKind {
    /// A copy of the left neighbour's files.
    Partner,
    /// One parity of XOR.
    Xor,
    /// Parities of Reed-Solomon.
    ReedSolomon,
}

/// The place of a member in the sets of a dataset, as its redundancy file's name tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RedundancyFileName {
    /// What is in it.
    pub kind: RedundancyKind,
    /// The member's position in its set, from 0 (from 1 in the name).
    pub position: u64,
    /// Members of the set.
    pub members: u64,
    /// The set's name: the member at its position 0.
    pub group: u64,
    /// The revision of the dataset with which the set was encoded anew
    /// ([`crate::dataset::Layout::encoding`]); 0: when it was sealed.
    pub encoding: u32,
}

impl RedundancyFileName {
    /// Reads `<m>_of_<n>_in_<g>.xor`, `.rs` and `.partner`, each also with `.r<encoding>` in front
    /// of that, and `xor.<g>_<m>_of_<n>.scr` of 1.1.8 and later. A position beyond the set is not a
    /// name.
    pub fn parse(name: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(name).ok()?;
        let of_kind = |kind: RedundancyKind| {
            let stem = name.strip_suffix(kind.suffix())?.strip_suffix('.')?;
            Some((kind, stem.split_once("_in_")?))
        };
        let later = || {
            let (group, place) = name.strip_prefix("xor.")?.strip_suffix(".scr")?.split_once('_')?;
            Some((RedundancyKind::Xor, (place, group)))
        };
        let (kind, (place, group)) = RedundancyKind::ALL.into_iter().find_map(of_kind).or_else(later)?;
        let (group, encoding) = match group.split_once(".r") {
            Some((group, encoding)) => (group, u32::try_from(plain_number(encoding)?).ok()?),
            None => (group, 0),
        };
        let (ordinal, members) = place.split_once("_of_")?;
        let [ordinal, members, group] = [ordinal, members, group].map(plain_number);
        let position = ordinal?.checked_sub(1)?;
        let name = Self { kind, position, members: members?, group: group?, encoding };
        (position < name.members).then_some(name)
    }
}

fn plain_number(digits: &str) -> Option<u64> {
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| plain)
}

impl fmt::Display for RedundancyFileName {
    /// In the form of 2013.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, position, members, group, encoding } = self;
        write!(f, "{}_of_{members}_in_{group}", position + 1)?;
        if *encoding != 0 {
            write!(f, ".r{encoding}")?;
        }
        write!(f, ".{}", kind.suffix())
    }
}

impl RedundancyKind {
    const ALL: [Self; 3] = [Self::Partner, Self::Xor, Self::ReedSolomon];

    /// The kind of the redundancy files of a scheme; `None` where there are none.
    pub fn of(scheme: Scheme) -> Option<Self> {
        match scheme {
            Scheme::Single => None,
            Scheme::Partner => Some(Self::Partner),
            Scheme::Xor => Some(Self::Xor),
            Scheme::ReedSolomon { .. } => Some(Self::ReedSolomon),
        }
    }

    /// The end of such a file's name.
    fn suffix(self) -> &'static str {
        match self {
            Self::Partner => "partner",
            Self::Xor => "xor",
            Self::ReedSolomon => "rs",
        }
    }

    /// The kind of such a file in the record of its meta data.
    pub fn file_kind(self) -> FileKind {
        match self {
            Self::Partner => FileKind::Partner,
            Self::Xor => FileKind::Xor,
            Self::ReedSolomon => FileKind::ReedSolomon,
        }
    }
}

impl RedundancyHeader {
    /// The header of a lost member of an XOR set, from those of its neighbours: the right one knows
    /// its files, the left one is whom it knew.
    pub fn of_lost(left: &Self, right: &Self) -> Self {
        Self { current: right.partner.clone(), partner: left.current.clone(), ..right.clone() }
    }
}

impl MemberFiles {
    /// The files of `rank`, in logical order. CRCs are left out, as SCR has it: the header is
    /// written before they are known.
    pub fn new(rank: Member, files: Vec<Meta>) -> Self {
        let count = Some(files.len() as u64);
        let files = files.into_iter().map(|meta| Meta { crc: None, ..meta });
        // SCR numbers the files from 0 and sets each at the head.
        let files = (0..).zip(files).collect::<Vec<_>>().into_iter().rev().collect();
        Self { files, count, rank: Some(rank), ..Self::default() }
    }

    /// The files' metas in logical order: numbered from 0 without gaps, and as many as the header
    /// says.
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

impl SetMembers {
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
