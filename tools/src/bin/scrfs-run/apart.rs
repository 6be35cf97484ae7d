//! Where Open MPI's processes keep their small files: its own choice is a name in /tmp that every
//! user can know, and whoever makes it first keeps the job from starting. A name that nobody can
//! know before is taken in its place. On other nodes mpirun's arguments tell that name before its
//! daemon makes it: `scrfs-ctl mpi-agent` makes it there, or takes another.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use scrfs::store::private::{OPEN_MPI_AGENTS, OPEN_MPI_PARTS, OPEN_MPI_PLACES};
use scrfs_tools::session::Session;

/// Where Debian's Open MPI has its site's parameters, and where users have theirs.
const SITE_FILES: [&str; 2] = ["/etc/openmpi/openmpi-mca-params.conf", "/etc/prte/prte-mca-params.conf"];
const USER_FILES: [&str; 2] = [".openmpi/mca-params.conf", ".prte/mca-params.conf"];
/// More of such a file is not read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Puts the place, and `ctl` as what starts mpirun's daemons, into the environment of launchers,
/// unless the user or the site has chosen one of them. The place is gone with the answer.
pub(crate) fn choose(environment: &mut BTreeMap<OsString, OsString>, ctl: &Path) -> Option<Session> {
    let home = environment.get(OsStr::new("HOME")).map(PathBuf::from).unwrap_or_default();
    let users = USER_FILES.iter().map(|file| home.join(file));
    let files = SITE_FILES.iter().map(PathBuf::from).chain(users);
    if is_chosen(environment, &files.map(|file| text_of(&file)).collect::<Vec<_>>()) {
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

/// By a variable, or by one of the texts of Open MPI's parameter files.
fn is_chosen(environment: &BTreeMap<OsString, OsString>, files: &[String]) -> bool {
    let agents = OPEN_MPI_AGENTS.map(|(name, _)| name);
    let mut names = OPEN_MPI_PLACES.iter().chain(&OPEN_MPI_PARTS).chain(&agents);
    let set = |line: &str| Some(line.split_once('=')?.0.trim().to_owned());
    let in_files: BTreeSet<String> = files.iter().flat_map(|text| text.lines().filter_map(set)).collect();
    names.any(|name| {
        let parameter = name.split_once("_MCA_").map_or(*name, |(_, parameter)| parameter);
        environment.contains_key(OsStr::new(name)) || in_files.contains(parameter)
    })
}

/// Of a file that is there and is a file; a site that has none has chosen nothing.
fn text_of(path: &Path) -> String {
    let mut bytes = Vec::new();
    if !path.is_file() {
        return String::new();
    }
    if let Ok(file) = File::open(path) {
        // What could be read counts.
        drop(file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    }
    String::from_utf8_lossy(&bytes).into_owned()
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
        for (text, chosen) in [
            ("# orte_tmpdir_base = /own\norte_other = 1\n", false),
            ("btl = self\n orte_remote_tmpdir_base=/own\n", true),
            ("orte_launch_agent = /opt/orted\n", true),
            ("prte_tmpdir_base = /own", true),
        ] {
            assert_eq!(is_chosen(&BTreeMap::new(), &[String::new(), text.to_owned()]), chosen, "{text}");
        }
        let parts = OPEN_MPI_PARTS.map(|name| BTreeMap::from([(OsString::from(name), "/own".into())]));
        assert!(parts.iter().all(|environment| is_chosen(environment, &[])));
        let mut environment = BTreeMap::new();
        let _session = choose(&mut environment, Path::new("/opt/a b/scrfs-ctl")).unwrap();
        assert_eq!(environment.len(), OPEN_MPI_PLACES.len());
    }
}
