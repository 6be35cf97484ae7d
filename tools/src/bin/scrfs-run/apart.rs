//! Where Open MPI's processes keep their small files: its own choice is a name in /tmp that every user can know, and whoever
//! makes it first keeps the job from starting. A name that nobody can know before is taken in its place.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use scrfs::store::private;

/// What says where, in Open MPI 4 and 5.
pub(crate) const PLACES: [&str; 2] = ["OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base"];
/// Where it would be otherwise, on every node.
const BASE: &str = "/tmp";

/// A directory on this host, gone with this. On other nodes Open MPI's daemons make it.
#[derive(Debug)]
pub(crate) struct Apart {
    path: PathBuf,
}

impl Apart {
    /// Puts the place into the environment of launchers, unless the user has chosen one.
    pub(crate) fn choose(environment: &mut BTreeMap<OsString, OsString>) -> Option<Self> {
        if PLACES.iter().any(|name| environment.contains_key(&OsString::from(name))) {
            return None;
        }
        let uid = rustix::process::getuid().as_raw();
        let path = match private::make_new(Path::new(BASE), &format!("scrfs-mpi.{uid}")) {
            Ok(path) => path,
            Err(error) => {
                tracing::warn!("Open MPI's files stay where others could make them first: {error}");
                return None;
            }
        };
        environment.extend(PLACES.map(|name| (name.into(), path.clone().into_os_string())));
        Some(Self { path })
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // What Open MPI has left is its own to explain.
        let _ = std::fs::remove_dir(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_ones_own_unless_the_user_has_chosen() {
        let mut environment = BTreeMap::new();
        let apart = Apart::choose(&mut environment).unwrap();
        assert_eq!(environment[&OsString::from(PLACES[0])], apart.path);
        assert!(private::is_ours(&apart.path));
        let path = apart.path.clone();
        drop(apart);
        assert!(!path.exists());
        for name in PLACES {
            let mut environment = BTreeMap::from([(OsString::from(name), OsString::from("/own"))]);
            assert!(Apart::choose(&mut environment).is_none());
            assert_eq!(environment.len(), 1);
        }
    }
}
