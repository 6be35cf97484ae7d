//! `rank2file.scr` and its leaves: which member has which files on the PFS. A tree, so that no one
//! process must read or write all of it; a node names files that hold the records of the level
//! below, several in one file.

use super::field::{Value, record};
use super::ordered::Ordered;
use super::summary::RankFiles;
use super::{Record, RecordError};
use crate::hash::{FieldError, FieldProblem, Hash, Text, decode_record};
use crate::ids::Member;

record! {
    /// A record of level 1 or above.
    Rank2FileNode {
        /// Members in the dataset.
        ranks: Option<u64> = ["RANKS"],
        /// Levels below this one; at least 1.
        level: Option<u64> = ["LEVEL"],
        /// Where the record of the members from this one on is.
        children: Ordered<Member, RecordPlace> = ["RANK"],
    }
}

record! {
    /// Where a record is.
    RecordPlace {
        /// Byte at which it begins.
        offset: Option<u64> = ["OFFSET"],
        /// The file: relative to the dataset's directory.
        file: Option<Text> = ["FILE"],
    }
}

record! {
    /// A record of level 0: the files of some members.
    Rank2FileLeaf {
        /// Members in this record.
        ranks: Option<u64> = ["RANKS"],
        /// 0.
        level: Option<u64> = ["LEVEL"],
        /// Each member's files.
        by_member: Ordered<Member, RankFiles> = ["RANK"],
    }
}

/// A record of any level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rank2File {
    /// What it says.
    pub body: Rank2FileBody,
    /// Some writers put all of it below a key `RANK2FILE`.
    pub wrapped: bool,
}

/// Node or leaf, by level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rank2FileBody {
    /// Level 1 and above.
    Node(Rank2FileNode),
    /// Level 0.
    Leaf(Rank2FileLeaf),
}

const WRAP: &str = "RANK2FILE";

impl Record for Rank2File {
    fn from_hash(tree: &Hash) -> Result<Self, FieldError> {
        match tree.get(WRAP) {
            Some(inner) if tree.len() == 1 => {
                let body = Rank2FileBody::from_below(inner).map_err(|error| error.under(WRAP))?;
                Ok(Self { body, wrapped: true })
            }
            _ => Ok(Self { body: Rank2FileBody::from_below(tree)?, wrapped: false }),
        }
    }

    fn to_hash(&self) -> Hash {
        let body = self.body.to_below();
        if !self.wrapped {
            return body;
        }
        let mut tree = Hash::new();
        tree.set(WRAP, body);
        tree
    }
}

impl Value for Rank2FileBody {
    fn from_below(tree: &Hash) -> Result<Self, FieldError> {
        match tree.number::<u64>("LEVEL")? {
            None => Err(FieldError::at("LEVEL", FieldProblem::Missing)),
            Some(0) => Rank2FileLeaf::from_hash(tree).map(Self::Leaf),
            Some(_) => Rank2FileNode::from_hash(tree).map(Self::Node),
        }
    }

    fn to_below(&self) -> Hash {
        match self {
            Self::Node(node) => node.to_hash(),
            Self::Leaf(leaf) => leaf.to_hash(),
        }
    }
}

impl Rank2File {
    /// The record that begins at `offset` of a file's bytes.
    pub fn decode_at(bytes: &[u8], offset: u64) -> Result<Self, RecordError> {
        let from = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..));
        let Some(from) = from else {
            return Err(FieldError::at("OFFSET", FieldProblem::Other("is behind the end of the file")).into());
        };
        let (tree, _) = decode_record(from)?;
        Ok(Self::from_hash(&tree)?)
    }

    /// The bytes of a file with these leaves one behind the other, and the offset of each.
    pub fn concatenate(leaves: &[Rank2FileLeaf]) -> (Vec<u8>, Vec<u64>) {
        let mut bytes = Vec::new();
        let mut offsets = Vec::with_capacity(leaves.len());
        for leaf in leaves {
            offsets.push(bytes.len() as u64);
            bytes.extend_from_slice(&leaf.encode());
        }
        (bytes, offsets)
    }
}
