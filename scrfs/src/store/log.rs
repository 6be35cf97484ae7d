//! An append-only file of small records. What a crash tore off the end is dropped when it is opened
//! again.
//!
//! Appends are not synced: they survive the death of the process, which is what they are for; what
//! must survive a power loss is committed by [`Store::commit`](super::Store::commit). A record:
//! length and CRC32 of the body, both big-endian u32, then the body (postcard).

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Store, StoreError};

/// Largest record body, bytes: two paths and some numbers.
const RECORD_MAX: usize = 16 << 10;
/// Largest file, bytes.
const LOG_MAX: u64 = 256 << 20;
/// Bytes before the body.
const HEAD: usize = 8;

/// A log of `T`.
#[derive(Debug)]
pub struct Log<T> {
    store: Arc<Store>,
    name: String,
    file: File,
    /// Bytes of whole records.
    bytes: u64,
    /// An append failed: what follows the whole records is not known, and goes before the next one.
    torn: bool,
    /// The open file has lost its name to a newer one, which is to be opened. It is torn then, too.
    detached: bool,
    records: PhantomData<fn(T)>,
}

impl<T: Serialize + DeserializeOwned> Log<T> {
    /// Opens file `name` and reads its records; the second value tells how many bytes of a torn
    /// tail were dropped.
    pub fn open(store: &Arc<Store>, name: &str) -> Result<(Self, Vec<T>, u64), StoreError> {
        let bytes = store.read(name, LOG_MAX)?.unwrap_or_default();
        let (records, whole) = parse(&bytes);
        let failed = |step, source| StoreError::Failed { path: store.path().join(name), step, source };
        let file = open_file(store, name).map_err(|e| failed("open", e))?;
        file.set_len(whole).map_err(|e| failed("truncate", e))?;
        let mut log = Self {
            store: Arc::clone(store),
            name: name.to_owned(),
            file,
            bytes: whole,
            torn: false,
            detached: false,
            records: PhantomData,
        };
        log.file.seek(SeekFrom::Start(whole)).map_err(|e| failed("seek", e))?;
        Ok((log, records, bytes.len() as u64 - whole))
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends one record, while there is room.
    pub fn append(&mut self, record: &T) -> io::Result<()> {
        self.write(&frame(record)?)
    }

    /// Appends one record; when there is no room, with what the store keeps back.
    pub fn append_surely(&mut self, record: &T) -> io::Result<()> {
        let (framed, store) = (frame(record)?, Arc::clone(&self.store));
        let errno = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        store.with_room(framed.len(), errno, || self.write(&framed))
    }

    fn write(&mut self, framed: &[u8]) -> io::Result<()> {
        // What is longer could not be read again.
        if self.bytes.saturating_add(framed.len() as u64) > LOG_MAX {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        if self.torn {
            self.cut()?;
        }
        crate::faults::hit("store.append")?;
        if let Err(error) = self.file.write_all(framed) {
            self.torn = true;
            return Err(error);
        }
        self.bytes += framed.len() as u64;
        Ok(())
    }

    /// Replaces all records, in one commit.
    pub fn rewrite<'a>(&mut self, records: impl Iterator<Item = &'a T>) -> Result<(), StoreError>
    where
        T: 'a,
    {
        let failed =
            |step, source| StoreError::Failed { path: self.store.path().join(&self.name), step, source };
        let mut bytes = Vec::new();
        for record in records {
            bytes.extend(frame(record).map_err(|e| failed("encode", e))?);
        }
        let committed = self.store.commit(&self.name, &bytes);
        if !matches!(committed, Ok(()) | Err(StoreError::InDoubt { .. })) {
            return committed;
        }
        // From here on the open file has no name: what is appended to that is lost.
        (self.bytes, self.torn, self.detached) = (bytes.len() as u64, true, true);
        let path = self.store.path().join(&self.name);
        self.cut().map_err(|source| StoreError::Failed { path, step: "open", source })?;
        committed
    }

    /// Forgets all records. Not synced either.
    pub fn clear(&mut self) -> io::Result<()> {
        // Where the file cannot be cut now, it is before the next record.
        (self.bytes, self.torn) = (0, true);
        self.cut()
    }

    fn cut(&mut self) -> io::Result<()> {
        crate::faults::hit("store.cut")?;
        if self.detached {
            (self.file, self.detached) = (open_file(&self.store, &self.name)?, false);
        }
        self.file.set_len(self.bytes)?;
        self.file.seek(SeekFrom::Start(self.bytes))?;
        self.torn = false;
        Ok(())
    }
}

fn open_file(store: &Store, name: &str) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(store.directory(), name, flags, Mode::RUSR | Mode::WUSR)?))
}

