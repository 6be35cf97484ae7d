//! `scrfs-perf`: what the mount costs, as ratios to the same work on the backing file system in the
//! same run.
//!
//! Every figure is the median of pairs: native and /scr in turn, the order swapped from pair to
//! pair, because machines drift. Not part of `tests/run`: a busy machine must not fail a change.
//! Run it alone:
//!
//! `cargo build --release --workspace && target/release/scrfs-perf`
//!
//! It makes a mount namespace and file systems of its own and leaves nothing behind. Exit 1 when a
//! gate is missed.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "nothing of scrfs itself")]

mod backing;
mod commit;
mod data;
mod meanwhile;
mod memory;
mod mount;
mod pairs;
mod protect;
mod quiet;
mod rebuild;
mod relaunch;
mod small;
mod spin;
mod table;

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Parser;

use backing::{Backing, Kind};
use mount::Mode;
use table::Row;

#[derive(Parser)]
#[command(about = "Measures the mount against its backing file system, in pairs")]
struct Arguments {
    /// Pairs per row.
    #[arg(long, default_value_t = 15)]
    pairs: usize,
    /// MiB written or read per run.
    #[arg(long, default_value_t = 256)]
    mib: usize,
    /// Files made one after the other, of which the last are compared with the first.
    #[arg(long, default_value_t = 10_000)]
    files: usize,
    /// Files of which a mount is asked what memory they cost; 0 leaves it out.
    #[arg(long, default_value_t = 100_000)]
    memory_files: usize,
    /// Only rows of measures whose name has this in it.
    #[arg(long, default_value = "")]
    only: String,
    /// Set by the program itself once it is in its own namespace.
    #[arg(long, hide = true)]
    inside: bool,
}

impl Arguments {
    fn wants(&self, measure: &str) -> bool {
        measure.contains(&self.only)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.pairs == 0 || arguments.mib == 0 || arguments.files < 2 * small::SAMPLE {
        eprintln!("scrfs-perf: --pairs and --mib must be at least 1, --files at least {}", 2 * small::SAMPLE);
        return ExitCode::from(2);
    }
    if !arguments.inside {
        let error = enter_namespace();
        eprintln!("scrfs-perf: cannot make a mount namespace: {error}\nhint: run it as root");
        return ExitCode::from(1);
    }
    match measure(&arguments) {
        Ok(rows) => {
            print!("{}", table::render(&rows, arguments.pairs));
            if rows.iter().all(Row::holds) { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Err(error) => {
            eprintln!("scrfs-perf: {error}");
            ExitCode::from(1)
        }
    }
}

fn enter_namespace() -> io::Error {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(program)
        .arg("--inside")
        .args(std::env::args_os().skip(1))
        .exec()
}

fn measure(arguments: &Arguments) -> io::Result<Vec<Row>> {
    let mut rows = if arguments.wants(spin::NAME) { spin::rows(arguments)? } else { Vec::new() };
    rows.extend(protect::rows(arguments)?);
    rows.extend(quiet::rows(arguments)?);
    if arguments.wants(meanwhile::NAME) {
        rows.extend(meanwhile::rows(arguments)?);
    }
    if arguments.wants(commit::NAME) {
        rows.extend(commit::rows()?);
    }
    if arguments.wants(rebuild::NAME) {
        rows.extend(rebuild::rows(arguments)?);
    }
    if arguments.wants(relaunch::NAME) {
        rows.extend(relaunch::rows(arguments)?);
    }
    // The others' names have nothing of these.
    let named = [
        spin::NAME,
        protect::NAME,
        quiet::NAME,
        meanwhile::NAME,
        commit::NAME,
        rebuild::NAME,
        relaunch::NAME,
    ];
    let none = named.contains(&arguments.only.as_str());
    let others: &[Kind] = if none { &[] } else { &[Kind::Tmpfs, Kind::Ext4] };
    for &kind in others {
        let backing = Backing::new(kind, arguments.mib * 3 + 1024)?;
        for mode in [Mode::Passthrough, Mode::Plain] {
            rows.extend(data::rows(&backing, mode, arguments)?);
            rows.extend(small::rows(&backing, mode, arguments)?);
            if kind == Kind::Tmpfs {
                rows.extend(memory::rows(&backing, mode, arguments)?);
            }
        }
    }
    rows.sort_by_key(|row| row.measure);
    Ok(rows)
}
