//! Where Open MPI's processes keep their small files: its own choice is a name in /tmp that every
//! user can know, and whoever makes it first keeps the job from starting. A name that nobody can
//! know before is taken in its place. On other nodes mpirun's arguments tell that name before its
//! daemon makes it: `scrfs-ctl mpi-agent` makes it there, or takes another.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use scrfs::store::private::{OPEN_MPI_AGENTS, OPEN_MPI_PLACES};
use scrfs_tools::session::Session;

/// Puts the place, and `ctl` as what starts mpirun's daemons, into the environment of launchers,
/// unless the user has chosen one of them. The place is gone with the answer.
pub(crate) fn choose(environment: &mut BTreeMap<OsString, OsString>, ctl: &Path) -> Option<Session> {
    let agents = OPEN_MPI_AGENTS.map(|(name, _)| name);
    if OPEN_MPI_PLACES.iter().chain(&agents).any(|name| environment.contains_key(&OsString::from(name))) {
        return None;
    }
    match Session::make() {
        Ok(session) => {
            environment.extend(OPEN_MPI_PLACES.map(|name| (name.into(), session.path().into())));
            if let Some(ctl) = ctl.to_str().filter(|path| is_one_word(path)) {
                let agent = |daemon| format!("{ctl} mpi-agent {daemon}").into();
                environment.extend(OPEN_MPI_AGENTS.map(|(name, daemon)| (name.into(), agent(daemon))));
            }
            Some(session)
        }
        Err(error) => {
            tracing::warn!("Open MPI's files stay where others could make them first: {error}");
            None
        }
    }
}

/// mpirun splits at blanks, and a shell on the node reads what is left.
fn is_one_word(path: &str) -> bool {
    path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._+-=,@:".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_ones_own_unless_the_user_has_chosen() {
        let mut environment = BTreeMap::new();
        let session = choose(&mut environment, Path::new("/usr/bin/scrfs-ctl")).unwrap();
        assert!(OPEN_MPI_PLACES.iter().all(|name| environment[&OsString::from(name)] == session.path()));
        for (name, daemon) in OPEN_MPI_AGENTS {
            let agent = format!("/usr/bin/scrfs-ctl mpi-agent {daemon}");
            assert_eq!(environment[&OsString::from(name)], OsString::from(agent));
        }
        for name in environment.keys() {
            let mut environment = BTreeMap::from([(name.clone(), OsString::from("/own"))]);
            assert!(choose(&mut environment, Path::new("/usr/bin/scrfs-ctl")).is_none());
            assert_eq!(environment.len(), 1);
        }
        let mut environment = BTreeMap::new();
        let _session = choose(&mut environment, Path::new("/opt/a b/scrfs-ctl")).unwrap();
        assert_eq!(environment.len(), OPEN_MPI_PLACES.len());
    }
}
