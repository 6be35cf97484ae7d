//! Before somebody publishes what nodes have saved at another time, it is read once: its bytes may
//! have gone bad since, and once it is published its redundancy data is gone.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::AtFlags;

use crate::dataset::{Catalog, EntryKind};
use crate::ids::Member;
use crate::path::RelPath;
use crate::plain::{self, STATE};
use crate::store::beneath;
use crate::transfer::Monitor;
use crate::transfer::copy::{Seen, checksum};

use super::super::directory::{PfsError, Result};
use super::adopt::{By, Progress, Tell};
use super::{Collection, DATASET, MemberRecord, is_not_there, open};

/// One process reads; the fetch that follows a start compares all bytes on all nodes at once. So a
/// start goes without the rest, however much was saved.
const START_READS_FOR: Duration = Duration::from_mins(1);

/// Compares the bytes that are there with the catalog: a member of which a file is bad is none that
/// is there, and where members are missing so is bad redundancy data.
pub(super) fn audit(
    collection: &Collection,
    catalog: &Catalog,
    records: &mut [Option<MemberRecord>],
    by: By<'_>,
) -> Result<()> {
    let until = match by {
        By::Start(_) => Instant::now().checked_add(START_READS_FOR),
        By::Node | By::Person(_) => None,
    };
    match by.listener() {
        None => Ok(()),
        Some(tell) => read(&Audit { collection, catalog, tell, until }, records),
    }
}

/// Says what is bad, and whether time was short.
pub(in crate::prefix) fn read(audit: &Audit<'_>, records: &mut [Option<MemberRecord>]) -> Result<()> {
    if !audit.files(records)? || !audit.redundancy(records)? {
        audit.say(&format!(
            "more was saved than can be read in {} s: the rest is compared when it is fetched",
            START_READS_FOR.as_secs()
        ));
    }
    Ok(())
}

pub(in crate::prefix) struct Audit<'a> {
    pub(in crate::prefix) collection: &'a Collection,
    pub(in crate::prefix) catalog: &'a Catalog,
    pub(in crate::prefix) tell: Tell<'a>,
    /// The rest is not read then.
    pub(in crate::prefix) until: Option<Instant>,
}

