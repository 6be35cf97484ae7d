//! The prefix: its paths, small files that appear whole, and steps at which tests end the work.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use crate::hash::FormatError;
use crate::ids::{DatasetId, Epoch};
use crate::path::RelPath;
use crate::plain::{self, Links};
use crate::prefix::strangers;
use crate::record::{Record, RecordError, Summary};
use crate::store::beneath;

/// A worker changes the index in less: one that holds its lock for longer is dead.
const PATIENCE: Duration = Duration::from_secs(5);
/// Of new files.
const NEW_MODE: Mode = Mode::from_raw_mode(plain::FILE_MODE);
/// A record on the PFS is at most this many bytes.
pub(super) const RECORD_BYTES_MAX: u64 = 256 << 20;

/// Why a task in the prefix failed.
#[derive(Debug, thiserror::Error)]
pub enum PfsError {
    /// A system call.
    #[error("{}: {step}: {source}", path.display())]
    Io {
        /// On what.
        path: PathBuf,
        /// What was done.
        step: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// A file is not the record that it should be.
    #[error("{}: {source}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: RecordError,
    },
    /// It is, but says something that cannot be.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Sound for all that is known, but this version cannot use it.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// File or directory.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The dataset cannot be put there.
    #[error("dataset {id} ({}): {reason}", String::from_utf8_lossy(name))]
    Dataset {
        /// Its id.
        id: DatasetId,
        /// Its name.
        name: Vec<u8>,
        /// Why not.
        reason: String,
    },
    /// A newer dataset of this name is there.
    #[error(
        "{} (dataset {id}) of epoch {epoch} is not put there: a newer dataset of this name is there, of epoch {newer}",
        String::from_utf8_lossy(name)
    )]
    Newer {
        /// The id of the one that is refused.
        id: DatasetId,
        /// Its name.
        name: Vec<u8>,
        /// Its epoch.
        epoch: Epoch,
        /// The epoch of the one that stays.
        newer: Epoch,
    },
    /// Newer coordinators are at work.
    #[error("epoch {0} has begun; this one, {1}, changes nothing any more")]
    Superseded(Epoch, Epoch),
    /// Another holds the lock.
    #[error("{}: held by {holder}", path.display())]
    Locked {
        /// The lock.
        path: PathBuf,
        /// What it says of its holder.
        holder: String,
    },
}

crate::control::are_reasons!(PfsError);

impl PfsError {
    pub(super) fn io(path: &Path, step: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, step, source }
    }

    pub(super) fn content(path: &Path, reason: impl Into<String>) -> Self {
        Self::Content { path: path.to_owned(), reason: reason.into() }
    }

    pub(super) fn unusable(path: &Path, reason: impl Into<String>) -> Self {
        Self::Unusable { path: path.to_owned(), reason: reason.into() }
    }

    /// Bytes were read, and they are not those that were written. Not a record that is missing or
    /// sound and says what this version does not understand: another release may have written it
    /// so.
    pub(super) fn is_damage(&self) -> bool {
        use FormatError::{Flags, Type, Version};
        match self {
            Self::Record { source: RecordError::Format(error), .. } => {
                !matches!(error, Type { .. } | Version { .. } | Flags { .. })
            }
            _ => false,
        }
    }
}

pub(crate) type Result<T> = std::result::Result<T, PfsError>;

/// A dataset on its way into the prefix: what belongs to its copy and its swap is named after it.
/// No two epochs share one, so that daemons of an older epoch which open their directory late write
/// into no other's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arrival {
    /// The epoch whose coordinators flush it, or which has sealed what nodes have saved; `None` in
    /// the names that former versions gave.
    pub(super) epoch: Option<Epoch>,
    pub(super) id: DatasetId,
}

impl Arrival {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (epoch, id) = match text.split_once('.') {
            Some((epoch, id)) => (Some(Epoch(epoch.parse().ok()?)), id),
            None => (None, text),
        };
        Some(Self { epoch, id: DatasetId(id.parse().ok()?) })
    }
}

impl std::fmt::Display for Arrival {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.epoch {
            Some(epoch) => write!(f, "{epoch}.{}", self.id),
            None => write!(f, "{}", self.id),
        }
    }
}

