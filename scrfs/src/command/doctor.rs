//! `scrfs doctor`: the command line, and what is printed.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use scrfs::config::{self, Account, Config, Sources};
use scrfs::doctor::remote_shell::agent_in;
use scrfs::doctor::{Grade, checks, gather};

use super::CommandError;

/// What a shell that reaches other hosts is, where Open MPI's settings do not say.
const REMOTE_SHELL: &str = "ssh -o BatchMode=yes -o ConnectTimeout=3";
/// The site's file of Open MPI parameters, as Debian has it.
const SITE_FILE: &str = "/etc/openmpi/openmpi-mca-params.conf";
/// The same of a user, below the home directory.
const USER_FILE: &str = ".openmpi/mca-params.conf";

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// The user whose jobs are asked about
    /// [default: SCR_USER_NAME, else the scheduler's, else you].
    #[arg(long, value_name = "NAME")]
    user: Option<OsString>,
    /// A job's directory on the parallel file system, to be tried with that user's rights
    /// [default: SCR_PREFIX].
    #[arg(long, value_name = "DIR")]
    prefix: Option<OsString>,
    /// Hosts whose clocks are compared with this one's, over ssh or what Open MPI's parameter
    /// plm_rsh_agent names.
    #[arg(long, value_name = "LIST")]
    hosts: Option<String>,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints the report; 1 when something fails.
pub(super) fn doctor(args: DoctorArgs) -> Result<ExitCode, CommandError> {
    let mut sources = Sources::of_process(std::env::vars_os())?;
    let is_user_given = args.user.is_some();
    for (name, option, value) in
        [("SCR_USER_NAME", "--user", args.user), ("SCR_PREFIX", "--prefix", args.prefix)]
    {
        if let Some(value) = value {
            sources.give(name, option, value);
        }
    }
    if is_user_given {
        is_user(&sources)?;
    }
    let hosts = args.hosts.as_deref().map(config::expand_hosts).transpose();
    let hosts = hosts.map_err(|expected| CommandError::Hosts(args.hosts.unwrap_or_default(), expected))?;
    // This host's clock is its own.
    let is_other = |host: &String| short(host) != short(&sources.host);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let questions = gather::Questions {
        remote_shell: remote_shell().split_whitespace().map(str::to_owned).collect(),
        hosts: hosts.unwrap_or_default().into_iter().filter(is_other).collect(),
        path: std::env::split_paths(&path).collect(),
    };
    let report = checks::all(&gather::facts(&sources, &questions));
    let text = if args.json { report.for_programs() } else { report.for_people() };
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A reader that has gone away is no failure.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(CommandError::Output(error)),
        _ => {}
    }
    Ok(if report.grade == Grade::Fail { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Whom the command line names could have a mount here. Other mistakes are for the report.
fn is_user(sources: &Sources) -> Result<(), CommandError> {
    let sources = Sources { essential: Some(&["SCR_USER_NAME"]), reads_user_file: false, ..sources.clone() };
    let config = Config::load(&sources, super::read_file)?;
    Account::of_job(&config.claim)?;
    Ok(())
}

fn short(host: &str) -> &str {
    host.split('.').next().unwrap_or_default()
}

/// As Open MPI chooses it: the environment goes before the user's file, and that before the site's.
fn remote_shell() -> String {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(USER_FILE));
    let files = home.into_iter().chain([PathBuf::from(SITE_FILE)]);
    let texts = files.filter_map(|file| super::read_file(&file).ok().flatten());
    let named = std::env::var("OMPI_MCA_plm_rsh_agent").map(|agents| format!("plm_rsh_agent={agents}"));
    let agent = named.into_iter().chain(texts).find_map(|text| agent_in(&text).map(str::to_owned));
    agent.unwrap_or_else(|| REMOTE_SHELL.to_owned())
}
