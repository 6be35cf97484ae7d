//! A simulated cluster for people and scripts: `up` holds one until it is interrupted, the other
//! verbs work on it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "nothing of scrfs itself")]

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use std::{io, thread};

use scrfs_harness::cluster::Control;
use scrfs_harness::place::{Place, State};
use scrfs_harness::{Cluster, Config, Shell};

const USAGE: &str = "\
scrfs-simcluster up N [CACHE_SIZE]             start N nodes, print the cluster's directory, hold them until
                                               interrupted or until the parent process ends
scrfs-simcluster DIR exec PLACE COMMAND...     run a command on node0, node1, ... or head, as root
scrfs-simcluster DIR job PLACE COMMAND...      the same as the job's user
scrfs-simcluster DIR boot|kill|poweroff|cut|uncut|freeze|thaw K
scrfs-simcluster DIR list";

/// Longer than anything a person waits for.
const LIMIT: Duration = Duration::from_hours(24);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> io::Result<ExitCode> {
    let usage = || io::Error::new(io::ErrorKind::InvalidInput, USAGE);
    let number = |word: &str| word.parse::<usize>().map_err(|_| usage());
    if let ["up", nodes, size @ ..] = words {
        let mut config = Config::new(number(nodes)?);
        if let [size] = size {
            (*size).clone_into(&mut config.cache_size);
        }
        return hold(&config);
    }
    let [dir, verb, rest @ ..] = words else { return Err(usage()) };
    let control = Control::of(State::at(*dir));
    match (*verb, rest) {
        ("list", []) => print!("{}", control.list()),
        ("exec" | "job", [place, program, args @ ..]) => {
            let place = Place::parse(place).ok_or_else(usage)?;
            let shell = Shell::at(control.state(), place).limit(LIMIT);
            let shell = if *verb == "job" { shell.job() } else { shell };
            return pass_on(shell.cmd(program).args(args));
        }
        ("boot", [node]) => control.boot(number(node)?)?,
        ("kill", [node]) => control.kill(number(node)?),
        ("poweroff", [node]) => control.poweroff(number(node)?),
        ("cut", [node]) => control.cut(number(node)?),
        ("uncut", [node]) => control.uncut(number(node)?),
        ("freeze", [node]) => control.freeze(number(node)?),
        ("thaw", [node]) => control.thaw(number(node)?),
        _ => return Err(usage()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Holds a cluster; the harness ends it on INT, TERM and HUP.
fn hold(config: &Config) -> io::Result<ExitCode> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    let cluster = Cluster::start(config)?;
    writeln!(io::stdout(), "{}", cluster.state().dir().display())?;
    loop {
        thread::park();
    }
}

fn pass_on(command: &mut Command) -> io::Result<ExitCode> {
    let status = command.stdin(Stdio::inherit()).status()?;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(255)))
}
