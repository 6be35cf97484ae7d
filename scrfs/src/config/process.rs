//! The edge: what a program's `main` hands to [`Config::load`](super::Config::load).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use nix::unistd::{Uid, User};

use super::file::without_comment;
use super::{Account, Claim, ConfigError, FILE_BYTES_MAX, INVALID, Sources, USER_FILE};
use crate::bounded;
use crate::plain::{self, Links};

/// The user file is on a PFS, which may not answer.
const READ_LIMIT: Duration = Duration::from_secs(5);

impl Sources {
    /// Of this process; the caller passes its environment (`std::env::vars_os()`), so that the
    /// library reads none.
    pub fn of_process(environment: impl IntoIterator<Item = (OsString, OsString)>) -> io::Result<Self> {
        let environment: BTreeMap<String, OsString> = environment
            .into_iter()
            .filter_map(|(name, value)| name.into_string().ok().map(|name| (name, value)))
            .collect();
        let uid = nix::unistd::getuid();
        let mut environment = environment;
        name_the_user(&mut environment);
        let user = User::from_uid(uid)?.map_or_else(|| uid.to_string(), |user| user.name);
        Ok(Self {
            environment,
            options: BTreeMap::new(),
            working_directory: std::env::current_dir()?,
            user,
            host: nix::unistd::gethostname()?.to_string_lossy().into_owned(),
            administrator: uid.is_root(),
            essential: None,
            reads_user_file: true,
        })
    }

    /// The value of a parameter that the program's option gives: stronger than the environment's.
    pub fn give(&mut self, parameter: &'static str, option: &'static str, value: OsString) {
        self.environment.insert(parameter.to_owned(), value);
        self.options.insert(parameter, option);
    }

    /// An empty variable is the default; an empty option is one whose variable was not set in a
    /// script, and the default would be something else than what the script is about.
    pub(super) fn refuse_blank_options(&self) -> Result<(), ConfigError> {
        let text = |parameter| self.environment.get(parameter).map(|value| value.to_string_lossy());
        let blank = |text: &str| text.trim_matches(|c: char| c.is_whitespace() || c == ',').is_empty();
        let mut given = self.options.iter().map(|(parameter, option)| (option, text(*parameter)));
        match given.find(|(_, text)| text.as_ref().is_some_and(|text| blank(text))) {
            None => Ok(()),
            Some((option, text)) => Err(ConfigError::Blank {
                option: (*option).to_owned(),
                text: text.unwrap_or_default().into_owned(),
            }),
        }
    }
}

/// Schedulers that give the number alone mean a user with a name, if this node has one.
fn name_the_user(environment: &mut BTreeMap<String, OsString>) {
    let named = environment.get("SLURM_JOB_USER").is_some_and(|name| !name.is_empty());
    let number = environment.get("SLURM_JOB_UID").and_then(|number| number.to_str()?.parse::<u32>().ok());
    let user = number.filter(|_| !named).and_then(|uid| User::from_uid(Uid::from_raw(uid)).ok().flatten());
    if let Some(user) = user {
        environment.insert("SLURM_JOB_USER".to_owned(), user.name.into());
    }
}

impl Account {
    /// Who runs this process, and the job's user by what is said of it ([`Account::of`]).
    ///
    /// # Errors
    /// As [`Account::of`].
    pub fn of_job(claim: &Claim) -> Result<Self, ConfigError> {
        Self::of(claim, &Self::of_process(), Self::by_name, Self::by_uid)
    }

    /// Whose directories are meant, by what is said of the job's user ([`Account::name_of`]).
    ///
    /// # Errors
    /// As [`Account::name_of`].
    pub fn name_of_job(claim: &Claim) -> Result<String, ConfigError> {
        Self::name_of(claim, &Self::of_process(), Self::by_name, Self::by_uid)
    }

    fn of_process() -> Self {
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        Self::by_uid(uid).unwrap_or(Self { name: uid.to_string(), uid, gid })
    }

    fn by_name(name: &str) -> Option<Self> {
        User::from_name(name).ok().flatten().map(Self::from)
    }

    fn by_uid(uid: u32) -> Option<Self> {
        User::from_uid(Uid::from_raw(uid)).ok().flatten().map(Self::from)
    }
}

impl From<User> for Account {
    fn from(user: User) -> Self {
        Self { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw() }
    }
}

/// Reads a configuration file, at most [`FILE_BYTES_MAX`] bytes, for at most five seconds; `None`
/// when there is none. A pipe is refused; so is what somebody has mounted, or a link, in the place
/// of a prefix's file.
pub fn read_file(path: &Path) -> io::Result<Option<String>> {
    let path = path.to_owned();
    bounded::within(READ_LIMIT, move || read(&path))
}

