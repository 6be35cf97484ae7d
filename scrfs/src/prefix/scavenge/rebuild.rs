//! The files of a member whose node is lost, or whose bytes are bad, from what the other members of
//! its set have saved: the algebra of [`crate::redundancy`], carried out by one process over files,
//! a block at a time.
//!
//! The lost member's pieces come in the order of its logical file, so that each file is written
//! from its start to its end, and its CRC is taken on the way. It gets its name only if that is the
//! one in the catalog. Its redundancy file is not made: what is published needs none.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, OFlags};

use crate::dataset::{Catalog, Entry, FileCopy};
use crate::hash::file::HEADER_BYTES;
use crate::hash::record_size;
use crate::ids::Member;
use crate::path::RelPath;
use crate::record::{Record, RedundancyHeader};
use crate::redundancy::code::Code;
use crate::redundancy::geometry::{Geometry, LogicalFile, Part, Segment, blocks};
use crate::redundancy::kernel::add_multiple;
use crate::redundancy::payload::Payloads;
use crate::redundancy::right;
use crate::store::beneath;
use crate::transfer::pfs::keep_attributes;
use crate::transfer::sparse;

use super::super::directory::{PfsError, Prefix, Result};
use super::{Collection, DATASET, MemberRecord, RedundancyCopy, gone, open};

/// Bytes of one block.
const BLOCK: u64 = 1 << 20;
/// A redundancy file's header lists the files of two members.
const HEADER_MAX: u64 = 256 << 20;
const NO_DATA: &str = "too few of the set of the lost member have redundancy data there";

/// Rebuilds the files of `lost`, whose set has lost no more members than its scheme survives;
/// `goes` is told of each block.
pub(super) fn rebuild(
    prefix: &Prefix,
    collection: &Collection,
    catalog: &Catalog,
    records: &[Option<MemberRecord>],
    lost: Member,
    goes: &dyn Fn(),
) -> Result<()> {
    let place = Place { collection, catalog, top: open(&collection.directory)? };
    let Some(set) = catalog.layout.sets.iter().find(|set| set.contains(&lost)) else {
        return Err(place.wrong(format!("member {lost} is in no set")));
    };
    let lengths: Vec<u64> = set.iter().map(|member| place.length(*member)).collect();
    let payloads = Payloads::of(catalog.layout.scheme(), &lengths).map_err(|e| place.wrong(e.to_string()))?;
    let gone = gone(set, records);
    let Some(lost_at) = gone.iter().position(|at| set[*at] == lost) else {
        return Err(place.wrong(format!("member {lost} is not lost")));
    };
    let mut survivors = Vec::new();
    for (at, member) in set.iter().enumerate().filter(|(at, _)| !gone.contains(at)) {
        let is_needed = match payloads {
            Payloads::Copies { .. } => at == right(set.len(), gone[lost_at]),
            Payloads::None | Payloads::Parities(..) => true,
        };
        let record = records.get(member.0 as usize).and_then(Option::as_ref);
        let redundancy = record.and_then(|record| record.redundancy.first()).filter(|_| is_needed);
        let Some(redundancy) = redundancy else { continue };
        survivors.push(Survivor::open(&place, set, at, &payloads, redundancy)?);
    }
    let mut target = Target::new(&place, lost, &prefix.token());
    target.go_on()?;
    match &payloads {
        Payloads::None => return Err(place.wrong(format!("nothing protects member {lost}"))),
        Payloads::Copies { .. } => {
            copy_back(&place, place.length(lost), survivors.first(), &mut target, goes)?;
        }
        Payloads::Parities(geometry, code) => {
            let lost = Lost { gone: &gone, at: lost_at };
            sum_up(&place, (*geometry, code), &lost, &mut survivors, &mut target, goes)?;
        }
    }
    target.end()
}

/// PARTNER: the copy of the lost member's files, `length` bytes, is its partner's.
fn copy_back(
    place: &Place<'_>,
    length: u64,
    partner: Option<&Survivor>,
    target: &mut Target<'_>,
    goes: &dyn Fn(),
) -> Result<()> {
    for range in blocks(length, BLOCK) {
        let partner = partner.ok_or_else(|| place.wrong(NO_DATA.to_owned()))?;
        let length = usize::try_from(range.end - range.start).map_err(|e| place.wrong(e.to_string()))?;
        let mut block = vec![0; length];
        partner.read_payload(place, range.start, &mut block)?;
        target.write(&block)?;
        goes();
    }
    Ok(())
}

/// Lost members of a set.
struct Lost<'a> {
    /// Their positions in the set.
    gone: &'a [usize],
    /// The one that is rebuilt, in `gone`.
    at: usize,
}

