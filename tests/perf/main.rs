//! `scrfs-perf`: what the mount costs, as ratios to the same work on the backing file system in the same run.
//!
//! Every figure is the median of pairs: native and /scr in turn, the order swapped from pair to pair, because machines
//! drift. Not part of `tests/run`: a busy machine must not fail a change. Run it alone:
//!
//! `cargo build --release --workspace && target/release/scrfs-perf`
//!
//! It makes a mount namespace and a tmpfs of its own and leaves nothing behind. Exit 1 when a gate is missed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::Parser;

/// Bytes of one write call.
const BLOCK: usize = 1 << 20;

#[derive(Parser)]
#[command(about = "Measures the mount against its backing file system, in pairs")]
struct Arguments {
    /// Pairs per row.
    #[arg(long, default_value_t = 21)]
    pairs: usize,
    /// MiB written per run.
    #[arg(long, default_value_t = 512)]
    mib: usize,
    /// Set by the program itself once it is in its own namespace.
    #[arg(long, hide = true)]
    inside: bool,
}

/// One row of the table.
struct Row {
    mode: &'static str,
    gate: Option<f64>,
    native: f64,
    scr: f64,
    ratio: f64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !arguments.inside {
        let error = enter_namespace();
        eprintln!("scrfs-perf: cannot make a mount namespace: {error}\nhint: run it as root");
        return ExitCode::from(1);
    }
    match measure(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
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

fn measure(arguments: &Arguments) -> io::Result<bool> {
    let home = tempfile::tempdir()?;
    let _tmpfs = Tmpfs::mount(home.path(), arguments.mib * 3 + 256)?;
    let rows = [
        sequential_write(home.path(), arguments, "passthrough", Some(0.93))?,
        sequential_write(home.path(), arguments, "plain", None)?,
    ];
    println!("1 MiB sequential write, tmpfs, {} MiB, median of {} pairs", arguments.mib, arguments.pairs);
    println!("| mode | native MB/s | /scr MB/s | ratio | gate |");
    println!("|---|---|---|---|---|");
    let mut held = true;
    for row in rows {
        let gate = row.gate.map_or_else(|| "-".to_owned(), |gate| format!("{gate:.2}"));
        println!("| {} | {:.0} | {:.0} | {:.2} | {gate} |", row.mode, row.native, row.scr, row.ratio);
        held &= row.gate.is_none_or(|gate| row.ratio >= gate);
    }
    Ok(held)
}

fn sequential_write(
    home: &Path,
    arguments: &Arguments,
    mode: &'static str,
    gate: Option<f64>,
) -> io::Result<Row> {
    let mount = Mount::new(home, mode)?;
    let native_file = home.join("native");
    let scr_directory = mount.point.join("ck");
    std::fs::create_dir(&scr_directory)?;
    let scr_file = scr_directory.join("file");
    let block = vec![0x5a_u8; BLOCK];
    let mut native = Vec::new();
    let mut scr = Vec::new();
    let mut ratios = Vec::new();
    // The first pair warms caches and allocators and does not count.
    for pair in 0..=arguments.pairs {
        let (a, b) = if pair % 2 == 0 { (&native_file, &scr_file) } else { (&scr_file, &native_file) };
        let first = write_once(a, &block, arguments.mib)?;
        let second = write_once(b, &block, arguments.mib)?;
        let (n, s) = if pair % 2 == 0 { (first, second) } else { (second, first) };
        if pair > 0 {
            native.push(n);
            scr.push(s);
            ratios.push(s / n);
        }
        eprint!("\r{mode}: pair {pair} of {}", arguments.pairs);
    }
    eprintln!();
    Ok(Row { mode, gate, native: median(native), scr: median(scr), ratio: median(ratios) })
}

/// MB/s of writing a new file; it is removed afterwards.
fn write_once(path: &Path, block: &[u8], mib: usize) -> io::Result<f64> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).open(path)?;
    let begun = Instant::now();
    for _ in 0..mib {
        file.write_all(block)?;
    }
    drop(file);
    let seconds = begun.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    #[expect(clippy::cast_precision_loss, reason = "megabytes of a benchmark are far below 2^52")]
    let megabytes = (mib * BLOCK) as f64 / 1e6;
    Ok(megabytes / seconds)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A tmpfs that goes when this value does.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(point: &Path, mib: usize) -> io::Result<Self> {
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o"])
            .arg(format!("size={mib}m"))
            .arg("tmpfs")
            .arg(point))?;
        Ok(Self(point.to_owned()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A scrfs mount that goes when this value does.
struct Mount {
    program: PathBuf,
    point: PathBuf,
}

impl Mount {
    fn new(home: &Path, mode: &str) -> io::Result<Self> {
        let program = std::env::current_exe()?.with_file_name("scrfs");
        let point = home.join(format!("scr-{mode}"));
        std::fs::create_dir(&point)?;
        let mut command = Command::new(&program);
        command.args(["mount", "--user", "root", "--job-id", mode]);
        command.arg("--control-base").arg(home.join("control")).arg("--cache-base").arg(home.join("cache"));
        if mode == "plain" {
            command.arg("--no-passthrough");
        }
        run(command.arg(&point))?;
        Ok(Self { program, point })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new(&self.program).arg("umount").arg(&self.point).status();
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{command:?}: {status}"))) }
}