/// The file of a prefix that others may write to can be anybody's: it must not steer this user's
/// job.
fn belongs_to_reader(meta: &Metadata) -> io::Result<()> {
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if meta.uid() != 0 && meta.uid() != nix::unistd::geteuid().as_raw() {
        return refused(format!("it belongs to user {}, not to you", meta.uid()));
    }
    if meta.mode() & 0o002 != 0 && !meta.is_symlink() {
        return refused("everybody may write to it".to_owned());
    }
    Ok(())
}

/// The file of a prefix. Who may make a link there must not choose which of the reader's files is
/// read, and what a user has mounted there may lie about its owner, or never answer.
fn open_of_prefix(path: &Path) -> io::Result<File> {
    let opened = plain::read_unmounted(path, Links::Refuse);
    if let Err(error) = &opened
        && error.kind() != io::ErrorKind::NotFound
        && let Ok(meta) = plain::look(path)
    {
        belongs_to_reader(&meta)?;
        if meta.is_symlink() {
            return Err(io::Error::new(INVALID, "it is a symbolic link, and is not followed"));
        }
    }
    let file = opened?;
    belongs_to_reader(&file.metadata()?)?;
    Ok(file)
}

fn read(path: &Path) -> io::Result<Option<String>> {
    // Says that there is no user file.
    if path == Path::new("/dev/null") {
        return Ok(Some(String::new()));
    }
    let is_of_prefix = path.file_name().is_some_and(|name| name == USER_FILE);
    let opened = if is_of_prefix { open_of_prefix(path) } else { plain::open(path, Links::Follow) };
    let file = match opened {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("longer than {FILE_BYTES_MAX} bytes"),
        ));
    }
    text_of(&bytes).map(Some)
}

/// Comments may be in any encoding.
fn text_of(bytes: &[u8]) -> io::Result<String> {
    let is_wrong = |line: &[u8]| {
        // Up to there both are the same.
        let good = std::str::from_utf8(line).err().map(|error| error.valid_up_to());
        good.is_some_and(|good| without_comment(&String::from_utf8_lossy(line)).len() > good)
    };
    let mut lines = bytes.split(|&byte| byte == b'\n');
    match lines.position(is_wrong) {
        Some(at) => Err(io::Error::new(INVALID, format!("line {}: it is not UTF-8 text", at + 1))),
        None => Ok(String::from_utf8_lossy(bytes).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_is_named_by_its_line_and_comments_are_passed_over() {
        assert_eq!(text_of(b"A=1\n  # f\xfcr\nB=\xc3\xbc\n").unwrap(), "A=1\n  # f\u{fffd}r\nB=\u{fc}\n");
        assert!(text_of(b"A=1 # f\xfcr").is_ok() && text_of(b"A=\"# f\xfcr\"").is_err());
        let error = text_of(b"A=1\n\nB=\xfc # C\n").unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (INVALID, "line 3: it is not UTF-8 text".to_owned()));
    }

    /// Lines of a link's target must not be told, nor is a pipe waited for.
    #[test]
    fn a_prefixs_file_that_is_none_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let (file, target) = (place.path().join(USER_FILE), place.path().join("secret"));
        std::fs::write(&target, "root:$y$\n").unwrap();
        assert_eq!(read_file(&file).unwrap(), None);
        std::os::unix::fs::symlink(&target, &file).unwrap();
        let error = read_file(&file).unwrap_err();
        assert_eq!((error.kind(), error.to_string().contains("symbolic link")), (INVALID, true), "{error}");
        std::fs::remove_file(&file).unwrap();
        for name in [USER_FILE, "named"] {
            let pipe = place.path().join(name);
            nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
            let error = read_file(&pipe).unwrap_err();
            assert_eq!((error.kind(), error.to_string().contains("regular")), (INVALID, true), "{error}");
        }
        assert_eq!(read_file(Path::new("/dev/null")).unwrap().as_deref(), Some(""));
        let named = place.path().join("link");
        std::os::unix::fs::symlink(&target, &named).unwrap();
        assert_eq!(read_file(&named).unwrap().as_deref(), Some("root:$y$\n"));
    }

    /// A user's FUSE could say that its file is the reader's.
    #[test]
    fn what_is_mounted_at_a_prefixs_file_is_not_asked() {
        use nix::mount::{MsFlags, mount};
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        // The mount namespace is the thread's.
        let test = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
            let place = tempfile::tempdir().unwrap();
            let [file, other] = [USER_FILE, "other"].map(|name| place.path().join(name));
            std::fs::write(&file, "").unwrap();
            std::fs::write(&other, "SCR_FLUSH=0\n").unwrap();
            mount(Some(&other), &file, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
            let error = read_file(&file).unwrap_err();
            nix::mount::umount(&file).unwrap();
            assert_eq!(error.kind(), io::ErrorKind::CrossesDevices, "{error}");
            assert_eq!(read_file(&file).unwrap().as_deref(), Some(""));
        };
        std::thread::spawn(test).join().unwrap();
    }
}