/// XOR and Reed-Solomon: each piece of the lost member is a sum of the survivors' parts.
fn sum_up(
    place: &Place<'_>,
    (geometry, code): (Geometry, &Code),
    lost: &Lost<'_>,
    survivors: &mut [Survivor],
    target: &mut Target<'_>,
    goes: &dyn Fn(),
) -> Result<()> {
    let mut own = Vec::new();
    for column in 0..geometry.members() {
        if let Part::Parity { .. } = geometry.part(lost.gone[lost.at], column) {
            continue;
        }
        let recipe = code.recipe(column, lost.gone).ok_or_else(|| place.wrong(NO_DATA.to_owned()))?;
        for range in blocks(geometry.chunk(), BLOCK) {
            let length = usize::try_from(range.end - range.start).map_err(|e| place.wrong(e.to_string()))?;
            let mut block = vec![0; length];
            for survivor in survivors.iter_mut() {
                let factor = recipe.coefficients_of(survivor.at)[lost.at];
                if factor == 0 {
                    continue;
                }
                own.clear();
                own.resize(length, 0);
                let part = geometry.part(survivor.at, column);
                survivor.read(place, part, geometry.range(part, &range), &mut own)?;
                add_multiple(&mut block, &own, factor);
            }
            target.write(&block)?;
            goes();
        }
    }
    Ok(())
}

/// Where files are.
struct Place<'a> {
    collection: &'a Collection,
    catalog: &'a Catalog,
    top: OwnedFd,
}

impl Place<'_> {
    fn wrong(&self, reason: String) -> PfsError {
        PfsError::content(&self.collection.directory, reason)
    }

    fn length(&self, member: Member) -> u64 {
        self.catalog.files_of(member).map(|(_, copy)| copy.size).fold(0, u64::saturating_add)
    }

    fn in_dataset(&self, path: &RelPath) -> Result<RelPath> {
        let below = RelPath::new(DATASET).and_then(|dataset| dataset.concat(path));
        below.map_err(|e| self.wrong(e.to_string()))
    }

    fn io(&self, path: &RelPath, step: &'static str) -> impl FnOnce(io::Error) -> PfsError + use<> {
        let path = self.collection.directory.join(path.as_path());
        move |source| PfsError::Io { path, step, source }
    }
}

/// A member that is there.
struct Survivor {
    /// Its position in the set.
    at: usize,
    files: Vec<RelPath>,
    logical: LogicalFile,
    /// The file that was read last.
    opened: Option<(usize, File)>,
    redundancy: (RelPath, File),
    /// Where the parities begin in it.
    payload: u64,
}

impl Survivor {
    fn open(
        place: &Place<'_>,
        set: &[Member],
        at: usize,
        payloads: &Payloads,
        redundancy: &RedundancyCopy,
    ) -> Result<Self> {
        let name = &redundancy.name;
        let file = beneath::open_file(place.top.as_fd(), name).map_err(place.io(name, "open"))?;
        let file = File::from(file);
        let size = file.metadata().map_err(place.io(name, "stat"))?.len();
        let sizes: Vec<u64> = place.catalog.files_of(set[at]).map(|(_, copy)| copy.size).collect();
        let payload = header(&file, size)
            .and_then(|(header, length)| {
                let says = header.current.as_ref().and_then(|files| files.sizes().ok());
                let group = header.group.as_ref().and_then(|group| group.in_order().ok());
                let of = header.dataset.as_ref().and_then(|dataset| dataset.id);
                let parities = usize::try_from(header.parities.unwrap_or(1));
                let fits = header.chunk == payloads.chunk()
                    && payloads.parities().is_none_or(|known| parities == Ok(known))
                    && says.as_ref() == Some(&sizes)
                    && group.as_deref() == Some(set)
                    && of == Some(place.catalog.id);
                if !fits {
                    return Err("its header is of another set".to_owned());
                }
                if size != length.saturating_add(payloads.bytes(at)) || size != redundancy.size {
                    return Err(format!("it has {size} bytes"));
                }
                Ok(length)
            })
            .map_err(|reason| PfsError::content(&place.collection.directory.join(name.as_path()), reason))?;
        let logical = LogicalFile::new(sizes).map_err(|e| place.wrong(e.to_string()))?;
        let files = place.catalog.files_of(set[at]).map(|(entry, _)| entry.path.clone()).collect();
        Ok(Self { at, files, logical, opened: None, redundancy: (name.clone(), file), payload })
    }

    /// Fills `out` from `at` of its redundancy file's payload.
    fn read_payload(&self, place: &Place<'_>, at: u64, out: &mut [u8]) -> Result<()> {
        let (name, file) = &self.redundancy;
        file.read_exact_at(out, self.payload + at).map_err(place.io(name, "read"))
    }

    /// Its `range` of a part; `out` is zero before.
    fn read(&mut self, place: &Place<'_>, part: Part, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        if let Part::Parity { .. } = part {
            return self.read_payload(place, range.start, out);
        }
        let mut rest = out;
        for segment in self.logical.segments(range) {
            let length = usize::try_from(segment.len()).unwrap_or(usize::MAX).min(rest.len());
            let (here, after) = rest.split_at_mut(length);
            rest = after;
            let Segment::File { index, offset, .. } = segment else { continue };
            let path = place.in_dataset(&self.files[index])?;
            let file = match &self.opened {
                Some((opened, file)) if *opened == index => file,
                _ => {
                    let file =
                        beneath::open_file(place.top.as_fd(), &path).map_err(place.io(&path, "open"))?;
                    &self.opened.insert((index, File::from(file))).1
                }
            };
            file.read_exact_at(here, offset).map_err(place.io(&path, "read"))?;
        }
        Ok(())
    }
}