/// The job's directory on the PFS, as coordinators of one epoch use it.
#[derive(Debug)]
pub struct Prefix {
    root: PathBuf,
    pub(super) epoch: Epoch,
    /// For the lock file.
    pub(super) host: String,
    /// How long a lock of another worker of this epoch is waited for.
    pub(super) patience: Duration,
    /// Steps until the work ends as by a crash.
    #[cfg(test)]
    pub(super) steps_left: std::cell::Cell<u64>,
    /// A step at which the work waits: it says so there, and is told to go on.
    #[cfg(test)]
    pub(super) stop: Option<(&'static str, crossbeam_channel::Sender<()>, crossbeam_channel::Receiver<()>)>,
}

impl Prefix {
    /// The prefix at `root`, for coordinators of `epoch`; `host` is whom a lock of the index names.
    pub fn new(root: &[u8], epoch: Epoch, host: &str) -> Self {
        Self {
            root: PathBuf::from(OsString::from_vec(root.to_vec())),
            epoch,
            host: host.to_owned(),
            patience: PATIENCE,
            #[cfg(test)]
            steps_left: std::cell::Cell::new(u64::MAX),
            #[cfg(test)]
            stop: None,
        }
    }

    /// The same for whoever works there without coordinators: of the newest epoch that has begun,
    /// or of `epoch` if that is newer.
    ///
    /// # Errors
    /// `.scr` cannot be listed.
    pub fn of_newest(root: &[u8], epoch: Epoch, host: &str) -> Result<Self> {
        let mut prefix = Self::new(root, epoch, host);
        let begun = prefix.begun()?;
        prefix.epoch = epoch.max(Epoch(begun));
        Ok(prefix)
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Names this process among all that work in the prefix.
    pub(super) fn token(&self) -> String {
        format!("{}.{}", self.host, std::process::id())
    }

    /// `<prefix>/.scr/<name>`.
    pub(super) fn state(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.root.join(".scr").join(name.as_ref())
    }

    /// A flush of a dataset `id` has begun, by coordinators of any epoch, and is not over, or was
    /// left half-done.
    ///
    /// # Errors
    /// The prefix cannot be read.
    pub fn is_flushing(&self, id: DatasetId) -> Result<bool> {
        Ok(self.named("flush.", Arrival::parse)?.iter().any(|arrival| arrival.id == id))
    }

    /// Dataset `id` as this epoch's coordinators flush it.
    pub(super) fn arrival(&self, id: DatasetId) -> Arrival {
        Arrival { epoch: Some(self.epoch), id }
    }

    /// Those of `<prefix>/.scr/<word><arrival>`, lowest epoch first, that are not of a newer epoch.
    pub(super) fn arrivals(&self, word: &str) -> Result<Vec<Arrival>> {
        let own = Some(self.epoch);
        self.named(word, |text| Arrival::parse(text).filter(|arrival| arrival.epoch <= own))
    }

    /// Where a dataset is copied to before it gets its name.
    pub(super) fn flush(&self, arrival: Arrival) -> PathBuf {
        self.state(format!("flush.{arrival}"))
    }

    /// Where a former dataset of its name waits until the index is written.
    pub(super) fn old(&self, arrival: Arrival) -> PathBuf {
        self.state(format!("old.{arrival}"))
    }

    /// A link that holds the dataset's name from before the swap until after the index entry.
    pub(super) fn swap(&self, arrival: Arrival) -> PathBuf {
        self.state(format!("swap.{arrival}"))
    }

    /// The directory of dataset `name`.
    pub(super) fn dataset(&self, name: &[u8]) -> PathBuf {
        self.root.join(OsStr::from_bytes(name))
    }

    /// Fails where SCR has datasets in a layout that this version cannot read.
    pub(super) fn is_ours(&self) -> Result<()> {
        match super::foreign_layout(&self.root).map_err(PfsError::io(&self.root, "look at"))? {
            Some(layout) => Err(PfsError::unusable(&self.root, layout.to_string())),
            None => Ok(()),
        }
    }

    /// Makes `<prefix>/.scr`.
    pub(super) fn make(&self) -> Result<()> {
        super::make(&self.root).map(drop).map_err(PfsError::io(&self.root, "mkdir"))
    }

    /// Fails when coordinators of a newer epoch have begun.
    pub(super) fn newest(&self) -> Result<()> {
        match self.begun()? {
            highest if highest > self.epoch.0 => Err(PfsError::Superseded(Epoch(highest), self.epoch)),
            _ => Ok(()),
        }
    }

    /// The highest epoch that was begun in the prefix; 0: none was.
    fn begun(&self) -> Result<u64> {
        let numbers = self.numbered("epoch.")?;
        let real = |number: &&u64| is_epoch(&self.state(format!("epoch.{number}")), **number);
        Ok(numbers.iter().rev().find(real).copied().unwrap_or(0))
    }

    /// The numbers of `<prefix>/.scr/<word><number>`, lowest first.
    pub(super) fn numbered(&self, word: &str) -> Result<Vec<u64>> {
        self.named(word, |number| number.parse().ok())
    }

    /// What `parse` makes of the rest of each name of `.scr` that begins with `word`, lowest first.
    /// What strangers have made there is passed over.
    pub(super) fn named<T: Ord>(&self, word: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
        let path = self.state("");
        strangers::check_state(&self.root).map_err(PfsError::io(&self.root, "look at"))?;
        let names = match fs::read_dir(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(PfsError::io(&path, "list"))?,
        };
        let mut found = Vec::new();
        for entry in names {
            let entry = entry.map_err(PfsError::io(&path, "list"))?;
            let name = entry.file_name();
            let parsed = name.to_str().and_then(|name| name.strip_prefix(word)).and_then(&parse);
            let Some(parsed) = parsed else { continue };
            match strangers::look(&entry.path()) {
                Err(error) if strangers::is_of_strangers(&error) => {
                    tracing::debug!(path = %entry.path().display(), %error, "passed over");
                }
                _ => found.push(parsed),
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Passes a fault point; tests end the work here.
    pub(super) fn step(&self, point: &'static str) -> Result<()> {
        #[cfg(test)]
        {
            let left = self.steps_left.get();
            if left == 0 {
                return Err(PfsError::io(&self.root, point)(io::Error::other("crashed")));
            }
            self.steps_left.set(left - 1);
            if let Some((_, here, on)) = self.stop.as_ref().filter(|(at, ..)| *at == point) {
                // Whoever waits for it may have gone.
                let _ = here.send(()).map(|()| on.recv());
            }
        }
        crate::faults::hit(point).map_err(PfsError::io(&self.root, point))
    }
}

/// Reads a record; `None` when there is no such file.
pub(super) fn read_record<R: Record>(path: &Path) -> Result<Option<R>> {
    read_bounded(path)?.map(|bytes| decode(path, &bytes)).transpose()
}

/// The summary of a dataset's directory; `None` when there is none, nor has a file in its place
/// one. Where others may make directories, one may be somebody's mount, or a link to one: neither
/// is asked, and it is no dataset.
pub(super) fn read_summary(directory: &Path) -> Result<Option<Summary>> {
    let inner = Path::new(".scr/summary.scr");
    let path = directory.join(inner);
    let opened = plain::open_moved(directory).and_then(|top| plain::read_inside(&top, directory, inner));
    match opened {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::CrossesDevices) => {
            Ok(None)
        }
        opened => whole(&path, opened)?.map(|bytes| decode(&path, &bytes)).transpose(),
    }
}

/// The bytes of a record of a dataset, `inner` below `top`, which is `directory`; `None` when there
/// is no such file.
pub(super) fn read_inside(top: impl AsFd, directory: &Path, inner: &Path) -> Result<Option<Vec<u8>>> {
    let path = directory.join(inner);
    let opened = plain::read_inside(top, directory, inner);
    let is_open = |file: &File| file.metadata().is_ok_and(|meta| meta.mode() & 0o002 != 0);
    if opened.as_ref().is_ok_and(is_open) {
        let path = path.display();
        tracing::warn!("{path}: everybody may write to it: a restart reads what another user has put there");
    }
    whole(&path, opened)
}

pub(super) fn decode<R: Record>(path: &Path, bytes: &[u8]) -> Result<R> {
    R::decode(bytes).map_err(|source| PfsError::Record { path: path.to_owned(), source })
}

/// The bytes of a small file; `None` when there is no such file.
pub(super) fn read_bounded(path: &Path) -> Result<Option<Vec<u8>>> {
    bounded(path, plain::read_unmounted(path, Links::Follow))
}

fn bounded(path: &Path, opened: io::Result<File>) -> Result<Option<Vec<u8>>> {
    let is_ours = |file: File| strangers::refuse_planted(&file.metadata()?, path).map(|()| file);
    whole(path, opened.and_then(is_ours))
}

/// All of a file that is open; `None` when there was none to be opened.
fn whole(path: &Path, opened: io::Result<File>) -> Result<Option<Vec<u8>>> {
    let file = match opened {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(PfsError::io(path, "open"))?,
    };
    let mut bytes = Vec::new();
    file.take(RECORD_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(PfsError::io(path, "read"))?;
    if bytes.len() as u64 > RECORD_BYTES_MAX {
        return Err(PfsError::unusable(path, format!("more than {RECORD_BYTES_MAX} bytes")));
    }
    Ok(Some(bytes))
}

/// No start comes that far; above is what somebody has invented.
pub(super) const EPOCH_MAX: u64 = u64::MAX / 2;

/// Coordinators have begun an epoch of this number, whose file is at `path`. A stranger who can
/// make files there could end all numbers with one: what neither root nor this user has made counts
/// as long as it is one that starts reach, and where not everybody can make files.
pub fn is_epoch(path: &Path, number: u64) -> bool {
    const REACHED_MAX: u64 = u32::MAX as u64;
    let file = match plain::look(path) {
        // Removed since it was listed: a newer one is there, or a stranger plays.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return false,
        // What a user has mounted there.
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => return false,
        Err(_) => return number <= REACHED_MAX,
        Ok(file) => file,
    };
    if !strangers::is_theirs(&file) {
        return number < EPOCH_MAX;
    }
    let above = path.parent().and_then(|above| fs::metadata(above).ok());
    number <= REACHED_MAX && !above.is_some_and(|above| strangers::is_planted(&file, &above))
}

/// Opens a file of `.scr` to append to, which is made if need be.
///
/// # Errors
/// Those of the system calls; it is a link, no regular file, or a stranger's.
pub fn open_log(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = plain::regular(plain::open_unmounted(path, flags, NEW_MODE))?;
    strangers::refuse_planted(&file.metadata()?, path)?;
    Ok(file)
}

/// Appends to a small file, which is made if need be.
pub(super) fn append(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = open_log(path).map_err(PfsError::io(path, "open"))?;
    file.write_all(bytes).map_err(PfsError::io(path, "write"))
}

/// Replaces a small file: temporary, fsync, rename, fsync of the directory.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_by(path, bytes, "new")
}

/// The same where others may do so at the same time: `token` names this process in the temporary
/// file's name.
pub(super) fn replace_by(path: &Path, bytes: &[u8], token: &str) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".");
    temporary.push(token);
    replace_from(path, bytes, &PathBuf::from(temporary))
}

/// The same with a temporary file of this name, in the same file system.
pub(super) fn replace_from(path: &Path, bytes: &[u8], temporary: &Path) -> Result<()> {
    // What a crash has left; or somebody else's, who would keep it open.
    remove_file(temporary)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = plain::open_unmounted(temporary, flags, NEW_MODE);
    let mut file = file.map_err(PfsError::io(temporary, "create"))?;
    file.write_all(bytes).map_err(PfsError::io(temporary, "write"))?;
    file.sync_all().map_err(PfsError::io(temporary, "fsync"))?;
    rename(temporary, path)?;
    sync_parent(path)
}

pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(PfsError::io(from, "rename"))
}

/// The step of an error of [`sync_directory`].
pub(super) const SYNC: &str = "fsync";

/// Puts the names in the directory of `path` on storage.
pub(super) fn sync_parent(path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), sync_directory)
}

