//! The edge: what a program's `main` hands to [`Config::load`](super::Config::load).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use super::{FILE_BYTES_MAX, Sources};
use crate::bounded;

/// The user file is on a PFS, which may not answer.
const READ_LIMIT: Duration = Duration::from_secs(10);

impl Sources {
    /// Of this process; the caller passes its environment (`std::env::vars_os()`), so that the library reads none.
    pub fn of_process(environment: impl IntoIterator<Item = (OsString, OsString)>) -> io::Result<Self> {
        let environment: BTreeMap<String, OsString> = environment
            .into_iter()
            .filter_map(|(name, value)| name.into_string().ok().map(|name| (name, value)))
            .collect();
        let uid = nix::unistd::getuid();
        let user = nix::unistd::User::from_uid(uid)?.map_or_else(|| uid.to_string(), |user| user.name);
        Ok(Self {
            environment,
            options: BTreeMap::new(),
            working_directory: std::env::current_dir()?,
            user,
            host: nix::unistd::gethostname()?.to_string_lossy().into_owned(),
            administrator: uid.is_root(),
        })
    }

    /// The value of a parameter that the program's option gives: stronger than the environment's.
    pub fn give(&mut self, parameter: &'static str, option: &'static str, value: OsString) {
        self.environment.insert(parameter.to_owned(), value);
        self.options.insert(parameter, option);
    }
}

/// Reads a configuration file, at most [`FILE_BYTES_MAX`] bytes, for at most ten seconds; `None` when there is none.
pub fn read_file(path: &Path) -> io::Result<Option<String>> {
    let path = path.to_owned();
    bounded::within(READ_LIMIT, move || read(&path))
}

fn read(path: &Path) -> io::Result<Option<String>> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("longer than {FILE_BYTES_MAX} bytes"),
        ));
    }
    Ok(Some(text))
}
