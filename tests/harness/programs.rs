//! The test programs: those in C and Fortran are compiled with `mpicc` and `mpif90` when they are
//! first asked for.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use crate::cluster::{bin_dir, workspace};
use crate::place::BIN;

/// Headers that the programs share.
const HEADERS: [&str; 2] = ["ranks.h", "plain.h"];

/// Path inside a cluster of `tests/programs/NAME.c` (or `.f90`), compiled.
///
/// # Panics
/// When it does not compile.
pub fn program(name: &str) -> String {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let source = workspace().join("tests/programs").join(format!("{name}.c"));
    let (source, compiler) =
        if source.exists() { (source, "mpicc") } else { (source.with_extension("f90"), "mpif90") };
    let built: PathBuf = bin_dir().join("programs").join(name);
    let newer = |a: &PathBuf, b: &PathBuf| {
        let time = |p: &PathBuf| p.metadata().and_then(|m| m.modified()).ok();
        time(a).zip(time(b)).is_some_and(|(a, b)| a >= b)
    };
    let headers = HEADERS.map(|header| source.with_file_name(header));
    if ![&source].into_iter().chain(&headers).all(|from| newer(&built, from)) {
        std::fs::create_dir_all(bin_dir().join("programs")).expect("the build directory can be written");
        // Other test processes may compile it too: each its own file, then one rename.
        let fresh = built.with_extension(std::process::id().to_string());
        let status =
            Command::new(compiler).args(["-O2", "-Wall", "-Wextra", "-o"]).arg(&fresh).arg(&source).status();
        assert!(status.is_ok_and(|s| s.success()), "{compiler} {}", source.display());
        std::fs::rename(&fresh, &built).expect("rename in the build directory");
    }
    format!("{BIN}/programs/{name}")
}

/// Shell words that mount a file system at `directory` of a node, which takes each request and
/// answers none; with `allow_other`.
pub fn hanging(directory: &str) -> String {
    format!("python3 {} {directory}", workspace().join("tests/programs/hanging.py").display())
}