/// Puts the names in `directory` on storage.
pub(super) fn sync_directory(directory: &Path) -> Result<()> {
    File::open(directory).and_then(|d| d.sync_all()).map_err(PfsError::io(directory, SYNC))
}

/// Removes a tree; it is no error when there is none. What a user has mounted there is not asked.
pub(super) fn remove_tree(path: &Path) -> Result<()> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let removed = RelPath::new(name.as_bytes()).map_err(io::Error::other).and_then(|name| {
        let above = File::open(above)?;
        beneath::remove_tree(above.as_fd(), &name)
    });
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(PfsError::io(path, "remove")(e)),
        _ => Ok(()),
    }
}

/// Removes a file or link; it is no error when there is none.
pub(super) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(PfsError::io(path, "remove")(e)),
        _ => Ok(()),
    }
}

/// True when something has this name, a dangling link too.
pub(super) fn exists(path: &Path) -> Result<bool> {
    match plain::look(path) {
        Ok(_) => Ok(true),
        // Something is mounted there.
        Err(e) if e.kind() == io::ErrorKind::CrossesDevices => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(PfsError::io(path, "stat")(e)),
    }
}

/// Something is there that no stranger can have put there; what one can have is passed over.
pub(super) fn is_kept(path: &Path) -> Result<bool> {
    match strangers::has(path) {
        Err(error) if strangers::is_of_strangers(&error) => {
            tracing::warn!(path = %path.display(), %error, "passed over");
            Ok(false)
        }
        found => found.map_err(PfsError::io(path, "look at")),
    }
}

/// A dataset's name is one component, and none that is kept for scrfs.
pub(super) fn is_name(name: &[u8]) -> bool {
    let single = RelPath::new(name).is_ok_and(|path| path.names().count() == 1);
    single && name != b".scr" && name != b"scr.current"
}
