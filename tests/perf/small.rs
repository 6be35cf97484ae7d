//! Many small files: does a create cost more the more there are, and what does a file's whole life
//! cost.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Instant;

use crate::Arguments;
use crate::backing::Backing;
use crate::mount::{Loopback, Mode, Mount};
use crate::pairs::{self, median};
use crate::table::{Bound, Measure, Row};

/// Creates at either end whose times are compared.
pub(crate) const SAMPLE: usize = 500;
/// Files of one run of the cycle.
const CYCLES: u32 = 500;
const BYTES: usize = 4096;

/// The rows of one backing and mode.
pub(crate) fn rows(backing: &Backing, mode: Mode, arguments: &Arguments) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    if arguments.wants(&Measure::CreateGrowth.name()) {
        rows.push(create_growth(backing, mode, arguments)?);
    }
    if arguments.wants(&Measure::CycleToLoopback.name()) {
        let mount = Mount::new(backing, mode)?;
        let scr = mount.directory("ck")?;
        let native = backing.path().join("native.small");
        fs::create_dir_all(&native)?;
        let loopback = Loopback::new(backing)?;
        let gated = (mode == Mode::Passthrough).then_some(Bound::AtLeast { gate: 0.75, goal: 1.0 });
        rows.push(cycles(backing, mode, arguments, Measure::CycleToNative, [&native, &scr], None)?);
        let against = [loopback.path(), &scr];
        rows.push(cycles(backing, mode, arguments, Measure::CycleToLoopback, against, gated)?);
    }
    Ok(rows)
}

/// How much longer the last creates take than the first, natively and through the mount.
fn create_growth(backing: &Backing, mode: Mode, arguments: &Arguments) -> io::Result<Row> {
    let label = format!("create, {}, {}", backing.kind.name(), mode.name());
    let mount = Mount::new(backing, mode)?;
    let native = backing.path().join("native.small");
    let turn = std::cell::Cell::new(0_u32);
    let scr = || {
        turn.set(turn.get() + 1);
        growth(&mount.directory(&format!("ck.{}", turn.get()))?, arguments.files)
    };
    let pairs = pairs::run(&label, arguments.pairs, || growth_native(&native, arguments.files), scr)?;
    Ok(Row {
        measure: Measure::CreateGrowth,
        backing: backing.kind,
        mode,
        peer: format!("{:.2}", pairs.first),
        scr: format!("{:.2}", pairs.second),
        figure: pairs.second,
        bound: (mode == Mode::Passthrough).then_some(Bound::AtMost { gate: 1.2, goal: 1.0 }),
    })
}

fn growth_native(directory: &Path, files: usize) -> io::Result<f64> {
    fs::create_dir_all(directory)?;
    growth(directory, files)
}

/// Makes `files` empty files; the median time of the last creates as a multiple of that of the
/// first.
fn growth(directory: &Path, files: usize) -> io::Result<f64> {
    let mut times = Vec::with_capacity(files);
    for number in 0..files {
        let path = directory.join(format!("file.{number:06}"));
        let begun = Instant::now();
        let file = File::create_new(path)?;
        times.push(begun.elapsed().as_secs_f64());
        drop(file);
    }
    let first = median(times[..SAMPLE].to_vec());
    let last = median(times[files - SAMPLE..].to_vec());
    fs::remove_dir_all(directory)?;
    Ok(last / first)
}

fn cycles(
    backing: &Backing,
    mode: Mode,
    arguments: &Arguments,
    measure: Measure,
    [peer, scr]: [&Path; 2],
    bound: Option<Bound>,
) -> io::Result<Row> {
    let label = format!("{}, {}, {}", measure.name(), backing.kind.name(), mode.name());
    let pairs = pairs::run(&label, arguments.pairs, || cycle(peer), || cycle(scr))?;
    Ok(Row {
        measure,
        backing: backing.kind,
        mode,
        peer: format!("{:.1} us", pairs.first * 1e6),
        scr: format!("{:.1} us", pairs.second * 1e6),
        figure: 1.0 / pairs.ratio,
        bound,
    })
}

/// Seconds of one file's life: create, write, close, stat, open, read, close, unlink.
fn cycle(directory: &Path) -> io::Result<f64> {
    let bytes = [0x5a_u8; BYTES];
    let mut again = [0_u8; BYTES];
    let begun = Instant::now();
    for number in 0..CYCLES {
        let path = directory.join(format!("small.{number}"));
        let mut file = File::create_new(&path)?;
        file.write_all(&bytes)?;
        drop(file);
        fs::metadata(&path)?;
        let mut file = File::open(&path)?;
        file.read_exact(&mut again)?;
        drop(file);
        fs::remove_file(&path)?;
    }
    if again != bytes {
        return Err(io::Error::other(format!("{}: wrong bytes", directory.display())));
    }
    Ok(begun.elapsed().as_secs_f64() / f64::from(CYCLES))
}
