//! `scrfs-ctl mpi-agent`: what mpirun starts on a node in the place of its daemon.
//!
//! mpirun tells the daemon where to keep its files, in arguments that every user of the node can
//! read. Whoever made that directory first would keep the daemon from starting. So a directory that
//! is the user's own is found or made here, and the daemon is told of it instead.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use scrfs::store::private::OPEN_MPI_PLACES;
use scrfs_tools::{Failure, output, session};

/// Becomes `command`; a failure is all that it can give.
pub(crate) fn become_daemon(mut command: Vec<OsString>) -> Failure {
    for place in places(&mut command) {
        *place = here(place);
    }
    let program = command.remove(0);
    let mut daemon = Command::new(&program);
    for name in OPEN_MPI_PLACES {
        if let Some(place) = std::env::var_os(name) {
            daemon.env(name, here(&place));
        }
    }
    let error = daemon.args(command).exec();
    let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    Failure::new(format!("mpirun's daemon {}: {error}", output::escaped(program.display())))
        .hint("it is looked for in the PATH that a remote shell has there; --launcher-program with mpirun's full path has it found beside mpirun")
        .code(code)
}

/// Where the arguments `-mca NAME PLACE` of a daemon name the place of its files.
fn places(command: &mut [OsString]) -> impl Iterator<Item = &mut OsString> {
    let mut follows = false;
    command.iter_mut().filter(move |word| {
        let is_place = follows;
        let names = OPEN_MPI_PLACES.iter().filter_map(|name| name.split_once("_MCA_"));
        follows = names.map(|(_, name)| name).any(|name| word.as_os_str() == name);
        is_place
    })
}

fn here(named: &OsStr) -> OsString {
    match session::on_this_node(Path::new(named)) {
        Ok(place) => place.into(),
        Err(error) => {
            output::talk(&format!(
                "scrfs-ctl: Open MPI's files stay where others could make them first: {error}"
            ));
            named.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_told_of_another_place_and_of_all_else_as_it_was() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let mut command =
            words("orted -mca ess env -mca orte_tmpdir_base /tmp/a --prtemca prte_tmpdir_base /tmp/b -x");
        for place in places(&mut command) {
            place.push(".own");
        }
        assert_eq!(
            command,
            words(
                "orted -mca ess env -mca orte_tmpdir_base /tmp/a.own --prtemca prte_tmpdir_base /tmp/b.own -x"
            )
        );
        let mut last = words("orted orte_tmpdir_base");
        assert_eq!(places(&mut last).count(), 0);
    }
}
