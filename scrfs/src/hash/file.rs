//! A record: what a hash file is made of. All numbers are big-endian.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 4 | magic number 0x951fc3f5 |
//! | 4 | 2 | file type: 1, hash |
//! | 6 | 2 | version: 1 |
//! | 8 | 8 | size S of this record, not of the file |
//! | 16 | 4 | flags: 1, a CRC32 is present |
//! | 20 | S-24 | the packed tree |
//! | S-4 | 4 | CRC32 (zlib) of all bytes before it |
//!
//! What follows a record is not its business: an XOR file has its payload there, a rank2file its
//! next record. Records without CRC are refused: no release writes them, and a flipped flag must
//! not switch the check off.

use super::Hash;
use super::codec::{pack, unpack, unpack_with_values};
use super::error::FormatError;

/// Bytes before the packed tree.
pub const HEADER_BYTES: usize = 20;

const MAGIC: u32 = 0x951f_c3f5;
const TYPE_HASH: u16 = 1;
const VERSION: u16 = 1;
const FLAG_CRC32: u32 = 1;
const CRC_BYTES: usize = 4;
/// An empty tree is one count.
const RECORD_BYTES_MIN: usize = HEADER_BYTES + 4 + CRC_BYTES;

/// `tree` as one record.
pub fn encode(tree: &Hash) -> Vec<u8> {
    let framed = framed(256, |out| {
        pack(tree, out);
        Ok::<_, std::convert::Infallible>(())
    });
    match framed {
        Ok(bytes) => bytes,
        Err(never) => match never {},
    }
}

/// The record of a packed tree, which `put` appends; `about`: how many bytes that takes, roughly.
///
/// # Errors
/// Those of `put`.
pub fn framed<E>(about: usize, put: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<Vec<u8>, E> {
    let mut out = Vec::with_capacity(HEADER_BYTES + about + CRC_BYTES);
    out.extend_from_slice(&MAGIC.to_be_bytes());
    out.extend_from_slice(&TYPE_HASH.to_be_bytes());
    out.extend_from_slice(&VERSION.to_be_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&FLAG_CRC32.to_be_bytes());
    put(&mut out)?;
    let size = (out.len() + CRC_BYTES) as u64;
    out[8..16].copy_from_slice(&size.to_be_bytes());
    let crc = crc32fast::hash(&out);
    out.extend_from_slice(&crc.to_be_bytes());
    Ok(out)
}

/// The first record of `bytes`, and its size; what follows is left alone.
pub fn decode_record(bytes: &[u8]) -> Result<(Hash, usize), FormatError> {
    let packed = packed(bytes)?;
    let (tree, used) = unpack(packed, HEADER_BYTES)?;
    ends_at(packed, used)?;
    Ok((tree, HEADER_BYTES + packed.len() + CRC_BYTES))
}

/// The one record that `bytes` are, of what [`super::codec::pack_with_values`] made: `each` is
/// given the values below `name`, in order, and the tree is without them.
pub fn decode_file_with_values(
    bytes: &[u8],
    name: &[u8],
    each: &mut dyn FnMut(&[u8]),
) -> Result<Hash, FormatError> {
    let packed = packed(bytes)?;
    let (tree, used) = unpack_with_values(packed, HEADER_BYTES, name, each)?;
    ends_at(packed, used)?;
    is_all(bytes, HEADER_BYTES + packed.len() + CRC_BYTES)?;
    Ok(tree)
}

/// The packed tree of the first record of `bytes`, which is as it was written.
fn packed(bytes: &[u8]) -> Result<&[u8], FormatError> {
    let size = record_size(bytes, u64::MAX)?;
    let size = match usize::try_from(size) {
        Ok(size) if size <= bytes.len() => size,
        _ => {
            let needed = size - bytes.len() as u64;
            return Err(FormatError::Truncated { offset: bytes.len(), needed, left: 0 });
        }
    };
    let (body, stored) = bytes[..size].split_at(size - CRC_BYTES);
    let computed = crc32fast::hash(body);
    let stored = be_u32(stored, 0);
    if stored != computed {
        return Err(FormatError::Crc { offset: body.len(), stored, computed });
    }
    Ok(&body[HEADER_BYTES..])
}

fn ends_at(packed: &[u8], used: usize) -> Result<(), FormatError> {
    match packed.len() - used {
        0 => Ok(()),
        extra => Err(FormatError::Slack { offset: HEADER_BYTES + used, extra }),
    }
}

fn is_all(bytes: &[u8], size: usize) -> Result<(), FormatError> {
    match bytes.len() - size {
        0 => Ok(()),
        extra => Err(FormatError::Trailing { offset: size, extra }),
    }
}

/// The one record that `bytes` are; nothing may follow it.
pub fn decode_file(bytes: &[u8]) -> Result<Hash, FormatError> {
    let (tree, size) = decode_record(bytes)?;
    is_all(bytes, size)?;
    Ok(tree)
}

/// How large the record is that begins with `header` (its first [`HEADER_BYTES`] bytes or more), so
/// that a reader of a file with a payload need not load that. `limit` is the most that the record
/// can be: the file's size, or less.
pub fn record_size(header: &[u8], limit: u64) -> Result<u64, FormatError> {
    if header.len() < HEADER_BYTES {
        let needed = (HEADER_BYTES - header.len()) as u64;
        return Err(FormatError::Truncated { offset: header.len(), needed, left: 0 });
    }
    let magic = be_u32(header, 0);
    if magic != MAGIC {
        return Err(FormatError::Magic { found: magic });
    }
    let [kind, version] = [4, 6].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
    if kind != TYPE_HASH {
        return Err(FormatError::Type { found: kind });
    }
    if version != VERSION {
        return Err(FormatError::Version { found: version });
    }
    let size = u64::from(be_u32(header, 8)) << 32 | u64::from(be_u32(header, 12));
    if size < RECORD_BYTES_MIN as u64 {
        return Err(FormatError::Size { found: size });
    }
    let flags = be_u32(header, 16);
    if flags != FLAG_CRC32 {
        return Err(FormatError::Flags { found: flags });
    }
    if size > limit {
        return Err(FormatError::TooLarge { found: size, limit });
    }
    Ok(size)
}

/// The four bytes at `at`, which the caller knows to be there.
fn be_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