fn frame<T: Serialize>(record: &T) -> io::Result<Vec<u8>> {
    let mut framed = postcard::to_extend(record, vec![0; HEAD])
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
    let body = framed.len() - HEAD;
    if body > RECORD_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let crc = crc32fast::hash(&framed[HEAD..]);
    framed[..4].copy_from_slice(&u32::try_from(body).unwrap_or(u32::MAX).to_be_bytes());
    framed[4..HEAD].copy_from_slice(&crc.to_be_bytes());
    Ok(framed)
}

/// The records up to the first that is not whole, and the bytes that they take.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> (Vec<T>, u64) {
    let mut records = Vec::new();
    let mut at = 0;
    while let Some((record, length)) = parse_one(&bytes[at..]) {
        records.push(record);
        at += length;
    }
    (records, at as u64)
}

fn parse_one<T: DeserializeOwned>(bytes: &[u8]) -> Option<(T, usize)> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let (length, crc) = head.split_at(4);
    let length = usize::try_from(u32::from_be_bytes(length.try_into().ok()?)).ok()?;
    if length > RECORD_MAX {
        return None;
    }
    let body = rest.get(..length)?;
    if crc32fast::hash(body) != u32::from_be_bytes(crc.try_into().ok()?) {
        return None;
    }
    Some((postcard::from_bytes(body).ok()?, HEAD + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &std::path::Path) -> (Log<String>, Vec<String>, u64) {
        Log::open(&Arc::new(Store::open(dir).unwrap()), "log").unwrap()
    }

    #[test]
    fn a_tail_torn_at_any_byte_loses_only_the_last_record() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, records, _) = open(dir.path());
        assert!(records.is_empty());
        log.append(&"first".to_owned()).unwrap();
        let whole = log.bytes();
        log.append(&"second".to_owned()).unwrap();
        let full = std::fs::read(dir.path().join("log")).unwrap();
        for cut in usize::try_from(whole).unwrap()..full.len() {
            std::fs::write(dir.path().join("log"), &full[..cut]).unwrap();
            let (mut log, records, dropped) = open(dir.path());
            assert_eq!(records, ["first"]);
            assert_eq!(dropped, cut as u64 - whole);
            log.append(&"third".to_owned()).unwrap();
            assert_eq!(open(dir.path()).1, ["first", "third"]);
        }
    }

    /// What is appended afterwards is all that is there.
    #[cfg(feature = "faults")]
    #[test]
    fn a_log_that_could_not_be_cleared_is_cleared_by_the_next_record() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _, _) = open(dir.path());
        log.append(&"old".to_owned()).unwrap();
        crate::faults::arm(1, crate::faults::Fault::Error(libc::EIO));
        log.clear().unwrap_err();
        log.append(&"new".to_owned()).unwrap();
        assert_eq!(open(dir.path()).1, ["new"]);
    }

    #[cfg(feature = "faults")]
    #[test]
    fn what_is_appended_after_a_rewrite_is_in_the_file_that_has_the_name() {
        for points in 1..12 {
            let dir = tempfile::tempdir().unwrap();
            let (mut log, _, _) = open(dir.path());
            log.append(&"a".to_owned()).unwrap();
            crate::faults::arm(points, crate::faults::Fault::Error(libc::EMFILE));
            drop(log.rewrite(["b".to_owned()].iter()));
            crate::faults::arm(0, crate::faults::Fault::Death);
            log.append(&"c".to_owned()).unwrap();
            let records = open(dir.path()).1;
            assert!(records == ["b", "c"] || records == ["a", "c"], "{points}: {records:?}");
            crate::faults::arm(points, crate::faults::Fault::Error(libc::EMFILE));
            drop(log.rewrite(["d".to_owned()].iter()));
            drop(log.clear());
            crate::faults::arm(0, crate::faults::Fault::Death);
            log.append(&"e".to_owned()).unwrap();
            assert_eq!(open(dir.path()).1, ["e"], "{points}");
        }
    }

    #[test]
    fn garbage_is_no_record() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("log"), [0xff; 100]).unwrap();
        let (_, records, dropped) = open(dir.path());
        assert!(records.is_empty());
        assert_eq!(dropped, 100);
    }

    #[test]
    fn rewriting_keeps_what_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _, _) = open(dir.path());
        for text in ["a", "b", "c"] {
            log.append(&text.to_owned()).unwrap();
        }
        log.rewrite([&"b".to_owned()].into_iter()).unwrap();
        log.append(&"d".to_owned()).unwrap();
        assert_eq!(open(dir.path()).1, ["b", "d"]);
        let (mut log, _, _) = open(dir.path());
        log.clear().unwrap();
        log.append(&"e".to_owned()).unwrap();
        assert_eq!(open(dir.path()).1, ["e"]);
    }
}
