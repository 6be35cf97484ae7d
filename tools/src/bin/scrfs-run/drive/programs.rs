//! Whether the programs that are to be started are there.

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
    let own = job.program.first().map(std::path::Path::new);
    // Whatever launcher would try it says no more than that it may not.
    if let Some(own) = own.filter(|own| own.as_os_str().as_encoded_bytes().contains(&b'/') && own.is_dir()) {
        return Err(Failure::new(format!("{} is a directory", output::escaped(own.display())))
            .hint("name the program that is in it"));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    for CommandLine { program, .. } in lines {
        let shown = output::escaped(program.display());
        let is_path = program.as_encoded_bytes().contains(&b'/');
        let is_own = job.program.first().is_some_and(|own| *own == program);
        if is_own && is_path && is_no_program(program.as_ref()) {
            return Err(Failure::new(format!("{shown} cannot be executed"))
                .hint("chmod +x makes a script or a program executable"));
        }
        if is_path && !std::path::Path::new(&program).is_file() {
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

/// It is there, and is a directory or may not be executed.
fn is_no_program(path: &std::path::Path) -> bool {
    let executable = rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    path.exists() && !(executable && path.is_file())
}
