//! `scrfs-ctl print`: the tree in a hash file, as SCR prints it. Of a redundancy file it prints the
//! header; where a file is several records one after the other (leaves of rank2file), it prints
//! all.

use std::io::{BufReader, Read};
use std::path::Path;

use scrfs::hash::file::HEADER_BYTES;
use scrfs::hash::{decode_record, record_size};
use scrfs::prefix::strangers;
use scrfs_tools::{Failure, Outcome, output};

/// Larger than any that scrfs or SCR writes; a header that claims more lies.
const RECORD_BYTES_MAX: u64 = 1 << 30;

pub(crate) fn print(path: &Path) -> Outcome {
    let file = strangers::open(path).map_err(|e| failed(path, &e))?;
    let about = file.metadata().map_err(|e| failed(path, &e))?;
    let left = about.len();
    let mut reader = BufReader::new(file);
    let mut text = String::new();
    let mut at: u64 = 0;
    while let Some(record) = next(&mut reader, left.saturating_sub(at), at).map_err(|e| failed(path, &e))? {
        let (tree, used) = decode_record(&record).map_err(|e| failed(path, &e))?;
        at += used as u64;
        text.push_str(&tree.to_string());
        if tree.has("GROUP") {
            // A redundancy header: what follows is parity or a copy, whatever it looks like.
            break;
        }
    }
    output::data(&text)
}

/// The bytes of the record that begins here. What follows the first record is another one, or a
/// payload, and then it is not ours to print.
fn next(reader: &mut impl Read, left: u64, at: u64) -> Result<Option<Vec<u8>>, String> {
    let mut record = Vec::new();
    let header = u64::try_from(HEADER_BYTES).unwrap_or(u64::MAX);
    reader.by_ref().take(header).read_to_end(&mut record).map_err(|e| e.to_string())?;
    let size = match record_size(&record, left.min(RECORD_BYTES_MAX)) {
        Ok(size) => size,
        Err(_) if at > 0 => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    reader.by_ref().take(size.saturating_sub(header)).read_to_end(&mut record).map_err(|e| e.to_string())?;
    Ok(Some(record))
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
        .hint("name a file that scrfs or SCR wrote, such as .scr/index.scr in the prefix")
}
