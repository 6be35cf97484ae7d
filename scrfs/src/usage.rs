//! What becomes of a command line that asks for help, or that cannot be read.

use std::io::{self, ErrorKind, Write};

use clap::Parser;

use crate::status::people::shortened;

/// Exit code of a program that could not say what it was asked for.
const UNSAID: i32 = 1;

/// The arguments of `program`; does not return when there are none to be had.
pub fn parse<T: Parser>(program: &str) -> T {
    T::try_parse().unwrap_or_else(|error| end(program, &error))
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
            UNSAID
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
