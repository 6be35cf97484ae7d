//! Whether the programs that are to be started are there.

use std::path::Path;

use scrfs_tools::{Failure, Outcome, output};

use crate::arguments::Job;
use crate::launcher::CommandLine;

/// A launcher that is missing would look like nodes that are; without a launcher the program itself
/// is looked for.
pub(super) fn look_for(job: &Job) -> Outcome {
    const PROGRAM: &str =
        "name a program that is there: it is looked for in PATH, a path with a slash is taken as it is";
    let hosts = job.plan.hosts.get(..1).unwrap_or_default();
    let own_line = job.lines.program(hosts, 1, &job.program, &[]);
    let launched = || job.lines.tool(hosts, &["true".as_ref()]);
    let lines = (!job.lines.launcher.is_program()).then(launched).into_iter().chain([own_line]);
    let own = job.program.first().map(Path::new);
    let is_path = |path: &&Path| path.as_os_str().as_encoded_bytes().contains(&b'/');
    // Whatever launcher would try these says no more than that it may not. The program may be
    // another one on the nodes.
    own.filter(is_path).map_or(Ok(()), is_no_directory)?;
    can_be_executed(&job.coordinator)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    for CommandLine { program, .. } in lines {
        let shown = output::escaped(program.display());
        let is_path = program.as_encoded_bytes().contains(&b'/');
        let is_own = job.program.first().is_some_and(|own| *own == program);
        if is_path {
            can_be_executed(program.as_ref())?;
        }
        if is_path && !Path::new(&program).is_file() {
            return Err(Failure::new(format!("there is no {shown}")).hint(if is_own {
                PROGRAM
            } else {
                "--launcher-program says where the launcher is"
            }));
        }
        if !is_path && !std::env::split_paths(&path).any(|dir| dir.join(&program).is_file()) {
            return Err(Failure::new(format!("there is no {shown} in PATH")).hint(if is_own {
                PROGRAM
            } else {
                "--launcher names another launcher, --launcher-program says where it is"
            }));
        }
    }
    Ok(())
}

fn is_no_directory(path: &Path) -> Outcome {
    if path.is_dir() {
        let shown = output::escaped(path.display());
        return Err(Failure::new(format!("{shown} is a directory")).hint("name the program that is in it"));
    }
    Ok(())
}

/// What is there is no directory, and may be executed.
fn can_be_executed(path: &Path) -> Outcome {
    is_no_directory(path)?;
    let shown = output::escaped(path.display());
    if path.exists() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_err() {
        return Err(Failure::new(format!("{shown} cannot be executed"))
            .hint("chmod +x makes a script or a program executable"));
    }
    Ok(())
}
