//! What becomes of a command line that asks for help, or that cannot be read.

use std::io::{self, ErrorKind, Write};

use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::status::people::shortened;

/// Exit code of a program that could not do, or say, what it was asked for.
const FAILED: i32 = 1;

/// With fewer, a program that looks at directories and sockets would take what it cannot open for
/// what is not there, and a mount would have none left for a program's first file.
const DESCRIPTORS: u64 = 64;

/// The arguments of `program`; does not return when there are none to be had, or the program may
/// not open as many files as it needs.
pub fn parse<T: Parser>(program: &str) -> T {
    need_descriptors(program);
    T::try_parse().unwrap_or_else(|error| end(program, &error))
}

/// Ends `program` with exit code 1 if it may not open as many files as it needs; a limit that it
/// may raise is raised.
pub fn need_descriptors(program: &str) {
    let limit = getrlimit(Resource::Nofile);
    let suffices = |most: Option<u64>| most.is_none_or(|most| most >= DESCRIPTORS);
    let most = || Rlimit { current: limit.maximum, ..limit };
    if suffices(limit.current) || suffices(limit.maximum) && setrlimit(Resource::Nofile, most()).is_ok() {
        return;
    }
    let current = limit.current.unwrap_or_default();
    let line = format!("{program}: it may open {current} files, and needs {DESCRIPTORS}");
    drop(writeln!(io::stderr(), "{line}\nhint: raise the limit: ulimit -n"));
    std::process::exit(FAILED);
}

/// Has this process open as many files as it may: over TCP a coordinator has a socket for each node
/// that it hears of.
pub fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!(%error, "the number of open files stays limited");
    }
}

/// Ends `program` with what clap has to say: help and version on standard output (exit code 0), or
/// what is wrong, and how it is used, on standard error (2). Where what was asked for cannot be
/// written, the exit code is 1.
pub fn end(program: &str, error: &clap::Error) -> ! {
    let code = match say(error) {
        Err(failed) if !error.use_stderr() && failed.kind() != ErrorKind::BrokenPipe => {
            let hint = "it has to be open, with room for a few lines";
            // Whether anybody reads it changes nothing.
            drop(writeln!(
                io::stderr(),
                "{program}: cannot write to standard output: {failed}\nhint: {hint}"
            ));
            FAILED
        }
        _ => error.exit_code(),
    };
    std::process::exit(code)
}

/// With colours where a terminal reads it, save for what has to be made shorter.
fn say(error: &clap::Error) -> io::Result<()> {
    let plain = error.render().to_string();
    let short = shortened(&plain);
    if error.use_stderr() && short != plain {
        return io::stderr().write_all(short.as_bytes());
    }
    error.print()?;
    io::stdout().flush()
}
