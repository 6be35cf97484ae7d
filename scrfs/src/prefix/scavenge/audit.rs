//! Before somebody publishes what nodes have saved at another time, it is read once: its bytes may
//! have gone bad since, and once it is published its redundancy data is gone.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType};

use crate::dataset::{Catalog, EntryKind};
use crate::ids::Member;
use crate::path::RelPath;
use crate::plain::{self, STATE};
use crate::store::beneath;
use crate::transfer::Monitor;
use crate::transfer::copy::{Seen, checksum};

use super::super::directory::{PfsError, Prefix, Result, exists, remove_file};
use super::adopt::{By, Progress, Tell, leave_out};
use super::{Collection, DATASET, MemberRecord, is_not_there, open};

/// One process reads; a fetch compares all bytes, on all nodes at once. So a start that has read
/// for so long goes on without the rest.
pub(super) const START_READS_FOR: Duration = Duration::from_mins(1);

/// Why a file could not be read: it may be damaged, or the PFS.
type Unreadable = Option<PfsError>;

/// Compares the bytes that are there with the catalog. A member of which a file is bad is marked
/// ([`Collection::bad`]), and counts as missing in `records`; where members are missing, redundancy
/// data that is bad counts as missing too. Members in `presumed` count if all of their files were
/// read.
pub(super) fn audit(
    collection: &Collection,
    prefix: &Prefix,
    catalog: &Catalog,
    records: &mut [Option<MemberRecord>],
    presumed: &BTreeSet<Member>,
    by: By<'_>,
) -> Result<Unreadable> {
    let until = match by {
        By::Start(_, until) => until,
        By::Node | By::Person(_) => None,
    };
    let Some(tell) = by.listener() else { return Ok(None) };
    read(&Audit { collection, prefix, catalog, presumed, tell, until }, records)
}

/// Says what is bad, and whether time was short.
pub(in crate::prefix) fn read(audit: &Audit<'_>, records: &mut [Option<MemberRecord>]) -> Result<Unreadable> {
    let mut unreadable = None;
    if !audit.files(records, &mut unreadable)? || !audit.redundancy(records, &mut unreadable)? {
        let text =
            "more was saved than a start reads: a fetch compares the rest, and scrfs-ctl scavenge reads all";
        audit.say(text);
    }
    Ok(unreadable)
}

