//! `scrfs doctor`: the command line, and what is printed.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use scrfs::config::{self, Sources};
use scrfs::doctor::{Grade, checks, gather};

use super::CommandError;

/// What a shell that reaches other hosts is, where Open MPI's setting does not say.
const REMOTE_SHELL: &str = "ssh -o BatchMode=yes -o ConnectTimeout=3";

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// The user whose jobs are asked about [default: SCR_USER_NAME, else the scheduler's, else you].
    #[arg(long, value_name = "NAME")]
    user: Option<OsString>,
    /// A job's directory on the parallel file system, to be tried with that user's rights [default: SCR_PREFIX].
    #[arg(long, value_name = "DIR")]
    prefix: Option<OsString>,
    /// Hosts whose clocks are compared with this one's, over ssh or what OMPI_MCA_plm_rsh_agent names.
    #[arg(long, value_name = "LIST")]
    hosts: Option<String>,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints the report; 1 when something fails.
pub(super) fn doctor(args: DoctorArgs) -> Result<ExitCode, CommandError> {
    let mut sources = Sources::of_process(std::env::vars_os())?;
    for (name, option, value) in
        [("SCR_USER_NAME", "--user", args.user), ("SCR_PREFIX", "--prefix", args.prefix)]
    {
        if let Some(value) = value {
            sources.give(name, option, value);
        }
    }
    let hosts = args.hosts.as_deref().map(config::expand_hosts).transpose();
    let hosts = hosts.map_err(|expected| CommandError::Hosts(args.hosts.unwrap_or_default(), expected))?;
    let remote_shell = std::env::var("OMPI_MCA_plm_rsh_agent").unwrap_or_else(|_| REMOTE_SHELL.to_owned());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let questions = gather::Questions {
        remote_shell: remote_shell.split_whitespace().map(str::to_owned).collect(),
        hosts: hosts.unwrap_or_default(),
        path: std::env::split_paths(&path).collect(),
    };
    let report = checks::all(&gather::facts(&sources, &questions));
    let text = if args.json { report.for_programs() } else { report.for_people() };
    // A reader that has gone away is no failure.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(if report.grade == Grade::Fail { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
