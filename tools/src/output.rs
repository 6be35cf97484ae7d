//! Standard output for data, standard error for talk. A reader that has gone away (`| head`) is no
//! failure.

use std::io::{self, Write};

pub use scrfs::status::people::{bytes_for_people, hosts_for_people};

use crate::{Failure, Outcome};

/// Writes data, a line break included, to standard output.
pub fn data(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Failure::system("standard output", &e)),
        _ => Ok(()),
    }
}

/// What may hold anything, as a name of a dataset or a path: no terminal obeys it, and it takes one
/// line. Quotes stay as they are.
pub fn escaped(text: impl std::fmt::Display) -> String {
    let mut shown = String::new();
    for one in text.to_string().chars() {
        match one {
            '\'' | '"' => shown.push(one),
            _ => shown.extend(one.escape_debug()),
        }
    }
    shown
}

/// A line on standard error; whether it arrives changes nothing.
pub fn talk(line: &str) {
    drop(writeln!(io::stderr().lock(), "{line}"));
}
