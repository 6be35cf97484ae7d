//! Settings of a job that sets next to nothing, for what attaches to a daemon, or begins an epoch,
//! without a coordinator.

use std::collections::BTreeMap;
use std::path::PathBuf;

use scrfs::config::{Config, ConfigError, Sources};
use scrfs::control::Settings;

/// Nothing is flushed, and no list is too long.
///
/// # Errors
/// The user's name, or the prefix, cannot be any.
pub fn of_little(user: &str, prefix: PathBuf) -> Result<Settings, ConfigError> {
    let set = [("SCR_FLUSH", "0"), ("SCRFS_LIST_MAX", "100000000")];
    let sources = Sources {
        environment: set.map(|(name, value)| (name.to_owned(), value.to_owned().into())).into(),
        options: BTreeMap::new(),
        working_directory: prefix,
        user: user.to_owned(),
        host: "node00000".to_owned(),
        administrator: false,
        essential: None,
        reads_user_file: false,
    };
    Ok(Config::load(&sources, |_| Ok(None))?.settings())
}
