//! Where Open MPI's processes keep their small files: its own choice is a name in /tmp that every
//! user can know, and whoever makes it first keeps the job from starting. A name that nobody can
//! know before is taken in its place.

use std::collections::BTreeMap;
use std::ffi::OsString;

use scrfs::store::private::OPEN_MPI_PLACES;
use scrfs_tools::session::Session;

/// Puts the place into the environment of launchers, unless the user has chosen one. It is gone
/// with the answer.
pub(crate) fn choose(environment: &mut BTreeMap<OsString, OsString>) -> Option<Session> {
    if OPEN_MPI_PLACES.iter().any(|name| environment.contains_key(&OsString::from(name))) {
        return None;
    }
    match Session::make() {
        Ok(session) => {
            environment.extend(OPEN_MPI_PLACES.map(|name| (name.into(), session.path().into())));
            Some(session)
        }
        Err(error) => {
            tracing::warn!("Open MPI's files stay where others could make them first: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_ones_own_unless_the_user_has_chosen() {
        let mut environment = BTreeMap::new();
        let session = choose(&mut environment).unwrap();
        assert!(OPEN_MPI_PLACES.iter().all(|name| environment[&OsString::from(name)] == session.path()));
        for name in OPEN_MPI_PLACES {
            let mut environment = BTreeMap::from([(OsString::from(name), OsString::from("/own"))]);
            assert!(choose(&mut environment).is_none());
            assert_eq!(environment.len(), 1);
        }
    }
}