pub(in crate::prefix) struct Audit<'a> {
    pub(in crate::prefix) collection: &'a Collection,
    pub(in crate::prefix) prefix: &'a Prefix,
    pub(in crate::prefix) catalog: &'a Catalog,
    /// Those of which only the files say that they are whole ([`Collection::presume`]).
    pub(in crate::prefix) presumed: &'a BTreeSet<Member>,
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
    fn files(&self, records: &mut [Option<MemberRecord>], unreadable: &mut Unreadable) -> Result<bool> {
        let directory = self.collection.directory.join(DATASET);
        let top = open(&directory)?;
        let (mut gone, mut bad) = (BTreeSet::new(), BTreeSet::new());
        let mut time_is_short = false;
        // Several members may have the same file.
        let mut last: Option<(&RelPath, Seen, bool, bool)> = None;
        for entry in &self.catalog.entries {
            let EntryKind::File(copy) = &entry.kind else { continue };
            if records.get(copy.member.0 as usize).is_none_or(Option::is_none) {
                continue;
            }
            let sealed = Seen { size: copy.size, crc: copy.crc };
            let (is_good, is_bad) = match last {
                Some((path, of, is_good, is_bad)) if (path, of) == (&entry.path, sealed) => (is_good, is_bad),
                _ => match self.compare(&top, &directory, &entry.path, sealed)? {
                    Found::TimeIsShort => {
                        time_is_short = true;
                        break;
                    }
                    other => {
                        let (is_good, is_bad) =
                            (matches!(other, Found::Good), matches!(other, Found::Bad(_)));
                        self.tell_of(&entry.path, copy.member, other, unreadable);
                        (is_good, is_bad)
                    }
                },
            };
            if !is_good {
                gone.insert(copy.member);
            }
            if is_bad && bad.insert(copy.member) {
                self.collection.mark_bad(self.prefix, copy.member)?;
            }
            last = Some((&entry.path, sealed, is_good, is_bad));
        }
        leave_out(&gone, records);
        if time_is_short {
            leave_out(self.presumed, records);
        }
        let is_there = |member: &Member| records.get(member.0 as usize).is_some_and(Option::is_some);
        for member in self.presumed.iter().filter(|member| is_there(member)) {
            let text = "is damaged, or not there: its files are, and their bytes are those that were sealed";
            self.say(&format!("the record of member {member} ({}) {text}", self.host(*member)));
        }
        // Their bytes are good again: who reads for a person has read all of them.
        for member in self.collection.bad()?.iter().filter(|member| is_there(member) && !time_is_short) {
            remove_file(&self.collection.bad_path(*member))?;
        }
        Ok(!time_is_short)
    }

    fn tell_of(&self, path: &RelPath, member: Member, what: Found, unreadable: &mut Unreadable) {
        let why = match what {
            Found::Good | Found::TimeIsShort => return,
            Found::Bad(why) => why,
            Found::Unreadable(error) => {
                let why = error.to_string();
                unreadable.get_or_insert(error);
                why
            }
        };
        self.say(&format!("{path}, saved by {}: {why}", self.host(member)));
    }

    /// That of sets with members that are missing; false when time was short.
    fn redundancy(&self, records: &mut [Option<MemberRecord>], unreadable: &mut Unreadable) -> Result<bool> {
        let directory = &self.collection.directory;
        let top = open(directory)?;
        let lacks = |set: &&Vec<Member>| {
            set.iter().any(|member| records.get(member.0 as usize).is_some_and(Option::is_none))
        };
        let members: Vec<Member> = self.catalog.layout.sets.iter().filter(lacks).flatten().copied().collect();
        for member in members {
            let Some(record) = records.get_mut(member.0 as usize).and_then(Option::as_mut) else { continue };
            let Some(copy) = record.redundancy.first().filter(|_| !self.presumed.contains(&member)) else {
                continue;
            };
            let recorded = Seen { size: copy.size, crc: copy.crc };
            match self.compare(&top, directory, &copy.name, recorded)? {
                Found::TimeIsShort => return Ok(false),
                Found::Good => {}
                other => {
                    self.tell_of(&copy.name, member, other, unreadable);
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
            // Nor is it bad that all is gone: another has published it.
            Err(error)
                if is_not_there(&error, &at()) && exists(&self.collection.directory.join(DATASET))? =>
            {
                return Ok(Found::Bad(error.to_string()));
            }
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
            // The file's device, perhaps; or the whole PFS is away.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                Ok(Found::Unreadable(PfsError::io(&at(), "read")(error)))
            }
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
    Unreadable(PfsError),
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

/// Removes what strangers have put among the files in `dataset`, or at the names of its links and
/// directories: it is not published with them. Their directories are removed if they are empty: of
/// others something may be the user's own. What stays is told.
///
/// # Errors
/// Something stays at a name of the dataset: whose it is.
pub(super) fn clear(dataset: &Path, catalog: &Catalog, by: By<'_>) -> Result<()> {
    let top = open(dataset)?;
    let kind_of = |path: &RelPath| {
        let at = catalog.entries.binary_search_by(|entry| entry.path.cmp(path)).ok()?;
        Some(&catalog.entries[at].kind)
    };
    let directories = catalog.entries.iter().filter(|entry| entry.kind == EntryKind::Directory);
    for directory in directories.map(|entry| &entry.path) {
        by.goes();
        let Ok(opened) = beneath::open_directory(top.as_fd(), directory) else { continue };
        for name in beneath::names(opened.as_fd()).map_err(PfsError::io(dataset, "list"))? {
            by.goes();
            let Ok(path) = RelPath::new(&name[..]).and_then(|name| directory.concat(&name)) else { continue };
            let Some((owner, kind)) = strange(&opened, &name) else { continue };
            let is_needed = path.as_bytes() == STATE.as_bytes() || kind_of(&path).is_some();
            match (kind_of(&path), kind) {
                (Some(EntryKind::File(_)), _) => continue,
                // One that can be used, as a colleague's who has saved it.
                (Some(EntryKind::Directory), FileType::Directory)
                    if beneath::open_directory(top.as_fd(), &path).is_ok() =>
                {
                    continue;
                }
                _ => {}
            }
            let at = if kind == FileType::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            let shown = dataset.join(path.as_path());
            let whose = format!("it belongs to user {owner}, and is not of the dataset");
            let text = match rustix::fs::unlinkat(&opened, &name[..], at) {
                Ok(()) => format!("{}: {whose}: removed", shown.display()),
                Err(errno) if is_needed => {
                    let error = io::Error::new(io::Error::from(errno).kind(), format!("{errno}; {whose}"));
                    return Err(PfsError::io(&shown, "remove")(error));
                }
                Err(errno) => format!("{}: {whose}: it stays: {errno}", shown.display()),
            };
            tracing::warn!("{text}");
            if let Some(tell) = by.listener() {
                tell(Progress::Said(&text));
            }
        }
    }
    Ok(())
}

/// Whose it is, and what, if a stranger has put it there.
fn strange(directory: &impl AsFd, name: &[u8]) -> Option<(u32, FileType)> {
    let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let is_strange = ![0, plain::acting().0].contains(&found.st_uid);
    is_strange.then(|| (found.st_uid, FileType::from_raw_mode(found.st_mode)))
}