/// The header at the start of a redundancy file of `size` bytes, and its length.
fn header(file: &File, size: u64) -> std::result::Result<(RedundancyHeader, u64), String> {
    let mut start = [0; HEADER_BYTES];
    file.read_exact_at(&mut start, 0).map_err(|e| e.to_string())?;
    let length = record_size(&start, size.min(HEADER_MAX)).map_err(|e| e.to_string())?;
    let mut bytes = vec![0; usize::try_from(length).map_err(|e| e.to_string())?];
    file.read_exact_at(&mut bytes, 0).map_err(|e| e.to_string())?;
    let header = RedundancyHeader::decode(&bytes).map_err(|e| e.to_string())?;
    Ok((header, length))
}

/// The lost member's files, written one after the other.
struct Target<'a> {
    place: &'a Place<'a>,
    files: Vec<(&'a Entry, &'a FileCopy)>,
    /// The next one to be begun.
    next: usize,
    current: Option<Current<'a>>,
    temporary: String,
}

struct Current<'a> {
    entry: &'a Entry,
    copy: &'a FileCopy,
    file: File,
    at: u64,
    crc: crc32fast::Hasher,
}

impl<'a> Target<'a> {
    fn new(place: &'a Place<'a>, lost: Member, token: &str) -> Self {
        let files = place.catalog.files_of(lost).collect();
        Self { place, files, next: 0, current: None, temporary: format!("copy.{lost}.{token}") }
    }

    fn temporary(&self) -> Result<RelPath> {
        RelPath::new(self.temporary.as_bytes()).map_err(|e| self.place.wrong(e.to_string()))
    }

    /// Begins the next file; those without bytes are done at once.
    fn go_on(&mut self) -> Result<()> {
        while self.current.is_none()
            && let Some((entry, copy)) = self.files.get(self.next).copied()
        {
            self.next += 1;
            let path = self.temporary()?;
            let file = beneath::create_file(self.place.top.as_fd(), &path, OFlags::WRONLY)
                .map_err(self.place.io(&path, "create"))?;
            let (file, crc) = (File::from(file), crc32fast::Hasher::new());
            self.current = Some(Current { entry, copy, file, at: 0, crc });
            if copy.size == 0 {
                self.close()?;
            }
        }
        Ok(())
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        // Behind the last file there are zeros.
        while !bytes.is_empty()
            && let Some(current) = &mut self.current
        {
            let left = usize::try_from(current.copy.size - current.at).unwrap_or(usize::MAX);
            let (here, rest) = bytes.split_at(left.min(bytes.len()));
            bytes = rest;
            sparse::write_at(&current.file, here, current.at)
                .map_err(self.place.io(&current.entry.path, "write"))?;
            current.crc.update(here);
            current.at += here.len() as u64;
            if current.at == current.copy.size {
                self.close()?;
                self.go_on()?;
            }
        }
        Ok(())
    }

    /// All bytes of a file are written: it gets its place if they are the right ones.
    fn close(&mut self) -> Result<()> {
        let Some(Current { entry, copy, file, crc, .. }) = self.current.take() else { return Ok(()) };
        let found = crc.finalize();
        if found != copy.crc {
            let text = format!("{}: rebuilt with CRC {found:#x}, sealed with {:#x}", entry.path, copy.crc);
            return Err(self.place.wrong(format!(
                "{text}: something that was saved of its set is damaged; scrfs-ctl scavenge reads all of it"
            )));
        }
        sparse::end(&file, copy.size).map_err(self.place.io(&entry.path, "write"))?;
        keep_attributes(&file, entry);
        file.sync_all().map_err(self.place.io(&entry.path, "fsync"))?;
        let (from, to) = (self.temporary()?, self.place.in_dataset(&entry.path)?);
        let top = self.place.top.as_fd();
        match beneath::put_in_place(top, &from, top, &to) {
            // A directory in a file's place is nobody's who saves; what is in one may be.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                let (parent, name) =
                    beneath::parent_of(top, &to, false).map_err(self.place.io(&to, "open"))?;
                rustix::fs::unlinkat(&parent, name.as_path(), AtFlags::REMOVEDIR)
                    .map_err(|e| self.place.io(&to, "replace")(e.into()))?;
                beneath::put_in_place(top, &from, top, &to)
            }
            put => put,
        }
        .map_err(self.place.io(&to, "rename"))?;
        let (parent, _) = beneath::parent_of(top, &to, false).map_err(self.place.io(&to, "open"))?;
        rustix::fs::fsync(&parent).map_err(|e| self.place.io(&to, "fsync")(e.into()))
    }

    /// All of them are there.
    fn end(mut self) -> Result<()> {
        self.go_on()?;
        match self.current {
            None => Ok(()),
            Some(current) => Err(self.place.wrong(format!("{} is not whole", current.entry.path))),
        }
    }
}
