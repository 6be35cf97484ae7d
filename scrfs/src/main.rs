//! `scrfs`: mounts and unmounts. Exit 0: done; 1: it failed, the reason on standard error; 2: wrong
//! command line or parameters.

#[cfg(feature = "fuse")]
mod command;
#[cfg(feature = "fuse")]
mod trial;

use std::process::ExitCode;

#[cfg(feature = "fuse")]
#[global_allocator]
static ALLOCATOR: scrfs::fuse::Allocator = scrfs::fuse::Allocator;

#[cfg(feature = "fuse")]
fn main() -> ExitCode {
    command::main()
}

#[cfg(not(feature = "fuse"))]
fn main() -> ExitCode {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "scrfs: built without FUSE\nhint: build with feature `fuse`");
    ExitCode::FAILURE
}