impl Audit<'_> {
    fn say(&self, text: &str) {
        let name = String::from_utf8_lossy(&self.catalog.name);
        (self.tell)(Progress::Said(&format!("{name} (dataset {}): {text}", self.catalog.id)));
    }

    /// False when time was short.
    fn files(&self, records: &mut [Option<MemberRecord>]) -> Result<bool> {
        let directory = self.collection.directory.join(DATASET);
        let top = open(&directory)?;
        let mut bad = BTreeSet::new();
        let mut time_is_short = false;
        // Several members may have the same file.
        let mut last: Option<(&RelPath, Seen, Option<String>)> = None;
        for entry in &self.catalog.entries {
            let EntryKind::File(copy) = &entry.kind else { continue };
            if records.get(copy.member.0 as usize).is_none_or(Option::is_none) {
                continue;
            }
            let sealed = Seen { size: copy.size, crc: copy.crc };
            let wrong = match &last {
                Some((path, of, wrong)) if (*path, *of) == (&entry.path, sealed) => wrong.clone(),
                _ => match self.compare(&top, &directory, &entry.path, sealed)? {
                    Found::Good => None,
                    Found::Bad(why) => Some(why),
                    Found::TimeIsShort => {
                        time_is_short = true;
                        break;
                    }
                },
            };
            if let Some(why) = &wrong
                && bad.insert(copy.member)
            {
                self.say(&format!("{}, saved by {}: {why}", entry.path, self.host(copy.member)));
            }
            last = Some((&entry.path, sealed, wrong));
        }
        for member in bad {
            if let Some(record) = records.get_mut(member.0 as usize) {
                *record = None;
            }
        }
        Ok(!time_is_short)
    }

    /// That of sets with members that are missing; false when time was short.
    fn redundancy(&self, records: &mut [Option<MemberRecord>]) -> Result<bool> {
        let directory = &self.collection.directory;
        let top = open(directory)?;
        let lacks = |set: &&Vec<Member>| {
            set.iter().any(|member| records.get(member.0 as usize).is_some_and(Option::is_none))
        };
        let members: Vec<Member> = self.catalog.layout.sets.iter().filter(lacks).flatten().copied().collect();
        for member in members {
            let Some(record) = records.get_mut(member.0 as usize).and_then(Option::as_mut) else { continue };
            let Some(copy) = record.redundancy.first() else { continue };
            let recorded = Seen { size: copy.size, crc: copy.crc };
            match self.compare(&top, directory, &copy.name, recorded)? {
                Found::TimeIsShort => return Ok(false),
                Found::Good => {}
                Found::Bad(why) => {
                    self.say(&format!("{}, saved by {}: {why}", copy.name, self.host(member)));
                    record.redundancy.clear();
                }
            }
        }
        Ok(true)
    }

    fn host(&self, member: Member) -> &str {
        let place = self.catalog.layout.members.get(member.0 as usize);
        place.map_or("an unknown node", |place| &place.host)
    }

    /// Reads the file once, to its end.
    fn compare(&self, top: &OwnedFd, shown: &Path, path: &RelPath, sealed: Seen) -> Result<Found> {
        (self.tell)(Progress::Goes);
        let at = || shown.join(path.as_path());
        let file = match beneath::open_file(top.as_fd(), path) {
            Err(error) if is_not_there(&error, &at()) => return Ok(Found::Bad(error.to_string())),
            file => file.map_err(PfsError::io(&at(), "open"))?,
        };
        let mut watched = Watched { file: File::from(file), audit: self };
        match checksum(&mut watched, sealed.size, &Monitor::default()) {
            Ok(seen) if seen == sealed => Ok(Found::Good),
            Ok(seen) => {
                let text = format!("{} bytes with CRC {:#x}", seen.size, seen.crc);
                Ok(Found::Bad(format!("it has {text}, and had {} with {:#x}", sealed.size, sealed.crc)))
            }
            Err(_) if self.time_is_short() => Ok(Found::TimeIsShort),
            // This file's device; a PFS that is away says something else.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(Found::Bad(error.to_string())),
            Err(error) => Err(PfsError::io(&at(), "read")(error)),
        }
    }

    fn time_is_short(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

enum Found {
    Good,
    /// And why.
    Bad(String),
    TimeIsShort,
}

/// A file, each block of which is told.
struct Watched<'a> {
    file: File,
    audit: &'a Audit<'a>,
}

impl Read for Watched<'_> {
    fn read(&mut self, block: &mut [u8]) -> io::Result<usize> {
        (self.audit.tell)(Progress::Goes);
        if self.audit.time_is_short() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.file.read(block)
    }
}

/// Removes what strangers have put among the files in `dataset`, as far as that can be done: it is
/// not published with them.
pub(super) fn clear(dataset: &Path, catalog: &Catalog) -> Result<()> {
    let top = open(dataset)?;
    let known: HashSet<&RelPath> = catalog.entries.iter().map(|entry| &entry.path).collect();
    let directories = catalog.entries.iter().filter(|entry| entry.kind == EntryKind::Directory);
    for directory in directories.map(|entry| &entry.path) {
        let Ok(opened) = beneath::open_directory(top.as_fd(), directory) else { continue };
        for name in beneath::names(opened.as_fd()).map_err(PfsError::io(dataset, "list"))? {
            let Ok(path) = RelPath::new(&name[..]).and_then(|name| directory.concat(&name)) else { continue };
            if known.contains(&path) || path.as_bytes() == STATE.as_bytes() || !is_strange(&opened, &name) {
                continue;
            }
            let shown = dataset.join(path.as_path());
            match beneath::remove_tree(top.as_fd(), &path) {
                Ok(()) => tracing::warn!("{}: of a stranger, not of the dataset: removed", shown.display()),
                Err(error) => tracing::warn!(%error, "{}: of a stranger: it stays", shown.display()),
            }
        }
    }
    Ok(())
}

fn is_strange(directory: &impl AsFd, name: &[u8]) -> bool {
    let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| ![0, plain::acting().0].contains(&found.st_uid))
}
