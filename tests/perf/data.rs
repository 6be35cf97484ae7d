//! Sequential data.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Instant;

use crate::Arguments;
use crate::backing::{Backing, Kind};
use crate::mount::{Mode, Mount};
use crate::pairs;
use crate::table::{Bound, Measure, Row};

const LARGE: usize = 1 << 20;
const SMALL: usize = 4 << 10;

/// The rows of one backing and mode.
pub(crate) fn rows(backing: &Backing, mode: Mode, arguments: &Arguments) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (measure, block, gate, goal) in [
        (Measure::WriteLarge, LARGE, 0.93, 0.98),
        (Measure::ReadLarge, LARGE, 0.93, 0.98),
        (Measure::WriteSmall, SMALL, 0.85, 0.92),
    ] {
        if !arguments.wants(&measure.name()) {
            continue;
        }
        // With passthrough the kernel does it all; the 1 MiB rows are promised for memory, where
        // nothing hides a cost.
        let bound = mode == Mode::Passthrough && (backing.kind == Kind::Tmpfs || block == SMALL);
        let bound = bound.then_some(Bound::AtLeast { gate, goal });
        rows.push(row(backing, mode, arguments, measure, block, bound)?);
    }
    Ok(rows)
}

fn row(
    backing: &Backing,
    mode: Mode,
    arguments: &Arguments,
    measure: Measure,
    block: usize,
    bound: Option<Bound>,
) -> io::Result<Row> {
    let mount = Mount::new(backing, mode)?;
    let native = backing.path().join("native");
    let scr = mount.directory("ck")?.join("file");
    let blocks = arguments.mib * LARGE / block;
    let label = format!("{}, {}, {}", measure.name(), backing.kind.name(), mode.name());
    let buffer = vec![0x5a_u8; block];
    // Of the daemon, while data moves. What it takes to give a removed file's memory back, which
    // comes after the removal has returned, is not counted.
    let cpu = std::cell::Cell::new(0.0);
    let pairs = if measure == Measure::ReadLarge {
        // Both read one file into one buffer, natively where the cache keeps it: how fast memory is
        // read hangs on where the pages lie, by a factor of two on a virtual machine, and is not
        // what is asked.
        write(&scr, &buffer, blocks)?;
        let native = mount.backing_file("file")?;
        let buffer = std::cell::RefCell::new(buffer);
        let native_once = || read(&native, &mut buffer.borrow_mut(), blocks);
        let scr_once = || counted(&mount, &cpu, || read(&scr, &mut buffer.borrow_mut(), blocks));
        pairs::run(&label, arguments.pairs, native_once, scr_once)?
    } else {
        let room = backing.room()?;
        let native_once = || {
            let speed = write(&native, &buffer, blocks)?;
            std::fs::remove_file(&native)?;
            Ok(speed)
        };
        let scr_once = || {
            let speed = counted(&mount, &cpu, || write(&scr, &buffer, blocks))?;
            std::fs::remove_file(&scr)?;
            backing.await_room(room)?;
            Ok(speed)
        };
        pairs::run(&label, arguments.pairs, native_once, scr_once)?
    };
    let cpu = cpu.get() / gigabytes(blocks * block * (arguments.pairs + 1));
    Ok(Row {
        measure,
        backing: backing.kind,
        mode,
        peer: format!("{:.0} MB/s", pairs.first),
        scr: format!("{:.0} MB/s, daemon {cpu:.3} s/GB", pairs.second),
        figure: pairs.ratio,
        bound,
    })
}

/// Runs `work` and adds what processor time the mount's daemon used meanwhile.
fn counted(
    mount: &Mount,
    cpu: &std::cell::Cell<f64>,
    work: impl FnOnce() -> io::Result<f64>,
) -> io::Result<f64> {
    let before = mount.cpu_seconds()?;
    let speed = work()?;
    cpu.set(cpu.get() + mount.cpu_seconds()? - before);
    Ok(speed)
}

/// MB/s of writing a new file.
fn write(path: &Path, block: &[u8], blocks: usize) -> io::Result<f64> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).open(path)?;
    let begun = Instant::now();
    for _ in 0..blocks {
        file.write_all(block)?;
    }
    drop(file);
    Ok(gigabytes(block.len() * blocks) * 1e3 / begun.elapsed().as_secs_f64())
}

/// MB/s of reading a file that is in memory.
fn read(path: &Path, block: &mut [u8], blocks: usize) -> io::Result<f64> {
    let begun = Instant::now();
    let mut file = File::open(path)?;
    for _ in 0..blocks {
        file.read_exact(block)?;
    }
    drop(file);
    Ok(gigabytes(block.len() * blocks) * 1e3 / begun.elapsed().as_secs_f64())
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a benchmark are far below 2^52")]
fn gigabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e9
}
